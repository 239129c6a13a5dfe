"""The process and fork kinds: the main thread runs user code, one job at a time, in the order of the inbox.

Owns the inbox and the reading side of the channel. A ticket decides whether the head of the inbox may start
(see wire.py).
"""

from __future__ import annotations

import os
import time
from collections import deque

from headrace.errors import CancelRequested, Interrupt
from headrace.job import Claim
from headrace.worker.forks import Forker
from headrace.worker.gate import SIGNALS, MainGate
from headrace.worker.parent import end_faulty
from headrace.worker.perform import Bench, perform
from headrace.worker.report import Reporter, Voice
from headrace.worker.wire import Channel, Closed, Recall, Run, Soon, Stop, ToRunner, take_ticket

# Seconds that a runner looks for work that was announced before it sleeps again.
AWAKE = 0.001


class Process:
    """One process that runs jobs.

    Attributes:
        bench: what its starts share.
        recalls: how many were heard on this channel, also by others before it.
        forker: whose child it is.
    """

    def __init__(
        self,
        bench: Bench,
        channel: Channel[ToRunner],
        tickets: int,
        *,
        once: bool,
        measure_memory: bool,
    ) -> None:
        """Make one. ``once``: it runs a single job, then it leaves."""
        self.gate = MainGate(self._look)
        self.reporter = Reporter(channel, self.gate, measure_memory=measure_memory)
        self.bench = bench
        self._channel = channel
        self._tickets = tickets
        self._once = once
        self._inbox: deque[Claim] = deque()
        self._cancelled: set[int] = set()
        self.recalls = 0
        self.forker: Forker | None = None
        self._leaving = False
        self._awake_until = 0.0

    def serve(self) -> None:
        """Run jobs until told to leave, or until nobody is left to tell."""
        inbox = self._inbox
        try:
            while inbox or not self._leaving:
                if not inbox:
                    self._file(self._next(), 0)
                elif self._admitted():
                    self._run(inbox.popleft())
                    if self._once:
                        break
        except Closed:
            self._leaving = True
        if self.forker is not None:
            # What was heard in part only, nobody else can read on.
            self.forker.last_word(self.recalls, leaves=self._leaving or bool(inbox) or self._channel.torn)

    def finish(self) -> None:
        """Nothing outlives the jobs here."""

    def _next(self) -> list[ToRunner]:
        """What the dispatcher says next. Where it said that work follows, sleeping would cost more than looking."""
        while time.monotonic() < self._awake_until:
            if messages := self._channel.receive(wait=False):
                return messages
            os.sched_yield()
        return self._channel.receive(wait=True)

    def _admitted(self) -> bool:
        """Take the ticket of the inbox's head; False when it was taken back, and the inbox is as that left it."""
        recalls = take_ticket(self._tickets)
        if recalls is None:
            self._file(self._channel.receive(wait=True), 0)
            return False
        # The ticket may have overtaken recalls: then the head may be one of the recalled.
        while 0 < (recalls - self.recalls) & 0xFF < 128 or not self._inbox:
            self._file(self._channel.receive(wait=True), 0)
        return True

    def _run(self, claim: Claim) -> None:
        began = time.monotonic_ns()
        if claim.token in self._cancelled:
            self.gate.remind()
        voice, audit = Voice(self.reporter), self.reporter.audit
        watched = audit is not None and audit.begin(claim.task)
        ended = perform(self.bench, self.gate, claim, voice)
        if watched and audit is not None:
            audit.end()
        self.reporter.done(voice, claim.token, ended, began)

    def _file(self, messages: list[ToRunner], current: int) -> type[Interrupt] | None:
        """Sort what arrived; returns what to raise in the start ``current``."""
        signal: type[Interrupt] | None = None
        for message in messages:
            if isinstance(message, Run):
                self._inbox.extend(message.claims)
            elif isinstance(message, Recall):
                self.recalls += 1
                for _ in range(message.count):
                    self._cancelled.discard(self._inbox.pop().token)
            elif isinstance(message, Stop):
                if message.token == current:
                    signal = SIGNALS[message.reason]
                elif message.reason == "cancel" and any(claim.token == message.token for claim in self._inbox):
                    self._cancelled.add(message.token)
            elif isinstance(message, Soon):
                self._awake_until = time.monotonic() + AWAKE
            else:
                self._leaving = True
        return signal

    def _look(self, token: int) -> type[Interrupt] | None:
        """What to raise in this start; reads without waiting. Called amid user code, so a dead dispatcher waits."""
        if token in self._cancelled:
            self._cancelled.discard(token)
            return CancelRequested
        try:
            return self._file(self._channel.receive(wait=False), token)
        except Closed:
            return None
        except BaseException:  # noqa: BLE001 - it would be raised in the job's code, as if that had failed
            end_faulty()
