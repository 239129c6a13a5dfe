"""What a URL that does not fit its server says, in one line each; and a cluster behind TLS, credentials that change."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.cli.server_check import server_warnings
from headrace.errors import HeadraceError, ServerError, StoreUnavailable, UrlError
from tests.clusters import Cluster, Node
from tests.deadline import eventually
from tests.program import Program
from tests.servers import Server, free_port
from tests.system.test_cluster import SLOT, NewCluster, NewFleet
from tests.system.test_cluster_faults import load
from tests.tls import AUTHORITY, certificate, terminator

NewServer = Callable[..., Server]


def refusal(url: str, kind: type[HeadraceError] = UrlError, timeout: float = 3.0) -> str:
    """What both kinds of callers are told: the same line."""
    with Headrace(url, timeout=timeout) as app:
        with pytest.raises(kind) as told:
            app.by_name("tasks.add").enqueue(1)
        with pytest.raises(kind) as atold:
            asyncio.run(app.by_name("tasks.add").aenqueue(1))
    assert type(told.value) is type(atold.value)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_plain_url_to_a_node_says_that_it_is_one_of_a_cluster(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(3, 0)
    for node in cluster.nodes:
        url = f"redis://127.0.0.1:{node.port}"
        said = (
            f"{url} is a node of a cluster, and others may have the jobs: name some of its nodes in the URL, as "
            f"cluster://host:6379,host:6379"
        )
        assert refusal(url) == said
    assert Program(tmp_path, url)("queues", "list", code=None).fault == said


def test_a_clusters_url_to_a_plain_server_says_so(new_server: NewServer) -> None:
    url = f"cluster://127.0.0.1:{new_server(tcp=True).port}"
    assert refusal(url) == f"{url} is not a cluster: write redis://host:6379 in the URL"


def test_seeds_that_are_gone_are_said_to_be() -> None:
    url = f"cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    said = refusal(url, StoreUnavailable)
    assert said.startswith(f"{url} did not answer within 3 s (Error 111 connecting to 127.0.0.1:")
    assert "do the cluster's nodes run, and do those in the URL belong to it?" in said


@pytest.mark.parametrize("coverage", ["yes", "no"])
def test_a_cluster_without_full_coverage_names_what_is_missing(
    new_cluster: NewCluster, coverage: str, tmp_path: Path
) -> None:
    cluster = new_cluster(3, 0, config={"cluster-require-full-coverage": coverage})
    node = cluster.serving(SLOT)
    node.kill()
    left = cluster.running[0]
    eventually(lambda: b"fail" in left.ask("CLUSTER", "NODES"), what="a node that is known to be dead")
    url = cluster.url_of(cluster.running)
    if coverage == "no":
        assert f"connecting to 127.0.0.1:{node.port}" in refusal(url, StoreUnavailable)
        return
    down = b"cluster_state:fail"
    eventually(
        lambda: all(down in one.ask("CLUSTER", "INFO") for one in cluster.running), what="a cluster that is down"
    )
    step = "set cluster-require-full-coverage to no"
    assert step in refusal(url, StoreUnavailable, 4.0)
    assert step in Program(tmp_path, url)("doctor", code=2, HEADRACE_TIMEOUT="2").err


def test_another_server_at_the_address_of_a_dead_node_is_given_nothing(
    new_cluster: NewCluster, new_server: NewServer
) -> None:
    cluster = new_cluster(3, 0, config={"cluster-require-full-coverage": "no"})
    node = cluster.serving(SLOT)
    url = cluster.url_of([each for each in cluster.nodes if each is not node])
    with Headrace(url, timeout=3) as app:
        add = app.by_name("tasks.add")
        add.enqueue(1)
        asyncio.run(add.aenqueue(1))
        node.kill()
        other = new_server(config={"port": str(node.port)})
        said = f"127.0.0.1:{node.port}, which was a node of the cluster, is another server now"
        with pytest.raises(StoreUnavailable, match=said):
            add.enqueue(2)
        with pytest.raises(StoreUnavailable, match=said):
            asyncio.run(add.aenqueue(2))
        assert said in refusal(url, StoreUnavailable)
        assert not other.client().execute_command("DBSIZE")
        other.stop()
        node.start()
        eventually(lambda: b"cluster_state:ok" in node.ask("CLUSTER", "INFO"), what="the node's return")
        assert add.enqueue(3).state == "ready"


@pytest.fixture
def secure(new_cluster: NewCluster) -> Iterator[Callable[[str | Path], Cluster]]:
    """A cluster whose nodes announce the ports of TLS, with the certificate of this name or file."""
    with ExitStack() as stack:

        def make(shown: str | Path) -> Cluster:
            cluster = new_cluster(3, 0)
            for node in cluster.nodes:
                port = stack.enter_context(terminator(node.port, shown))
                node.ask("CONFIG", "SET", "cluster-announce-port", port)
                node.ask("CONFIG", "SET", "cluster-announce-hostname", "localhost")
                node.announced = port
            eventually(lambda: all(_announced(cluster, node) for node in cluster.nodes), what="announced ports")
            return cluster

        yield make


def _announced(cluster: Cluster, node: Node) -> bool:
    ports = {owner[1] for _, _, owner, *_ in node.ask("CLUSTER", "SLOTS")}
    return ports == {each.announced for each in cluster.nodes}


def test_names_that_nodes_announce_are_checked(secure: Callable[[str], Cluster]) -> None:
    cluster = secure("server")
    seeds = ",".join(f"localhost:{node.announced}" for node in cluster.nodes)
    with Headrace(f"clusters://{seeds}?ssl_ca_certs={AUTHORITY}", timeout=30) as app:
        app.by_name("tasks.add").enqueue(1)
        asyncio.run(app.by_name("tasks.add").aenqueue(1))
        assert app.overview().states["ready"] == 2


def test_a_name_that_tls_does_not_cover_is_refused(secure: Callable[[str], Cluster]) -> None:
    cluster = secure("other")
    url = f"clusters://localhost:{cluster.nodes[0].announced}?ssl_ca_certs={AUTHORITY}"
    said = refusal(url, ServerError)
    assert "shows a certificate that is not accepted" in said
    assert said.endswith(
        "have each node announce a name that it is valid for (cluster-announce-hostname), or use ?ssl_check_hostname=false"
    )


def test_a_worker_is_told_what_of_a_cluster_costs_time(new_cluster: NewCluster) -> None:
    cluster = new_cluster(2, 0, config={"cluster-node-timeout": "6000"})
    with Headrace(cluster.url) as app:
        primaries, timeout, coverage = server_warnings(app)
        assert "CONFIG SET cluster-require-full-coverage no on each node" in coverage
        assert "cluster-node-timeout 6000, at most 5000" in timeout
        assert "2 primaries" in primaries


def test_a_password_that_changes_under_load_loses_nothing(
    new_cluster: NewCluster, new_fleet: NewFleet, tmp_path: Path
) -> None:
    cluster = new_cluster(3, 0)
    file = tmp_path / "password"

    def become(new: str, old: str = "") -> None:
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", "default", *([] if old else ["resetpass"]), f">{new}")
        file.write_text(new)
        for node in cluster.nodes:
            node.log_in(new)
            if old:
                node.ask("ACL", "SETUSER", "default", f"<{old}")
            node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    become("first-s3cret")
    fleet = new_fleet(cluster.url, lease=60.0, password_file=str(file))
    worker = fleet.worker(processes=1, ready=False)
    jobs = fleet.enqueue_many("process.nap", [(0.005,)] * 200)
    fleet.until(lambda: len(fleet.ledger.ends()) > 20)
    become("second-s3cret", "first-s3cret")
    jobs += fleet.enqueue_many("process.nap", [(0.001,)] * 50)
    fleet.drained()
    assert fleet.ledger.counts("E") == {job.id: 1 for job in jobs}
    assert "s3cret" not in worker.log()


def token() -> tuple[str, str]:
    return "shop", Path(os.environ["HR_TOKEN"]).read_text()


def test_a_token_and_certificates_that_change_under_load_lose_nothing(
    secure: Callable[[str | Path], Cluster], new_fleet: NewFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, trusted, secret = tmp_path / "shown.pem", tmp_path / "trusted.pem", tmp_path / "token"
    trusted.write_bytes(AUTHORITY.read_bytes() + certificate("renewed-authority").read_bytes())
    shown.write_bytes(certificate("server").read_bytes())
    monkeypatch.setenv("HR_TOKEN", str(secret))
    cluster = secure(shown)

    def become(new: str, old: str = "none") -> None:
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", "shop", "on", f">{new}", "~*", "&*", "+@all")
        secret.with_suffix(".new").write_text(new)
        secret.with_suffix(".new").rename(secret)
        for node in cluster.nodes:
            if old != "none":
                node.ask("ACL", "SETUSER", "shop", f"<{old}")
            node.ask("CLIENT", "KILL", "USER", "shop")

    def show(name: str) -> None:
        shown.with_suffix(".new").write_bytes(certificate(name).read_bytes())
        shown.with_suffix(".new").rename(shown)
        for node in cluster.nodes:
            assert ssl.get_server_certificate(("127.0.0.1", node.announced)) in certificate(name).read_text()

    become("s3cret-1")
    seeds = ",".join(f"localhost:{node.announced}" for node in cluster.nodes)
    url = f"clusters://{seeds}?ssl_ca_certs={trusted}"
    fleet = new_fleet(url, lease=60.0, credentials=f"{__name__}:token", timeout=30.0)
    worker = fleet.worker(processes=1, ready=False)
    with load(fleet) as jobs:
        for turn, name in enumerate(("renewed", "server"), 2):
            show(name)
            become(f"s3cret-{turn}", f"s3cret-{turn - 1}")
            ran = len(fleet.ledger.ends())
            fleet.until(lambda ran=ran: len(fleet.ledger.ends()) > ran + 20)
    fleet.drained()
    assert fleet.ledger.counts("E") == {job.id: 1 for job in jobs}
    assert "s3cret" not in worker.log()
