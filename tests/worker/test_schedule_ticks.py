"""A dispatcher's part in schedules, with a clock by hand and replies by hand: what is called when, and after what."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from headrace.protocol import ticks
from headrace.protocol.keys import keys_of
from headrace.schedules.timetables import AHEAD, Timing
from headrace.worker.dispatcher.declared_duties import AGAIN, BACK, FIRE, RECKON, REFILL, WALK, TickDuty
from headrace.worker.dispatcher.worker_state import NEVER

SECOND = 1_000_000
SERVER = 1_700_000_000 * SECOND
MINUTELY = Timing(step=60 * SECOND).packed()


def duty(*rows: ticks.Row) -> TickDuty:
    made = TickDuty(keys_of("hr"), rows, lambda *_, **__: None)
    made.begin("me", 100.0)
    return made


def called(made: TickDuty, now: float) -> list[str]:
    return [call.script.name for call, _ in made.steps(now)]


def answered(made: TickDuty, now: float, script: str, reply: object) -> None:
    (handler,) = [handler for call, handler in made.steps(now) if call.script.name == script]
    handler(reply)


def wanting(count: int, about: bytes = MINUTELY, known: int = SERVER) -> list[ticks.Wanting]:
    return [ticks.Wanting(f"s{n}", 1, about, known, 1) for n in range(count)]


def fired(now: int, due: int, *wants: ticks.Wanting) -> ticks.Fired:
    return ticks.Fired(0, now, due, list(wants), [])


def rows_of(made: TickDuty, now: float) -> list[Any]:
    """What the refill of this moment says, unpacked; empty where there is none."""
    for call, handler in made.steps(now):
        if call.script.name == "refill":
            handler((0, SERVER, 0))
            rows = msgspec.msgpack.decode(call.args[2], type=list[tuple[str, int, int, msgspec.Raw, int, int, int]])
            return [(*row[:3], times(bytes(row[3])), *row[4:]) for row in rows]
    return []


def times(packed: bytes) -> list[int]:
    """Nominal and due times of ticks: behind the one to three bytes that begin the text of them."""
    return [int(one) for (one,) in struct.iter_unpack("<d", packed[len(packed) % 16 :])]


def test_a_tick_is_fired_when_it_is_due_by_the_servers_clock() -> None:
    made = duty()
    assert made.at == NEVER
    made.learn(100, SERVER, SERVER + 5 * SECOND)
    assert called(made, 100) == ["schedule_walk"]
    assert made.at == 105
    assert called(made, 104.9) == []
    answered(made, 105, "fire", fired(SERVER + 5 * SECOND, SERVER + 65 * SECOND))
    assert made.at == 165


def test_a_known_tick_moves_with_the_servers_clock_where_no_other_is_told() -> None:
    made = duty()
    made.learn(100, SERVER, SERVER + 60 * SECOND)
    assert called(made, 100) == ["schedule_walk"]
    made.learn(106, SERVER + 6 * SECOND, None)
    assert made.at == 160
    # The server's clock was set forward by half a minute.
    made.learn(112, SERVER + 42 * SECOND, None)
    assert made.at == 130
    made.learn(118, SERVER + 48 * SECOND, 0)
    made.learn(124, SERVER + 54 * SECOND, None)
    assert made.at > 160


def test_what_is_left_over_is_fired_with_the_next_trip() -> None:
    made = duty()
    made.learn(100, SERVER, SERVER)
    (_, (call, handler)) = made.steps(100)
    assert call.args[-1] == FIRE
    handler(fired(SERVER + SECOND, SERVER))
    assert called(made, 101) == ["fire"]


def test_of_many_schedules_with_one_timetable_many_are_refilled_in_one_trip() -> None:
    made = duty()
    made.learn(100, SERVER, SERVER)
    answered(made, 100, "fire", fired(SERVER, SERVER + 60 * SECOND, *wanting(REFILL + 5)))
    # Before anything is due: it is known what there is to do.
    assert made.at == 0.0
    rows = rows_of(made, 100.5)
    assert len(rows) == REFILL
    assert {len(row[3]) for row in rows} == {2 * AHEAD}
    assert rows[0][3][:4] == [SERVER + 40 * SECOND] * 2 + [SERVER + 100 * SECOND] * 2
    assert len(rows_of(made, 100.5)) == 5
    assert rows_of(made, 100.5) == []


def test_of_different_timetables_few_are_reckoned_in_one_trip() -> None:
    made = duty()
    made.learn(100, SERVER, SERVER)
    wants = [one for n in range(RECKON + 5) for one in wanting(1, Timing(step=(61 + n) * SECOND).packed())]
    answered(made, 100, "fire", fired(SERVER, SERVER + 60 * SECOND, *wants))
    assert [len(rows_of(made, 100.5)) for _ in range(3)] == [RECKON, 5, 0]


def test_what_was_missed_is_told_with_the_ticks_to_come() -> None:
    made = duty()
    made.learn(100, SERVER, SERVER)
    late = wanting(1, known=SERVER - 600 * SECOND)
    ended = wanting(1, Timing(step=60 * SECOND, until=SERVER + 100 * SECOND).packed())
    answered(made, 100, "fire", fired(SERVER, SERVER + 60 * SECOND, *late, *ended))
    (first, second) = rows_of(made, 100.5)
    # The newest of ten, and nine that are passed over.
    assert (first[3][0], first[4], first[6]) == (SERVER - 20 * SECOND, 9, 0)
    assert (len(second[3]) // 2, second[4], second[6]) == (2, 0, 1)


def test_a_clock_that_was_set_back_far_has_schedules_walked_over() -> None:
    made = duty()
    made.learn(100, SERVER, SERVER + 9000 * SECOND)
    answered(made, 100, "schedule_walk", ticks.Walked("", SERVER, SERVER + 9000 * SECOND, []))
    made.learn(110, SERVER + 10 * SECOND - round((BACK - 1) * SECOND), SERVER + 9000 * SECOND)
    assert called(made, 110) == []
    made.learn(120, SERVER - round((2 * BACK + 1) * SECOND), SERVER + 9000 * SECOND)
    assert called(made, 120) == ["schedule_walk"]
    assert called(made, 120 + WALK - 1) == []
    assert called(made, 120 + WALK) == ["schedule_walk"]


def test_a_time_zone_that_this_machine_does_not_know_holds_up_no_other_schedule() -> None:
    told: list[tuple[Any, ...]] = []
    made = TickDuty(keys_of("hr"), (), lambda *words, **_: told.append(words))
    made.begin("me", 100.0)
    made.learn(100, SERVER, SERVER)
    odd = ticks.Wanting("odd", 1, Timing("* * * * *", "Mars/Olympus").packed(), SERVER, 1)
    for now in (101, 102):
        answered(made, now, "fire", fired(SERVER, SERVER + SECOND, odd, *wanting(1)))
        assert [row[0] for row in rows_of(made, now)] == ["s0"]
        made.learn(now, SERVER, SERVER)
    # Said once.
    assert len(told) == 1
    assert "odd" in told[0]


def test_a_schedule_whose_record_cannot_be_read_is_declared_again() -> None:
    made = duty(("a", "f1", []), ("b", "f1", []))
    answered(made, 100, "schedule_declare", ["unreadable", "same"])
    assert called(made, 100 + AGAIN - 1) == []
    assert called(made, 100 + AGAIN) == ["schedule_declare"]


def test_a_worker_that_cannot_reckon_a_schedule_is_not_the_first_to_fire() -> None:
    """Ticks are asked of the worker that fires first: the one nearest to the server kept the schedule silent."""
    first, other = duty(), duty()
    odd = ticks.Wanting("odd", 1, Timing("* * * * *", "Mars/Olympus").packed(), SERVER, 1)
    first.learn(100, SERVER, SERVER)
    answered(first, 100, "fire", fired(SERVER, SERVER + 5 * SECOND, odd))
    assert rows_of(first, 100) == []
    for made in (first, other):
        made.learn(101, SERVER + SECOND, SERVER + 5 * SECOND)
        called(made, 101)
    assert other.at == 105
    assert 105 < first.at < 106


def test_a_clock_that_was_set_back_is_a_line_in_the_log() -> None:
    lines: list[str] = []
    made = TickDuty(keys_of("hr"), (), lambda _level, text, *given, **_: lines.append(text % given))
    made.begin("me", 100.0)
    made.learn(100, SERVER, SERVER + SECOND)
    answered(made, 100, "schedule_walk", ticks.Walked("", SERVER, 0, ["nightly"]))
    assert lines == ["the server's clock was set back: schedule nightly is reckoned anew from now"]
