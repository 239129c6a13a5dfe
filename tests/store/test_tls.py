"""A server behind TLS: reached by threads, event loops, the cache and workers; and each way to fail names its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace import Headrace
from headrace.errors import HeadraceError, ServerError, StoreUnavailable
from headrace.store.url import parse
from headrace.store.verdict import advice
from tests.servers import Server
from tests.tls import AUTHORITY, certificate, terminator

CLIENT = f"ssl_certfile={certificate('client')}&ssl_keyfile={certificate('client')}"


@pytest.fixture
def tcp(new_server: Callable[..., Server]) -> Server:
    return new_server(tcp=True)


@pytest.fixture
def port(tcp: Server) -> Iterator[int]:
    with terminator(tcp) as port:
        yield port


def by_threads(url: str, timeout: float = 20.0) -> None:
    with Headrace(url, timeout=timeout) as app:
        assert app.jobs.get(app.by_name("t").enqueue().id).task == "t"


def by_a_loop(url: str, timeout: float = 20.0) -> None:
    async def story() -> None:
        app = Headrace(url, timeout=timeout)
        try:
            job = await app.by_name("t").aenqueue()
            assert (await app.jobs.aget(job.id)).task == "t"
        finally:
            await app.aclose()

    asyncio.run(story())


both = pytest.mark.parametrize("use", [by_threads, by_a_loop])


@both
@pytest.mark.parametrize(
    "query",
    [f"ssl_ca_certs={AUTHORITY}", "ssl_cert_reqs=none", f"ssl_ca_certs={AUTHORITY}&ssl_check_hostname=false"],
)
def test_it_is_reached_with_each_option(port: int, use: Callable[..., None], query: str) -> None:
    use(f"rediss://localhost:{port}/0?{query}")
    use(f"valkeys://127.0.0.1:{port}/0?{query}")


@both
def test_it_may_ask_for_a_certificate(tcp: Server, use: Callable[..., None]) -> None:
    with terminator(tcp, ask=True) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={AUTHORITY}"
        use(f"{url}&{CLIENT}")
        with pytest.raises(StoreUnavailable, match=r"does it ask for a client's certificate.*ssl_certfile="):
            use(url, 4.0)


def test_a_connection_that_was_cut_is_no_sign_of_a_missing_certificate_where_there_is_one() -> None:
    cut, url = redis.ConnectionError("Connection closed by server."), "rediss://localhost/0"
    assert advice(cut, parse(url)).startswith("is the server running, and does it ask for a client's certificate?")
    assert advice(cut, parse(f"{url}?{CLIENT}")) == "is the server running?"
    refused = redis.ConnectionError("(1, '[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired')")
    assert advice(refused, parse(f"{url}?{CLIENT}")).startswith("does the server accept the certificate that ssl_certf")


@both
def test_a_certificate_that_is_not_accepted_is_told_at_once(tcp: Server, port: int, use: Callable[..., None]) -> None:
    with pytest.raises(
        ServerError, match=r"not accepted \(unable to get.*name the file of the authority.*ssl_ca_certs="
    ):
        use(f"rediss://localhost:{port}")
    with terminator(tcp, "other") as other:
        url = f"rediss://localhost:{other}/0?ssl_ca_certs={AUTHORITY}"
        with pytest.raises(ServerError, match=r"not valid for 'localhost'.*use a name in the URL that it is valid for"):
            use(url)
        use(f"{url}&ssl_check_hostname=false")


@pytest.mark.parametrize(
    ("name", "now", "said"),
    [
        ("authority", "", "has ssl_ca_certs=.*/authority.pem, which holds no certificates"),
        ("client", None, r"has ssl_certfile=.*/client.pem, which is not there or cannot be read\): correct the file"),
        ("client", certificate("locked").read_text(), "the password of an encrypted key"),
    ],
)
def test_a_file_that_is_exchanged_for_a_wrong_one_is_named(
    port: int, tmp_path: Path, name: str, now: str | None, said: str
) -> None:
    """Told when the call's time is over, since the right one may be about to come."""
    files = {one: tmp_path / f"{one}.pem" for one in ("authority", "client")}
    for one, path in files.items():
        path.write_bytes(certificate(one).read_bytes())
    url = f"rediss://localhost:{port}/0?ssl_ca_certs={files['authority']}&ssl_certfile={files['client']}"
    with Headrace(url, timeout=0.3) as app:
        # They read the URL while its files are right.
        assert app.client.store.target.tls
        assert app.client.astore.target.tls
        if now is None:
            files[name].unlink()
        else:
            files[name].write_text(now)
        with pytest.raises(StoreUnavailable, match=said):
            app.by_name("t").enqueue()
        with pytest.raises(StoreUnavailable, match=said):
            asyncio.run(app.by_name("t").aenqueue())


@both
def test_tls_to_a_plain_port_and_the_reverse_are_named(tcp: Server, port: int, use: Callable[..., None]) -> None:
    with pytest.raises(HeadraceError, match=r"does this port speak TLS.*write redis://"):
        use(f"rediss://127.0.0.1:{tcp.port}", 3.0)
    with pytest.raises(HeadraceError, match=r"TLS.*write rediss://"):
        use(f"redis://127.0.0.1:{port}", 3.0)


def test_the_cache_keeps_values_over_tls(port: int) -> None:
    with Headrace(f"rediss://localhost:{port}/0?ssl_ca_certs={AUTHORITY}") as app:
        app.cache.set("large", "x" * 100_000)
        assert app.cache.get("large") == "x" * 100_000
        assert app.cache.get("large") == "x" * 100_000


@pytest.mark.system
def test_a_worker_serves_over_tls(tcp: Server, port: int, tmp_path: Path) -> None:
    from tests.program import Program, Worker

    program = Program(tmp_path, f"rediss://localhost:{port}/0?ssl_ca_certs={AUTHORITY}")
    program.write(
        "tasks", "from headrace import Headrace\napp = Headrace()\n@app.task\ndef same(x: str) -> str: return x"
    )
    worker = Worker(program.start("worker", "tasks:app", "--processes", "2"))
    try:
        with Headrace(program.environment["HEADRACE_URL"]) as app:
            # More than a record of TLS holds, and more than one of them.
            texts = [f"{n}" * 20_000 for n in range(20)]
            jobs = [app.by_name("tasks.same").enqueue(text) for text in texts]
            assert [job.result(timeout=60) for job in jobs] == texts
            parked = app.by_name("tasks.same", delay=3600).enqueue("")
            parked.cancel()
        assert worker.stop() == 0
    finally:
        worker.close()
    program.environment["HEADRACE_URL"] = f"rediss://127.0.0.1:{tcp.port}"
    late = Worker(program.start("worker", "tasks:app"))
    try:
        late.says("does this port speak TLS")
    finally:
        late.close()
    program.environment["HEADRACE_URL"] = f"rediss://localhost:{port}"
    assert "not accepted" in program.fresh("worker", "tasks:app", code=3).fault
