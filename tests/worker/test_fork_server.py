"""The fork kind's fork server: a child for each job, one group, and how each end of a child is told."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from headrace import Headrace
from headrace.worker.channel import Closed
from headrace.worker.child_process import FAULTY, kill_runner
from headrace.worker.messages import ChildCrashed, Exit, Up
from headrace.worker.runner import process_kind
from tests.deadline import eventually
from tests.processes import lives
from tests.worker import jobs, rig
from tests.worker.rig import Runner, claim, error_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each child comes from the supervisor")


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield lambda **options: make("fork", is_fork_server=True, **options)


@pytest.fixture
def server(start: Callable[..., Runner]) -> Runner:
    return start()


def stopped(runner: Runner, token: int) -> None:
    """Signal again and again, as the dispatcher does: one that comes before a call that waits does not end it."""

    def ended() -> bool:
        runner.hear(timeout=0.1)
        if not runner.ended(token):
            runner.wake()
        return runner.ended(token)

    eventually(ended, 20)


def parting(runner: Runner) -> list[ChildCrashed | Exit]:
    """What it said of its end, once it has left."""
    assert runner.wait() == 0
    with contextlib.suppress(Closed):
        runner.hear(timeout=0)
    return runner.parting


def test_each_job_has_a_process_of_its_own(server: Runner) -> None:
    pids: set[int] = set()
    for token in range(1, 21):
        server.one(claim(token, "who"))
        pids.add(server.value(token)[0])
    assert len(pids) == 20
    assert server.pid not in pids
    server.channel.send(Exit())
    assert parting(server) == []


def test_one_without_room_for_the_next_child_leaves_without_a_traceback(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    forks: list[int] = []

    def full() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, "no room")

    def fill() -> None:
        forks.append(1)
        if len(forks) == 2:
            os.fork = full

    monkeypatch.setattr(jobs.app, "before_fork_hooks", [fill])
    server = start()
    assert server.one(claim(1, "add", 1, 1)).ended.kind == "succeeded"
    assert server.wait() == FAULTY


def test_nothing_of_a_job_reaches_the_next(server: Runner) -> None:
    server.one(claim(1, "serve_tenant", "acme"))
    server.one(claim(2, "serve_tenant", "other"))
    assert (server.value(1), server.value(2)) == ("nobody", "nobody")


def test_what_threads_say_at_the_end_of_a_job_does_not_ruin_the_channel(start: Callable[..., Runner]) -> None:
    """A child left amid the note of a thread that had waited for its turn: the next job's end was part of that note."""
    for _ in range(3):
        server = start()
        server.run(claim(1, "leaves_speakers"))
        server.speechless()
        assert server.done(1).ended.kind == "succeeded"
        assert server.one(claim(2, "add", 1, 1)).ended.kind == "succeeded"


def test_recalls_that_one_child_heard_count_for_the_next(server: Runner) -> None:
    for token in range(1, 8):
        server.run(claim(100 + token, "touch", "/nowhere/at/all"))
        # Whoever is quicker: a job that began is let end.
        if not server.recall(1):
            server.done(100 + token)
        assert server.one(claim(token, "add", token)).ended.kind == "succeeded"
        assert server.value(token) == token + 1


def test_a_child_knows_of_all_that_was_taken_back_before_it(server: Runner, tmp_path: Path) -> None:
    """With more than 255 recalls it waited for those of which it did not know, and no job of this runner began again."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    for held in (1, 2, 3):
        server.run(claim(held, "gated", str(gate)))
        server.started(held)
        # As many as the socket has room for.
        for token in range(100):
            server.run(claim(1000 * held + token, "noop"))
            assert server.recall(1) == 1
        gate.write_text("on")
        server.done(held)
    # The next child hears of the last ones, and tells the one after it.
    for token in (4, 5):
        assert server.one(claim(token, "add", token)).ended.kind == "succeeded"


@pytest.mark.parametrize(("reason", "kind"), [("soft", "failed"), ("cancel", "cancelled")])
def test_a_stop_reaches_the_child(server: Runner, reason: str, kind: str) -> None:
    for token in (1, 2):
        server.run(claim(token, "spin_on"))
        server.started(token)
        server.stop(token, reason)
        stopped(server, token)
        assert server.done(token).ended.kind == kind
    assert server.one(claim(3, "add", 1)).ended.kind == "succeeded"


def test_a_stop_that_comes_before_its_job_is_not_lost(server: Runner) -> None:
    for token in range(1, 31):
        server.run(claim(token, "spin", 60.0))
        # It may come while there is no child, before its handler is there, or while the job runs.
        server.stop(token, "cancel")
        stopped(server, token)
        assert server.done(token).ended.kind == "cancelled", token


@pytest.mark.parametrize(
    ("task", "args", "fell"),
    [("segfault", (), (signal.SIGSEGV, 0)), ("exits", (0,), (0, 0)), ("exits", (3,), (0, 3)), ("dies", (), (9, 0))],
)
def test_a_child_that_falls_is_told(server: Runner, task: str, args: tuple[int, ...], fell: tuple[int, int]) -> None:
    server.noisy = True
    server.run(claim(1, task, *args))
    (told,) = parting(server)
    assert isinstance(told, ChildCrashed)
    assert (told.signal, told.code) == fell
    assert told.memory > 0
    assert not server.ended(1)


def test_a_child_that_falls_is_told_with_its_own_memory(server: Runner) -> None:
    server.noisy = True
    # The child has all of this process in its memory.
    most = psutil.Process().memory_info().rss + (200 << 20)
    server.one(claim(1, "large", 400))
    server.run(claim(2, "segfault"))
    (told,) = parting(server)
    assert isinstance(told, ChildCrashed)
    assert 0 < told.memory < most, "the job before it is not counted"
    assert not server.ended(2)


def test_what_a_job_leaves_running_makes_the_forker_leave(server: Runner) -> None:
    server.one(claim(1, "leaves", False))
    pid = server.value(1)
    assert parting(server) == [Exit()]
    # The supervisor buries the group, whose number nobody else can have while one of it lives.
    assert os.getpgid(pid) == server.pid
    os.killpg(server.pid, signal.SIGKILL)
    eventually(lambda: not lives(pid), 20)


def test_what_a_job_left_and_has_ended_is_no_matter(server: Runner) -> None:
    server.one(claim(1, "leaves", True))
    assert server.one(claim(2, "add", 1)).ended.kind == "succeeded"
    assert server.parting == []


def test_a_forker_leaves_when_its_dispatcher_is_gone(server: Runner) -> None:
    server.one(claim(1, "noop"))
    server.channel.close()
    assert server.wait() == 0


def test_a_job_that_leads_a_group_of_its_own_ends_with_the_forker(server: Runner) -> None:
    server.run(claim(1, "leads"))
    server.until(lambda: any(say.lines for say in server.said), "its pid")
    pid = int(server.said[-1].lines[0])
    kill_runner(server.pid, is_fork_server=True)
    eventually(lambda: not lives(pid), 20, what="its process is gone")


@pytest.mark.parametrize("task", ["who_stays", "leads"])
def test_a_group_ends_with_the_supervisor(tmp_path: Path, task: str) -> None:
    """A process between the test and the fork server is its supervisor, and is killed."""
    read, write = os.pipe()
    supervisor = os.fork()
    if not supervisor:
        try:
            one = Runner("fork", is_fork_server=True)
            one.run(claim(1, task))
            one.until(lambda: any(say.lines for say in one.said), "its pid")
            os.write(write, f"{one.pid} {one.said[-1].lines[0]}".encode())
            signal.pause()
        finally:
            os._exit(1)
    pids = [int(word) for word in os.read(read, 100).split()]
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    eventually(lambda: not any(lives(pid) for pid in pids), 20, what="fork server and child are gone")


def test_hooks_surround_each_child(start: Callable[..., Runner]) -> None:
    app = Headrace()
    say = jobs.to_stdout.function
    app.tasks = jobs.app.tasks
    app.before_fork(lambda: say("before"))
    app.after_fork_child(lambda: say("child"))
    app.after_fork_parent(lambda: say("parent"))
    one = start(app=app)
    one.one(claim(1, "noop"))
    assert one.leave() == 0
    assert sorted(one.stdout().split()) == sorted(["before", "child", "parent"] * 2)


def test_the_first_child_says_that_it_is_up_where_a_hook_runs_in_it(start: Callable[..., Runner]) -> None:
    app = Headrace()
    app.tasks = jobs.app.tasks
    app.after_fork_child(lambda: None)
    one = start(app=app)
    one.until(lambda: one.parting, "that it is up")
    for token in (1, 2):
        one.one(claim(token, "noop"))
    assert one.leave() == 0
    assert one.parting == [Up()]


def test_a_hook_that_fails_is_no_fault_of_a_job(start: Callable[..., Runner]) -> None:
    app = Headrace()
    app.tasks = jobs.app.tasks
    app.after_fork_child(lambda: 1 / 0)
    one = start(app=app)
    one.noisy = True
    one.run(claim(1, "noop"))
    assert parting(one) == [ChildCrashed(0, 70, one.parting[0].memory)]  # type: ignore[union-attr]
    assert rig.take_back(one.ticket_read, 9) == 1, "it was not begun"


def test_an_application_with_exit_hooks_has_none() -> None:
    app = Headrace()
    assert process_kind.lasts(app)
    app.on_exit(time.monotonic)
    assert not process_kind.lasts(app)


def test_some_children_are_profiled(start: Callable[..., Runner]) -> None:
    one = start(profiled=True)
    for token in range(1, 70):
        one.one(claim(token, "noop"))
    assert [found.number for found in one.found] == [1, 2, 3, 4, 65]


def test_a_failure_is_told_as_everywhere(server: Runner) -> None:
    assert error_of(server.one(claim(1, "fail", "value"))).type == "ValueError"
