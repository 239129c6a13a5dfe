"""Every verb that stores work passes the enqueue middleware; without one, each sends what it sent before."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

import headrace
from headrace import Flow, Headrace, Submission
from headrace.admin.jobs import Jobs
from headrace.admin.queues import Queue
from headrace.errors import OptionsError, StoreUnavailable
from headrace.model.job import State
from headrace.protocol.script import load
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.job_handle import Job
from headrace.tasks.submission import UnsentJob
from headrace.tasks.task import Task
from headrace.workflows.definition import Workflow
from headrace.workflows.run import WorkflowRun
from tests.store.test_app import Worker
from tests.store.twin import GREETING, bulk, says, stub

# What each verb that stores work does, and how many jobs its submission shows.
STORING: dict[tuple[type, str], int] = {
    (BoundTask, "enqueue"): 1,
    (BoundTask, "enqueue_json"): 1,
    (BoundTask, "broadcast"): 1,
    (Headrace, "enqueue_many"): 3,
    (Headrace, "enqueue_packed"): 3,
    (Workflow, "create"): 4,
    (WorkflowRun, "start"): 0,
}
# Verbs that store no new work: they define, look, or do something to what is stored. A job or workflow that is retried is
# stored already.
OTHERS: dict[type, set[str]] = {
    Headrace: {
        "after_fork_child", "after_fork_parent", "as_completed", "await_", "before_fork", "by_name", "cached",
        "close", "cron", "disconnect", "enqueue_middleware", "every", "include", "job", "lifespan", "middleware", "move", "on_exit",
        "on_preload", "overview", "override", "task", "wait", "worker", "workflow",
    },
    Task: {"pack_result", "plan", "prepare", "settle_in", "unpack"},
    BoundTask: {"check_key", "draw", "fitting", "form", "handle", "job", "options", "placed", "places"},
    UnsentJob: {"pack", "take", "untaken"},
    # create_as is create under an id of the caller's, by the same steps.
    Workflow: {"count", "create_as", "graph", "ids", "options", "page", "run_with"},
    WorkflowRun: {
        "await_", "cancel", "delete", "expire", "fresh", "job", "node", "nodes", "outputs", "refresh", "retry_failed",
        "stop", "wait", "was_created",
    },
    Job: {"attempts", "cancel", "delete", "events", "logs", "move", "refresh", "result", "retry", "why"},
    # again is an enqueue of a BoundTask.
    Jobs: {"again", "apply", "count", "get", "handle", "handle_of", "ids", "own", "page", "reader", "why"},
    Queue: {"load", "pause", "paused", "purge", "resume"},
}  # fmt: skip
# The only places that make the calls which store work. All but the last two enter the middleware, or are entered by it;
# these: the runner enters it before the dispatcher stores what a node adds, and the protocol itself.
CALLERS = {
    "enqueue": {"store/client.py"},
    "broadcast": {"tasks/bound_task.py"},
    "create": {"workflows/definition.py"},
    "start": {"workflows/verbs.py"},
    "graft": {"worker/dispatcher/workflow_growth.py"},
}


def fetch(n: int = 0, *, name: str = "") -> int:
    return n


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="fetch")(fetch)
        yield app


def workflow(app: Headrace) -> Workflow[...]:
    def graph(flow: Flow) -> None:
        flow.run("fetch", 1, name="first", undo="fetch")
        flow.map("fetch", [flow.run("fetch", 2, name="second")])

    return app.workflow(name="graph", key="one")(graph)


def calls(app: Headrace, kind: type, name: str) -> Callable[[], Any]:
    """What makes one submission of this verb."""
    task = app.tasks["fetch"]
    jobs = [task.job(n) for n in range(3)]
    bound = task.options(priority=1)
    if kind is Headrace:
        given: Any = jobs if "many" in name else [job.pack() for job in jobs]
        return lambda: getattr(app, name)(given)
    if kind is Workflow:
        made = workflow(app)
        create: Any = getattr(made, name)
        return create
    if kind is WorkflowRun:
        run = workflow(app).create()
        start: Any = getattr(run, name)
        return start
    on = task if kind is Task else bound
    return lambda: getattr(on, name)("[7]" if "json" in name else 7)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "await"])
@pytest.mark.parametrize(("kind", "name"), STORING, ids=lambda part: getattr(part, "__name__", part))
def test_each_verb_that_stores_work_passes(
    app: Headrace, client: redis.Redis, kind: type, name: str, asynchronous: bool
) -> None:
    Worker(app)
    call = calls(app, kind, f"a{name}" if asynchronous else name)
    before = set(client.scan_iter("*job:*"))
    seen: list[tuple[str, int]] = []

    @app.enqueue_middleware
    @contextlib.contextmanager
    def stamp(act: Submission) -> Iterator[None]:
        seen.append((act.verb, len(act.jobs)))
        assert bool(act.workflow_id) == (kind in (Workflow, WorkflowRun))
        for job in act.jobs:
            job.headers["stamp"] = job.task
            job.change(retries=7)
        yield
        seen.append(("left", len(act.jobs)))

    if asynchronous:

        async def whole() -> None:
            await call()
            await app.client.aclose()

        asyncio.run(whole())
    else:
        call()
    count = STORING[kind, name]
    assert seen == [(name.removesuffix("_json"), count), ("left", count)]
    new = [key for key in client.scan_iter("*job:*") if key not in before]
    records = [record for record in map(client.hgetall, new) if record.get(b"task")]
    assert len(records) == count
    for record in records:
        assert msgspec.msgpack.decode(record[b"headers"]) == {"stamp": "fetch"}
        assert msgspec.msgpack.decode(record[b"options"]) == {"retries": 7}


@pytest.mark.parametrize("kind", {**OTHERS, **{kind: set() for kind, _ in STORING}}, ids=lambda kind: kind.__name__)
def test_each_public_verb_says_whether_it_stores_work(kind: type) -> None:
    verbs = {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
    verbs -= {name for name in verbs if name.startswith("a") and name[1:] in verbs | set(vars(kind))}
    storing = {name for owner, name in STORING if owner is kind}
    assert storing <= verbs
    new = verbs - storing - OTHERS.get(kind, set())
    assert not new, (
        "does it store work? Then it passes headrace.tasks.submission, and is in STORING; else it is in OTHERS"
    )


def test_the_calls_that_store_work_are_made_in_known_places_only() -> None:
    root = Path(headrace.__file__).parent
    found: dict[str, set[str]] = {name: set() for name in CALLERS}
    for path in root.rglob("*.py"):
        text = path.read_text()
        if not any(f"{name}(" in text for name in CALLERS):
            continue
        tree = ast.parse(text)
        local = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace.protocol")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            where = path.relative_to(root).as_posix()
            called = node.func
            if isinstance(called, ast.Name) and called.id in found and called.id in local:
                found[called.id].add(where)
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                modules = local & {"produce", "graph", "verbs"}
                if called.attr in found and called.value.id in modules:
                    found[called.attr].add(where)
    assert found == CALLERS
    writers = {
        path.stem
        for path in (root / "scripts").glob("*.lua")
        if "HSET', job" in path.read_text() and "unpack(" in path.read_text()
    }
    assert writers <= {
        "accept",
        "broadcast",
        "bulk_piece",
        "flow_create",
        "graft",
        "excess",
        "lane_entry",
        "finish",
        "claim",
        "outcomes",
        "turn",
        "node",
        "note",
        "own_store",
        "restore",
        "sort_anew",
        "tick",
        "unique_clash",
        "unique_store",
    }


# --- what it sees, and what it may do ---


def test_it_sees_task_arguments_options_and_headers(app: Headrace) -> None:
    seen: list[Any] = []

    @app.enqueue_middleware
    @contextlib.contextmanager
    def look(act: Submission) -> Iterator[None]:
        (job,) = act.jobs
        seen.extend((act.verb, job.task, job.args, job.kwargs, dict(job.headers), job.options, len(job.id)))
        yield

    task = app.tasks["fetch"].options(headers={"tenant": "a"}, delay=5, retries=2, queue="low")
    task.enqueue(7, name="Ada")
    assert seen == [
        "enqueue", "fetch", (7,), {"name": "Ada"}, {"tenant": "a"}, {"queue": "low", "delay": 5.0, "retries": 2}, 21,
    ]  # fmt: skip


def test_what_it_changes_is_stored(app: Headrace) -> None:
    @app.enqueue_middleware
    @contextlib.contextmanager
    def move(act: Submission) -> Iterator[None]:
        for job in act.jobs:
            if job.args == (1,):
                job.headers.clear()
                job.change(queue="low", priority=3, delay=60)
        yield

    jobs = [app.tasks["fetch"].options(headers={"tenant": "a"}, retries=2).job(n) for n in range(3)]
    assert app.enqueue_many(jobs) == 3
    first, second, third = (job.handle.refresh() for job in jobs)
    assert (second.queue, second.priority, second.state, dict(second.headers)) == ("low", 3, State.SCHEDULED, {})
    assert second.options == first.options == third.options
    assert (first.queue, dict(first.headers)) == (third.queue, dict(third.headers)) == ("default", {"tenant": "a"})


def test_the_first_registered_is_outermost_and_may_refuse(app: Headrace) -> None:
    seen: list[str] = []

    @app.enqueue_middleware
    @contextlib.contextmanager
    def outer(act: Submission) -> Iterator[None]:
        seen.append("outer in")
        try:
            yield
        except PermissionError:
            seen.append("outer saw")
            raise

    @app.enqueue_middleware
    @contextlib.contextmanager
    def refuse(act: Submission) -> Iterator[None]:
        raise PermissionError("not you")
        yield

    with pytest.raises(PermissionError, match="not you"):
        app.tasks["fetch"].enqueue(1)
    assert seen == ["outer in", "outer saw"]
    assert app.queues["default"].size == 0
    jobs = [app.tasks["fetch"].job(n) for n in range(2)]
    with pytest.raises(PermissionError):
        app.enqueue_many(jobs)
    app.client.enqueue_middlewares.clear()
    assert app.enqueue_many(jobs) == 2


def test_an_error_of_the_store_reaches_the_caller_whoever_swallows_it() -> None:
    app = Headrace("redis://localhost:1/0", timeout=0.1)
    app.task(name="fetch")(fetch)
    app.enqueue_middleware(lambda act: contextlib.suppress(StoreUnavailable))
    with pytest.raises(StoreUnavailable):
        app.tasks["fetch"].enqueue(1)

    async def whole() -> None:
        with pytest.raises(StoreUnavailable):
            await app.tasks["fetch"].aenqueue(1)
        await app.aclose()

    asyncio.run(whole())


async def test_an_asynchronous_one_works_around_asynchronous_verbs_only(app: Headrace) -> None:
    seen: list[str] = []

    @app.enqueue_middleware
    @contextlib.asynccontextmanager
    async def trace(act: Submission) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(act.verb)
        yield

    await app.tasks["fetch"].aenqueue(1)
    assert seen == ["enqueue"]
    with pytest.raises(
        OptionsError, match="enqueue was not awaited: await its asynchronous pair, or give it __enter__"
    ):
        app.tasks["fetch"].enqueue(1)
    assert app.queues["default"].size == 1
    await app.aclose()


async def test_one_that_is_both_is_entered_in_the_way_that_fits(app: Headrace) -> None:
    seen: list[str] = []

    class Both(contextlib.AbstractContextManager[None], contextlib.AbstractAsyncContextManager[None]):
        def __enter__(self) -> None:
            seen.append("plain")

        def __exit__(self, *_: object) -> None: ...

        async def __aenter__(self) -> None:
            seen.append("await")

        async def __aexit__(self, *_: object) -> None: ...

    app.enqueue_middleware(lambda act: Both())
    app.tasks["fetch"].enqueue(1)
    await app.tasks["fetch"].aenqueue(1)
    assert seen == ["plain", "await"]
    await app.aclose()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"queue": "a b"}, "queue name 'a b' cannot be used"),
        ({"ordered": True}, "ordered cannot be changed here: the id of the job says it already"),
        ({"headers": {}}, r"headers cannot be changed here: write job.headers\[...\] = ..."),
        ({"request_id": "7"}, "request_id cannot be changed here: the caller gives it"),
        ({"colour": "red"}, "there is no option 'colour'"),
    ],
)
def test_a_change_that_cannot_be_is_refused(app: Headrace, change: Any, says: str) -> None:
    @app.enqueue_middleware
    @contextlib.contextmanager
    def wrong(act: Submission) -> Iterator[None]:
        act.jobs[0].change(**change)
        yield

    with pytest.raises(OptionsError, match=says):
        app.tasks["fetch"].enqueue(1)


def test_headers_that_cannot_be_sent_are_refused(app: Headrace) -> None:
    wrong: Any = 7

    @app.enqueue_middleware
    @contextlib.contextmanager
    def stamp(act: Submission) -> Iterator[None]:
        act.jobs[0].headers["n"] = wrong
        yield

    with pytest.raises(OptionsError, match="header 'n' must be a text, not int"):
        app.tasks["fetch"].enqueue(1)


def test_a_key_of_a_live_workflow_is_found_with_middleware_too(app: Headrace) -> None:
    app.enqueue_middleware(lambda act: contextlib.nullcontext())
    made = workflow(app)
    assert made.create().id == made.create().id


@pytest.mark.parametrize("wrong", [3, lambda act: 3])
def test_what_is_no_middleware_is_refused(app: Headrace, wrong: Any) -> None:
    with pytest.raises(OptionsError, match=r"middleware must (be a callable that|return a context manager)"):
        app.enqueue_middleware(wrong)
        app.tasks["fetch"].enqueue(1)


# --- what is sent without any of it ---


def sent(make: Callable[[Headrace], object]) -> list[list[bytes]]:
    """The commands that a program sends to store work, to a server that takes note of them."""
    commands: list[list[bytes]] = []

    def answer(command: list[bytes]) -> bytes:
        commands.append(command)
        return bulk("ok")

    greeting = iter([True])
    greet = GREETING
    server = stub(says("7.2.0", then=lambda command: greet if next(greeting, False) else answer(command)))
    with server as url, Headrace(url) as app:
        app.task(name="fetch")(fetch)
        make(app)
    return commands


def batches(command: list[bytes]) -> Any:
    # Arguments travel as a text that is none: see script.blob.
    found = msgspec.msgpack.decode(command[-1], type=list[tuple[list[Any], list[msgspec.Raw]]])
    return [(head, [bytes(raw) for raw in rows]) for head, rows in found]


PLAIN: dict[str, Callable[[Headrace], object]] = {
    "enqueue": lambda app: app.tasks["fetch"].enqueue(7),
    "enqueue_many": lambda app: app.enqueue_many(app.tasks["fetch"].job(n) for n in range(3)),
}


@pytest.mark.parametrize("verb", PLAIN)
def test_an_enqueue_that_uses_none_of_it_sends_nothing_for_it(verb: str) -> None:
    (command,) = sent(PLAIN[verb])
    script = load("enqueue")
    count = 3 if verb == "enqueue_many" else 1
    ((head, rows),) = batches(command)
    # Nothing is sent for what nobody uses: script, keys, then clock, sender, number, requests, the time that these last, batches.
    assert command[:2] == [b"EVALSHA", script.sha.encode()]
    assert (int(command[2]), len(command)) == (1, 11)
    assert command[-3:-1] == [b"", b"86400000"]
    assert head == ["default", 0, 0, 0, 0, ["task", "fetch"]]
    assert len(rows) == 2 * count
    assert [len(id) for id in rows[::2]] == [22] * count


@pytest.mark.parametrize("verb", PLAIN)
def test_a_middleware_that_changes_nothing_sends_the_same(verb: str) -> None:
    def watched(app: Headrace) -> object:
        @app.enqueue_middleware
        @contextlib.contextmanager
        def look(act: Submission) -> Iterator[None]:
            assert all(job.headers == {} and job.args for job in act.jobs)
            yield

        return PLAIN[verb](app)

    (plain,), (with_middleware,) = sent(PLAIN[verb]), sent(watched)
    assert [len(part) for part in plain] == [len(part) for part in with_middleware]
    (head, rows), (other_head, other_rows) = batches(plain)[0], batches(with_middleware)[0]
    assert (head, rows[1::2]) == (other_head, other_rows[1::2])
    assert plain[-3:-1] == with_middleware[-3:-1]
