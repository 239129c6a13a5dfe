"""The life of the private server: who starts it, who keeps it alive, what ends it. Real programs, real
kills."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from headrace import embedded
from headrace.embedded import Status, paths
from headrace.errors import ServerError
from tests import servers
from tests.deadline import eventually

pytestmark = pytest.mark.system

SOURCE = Path(__file__).resolve().parents[2] / "src"

USER = """
import sys
from headrace import embedded
handle = embedded.attach(sys.argv[1], idle_timeout=0)
print(handle.url, flush=True)
sys.stdin.read()
"""

REVIVER = """
import sys
from headrace import embedded
handle = embedded.attach(sys.argv[1], idle_timeout=0)
print(handle.url, flush=True)
sys.stdin.readline()
handle.revive()
while (seen := embedded.status(sys.argv[1])).health == "silent":
    pass
print(seen.pid, flush=True)
sys.stdin.read()
"""

PARENT = """
import os, sys
from headrace import embedded
handle = embedded.attach(sys.argv[1], idle_timeout=0)
if os.fork():
    print(handle.url, flush=True)
    os._exit(0)
sys.stdin.read()
"""

COMMUTER = """
import sys
import redis
from headrace import embedded
for number in range(8):
    with embedded.attach(sys.argv[1], idle_timeout=0) as handle:
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            client.incr("k")
print("done", flush=True)
sys.stdin.read()
"""

COUNTER = """
import json, sys, threading
import psutil
from headrace import embedded
me = psutil.Process()
me.children(), embedded.status(sys.argv[1])
files = me.num_fds()
def counts():
    return [threading.active_count(), len(me.children()), me.num_fds() - files]
with embedded.attach(sys.argv[1], idle_timeout=0) as handle:
    during, where = counts(), str(handle.directory)
print(json.dumps([during, counts(), where]), flush=True)
sys.stdin.read()
"""

FORKER = """
import os, sys
from headrace import embedded
from headrace.embedded import handle, paths
def forking(function):
    def call(*arguments, **named):
        result = function(*arguments, **named)
        if not os.fork():  # as another thread may at that moment
            os.close(1)
            sys.stdin.read()
            os._exit(0)
        return result
    return call
"""

STARTER = f"""{FORKER}
handle.subprocess.Popen = forking(handle.subprocess.Popen)
print(embedded.attach(sys.argv[1], idle_timeout=0).url, flush=True)
sys.stdin.read()
"""

LOOKER = f"""{FORKER}
paths.take_lock = forking(paths.take_lock)
print(embedded.status(sys.argv[1]).health, flush=True)
sys.stdin.read()
"""

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    embedded.stop(tmp_path / "data")


@pytest.fixture
def launch(directory: Path) -> Iterator[Launch]:
    """Start a program on the directory; it prints the URL once it is attached, and ends when its input
    does."""
    started: list[subprocess.Popen[str]] = []

    def go(program: str = USER) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def url_of(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def set_key(url: str, value: str = "v") -> None:
    with redis.Redis.from_url(url, protocol=2) as client:
        client.set("k", value)


def store_key(url: str) -> None:
    """Set it, so that it outlives the server's death.

    While it syncs its file, which may take a slow disk long, a server holds back what it has yet to write there.
    """
    set_key(url)
    with redis.Redis.from_url(url, protocol=2) as client:
        eventually(lambda: client.info("persistence")["aof_buffer_length"] == 0, what="all is written to its file")


def get_key(url: str) -> bytes | None:
    with redis.Redis.from_url(url, protocol=2) as client:
        return client.get("k")


def ended(directory: Path) -> bool:
    return not embedded.status(directory).running and not guarded(directory)


def guarded(directory: Path) -> bool:
    return paths.locked(directory / "guard.lock")


def running(directory: Path) -> Status:
    found = embedded.status(directory)
    assert found.pid is not None
    assert guarded(directory)
    return found


def guard_of(directory: Path) -> int:
    """The guard's pid: the server is its child."""
    return psutil.Process(running(directory).pid).ppid()


def test_programs_started_at_once_get_one_server(directory: Path, launch: Launch) -> None:
    programs = [launch() for _ in range(4)]
    assert len({url_of(program) for program in programs}) == 1
    assert (directory / "server.log").read_text().count("Ready to accept connections") == 1
    assert embedded.status(directory).clients == 0


def test_the_server_outlives_the_program_that_started_it(directory: Path, launch: Launch) -> None:
    first = launch()
    set_key(url_of(first))
    second = launch()
    url = url_of(second)
    before = running(directory)
    first.kill()
    first.wait()
    assert get_key(url) == b"v"
    assert running(directory).pid == before.pid


def test_the_server_ends_with_its_last_user_and_the_data_stay(directory: Path, launch: Launch) -> None:
    programs = [launch(), launch()]
    urls = [url_of(program) for program in programs]
    set_key(urls[0])
    socket = embedded.status(directory).socket
    for program in programs:
        program.kill()
    eventually(lambda: ended(directory))
    assert socket is not None
    assert not socket.exists()
    with embedded.attach(directory, idle_timeout=0) as handle:
        assert get_key(handle.url) == b"v"


def test_a_forked_child_counts_as_a_user(directory: Path, launch: Launch) -> None:
    parent = launch(PARENT)
    url = url_of(parent)
    parent.wait()
    assert embedded.status(directory).used
    assert get_key(url) is None
    assert parent.stdin is not None
    parent.stdin.close()
    eventually(lambda: ended(directory))


def test_a_child_forked_during_a_start_does_not_hold_it_up(directory: Path, launch: Launch) -> None:
    assert url_of(launch(STARTER))
    os.kill(guard_of(directory), signal.SIGKILL)
    eventually(lambda: not guarded(directory))
    with embedded.attach(directory, idle_timeout=0) as handle:
        assert get_key(handle.url) is None


def test_a_child_forked_during_a_look_keeps_no_lock(directory: Path, launch: Launch) -> None:
    with embedded.attach(directory):
        assert embedded.stop(directory)
    assert url_of(launch(LOOKER)) == "absent"
    with embedded.attach(directory, idle_timeout=0) as handle:
        assert get_key(handle.url) is None


def test_closing_one_handle_leaves_the_others_theirs(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=0) as kept:
        other = embedded.attach(directory)
        other.close()
        other.close()
        with pytest.raises(ServerError, match="attach again"):
            other.revive()
        assert embedded.status(directory).used
        assert kept.revive() == kept.url


def test_a_newcomer_during_the_linger_finds_the_same_server(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=60):
        first = running(directory).pid
    # Its guard takes the users' lock for a moment to learn that they are gone, and counts as one meanwhile.
    eventually(lambda: not embedded.status(directory).used)
    with embedded.attach(directory):
        assert running(directory).pid == first


def test_coming_and_going_at_the_end_never_finds_a_dying_server(directory: Path) -> None:
    for number in range(15):
        with embedded.attach(directory, idle_timeout=0) as handle:
            assert get_key(handle.url) == (str(number - 1).encode() if number else None)
            set_key(handle.url, str(number))


def test_many_coming_and_going_at_once_lose_nothing(directory: Path, launch: Launch) -> None:
    programs = [launch(COMMUTER) for _ in range(3)]
    assert [url_of(program) for program in programs] == ["done"] * 3
    with embedded.attach(directory, idle_timeout=0) as handle:
        assert get_key(handle.url) == b"24"


def test_attaching_leaves_no_thread_no_child_and_one_descriptor(directory: Path, launch: Launch) -> None:
    """In a program of its own: what other tests left in this one may end at any moment."""
    counted = json.loads(url_of(launch(COUNTER)))
    assert counted == [[1, 0, 1], [1, 0, 0], str(directory)]


def test_nobody_else_can_reach_it(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=0) as handle:
        found = running(directory)
        assert found.socket is not None
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(found.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "password").stat().st_mode) == 0o600
        assert not psutil.Process(found.pid).net_connections(kind="inet")
        with (
            servers.connect(f"unix://{found.socket}") as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()
        password = (directory / "password").read_text()
        assert password in handle.url
        assert password not in repr(found) + repr(handle)
        shown = [line for pid in (found.pid, guard_of(directory)) for line in psutil.Process(pid).cmdline()]
        assert password not in " ".join(shown)
        for log in directory.glob("*.log"):
            assert password not in log.read_text()


@pytest.mark.parametrize("name", servers.NAMES)
def test_each_supported_server_keeps_its_data(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        binary = servers.find(name)
    except servers.AbsentError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("HEADRACE_SERVER_BINARY", str(binary.path))
    with embedded.attach(directory, idle_timeout=60) as handle:
        set_key(handle.url)
        assert embedded.status(directory).version == f"{name.partition('-')[0]} {binary.version}"
        with redis.Redis.from_url(handle.url, protocol=2, decode_responses=True) as client:
            wanted = {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "maxmemory-policy": "noeviction",
                "save": "",
            }
            for option, value in {**wanted, "port": "0", "aof-load-truncated": "yes"}.items():
                assert client.config_get(option) == {option: value}
    assert embedded.stop(directory)
    with embedded.attach(directory, idle_timeout=0) as handle:
        assert get_key(handle.url) == b"v"
        assert embedded.status(directory).keys == 1


def test_start_keeps_it_until_stop(directory: Path) -> None:
    found = embedded.start(directory)
    assert found.running
    assert found.kept
    with embedded.attach(directory) as handle:
        assert embedded.stop(directory)
        assert ended(directory)
        with pytest.raises(ServerError, match="headrace server start"):
            handle.revive()
    assert not embedded.stop(directory)
    assert not embedded.status(directory).kept
    with embedded.attach(directory, idle_timeout=0):
        assert embedded.status(directory).health == "ready"


def test_stop_is_done_even_if_somebody_comes_back_at_once(
    directory: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.attach(directory, idle_timeout=0):
        before = running(directory).pid
        shut_down = paths.shut_down

        def order(path: Path | None, password: str | None) -> None:
            shut_down(path, password)
            eventually(lambda: ended(directory))
            assert url_of(launch())

        monkeypatch.setattr(paths, "shut_down", order)
        assert embedded.stop(directory)
        monkeypatch.undo()
        assert running(directory).pid != before


def test_a_kept_server_stays_when_its_last_user_leaves(
    directory: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_EMBEDDED_IDLE_TIMEOUT", "0")
    first = embedded.start(directory)
    program = launch()
    assert url_of(program)
    program.kill()
    program.wait()
    # The guard looks once and then keeps its hands off: its watcher is what would give it another reason.
    eventually(lambda: not embedded.status(directory).used)
    assert running(directory).pid == first.pid


def test_a_killed_server_is_started_again_by_a_user_that_misses_it(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=0) as handle:
        store_key(handle.url)
        before = running(directory)
        # As after the everysec sync: what is in the kernel outlives the process.
        os.kill(before.pid or 0, signal.SIGKILL)
        assert get_key(handle.revive()) == b"v"
        assert running(directory).pid != before.pid


def test_users_that_miss_their_server_at_once_start_one(directory: Path, launch: Launch) -> None:
    programs = [launch(REVIVER) for _ in range(3)]
    assert len({url_of(program) for program in programs}) == 1
    before = running(directory)
    os.kill(before.pid or 0, signal.SIGKILL)
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    pids = {url_of(program) for program in programs}
    assert pids == {str(running(directory).pid)}
    assert (directory / "server.log").read_text().count("Ready to accept connections") == 2


@pytest.mark.parametrize("too", [(), ("server",)], ids=["guard", "guard and server"])
def test_a_killed_guard_is_replaced_by_who_needs_it(directory: Path, too: tuple[str, ...]) -> None:
    with embedded.attach(directory, idle_timeout=0) as handle:
        store_key(handle.url)
        guard, server = guard_of(directory), running(directory).pid
        os.kill(guard, signal.SIGKILL)
        if too:
            os.kill(server or 0, signal.SIGKILL)
        eventually(lambda: not guarded(directory))
        assert get_key(handle.revive()) == b"v"
        assert guard_of(directory) != guard


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_server_without_guard_and_users_ends_by_itself(directory: Path, launch: Launch) -> None:
    program = launch()
    assert url_of(program)
    os.kill(guard_of(directory), signal.SIGKILL)
    program.kill()
    eventually(lambda: ended(directory))


@contextmanager
def orphaned(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server with a key and no guard, as is left where a child does not learn of its parent's death."""
    with embedded.attach(directory, idle_timeout=0) as handle:
        set_key(handle.url)
        assert embedded.stop(directory)
    fd = os.open(directory / "server.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    server = servers.find("valkey-9").path
    orphan = subprocess.Popen([server, "-"], pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert orphan.stdin is not None
    with orphan.stdin as config:
        settings = {
            "port": "0",
            "unixsocket": directory / "valkey.sock",
            "dir": directory,
            "appendonly": "yes",
        }
        settings["requirepass"] = (directory / "password").read_text()
        config.write("".join(f"{name} {value}\n" for name, value in settings.items()).encode())
    os.close(fd)
    try:
        eventually(lambda: embedded.status(directory).health == "ready")
        assert embedded.status(directory).pid == orphan.pid
        yield orphan
    finally:
        orphan.kill()
        orphan.wait()


def test_a_server_that_lost_its_guard_is_ended_before_another_has_the_data(directory: Path) -> None:
    with orphaned(directory) as orphan, embedded.attach(directory, idle_timeout=0) as handle:
        assert orphan.wait(60) == 0
        assert get_key(handle.url) == b"v"


def test_stop_ends_a_server_that_lost_its_guard(directory: Path) -> None:
    with orphaned(directory) as orphan:
        assert embedded.stop(directory)
        assert orphan.wait(60) == 0


def test_the_directory_is_the_projects_own_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert embedded.path() == tmp_path / ".headrace"
    monkeypatch.setenv("HEADRACE_DIR", str(tmp_path / "elsewhere"))
    assert embedded.path() == tmp_path / "elsewhere"
    found = embedded.status()
    assert not found.running
    assert not list(tmp_path.iterdir())
