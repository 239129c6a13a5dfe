"""A dispatcher's way to the store: what is due goes out in one round trip, and is sent again until it is answered.

Owns the three connections of a worker and rebuilds all of them together when one fails: ``link`` for requests and their
replies, ``waker`` that sleeps on the queues' wake-up keys, ``mail`` that hears of cancellations.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions as driver

from headrace.connection import pause_before, verdict
from headrace.errors import ServerError
from headrace.script import Call, load
from headrace.url import Target, parse
from headrace.worker.link import Link

log = logging.getLogger("headrace.worker")

Step = tuple[Call[Any], Callable[[Any], None]]

WAKE_WAIT = 120.0
# What a worker hears when something was broadcast to it.
CALLED = "@"
# What it hears when a pause was given an end, of which renewals tell.
HURRY = "renew"
# Every script that a dispatcher calls.
SCRIPTS = (
    "claim", "settle", "register", "renew", "reclaim", "retire", "promote", "sweep", "unpark", "note",
    "outputs", "reserve", "graft", "tend", "lapse", "resume_due",
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
        self.mailed = mailed
        self.stir = stir
        self._watched = watched
        self._link: Link | None = None
        self._waker: Link | None = None
        self._mail: Link | None = None
        self._inflight: list[Step] = []
        self._connect_at = 0.0
        self._failures = 0

    @property
    def idle(self) -> bool:
        """Whether a request can be sent now."""
        return self._link is not None and not self._inflight

    @property
    def next(self) -> float:
        """When a connection must be tried again, or a reply is overdue (monotonic seconds)."""
        if self._link is None:
            return self._connect_at
        return min((link.deadline for link in (self._link, self._waker) if link and link.busy), default=float("inf"))

    def send(self, steps: list[Step]) -> None:
        """Send calls in one round trip; each handler gets its reply, whenever that comes."""
        self._inflight = steps
        self._resend()

    def keep(self, now: float) -> None:
        """Notice overdue replies; connect again when it is time."""
        if self._link is not None:
            if now >= self.next:
                self._fail(driver.TimeoutError("a reply is overdue"))
            return
        if now < self._connect_at:
            return
        if self._failures >= 2 and self.revive is not None:
            try:
                self.target = parse(self.revive())
            except ServerError as error:
                self._fail(error)
                return
        try:
            self._link = Link(self.target, [load(name) for name in SCRIPTS])
            self._watched.watch(self._link, self._on_reply, urgent=True)
            self._waker = Link(self.target)
            self._waker.identify()
            self._watched.watch(self._waker, self._on_wake, urgent=True)
        except (driver.RedisError, OSError) as error:
            self._fail(error)
            return
        if self.channel:
            self.subscribe(self.channel)
        if self._failures:
            log.info("connected to %s again", self.target.shown)
        self._failures = 0
        # What was under way goes out again with its numbers, so that a lost reply changes nothing.
        self._resend()

    def subscribe(self, channel: str) -> None:
        """Hear of cancellations on this channel. Waits for one round trip."""
        if self._mail is not None:
            self._watched.unwatch(self._mail)
            self._mail.close()
        self.channel = channel
        try:
            self._mail = Link(self.target)
            self._mail.send([("SUBSCRIBE", channel)])
            self._mail.receive()
            self._watched.watch(self._mail, self._on_mail, urgent=True)
            # What was said while nobody listened: see what there is.
            self.mailed(CALLED)
            self.mailed(HURRY)
        except (driver.RedisError, OSError) as error:
            self._fail(error)

    def arm(self, keys: Sequence[str], claim: Step) -> None:
        """Sleep on wake-up keys, and claim when woken: the server runs the claim as soon as the sleep ends.

        Waiting for the wake-up's reply before sending the claim would add a trip to each idle job's delay. Until the
        claim is answered no other may be sent, so that its number stays the newest and a lost reply can be repeated.
        """
        if self._waker is None or self.armed is not None:
            return
        self.armed = claim
        try:
            self._waker.send([("BZPOPMIN", *keys, WAKE_WAIT), claim[0].command()], WAKE_WAIT + self.patience)
        except (driver.RedisError, OSError) as error:
            self._fail(error)

    def disarm(self) -> None:
        """End the sleep. The claim is made all the same, and answered: only so is it known what it brought. Waits."""
        if self._waker is None or self.armed is None:
            return
        try:
            link = Link(self.target)
            link.send([("CLIENT", "UNBLOCK", self._waker.id)])
            link.receive()
            link.close()
        except (driver.RedisError, OSError) as error:
            self._fail(error)

    def _resend(self) -> None:
        if not self._inflight or self._link is None:
            return
        try:
            self._link.send([call.command() for call, _ in self._inflight], self.patience)
        except (driver.RedisError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Throw every connection away: a late reply must not answer another question."""
        for link in (self._link, self._waker, self._mail):
            if link is not None:
                self._watched.unwatch(link)
                link.close()
        self._link = self._waker = self._mail = None
        if self.armed is not None:
            self._inflight.append(self.armed)
            self.armed = None
        self._failures += 1
        self._connect_at = time.monotonic() + pause_before(self._failures, random.random())
        if self._failures in (1, 5) or self._failures % 30 == 0:
            log.warning("the store does not answer (%s); trying again", error)

    def _on_reply(self) -> None:
        if self._link is None:
            return
        try:
            replies = self._link.receive()
        except (driver.RedisError, OSError) as error:
            self._fail(error)
            return
        steps, self._inflight = self._inflight, []
        failed: list[tuple[Step, Exception]] = []
        for step, reply in zip(steps, replies, strict=True):
            if isinstance(reply, Exception):
                failed.append((step, reply))
            else:
                step[1](step[0].parse(reply))
        if failed:
            self._refused(failed)

    def _refused(self, failed: list[tuple[Step, Exception]]) -> None:
        """The server answered with errors: repeat what failed, after a pause unless only the script was missing."""
        (call, _), error = failed[0]
        word = verdict(error, self.target, call.script.name)
        self._inflight = [step for step, _ in failed]
        if word == "load" and self._link is not None:
            self._link.load([call.script for call, _ in self._inflight])
            self._resend()
            return
        if word != "again":
            log.error("%s", word)
        self._fail(error)

    def _on_wake(self) -> None:
        if self._waker is None:
            return
        self.stir()
        try:
            replies = self._waker.receive()
        except (driver.RedisError, OSError) as error:
            self._fail(error)
            return
        if (
            len(replies) < 2
            or self.armed is None
            or isinstance(replies[0], Exception)
            or isinstance(replies[1], Exception)
        ):
            wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
            self._fail(wrong or driver.ConnectionError("the server closed the connection"))
            return
        (call, handler), self.armed = self.armed, None
        self.woken = replies[0] is not None
        handler(call.parse(replies[1]))

    def _on_mail(self) -> None:
        if self._mail is None:
            return
        try:
            messages = self._mail.heard()
        except (driver.RedisError, OSError) as error:
            self._fail(error)
            return
        for message in messages:
            if message[0] == b"message":
                self.mailed(message[2].decode())
