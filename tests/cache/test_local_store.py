"""The shelf keeps to its bounds whatever happens, lets go in the promised order, and forgets what has ended."""

from __future__ import annotations

import random

import pytest

from headrace.cache.local_store import OVERHEAD, Bounds, LocalStore

LATE = 1e9


def shelf(entries: int = 4, size: int = 1 << 20, eviction: str = "fifo") -> LocalStore:
    return LocalStore(Bounds(entries, size, eviction))  # type: ignore[arg-type]


def read(one: LocalStore, name: str) -> bool:
    try:
        one.values[name]
    except KeyError:
        return False
    return True


def test_the_oldest_makes_room() -> None:
    one = shelf()
    for name in "abcdef":
        one.put(name, name, 1, LATE)
    assert [*one.values] == [*"cdef"]
    assert one.evicted == 2


def test_a_value_put_again_is_new() -> None:
    one = shelf()
    for name in "abcdae":
        one.put(name, name, 1, LATE)
    assert [*one.values] == [*"cdae"]


def test_absence_takes_a_place_too() -> None:
    one = shelf()
    for n in range(10_000):
        one.put_absent(str(n), LATE)
    assert len(one) == len(one.absent) == 4
    one.put("9999", 1, 1, LATE)
    assert "9999" not in one.absent
    one.put_absent("9999", LATE)
    assert "9999" not in one.values


def test_bytes_bound_too() -> None:
    one = shelf(1000, 20 * OVERHEAD)
    for n in range(100):
        assert one.put(f"{n:02}", n, OVERHEAD, LATE)
        assert one.bytes <= 20 * OVERHEAD
    assert len(one) == 9


def test_one_value_may_not_push_out_all_others() -> None:
    one = shelf(1000, 20 * OVERHEAD)
    one.put("a", 1, 1, LATE)
    assert not one.put("b", 1, 10 * OVERHEAD, LATE)
    assert not one.put("a", 1, 10 * OVERHEAD, LATE)
    assert len(one) == 0, "the value before it has gone all the same"


def test_what_has_ended_is_dropped_at_its_time() -> None:
    one = shelf(100)
    for n in range(10):
        one.put(str(n), n, 1, float(n))
    one.drop("0")
    assert one.next_end() == 1.0
    one.expire(4.5)
    assert [*one.values] == [*"56789"]
    one.put("5", 5, 1, 100.0)
    one.expire(50)
    assert [*one.values] == ["5"]
    assert one.next_end() == 100.0
    one.clear()
    assert one.next_end() is None


def test_ends_of_what_went_earlier_do_not_pile_up() -> None:
    one = shelf(10)
    for n in range(10_000):
        one.put(str(n % 20), n, 1, LATE + n)
    assert len(one._ends) <= 2 * 10 + 65


def test_clearing_is_seen_by_those_who_hold_the_dictionaries() -> None:
    one = shelf()
    values = one.values
    one.put("a", 1, 1, LATE)
    one.clear()
    assert values == {}
    assert values is one.values
    assert one.bytes == 0


def test_second_chances_hit_more_often_than_fifo_where_some_names_are_read_more_than_others() -> None:
    hits = {}
    for eviction in ("fifo", "second_chance"):
        one, dice, hits[eviction] = shelf(100, eviction=eviction), random.Random(1), 0
        for n in range(20_000):
            name = str(int(1000 * dice.random() ** 3))
            if read(one, name):
                hits[eviction] += 1
            else:
                one.put(name, n, 1, LATE)
    assert hits["second_chance"] > hits["fifo"] * 1.1


def test_a_second_chance_keeps_what_is_read_often_while_strangers_pass() -> None:
    one = shelf(10, eviction="second_chance")
    for name in "abcde":
        one.put(name, name, 1, LATE)
    for n in range(1000):
        assert all(read(one, name) for name in "abcde")
        one.put(f"stranger {n}", n, 1, LATE)
    assert len(one) == 10


@pytest.mark.parametrize("eviction", ["fifo", "second_chance"])
@pytest.mark.parametrize("seed", range(20))
def test_the_bounds_hold_whatever_happens(eviction: str, seed: int) -> None:
    dice, one, now = random.Random(seed), shelf(20, 40 * OVERHEAD, eviction), 0.0
    for _ in range(3000):
        now += dice.random()
        name = str(dice.randrange(60))
        match dice.randrange(10):
            case 0:
                one.drop(name)
            case 1:
                one.put_absent(name, now + dice.expovariate(0.02))
            case 2:
                one.expire(now)
            case 3 if dice.random() < 0.01:
                one.clear()
            case 4 if one.visited is not None:
                one.visited.add(name)  # a reader that was late
            case n if n < 7:
                read(one, name)
            case _:
                one.put(name, now, dice.randrange(3 * OVERHEAD), now + dice.expovariate(0.02))
        assert len(one) == len(one.values) + len(one.absent) <= 20
        assert not one.values.keys() & one.absent.keys()
        assert one.bytes <= 40 * OVERHEAD
    assert one._entries.keys() == one.values.keys() | one.absent.keys()
    assert sum(entry.size for entry in one._entries.values()) == one.bytes
    if one.visited is not None:
        assert len(one.visited) <= 2 * 20 + 65 + 60
