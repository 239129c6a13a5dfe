"""A dispatcher's way to the store: what is due goes out in one round trip, and is sent again until it is answered.

Nothing here waits: the dispatcher must be free to stop its runners before its lease ends. An error reply that answers
one call (``verdict.refusal``) goes to the core, which decides when to ask again; the connections (store_links.py) stay.
Where the server refuses to let a worker sleep, the session claims twice a second instead.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from redis import exceptions as driver

from headrace.protocol.script import load
from headrace.store.connection import pause_before
from headrace.store.reach import loads
from headrace.store.url import Target
from headrace.store.verdict import refusal
from headrace.worker.dispatcher import dispatcher_events as events
from headrace.worker.dispatcher.runner_links import Selectors
from headrace.worker.dispatcher.store_links import Links, StoreLinks

# What else is asked on the connection for requests.
Aside = Literal["load", "unblock"]

WAKE_WAIT = 120.0
# Where the server knows of no sleep to end, it is asked again after this many seconds.
_DISARM_PAUSE = 0.005
# Where the server refuses sleeps, or ends the connection of this many in a row: seconds between two claims, and after
# which a sleep is tried again.
POLL = 0.5
SLEEP_AGAIN = 60.0
SLEEPS_LOST = 3
# Scripts that each new connection has the server load, so that no call of them is refused first. Those of schedules,
# profiles and stacks are not among them: few workers call them, and the server is told of one when it refuses a call.
SCRIPTS = (
    "claim", "note", "settle", "register", "limit_declare", "renew", "reclaim", "retire", "promote", "sweep", "unpark",
    "outputs", "reserve", "graft", "tend", "lapse", "resume_due", "holds", "restore",
)  # fmt: skip


class EventInbox(Protocol):
    def append(self, event: events.Event, /) -> None: ...


class StoreSession:
    """Requests to the store, one at a time, each repeated with its numbers until it is answered.

    Attributes:
        channel: on which others write to this incarnation; empty before it is registered.
        armed: the claim that the waker will make when it is woken, None when it does not sleep.
    """

    def __init__(
        self,
        target: Target,
        patience: float,
        watched: Selectors,
        inbox: EventInbox,
        *,
        hint: Callable[[], None] = lambda: None,
        revive: Callable[[], str] | None = None,
    ) -> None:
        """``hint`` is called when a sleep has ended, before its claim's answer is read."""
        scripts, handlers = [load(name) for name in SCRIPTS], (self._on_reply, self._on_wake, self._on_mail)
        self.links = StoreLinks(target, patience, scripts, watched, handlers, self._connected, self._lost, revive)
        self.channel = ""
        self.armed: events.Step | None = None
        self._inbox = inbox
        self._hint = hint
        # Calls that are not answered, and what each reply that is awaited on ``main`` answers.
        self._inflight: list[events.Step] = []
        self._awaited: list[events.Step | Aside] = []
        # What goes out before what is held back, a request each; whether such a request is under way.
        self._before: deque[list[events.Step]] = deque()
        self._held_back: list[events.Step] = []
        self._goes_ahead = False
        # Whether the loop was told that a request can be sent.
        self._reported_ready = False
        self._disarm_at = math.inf
        # Until when it polls; when it claims next; when it subscribes again, and how often that was refused in a row.
        self._polls_until = 0.0
        self._poll_at = self._subscribe_at = math.inf
        self._deaf = 0

    @property
    def idle(self) -> bool:
        busy = self._inflight or self._awaited or self._before or self._held_back
        return self.links.made is not None and not busy

    @property
    def next(self) -> float:
        return min(self._disarm_at, self._poll_at, self._subscribe_at, self.links.next)

    def keep(self, now: float) -> None:
        self.links.keep(now)
        if now >= self._disarm_at:
            self._disarm_at = math.inf
            self.disarm()
        if now >= self._poll_at:
            self._poll()
        if now >= self._subscribe_at:
            self._subscribe()

    def send(self, steps: list[events.Step]) -> None:
        self._reported_ready = self._goes_ahead = False
        self._inflight = steps
        self._resend()

    def send_first(self, steps: list[events.Step]) -> None:
        """Send these in one round trip, before what is held back and after those that were given so."""
        self._reported_ready = False
        if self.links.made is not None:
            self._before.append(steps)

    def send_next(self) -> None:
        if self._reported_ready or self._inflight or self.links.made is None:
            return
        self._goes_ahead = bool(self._before)
        if self._before:
            self._inflight = self._before.popleft()
        else:
            self._inflight, self._held_back = self._held_back, []
        self._resend()
        self._report_ready()

    def subscribe(self, channel: str) -> None:
        before, self.channel = self.channel, channel
        if self.links.made is not None:
            leave = [("UNSUBSCRIBE", before)] if before else []
            self.links.post(self.links.made.mail, [*leave, ("SUBSCRIBE", channel)])

    def arm(self, keys: Sequence[str], claim: events.Step) -> None:
        """Sleep on wake-up keys, and claim when woken: the server runs the claim as the sleep ends, which saves a trip.
        Until it is answered no other may be sent, so that its number stays the newest and it can be repeated.
        """
        links = self.links
        if links.made is None or self.armed is not None:
            return
        self.armed = claim
        if not links.made.waker_id:
            self._poll_instead("it does not tell a connection's number")
        elif links.failures["waker"] >= SLEEPS_LOST:
            self._poll_instead("it ends connections that sleep")
        if self._polls_until > (now := time.monotonic()):
            self._poll_at = now + POLL
            return
        commands = [("BZPOPMIN", *keys, WAKE_WAIT), claim[0].command()]
        links.post(links.made.waker, commands, WAKE_WAIT + links.patience)

    def disarm(self) -> None:
        """End the sleep. Its claim is answered anyway, if need be on new connections: it may have brought jobs."""
        self._reported_ready = False
        made = self.links.made
        if made is None or self.armed is None or "unblock" in self._awaited:
            return
        if self._poll_at < math.inf:
            self._poll()
            return
        self._awaited.append("unblock")
        self.links.post(made.main, [("CLIENT", "UNBLOCK", made.waker_id)])
        made.waker.deadline = min(made.waker.deadline, made.main.deadline)

    def _poll(self) -> None:
        self._poll_at = math.inf
        if self.armed is not None and self.links.made is not None:
            self.links.post(self.links.made.waker, [self.armed[0].command()])

    def _poll_instead(self, why: str) -> None:
        if not self._polls_until:
            text = f"{self.links.target.shown} does not let a worker wait for jobs ({why}): it asks twice a second"
            self.links.report(logging.WARNING, text, code="store.polled")
        self._polls_until = time.monotonic() + SLEEP_AGAIN

    def _report_ready(self) -> None:
        if self.idle and not self._reported_ready:
            self._reported_ready = True
            self._inbox.append(events.Ready())

    def _resend(self, *, unloaded: bool = False) -> None:
        made = self.links.made
        if self._inflight and made is not None:
            calls = [call for call, _ in self._inflight]
            scripts = loads(calls) if unloaded else []
            self._awaited.extend("load" for _ in scripts)
            self._awaited += self._inflight
            self.links.post(made.main, [*scripts, *(call.command() for call in calls)])

    def _connected(self, made: Links) -> None:
        if self.channel:
            self._subscribe()
            if self.links.made is not made:
                # It is gone already. What is held back now would be lost at the next connection.
                return
        # Requests that were under way go out again with their numbers, so that a lost reply changes nothing.
        self._held_back, self._inflight = self._inflight, []
        self._inbox.append(events.Connected())

    def _lost(self) -> None:
        self._inbox.append(events.Disconnected())
        self._awaited, self._reported_ready = [], False
        self._poll_at = self._subscribe_at = math.inf
        if self._goes_ahead:
            # The next connection asks anew.
            self._inflight, self._goes_ahead = [], False
        self._inflight, self._held_back = self._inflight + self._held_back, []
        self._before.clear()
        if self.armed is not None:
            self._inflight.append(self.armed)
            self.armed = None

    def _on_reply(self) -> None:
        made = self.links.made
        replies = [] if made is None else self.links.received(made.main, awaited=made.main.busy)
        if not replies:
            return
        awaited, self._awaited, self._inflight = self._awaited, [], []
        failed: list[tuple[events.Step, Exception]] = []
        unloaded: Exception | None = None
        for what, reply in zip(awaited, replies, strict=True):
            if what == "unblock" and isinstance(reply, Exception):
                # Else a sleep of minutes could not be ended. Without its connection the claim is made at once.
                self._poll_instead(str(reply))
                self.links.fail(reply, "CLIENT UNBLOCK", "waker")
            elif what == "unblock":
                # Without a reply it did not sleep: its own is on the way, or it had not begun to.
                self._disarm_at = self._disarm_at if reply else time.monotonic() + _DISARM_PAUSE
            elif what == "load":
                unloaded = reply if isinstance(reply, Exception) else unloaded
            elif isinstance(reply, Exception):
                failed.append((what, reply))
            else:
                name = what[0].script.name
                self.links.accepted(name)
                self._inbox.append(events.Replied(what[1], what[0].parse(reply), name))
        if failed:
            self._on_errors(failed, unloaded)
        elif awaited != ["unblock"] and not self._goes_ahead:
            # What goes ahead reads, which a server may permit that refuses all else.
            self.links.on_any_answer()
        # At once, so that the next request is decided before the replies are read in full.
        self._report_ready()

    def _on_errors(self, failed: list[tuple[events.Step, Exception]], unloaded: Exception | None) -> None:
        lost: tuple[Exception, str] | None = None
        for step, reply in failed:
            script = step[0].script
            script.locate(reply)
            error, name = reply, script.name
            if isinstance(reply, driver.NoScriptError) and unloaded is not None:
                error, name = unloaded, "SCRIPT LOAD"
            # What goes ahead must be answered before what it holds back. So it is asked anew on another connection.
            if not self._goes_ahead and refusal(error, self.links.target, name) is not None:
                self._refused(error, name, step)
                continue
            self._inflight.append(step)
            if not isinstance(error, driver.NoScriptError):
                lost = lost or (error, name)
        if lost is not None:
            self.links.fail(*lost)
        elif self._inflight:
            self._resend(unloaded=True)
        else:
            self.links.on_any_answer()

    def _refused(self, error: Exception, name: str, step: events.Step, *, asleep: bool = False) -> None:
        self.links.refused(error, name)
        self._inbox.append(events.CallRefused(step, asleep))

    def _on_wake(self) -> None:
        # Until the job is on its way each call counts: the processor slept, too, and has forgotten the code.
        self._hint()
        made = self.links.made
        replies = [] if made is None else self.links.received(made.waker, awaited=self.armed is not None)
        if not replies:
            return
        if self.armed is None:
            self.links.fail(driver.ConnectionError("an answer without a question"), "claim", "waker")
            return
        # A poll has a claim only.
        for error, doing in zip(reversed(replies), ("claim", "BZPOPMIN"), strict=False):
            if isinstance(error, Exception) and refusal(error, self.links.target, doing) is None:
                self.links.fail(error, doing, "waker")
                return
        step, self.armed = self.armed, None
        by_queue = self._slept(replies[:-1])
        if isinstance(replies[-1], Exception):
            self._refused(replies[-1], "claim", step, asleep=True)
        else:
            self.links.accepted("claim")
            self._inbox.append(events.Woken(step[1], step[0].parse(replies[-1]), by_queue))

    def _slept(self, replies: list[Any]) -> bool:
        if not replies:
            return False
        (woke,) = replies
        if isinstance(woke, Exception):
            self._poll_instead(str(woke))
            return False
        self._polls_until = 0.0
        self.links.on_any_answer("waker")
        return woke is not None

    def _on_mail(self) -> None:
        made = self.links.made
        for message in [] if made is None else self.links.received(made.mail, awaited=False):
            if self.links.made is not made:
                return
            if isinstance(message, Exception):
                self._unheard(message)
            elif message[0] == b"message":
                self._inbox.append(events.Mail(message[2].decode("utf-8", "replace")))
            elif message[0] == b"subscribe" and message[1].decode() == self.channel:
                # Announcements that came meanwhile are lost: read what there is.
                self._deaf = 0
                self.links.accepted("SUBSCRIBE")
                self.links.on_any_answer("mail")
                self._inbox.append(events.Mail(events.CALLED))
                self._inbox.append(events.Mail(events.HURRY))

    def _unheard(self, error: Exception) -> None:
        """The server does not let this worker listen: try again later. Renewals tell of cancellations, too."""
        if refusal(error, self.links.target, "SUBSCRIBE") is not None:
            self.links.refused(error, "SUBSCRIBE")
            self._deaf += 1
            self._subscribe_at = time.monotonic() + pause_before(self._deaf, random.random())
        else:
            self.links.fail(error, "SUBSCRIBE", "mail")

    def _subscribe(self) -> None:
        self._subscribe_at = math.inf
        if self.links.made is not None:
            self.links.post(self.links.made.mail, [("SUBSCRIBE", self.channel)])
