"""ASGI sites, as FastAPI, Starlette and Litestar make them: lifespan, work that follows a response, pages of jobs.

Runs no job: a worker never lives in the web process. Needs ``pip install 'headrace[web]'``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import msgspec

from headrace.errors import JobNotFound, MissingExtra, OptionsError
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.submission import UnsentJob

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError:
    raise MissingExtra("this needs starlette: pip install 'headrace[web]'") from None

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.model.job_record import Record
    from headrace.tasks.job_handle import Job

P = ParamSpec("P")
R = TypeVar("R")
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Authorize: TypeAlias = "Callable[[Request, Record], bool | Awaitable[bool]]"

_SCOPE = "headrace.background"
_STATE = "headrace"
ALIVE = 15.0  # a comment of the stream this often (seconds), so that proxies keep it open
_json = msgspec.json.Encoder().encode


def lifespan(app: Headrace) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """What a site takes as ``lifespan``: it closes the application's connections when the site ends.

    Its requests know the application, see :func:`get_app`. A lifespan of your own yields what this one gives:
    ``async with lifespan(app)(site) as state: yield state``.
    """

    @asynccontextmanager
    async def opened(site: object) -> AsyncGenerator[dict[str, Any]]:  # noqa: ARG001
        async with app:
            yield {_STATE: app}

    return opened


def get_app(request: HTTPConnection) -> Headrace:
    """The application of a request's site, such as ``Depends(get_app)`` in FastAPI. In Starlette call it. Raises
    OptionsError: the site does not have :func:`lifespan`.
    """
    found: Headrace | None = request.scope.get("state", {}).get(_STATE)
    if found is None:
        raise OptionsError("the site knows no application: FastAPI(lifespan=lifespan(app))")
    return found


class BackgroundTasks:
    """Jobs of one request that are not stored yet, with the ``add_task`` of Starlette's class."""

    def __init__(self) -> None:
        self.jobs: list[UnsentJob[Any]] = []

    def add_task(self, task: BoundTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job of a task, or of ``task.options(...)``; it is stored before the response begins. Returns a handle,
        whose id the response may name. Raises OptionsError: ``task`` is an ordinary function, which would die with this
        process. Raises ArgumentError, PayloadTooLarge: as :meth:`Task.enqueue`. Cost: none.
        """
        if not isinstance(task, BoundTask):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"add_task takes a task, not {task!r:.80}: decorate the function with @app.task")
        new = task.job(*args, **kwargs)
        self.jobs.append(new)
        return new.handle


class JobSender:
    """ASGI middleware, ``site.add_middleware(JobSender, app=app)``: stores the jobs of a request.

    They are stored in one round trip (for each 1,000) before a response whose status is below 400 begins: the jobs of
    a request that was answered so are stored. Any other response drops them. Where the store refuses them the request
    fails, and its response does not begin.
    """

    def __init__(self, site: Any, app: Headrace) -> None:
        self._site = site
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._site(scope, receive, send)
            return
        waiting = scope[_SCOPE] = BackgroundTasks()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and waiting.jobs and message["status"] < 400:
                jobs, waiting.jobs = waiting.jobs, []
                await self._app.aenqueue_many(jobs)
            await send(message)

        await self._site(scope, receive, sending)


def background_tasks(request: HTTPConnection) -> BackgroundTasks:
    """The jobs of a request: ``Depends(background_tasks)`` in FastAPI. Raises OptionsError: it has no JobSender."""
    found = request.scope.get(_SCOPE)
    if not isinstance(found, BackgroundTasks):
        raise OptionsError("nothing would store these jobs: site.add_middleware(JobSender, app=app)")
    return found


def jobs_site(app: Headrace, *, authorize: Authorize) -> Starlette:
    """State, cancellation and events of jobs, as a site to mount in another.

    ``site.mount("/jobs", jobs_site(app, authorize=may_see))``.
    ``GET /{id}`` has the state of a job, ``POST /{id}/cancel`` cancels it, ``GET /{id}/events`` is a stream of events
    that an ``EventSource`` of a browser reads: one as the job changes, the last when it has ended. A client that comes
    back with ``Last-Event-ID`` gets the newest state, unless it has it. Results and arguments are not shown, data of
    progress is.

    Args:
        authorize: called with the request and the job's record, may be a coroutine function. What it does not allow is
            404, as a job that is not stored is.

    Raises:
        OptionsError: there is no such function.

    Cost: a round trip a request; for events one a change, and the connection that all who wait share.
    """
    if not callable(authorize):
        raise OptionsError("jobs_site needs authorize=, a function of request and record: an id gives no permission")

    async def allowed(request: Request) -> tuple[Job[Any], Record] | None:
        try:
            job = app.job(request.path_params["id"])
            record = await job.arefresh()
        except JobNotFound:
            return None
        answer = authorize(request, record)
        yes = await answer if inspect.isawaitable(answer) else answer
        return (job, record) if yes is True else None

    async def state(request: Request) -> Response:
        found = await allowed(request)
        return _missing() if found is None else _answer(_json(facts_for_browser(found[1])))

    async def cancel(request: Request) -> Response:
        found = await allowed(request)
        return _missing() if found is None else _answer(_json({"state": str(await found[0].acancel())}))

    async def events(request: Request) -> Response:
        found = await allowed(request)
        if found is None:
            return _missing()
        last = request.headers.get("last-event-id", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_stream(found[0], last), media_type="text/event-stream", headers=headers)

    pages = (("/{id}", state, "GET"), ("/{id}/cancel", cancel, "POST"), ("/{id}/events", events, "GET"))
    # Litestar ends the path of what it mounts with a slash.
    return Starlette(
        routes=[Route(path + end, page, methods=[verb]) for path, page, verb in pages for end in ("", "/")]
    )


def facts_for_browser(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "task": record.task,
        "state": str(record.state),
        "attempt": record.attempt,
        "progress": record.progress,
        "text": record.progress_text,
        "data": record.progress_data,
        "ended": record.state.final,
    }


async def _stream(job: Job[Any], last: str) -> AsyncGenerator[bytes]:
    changes = job.aevents(last)
    # A task of its own, since a time limit within the generator would end it.
    ahead = asyncio.create_task(_next(changes))
    try:
        while True:
            done: set[Any] = (await asyncio.wait({ahead}, timeout=ALIVE))[0]
            if not done:
                yield b": alive\n\n"
                continue
            if (record := ahead.result()) is None:
                return
            ahead = asyncio.create_task(_next(changes))
            kind = "end" if record.state.final else "change"
            yield f"id: {record.version}\nevent: {kind}\ndata: ".encode() + _json(facts_for_browser(record)) + b"\n\n"
    finally:
        ahead.cancel()
        await asyncio.wait({ahead})
        await changes.aclose()


async def _next(changes: AsyncGenerator[Record]) -> Record | None:
    try:
        return await anext(changes)
    except (StopAsyncIteration, JobNotFound):
        return None


def _answer(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json", headers={"cache-control": "no-store"})


def _missing() -> Response:
    return _answer(b'{"error":"no such job"}', 404)
