"""Sites of FastAPI, Starlette, Litestar and Flask, each served by a real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import litestar
import pytest
import redis
import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from flask import Flask, current_app, g
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from headrace import Headrace, Record, Submission
from headrace.contrib import flask as flask_tie
from headrace.contrib.asgi import BackgroundTasks, JobSender, background_tasks, get_app, jobs_site, lifespan
from headrace.errors import JobFailed, OptionsError
from headrace.protocol.keys import keys_of
from headrace.testing import Kit
from tests.deadline import eventually

pytestmark = pytest.mark.timeout(120)


def add(left: int, right: int) -> int:
    return left + right


@contextmanager
def served(site: Any) -> Generator[Callable[..., tuple[int, bytes]]]:
    """A site on loopback; yields a function that sends a request."""
    server = uvicorn.Server(uvicorn.Config(site, host="127.0.0.1", port=0, log_level="error", ws="none"))
    started = threading.Event()
    startup = server.startup

    async def announced(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = announced  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(60)
    port = server.servers[0].sockets[0].getsockname()[1]

    def ask(method: str, path: str, **headers: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    ask.port = port  # type: ignore[attr-defined]
    try:
        yield ask
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        yield app


def test_jobs_of_a_request_are_stored_at_once_before_its_response_begins(app: Headrace) -> None:
    task = app.task(name="add")(add)
    acts: list[Submission] = []

    @app.enqueue_middleware
    @contextmanager
    def seen(act: Submission) -> Generator[None]:
        yield
        acts.append(act)

    api = FastAPI(lifespan=lifespan(app))
    api.add_middleware(JobSender, app=app)

    @api.post("/sums/{count}")
    async def sums(count: int, tasks: Annotated[BackgroundTasks, Depends(background_tasks)]) -> list[str]:
        ids = [tasks.add_task(task, n, n).id for n in range(count)]
        if count > 5:
            raise HTTPException(409)
        return ids

    with served(api) as ask:
        status, body = ask("POST", "/sums/3")
        assert status == 200
        assert [app.job(id).state for id in json.loads(body)] == ["ready"] * 3
        assert ask("POST", "/sums/6")[0] == 409
        assert [len(act.jobs) for act in acts] == [3]


def test_a_request_whose_jobs_the_store_refuses_has_no_answer_that_says_otherwise(app: Headrace) -> None:
    task = app.task(name="add")(add)

    @app.enqueue_middleware
    @contextmanager
    def refuse(act: Submission) -> Generator[None]:
        raise ConnectionError("away")
        yield

    api = FastAPI()
    api.add_middleware(JobSender, app=app)

    @api.post("/")
    async def one(tasks: Annotated[BackgroundTasks, Depends(background_tasks)]) -> str:
        return tasks.add_task(task, 1, 2).id

    with served(api) as ask:
        assert ask("POST", "/")[0] == 500
    assert app.queues["default"].size == 0


def test_requests_know_the_application_of_their_site(app: Headrace, url: str) -> None:
    app.task(name="add")(add)
    with Headrace(url, namespace="other") as other:
        other.task(name="add")(add)
        sites = {app: FastAPI(lifespan=lifespan(app)), other: FastAPI(lifespan=lifespan(other))}
        for mine, site in sites.items():

            @site.post("/")
            async def one(found: Annotated[Headrace, Depends(get_app)]) -> str:
                return (await found.by_name("add").aenqueue(1, 2)).id

            with served(site) as ask:
                assert mine.job(json.loads(ask("POST", "/")[1])).state == "ready"
        assert [found.queues["default"].size for found in sites] == [1, 1]
    with pytest.raises(OptionsError, match="lifespan"):
        get_app(Request({"type": "http"}))


def sums_of(kind: str, jobs: Headrace) -> Any:
    """A site whose ``POST /`` adds a job to its request, and answers with the job's id."""

    async def one(request: Request) -> Any:
        return Response(background_tasks(request).add_task(jobs.tasks["add"], 1, 2).id)

    if kind == "starlette":
        site = Starlette(routes=[Route("/", one, methods=["POST"])], lifespan=lifespan(jobs))
        site.add_middleware(JobSender, app=jobs)
        return site

    @litestar.post("/")
    async def two(request: litestar.Request[Any, Any, Any]) -> str:
        return background_tasks(request).add_task(jobs.tasks["add"], 1, 2).id  # type: ignore[arg-type]

    return Litestar([two], middleware=[lambda app: JobSender(app, jobs)], openapi_config=None)


@pytest.mark.parametrize("kind", ["starlette", "litestar"])
def test_other_sites_than_fastapis_store_the_jobs_of_a_request_too(app: Headrace, kind: str) -> None:
    app.task(name="add")(add)
    with served(sums_of(kind, app)) as ask:
        status, body = ask("POST", "/")
        assert status < 300
        assert app.job(body.decode()).state == "ready"


def test_an_ordinary_function_and_a_site_without_the_sender_are_refused() -> None:
    with pytest.raises(OptionsError, match=r"add_task takes a task, not <function add.*@app.task"):
        BackgroundTasks().add_task(add, 1, 2)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionsError, match="add_middleware"):
        background_tasks(Request({"type": "http"}))


def may_see(request: Request, record: Record) -> bool:
    return record.headers.get("user") == request.headers.get("user")


def mounted(kind: str, jobs: Starlette) -> Any:
    if kind == "litestar":
        return Litestar([asgi("/jobs", is_mount=True, copy_scope=True)(jobs)], openapi_config=None)
    if kind == "fastapi":
        api = FastAPI()
        api.mount("/jobs", jobs)
        return api
    return Starlette(routes=[Mount("/jobs", jobs)])


@pytest.mark.parametrize("kind", ["starlette", "fastapi", "litestar"])
def test_a_job_is_shown_and_cancelled_for_its_user_only(app: Headrace, kind: str) -> None:
    job = app.by_name("nobody.knows", headers={"user": "ada"}).enqueue()
    with served(mounted(kind, jobs_site(app, authorize=may_see))) as ask:
        status, body = ask("GET", f"/jobs/{job.id}", user="ada")
        assert (status, json.loads(body)["state"]) == (200, "ready")
        for path in (job.id, f"{job.id}/events", "0" * 21, "nonsense"):
            assert ask("GET", f"/jobs/{path}", user="ben")[0] == 404
        assert ask("POST", f"/jobs/{job.id}/cancel", user="ben")[0] == 404
        assert ask("GET", f"/jobs/{job.id}/cancel", user="ada")[0] == 405
        assert ask("POST", f"/jobs/{job.id}/cancel", user="ada") == (200, b'{"state":"cancelled"}')
        assert job.state == "cancelled"


def test_pages_of_jobs_without_an_authorisation_are_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="an id gives no permission"):
        jobs_site(app, authorize=None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_nothing_waits_any_more_for_a_browser_that_has_gone(app: Headrace, client: redis.Redis) -> None:
    job = app.by_name("nobody.knows").enqueue()
    channel = keys_of("hr").done(job.id)
    with served(mounted("starlette", jobs_site(app, authorize=lambda request, record: True))) as ask:
        with closing(http.client.HTTPConnection("127.0.0.1", ask.port, timeout=60)) as browser:  # type: ignore[attr-defined]
            browser.request("GET", f"/jobs/{job.id}/events")
            assert browser.getresponse().readline().startswith(b"id: ")
            eventually(lambda: client.pubsub_numsub(channel)[0][1] == 1)
        eventually(lambda: client.pubsub_numsub(channel)[0][1] == 0)


def test_a_thousand_requests_that_wait_share_two_connections(app: Headrace, client: redis.Redis) -> None:
    jobs = [app.by_name("nobody.knows").enqueue() for _ in range(20)]

    def connections() -> int:
        return sum(one["name"] == "headrace" or "headrace" in one["lib-name"] for one in client.client_list())

    async def wait() -> int:
        async with app:
            waits = [asyncio.ensure_future(jobs[n % 20].aresult(timeout=60)) for n in range(1000)]
            await asyncio.to_thread(eventually, lambda: len(client.pubsub_channels("*")) >= 20)
            found = connections()
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            return found

    before = connections()
    assert asyncio.run(wait()) - before <= 2


@pytest.fixture
def site(app: Headrace) -> Flask:
    site = Flask(__name__)
    site.config["GREETING"] = "hello"
    flask_tie.init_app(site, app)
    return site


def test_each_job_has_an_application_context_and_its_teardown(app: Headrace, site: Flask, url: str) -> None:
    ends: list[str] = []

    @site.teardown_appcontext
    def leave(error: BaseException | None) -> None:
        ends.append(f"{g.pop('used', '-')} {type(error).__name__}")

    @app.task(name="greet")
    def greet(name: str) -> str:
        assert "used" not in g
        g.used = name
        if not name:
            raise ValueError("no name")
        return f"{current_app.config['GREETING']}, {name}"

    @app.task(name="agreet")
    async def agreet(name: str) -> str:
        return greet(name)

    with Kit(app, url=url) as kit:
        jobs = [greet.enqueue(name) for name in ("ada", "", "ben")]
        kit.drain(raises=False)
        assert (jobs[0].result(timeout=0), jobs[2].result(timeout=0)) == ("hello, ada", "hello, ben")
        with pytest.raises(JobFailed, match="no name"):
            jobs[1].result(timeout=0)
        later = app.tasks["agreet"].enqueue("cy")
        kit.drain()
        assert later.result(timeout=0) == "hello, cy"
    assert ends == ["ada NoneType", " ValueError", "ben NoneType", "cy NoneType"]
    flask_tie.init_app(Flask("another"), app)
    assert len(app.middlewares) == 1
