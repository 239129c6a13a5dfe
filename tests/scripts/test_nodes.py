from __future__ import annotations

from headrace.protocol.graph import read_nodes
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def test_a_node_is_its_job_and_its_edges(stage: Stage) -> None:
    flow = Flow(
        stage, "a>c b>c:k c>d j>d:c u", nodes={"j": {"role": "join"}, "c": {"queue": "q", "priority": 2, "undo": "u"}}
    )
    flow.made()
    numbers = [flow.names[name] for name in ("c", "j", "u")]
    c, j, u = stage.run(read_nodes(stage.keys, flow.id, numbers))
    assert c is not None
    assert j is not None
    assert u is not None
    assert (c.number, c.facts.name, c.role, c.pending) == (flow.names["c"], "c", "", 2)
    assert c.parents == (flow.names["a"], flow.names["b"])
    assert c.children == ((flow.names["d"], "stop"),)
    assert (c.job.id, c.job.state, c.job.task, c.job.queue, c.job.priority) == (flow["c"], "blocked", "add", "q", 2)
    assert (j.role, j.children, u.role) == ("join", ((flow.names["d"], "continue"),), "undo")


def test_it_says_what_became_of_it(stage: Stage) -> None:
    flow = Flow(stage, "a>b b>c").started()
    flow.end("a")
    stage.end(flow.claims()["b"], "retry", b'{"type":"E"}', SECOND)
    a, b, c = stage.run(read_nodes(stage.keys, flow.id, [1, 2, 3]))
    assert a is not None
    assert b is not None
    assert c is not None
    assert (a.job.state, a.job.packed_result, a.job.finished_us) == ("succeeded", b"a", stage.now)
    assert (b.job.state, b.job.failures, b.pending) == ("scheduled", 1, 0)
    assert b.job.error is not None
    assert (c.job.state, c.pending, c.parents) == ("blocked", 1, (2,))


def test_what_is_not_there_is_none(stage: Stage) -> None:
    flow = Flow(stage, "a").made()
    rows = stage.run(read_nodes(stage.keys, flow.id, [9, 1]))
    assert [row and row.number for row in rows] == [None, 1]
    assert stage.run(read_nodes(stage.keys, flow.id, [])) == []


def test_it_says_since_when_it_is_ready_and_leaves_results_out_for_a_list(stage: Stage) -> None:
    flow = Flow(stage, "a>b").started()
    flow.end("a")
    a, b = stage.run(read_nodes(stage.keys, flow.id, [1, 2], lean=True))
    assert a is not None
    assert b is not None
    assert (a.job.state, a.job.packed_result) == ("succeeded", None)
    assert (b.job.state, b.job.due_us) == ("ready", stage.now)
