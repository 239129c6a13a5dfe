"""What stands in the way of a server is told in one line, with what to do: by the library and by the command line."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import logging
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace import Headrace
from headrace.errors import HeadraceError, ServerError, StoreUnavailable, UrlError
from headrace.store.url import parse
from headrace.store.verdict import advice
from tests.deadline import eventually
from tests.program import Program
from tests.servers import Server, find, free_port
from tests.tls import terminator

UNREACHABLE = StoreUnavailable, 3


@contextlib.contextmanager
def plain(server: Server) -> Iterator[str]:
    yield f"rediss://127.0.0.1:{server.port}"


@contextlib.contextmanager
def secure(server: Server) -> Iterator[str]:
    with terminator(server) as port:
        yield f"redis://127.0.0.1:{port}"


@contextlib.contextmanager
def web(server: Server) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join(10)


@contextlib.contextmanager
def absent(server: Server) -> Iterator[str]:
    yield f"redis://127.0.0.1:{free_port()}"


@contextlib.contextmanager
def silent(server: Server) -> Iterator[str]:
    """It takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def no_sentinel(server: Server) -> Iterator[str]:
    yield f"sentinel://127.0.0.1:{free_port()}/jobs/0"


@contextlib.contextmanager
def no_master(server: Server) -> Iterator[str]:
    """A Sentinel that knows no master."""
    port, path = free_port(), server.directory / "sentinel.conf"
    path.write_text(f"port {port}\nbind 127.0.0.1\ndir {server.directory}\n")
    with subprocess.Popen(
        ["redis-sentinel", str(path), "--sentinel"], executable=find("valkey-9").path, stdout=subprocess.DEVNULL
    ) as process:
        try:
            eventually(lambda: _answers(port), 30, what="a Sentinel")
            yield f"sentinel://127.0.0.1:{port}/jobs/0"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def replica(server: Server) -> Iterator[str]:
    server.owner.replicaof("127.0.0.1", str(free_port()))
    yield server.url


def text(url: str) -> Callable[[Server], contextlib.AbstractContextManager[str]]:
    return lambda _: contextlib.nullcontext(url)


TABLE = {
    "TLS to a plain port": (
        plain,
        *UNREACHABLE,
        "does this port speak TLS? If it does not, write redis:// in the URL.",
    ),
    "a plain URL to a TLS port": (secure, HeadraceError, 3, "write rediss://"),
    "a web server": (web, ServerError, 3, "it looks like a web server; check host and port of the URL"),
    "no server": (absent, *UNREACHABLE, "): is the server running? The call may be repeated"),
    "a silent server": (silent, *UNREACHABLE, "is the server running?"),
    "a replica": (replica, *UNREACHABLE, "it is a replica: write the URL of its master"),
    "no Sentinel": (no_sentinel, *UNREACHABLE, "do the Sentinels run, and their master 'jobs'?"),
    "a Sentinel without the master": (
        no_master,
        *UNREACHABLE,
        "knows no master 'jobs'): check the name in the URL.",
    ),
    "no scheme": (
        text("localhost:6390"),
        UrlError,
        2,
        "has no scheme, such as redis://: did you mean redis://localhost:6390?",
    ),
    "a path": (text("/run/absent.sock"), UrlError, 2, "did you mean unix:///run/absent.sock?"),
    "another scheme": (text("http://localhost"), UrlError, 2, "has the scheme 'http': use one of redis://"),
}
each = pytest.mark.parametrize(("reach", "kind", "code", "said"), TABLE.values(), ids=TABLE)
Reach = Callable[[Server], contextlib.AbstractContextManager[str]]


def _patience(kind: type[HeadraceError]) -> float:
    """Seconds: few where they pass to the end, many where the answer is an error at once."""
    return 20.0 if kind in (ServerError, UrlError) else 3.0


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    return new_server(tcp=True)


@each
def test_the_library_says_what_is_wrong_in_one_line(
    server: Server, reach: Reach, kind: type[HeadraceError], code: int, said: str
) -> None:
    async def by_a_loop(app: Headrace) -> None:
        try:
            await app.aoverview()
        finally:
            await app.aclose()

    with reach(server) as url, Headrace(url, timeout=_patience(kind)) as app:
        for use in (app.overview, lambda: asyncio.run(by_a_loop(app))):
            with pytest.raises(kind) as caught:
                use()
            assert said in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.system
@each
def test_the_command_line_says_the_same(
    server: Server, tmp_path: Path, reach: Reach, kind: type[HeadraceError], code: int, said: str
) -> None:
    headrace = Program(tmp_path, None)
    with reach(server) as url:
        assert said in headrace("jobs", "list", "--url", url, code=code, HEADRACE_TIMEOUT=str(_patience(kind))).fault


@pytest.mark.parametrize("reach", [absent, silent, no_sentinel], ids=lambda reach: reach.__name__)
def test_a_caller_hears_what_it_waits_for(server: Server, reach: Reach, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace")

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.name == "headrace.store"]

    with reach(server) as url, Headrace(url, timeout=4) as app:
        with pytest.raises(StoreUnavailable):
            app.overview()
        (first,) = told()
        assert first.startswith(f"waiting for {url}")
        assert "\n" not in first
        caplog.clear()

        async def by_a_loop() -> None:
            with pytest.raises(StoreUnavailable):
                await app.aoverview()
            await app.aclose()

        asyncio.run(by_a_loop())
        (second,) = told()
        assert second.startswith(f"waiting for {url}")


def test_a_caller_of_a_server_that_answers_hears_nothing(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take a second until it answers.
    monkeypatch.setattr("headrace.store.reach.SILENCE", 60.0)
    before = set(threading.enumerate())
    with Headrace(server.tcp_url) as app:
        app.overview()
    assert caplog.records == []
    assert set(threading.enumerate()) <= before


def test_a_first_connection_needs_no_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts none while its exit hooks run, and that is when a short program sends its counts."""

    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with Headrace(server.tcp_url) as app, monkeypatch.context() as over:
        over.setattr(threading.Thread, "start", none)
        assert app.overview().states


@pytest.mark.system
def test_a_command_says_what_it_waits_for(server: Server, tmp_path: Path) -> None:
    headrace = Program(tmp_path, None)
    with silent(server) as url:
        said = headrace("jobs", "list", "--url", url, code=3, HEADRACE_TIMEOUT="5").err.splitlines()
        assert said[0] == f"waiting for {url}"
        assert len(said) == 2
        (only,) = headrace("jobs", "list", "--url", url, "--json", code=3, HEADRACE_TIMEOUT="2").err.splitlines()
        assert only.startswith("{")


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("max number of clients reached", "it runs, and has no room: raise its maxclients"),
        ("Redis is loading the dataset in memory", "it runs, and loads its data"),
        ("NOREPLICAS Not enough good replicas to write", "it runs, and too few replicas follow"),
        ("BUSY Valkey is busy running a script. You can only call SCRIPT KILL", "it runs a script of a program"),
        ("Link with MASTER is down and replica-serve-stale-data", "it is a replica, and its master is away"),
    ],
)
def test_a_server_that_runs_and_takes_no_work_is_not_asked_for(words: str, step: str) -> None:
    """Whether its words or the end of the connection arrive first is a matter of chance."""
    assert advice(redis.ConnectionError(words), parse("redis://localhost")).startswith(step)


def test_the_word_of_a_server_without_room_is_told_though_the_write_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, closed = str(tmp_path / "s"), threading.Semaphore(0)
    greet = redis.connection.UnixDomainSocketConnection.on_connect_check_health

    def late(connection: redis.connection.UnixDomainSocketConnection, check_health: bool = True) -> None:
        closed.acquire(timeout=60)
        greet(connection, check_health)

    monkeypatch.setattr(redis.connection.UnixDomainSocketConnection, "on_connect_check_health", late)

    def refuse() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = server.accept()
                with one:
                    one.sendall(b"-ERR max number of clients reached\r\n")
                closed.release()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        thread = threading.Thread(target=refuse)
        thread.start()
        with (
            Headrace(f"unix://{place}", timeout=2) as app,
            pytest.raises(StoreUnavailable, match="number of clients"),
        ):
            app.overview()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)
