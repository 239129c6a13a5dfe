"""Tests that cannot run with ``--cluster``, each with its reason. The list may only shrink."""

from __future__ import annotations

_MAP = "it leads past a tap, a stub or a terminator of TLS that the node does not announce"
_ROLE = "a node of a cluster takes no REPLICAOF; its replicas are in tests/system/test_cluster_faults.py"
_PRIVATE = "the private server is none of a cluster"
_PLAIN = "it is about URLs of a server without a cluster"

REASONS: dict[str, str] = {
    "tests/scripts/test_why_server.py::test_a_replica_accepts_no_writes": _ROLE,
    "tests/store/test_sentinel.py": "Sentinels look after servers without a cluster",
    "tests/store/test_tls.py": _MAP,
    "tests/store/test_store.py::test_a_replica_is_asked_again_until_it_is_the_master": _ROLE,
    "tests/store/test_store.py::test_a_database_that_does_not_exist": "a cluster has database 0 alone",
    "tests/store/test_store.py::test_a_user_without_the_right_is_told": _PLAIN,
    "tests/store/test_store.py::test_a_waiter_without_the_right_to_listen_is_told": _PLAIN,
    "tests/store/test_unreachable.py": _PLAIN,
    "tests/store/test_credentials.py::test_no_connection_is_used_after_the_end": _PLAIN,
    "tests/store/test_credentials.py::test_a_provider_of_the_driver": _PLAIN,
    "tests/store/test_credentials.py::test_a_new_connection_reads_the_password_file": _PLAIN,
    "tests/system/test_embedded": _PRIVATE,
    "tests/kit": _PRIVATE,
}
