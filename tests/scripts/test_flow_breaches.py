"""The check of the checks of workflows: each way to break one is named, and a whole one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.ids import node_id
from headrace.testing import assert_invariants, violations
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, START, Stage

pytestmark = [pytest.mark.any_server, pytest.mark.mangles]


class Scene:
    """One that runs with a node of each kind, one that has ended, and hands to break them with."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        nodes = {"done": {"undo": "u"}, "held": {"queue": "q"}}
        self.runs = Flow(stage, "done>after done>more:c bad>never u held", nodes=nodes, key="k").started()
        taken = self.runs.claims()
        self.runs.stop()
        self.runs.claims(["q"])
        stage.end(taken["done"])
        stage.end(taken["bad"], "failed")
        self.ended = Flow(stage, "a", ttl=SECOND).started()
        stage.end(self.ended.claims()["a"])

    def node(self, name: str, field: str, value: object) -> None:
        self.stage.client.hset(self.stage.keys.job(self.runs[name]), field, value)

    def flow(self, field: str, value: object) -> None:
        self.stage.client.hset(self.stage.keys.flow(self.runs.id), field, value)

    def over(self, field: str, value: object) -> None:
        self.stage.client.hset(self.stage.keys.flow(self.ended.id), field, value)

    def put(self, name: str, member: str, score: int = START) -> None:
        self.stage.client.zadd(self.stage.keys(name), {member: score})

    def take(self, name: str, member: str) -> None:
        self.stage.client.zrem(self.stage.keys(name), member)


BREAKS: dict[str, tuple[Callable[[Scene], object], str]] = {
    "a count": (lambda s: s.flow("succeeded", 5), r"succeeded says 5, its nodes and chores say 1"),
    "a count that is missing": (lambda s: s.flow("failed", ""), r"failed says nothing, .* say 1"),
    "too much is active": (lambda s: s.flow("active", 9), r"active says 9"),
    "a counter that is no number": (lambda s: s.flow("active", "--9"), r"active says --9"),
    "a chore that counts": (lambda s: s.put("chores", f"retry:{s.runs.id}"), r"active says \d, .* say \d"),
    "a chore of no verb": (lambda s: s.put("chores", "dance:x"), r"no chore is called dance"),
    "a total": (lambda s: s.flow("total", 1), r"total says 1"),
    "failures": (lambda s: s.flow("hard", 0), r"hard says 0"),
    "a parent that counted twice": (lambda s: s.node("after", "pending", -1), r"waits for -1 parents, 0 are not"),
    "a parent that did not count": (lambda s: s.node("never", "pending", 0), r"waits for 0 parents, 1 are not"),
    "a state of no view": (lambda s: s.flow("st", "running"), r"running, but is not in the view \|running"),
    "a view too many": (lambda s: s.put("flows:|failed", s.runs.id), r"stopped, but is in the view \|failed"),
    "a view too few": (lambda s: s.take("flows:shop|", s.runs.id), r"is not in the view shop\|"),
    "a time of creation": (lambda s: s.put("flows:|", s.runs.id, 7), r"another time of creation"),
    "a row of nothing": (lambda s: s.put("flows:|", "x"), r"flow x: is listed, but has no record"),
    "an end without its time": (
        lambda s: s.stage.client.hdel(s.stage.keys.flow(s.ended.id), "finished"), r"succeeded, but its end has no time"
    ),
    "what is over and active": (lambda s: s.over("active", 2), r"succeeded, but 2 are active"),
    "a flag of being stopped": (
        lambda s: s.stage.client.hdel(s.stage.keys.flow(s.runs.id), "stopped"), r"flag of being stopped denies"
    ),
    "one that never lapses": (lambda s: s.take("lapses", s.ended.id), r"lapses never"),
    "one that lapses while it lives": (lambda s: s.put("lapses", s.runs.id), r"stopped, with a time to live of -1"),
    "one that lapses too soon": (lambda s: s.put("lapses", s.ended.id, 1), r"lapses before its time to live"),
    "a failure of no row": (lambda s: s.take(f"broken:{s.runs.id}", s.runs["bad"]), r"failed, but is not in broken"),
    "a row of no failure": (lambda s: s.put(f"broken:{s.runs.id}", s.runs["done"]), r"succeeded, but is in broken"),
    "what cannot be undone": (lambda s: s.take(f"undo:{s.runs.id}", s.runs["done"]), r"is not in undo"),
    "a held one in no structure": (
        lambda s: s.take(f"held:{s.runs.id}", s.runs["held"]), r"its state says held:\w+, but it is in no structure"
    ),
    "a held one that is ready": (lambda s: s.node("held", "st", "ready"), r"its state says ready:q"),
    "a blocked one in a structure": (lambda s: s.put("ready:q", s.runs["never"]), r"says nowhere, but it is in ready:q"),
    "a key of another": (
        lambda s: s.stage.client.set(s.stage.keys("live:shop:k"), s.ended.id), r"does not live under that key"
    ),
    "a key of nobody": (lambda s: s.stage.client.delete(s.stage.keys("live:shop:k")), r"lives, but live:shop:k names"),
    "a node of nothing": (
        lambda s: s.stage.client.delete(s.stage.keys.flow(s.ended.id)), r"its workflow is gone, and no chore"
    ),
    "failures of nothing": (lambda s: s.put("broken:x", "y"), r"broken:x: its workflow is gone"),
    "a number above the last": (
        lambda s: s.stage.client.hset(s.stage.keys.job(node_id(s.runs.id, 99)), "st", "blocked"), r"above the size"
    ),
    "a waiter of what is over": (lambda s: s.put("waited", s.ended.id), r"has ended, and its waiters were not told"),
    "a waiter of a node that is": (lambda s: s.put("waited", s.runs["done"]), r"has ended, and its waiters were not told"),
    "one that nobody completes": (
        lambda s: s.stage.client.hset(s.stage.keys("flow:9wms8j0000000zz0000g0"), "size", 5), r"is not complete"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_each_breach_is_named(name: str, stage: Stage) -> None:
    damage, text = BREAKS[name]
    scene = Scene(stage)
    assert violations(stage.client) == set()
    damage(scene)
    with pytest.raises(AssertionError, match=text):
        assert_invariants(stage.client)
