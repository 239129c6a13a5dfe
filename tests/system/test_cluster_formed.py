"""What the tests of clusters stand on: a real cluster on loopback, and the faults that it can be given."""

from __future__ import annotations

from collections.abc import Callable

from tests.clusters import Cluster, slot_of
from tests.deadline import eventually


def test_a_formed_cluster_moves_slots_fails_over_and_splits(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(3, 1, proxied=True)
    slot = slot_of()
    first = cluster.serving(slot)
    second = cluster.other(first)
    for number in range(250):
        first.ask("SET", f"{{hr:0}}:{number}", number)

    cluster.move(slot, second)
    assert cluster.serving(slot) is second
    assert second.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 250
    assert list(cluster.move_by_keys(slot, first)) == [0, 100, 100, 50]
    assert cluster.serving(slot) is first

    heir = cluster.fail_over(first)
    assert cluster.serving(slot) is heir
    first.start()
    assert cluster.replica_of(heir) is first

    cluster.cut_off(heir)
    eventually(lambda: cluster.serving(slot) is first, what="a failover")
    assert heir.ask("ROLE")[0] == b"master"
    cluster.reconnect()
    # Either may be the primary then: one that still takes the other for dead stands for election again.
    assert eventually(lambda: cluster.replicas(cluster.serving(slot)), what="a replica")[0] in (first, heir)
    assert cluster.serving(slot).ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 250
