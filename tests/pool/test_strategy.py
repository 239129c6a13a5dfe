"""Strategies alone: any objects with an id, a snapshot and ranks. P01 to P07."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dispatch import (
    STRATEGIES,
    LoadIndex,
    Ring,
    Snapshot,
    available,
    least_loaded,
    named,
    next_available,
    random,
    round_robin,
    slot,
)
from headrace.dispatch import hash as by_key
from headrace.errors import ClosedError, OptionsError, PoolFull


@dataclass(frozen=True)
class Thing:
    """What the dispatcher might choose among: anything with an id."""

    id: int


def crew(*loads: float) -> Snapshot[Thing]:
    things = tuple(Thing(number) for number in range(len(loads)))
    ranks: LoadIndex[Thing] = LoadIndex()
    for thing, load in zip(things, loads, strict=True):
        ranks.set(thing, load)
    return Snapshot(things, ranks)


def test_least_loaded_takes_the_shortest_line_and_any_number_is_a_load() -> None:
    assert least_loaded(crew(3, 0.5, 2)) == Thing(1)


def test_least_loaded_spreads_over_equals() -> None:
    snapshot, seen = crew(*[0] * 5), Counter[int]()
    loads = Counter[int]()
    for _ in range(25):
        chosen = least_loaded(snapshot)
        assert chosen is not None
        seen[chosen.id] += 1
        loads[chosen.id] += 1
        snapshot.ranks.set(chosen, loads[chosen.id])
    assert set(seen.values()) == {5}


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 50))), max_size=300))
def test_ranks_agree_with_a_search_whatever_happened(changes: list[tuple[int, int | None]]) -> None:
    ranks, loads = LoadIndex[Thing](), dict[int, int]()
    for number, load in changes:
        if load is None:
            ranks.remove(Thing(number))
            loads.pop(number, None)
        else:
            ranks.set(Thing(number), load)
            loads[number] = load
        least = ranks.least()
        assert (least is None) == (not loads)
        if least is not None:
            assert loads[least.id] == min(loads.values())
        assert (ranks.idle() is not None) == (0 in loads.values())
        assert len(ranks) == len(loads)


def test_ranks_do_not_gather_what_is_past() -> None:
    ranks: LoadIndex[Thing] = LoadIndex()
    ranks.set(Thing(0), 0)
    for load in range(10_000):
        ranks.set(Thing(1), load + 1)
    assert len(ranks._heap) < 200


def test_round_robin_takes_each_in_turn_and_the_counter_outlives_a_snapshot() -> None:
    first = crew(0, 0, 0)
    assert [round_robin(first) for _ in range(4)] == [Thing(n) for n in (0, 1, 2, 0)]
    second = Snapshot(first.members, first.ranks, first.turn)
    assert round_robin(second) == Thing(1)


def test_random_reaches_everybody_evenly() -> None:
    snapshot = crew(*[0] * 4)
    seen = Counter(random(snapshot) for _ in range(4000))
    assert len(seen) == 4
    assert min(seen.values()) > 800


def test_available_has_nobody_to_offer_when_all_are_busy_and_next_available_refuses() -> None:
    assert available(crew(1, 0)) == Thing(1)
    assert available(crew(1, 1)) is None
    assert next_available(crew(1, 0)) == Thing(1)
    with pytest.raises(PoolFull, match="all 2 members are busy"):
        next_available(crew(1, 1))


@pytest.mark.parametrize("choose", [round_robin, random, least_loaded])
def test_who_is_away_counts_as_busy(choose: object) -> None:
    snapshot = crew(0, 9)
    snapshot.ranks.remove(Thing(0))
    assert {named(choose)(snapshot, None) for _ in range(20)} == {Thing(1)}  # type: ignore[arg-type]
    snapshot.ranks.remove(Thing(1))
    assert named(choose)(snapshot, None) in snapshot.members  # type: ignore[arg-type]


def test_nobody_at_all_is_a_typed_error() -> None:
    for name, choose in STRATEGIES.items():
        if name != "available":
            with pytest.raises((ClosedError, PoolFull)):
                choose(crew(), "key")


def test_a_key_stays_with_its_member_and_few_move() -> None:
    keys = [f"customer-{n}" for n in range(4000)]
    ten, eleven = Ring([Thing(n) for n in range(10)]), Ring([Thing(n) for n in range(11)])
    moved = [key for key in keys if ten.owner(key) != eleven.owner(key)]
    assert 0 < len(moved) < len(keys) / 11 * 1.5
    assert {eleven.owner(key) for key in moved} == {Thing(10)}, "no key moves between members that stay"
    shares = Counter(ten.owner(key).id for key in keys)
    assert max(shares.values()) < 1.5 * len(keys) / 10


def test_a_key_lies_at_the_same_place_in_every_process() -> None:
    code = "from headrace.dispatch import slot; print(slot('customer-7'), slot(b'x'), slot(-5))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(slot("customer-7")), str(slot(b"x")), str(slot(-5))]


def test_hash_needs_a_key_that_can_be_one() -> None:
    with pytest.raises(OptionsError, match="needs key="):
        by_key(crew(0))
    with pytest.raises(OptionsError, match="not list"):
        by_key(crew(0), [1])  # type: ignore[arg-type]


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(OptionsError, match=r"best.*available, hash, least_loaded, next_available, random, round_robin"):
        named("best")
