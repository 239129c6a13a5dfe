"""The handle on a workflow: each verb against a real store, with a dispatcher that ends nodes as the test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import Headrace
from headrace.errors import (
    JobNotFound,
    NotFound,
    OptionsError,
    StateError,
    WaitTimeout,
    WorkflowNotFound,
)
from headrace.model.ids import node_id
from headrace.model.workflow import Graph
from headrace.protocol import graph
from headrace.store import end_listener
from tests.store.flows import Dispatcher, chain, create, node, wide


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, timeout=20) as app:
        app.task(name="noop")(noop)
        yield app


@pytest.fixture
def dispatcher(app: Headrace) -> Dispatcher:
    return Dispatcher(app)


def noop() -> Any: ...


def test_a_workflow_runs_from_its_start_to_its_end(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, wide(3))
    assert (run.state, run.progress, run.created) == ("pending", 0.0, True)
    assert dispatcher.work() == [], "what was created has not been started"
    assert run.start() == "running"
    assert run.start() == "running", "starting it again changes nothing"
    assert dispatcher.work() == [1, 2, 3, 4, 5]
    record = run.refresh()
    assert (record.state, record.total, record.done, record.active) == ("succeeded", 5, 5, 0)
    assert record.created <= record.started <= record.finished
    assert (run.progress, run.counts["succeeded"], run.wait()) == (1.0, 5, "succeeded")


@pytest.mark.parametrize("count", [999, 1000, 1001, 1500, 2200])
def test_a_fan_out_that_no_script_walks_at_once_ends(app: Headrace, dispatcher: Dispatcher, count: int) -> None:
    """A walk that left its rest twice was counted twice, and its workflow never ended."""
    run = create(app, wide(count))
    run.start()
    assert len(dispatcher.work()) == count + 2
    record = run.refresh()
    assert (record.state, record.active, record.done) == ("succeeded", 0, count + 2)


def test_named_nodes_start_instead_of_the_roots(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, chain("a", "b", "c"))
    with pytest.raises(NotFound, match=r"workflow \w+ has no node 'bb': did you mean b\?"):
        run.start("bb")
    with pytest.raises(NotFound, match="a node is known by its name, a text, not 5"):
        run.start(5)  # type: ignore[arg-type]
    assert run.state == "pending", "nothing was started"
    run.start("b")
    assert dispatcher.work() == [2, 3]
    assert run.state == "pending", "a root was never started, and nobody stopped it"
    run.start()
    assert dispatcher.work() == [1]
    assert run.state == "succeeded"


def test_a_stopped_workflow_starts_nothing_until_it_is_started_again(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, wide(4))
    run.start()
    assert dispatcher.claim() == [1]
    assert run.stop() == run.stop() == run.state == "stopped"
    dispatcher.end()
    assert dispatcher.work() == [], "its children were released, and are held"
    assert run.counts["succeeded"] == 1, "what ran went on, and counts"
    run.start()
    assert dispatcher.work() == [2, 3, 4, 5, 6]
    assert run.state == "succeeded"


def test_stop_loses_no_end_that_came_meanwhile(app: Headrace, dispatcher: Dispatcher) -> None:
    """A handle holds no copy: one that was made before a node ended writes nothing over that end."""
    run = create(app, chain("a", "b"))
    old = app.workflows.get(run.id)
    run.start()
    dispatcher.claim()
    before = old.refresh()
    dispatcher.end({1: ("succeeded", 7)})
    assert before.counts["succeeded"] == 0
    old.stop()
    old.start()
    assert run.node("a").result(0) == 7
    assert dispatcher.work() == [2]


def test_a_cancelled_workflow_ends_without_a_worker(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, wide(1200))
    run.start()
    dispatcher.claim(1)
    dispatcher.end()
    pieces: list[int] = []
    run.on_piece = pieces.append
    assert run.cancel() == "cancelled"
    assert len(pieces) >= 3, "500 nodes a piece"
    assert pieces[-1] == 0
    assert run.counts == {"succeeded": 1, "failed": 0, "cancelled": 1201, "quarantined": 0, "skipped": 0}
    assert dispatcher.work() == []
    assert run.cancel() == "cancelled", "once more changes nothing"


def test_a_cancel_asks_what_runs_to_stop(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, chain("a", "b"))
    run.start()
    dispatcher.claim()
    assert run.cancel() == "running"
    dispatcher.end({1: "cancelled"})
    assert (run.state, run.cancel()) == ("cancelled", "cancelled")


def test_a_failed_workflow_goes_on_from_what_failed(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, wide(3))
    run.start()
    assert dispatcher.work({3: "failed"}) == [1, 2, 3, 4]
    record = run.refresh()
    assert (record.state, record.failed_node, record.counts["failed"]) == ("failed", "part-2", 1)
    assert run.wait(0) == "failed"
    assert run.retry_failed() == "running"
    assert dispatcher.work() == [3, 5], "what had succeeded does not run again"
    record = run.refresh()
    assert (record.state, record.failed_node, record.counts["failed"]) == ("succeeded", "", 0)


@pytest.mark.parametrize(
    ("end", "verb", "text"),
    [
        ("succeeded", "start", "of chain has succeeded, so it cannot be started: create another one"),
        ("succeeded", "stop", "has succeeded, so it cannot be stopped: nothing of it runs any more"),
        ("succeeded", "retry_failed", "has succeeded, so it cannot be retried: none of its nodes has failed"),
        ("failed", "start", r"has failed, so it cannot be started: retry_failed\(\) goes on from what failed"),
        ("failed", "stop", "has failed, so it cannot be stopped: nothing of it runs any more"),
        ("cancelled", "start", "was cancelled, so it cannot be started: create another one"),
        ("cancelled", "retry_failed", "was cancelled, so it cannot be retried: create another one"),
        ("pending", "retry_failed", "was never started, so it cannot be retried: start it"),
    ],
)
def test_what_a_state_does_not_allow_is_said(
    app: Headrace, dispatcher: Dispatcher, end: str, verb: str, text: str
) -> None:
    run = create(app, chain("a"))
    if end == "cancelled":
        run.cancel()
    elif end != "pending":
        run.start()
        dispatcher.work({1: end})
    assert run.state == end
    with pytest.raises(StateError, match=text):
        getattr(run, verb)()
    assert run.state == end


def test_a_key_that_lives_elsewhere_is_not_taken_back(app: Headrace, dispatcher: Dispatcher) -> None:
    first = create(app, chain("a", key="one"))
    again = create(app, chain("a", key="one"))
    assert (again, again.created) == (first, False)
    first.start()
    dispatcher.work({1: "failed"})
    second = create(app, chain("a", key="one"))
    assert second.created
    with pytest.raises(StateError, match="has a key that another live workflow has taken"):
        first.retry_failed()


def test_a_wait_hears_of_the_end(
    app: Headrace,
    dispatcher: Dispatcher,
    client: redis.Redis,
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(end_listener, "RECHECK", 60)
    run = create(app, chain("a", "b"))
    run.start()
    heard: list[str] = []
    waiter = threading.Thread(target=lambda: heard.append(run.wait(50)))
    waiter.start()
    eventually(lambda: client.exists(app.client.keys("waited")))
    dispatcher.work()
    waiter.join(30)
    assert heard == ["succeeded"], "by an announcement: a look comes each minute only"


def test_a_wait_ends_with_its_time(app: Headrace) -> None:
    run = create(app, chain("a"))
    with pytest.raises(WaitTimeout, match=r"of chain is pending after 0.05 s: nothing of it runs before start\(\)$"):
        run.wait(0.05)
    run.start()
    with pytest.raises(WaitTimeout, match=r"of chain is running after 0 s: headrace workflows show \w+ tells what"):
        run.wait(0)
    run.stop()
    with pytest.raises(WaitTimeout, match=r"is stopped after 0 s: nothing of it starts before start\(\), which lets"):
        run.wait(0)


def test_outputs_are_those_of_the_leaves(app: Headrace, dispatcher: Dispatcher) -> None:
    nodes = (
        node("a", children=(2, 3, 4, 5)),
        node("b", 1),
        node("c", 1, children=(5, 6)),
        node("d", 1),
        node("all", 1, 3, role="join", children=()),
        node("one", 3, role="pass"),
    )
    run = create(app, Graph("tree", nodes))
    assert run.outputs() == {}
    run.start()
    dispatcher.work({1: ("succeeded", [1]), 2: ("succeeded", "b"), 3: ("succeeded", {"x": 2}), 4: "failed"})
    assert run.outputs() == {"b": "b", "all": [[1], {"x": 2}], "one": {"x": 2}}
    assert run.outputs("a", "all", "d") == {"a": [1], "all": [[1], {"x": 2}]}, "d has failed"
    with pytest.raises(NotFound, match="no node 'z'"):
        run.outputs("z")


def test_nodes_come_in_pages_and_by_state(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, wide(1300))
    run.start()
    dispatcher.claim(1)
    dispatcher.end()
    while app.client.run(graph.tend(app.client.keys, 0))[0]:
        pass
    assert [seen.facts.name for seen in run.nodes(limit=3)] == ["first", "part-1", "part-2"]
    page = run.nodes(limit=1000)
    rest = run.nodes(limit=1000, after=page.next)
    assert (len(page), len(rest), page.count, rest.next) == (1000, 302, 1302, None)
    assert [seen.number for seen in (*page, *rest)] == list(range(1, 1303))
    blocked = run.nodes("blocked")
    assert (len(blocked), blocked.next) == (0, "1000"), "a page looks at 1,000 nodes at most"
    assert [seen.facts.name for seen in run.nodes("blocked", after=blocked.next)] == ["last"]
    assert len(run.nodes("ready", limit=7)) == 7
    for wrong in ({"state": "lost"}, {"limit": 0}, {"after": "x"}, {"after": 5}):
        with pytest.raises(OptionsError):
            run.nodes(**wrong)


def test_a_node_is_a_job_like_any_other(app: Headrace, dispatcher: Dispatcher) -> None:
    app.task(name="other")(noop)
    nodes = (node("a"), node("b", task="other"), node("c"))
    run = create(app, Graph("some", nodes))
    run.start()
    dispatcher.work({1: ("succeeded", 5)})
    assert run.node("a").id == node_id(run.id, 1)
    assert run.node("a").result(0) == app.jobs.get(node_id(run.id, 1)).result(0) == 5
    assert run.node("other") == run.node("b"), "the name of its task, where that has one node"
    with pytest.raises(NotFound, match=r"2 nodes of workflow .* run noop: name one of a, c"):
        run.node("noop")
    with pytest.raises(NotFound, match="no node 'z': it has a, b, c"):
        run.node("z")


def test_retention_counts_from_the_end(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, chain("a", ttl=0))
    assert app.workflows.expire_due() == 0
    run.start()
    dispatcher.claim()
    assert app.workflows.expire_due() == 0, "one that runs stays, whatever its retention"
    dispatcher.end()
    record = run.refresh()
    assert record.lapses == record.finished
    run.expire(None)
    assert app.workflows.expire_due() == 0
    assert run.refresh().lapses is None
    run.expire(3600)
    record = run.refresh()
    assert record.finished_us + 3_600_000_000 <= record.lapses_us
    run.expire(0)
    assert app.workflows.expire_due() == 1
    with pytest.raises(OptionsError, match="after must be at least 0"):
        run.expire(-1)


def test_a_deleted_workflow_is_gone_wholly_and_does_not_come_back(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, wide(700))
    run.start()
    dispatcher.claim(1)
    run.delete()
    dispatcher.end({1: ("succeeded", "too late")})
    assert app.workflows.count() == 0
    with pytest.raises(JobNotFound):
        app.jobs.get(node_id(run.id, 1))
    for verb in ("refresh", "start", "stop", "cancel", "retry_failed", "wait", "nodes", "outputs", "delete", "acounts"):
        with pytest.raises(WorkflowNotFound, match=f"no workflow {run.id} is stored"):
            got = getattr(run, verb)()
            if asyncio.iscoroutine(got):
                asyncio.run(got)
    for verb, value in (("expire", 5), ("node", "a"), ("start", "a")):
        with pytest.raises(WorkflowNotFound):
            getattr(run, verb)(value)
    with pytest.raises(WorkflowNotFound):
        _ = run.state


async def test_the_same_from_async_code(app: Headrace, dispatcher: Dispatcher) -> None:
    run = create(app, chain("a", "b"))
    assert await run.astart() == "running"
    assert await run.astop() == await run.astate() == "stopped"
    await run.astart()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run
    waiter = asyncio.ensure_future(run)
    await asyncio.to_thread(dispatcher.work, {2: "failed"})
    assert await waiter == await run == "failed"
    assert await run.aretry_failed() == "running"
    await asyncio.to_thread(dispatcher.work, {2: ("succeeded", 3)})
    assert await run == "succeeded"
    assert await run.aoutputs() == {"b": 3}
    assert (await run.arefresh()).done == 2
    assert (await run.aprogress(), await run.acounts()) == (run.progress, run.counts)
    assert len(await run.anodes()) == 2
    assert await (await run.anode("b")).aresult(0) == 3
    await run.aexpire(None)
    assert await run.acancel() == "succeeded", "one that has ended stays as it is"
    await run.adelete()
    await app.aclose()
