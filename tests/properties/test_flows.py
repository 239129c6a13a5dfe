"""The scripts of workflows against a small model; and, with pieces of two nodes, against what must always hold.

The usual run takes seconds; ``HR_PROPERTIES=long`` makes it minutes, for those who changed a script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.model.ids import flow_of, number_of
from headrace.model.job import Outcome
from headrace.model.workflow import Graph
from headrace.protocol import consume, produce, script_header
from headrace.protocol import graph as protocol
from headrace.protocol import script as loader
from headrace.testing import assert_invariants
from tests.properties.flow_model import FINAL, Model, Node
from tests.properties.test_model import LONG, PROFILE
from tests.scripts.graphs import Flow, graph
from tests.scripts.stage import KEEP, SECOND, Stage

KINDS = (
    "succeeded", "succeeded", "succeeded", "grown", "failed", "failed", "cancelled", "skipped", "corrupt", "crashed",
    "retry", "snoozed", "released", "interrupted", "parked",
)  # fmt: skip
ADDED = ("", "x", "x y", "x>y", "x>y x>z:c")
FOR_EVER = -1


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A small graph with each policy, joins, undo nodes and callbacks."""
    count = draw(st.integers(1, 6))
    names = [f"n{n}" for n in range(count)]
    words = list(names)
    for below in range(1, count):
        above = draw(st.sets(st.integers(0, below - 1), max_size=3))
        words += [f"n{parent}>n{below}:{draw(st.sampled_from('sssck'))}" for parent in sorted(above)]
    nodes: dict[str, dict[str, Any]] = {}
    for name in names:
        facts: dict[str, Any] = nodes.setdefault(name, {})
        kind = draw(st.sampled_from(["", "", "", "join", "undo", "delay", "frail"]))
        if kind == "join":
            facts["role"] = "join"
        elif kind == "undo":
            facts["undo"] = f"u{name}"
            words.append(f"u{name}")
        elif kind == "delay":
            facts["delay"] = SECOND
        elif kind == "frail":
            facts["max_crashes"] = 1
    calls = {call: call for call in ("on_success", "on_failure") if draw(st.booleans())}
    key, ttl = draw(st.sampled_from(["", "", "k"])), draw(st.sampled_from([FOR_EVER, 0, SECOND]))
    unstarted = draw(st.sampled_from([FOR_EVER, SECOND]))
    return graph(" ".join([*words, *calls]), nodes=nodes, key=key, ttl=ttl, unstarted=unstarted, **calls)


class Flows(RuleBasedStateMachine):
    """What both machines do; ``agreed`` compares, where there is a model to compare with."""

    client: redis.Redis
    modelled: bool

    @initialize()
    def empty(self) -> None:
        driver: Any = self.client
        driver.flushall()
        Flow.made_so_far = 0
        self.stage = Stage(self.client, guarded=False)
        self.flows: dict[str, Flow] = {}
        self.models: dict[str, Model] = {}
        self.gone: list[Flow] = []
        self.running: dict[str, int] = {}
        self.settled: Any = None
        self.stage.register()

    def pick(self, data: st.DataObject) -> tuple[Flow, Model]:
        id = data.draw(st.sampled_from(sorted(self.flows)))
        model = self.models[id]
        model.now = self.stage.now
        return self.flows[id], model

    def agreed(self, word: object, expected: object) -> None:
        if self.modelled:
            assert word == expected

    def removed(self, id: str) -> None:
        del self.models[id]
        self.gone.append(self.flows.pop(id))

    def taken(self, key: str, but: str = "") -> bool:
        """Whether a live workflow has this key."""
        if not self.modelled:
            return False
        return bool(key) and any(
            model.key == key and model.state not in FINAL for id, model in self.models.items() if id != but
        )

    # People.

    @precondition(lambda self: len(self.flows) < 4)
    @rule(plan=graphs(), begun=st.booleans())
    def create(self, plan: Graph, begun: bool) -> None:
        flow = Flow(self.stage, plan)
        word = flow.create()
        self.agreed(word, "live" if self.taken(plan.key) else "ok")
        if word == "ok":
            self.flows[flow.id], self.models[flow.id] = flow, Model(plan, self.stage.now)
            if begun:
                self.agreed(flow.start(), self.models[flow.id].start([]))

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), whole=st.booleans())
    def start(self, data: st.DataObject, whole: bool) -> None:
        flow, model = self.pick(data)
        names = [] if whole else data.draw(st.lists(st.sampled_from(sorted(flow.names)), min_size=1, max_size=2))
        self.agreed(flow.start(*names), model.start([flow.names[name] for name in names]))

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        flow, model = self.pick(data)
        self.agreed(flow.stop(), model.stop())

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), surely=st.integers(0, 2), limit=st.integers(1, 4))
    def cancel(self, data: st.DataObject, surely: int, limit: int) -> None:
        if surely == 0:
            flow, model = self.pick(data)
            self.agreed(flow.cancel(), model.cancel())
            # The model knows no chores.
            if self.modelled:
                flow.tend_all(limit)

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def cancel_one(self, data: st.DataObject) -> None:
        flow, model = self.pick(data)
        name = data.draw(st.sampled_from(sorted(flow.names)))
        word = self.stage.run(produce.cancel(self.stage.keys, flow[name], KEEP))
        self.agreed(word, model.cancel_one(flow.names[name]))

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        flow, model = self.pick(data)
        self.agreed(flow.retry(), model.retry(self.taken(model.key, flow.id)))

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), ttl=st.sampled_from([FOR_EVER, 0, KEEP]))
    def expire(self, data: st.DataObject, ttl: int) -> None:
        flow, model = self.pick(data)
        self.agreed(flow.expire(ttl), model.expire(ttl))

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), surely=st.integers(0, 3))
    def delete(self, data: st.DataObject, surely: int) -> None:
        if surely == 0:
            flow, _ = self.pick(data)
            assert flow.delete() == "ok"
            assert flow.delete() == "missing"
            self.removed(flow.id)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def every_verb_on_what_is_gone(self, data: st.DataObject) -> None:
        flow = data.draw(st.sampled_from(self.gone))
        words = [flow.start(), flow.stop(), flow.cancel(), flow.retry(), flow.expire(0), flow.delete()]
        assert words == ["missing"] * 6

    # Workers.

    @rule()
    def claim(self) -> None:
        taken = self.stage.take()
        expected = {id: model.claim() for id, model in self.models.items()}
        for one in taken:
            assert one.id not in self.running, "it started twice"
            assert flow_of(one.id) in self.flows, "it started after its workflow was deleted"
            self.running[one.id] = one.token
            self.models[flow_of(one.id)].nodes[number_of(one.id)].token = one.token
        if self.modelled:
            for id, numbers in expected.items():
                assert {number_of(one.id) for one in taken if flow_of(one.id) == id} == numbers

    def node_of(self, id: str) -> Node | None:
        model = self.models.get(flow_of(id))
        return model.nodes[number_of(id)] if model else None

    @precondition(lambda self: self.running)
    @rule(data=st.data(), added=st.sampled_from(ADDED))
    def grow(self, data: st.DataObject, added: str) -> None:
        id = data.draw(st.sampled_from(sorted(self.running)))
        flow, node = self.flows.get(flow_of(id)), self.node_of(id)
        if flow and node and not node.role:
            claim = Outcome(id, self.running[id], "succeeded")
            amount = 1 + len({name for word in added.split() for name in word.partition(":")[0].split(">")})
            first = self.stage.run(protocol.reserve(self.stage.keys, "w1", id, claim.token, amount))
            self.agreed(first > 0, not self.models[flow.id].cancelled)
            if first > 0:
                graft = flow.grow(claim, added)  # type: ignore[arg-type]
                self.models[flow.id].grow(node, first - 1, graft)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
        late=st.sampled_from([0, SECOND]),
    )
    def settle(self, data: st.DataObject, kinds: list[str], late: int) -> None:
        ids = data.draw(st.permutations(sorted(self.running)))[: len(kinds)]
        self._settle(list(zip(ids, kinds, strict=False)), late)

    def _settle(self, ends: list[tuple[str, str]], late: int) -> None:
        rows: list[tuple[Outcome, int]] = []
        for id, wanted in ends:
            node, kind = self.node_of(id), wanted
            if kind == "grown" and not (node and node.graft and node.graft[0] == self.running[id]):
                kind = "succeeded"
            if kind == "skipped" and node and node.role:
                kind = "failed"
            rows.append((Outcome(id, self.running.pop(id), kind, b"{}", late), 0))
        self.settled = consume.settle(self.stage.keys, "w1", self.stage.next(), rows, KEEP).at(self.stage.now)
        assert self.stage.run(self.settled).stale == []
        for outcome, _ in rows:
            node = self.node_of(outcome.id)
            if node:
                model = self.models[flow_of(outcome.id)]
                model.now = self.stage.now
                # All of a settle is counted before it is asked whether anything is active.
                if outcome.kind == "grown":
                    model.link(node)
                model.outcome(node, outcome.kind, late)
        for model in self.models.values():
            model.now = self.stage.now
            model.conclude()

    @precondition(lambda self: self.flows)
    @rule(data=st.data(), rounds=st.integers(1, 3))
    def work(self, data: st.DataObject, rounds: int) -> None:
        """What mostly happens: whatever is ready is done, and few of it goes wrong."""
        for _ in range(rounds):
            self.claim()
            if self.running:
                bad = data.draw(st.sampled_from(["", "", "failed"]))
                last = max(self.running)
                self._settle([(id, bad if bad and id == last else "succeeded") for id in sorted(self.running)], KEEP)

    @precondition(lambda self: self.settled)
    @rule()
    def settle_again_since_the_reply_was_lost(self) -> None:
        before = self.stage.everything()
        answer = self.stage.run(self.settled)
        assert answer.repeated or answer.stale
        assert self.stage.everything() == before

    @rule()
    def the_worker_dies_and_another_takes_over(self) -> None:
        while self.stage.run(consume.reclaim(self.stage.keys, "w1", True, 500, KEEP))[0] == "some":
            pass
        for id in self.running:
            node = self.node_of(id)
            if node:
                self.models[flow_of(id)].now = self.stage.now
                self.models[flow_of(id)].outcome(node, "crashed", 0)
        for model in self.models.values():
            model.conclude()
        self.running.clear()
        self.settled = None
        self.stage.register()

    # Upkeep.

    @rule()
    def time_passes(self) -> None:
        self.stage.now += 2 * SECOND
        self.stage.register()
        self.stage.run(consume.promote(self.stage.keys, 1000))
        self.stage.run(consume.unpark(self.stage.keys, "add", 500, ["default"]))
        for model in self.models.values():
            for node in model.where("scheduled", "parked"):
                node.state = "ready"

    @rule(limit=st.integers(0, 4))
    def tend(self, limit: int) -> None:
        self.stage.run(protocol.tend(self.stage.keys, KEEP, limit))

    @rule(long=st.booleans())
    def lapse(self, long: bool) -> None:
        self.stage.now += 61 * SECOND if long else 0
        self.stage.register()
        removed, _, _ = self.stage.run(protocol.lapse(self.stage.keys, 100))
        left: list[str] = []
        for id, model in self.models.items():
            model.now = self.stage.now
            if model.lapse() if self.modelled else self.flows[id].record is None:
                left.append(id)
        assert removed == len(left)
        for id in left:
            self.removed(id)

    @invariant()
    def everything_is_explained(self) -> None:
        assert_invariants(self.client)

    @invariant()
    def nothing_comes_back(self) -> None:
        gone: list[Flow] = getattr(self, "gone", [])
        if gone and not gone[0].chores():
            for flow in gone:
                running = {id for id in self.running if flow_of(id) == flow.id}
                assert running or flow.left() == set()

    def teardown(self) -> None:
        """Whatever was done to it, a workflow that is started comes to an end, and deleted leaves nothing."""
        if not hasattr(self, "stage"):
            return
        for _ in range(200):
            for flow in self.flows.values():
                flow.start()
            self.stage.now += 2 * SECOND
            self.stage.register()
            self.stage.run(consume.promote(self.stage.keys, 1000))
            self.stage.run(consume.unpark(self.stage.keys, "add", 500, ["default"]))
            held = {claim.id: claim.token for claim in self.stage.take()} | self.running
            self.running = {}
            if held:
                self.stage.settle(*(Outcome(id, token, "succeeded", b"", KEEP) for id, token in held.items()))
            due = self.stage.run(protocol.tend(self.stage.keys, KEEP, 500))[0]
            if not held and not due and all(flow.state in FINAL for flow in self.flows.values()):
                break
        states = {flow.id: flow.state for flow in self.flows.values()}
        assert {id: state for id, state in states.items() if state not in FINAL} == {}
        assert_invariants(self.client)
        for flow in self.flows.values():
            flow.delete()
            flow.tend_all()
        self.stage.run(consume.retire(self.stage.keys, "w1"))
        names: list[bytes] = self.stage.client.keys("*")
        left = {name.partition(b"}:")[2].partition(b":")[0].decode() for name in names}
        assert left - {"events", "deaths", "causes", "cause", "floods", "schema"} <= {
            "token",
            "sender",
            "queues",
            "wake",
        }, left


class Agree(Flows):
    modelled = True

    @invariant()
    def store_and_model_agree(self) -> None:
        for id, flow in getattr(self, "flows", {}).items():
            model, record = self.models[id], flow.now
            assert (record.state, record.active) == (model.state, model.active)
            assert {state: count for state, count in record.counts.items() if count} == model.counts()
            assert record.lapses_us == model.lapses
            found = self.stage.run(protocol.read_nodes(self.stage.keys, id, sorted(model.nodes)))
            assert {
                n: node and node.job.state for n, node in zip(sorted(model.nodes), found, strict=True)
            } == model.states()


class Pieces(Flows):
    """With pieces of two nodes, so that the smallest graph leaves chores; what must hold holds whenever they are done."""

    modelled = False


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
def test_scripts_and_model_agree(client: redis.Redis) -> None:
    machine = type("Bound", (Agree,), {"client": client})
    run_state_machine_as_test(machine, settings=PROFILE)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Scripts that leave a chore after two nodes, rather than after five hundred."""
    original: Callable[[str], str] = script_header._source  # pyright: ignore[reportPrivateUsage]
    less = {"background_work": ("room     500 ", "room     2 "), "edges": ("local FIRST = 100\n", "local FIRST = 1\n")}

    def short(name: str) -> str:
        text = original(name)
        if name in less:
            many, few = less[name]
            assert text.count(many) == 1
            text = text.replace(many, few)
        return text

    loader.load.cache_clear()
    monkeypatch.setattr(script_header, "_source", short)
    yield
    monkeypatch.undo()
    loader.load.cache_clear()


@pytest.mark.any_server
@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.usefixtures("pieces")
def test_pieces_of_work_come_to_an_end(client: redis.Redis) -> None:
    machine = type("Bound", (Pieces,), {"client": client})
    run_state_machine_as_test(machine, settings=PROFILE)
