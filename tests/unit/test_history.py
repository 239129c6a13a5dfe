"""The history checker accepts a good history, and finds each planted fault by its rule: it judges all other tests."""

from __future__ import annotations

import functools
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.system.history import GONE, Event, History, Wanted, breaches

SECOND = 1_000_000_000
LIMITS = {"pair": 2}


class Story:
    """A good history, written at a clock of its own."""

    def __init__(self) -> None:
        self.at = 0
        self.events: list[Event] = []

    def add(self, kind: str, id: str = "", token: int = 0, state: str = "", jobs: tuple[Wanted, ...] = ()) -> None:
        self.at += SECOND
        self.events.append(Event(self.at, kind, id, token, state, jobs))

    def ask(self, *jobs: Wanted, answer: str = "ok") -> None:
        number = f"request-{len(self.events)}"
        self.add("invoke", number, jobs=jobs)
        self.add(answer, number)

    def run(self, id: str, token: int) -> None:
        self.add("begin", id, token)
        self.add("end", id, token)

    def end(self, id: str, token: int) -> None:
        self.add("told", id, token, "succeeded")


def good() -> list[Event]:
    """What all rules are about: retries, a key in two requests and one chunk, a node, a limit, unknown answers."""
    story = Story()
    story.ask(Wanted("twice", starts=2))
    story.ask(Wanted("first", key="k"))
    story.ask(Wanted("second", key="k"), Wanted("third", key="k"))
    story.ask(Wanted("parent"), Wanted("child", after=("parent",)))
    story.ask(*(Wanted(f"limited-{n}", limits=("pair",)) for n in range(3)))
    story.ask(Wanted("refused"), answer="fail")
    story.ask(Wanted("kept"), answer="unknown")
    story.ask(Wanted("dropped"), answer="unknown")
    story.ask(Wanted("repeated"), answer="unknown")
    story.ask(Wanted("repeated"))
    story.ask(Wanted("waits"))
    story.add("begin", "twice", 7)  # its process was killed
    story.run("twice", 9)
    for token, id in enumerate(["first", "second", "third", "parent", "child", "kept", "repeated"], 20):
        story.run(id, token)
    story.add("begin", "limited-0", 30)
    story.add("begin", "limited-1", 31)
    story.add("end", "limited-0", 30)
    story.add("begin", "limited-2", 32)
    story.add("end", "limited-1", 31)
    story.add("end", "limited-2", 32)
    tokens = {event.id: event.token for event in story.events if event.kind == "end"}
    for id, token in tokens.items():
        story.end(id, token)
        story.end(id, token)
    story.add("told", "waits", state="ready")
    for id in ("refused", "dropped"):
        story.add("told", id, state=GONE)
    return story.events


def rules(events: list[Event], **options: float) -> set[str]:
    return {breach.rule for breach in breaches(events, LIMITS, **options)}


def test_a_good_history_breaks_no_rule() -> None:
    assert breaches(good(), LIMITS) == []


def index(events: list[Event], kind: str, id: str, token: int = 0) -> int:
    return next(n for n, e in enumerate(events) if (e.kind, e.id) == (kind, id) and token in (0, e.token))


def drop(kind: str, id: str, token: int = 0) -> Callable[[list[Event]], list[Event]]:
    """All events of a kind, and of a token, about a job are missing."""
    return lambda events: [e for e in events if (e.kind, e.id) != (kind, id) or token not in (0, e.token)]


def drop_request(kind: str, wanted: str) -> Callable[[list[Event]], list[Event]]:
    def mutate(events: list[Event]) -> list[Event]:
        number = next(e.id for e in events if any(job.id == wanted for job in e.jobs))
        return [e for e in events if (e.kind, e.id) != (kind, number)]

    return mutate


def repeat(kind: str, id: str, /, **changes: int | str) -> Callable[[list[Event]], list[Event]]:
    """An event is there again at once, perhaps with other values."""

    def mutate(events: list[Event]) -> list[Event]:
        at = index(events, kind, id)
        again = msgspec.structs.replace(events[at], at=events[at].at + 1, **changes)
        return [*events[: at + 1], again, *events[at + 1 :]]

    return mutate


def change(kind: str, id: str, /, **changes: int | str) -> Callable[[list[Event]], list[Event]]:
    def mutate(events: list[Event]) -> list[Event]:
        return [msgspec.structs.replace(e, **changes) if (e.kind, e.id) == (kind, id) else e for e in events]

    return mutate


def move(
    kind: str, id: str, to: tuple[str, str], *, behind: bool = False, token: int = 0
) -> Callable[..., list[Event]]:
    """An event comes just before (or behind) another."""

    def mutate(events: list[Event]) -> list[Event]:
        moved = events[index(events, kind, id, token)]
        at = events[index(events, *to)].at + (1 if behind else -1)
        left = [e for e in events if e is not moved]
        return sorted([*left, msgspec.structs.replace(moved, at=at)], key=lambda e: e.at)

    return mutate


def add(
    kind: str, id: str, token: int, to: tuple[str, str] | None = None, state: str = ""
) -> Callable[..., list[Event]]:
    """One more event, just before another or at the very end."""

    def mutate(events: list[Event]) -> list[Event]:
        at = events[index(events, *to)].at - 1 if to else events[-1].at + 1
        return sorted([*events, Event(at, kind, id, token, state)], key=lambda e: e.at)

    return mutate


def both(*mutations: Callable[[list[Event]], list[Event]]) -> Callable[[list[Event]], list[Event]]:
    return lambda events: functools.reduce(lambda some, mutate: mutate(some), mutations, events)


MUTATIONS = {
    "asked": [
        drop_request("invoke", "kept"),
        repeat("begin", "kept", id="nobody's"),
        add("begin", "refused", 90),
    ],
    "lost": [
        drop("told", "twice"),
        drop("told", "waits"),
        change("told", "first", state=GONE),
        change("told", "repeated", state=GONE),
        change("told", "waits", state=GONE),
    ],
    "words": [
        drop("begin", "parent"),
        drop("end", "third"),
        drop("end", "kept"),
        repeat("end", "first"),
        change("end", "first", token=5),
        change("told", "waits", state="succeeded"),
        move("end", "kept", ("begin", "kept")),
    ],
    "starts": [
        repeat("begin", "first"),
        repeat("begin", "kept", token=70),
        repeat("begin", "twice", token=8),
    ],
    "once": [
        repeat("told", "kept", token=70),
        repeat("told", "kept", state="failed"),
        add("begin", "twice", 90),
        add("told", "first", 0, state="ready"),
        move("told", "twice", ("begin", "twice"), behind=True),
    ],
    "fenced": [
        move("begin", "twice", ("begin", "twice"), token=9),
        both(add("end", "twice", 7, ("end", "twice")), change("told", "twice", token=7)),
        move("begin", "twice", ("end", "twice"), token=7),
    ],
    "overlap": [
        add("end", "twice", 7, ("end", "twice")),
        add("alive", "twice", 7, ("told", "twice")),
    ],
    "order": [
        move("begin", "second", ("begin", "first")),
        move("begin", "second", ("end", "first")),
        move("begin", "third", ("end", "second")),
        move("end", "first", ("begin", "second"), behind=True),
        change("told", "first", state="running"),
    ],
    "parents": [
        move("begin", "child", ("end", "parent")),
        move("end", "parent", ("begin", "child"), behind=True),
        drop("end", "parent"),
    ],
    "limits": [
        move("begin", "limited-2", ("end", "limited-0")),
        move("end", "limited-0", ("end", "limited-1")),
        add("alive", "limited-0", 30, ("end", "limited-1")),
    ],
}


@pytest.mark.parametrize(("rule", "place"), [(rule, n) for rule, some in MUTATIONS.items() for n in range(len(some))])
def test_each_planted_fault_is_found_by_its_rule(rule: str, place: int) -> None:
    assert rule in rules(MUTATIONS[rule][place](good()))


def test_each_rule_has_its_mutations() -> None:
    assert breaches.__doc__
    assert set(MUTATIONS) == set(re.findall(r"``(\w+)``", breaches.__doc__.partition("Args:")[0]))


def test_what_a_failover_may_do_is_no_fault() -> None:
    ran_on = add("end", "twice", 7, ("end", "twice"))(good())
    assert rules(ran_on, overlap=5.0) == set()
    assert rules(ran_on, overlap=0.5) == {"overlap"}


def test_an_answer_that_never_came_permits_both_ends() -> None:
    for answered in (True, False):
        events = good() if answered else drop_request("unknown", "kept")(drop_request("unknown", "dropped")(good()))
        assert rules(events) == set()
    stored = [e for e in good() if (e.kind, e.id) not in {("begin", "kept"), ("end", "kept"), ("told", "kept")}]
    assert rules(stored) == set()


@pytest.mark.parametrize("seed", range(20))
def test_random_lines_of_a_key_are_judged_as_a_slow_judge_does(seed: int) -> None:
    """The judge of order looks at each pair of jobs that did not overlap while they were asked for."""
    dice = random.Random(seed)
    story = Story()
    ids = [f"j{n}" for n in range(8)]
    times = {id: sorted(dice.sample(range(1, 60), 2)) for id in ids}
    runs = {id: sorted(dice.sample(range(60, 90), 2)) for id in ids}
    for id in ids:
        story.events += [
            Event(times[id][0], "invoke", f"r-{id}", jobs=(Wanted(id, key="k"),)), Event(times[id][1], "ok", f"r-{id}"),
            Event(runs[id][0], "begin", id, 1), Event(runs[id][1], "end", id, 1), Event(99, "told", id, 1, "succeeded"),
        ]  # fmt: skip
    events = sorted(story.events, key=lambda e: e.at)
    wrong = {b for a in ids for b in ids if times[a][1] < times[b][0] and runs[a][1] > runs[b][0]}
    assert {breach.id for breach in breaches(events) if breach.rule == "order"} == wrong


def test_a_hundred_thousand_events_are_judged_at_once() -> None:
    story = Story()
    for n in range(16_000):
        story.ask(Wanted(str(n), key="k"))
        story.run(str(n), n + 1)
        story.end(str(n), n + 1)
    assert breaches(story.events) == []


def test_what_clients_and_jobs_write_down_is_read_as_one_history(tmp_path: Path) -> None:
    written = History(tmp_path)
    with written.asking(Wanted("a")):
        pass
    with pytest.raises(ValueError, match="full"), written.asking(Wanted("b"), refused=(ValueError,)):
        raise ValueError("full")
    with pytest.raises(ValueError, match="away"), written.asking(Wanted("c")):
        raise ValueError("away")
    with (tmp_path / "ledger").open("a") as ledger:
        for mark in "SE":
            ledger.write(f"{mark} a 3 1 {os.getpid()} {time.monotonic_ns()}\n")
    written.told("a", "succeeded", 3)
    kinds = [(event.kind, event.token) for event in written.events()]
    asked = [("invoke", 0), ("ok", 0), ("invoke", 0), ("fail", 0), ("invoke", 0), ("unknown", 0)]
    assert kinds == [*asked, ("begin", 3), ("end", 3), ("told", 3)]
    assert breaches(written.events()) == []
