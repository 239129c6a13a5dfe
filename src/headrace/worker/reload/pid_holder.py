"""The process that keeps the worker's pid once the image that had it has left.

A process manager watches one pid. The first image has it, and gives it up to nobody: when its own jobs have ended it
becomes this, which is an interpreter without the application. (With ``--reload`` it is this from the start.)

One thread; signals are values in a queue that one loop reads. Its duties:

1. start images, one after another, as ``succession`` says;
2. pass on signals;
3. reap, as the first process of a container must;
4. end with the last image, and with its exit code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.options import Kind
from headrace.worker.forking import signals
from headrace.worker.forking.child_process import reap
from headrace.worker.forking.standard_streams import STREAMS
from headrace.worker.reload.handover import Succession
from headrace.worker.reload.image_launch import Image, Launch
from headrace.worker.reload.image_protocol import Works
from headrace.worker.reload.image_words import Words

if TYPE_CHECKING:
    from headrace.worker.reload.file_watch import Reload

log = logging.getLogger("headrace.worker")

# How a process that carries on learns what there is to carry on.
STATE = "HEADRACE_ANCHOR"
SAME_SIGNAL = 1.0


class LogForm(msgspec.Struct, frozen=True):
    """How the log is written: the arguments of ``headrace.cli.logs.configure``."""

    shape: str
    level: int
    secrets: list[str]


class Founder:
    """The lineage of a worker's first image, which keeps the pid: ``succession`` in the supervisor's loop.

    What a supervisor knows of the images before and after it; its loop calls this. Those of later images have a
    :class:`headrace.worker.reload.image_protocol.Heir` instead.
    """

    def __init__(self, launch: Launch, limit: float, form: LogForm, early: Sequence[int] = ()) -> None:
        """Make one.

        Args:
            early: hang-ups that came before it could hear them.
        """
        self.succession = Succession(launch, limit, self._watch)
        self.form = form
        self._early = early
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._stop: Callable[[], None] = _nothing_to_stop

    @property
    def next(self) -> float:
        """When :meth:`tick` has something to do (monotonic seconds)."""
        return self.succession.next

    def tick(self, now: float) -> None:
        self.succession.tick(now)

    def join(self, selector: selectors.BaseSelector, works: Works) -> None:
        """Put links into the supervisor's selector, whose data are called when they can be read."""
        self._selector, self._stop, self.succession.retire = selector, works.asked_to_stop, works.retire
        if self._early:
            self.hung_up()

    def links(self) -> list[socket.socket]:
        """What its children must close: a link that one of them holds does not end with its image."""
        return [image.link.sock for image in self.succession.images]

    def hung_up(self) -> None:
        """HUP came."""
        if self.succession.hung_up():
            self._stop()

    @property
    def waits(self) -> bool:
        """Whether this image is to claim before another one leaves, so that its runners must be known to work."""
        return False

    def claims(self) -> None:
        """This image serves its queues, and its runners have settled in. Nobody was there before it."""

    def failed(self, reason: str) -> None:
        """It cannot work, and stops. Only an heir is asked for that."""

    def resized(self, kind: Kind, size: int) -> None:
        """Somebody wished that so many of a kind run at once: those that come after this image keep to it."""
        self.succession.resized(kind, size)

    def grow(self, by: int) -> None:
        """So many more were wished of this image, which claims no more."""
        self.succession.grow(by)

    def stop(self, *, again: bool) -> None:
        """This image was asked to stop."""
        self.succession.stop(again=again)

    def reaped(self, pid: int, status: int) -> None:
        """A child ended that is neither dispatcher nor runner."""
        self.succession.reaped(pid, status)

    def _watch(self, image: Image, on: Callable[[], None] | None) -> None:
        watch(self._selector, image, on)

    def carry_on(self, code: int) -> int:
        """The first image has ended: leave, or go on as the anchor of those that live. The exit code."""
        state = self.succession
        # Those that come from now on wait until the next program can hear them. What came before is heard here.
        signals.hold_back()
        for key, _ in self._selector.select(0):
            key.data()
        if not state.images:
            return state.code or code
        for image in state.images:
            image.link.sock.set_inheritable(True)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        STREAMS.drain()
        environ = {**state.launch.environ, STATE: json.dumps(_state(state, self.form))}
        try:
            # -P: a module of the application's directory must not take the place of Python's own.
            os.execve(sys.executable, [sys.executable, "-P", "-m", "headrace.cli.first_process"], environ)  # noqa: S606
        except OSError as error:
            log.warning("%s cannot be started again (%s): the old code stays in memory", sys.executable, error)
            for image in state.images:
                image.link.sock.set_inheritable(False)
        anchor = Anchor(state.launch, state.limit)
        anchor.take_over(state)
        return anchor.run()


class Anchor:
    """Runs in the main thread of a process that has no other; returns when no image is left."""

    def __init__(self, launch: Launch, limit: float) -> None:
        self._selector = selectors.DefaultSelector()
        self.succession = Succession(launch, limit, self._watch)
        self._last_signal = 0.0
        # With --reload: the watch over the files.
        self.duty: Reload | None = None

    def take_over(self, state: Succession) -> None:
        """Look after the images of another loop, which has ended."""
        state.watch, state.retire = self._watch, None
        self.succession = state
        for image in state.images:
            state.adopt(image)

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

    def _watch(self, image: Image, on: Callable[[], None] | None) -> None:
        watch(self._selector, image, on)

    def _listen(self) -> None:
        self._wake, self._alarm = signals.listen(signals.HEARD)
        signals.disregard()
        signals.let_in()
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_signal)

    def _on_signal(self) -> None:
        heard = signals.heard(self._wake)
        for number in heard:
            if number == signal.SIGCHLD:
                self._reap()
            elif number == signal.SIGHUP:
                if self.succession.hung_up():
                    self._asked_to_stop()
            elif number in signals.RESIZE:
                self.succession.grow(signals.RESIZE[signal.Signals(number)] * heard[number])
            elif number in signals.STOPS:
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


def carried_on(facts: dict[str, Any], environ: dict[str, str]) -> tuple[Anchor, LogForm]:
    """The anchor of what :meth:`Founder.carry_on` left, and how to log."""
    launch = Launch(environ=environ, **facts["launch"])
    anchor = Anchor(launch, facts["limit"])
    state = anchor.succession
    state.current, state.warming = _found(facts["current"]), _found(facts["warming"])
    state.retiring = {seen[0]: _image(*seen) for seen in facts["retiring"]}
    state.reason = facts["reason"]
    state.again, state.stopping = facts["again"], facts["stopping"]
    state.over, state.code, state.sizes = facts["over"], facts["code"], facts["sizes"]
    state.given_up = dict(facts["given_up"])
    if state.warming is not None:
        state.grant()
    anchor.take_over(state)
    return anchor, LogForm(**facts["form"])


def _state(state: Succession, form: LogForm) -> dict[str, Any]:
    return {
        "launch": state.launch.facts(),
        "limit": state.limit,
        "form": msgspec.structs.asdict(form),
        "current": _seen(state.current),
        "warming": _seen(state.warming),
        "retiring": [_seen(image) for image in state.retiring.values()],
        "again": state.again,
        "reason": state.reason,
        "stopping": state.stopping,
        "over": state.over,
        "code": state.code,
        "sizes": state.sizes,
        "given_up": list(state.given_up.items()),
    }


def watch(selector: selectors.BaseSelector, image: Image, on: Callable[[], None] | None) -> None:
    """Put the link of an image into a selector whose data are called; None: take it out, if it is there."""
    if on is not None:
        selector.register(image.link, selectors.EVENT_READ, on)
    else:
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(image.link)


def _seen(image: Image | None) -> tuple[int, int, str] | None:
    # JSON is ASCII here.
    return None if image is None else (image.pid, image.link.fileno(), image.link.begun.decode())


def _found(seen: list[Any] | None) -> Image | None:
    return None if seen is None else _image(*seen)


def _image(pid: int, number: int, begun: str) -> Image:
    sock = socket.socket(fileno=number)
    sock.set_inheritable(False)
    return Image(pid, Words(sock, begun.encode()))


def _nothing_to_stop() -> None:
    """Before a supervisor has joined nothing runs."""
