"""A dispatcher's way to the store: what is due goes out in one round trip, and is sent again until it is answered.

Owns the three connections of a worker and has all of them made anew together when one fails (connector.py): ``main``
for requests and their replies, ``waker`` that sleeps on the queues' wake-up keys, ``mail`` that hears of cancellations.
Nothing here waits: the dispatcher must be free to stop its runners before its lease ends, whatever the network does.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from redis import exceptions as driver

from headrace.errors import HeadraceError
from headrace.protocol.script import Script, load
from headrace.store.connection import pause_before, verdict
from headrace.store.url import Target
from headrace.worker.dispatcher.dispatcher_events import (
    CALLED,
    HURRY,
    Connected,
    Disconnected,
    Event,
    Mail,
    Ready,
    Replied,
    Step,
    Woken,
)
from headrace.worker.dispatcher.links.connector import Connector, Links
from headrace.worker.dispatcher.links.log_folding import Folded
from headrace.worker.dispatcher.links.store_connection import Link

log = logging.getLogger("headrace.worker")

# What else is asked on the connection for requests.
Aside = Literal["load", "unblock"]

WAKE_WAIT = 120.0
# Every script that a dispatcher calls.
SCRIPTS = (
    "claim", "settle", "register", "renew", "reclaim", "retire", "promote", "sweep", "unpark", "note",
    "outputs", "reserve", "graft", "tend", "lapse", "resume_due", "holds", "restore",
)  # fmt: skip


class Selectors:
    """What the loop waits for: ``all`` that it listens to, and ``urgent``, the part that is not runners."""

    def __init__(self) -> None:
        self.all = selectors.DefaultSelector()
        self.urgent = selectors.DefaultSelector()

    def watch(self, source: Any, handler: Callable[[], None], *, urgent: bool = False) -> None:
        self.all.register(source, selectors.EVENT_READ, handler)
        if urgent:
            self.urgent.register(source, selectors.EVENT_READ, handler)

    def unwatch(self, source: Any) -> None:
        for selector in (self.all, self.urgent):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(source)

    def also_write(self, source: Any, *, wanted: bool) -> None:
        """Call the handler, too, when the source has room for more (or no longer)."""
        key = self.all.get_key(source)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != events:
            self.all.modify(source, events, key.data)

    def select(self, pause: float, gather: float) -> list[Callable[[], None]]:
        """The handlers of what is ready; with ``gather``, what runners say may wait that many seconds."""
        if gather:
            self.urgent.select(gather)
            pause = 0.0
        return [key.data for key, _ in self.all.select(pause)]


class Exchange:
    """Requests to the store, one at a time, each repeated with its numbers until it is answered.

    What it hears goes into the loop's inbox. After the events there are dealt with, the loop calls :meth:`go_on`.

    Attributes:
        channel: on which others write to this incarnation; empty before it is registered.
        revive: brings a private server back, and says where it is; None where the server is somebody else's to run.
            It is called in a thread.
        armed: the claim that the waker will make when it is woken, None when it does not sleep.
    """

    def __init__(
        self,
        target: Target,
        patience: float,
        watched: Selectors,
        inbox: list[Event],
        *,
        revive: Callable[[], str] | None = None,
    ) -> None:
        self.target = target
        self.patience = patience
        self.channel = ""
        self.armed: Step | None = None
        self.revive = revive
        self._inbox = inbox
        self._watched = watched
        self._connector = Connector(patience, [load(name) for name in SCRIPTS])
        watched.watch(self._connector, self._on_connected, urgent=True)
        self._links: Links | None = None
        # Calls that are not answered, and what each reply that is awaited on ``main`` answers.
        self._inflight: list[Step] = []
        self._awaited: list[Step | Aside] = []
        # What goes out before what is held back, a request each; whether such a request is under way.
        self._before: deque[list[Step]] = deque()
        self._held_back: list[Step] = []
        self._goes_ahead = False
        # Whether the loop was told that a request can be sent.
        self._told_ready = False
        self._connect_at = 0.0
        self._failures = 0
        self._said = Folded()

    @property
    def idle(self) -> bool:
        """Whether a request can be sent now."""
        busy = self._inflight or self._awaited or self._before or self._held_back
        return self._links is not None and not busy

    @property
    def next(self) -> float:
        """When a connection must be tried again, or a reply is overdue (monotonic seconds)."""
        if self._links is None:
            return float("inf") if self._connector.busy else self._connect_at
        links = self._links
        return min(links.main.deadline, links.waker.deadline, links.mail.deadline)

    def send(self, steps: list[Step]) -> None:
        """Send calls in one round trip; each gets its reply, whenever that comes."""
        self._told_ready = False
        self._inflight = steps
        self._resend()

    def send_first(self, steps: list[Step]) -> None:
        """Send these in one round trip, before what is held back and after those that were given so."""
        self._told_ready = False
        if self._links is not None:
            self._before.append(steps)

    def go_on(self) -> None:
        """Send what was to go first, then what that held back, then tell that there is room for more."""
        if self._inflight or self._links is None:
            return
        self._goes_ahead = bool(self._before)
        if self._before:
            self._inflight = self._before.popleft()
        else:
            self._inflight, self._held_back = self._held_back, []
        self._resend()
        self._tell_ready()

    def _tell_ready(self) -> None:
        if self.idle and not self._told_ready:
            self._told_ready = True
            self._inbox.append(Ready())

    def keep(self, now: float) -> None:
        """Notice overdue replies; connect again when it is time."""
        if self._links is not None:
            if now >= self.next:
                self._fail(driver.TimeoutError("a reply is overdue"), "answer")
        elif not self._connector.busy and now >= self._connect_at:
            self._connector.start(self.target, self.revive if self._failures >= 2 else None)

    def subscribe(self, channel: str) -> None:
        """Hear of cancellations on this channel from now on, and no longer on the one before."""
        before, self.channel = self.channel, channel
        if self._links is not None:
            leave = [("UNSUBSCRIBE", before)] if before else []
            self._post(self._links.mail, [*leave, ("SUBSCRIBE", channel)], self.patience)

    def arm(self, keys: Sequence[str], claim: Step) -> None:
        """Sleep on wake-up keys, and claim when woken: the server runs the claim as soon as the sleep ends.

        Waiting for the wake-up's reply before sending the claim would add a trip to each idle job's delay. Until the
        claim is answered no other may be sent, so that its number stays the newest and a lost reply can be repeated.
        """
        if self._links is None or self.armed is not None:
            return
        self.armed = claim
        commands = [("BZPOPMIN", *keys, WAKE_WAIT), claim[0].command()]
        self._post(self._links.waker, commands, WAKE_WAIT + self.patience)

    def disarm(self) -> None:
        """End the sleep. The claim is made all the same, and answered: only so is it known what it brought.

        Cost: one round trip, on the connection for requests, behind the request that is under way.
        """
        self._told_ready = False
        if self._links is None or self.armed is None or "unblock" in self._awaited:
            return
        self._awaited.append("unblock")
        self._post(self._links.main, [("CLIENT", "UNBLOCK", self._links.waker_id)], self.patience)

    def _post(self, link: Link, commands: Sequence[Sequence[Any]], patience: float) -> None:
        try:
            waited = bool(link.backlog)
            link.send(commands, patience)
            if waited or link.backlog:
                self._watched.also_write(link, wanted=bool(link.backlog))
        except OSError as error:
            self._fail(error, "take a request")

    def _resend(self, scripts: Collection[Script] = ()) -> None:
        """Send what is not answered, after ``scripts``."""
        if self._inflight and self._links is not None:
            self._awaited.extend("load" for _ in scripts)
            self._awaited += self._inflight
            loads = [("SCRIPT", "LOAD", script.text) for script in scripts]
            commands = [*loads, *(call.command() for call, _ in self._inflight)]
            self._post(self._links.main, commands, self.patience)

    def _on_connected(self) -> None:
        made = self._connector.take()
        if isinstance(made, Exception):
            self._fail(made, "be connected to")
            return
        self._links, self.target = made, made.target
        handlers = (self._on_reply, self._on_wake, self._on_mail)
        for link, handler in zip(made.all, handlers, strict=True):
            self._watched.watch(link, handler, urgent=True)
        if self.channel:
            self._post(made.mail, [("SUBSCRIBE", self.channel)], self.patience)
            if self._links is not made:
                # It is gone already. What is held back now would be lost at the next connection.
                return
        # What was under way goes out again with its numbers, so that a lost reply changes nothing.
        self._held_back, self._inflight = self._inflight, []
        self._inbox.append(Connected())

    def _fail(self, error: Exception, doing: str) -> None:
        """Throw every connection away: a late reply must not answer another question.

        The next attempt comes after a pause, which grows until a request is answered: a server that can be connected
        to and refuses every request is no better than one that is gone.
        """
        if self._links is not None:
            for link in self._links.all:
                self._watched.unwatch(link)
            self._links.close()
            self._inbox.append(Disconnected())
        self._links, self._awaited, self._told_ready = None, [], False
        if self._goes_ahead:
            # The next connection asks anew.
            self._inflight, self._goes_ahead = [], False
        self._inflight, self._held_back = self._inflight + self._held_back, []
        self._before.clear()
        if self.armed is not None:
            self._inflight.append(self.armed)
            self.armed = None
        self._failures += 1
        now = time.monotonic()
        self._connect_at = now + pause_before(self._failures, random.random())
        private = self.revive is not None
        word = error if isinstance(error, HeadraceError) else verdict(error, self.target, doing, private=private)
        refused = isinstance(word, HeadraceError)
        text = str(word) if refused else f"the store does not answer ({error}); trying again"
        for line in self._said.say(text, now):
            log.log(logging.ERROR if refused else logging.WARNING, "%s", line)

    def _answered(self) -> None:
        if self._failures:
            for line in self._said.rest():
                log.warning("%s", line)
            log.info("%s answers again", self.target.shown)
            self._failures = 0

    def _received(self, link: Link, read: Callable[[], list[Any] | None]) -> list[Any]:
        """What has arrived on a connection; nothing while replies are not all there, or where it failed."""
        try:
            if link.backlog:
                link.flush()
                self._watched.also_write(link, wanted=bool(link.backlog))
            return read() or []
        except (driver.RedisError, OSError) as error:
            self._fail(error, "answer")
            return []

    def _replies(self, link: Link) -> list[Any]:
        """All replies that are awaited on a connection. Without a question, only its end can have come."""
        return self._received(link, link.receive if link.busy else link.heard)

    def _on_reply(self) -> None:
        replies = [] if self._links is None else self._replies(self._links.main)
        if not replies:
            return
        awaited, self._awaited, self._inflight = self._awaited, [], []
        failed: list[tuple[Step, Exception]] = []
        unloaded: Exception | None = None
        for what, reply in zip(awaited, replies, strict=True):
            if what == "unblock":
                self._unblocked(reply)
            elif what == "load":
                unloaded = reply if isinstance(reply, Exception) else unloaded
            elif isinstance(reply, Exception):
                failed.append((what, reply))
            else:
                self._inbox.append(Replied(what[1], what[0].parse(reply)))
        if failed:
            self._refused(failed, unloaded)
        elif awaited != ["unblock"] and not self._goes_ahead:
            # What goes ahead reads, which a server may permit that refuses all else.
            self._answered()
        # At once, so that the next request is decided before the replies are read in full.
        self._tell_ready()

    def _refused(self, failed: list[tuple[Step, Exception]], unloaded: Exception | None) -> None:
        """The server answered with errors: repeat what failed, after a pause unless only the script was missing."""
        (call, _), error = failed[0]
        call.script.locate(error)
        self._inflight += [step for step, _ in failed]
        if unloaded is not None:
            self._fail(unloaded, "SCRIPT LOAD")
        elif verdict(error, self.target, call.script.name) == "load":
            self._resend({call.script.sha: call.script for call, _ in self._inflight}.values())
        else:
            self._fail(error, call.script.name)

    def _unblocked(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            # Else a sleep of minutes could not be ended. Without its connection the claim is made at once.
            self._fail(reply, "CLIENT UNBLOCK")
        elif not reply:
            # It did not sleep: its reply is on the way, or it had not begun to.
            self.disarm()

    def _on_wake(self) -> None:
        if self._links is None:
            return
        waker = self._links.waker
        replies = self._received(waker, waker.receive if self.armed is not None else waker.heard)
        if not replies:
            return
        if self.armed is None:
            self._fail(driver.ConnectionError("an answer without a question"), "claim")
            return
        woke, reply = replies
        if isinstance(woke, Exception) or isinstance(reply, Exception):
            self._fail(woke if isinstance(woke, Exception) else reply, "claim")
            return
        (call, handler), self.armed = self.armed, None
        self._inbox.append(Woken(handler, call.parse(reply), woke is not None))

    def _on_mail(self) -> None:
        links = self._links
        for message in [] if links is None else self._received(links.mail, links.mail.heard):
            if self._links is not links:
                return
            if isinstance(message, Exception):
                self._fail(message, "SUBSCRIBE")
            elif message[0] == b"message":
                self._inbox.append(Mail(message[2].decode("utf-8", "replace")))
            elif message[0] == b"subscribe" and message[1].decode() == self.channel:
                # What was said while nobody listened: see what there is.
                self._inbox += [Mail(CALLED), Mail(HURRY)]
