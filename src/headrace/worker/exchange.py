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

from headrace.connection import pause_before, verdict
from headrace.errors import HeadraceError, UrlError
from headrace.script import Call, Script, load
from headrace.url import Target
from headrace.worker.connector import Connector, Links
from headrace.worker.folding import Folded
from headrace.worker.link import Link

log = logging.getLogger("headrace.worker")

Step = tuple[Call[Any], Callable[[Any], None]]
# What else is asked on the connection for requests.
Aside = Literal["load", "unblock"]

WAKE_WAIT = 120.0
# What a worker hears when something was broadcast to it.
CALLED = "@"
# What it hears when a pause was given an end, of which renewals tell.
HURRY = "renew"
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
        events = self.all.select(pause)
        return [key.data for key, _ in events if key.fd in self.all.get_map()]


class Exchange:
    """Requests to the store, one at a time, each repeated with its numbers until it is answered.

    Attributes:
        channel: on which cancellations are announced; empty before the incarnation is registered.
        mailed: called with what others wrote: the id of a job to cancel, or a question (see roster.py).
        stir: called when the armed claim was answered, before the answer is read.
        revive: brings a private server back, and says where it is; None where the server is somebody else's to run.
            It is called in a thread.
        first: asked at each connection for what goes out before all that was under way.
        armed: the claim that the waker will make when it is woken, None when it does not sleep.
        woken: whether the last sleep was ended by a queue, and not by its time or by ``disarm``.
    """

    def __init__(
        self,
        target: Target,
        patience: float,
        watched: Selectors,
        mailed: Callable[[str], None],
        stir: Callable[[], None],
    ) -> None:
        self.target = target
        self.patience = patience
        self.channel = ""
        self.armed: Step | None = None
        self.woken = False
        self.revive: Callable[[], str] | None = None
        self.first: Callable[[], list[Step]] = list
        self.mailed = mailed
        self.stir = stir
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
        self._connect_at = 0.0
        self._failures = 0
        self._said = Folded()

    @property
    def idle(self) -> bool:
        """Whether a request can be sent now."""
        return self._links is not None and not self._inflight and not self._awaited

    @property
    def next(self) -> float:
        """When a connection must be tried again, or a reply is overdue (monotonic seconds)."""
        if self._links is None:
            return float("inf") if self._connector.busy else self._connect_at
        links = self._links
        return min(links.main.deadline, links.waker.deadline, links.mail.deadline)

    def send(self, steps: list[Step]) -> None:
        """Send calls in one round trip; each handler gets its reply, whenever that comes."""
        self._inflight = steps
        self._resend()

    def ahead(self, steps: list[Step]) -> None:
        """Send these next, in one round trip, after those that were given so; called while a reply is read."""
        self._before.append(steps)

    def _go_on(self) -> None:
        """Send what was to go ahead, then what that held back."""
        if self._inflight or self._links is None:
            return
        self._goes_ahead = bool(self._before)
        if self._before:
            self._inflight = self._before.popleft()
        else:
            self._inflight, self._held_back = self._held_back, []
        self._resend()

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
        if first := self.first():
            self._held_back, self._inflight, self._goes_ahead = self._inflight, first, True
        self._resend()

    def _fail(self, error: Exception, doing: str) -> None:
        """Throw every connection away: a late reply must not answer another question.

        The next attempt comes after a pause, which grows until a request is answered: a server that can be connected
        to and refuses every request is no better than one that is gone.
        """
        if self._links is not None:
            for link in self._links.all:
                self._watched.unwatch(link)
            self._links.close()
        self._links, self._awaited = None, []
        if self._goes_ahead:
            # The next connection asks anew.
            self._inflight, self._held_back, self._goes_ahead = self._held_back, [], False
        self._before.clear()
        if self.armed is not None:
            self._inflight.append(self.armed)
            self.armed = None
        self._failures += 1
        now = time.monotonic()
        self._connect_at = now + pause_before(self._failures, random.random())
        word = error if isinstance(error, HeadraceError) else verdict(error, self.target, doing)
        # A private server knows its own password: one that refuses it stands in a directory that was made anew, and is
        # joined as soon as it was looked up.
        refused = isinstance(word, HeadraceError) and not (isinstance(word, UrlError) and self.revive is not None)
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
                what[1](what[0].parse(reply))
        if failed:
            self._refused(failed, unloaded)
        elif awaited != ["unblock"] and not self._goes_ahead:
            # What goes ahead reads, which a server may permit that refuses all else.
            self._answered()
        self._go_on()

    def _refused(self, failed: list[tuple[Step, Exception]], unloaded: Exception | None) -> None:
        """The server answered with errors: repeat what failed, after a pause unless only the script was missing."""
        (call, _), error = failed[0]
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
        self.stir()
        replies = self._replies(self._links.waker)
        if not replies:
            return
        wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if self.armed is None or wrong is not None:
            self._fail(wrong or driver.ConnectionError("an answer without a question"), "claim")
            return
        (call, handler), self.armed = self.armed, None
        self.woken = replies[0] is not None
        handler(call.parse(replies[1]))

    def _on_mail(self) -> None:
        links = self._links
        for message in [] if links is None else self._received(links.mail, links.mail.heard):
            if self._links is not links:
                return
            if isinstance(message, Exception):
                self._fail(message, "SUBSCRIBE")
            elif message[0] == b"message":
                self.mailed(message[2].decode("utf-8", "replace"))
            elif message[0] == b"subscribe" and message[1].decode() == self.channel:
                # What was said while nobody listened: see what there is.
                self.mailed(CALLED)
                self.mailed(HURRY)
