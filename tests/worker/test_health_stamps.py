"""Whether a worker lives and is ready: what is judged from its stamps, and whose stamps count."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.cli import probe
from headrace.worker import health_stamps
from headrace.worker.health_stamps import (
    ANSWERED,
    DRAINING,
    EVICTING,
    REGISTERED,
    RUNNERS,
    WELL,
    HealthStamps,
    Stamp,
    pid_namespace,
    stamps,
)

LEASE = 15.0
# Of Linux: processes that are forked from now on have process ids of their own.
CLONE_NEWPID = 0x20000000


def stamp(**changes: float) -> Stamp:
    well = Stamp(1, 1, WELL, LEASE, supervisor=1000.0, dispatcher=1000.0, until=1010.0, starving=0.0, space=1.0)
    return well._replace(**changes)  # type: ignore[arg-type]


def test_a_worker_that_turns_lives_and_is_ready() -> None:
    assert stamp().reasons_unhealthy(1001) == []
    assert stamp().reasons_unready(1001) == []


def test_a_reader_never_sees_a_stamp_that_is_being_written() -> None:
    """A field that was cleared before it was written made a worker that was well fail its probe, at times."""
    written = HealthStamps()
    written.begin(LEASE, 1000.0)
    written.dispatched(1000.0, WELL, 1010.0, 0.0)
    child = os.fork()
    if child == 0:
        # Longer than the reads take; not for ever, should nobody be left to end it.
        for _ in range(5_000_000):
            written.next = 0.0
            written.supervised(1000.0, of_use=True)
            written.dispatched(1000.0, WELL, 1010.0, 0.0)
        os._exit(0)
    try:
        for _ in range(100_000):
            assert written.read().reasons_unready(1001) == []
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        written.end()


@pytest.mark.parametrize("who", ["supervisor", "dispatcher"])
def test_a_process_that_is_silent_for_two_leases_hangs(who: str) -> None:
    silent = stamp(**{who: 1000 - 2 * LEASE})
    assert silent.reasons_unhealthy(1000) == []
    assert silent.reasons_unhealthy(1001) == [f"the {who} is silent for 31 s"]
    assert f"the {who} is silent for 31 s" in silent.reasons_unready(1001)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"flags": WELL | DRAINING}, "the worker claims no more"),
        ({"flags": WELL | EVICTING}, "the server may drop jobs: set its maxmemory-policy to noeviction"),
        ({"flags": WELL & ~ANSWERED}, "the server does not answer"),
        ({"flags": WELL & ~REGISTERED}, "the worker is not registered"),
        ({"flags": WELL & ~RUNNERS}, "its runners are starting"),
        ({"until": 1000.5}, "its lease is over"),
        ({"starving": 970.0}, "claims stopped: jobs are ready, runners are free, and nothing was claimed for 31 s"),
        ({"supervisor": 0.0, "flags": 0, "lease": 0.0}, "the worker starts"),
    ],
)
def test_a_worker_that_takes_no_jobs_lives_and_is_not_ready(changes: dict[str, float], why: str) -> None:
    assert stamp(**changes).reasons_unready(1001) == [why]
    assert stamp(**changes).reasons_unhealthy(1001) == []


def test_claims_that_stopped_a_moment_ago_are_no_reason() -> None:
    assert stamp(starving=975.0).reasons_unready(1001) == []


def test_stamps_are_read_in_other_processes_as_long_as_their_maker_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    begun, ends = os.pipe(), os.pipe()
    maker = os.fork()
    if not maker:
        made = HealthStamps(shared="7-ab")
        made.begin(LEASE, 10.0)
        made.dispatched(11.0, WELL, 20.0, 12.0)
        os.write(begun[1], b"x")
        os.read(ends[0], 1)
        os._exit(0)
    os.read(begun[0], 1)
    assert stamps() == [Stamp(maker, 7, WELL, LEASE, 10.0, 11.0, 20.0, 12.0, pid_namespace())]
    # Another worker removes what the dead leave behind, and nothing of the living.
    HealthStamps().end()
    assert [one.process for one in stamps()] == [maker]
    os.kill(maker, signal.SIGKILL)
    os.waitpid(maker, 0)
    for end in (*begun, *ends):
        os.close(end)
    assert stamps() == []
    assert len(list(tmp_path.iterdir())) == 1
    HealthStamps().end()
    assert list(tmp_path.iterdir()) == []


def test_workers_that_start_at_once_leave_each_other_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was named before it was whole: a worker that started meanwhile took it for that of a dead one, and no
    probe found the living one any more, which its orchestrator then restarted.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    publish = HealthStamps._publish

    def meanwhile(self: HealthStamps) -> None:
        publish(self)
        if not (other := os.fork()):
            health_stamps.forget_dead()
            os._exit(0)
        os.waitpid(other, 0)

    monkeypatch.setattr(HealthStamps, "_publish", meanwhile)
    made = HealthStamps()
    assert [str(path) for path in tmp_path.iterdir()] == [made.path]
    made.end()


def test_a_file_that_cannot_be_read_as_a_stamp_stays_as_long_as_a_worker_locks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While versions change on a machine, a worker of one removed the files of the other's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    worker, *pipes = _made(WELL)
    (foreign,) = tmp_path.iterdir()
    with foreign.open("r+b") as file:
        file.write(b"HRh9")
    try:
        assert stamps() == []
        health_stamps.forget_dead()
        assert foreign.exists()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    health_stamps.forget_dead()
    assert not foreign.exists()
    for end in pipes:
        os.close(end)


def _contained(flags: int) -> tuple[int, int, int]:
    """As :func:`_made`, the first process of a container of its own, which has process id 1 there."""
    said, told = os.pipe(), os.pipe()
    if not (outside := os.fork()):
        unshared = ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
        if not unshared:
            os.write(said[1], b"n")
            os._exit(0)
        if inside := os.fork():
            os.waitpid(inside, 0)
            os._exit(0)
        made = HealthStamps()
        made.begin(LEASE, time.monotonic())
        made.dispatched(time.monotonic(), flags, time.monotonic() + LEASE, 0.0)
        os.write(said[1], b"y")
        os.read(told[0], 1)
        os._exit(0)
    if os.read(said[0], 1) == b"n":
        os.waitpid(outside, 0)
        pytest.skip("needs the right to make a container")
    return outside, said[0], told[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has spaces of process ids")
def test_workers_of_two_containers_that_share_the_directory_have_stamps_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    one = _contained(WELL)
    other = _contained(WELL & ~RUNNERS)
    assert [(stamp.process, stamp.worker) for stamp in stamps()] == [(1, 1), (1, 1)]
    assert probe.probe(None, ready=True, json=False) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "worker 1 is not ready: its runners are starting", "worker 1 is ready",
    ]  # fmt: skip
    os.write(other[2], b"x")
    os.waitpid(other[0], 0)
    assert probe.probe(None, ready=True, json=False) == 0
    assert capsys.readouterr().out == "worker 1 is ready\n"
    os.write(one[2], b"x")
    os.waitpid(one[0], 0)
    assert stamps() == []


def test_a_process_id_means_the_worker_of_the_own_container(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [stamp(supervisor=0.0, space=pid_namespace() + more) for more in (0, 1)]
    monkeypatch.setattr(health_stamps, "stamps", lambda: both)
    assert probe.probe(1, ready=False, json=False) == 0
    assert capsys.readouterr().out == "worker 1 is healthy\n"
    # Seen from elsewhere, both may be meant.
    del both[0]
    both.append(stamp(supervisor=0.0, space=pid_namespace() + 2))
    assert probe.probe(1, ready=False, json=False) == 0
    assert capsys.readouterr().out == "worker 1 is healthy\n" * 2


def test_the_next_worker_of_a_parent_takes_the_file_over_when_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"headrace-{os.geteuid()}-7-ab.1").touch()
    old = _made(WELL)
    assert [one.process for one in stamps()] == [old[0]]
    new = _made(WELL & ~RUNNERS, WELL)
    assert [(one.process, one.worker) for one in stamps()] == [(old[0], 7)], "it is not ready"
    os.write(new[2], b"x")
    os.read(new[1], 1)
    assert [(one.process, one.flags) for one in stamps()] == [(new[0], WELL)]
    for pid, said, told in (old, new):
        os.write(told, b"x")
        os.waitpid(pid, 0)
        assert [one.process for one in stamps()] == ([new[0]] if pid == old[0] else [])
        os.close(said)
        os.close(told)


def test_a_probe_that_is_held_up_by_a_reload_finds_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    old, new = _made(WELL), _made(WELL & ~RUNNERS, WELL)
    is_locked = health_stamps._is_locked

    def later(file: int) -> bool:
        monkeypatch.setattr(health_stamps, "_is_locked", is_locked)
        os.write(new[2], b"x")
        os.read(new[1], 1)
        os.write(old[2], b"x")
        os.waitpid(old[0], 0)
        return is_locked(file)

    monkeypatch.setattr(health_stamps, "_is_locked", later)
    try:
        assert [one.process for one in stamps()] == [new[0]]
    finally:
        os.write(new[2], b"x")
        os.waitpid(new[0], 0)
    for _, *pipes in (old, new):
        for end in pipes:
            os.close(end)


def _made(*flags: int) -> tuple[int, int, int]:
    """A worker of the parent 7, which changes its flags when it is told to and at last ends: its pid, and both pipes."""
    said, told = os.pipe(), os.pipe()
    if not (pid := os.fork()):
        made = HealthStamps(shared="7-ab")
        made.begin(LEASE, time.monotonic())
        for now in flags:
            made.dispatched(time.monotonic(), now, time.monotonic() + LEASE, 0.0)
            if now == WELL:
                made.publish()
            os.write(said[1], b"x")
            os.read(told[0], 1)
        made.end()
        os._exit(0)
    os.read(said[0], 1)
    return pid, said[0], told[1]


def test_files_that_no_worker_made_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name, data in (("1", b""), ("2", b"x" * 64), ("3", b"HRh1" * 17)):
        (tmp_path / f"headrace-{os.geteuid()}-{name}.health").write_bytes(data)
    (tmp_path / f"headrace-{os.geteuid()}-4.health").symlink_to("/etc/passwd")
    assert stamps() == []


def test_a_file_is_written_elsewhere_where_tmpdir_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe killed healthy workers of containers whose root is read-only."""
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(health_stamps, "_PLACES", ("/nowhere/either", str(tmp_path)))
    made = HealthStamps()
    assert (Path(made.path).parent, made.fault) == (tmp_path, "")
    # The probe looks there, too.
    assert health_stamps.stamps_directory() == str(tmp_path)
    made.end()


def test_a_worker_that_can_write_no_file_stamps_its_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(health_stamps, "_PLACES", ())
    assert probe.probe(None, ready=False, json=False) == 1
    assert (
        "no worker of this user has a file in /nowhere: none runs, it has another TMPDIR, or" in capsys.readouterr().err
    )
    made = HealthStamps()
    assert made.path == ""
    assert "/nowhere" in made.fault
    made.begin(LEASE, 10.0)
    assert made.read().supervisor == 10.0
    made.end()


def test_a_full_disk_is_noticed_before_its_memory_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory whose file has no room ended the worker by BUS."""

    def full(file: int, data: bytes) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        written = HealthStamps()
    assert written.path == ""
    assert list(tmp_path.iterdir()) == []
    written.begin(LEASE, 1000.0)
    assert written.read().lease == LEASE


def test_a_supervisor_that_cannot_fork_counts_as_silent() -> None:
    made = HealthStamps()
    try:
        made.begin(LEASE, 100.0)
        made.supervised(101.0, of_use=True)
        assert made.read().supervisor == 100.0  # not yet due
        made.supervised(made.next, of_use=False)
        assert made.read().supervisor == 100.0
        made.supervised(made.next, of_use=True)
        assert made.read().supervisor == 100 + LEASE
    finally:
        made.end()


def test_a_dispatcher_is_silent_while_the_supervisor_turns_without_it() -> None:
    made = HealthStamps()
    made.begin(LEASE, 100.0)
    # For an hour both were stopped, as by Ctrl-Z: it moves next.
    told = [made.supervised(made.next + stopped, of_use=True) for stopped in (0.0, 0.0, 3600.0)]
    made.end()
    assert told == [0.0, LEASE / 2, LEASE]


def test_a_probe_between_two_fields_of_a_stamp_sees_no_lease_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HealthStamps()
    write, seen = HealthStamps._stamp, list[list[str]]()

    def probed(self: HealthStamps, place: int, form: str, *values: float) -> None:
        write(self, place, form, *values)
        seen.append(self.read().reasons_unready(102.0))

    try:
        made.begin(LEASE, 100.0)
        made.dispatched(101.0, 0, 0.0, 0.0)
        monkeypatch.setattr(HealthStamps, "_stamp", probed)
        made.dispatched(102.0, WELL, 117.0, 0.0)
    finally:
        made.end()
    assert seen[-1] == []
    assert "its lease is over" not in {word for words in seen for word in words}
