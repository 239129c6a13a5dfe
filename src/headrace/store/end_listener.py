"""The agent that waits for the ends of jobs and workflows: one thread, one connection for an application.

:class:`EndListener` has these duties:

1. Subscribe to the end of each awaited job, then check whether it has ended; notify the waiting callers. Those who
   read changes are notified of each.
2. Each few seconds, check again the jobs that were checked longest ago. An answer shows that the connection lives; a
   missing answer shows that it does not.
3. Connect anew when the connection is lost, and check all again. Give up when the server is away for longer than the
   settings' ``timeout``, as any call does.
4. Send the calls of waiting callers, many in one round trip, so that a thousand of them need no further connections.
5. Leave when there was no wait for a while.
6. Begin anew in a forked child: without the parent's thread, socket and waiting callers.

:class:`EndWait` and :class:`EndQuestion` are its records. :class:`EndLink` is one life of the connection: commands,
their replies, and announcements. RESP3 needs one connection for all of it. Where a proxy refuses RESP3, announcements
come over a second connection. The link must not decide which question is asked, or which caller is notified.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import hiredis
import msgspec
from redis import exceptions as driver

from headrace.clock import monotonic
from headrace.errors import ClosedError, HeadraceError
from headrace.protocol.produce import BATCH, Look, end_of
from headrace.protocol.script import Call
from headrace.settings import Settings, microseconds
from headrace.store.connection import packed
from headrace.store.raw_connection import Bell, Lost, RawConnection
from headrace.store.reach import Reach, accepted, fill, loads, missing
from headrace.store.surroundings import in_forks
from headrace.store.url import Target
from headrace.store.verdict import verdict


class EndLink:
    """A connection that is subscribed to the ends of some jobs and workflows, by channel. ``trips``: requests sent."""

    def __init__(self, target: Target, timeout: float) -> None:
        """Connect; each reply takes ``timeout`` seconds at most. Raises redis.exceptions.RedisError, OSError."""
        self.subscribed: set[str] = set()
        self.trips = 0
        self._timeout = timeout
        self._announced: list[tuple[str, str]] = []
        self._replies = self._feed = RawConnection(target, timeout)
        try:
            if _refused(self._replies.ask(("HELLO", "3"))[0]):
                self._feed = RawConnection(target, timeout)
        except BaseException:
            self.close()
            raise

    def run(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Replies to calls, in their order; an error reply is the exception that it is. Cost: one round trip."""
        replies = self.ask([call.command() for call in calls])
        if absent := missing(calls, replies):
            scripts = loads([calls[n] for n in absent])
            answers = self.ask([*scripts, *(calls[n].command() for n in absent)])
            fill(replies, absent, answers[: len(scripts)], answers[len(scripts) :])
        return replies

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands and wait for their replies; what is announced meanwhile is kept for :meth:`hear`."""
        self._send(self._replies, commands)
        replies: list[Any] = []
        while len(replies) < len(commands):
            if not self._is_announcement(message := self._replies.wait(), self._replies):
                replies.append(message)
        return replies

    def subscribe(self, channels: Sequence[str]) -> None:
        """Have these channels announced from now on. Cost: one round trip. Raises RedisError: the server refuses."""
        self._send(self._feed, [("SUBSCRIBE", *channels)])
        self.subscribed.update(channels)
        left = len(channels)
        while left:
            message = self._feed.wait()
            if _refused(message):
                raise message
            left -= self._is_announcement(message, self._feed) and message[0] == b"subscribe"

    def unsubscribe(self, channels: Sequence[str]) -> None:
        """Have nothing announced there any more; no reply is waited for."""
        self._send(self._feed, [("UNSUBSCRIBE", *channels)])
        self.subscribed.difference_update(channels)

    def hear(self, bell: Bell, seconds: float) -> list[tuple[str, str]]:
        """What was announced where; waits for the first until ``seconds`` are over or the bell rings. Raises Lost."""
        # What came together with a reply lies in a parser, where no poll would find it.
        self._receive()
        if not self._announced:
            bell.wait(self._wires(), seconds)
            self._receive()
        announced, self._announced = self._announced, []
        return announced

    def close(self) -> None:
        for wire in self._wires():
            wire.close()

    def _wires(self) -> list[RawConnection]:
        return [self._replies] if self._feed is self._replies else [self._replies, self._feed]

    def _send(self, wire: RawConnection, commands: Sequence[Sequence[Any]]) -> None:
        self.trips += 1
        wire.sock.settimeout(self._timeout)
        wire.sock.sendall(b"".join(packed(commands)))

    def _receive(self) -> None:
        for wire in self._wires():
            wire.sock.settimeout(0)
            for message in wire.receive():
                if not self._is_announcement(message, wire):
                    raise Lost(f"the server said what it was not asked: {message!r}")
            wire.sock.settimeout(self._timeout)

    def _is_announcement(self, message: Any, wire: RawConnection) -> bool:
        pushed = isinstance(message, hiredis.PushNotification)
        if not pushed and (wire is self._replies or _refused(message)):
            return False
        if message[0] == b"message":
            channel, word = cast(list[bytes], message)[1:3]
            self._announced.append((channel.decode(), word.decode()))
        return True


def _refused(reply: Any) -> bool:
    return isinstance(reply, driver.RedisError)


Tell: TypeAlias = Callable[[Any], object]


class EndWait(msgspec.Struct):
    """A job or workflow that is waited for, and who is to be told of its end.

    Attributes:
        readers: who of them is to be told of each change.
        seen: what the last look has seen; None: it has changed since, or a reader was not told yet.
    """

    look: Look
    tells: set[Tell]
    readers: set[Tell] = msgspec.field(default_factory=set[Tell])
    seen: Any = None


class EndQuestion(msgspec.Struct):
    """Calls of one who waits, and who is to be told what came of them."""

    calls: Sequence[Call[Any]]
    tell: Tell


class LinkLife(msgspec.Struct):
    """One thread: what wakes it, whether it is to end, its connection, and how often that failed in a row."""

    bell: Bell = msgspec.field(default_factory=Bell)
    over: threading.Event = msgspec.field(default_factory=threading.Event)
    attempt: int = 0
    link: EndLink | None = None
    thread: threading.Thread | None = None


# A job is looked at again this often (seconds), and this many are at most.
RECHECK = 5.0
LOOKS = 1000
CHANGE = "~"  # a change that does not end the job is announced as this
IDLE = 5.0  # without anything to wait for, the connection is kept for so long (seconds)
SPARE = 60.0  # announcements are asked for longer than until the next look (seconds), which may be late


class EndListener(Reach):
    """See the module. ``fault``: why there is no connection; empty while there is one, or nothing to wait for."""

    def __init__(self, url: str, settings: Settings, shard: int = 0, number: str = "1") -> None:
        super().__init__(url, settings, shard, number)
        self._begin()
        in_forks(self)

    def _begin(self) -> None:
        # Guards all that follows but `_removed`: a finalizer, which adds to that, may run anywhere and must not wait.
        self._lock = threading.Lock()
        self._life: LinkLife | None = None
        self._first = False
        self.fault = ""
        self._waits: dict[str, EndWait] = {}
        self._due: deque[str] = deque()
        self._left: list[str] = []
        self._questions: deque[EndQuestion] = deque()
        self._removed: deque[tuple[Sequence[str], Tell]] = deque()

    def add(self, looks: Sequence[tuple[str, Look]], tell: Tell) -> None:
        """Call ``tell((id, state))`` once for each id when it has ended or is not stored; ``tell(error)`` on a failure.
        ``tell`` is called by the listening thread, and must not wait. Raises ClosedError: the interpreter ends.
        """
        if sys.is_finalizing():
            raise ClosedError("the interpreter ends, and no thread listens any more; what this waits for goes on")
        with self._lock:
            self._wake()
            for id, look in looks:
                wait = self._waits.get(id)
                if wait is None:
                    self._waits[id] = EndWait(look, {tell})
                    self._due.append(id)
                else:
                    wait.tells.add(tell)

    def follow(self, id: str, look: Look, tell: Tell) -> None:
        """As :meth:`add`, and ``tell((id, "~"))`` soon and then after each change that ``look`` has announced."""
        self.add([(id, look)], tell)
        with self._lock:
            if (wait := self._waits.get(id)) is not None:
                wait.look, wait.seen = look, None
                wait.readers.add(tell)
                self._due.append(id)

    def remove(self, ids: Sequence[str], tell: Tell) -> None:
        """``tell`` is not to be called any more for these; it may be once more. Never waits, not even for a lock."""
        self._removed.append((ids, tell))

    def ask(self, calls: Sequence[Call[Any]], tell: Tell) -> None:
        """Send calls over the listener's connection, and ``tell`` the list of their values, or an error."""
        with self._lock:
            self._wake()
            self._questions.append(EndQuestion(calls, tell))

    def first(self) -> bool:
        """Whether the caller is alone, and may ask over a connection of the store; :meth:`second` ends that."""
        if sys.is_finalizing():
            return True  # no thread runs any more that would ask, and one may hold the lock for ever
        with self._lock:
            if self._life is not None or self._first:
                return False
            self._first = True
            return True

    def second(self) -> None:
        self._first = False

    def close(self) -> None:
        with self._lock:
            life = self._life
            self._leave(_closed())
        if life is not None and life.thread is not None and life.thread is not threading.current_thread():
            life.thread.join(2 * self.settings.timeout)

    def begin_anew(self) -> None:
        life = self._life
        self._begin()
        with contextlib.suppress(Exception):
            if life is not None:
                life.bell.close()
                if life.link is not None:
                    life.link.close()

    def _wake(self) -> None:
        """See to it that the thread looks, when the caller has released the lock. First: it may raise RuntimeError."""
        if self._life is None:
            life = LinkLife()
            life.thread = life.bell.start(partial(self._run, life), "headrace-ends")
            self._life = life
        self._life.bell.ring()

    def _leave(self, error: Exception | None = None) -> None:
        life, self._life, self.fault = self._life, None, ""
        waits, self._waits, questions, self._questions = self._waits, {}, self._questions, deque()
        self._due.clear()
        for tell in (*(tell for wait in waits.values() for tell in wait.tells), *(one.tell for one in questions)):
            tell(error)
        if life is not None:
            life.over.set()
            life.bell.ring()

    def _run(self, life: LinkLife) -> None:
        deadline, error = 0.0, HeadraceError("the thread that listens for ends has failed; see its traceback")
        try:
            while not life.over.is_set():
                try:
                    self._serve(life)
                except (driver.RedisError, OSError, Lost) as lost:
                    fault = driver.ConnectionError(str(lost)) if isinstance(lost, Lost) else lost
                    life.attempt += 1
                    deadline = deadline if life.attempt > 1 else monotonic() + self.settings.timeout
                    self.fault = str(fault)
                    life.over.wait(self.give_up_or_wait(fault, life.attempt, deadline, "SUBSCRIBE"))
                    self.try_to_revive(life.attempt)
        except HeadraceError as given_up:
            error = given_up
        finally:
            with self._lock:
                if self._life is life:
                    self._leave(error)
            life.bell.close()

    def _serve(self, life: LinkLife) -> None:
        """Hear over one connection until there is nothing to wait for. Raises what ended the connection."""
        link = life.link = EndLink(self.target, self.attempt_time)
        try:
            self.check_server(accepted(link.ask([("INFO", "server"), ("INFO", "memory")])))
            greeting = self.greeting()
            self.check_schema(greeting.parse(accepted(link.run([greeting]))[0]))
            with self._lock:
                self._due = deque(self._waits)
                self.fault = ""
            self._live(life, link)
        finally:
            life.link = None
            self.sent += link.trips
            link.close()

    def _live(self, life: LinkLife, link: EndLink) -> None:
        looked = used = monotonic()
        while True:
            with self._lock:
                if self._life is not life:
                    return
                self._forget_removed()
                now = monotonic()
                if self._waits or self._questions:
                    used = now
                elif now - used >= IDLE:
                    self._leave()
                    return
                if now - looked >= RECHECK:
                    looked = now
                    self._due.extend(itertools.islice(self._waits, LOOKS))
            if self._due or self._questions or self._left:
                self._round(link)
                life.attempt = 0
            seconds = 0.0 if self._due or self._questions else min(looked + RECHECK, used + IDLE) - now
            for channel, word in link.hear(life.bell, seconds):
                (self._tell_change if word == CHANGE else self._tell)(channel[len(self.keys.done("")) :], word)

    def _forget_removed(self) -> None:
        while self._removed:
            ids, tell = self._removed.popleft()
            for id in ids:
                if (wait := self._waits.get(id)) is not None:
                    wait.tells.discard(tell)
                    wait.readers.discard(tell)
                    if not wait.tells:
                        del self._waits[id]
                        self._left.append(id)

    def _round(self, link: EndLink) -> None:
        ids, questions, gone = self._batch()
        try:
            if gone := [channel for channel in map(self.keys.done, gone) if channel in link.subscribed]:
                link.unsubscribe(gone)
            if new := [channel for channel in map(self.keys.done, ids) if channel not in link.subscribed]:
                link.subscribe(new)
            ready = microseconds(SPARE + RECHECK * (2 + len(self._waits) // LOOKS))
            looks = [look(self.keys, id, ready) for id, look in ids.items()]
            calls = [*looks, *(call for question in questions for call in question.calls)]
            replies = iter(self._values(calls, link.run(calls)))
        except BaseException:
            with self._lock:
                self._questions.extendleft(reversed(questions))
                if self._life is None:
                    self._leave(_closed())
                else:
                    self._life.bell.ring()
            raise
        for id in ids:
            seen = next(replies)
            if word := seen if isinstance(seen, Exception) else end_of(seen):
                self._tell(id, word)
            else:
                self._tell_change(id, seen)
        for question in questions:
            question.tell([next(replies) for _ in question.calls])

    def _batch(self) -> tuple[dict[str, Look], list[EndQuestion], list[str]]:
        ids: dict[str, Look] = {}
        questions: list[EndQuestion] = []
        with self._lock:
            while self._due and len(ids) < BATCH:
                if (wait := self._waits.pop(id := self._due.popleft(), None)) is not None:
                    # The last one in the order of the dictionary was looked at last.
                    self._waits[id] = wait
                    ids[id] = wait.look
            room = BATCH
            while self._questions and room > 0:
                questions.append(self._questions.popleft())
                room -= len(questions[-1].calls)
            gone, self._left = [id for id in self._left if id not in self._waits], []
        return ids, questions, gone

    def _values(self, calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
        """Replies as values, those refused for good as errors. Raises RedisError: the connection is of no use."""
        found: list[Any] = []
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, driver.RedisError):
                found.append(call.parse(reply))
                continue
            call.script.locate(reply)
            if not isinstance(word := verdict(reply, self.target, call.script.name), HeadraceError):
                raise reply
            found.append(word)
        return found

    def _tell_change(self, id: str, seen: Any) -> None:
        with self._lock:
            wait = self._waits.get(id)
            if wait is None or not wait.readers or wait.seen == seen:
                return
            wait.seen = None if seen == CHANGE else seen
            readers = [*wait.readers]
        for tell in readers:
            tell((id, CHANGE))

    def _tell(self, id: str, word: str | Exception) -> None:
        with self._lock:
            wait = self._waits.pop(id, None)
            self._left.append(id)
        for tell in () if wait is None else wait.tells:
            tell(word if isinstance(word, Exception) else (id, word))


def _closed() -> ClosedError:
    return ClosedError("the application was closed during this wait, and what it waits for goes on")
