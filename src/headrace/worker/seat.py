"""A runner as the dispatcher sees it: what it holds, what it may still get, what was measured of it.

Owns the socket, the tickets and the stderr pipe of one runner. Decides nothing about jobs' outcomes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.job import Claim
from headrace.task import Plan
from headrace.worker.outcomes import Doom
from headrace.worker.wire import Channel, Fell, FromRunner, Run, give_tickets, take_back

if TYPE_CHECKING:
    from headrace.worker.places import Place

STDERR_TAIL = 4096
# A line of stderr that becomes longer than this many bytes is passed on in pieces.
LINE = 1 << 16
# Work that was sent ahead is bounded in number, too: a window of tickets must fit into a pipe with room to spare.
MOST_AHEAD = 512


class Start:
    """One start of a job on a runner.

    Attributes:
        claim, plan: what runs, with which limits.
        seat: where.
        cost: seconds of work that were booked for it.
        reminders: how often it was interrupted.
        doom: what the end of its runner would mean for it, where that was decided before: empty, ``cancel``, ``hard``,
            or ``other`` once a shutdown interrupted it.
        limited: its soft limit is over.
        bound: the place that its strategy chose, where it waits when it is taken back; None: any runner will do.
    """

    __slots__ = ("bound", "claim", "cost", "doom", "limited", "plan", "reminders", "seat")

    def __init__(self, claim: Claim, plan: Plan, seat: Seat, bound: Place | None = None) -> None:
        self.claim = claim
        self.plan = plan
        self.seat = seat
        self.cost = 0.0
        self.doom: Doom = ""
        self.reminders = 0
        self.limited = False
        self.bound = bound


class Seat:
    """One runner.

    Attributes:
        starts: what was sent and has not ended, in the order of sending, by token.
        ticketed: work may be sent ahead and taken back (process kind).
        slots: jobs that it runs at once.
        load: estimated seconds of work sent and not ended.
        progress: monotonic time of the last sign of progress.
        suspect: it holds a job that crashed a runner before.
        single: a shared kind's runner that takes one suspect and leaves, so that the suspect takes nobody with it.
        current: token of the start whose limits run (process and fork kinds).
        garbled: it sent what is no message.
        condemned: it is being killed for a limit or a cancellation; its other jobs are handed back.
        born: monotonic time of its fork, or of the end of its start.
        done: jobs that it ended.
        quota: it is replaced after so many jobs, and never holds more than are left of them; 0: no end.
        recalls: how often work was taken back; tickets carry it.
        begun: the line that it has begun and not ended on stderr.
        blocked: its socket had no room for all that it was sent.
        starting: code of the application runs in it before its first job; it gets work when that is done.
        leaving: gets no more work; ``gone``: its socket is closed.
        place: which it fills; None for a single.
        forker: it runs no job itself, but forks a child for each.
        fell: how its last child ended, where it is a forker that said so.
    """

    def __init__(
        self, number: int, kind: str, pid: int, slots: int, descriptors: list[int], channel: Channel[FromRunner]
    ) -> None:
        self.number = number
        self.kind = kind
        self.pid = pid
        self.slots = slots
        self.channel = channel
        self.ticketed = kind == "process"
        self.counted = kind in ("process", "fork")
        self.ticket_read, self.ticket_write, self.stderr = descriptors
        self.starts: OrderedDict[int, Start] = OrderedDict()
        self.load = 0.0
        self.progress = 0.0
        self.done = 0
        self.quota = 0
        self.suspect = False
        self.single = False
        self.current = 0
        self.condemned = False
        self.garbled = False
        self.born = 0.0
        self.starting = False
        self.leaving = False
        self.gone = False
        self.blocked = False
        self.tail = b""
        self.begun = b""
        self.recalls = 0
        self.place: Place | None = None
        self.forker = False
        self.fell: Fell | None = None
        os.set_blocking(self.stderr, False)

    @property
    def process(self) -> int:
        """The process that runs its jobs: its own, or the child that a forker has now."""
        if self.forker:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_bytes().split()
                return int(children[0]) if children else self.pid
        return self.pid

    @property
    def open(self) -> bool:
        return not (self.leaving or self.gone)

    @property
    def ready(self) -> bool:
        """Whether it may be given work at all."""
        return not (self.starting or self.leaving or self.gone)

    def spare(self, most: int) -> int:
        """How many more starts it may be given, holding ``most`` at once."""
        held = len(self.starts)
        return most - held if not self.quota else min(most, self.quota - self.done) - held

    def give(self, batch: list[Start]) -> None:
        """Send starts that were booked; the tickets go first (see wire.py)."""
        if self.counted:
            give_tickets(self.ticket_write, len(batch), self.recalls)
        self.channel.offer(Run([start.claim for start in batch]))

    def recall(self, *, but: int = 0) -> list[Start]:
        """Take back what was sent and not started, oldest first; a runner that lives on must be told by ``Recall``.

        Args:
            but: so many of the oldest stay.
        """
        count = take_back(self.ticket_read, len(self.starts) - but) if self.counted else 0
        if not count:
            return []
        back = [self.starts.popitem()[1] for _ in range(count)]
        back.reverse()
        self.recalls += 1
        return back

    def drain_stderr(self) -> bool:
        """Pass on the lines that the runner wrote to stderr, and keep their end as evidence.

        A line that has not ended waits: what somebody else says meanwhile must not go on in it.

        Returns:
            False when the other end is closed.
        """
        try:
            data = os.read(self.stderr, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.tail = (self.tail + data)[-STDERR_TAIL:]
        text = self.begun + data
        end = text.rfind(b"\n") + 1
        self.begun = text[end:]
        _pass_on(text[:end])
        if not data or len(self.begun) > LINE:
            self.end_line()
        return bool(data)

    def end_line(self) -> None:
        """Pass on a line that the runner has begun on stderr, as if it had ended it."""
        if self.begun:
            _pass_on(self.begun + b"\n")
            self.begun = b""

    def close(self) -> None:
        self.gone = True
        self.end_line()
        self.channel.close()
        for descriptor in (self.ticket_read, self.ticket_write, self.stderr):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _pass_on(text: bytes) -> None:
    # Nobody may read it, which is no fault of a runner.
    with contextlib.suppress(OSError, ValueError):
        if text:
            sys.stderr.buffer.write(text)
            sys.stderr.buffer.flush()
