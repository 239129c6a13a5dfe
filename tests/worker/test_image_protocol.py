"""How an image starts another: in which state the new one finds itself, and that no signal to it is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.worker.forking.child_process import HEARD
from headrace.worker.reload import pid_holder
from headrace.worker.reload.handover import Succession
from headrace.worker.reload.image_launch import Heir, Image, Launch, Words
from headrace.worker.reload.pid_holder import LogForm

# Starts an image as a supervisor does, which hears signals by a handler of its own.
STARTS = """
import os, signal, sys
from headrace.worker.reload.image_launch import Launch
from headrace.worker.forking.child_process import HEARD

for number in HEARD:
    signal.signal(number, lambda *_: None)
{before}
image = Launch([sys.executable, "-c", {code!r}], dict(os.environ), os.getcwd(), False, False).start(first=True)
_, status = os.waitpid(image.pid, 0)
print(os.waitstatus_to_exitcode(status), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""


def started(code: str, before: str = "") -> str:
    run = subprocess.run(
        [sys.executable, "-c", STARTS.format(code=code, before=before)],
        capture_output=True, check=True, text=True, timeout=60,
    )  # fmt: skip
    assert not run.stderr
    return run.stdout


def test_a_new_image_hears_signals_though_the_one_that_starts_it_has_blocked_them() -> None:
    blocked = "import signal; print(*signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    out = started(blocked, "signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)")
    theirs, ours = out.splitlines()
    assert not theirs
    assert ours == f"0 {sorted(HEARD)}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_between_fork_and_exec_ends_it(number: int) -> None:
    at_once = f"os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), {int(number)}))"
    assert started("print('runs')", at_once) == f"-{int(number)} []\n"


NO_FORK = """
import errno, os, signal
from headrace.worker.reload.image_launch import Launch

def no():
    raise BlockingIOError(errno.EAGAIN, "no more processes")

os.fork = no
before = len(os.listdir("/dev/fd"))
try:
    Launch(["/bin/true"], {}, "/", False, False).start(first=True)
except OSError as error:
    print(error.strerror, signal.pthread_sigmask(signal.SIG_BLOCK, []), len(os.listdir("/dev/fd")) - before)
"""


def test_a_fork_that_fails_leaves_everything_as_it_was() -> None:
    run = subprocess.run([sys.executable, "-c", NO_FORK], capture_output=True, check=True, text=True, timeout=60)
    assert run.stdout == "no more processes set() 0\n"


class Born(Image, frozen=True):
    """An image in which nothing runs, its end of the link, and the signals that it got."""

    theirs: Words
    got: list[int]

    @classmethod
    def of(cls, pid: int) -> Born:
        mine, theirs = socket.socketpair()
        return cls(pid, Words(mine), Words(theirs), [])

    def signal(self, number: int) -> None:
        self.got.append(number)


class NoLaunch(Launch):
    def start(self, *, first: bool) -> Image:
        raise BlockingIOError("no more processes")


LAUNCH = Launch(["/bin/true"], {}, "/", terminal=False, immune=False)


@pytest.fixture
def born() -> Iterator[list[Born]]:
    made = [Born.of(1001), Born.of(1002)]
    yield made
    for image in made:
        image.link.close()
        image.theirs.close()


def succession(launch: Launch = LAUNCH) -> Succession:
    return Succession(launch, 60)


def test_a_wish_for_new_code_that_finds_no_process_replaces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    state = succession(NoLaunch(["x"], {}, "/", terminal=False, immune=False))
    state.asked()
    assert state.warming is None
    assert "could not be started, so nothing is replaced: no more processes" in caplog.text


def test_a_stop_that_meets_a_claim_forgets_nobody(born: list[Born]) -> None:
    state = succession()
    old, new = born
    state.current, state.warming = old, new
    state.stop(again=False)
    new.theirs.say("claims")
    state._on_words(new)
    assert [image.pid for image in state.images] == [new.pid, old.pid]
    assert [old.got, new.got] == [[signal.SIGTERM]] * 2, "once each"


def test_a_second_stop_kills_images_that_do_not_move(born: list[Born]) -> None:
    """One that was stopped for ever (SIGSTOP) held up the end of the worker, however often that was told to stop."""
    state = succession()
    old, new = born
    state.current, state.retiring = new, {old.pid: old}
    state.stop(again=False)
    state.tick(time.monotonic() + 3600.0)
    state.stop(again=True)
    state.tick(state.next - 1.0)
    assert [old.got, new.got] == [[signal.SIGQUIT], [signal.SIGTERM, signal.SIGQUIT]]
    state.tick(state.next + 1.0)
    assert [old.got[-1], new.got[-1]] == [signal.SIGKILL] * 2


def test_an_image_that_does_not_listen_keeps_nobody_waiting(born: list[Born]) -> None:
    """It may be importing for minutes. What it missed of the sizes it is told when it claims."""
    state = succession()
    _, new = born
    state.warming = new
    for size in range(1, 10_001):
        state.resized("process", size % 7)
        state.grow(1)
    missed, _ = new.theirs.hear()
    assert 0 < len(missed) < 10_000
    while new.theirs.hear()[0]:
        pass
    new.theirs.say("claims")
    state._on_words(new)
    assert new.theirs.hear()[0] == [["size", "process", 10_000 % 7]]


def test_an_image_that_cannot_begin_says_so_and_stops_unless_it_has_claimed(born: list[Born]) -> None:
    image, _ = born
    heir = Heir(image.theirs, first=False)
    assert heir.failed("no database")
    heir.claims()
    assert not heir.failed("no database")
    assert image.link.hear()[0] == [["failed", "no database"], ["claims"]]


def test_half_a_word_survives_the_change_of_the_program(born: list[Born], monkeypatch: pytest.MonkeyPatch) -> None:
    class Executed(Exception):
        pass

    kept: list[Any] = []

    def execve(path: str, arguments: list[str], environ: dict[str, str]) -> None:
        kept.extend(json.loads(environ[pid_holder.STATE]))
        raise Executed

    monkeypatch.setattr(os, "execve", execve)
    image, _ = born
    # Words of a command line may be bytes that are no text, and travel whatever the locale is.
    state = succession(Launch(["/bin/true", "\udce4"], {}, "/", terminal=False, immune=False))
    state.current, state.reason = image, "no model"
    image.theirs.sock.sendall(b'["modules", "a.p')
    assert image.link.hear() == ([], True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with pytest.raises(Executed):
            pid_holder.carry_on(state, LogForm("text", 20, []), 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    heard: list[str] = []
    kept[0]["current"]["link"][0] = image.link.sock.detach()
    next_one, _ = pid_holder.carried_on(json.dumps(kept), {})
    next_one.succession.heard = heard.extend
    image.theirs.sock.sendall(b'y"]\n')
    current = next_one.succession.current
    assert current is not None
    next_one.succession._on_words(current)
    assert (heard, next_one.succession.reason) == (["a.py"], "no model")
    assert next_one.succession.launch == state.launch
    current.link.sock.close()
