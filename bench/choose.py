"""Choose: the time to choose one of 10, 100 and 1,000 members by each strategy, and to book it where that matters.

Processor time, since a choice waits for nothing: what other programs do meanwhile is not measured. The reference of
each figure is a search through all members for the one with the smallest load, which is what the strategies replace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle

from bench.context import Context
from bench.figure import Bar, Figure
from headrace.dispatch import LoadIndex, Snapshot, hash, least_loaded, random, round_robin  # noqa: A004

_SIZES = (10, 100, 1_000)
_BOOKED = "least_loaded and booked"
_KEYS = [f"customer-{number}" for number in range(1_000)]
#: A run in ten thousand is disturbed by something; the best of several is what the choice itself takes.
_RUNS = 7


class _Member:
    __slots__ = ("id", "load")

    def __init__(self, id: int) -> None:
        self.id = id
        self.load = 0


def _crew(size: int) -> Snapshot[_Member]:
    members, ranks = tuple(_Member(number) for number in range(size)), LoadIndex[_Member]()
    for member in members:
        ranks.set(member, 0)
    snapshot = Snapshot(members, ranks)
    assert snapshot.ring
    return snapshot


def _micros(work: Callable[[int], object], count: int) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        began = time.thread_time_ns()
        work(count)
        best = min(best, (time.thread_time_ns() - began) / count / 1_000)
    return best


def _choices(crew: Snapshot[_Member]) -> dict[str, tuple[Callable[[int], object], float]]:
    """Loops over each choice, and the bar in microseconds."""

    def rounds(count: int) -> None:
        for _ in range(count):
            round_robin(crew)

    def dice(count: int) -> None:
        for _ in range(count):
            random(crew)

    def keys(count: int) -> None:
        for _, key in zip(range(count), cycle(_KEYS), strict=False):
            hash(crew, key)

    def least(count: int) -> None:
        for _ in range(count):
            least_loaded(crew)

    def booked(count: int) -> None:
        ranks = crew.ranks
        for _ in range(count):
            member = least_loaded(crew)
            assert member is not None
            member.load += 1
            ranks.set(member, member.load)

    return {
        "round_robin": (rounds, 1), "random": (dice, 1), "hash": (keys, 1), "least_loaded": (least, 3),
        _BOOKED: (booked, 3),
    }  # fmt: skip


def run(context: Context) -> list[Figure]:
    """Each strategy at each size, and how much the largest pool costs over the smallest."""
    figures: list[Figure] = []
    smallest: dict[str, float] = {}
    for size in _SIZES:
        context.say(f"choose: among {size}")
        crew = _crew(size)
        members = crew.members

        def search(count: int, members: tuple[_Member, ...] = members) -> None:
            for _ in range(count):
                min(members, key=lambda member: member.load)

        reference = _micros(search, max(20, context.scaled(20_000) // size))
        for name, (work, limit) in _choices(crew).items():
            taken = _micros(work, context.scaled(20_000))
            smallest.setdefault(name, taken)
            bar = Bar("at most", limit)
            figures.append(Figure(f"choose among {size}: {name}", taken, "us", "search", reference, bar))
    figures += [
        Figure(f"choose, 1,000 over 10: {name}", figure.value - smallest[name], "us", bar=Bar("at most", 1))
        for name in smallest
        if name != _BOOKED  # a heap's depth grows with its members: two levels each time they are ten times as many
        for figure in figures
        if figure.name == f"choose among 1000: {name}" and figure.value is not None
    ]
    return figures
