"""Tests that cannot run with ``--cluster``, each with its reason. The list may only shrink."""

from __future__ import annotations

_MAP = "it leads past a tap, a stub or a terminator of TLS that the node does not announce"
_ONE_WAY = "a node announces one address, so each program would use the proxy that is to fail for one of them"
_ROLE = "a node of a cluster takes no REPLICAOF; its replicas are in tests/system/test_cluster_faults.py"
_PRIVATE = "the private server is none of a cluster"
_PLAIN = "it is about URLs of a server without a cluster"
_SENTINEL = "Sentinels look after servers without a cluster"
_DATABASE = "a cluster has database 0 alone"
_COUNTS = "it counts connections, and a cluster that does not answer is asked for its map over further ones"
_NO_MAP = "a program that never had the map of a cluster does not know that one node has all shards"
_ADVICE = "it expects a quiet log, and a worker on a cluster of one node logs advice about the cluster"

REASONS: dict[str, str] = {
    "tests/scripts/test_why_server.py::test_a_replica_accepts_no_writes": _ROLE,
    "tests/store/test_sentinel.py": _SENTINEL,
    "tests/store/test_tls.py": _MAP,
    "tests/store/test_store.py::test_a_replica_is_asked_again_until_it_is_the_master": _ROLE,
    "tests/store/test_store.py::test_a_database_that_does_not_exist": _DATABASE,
    "tests/store/test_unreachable.py": _PLAIN,
    "tests/store/test_shards.py::test_a_silent_server_of_several_shards_is_waited_for_once": _NO_MAP,
    "tests/store/test_store_faults.py::test_a_half_open_connection_is_left_for_a_new_one": _COUNTS,
    "tests/store/test_store_faults.py::test_one_silent_connection_tells_of_all_that_are_idle": _COUNTS,
    "tests/store/test_store_faults.py::test_a_master_that_says_nothing_more": _SENTINEL,
    "tests/cache/test_failover.py": _SENTINEL,
    "tests/cache/test_cache.py::test_another_database_causes_no_more_than_misses": _DATABASE,
    "tests/cache/test_stale.py::test_a_server_amid_a_failover_is_asked_again_soon": _ROLE,
    "tests/system/test_lost_replication.py": _ROLE,
    "tests/system/test_health.py::test_a_server_that_is_full_a_replica_or_away_leaves_a_worker_healthy": _ROLE,
    "tests/system/test_servers.py::test_a_port_is_open_only_where_asked": "each node of a cluster has a port",
    "tests/system/test_cluster_urls.py::test_a_clusters_url_to_a_plain_server_says_so": _PLAIN,
    "tests/cli/test_cli_faults.py::test_servers_that_cannot_be_used": "its programs look up no address, and a cluster has no socket",
    "tests/cli/test_cli_migrate.py::test_the_command_says_what_it_did": _PLAIN,
    "tests/system/test_cli_worker.py::test_quiet_says_nothing_when_all_is_well": _ADVICE,
    "tests/system/test_cli_worker.py::test_a_queue_of_its_tasks_that_nobody_serves": _ADVICE,
    "tests/system/test_cli_worker.py::test_no_password_is_logged": "it looks for the URL of a Unix socket",
    "tests/system/test_worker_fence.py": _ONE_WAY,
    "tests/system/test_worker_server.py::test_a_server_that_refuses_all_for_a_while": _ROLE,
    "tests/embedded": _PRIVATE,
    "tests/kit": _PRIVATE,
}
