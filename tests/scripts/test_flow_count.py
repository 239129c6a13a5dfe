from __future__ import annotations

from headrace.model.workflow import Graph
from headrace.protocol.graph import flow_count
from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage


def test_each_view_counts_its_own(stage: Stage) -> None:
    node = Flow(stage, "a").graph.nodes
    Flow(stage, "a").made()
    Flow(stage, "a").started()
    Flow(stage, Graph("other", node)).started()

    def count(definition: str = "", state: str = "") -> int:
        return stage.run(flow_count(stage.keys, definition, state))

    assert (count(), count("shop"), count("other"), count("none")) == (3, 2, 1, 0)
    assert (count(state="pending"), count(state="running"), count(state="failed")) == (1, 2, 0)
    assert (count("shop", "running"), count("other", "running"), count("other", "pending")) == (1, 1, 0)
