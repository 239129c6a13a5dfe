"""A member that is a thread of this process. Owns the thread; the pool starts it, the scheduler gives it calls.

Python cannot end a thread. One that must go is given up: its call fails, another thread takes its place, and its later
results are thrown away.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, Generic, TypeVar, cast

from headrace.clock import monotonic
from headrace.mailbox import Mailbox
from headrace.pool.members import Members
from headrace.pool.state import Call, Member, MemberThread, settle

T = TypeVar("T")


class DeferredResult(Generic[T]):
    """Returned by a call instead of its result: the member is free at once, the caller waits for :meth:`reply`. Code
    may answer from any thread of the process in which the call ran; only the first answer counts.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: Future[T] = Future()

    def reply(self, value: T) -> None:
        with suppress(InvalidStateError):
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a DeferredResult cannot be sent: return it from the call itself, and answer it in the same process"
        )


class ThreadBody:
    def __init__(self, owner: Members, member: Member) -> None:
        self.pid = os.getpid()
        self._owner = owner
        self._scheduler = owner.scheduler
        self._member = member
        self._wake = threading.Lock()
        self._wake.acquire()
        self._thread: MemberThread | None = None
        # Set to end the waiting before a restart.
        self._hurry: Mailbox[None] = Mailbox()
        self._delay = 0.0

    def start(self) -> None:
        self._thread = MemberThread(partial(self._live, self._wake), f"{self._owner.name}-{self._member.id}")
        self._thread.thread.start()

    def deliver(self, _call: Call[Any]) -> bool:
        # Already released means that it is about to look; what it finds is the member's running call.
        try:
            self._wake.release()
        except RuntimeError:
            return True
        return True

    def leave(self) -> None:
        self._hurry.put(None)
        with suppress(RuntimeError):
            self._wake.release()

    def kill(self, reason: str) -> None:
        # A lock of its own for the next thread, so that the one given up can never eat its wake-ups.
        old, self._wake = self._wake, threading.Lock()
        self._wake.acquire()
        self._thread = None
        old_hurry, self._hurry = self._hurry, Mailbox()
        old_hurry.put(None)
        again = self._owner.lost(self._member, reason)
        with suppress(RuntimeError):
            old.release()
        if again is None:
            self._owner.gone(self._member)
        else:
            self._delay = again
            self.start()

    def interrupt(self) -> None:
        """It cannot be."""

    def join(self, timeout: float | None) -> bool:
        return self._thread is None or self._thread.join(timeout)

    def where(self) -> str:
        ident = self._thread.thread.ident if self._thread else None
        frame = sys._current_frames().get(ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else ""

    def disown(self) -> None:
        self._thread = None

    def _live(self, wake: threading.Lock) -> None:
        member, owner = self._member, self._owner
        if not self._prepare(wake):
            if self._wake is wake:
                owner.gone(member)
            return
        call = owner.ready(member)
        while self._wake is wake:
            while call is not None:
                call = self._run(call)
            if member.leaving and member.running is None:
                owner.gone(member, "left")
                return
            wake.acquire()
            call = member.running
            if call is not None and call.lease is not None:
                call = None

    def _prepare(self, wake: threading.Lock) -> bool:
        options = self._owner.options
        while True:
            end = monotonic() + self._delay
            while monotonic() < end:
                with suppress(Empty):
                    self._hurry.get(0.1)
                if self._wake is not wake or self._scheduler.unneeded(self._member):
                    return False
            if options.initializer is None:
                return True
            try:
                options.initializer(*options.initargs)
            except BaseException as error:  # noqa: BLE001 - whatever it raises, this member cannot serve
                again = self._owner.lost(self._member, f"its initializer raised {type(error).__name__}: {error}")
                if again is None or self._wake is not wake:
                    return False
                self._delay = again
            else:
                return self._wake is wake

    def _run(self, call: Call[Any]) -> Call[Any] | None:
        finish, member = self._scheduler.finish, self._member
        if not call.begin():
            return finish(member, call)
        call.sent = True
        fn, args, kwargs = call.fn, call.args, call.kwargs
        assert fn is not None
        assert args is not None
        assert kwargs is not None
        result, error = None, None
        try:
            result = fn(*args, **kwargs)
        except BaseException as raised:  # noqa: BLE001 - the caller gets it, whatever it is
            error = raised
        if type(result) is DeferredResult:
            following = finish(member, call)
            later = cast(DeferredResult[Any], result)  # type: ignore[redundant-cast]  # pyright needs it

            def answered(future: Future[Any]) -> None:
                error = future.exception()
                settle(call, None if error else future.result(), error)

            later.future.add_done_callback(answered)
            return following
        # Who has the answer may count on the member being free. But callbacks run here, and until they end it is not.
        watched = call.watched
        following = None if watched else finish(member, call)
        settle(call, result, error)
        # The error holds this frame; if the frame held it too, they would live until a garbage collection.
        del error, args, kwargs
        return finish(member, call) if watched else following
