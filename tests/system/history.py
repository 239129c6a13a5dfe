"""The history checker: judge a run by what clients were told and by what jobs did, never by the product's own counts.

Clients write down each request and its answer (``History.asking``) and what they read of a job (``History.told``). Jobs
write their starts and ends into the ledger. All times are of one monotonic clock, which the processes of a machine
share. ``breaches`` compares them: a pure function, in O(n log n).

Owns the events and the rules. ``tests/unit/test_history.py`` plants a fault against each rule.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.system.ledger import Ledger

FINAL = ("succeeded", "failed", "cancelled", "quarantined")
GONE = "gone"
"""The state of a job that the store does not have, as a client reads it."""
_KINDS = {"S": "begin", "E": "end"}


class Wanted(msgspec.Struct, frozen=True):
    """A job as its client asks for it, and what holds for it."""

    id: str
    starts: int = 1
    """How many starts the faults of the test can explain."""
    key: str = ""
    """Jobs of one key run one after the other, as they were asked for."""
    limits: tuple[str, ...] = ()
    """Limits that each start of it counts against."""
    after: tuple[str, ...] = ()
    """Jobs that succeed before this one begins."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a history.

    ``invoke`` asks for jobs, under a number; ``ok``, ``fail`` (nothing stored) or ``unknown`` answer that number.
    ``begin``, ``end`` and ``alive`` are a job's own words, with the token of its start. ``told`` is a state of a job
    that a client read, with the token of the start that made the result, 0 where the result does not hold it.
    """

    at: int
    kind: str
    id: str = ""
    token: int = 0
    state: str = ""
    jobs: tuple[Wanted, ...] = ()


class Breach(NamedTuple):
    """A rule that a history breaks, at which job or limit, and how."""

    rule: str
    id: str
    text: str


_over = attrgetter("over")


class History:
    """Events of clients in a file of the directory, those of jobs in the ledger; any process may write."""

    def __init__(self, directory: Path, ledger: Ledger | None = None) -> None:
        self._path = directory / "clients"
        self._ledger = ledger or Ledger(directory / "ledger")

    def _add(self, event: Event) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, msgspec.json.encode(event) + b"\n")
        finally:
            os.close(file)

    @contextlib.contextmanager
    def asking(self, *jobs: Wanted, refused: tuple[type[Exception], ...] = ()) -> Generator[None]:
        """A client asks for jobs inside; how that ends is written down, and raised.

        An error leaves it unknown whether they are stored, but for those of ``refused``. A client that is killed inside
        leaves a request without an answer, which is unknown too.
        """
        number = f"{os.getpid()}-{time.monotonic_ns()}-{id(jobs)}"
        self._add(Event(time.monotonic_ns(), "invoke", number, jobs=jobs))
        answer = "unknown"
        try:
            yield
            answer = "ok"
        except refused:
            answer = "fail"
            raise
        finally:
            self._add(Event(time.monotonic_ns(), answer, number))

    def told(self, id: str, state: str, token: Any = 0) -> None:
        """A client read this state of the job, ``GONE`` for a job that the store does not have.

        Each job is to be read at the end. ``token`` is the result of a task that returns ``current_job().token``.
        """
        self._add(Event(time.monotonic_ns(), "told", id, token if isinstance(token, int) else 0, state))

    def events(self) -> list[Event]:
        """All of them, by time."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        found = [msgspec.json.decode(line, type=Event) for line in lines]
        found += [Event(line.at, _KINDS.get(line.mark, "alive"), line.id, line.token) for line in self._ledger.lines()]
        return sorted(found, key=attrgetter("at"))


class _Life:
    """All that a history says of one job."""

    def __init__(self, wanted: Wanted, place: tuple[int, int], asked: int) -> None:
        self.wanted, self.place, self.asked = wanted, place, asked
        self.acknowledged = 0
        self.requests = 0
        self.begins: list[Event] = []
        self.ends: list[Event] = []
        self.words: list[Event] = []
        self.told: list[Event] = []

    @property
    def refused(self) -> bool:
        """Whether each request for it was answered with a refusal."""
        return not self.requests

    @property
    def gone(self) -> bool:
        """Whether no client found it at the end."""
        return not self.told or self.told[-1].state == GONE

    @property
    def over(self) -> float:
        """When its last start was over, as far as is known; never for one that waits or runs still."""
        if not self.gone and self.told[-1].state not in FINAL:
            return float("inf")
        return max((event.at for event in self.words), default=0.0)


def breaches(events: Iterable[Event], limits: Mapping[str, int] | None = None, overlap: float = 0.0) -> list[Breach]:
    """Each way in which a history breaks a rule; none for a good one.

    Rules: ``asked`` (what begins was asked for, and was not refused), ``lost`` (what was acknowledged ended or lives),
    ``words`` (an end follows a begin of its token, a success is of a start that ended), ``starts`` (the budget, no
    token twice), ``once`` (one completion, and no start after a client read of it), ``fenced`` (tokens grow, the newest
    completes), ``overlap`` (one start at a time), ``order`` (keys), ``parents`` and ``limits``.

    Args:
        events: by time.
        limits: how many starts of each limit may run at a moment.
        overlap: seconds that a start may run on after the next one began, as a failover that loses a claim permits.
    """
    lives, found = _lives(events)
    for life in lives.values():
        found += [Breach(rule, life.wanted.id, text) for rule, text in _of_job(life, int(overlap * 1e9))]
    found += _order(lives.values())
    found += _parents(lives)
    found += _limits(lives.values(), limits or {})
    return found


def _lives(events: Iterable[Event]) -> tuple[dict[str, _Life], list[Breach]]:
    lives, found = dict[str, _Life](), list[Breach]()
    requests = dict[str, list[str]]()
    for number, event in enumerate(events):
        if event.kind == "invoke":
            requests[event.id] = [wanted.id for wanted in event.jobs]
            for place, wanted in enumerate(event.jobs):
                # A repeat of a request asks for the same job: its first place counts, and its last answer.
                lives.setdefault(wanted.id, _Life(wanted, (number, place), event.at)).requests += 1
        elif event.kind in ("ok", "fail", "unknown"):
            for id in requests.pop(event.id, []):
                if event.kind == "ok" and not lives[id].acknowledged:
                    lives[id].acknowledged = event.at
                lives[id].requests -= event.kind == "fail"
        elif event.id not in lives:
            if event.kind != "told" or event.state != GONE:
                found.append(Breach("asked", event.id, f"{event.kind} of a job that no client asked for"))
        elif event.kind == "told":
            lives[event.id].told.append(event)
        else:
            lives[event.id].words.append(event)
            if event.kind != "alive":
                (lives[event.id].begins if event.kind == "begin" else lives[event.id].ends).append(event)
    return lives, found


def _of_job(life: _Life, overlap: int) -> Iterator[tuple[str, str]]:
    begins, told = life.begins, [event for event in life.told if event.state in FINAL]
    begun = {event.token: event.at for event in reversed(begins)}
    ended = {event.token for event in life.ends}
    if life.refused and begins:
        yield "asked", "began, although its client was told that nothing was stored"
    if life.gone and life.acknowledged:
        yield "lost", "neither ended nor lives" if life.told else "no client read it at the end"
    for word in life.words:
        if word.kind != "begin" and not begun.get(word.token, word.at + 1) <= word.at:
            yield "words", f"{word.kind} of start {word.token}, which had not begun"
    if len(life.ends) > len(ended):
        yield "words", "one start ended twice"
    if len(begins) > len(begun):
        yield "starts", "two starts with one token"
    if len(begins) > life.wanted.starts:
        yield "starts", f"{len(begins)} starts, at most {life.wanted.starts} explained"
    if any(later.token < earlier.token for earlier, later in pairwise(begins)):
        yield "fenced", f"the tokens of its starts fall: {[event.token for event in begins]}"
    yield from _completion(life, told, ended)
    last = {word.token: word.at for word in life.words}
    for earlier, later in pairwise(begins):
        if later.token != earlier.token and last[earlier.token] > later.at + overlap:
            yield "overlap", f"start {earlier.token} ran on after start {later.token} had begun"


def _completion(life: _Life, told: list[Event], ended: set[int]) -> Iterator[tuple[str, str]]:
    if len({event.state for event in told}) > 1 or len({event.token for event in told if event.token}) > 1:
        yield "once", f"completed twice: {[(event.state, event.token) for event in told]}"
    if told and any(event.state not in FINAL for event in life.told[life.told.index(told[0]) :]):
        yield "once", "a client read that it had ended, and later that it had not"
    if told and any(begin.at > told[0].at for begin in life.begins):
        yield "once", "a start after a client read that it had ended"
    if not told or told[-1].state != "succeeded":
        return
    token = told[-1].token
    if token not in ended and (token or not ended):
        yield "words", f"succeeded by start {token or 'unknown'}, and no such start ended"
    if token and any(begin.token > token and begin.at <= told[-1].at for begin in life.begins):
        yield "fenced", f"succeeded by start {token}, and a newer one had begun"


def _order(lives: Iterable[_Life]) -> Iterator[Breach]:
    """A job of a key waits for each that was acknowledged before it was asked for, and for those ahead in its chunk."""
    keys = defaultdict[str, list[_Life]](list)
    for life in lives:
        if life.wanted.key and not life.refused:
            keys[life.wanted.key].append(life)
    for key, some in keys.items():
        ahead = sorted((life for life in some if life.acknowledged), key=attrgetter("acknowledged"))
        times = [life.acknowledged for life in ahead]
        # For each length of the line ahead, the job in it that was over last.
        last = [None, *accumulate(ahead, lambda one, other: max(one, other, key=_over))]
        some.sort(key=attrgetter("place"))
        chunk = {later.place: earlier for earlier, later in pairwise(some) if earlier.place[0] == later.place[0]}
        for life in some:
            for first in (last[bisect_left(times, life.asked)], chunk.get(life.place)):
                if first and life.begins and first.over > life.begins[0].at:
                    yield Breach("order", life.wanted.id, f"began before {first.wanted.id} of key {key} was over")


def _parents(lives: Mapping[str, _Life]) -> Iterator[Breach]:
    for id, life in lives.items():
        for parent in life.wanted.after if life.begins else ():
            ends = lives[parent].ends if parent in lives else []
            if not ends or ends[0].at > life.begins[0].at:
                yield Breach("parents", id, f"began before its parent {parent} had ended")


def _limits(lives: Iterable[_Life], limits: Mapping[str, int]) -> Iterator[Breach]:
    """A start without an end counts at its begin only: when the kill came is not known."""
    changes = defaultdict[str, list[tuple[int, int, str]]](list)
    for life in lives:
        words = {begin.token: [begin.at] for begin in life.begins}
        for word in life.words:
            words.get(word.token, []).append(word.at)
        for name in life.wanted.limits:
            for times in words.values():
                # At one moment begins stand before ends.
                changes[name] += [(min(times), -1, life.wanted.id), (max(times), 1, life.wanted.id)]
    for name, some in changes.items():
        running = 0
        for _, step, id in sorted(some):
            running -= step
            if running > limits[name]:
                yield Breach("limits", id, f"{running} starts of limit {name} ran at once, at most {limits[name]}")
                break
