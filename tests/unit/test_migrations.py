"""Steps, their order, and which of them a store needs."""

from __future__ import annotations

import random

import pytest
from redis.crc import key_slot

from headrace.errors import OptionsError
from headrace.migrations import STEPS, Piece, Step, in_order, plan
from headrace.migrations.step import Direction, Reads, Unfinished, walked
from headrace.protocol import keys

KEYS = keys.Keys()


def nothing(_keys: keys.Keys, _cursor: str, _size: int) -> Reads:
    yield []
    return Piece()


FOUR = in_order([Step(version, f"number {version}", nothing, nothing) for version in (4, 2, 5, 3)])


def way(schema: int, target: int, unfinished: Unfinished | None = None) -> list[tuple[int, Direction, str]]:
    return [(leg.step.version, leg.direction, leg.cursor) for leg in plan(FOUR, schema, target, unfinished)]


def test_steps_are_taken_by_version_however_they_are_listed() -> None:
    """Gush compared migrations by a call with a wrong argument, which nobody saw while there was one."""
    assert [step.version for step in FOUR] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("versions", "fault"), [((2, 3, 3), "two steps to 3"), ((2, 4), "no step to 3"), ((3,), "no step to 2")]
)
def test_versions_that_do_not_count_up_are_named(versions: tuple[int, ...], fault: str) -> None:
    with pytest.raises(OptionsError, match=fault):
        in_order([Step(version, "x", nothing, nothing) for version in versions])


def test_a_journey_goes_up_or_down_a_step_at_a_time() -> None:
    assert way(1, 4) == [(2, "up", ""), (3, "up", ""), (4, "up", "")]
    assert way(5, 3) == [(5, "down", ""), (4, "down", "")]
    assert way(3, 3) == []
    assert [leg.leads_to for leg in plan(FOUR, 3, 5)] == [4, 5]
    assert [leg.leads_to for leg in plan(FOUR, 3, 1)] == [2, 1]


def test_what_was_begun_goes_on_where_it_was() -> None:
    assert way(2, 5, Unfinished(3, "up", "77")) == [(3, "up", "77"), (4, "up", ""), (5, "up", "")]
    assert way(4, 1, Unfinished(4, "down", "77")) == [(4, "down", "77"), (3, "down", ""), (2, "down", "")]


def test_what_was_begun_is_taken_back_from_its_start() -> None:
    """Half of a step fits neither layout, so that even staying where one was means going back."""
    assert way(2, 2, Unfinished(3, "up", "77")) == [(3, "down", "")]
    assert way(2, 1, Unfinished(3, "up", "77")) == [(3, "down", ""), (2, "down", "")]
    assert way(3, 3, Unfinished(3, "down", "77")) == [(3, "up", "")]
    assert way(3, 4, Unfinished(3, "down", "77")) == [(3, "up", ""), (4, "up", "")]


@pytest.mark.parametrize("target", [0, 6, -1])
def test_a_layout_that_nobody_knows_is_refused(target: int) -> None:
    with pytest.raises(OptionsError, match="knows 1 to 5"):
        way(2, target)


def test_the_keys_say_what_the_steps_lead_to() -> None:
    assert STEPS[-1].version == keys.SCHEMA
    assert max((step.version for step in STEPS if step.needed), default=1) == keys.OLDEST


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("bits", [2, 7, 13])
def test_a_cursor_tells_how_far_a_scan_has_come(bits: int, clustered: bool) -> None:
    """As servers count: the highest bit of the table's mask first. On a cluster the slot is in the lowest 14 bits."""
    numbers = [int(f"{n:0{bits}b}"[::-1], 2) for n in range(1 << bits)]
    slot = key_slot(b"{hr:0}:")
    seen = [walked(KEYS, str(number << 14 | slot if clustered else number)) for number in numbers]
    assert seen == sorted(seen)
    assert seen == [n / (1 << bits) for n in range(1 << bits)]
    assert 0 <= walked(KEYS, str(random.getrandbits(64))) < 1
