"""The process that keeps the worker's pid once the image that had it has left.

A process manager watches one pid. The first image has it, and never gives it up: when its own jobs have ended it
becomes this, which is an interpreter without the application. (With ``--reload`` it is this from the start.)

One thread; signals are values in a queue that one loop reads. Its duties:

1. start images, one after another, as ``succession`` says;
2. pass on signals;
3. reap, as the first process of a container must;
4. end with the last image, and with its exit code.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from headrace.worker.forking import child_process, standard_streams
from headrace.worker.forking.child_process import reap
from headrace.worker.forking.standard_streams import STREAMS, log
from headrace.worker.reload.handover import Reload, Succession
from headrace.worker.reload.image_launch import Image, Launch, Words

# How a process that carries on learns what there is to carry on.
STATE = "HEADRACE_ANCHOR"
SAME_SIGNAL = 1.0


class LogForm(msgspec.Struct, frozen=True):
    """How the log is written: the arguments of ``headrace.cli.logs.configure``."""

    shape: str
    level: int
    secrets: list[str]


class Anchor:
    """Runs in the main thread of a process that has no other; returns when no image is left."""

    def __init__(self, succession: Succession) -> None:
        """Make one that looks after these images, whose loop, if they had one, has ended."""
        self.succession = succession
        self._selector = succession.selector = selectors.DefaultSelector()
        succession.stop_wanted, succession.retire = self._asked_to_stop, None
        for image in succession.images:
            succession.adopt(image)
        self._last_signal = 0.0
        # With --reload: the watch over the files.
        self.duty: Reload | None = None

    def run(self) -> int:
        """Go on until the last image has ended; its exit code."""
        STREAMS.install()
        self._listen()
        self._reap()
        while self.wanted:
            duty = float("inf") if self.duty is None else self.duty.next
            due = min(self.succession.next, duty, STREAMS.next)
            pause = None if due == float("inf") else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(pause):
                key.data()
            if time.monotonic() >= STREAMS.next:
                STREAMS.pass_on()
            self.succession.tick(time.monotonic())
            if self.duty is not None:
                self.duty.tick(time.monotonic())
        STREAMS.drain()
        return self.succession.code

    @property
    def wanted(self) -> bool:
        """Whether something is left to look after."""
        return bool(self.succession.images) or (self.duty is not None and self.duty.waits)

    def _listen(self) -> None:
        wake = child_process.listen(child_process.HEARD)
        child_process.disregard()
        child_process.let_in()
        self._selector.register(wake, selectors.EVENT_READ, self._on_signal)

    def _on_signal(self) -> None:
        heard = child_process.heard()
        for number in heard:
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGHUP:
                self.succession.hung_up()
            elif number in child_process.RESIZE:
                self.succession.grow(child_process.RESIZE[signal.Signals(number)] * heard[number])
            elif number in child_process.STOPS:
                self._asked_to_stop(at_once=number == signal.SIGQUIT)

    def _asked_to_stop(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        again = at_once or self.succession.stopping
        if not at_once and again and now - self._last_signal < SAME_SIGNAL:
            return
        self._last_signal = now
        self.succession.stop(again=again)

    def _reap(self) -> None:
        for pid, status, _ in reap():
            self.succession.reaped(pid, status)


class Carried(msgspec.Struct, frozen=True):
    """What of a succession the program learns that carries it on: attributes of :class:`Succession`."""

    limit: float
    current: Image | None
    warming: Image | None
    retiring: dict[int, Image]
    sizes: dict[str, int]
    code: int
    over: bool
    again: bool
    stopping: bool
    reason: str
    given_up: dict[int, float]


def carry_on(state: Succession, form: LogForm, code: int) -> int:
    """The first image has ended, with ``code``: leave, or go on as the anchor of those that live. The exit code."""
    # Those that come from now on wait until the next program can hear them. What came before is heard here.
    child_process.hold_back()
    for key, _ in state.selector.select(0):
        key.data()
    if not state.images:
        return state.code or code
    for sock in state.links():
        sock.set_inheritable(True)
    standard_streams.flush()
    STREAMS.drain()
    carried = Carried(**{name: getattr(state, name) for name in Carried.__struct_fields__})
    # The environment travels as such; this is ASCII, whatever the command line had.
    facts = msgspec.to_builtins((carried, replace(state.launch, environ={}), form), enc_hook=_told)
    environ = {**state.launch.environ, STATE: json.dumps(facts)}
    try:
        # -P: a module of the application's directory must not take the place of Python's own.
        os.execve(sys.executable, [sys.executable, "-P", "-m", "headrace.cli.first_process"], environ)  # noqa: S606
    except OSError as error:
        log.warning(
            "%s cannot be started again (%s): the old code stays in memory", sys.executable, error, code="reload.stays"
        )
        for sock in state.links():
            sock.set_inheritable(False)
    return Anchor(state).run()


def carried_on(facts: str, environ: dict[str, str]) -> tuple[Anchor, LogForm]:
    """The anchor of what :func:`carry_on` left, and how to log."""
    kinds = tuple[Carried, Launch, LogForm]
    carried, launch, form = msgspec.convert(json.loads(facts), kinds, str_keys=True, dec_hook=_reopened)
    state = Succession(replace(launch, environ=environ), **asdict(carried))
    if state.warming is not None:
        state.grant()
    return Anchor(state), form


def _told(link: Any) -> tuple[int, str]:
    return link.fileno(), link.begun.decode()


def _reopened(_: type, link: Any) -> Words:
    number, begun = link
    sock = socket.socket(fileno=number)
    sock.set_inheritable(False)
    return Words(sock, begun.encode())
