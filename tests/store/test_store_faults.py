"""Both stores behind a network that breaks: a reply that is lost leaves exactly one effect, no read waits for ever."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace, errors
from headrace.model.job import Claim
from headrace.protocol import consume, operations, overviews, produce
from headrace.protocol.script import Call, load
from headrace.testing import assert_invariants
from tests.deadline import eventually
from tests.proxy import Proxy
from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage
from tests.scripts.test_headers import ALONE
from tests.servers import DEFAULT, Server
from tests.store.play import Play
from tests.store.plays import PLAYS
from tests.store.twin import KINDS, Twin, started, stub

Make = Callable[..., Twin]


@pytest.fixture
def server(server_name: str, new_server: Callable[..., Server]) -> Server:
    return new_server(server_name, tcp=True)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server) as proxy:
        yield proxy


@pytest.fixture
def stage(server: Server) -> Iterator[Stage]:
    """A stage that does not go through the proxy."""
    stage = Stage(server.client(), guarded=False)
    yield stage
    stage.close()
    assert_invariants(server.client())


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Twin] = []

    def one(url: str, **settings: object) -> Twin:
        made.append(Twin(request.param, url, **settings))
        return made[-1]

    yield one
    for twin in made:
        twin.close()


def effect(stage: Stage, play: Play) -> dict[str, Any]:
    """What is stored, but for what no two runs have alike: the schema that only a store leaves, ids of a stream."""
    values = stage.everything().get("0", {})
    found = {name: value for name, value in values.items() if name not in play.grows | {"schema"}}
    for name in ("stat-stream", "events", "deaths", "acts"):
        if name in found:
            found[name] = re.sub(r"\d+-\d+", "id", found[name][""])
    return found


def preload(stage: Stage) -> None:
    """Load every script, so that the reply which is lost is the script's own and not a NOSCRIPT."""
    for name in ALONE:
        stage.client.script_load(load(name).text)


def repeat(name: str, play: Play, twin: Twin, proxy: Proxy, stage: Stage) -> None:
    """Play it once, and again with one and with two lost replies: the effect is the same."""
    seen: list[tuple[Any, Any]] = []
    for lose in (0, 1, 2):
        # The same scene each time: empty, the same clock, ids and request numbers.
        stage.client.flushall()
        stage.now, stage._made, stage._requests, Flow.made_so_far = Stage(stage.client).now, 0, 0, 0
        material = play.arrange(stage)
        twin.run(operations.logs(stage.keys, "0" * 21))
        proxy.lost = 0
        proxy.lose_replies(lose)
        answer = twin.run(play.call(stage.keys, material, stage.now))
        assert proxy.lost == lose, name
        seen.append((answer, effect(stage, play)))
        assert_invariants(stage.client)
    (first, once), *repeated = seen
    for answer, twice in repeated:
        assert twice == once, f"{name}: a repeat after a lost reply had a second effect"
        assert play.again(first, answer), f"{name}: {answer} after {first}"


def test_every_script_has_its_play() -> None:
    assert {name.partition(",")[0] for name in PLAYS} == set(ALONE)


@pytest.mark.parametrize("part", range(4))
def test_a_lost_reply_of_any_script_leaves_one_effect(proxy: Proxy, stage: Stage, server_name: str, part: int) -> None:
    """What a Store calls on one server, an AsyncStore calls on another, and the reverse."""
    with contextlib.closing(Twin(KINDS[(part + (server_name == DEFAULT)) % 2], proxy.url)) as twin:
        preload(stage)
        twin.run(operations.logs(stage.keys, "0" * 21))
        for name, play in list(PLAYS.items())[part::4]:
            repeat(name, play, twin, proxy, stage)


def test_a_delete_whose_reply_was_lost_has_found_its_workflow(proxy: Proxy, stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    with Headrace(proxy.url, timeout=20) as app:
        run = app.workflows.get(flow.id)
        proxy.lose_replies(1, lambda data: b"$2\r\nok\r\n" in data)
        run.delete()
        assert (proxy.lost, flow.left()) == (1, set())
        with pytest.raises(errors.WorkflowNotFound):
            run.delete()


def test_a_lost_reply_in_a_pipeline_leaves_one_effect(make: Make, proxy: Proxy, stage: Stage) -> None:
    twin = make(proxy.url)
    preload(stage)
    stage.put(10)
    claims = stage.take(limit=4)
    for number in range(3):
        # As a dispatcher does: settle what ended and claim anew, in one round trip.
        rows = [(stage.outcome(c, "succeeded", b"r"), c.ready) for c in claims]
        calls: list[Call[Any]] = [
            consume.settle(stage.keys, "w1", 100 + number, rows, 0).at(stage.now),
            consume.claim(stage.keys, "w1", 100 + number, 3, ["default"]).at(stage.now),
        ]
        proxy.lose_replies(2, lambda data: b"$2\r\nok\r\n" in data or b"repeated" in data)
        settled, claimed = twin.run_all(calls)
        assert (settled.repeated, settled.stale) == (True, [])
        claims = claimed.jobs
        assert len(claims) == (3 if number < 2 else 0)
    assert proxy.lost == 6
    assert len(stage.members("succeeded")) == 10


def test_many_jobs_over_a_network_that_loses_replies(make: Make, proxy: Proxy, stage: Stage, server: Server) -> None:
    twin = make(proxy.url, timeout=60.0)
    # A connection whose node is looked up takes eight.
    every = 10 if server.clustered else 6
    # Counted: how many pieces a large reply comes in is up to the machine, and with dice so would be how many are lost.
    pieces = itertools.count(1)
    proxy.cut = lambda _: next(pieces) % every == 0
    stage.register()
    ids: set[str] = set()
    for _ in range(10):
        jobs = [stage.job() for _ in range(100)]
        ids |= {job.id for job in jobs}
        sender, number = twin.store.slots.take()
        call = produce.enqueue(stage.keys, jobs, sender, number).at(stage.now)
        assert twin.run(call).word in ("ok", "repeated")
        twin.store.slots.answered(sender, number)
    ran: list[Claim] = []
    for number in range(1, 15):
        claims = twin.run(consume.claim(stage.keys, "w1", number, 100, ["default"]).at(stage.now)).jobs
        ran += claims
        rows = [(stage.outcome(c, "succeeded", b"r"), c.ready) for c in claims]
        assert not twin.run(consume.settle(stage.keys, "w1", number, rows, 0).at(stage.now)).stale
    assert sorted(c.id for c in ran) == sorted(ids)
    assert len(stage.members("succeeded")) == 1000
    assert proxy.lost > 5


@pytest.mark.any_server
def test_a_reset_connection_is_replaced(make: Make, proxy: Proxy, stage: Stage, server: Server) -> None:
    twin = make(proxy.url)
    for n in range(5):
        assert twin.run(produce.enqueue(stage.keys, [stage.job()], "p", n + 1).at(stage.now)).word == "ok"
        proxy.drop()
    assert len(stage.ready()) == 5
    assert proxy.accepted == 5 + server.clustered  # the map of a cluster is asked for once


@pytest.mark.any_server
def test_a_half_open_connection_ends_by_its_own_deadline(make: Make, proxy: Proxy, stage: Stage) -> None:
    twin = make(proxy.url, timeout=4.0)
    twin.run(overviews.overview(stage.keys))
    proxy.mode = "swallow"
    begun = time.monotonic()
    with pytest.raises(errors.StoreUnavailable):
        twin.run(overviews.overview(stage.keys))
    assert 3.9 < time.monotonic() - begun < 20
    proxy.mode = "pass"
    assert twin.run(overviews.overview(stage.keys)).now


@pytest.mark.any_server
def test_a_half_open_connection_is_left_for_a_new_one(make: Make, proxy: Proxy, stage: Stage) -> None:
    """A read's deadline is the whole time-out, so that a slow server is not asked twice; the next call is fine."""
    twin = make(proxy.url, timeout=4.0)
    twin.run(overviews.overview(stage.keys))
    proxy.mode = "swallow"
    with pytest.raises(errors.StoreUnavailable):
        twin.run(overviews.overview(stage.keys))
    accepted = proxy.accepted
    proxy.mode = "pass"
    twin.run(overviews.overview(stage.keys))
    assert proxy.accepted == accepted + 1


@pytest.mark.any_server
def test_one_silent_connection_tells_of_all_that_are_idle(make: Make, proxy: Proxy, stage: Stage) -> None:
    """After a failover each of a web server's twenty would cost another call its time."""
    twin, call = make(proxy.url, timeout=3), overviews.overview(stage.keys)
    twin.run(call)
    proxy.delay = 0.1
    twin.at_once([call, call])
    assert proxy.accepted == 2
    proxy.mode = "swallow"
    for accepted in (2, 3):
        with pytest.raises(errors.StoreUnavailable):
            twin.run(call)
        assert proxy.accepted == accepted
    proxy.mode, proxy.delay = "pass", 0.0


@pytest.mark.any_server
def test_a_master_that_says_nothing_more_is_asked_for_again_within_the_call(
    make: Make, proxy: Proxy, stage: Stage
) -> None:
    """As when its machine is gone, and the Sentinels have promoted another one meanwhile."""
    port = str(proxy.port)
    there = f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode()
    with stub(lambda words: there if words[0] == b"SENTINEL" else b"+OK\r\n") as sentinel:
        twin = make(f"{sentinel.replace('redis', 'sentinel')}/jobs/0", timeout=6.0)
        twin.run(overviews.overview(stage.keys))
        lost = itertools.count()
        proxy.lost_request = lambda _: next(lost) == 0
        assert twin.run(produce.enqueue(stage.keys, [stage.job()], "p", 1).at(stage.now)).word == "ok"
    assert proxy.accepted == 2


@pytest.mark.any_server
def test_a_waiters_half_open_connection_does_not_make_it_wait_for_ever(make: Make, proxy: Proxy, stage: Stage) -> None:
    claim = stage.running()
    twin = make(proxy.url, timeout=1.0)

    def meddle() -> None:
        eventually(lambda: stage.client.exists(stage.keys("waited")))
        proxy.mode = "swallow"

    thread = started(meddle)
    begun = time.monotonic()
    with pytest.raises(errors.StoreUnavailable):
        twin.wait_final(claim.id, 60.0)
    assert time.monotonic() - begun < 30
    thread.join(20)
    proxy.mode = "pass"


@pytest.mark.any_server
def test_a_waiter_hears_of_the_end_although_its_connection_died(make: Make, proxy: Proxy, stage: Stage) -> None:
    claim = stage.running()
    twin = make(proxy.url)

    def meddle() -> None:
        eventually(lambda: stage.client.exists(stage.keys("waited")))
        proxy.lose_replies(1, lambda data: b"message" in data)
        stage.end(claim, "succeeded", b"told")

    thread = started(meddle)
    assert twin.wait_final(claim.id, 30).result == b"told"
    thread.join(20)
    assert proxy.lost == 1


@pytest.mark.any_server
def test_a_server_that_refuses_for_a_while(make: Make, proxy: Proxy, stage: Stage) -> None:
    twin = make(proxy.url)
    proxy.mode = "refuse"

    def relent() -> None:
        eventually(lambda: proxy.accepted >= 3)
        proxy.mode = "pass"

    thread = started(relent)
    assert twin.run(produce.enqueue(stage.keys, [stage.job()], "p", 1).at(stage.now)).word == "ok"
    thread.join(20)
    proxy.mode = "refuse"
    proxy.drop()
    with pytest.raises(errors.StoreUnavailable):
        make(proxy.url, timeout=0.3).run(overviews.overview(stage.keys))


@pytest.mark.any_server
def test_a_slow_server_is_not_asked_twice(make: Make, proxy: Proxy, stage: Stage, server: Server) -> None:
    twin = make(proxy.url)
    proxy.delay = 0.3
    assert twin.run(produce.enqueue(stage.keys, [stage.job()], "p", 1).at(stage.now)).word == "ok"
    assert proxy.accepted == 1 + server.clustered
    assert len(stage.ready()) == 1


@pytest.mark.any_server
def test_attempts_keep_their_distance(make: Make, proxy: Proxy, stage: Stage) -> None:
    """A fleet that finds its server away must not hammer it when it comes back."""
    twin = make(proxy.url, timeout=2.0)
    proxy.mode = "refuse"
    with pytest.raises(errors.StoreUnavailable):
        twin.run(overviews.overview(stage.keys))
    assert 4 <= proxy.accepted <= 12
