from __future__ import annotations

from headrace.protocol import graph
from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage


def test_what_nodes_returned_with_their_names_and_states(stage: Stage) -> None:
    flow = Flow(stage, "a b c d", nodes={"b": {"task": "mul"}}).started()
    flow.play(b="failed", c="skipped")
    flow.retry()
    found = stage.run(graph.outputs(stage.keys, [flow[name] for name in ("c", "a", "b", "d")]))
    assert [(one.name, one.task, one.state, one.result) for one in found] == [
        ("c", "add", "skipped", None), ("a", "add", "succeeded", b"a"), ("b", "mul", "ready", None),
        ("d", "add", "succeeded", b"d"),
    ]  # fmt: skip
    assert {(one.sources and tuple(one.sources), one.many) for one in found} == {(None, False)}


def test_joins_name_whose_outputs_are_theirs(stage: Stage) -> None:
    flow = Flow(
        stage, "b>j a>j j>p", nodes={"j": {"role": "join"}, "p": {"role": "pass"}, "e": {"role": "join"}}
    ).started()
    flow.play()
    j, p = stage.run(graph.outputs(stage.keys, [flow["j"], flow["p"]]))
    assert (j.sources, j.many) == ([flow["b"], flow["a"]], True)
    assert (p.sources, p.many) == ([flow["j"]], False)


def test_a_node_that_gathers_stands_for_its_join(stage: Stage) -> None:
    flow = Flow(stage, "a>b c>d").started()
    taken = flow.claims()
    flow.grow(taken["a"], "x", gather=True)
    join = flow["+J"]
    flow.grow(taken["c"], "x")
    for claim in taken.values():
        stage.end(claim, "grown", b"own")
    a, c = stage.run(graph.outputs(stage.keys, [flow["a"], flow["c"]]))
    assert (a.sources, a.many) == ([join], False)
    assert (c.sources, c.result) == (None, b"own")


def test_what_is_not_there_says_so(stage: Stage) -> None:
    (one,) = stage.run(graph.outputs(stage.keys, [Flow(stage, "a")["a"]]))
    assert (one.state, one.result, one.sources) == ("missing", None, None)
    assert stage.run(graph.outputs(stage.keys, [])) == []


def test_more_than_one_reply_holds_is_left_out_but_never_the_first(stage: Stage) -> None:
    flow = Flow(stage, "a b c").started()
    size = graph.OUTPUT_BYTES // 2 + 1
    for name, claim in flow.claims().items():
        stage.end(claim, "succeeded", name.encode() * (2 * size if name == "a" else size))
    assert len(stage.run(graph.outputs(stage.keys, [flow["a"], flow["b"]]))) == 1
    assert len(stage.run(graph.outputs(stage.keys, [flow["b"], flow["c"]]))) == 1
