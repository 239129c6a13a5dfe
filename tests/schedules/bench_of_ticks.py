"""Schedules on a stage: a clock that the test moves, and a dispatcher's part played by the test."""

from __future__ import annotations

from typing import Any

from headrace.model.form import Form
from headrace.model.ids import digits_of, make_id, ordered_id
from headrace.protocol import ticks
from headrace.protocol.ticks import Policies, ScheduleRecord
from headrace.schedules.timetables import Timing, refilled
from tests.scripts.stage import ARGS, KEEP, SECOND, Stage

MINUTE = 60 * SECOND
# The clock of a stage begins at 22:13:20; its next whole minute comes after 40 s.
FIRST = 1_700_000_040_000_000


def tick_id(name: str, moment: int, nth: int = 0, *, ordered: bool = True) -> str:
    """The id of the job that a tick of a schedule makes, as tick.lua makes it.

    Args:
        moment: the tick, microseconds.
        nth: 0; other jobs of the same tick (backfills) have more, up to 9 here.
    """
    id = f"{make_id(moment // 1000, 0)[:8]}{digits_of(name)}{nth}00"
    return ordered_id(id) if ordered else id


def row(name: str = "s", fingerprint: str = "f1", timing: Timing | None = None, **facts: Any) -> ticks.Row:
    timing = timing or Timing(step=MINUTE)
    form, args, left = (
        facts.pop("form", Form("add", headers=b"\x81\xa1a\xa1b")),
        facts.pop("args", ARGS),
        facts.pop("left", None),
    )
    policies = Policies(**{"missed": "latest", "overlap": "allow_all", "keep": KEEP} | facts)
    return ticks.row_of(name, fingerprint, form, args, timing.packed(), policies, left)


def put(stage: Stage, *rows: ticks.Row, owner: str = "") -> list[str]:
    return stage.run(ticks.declare(stage.keys, owner, rows or [row()]))


def refill(stage: Stage, fired: ticks.Fired) -> None:
    """What a dispatcher answers."""
    refills: list[ticks.Refill] = []
    for one in fired.wanting:
        import msgspec

        timing = msgspec.msgpack.decode(one.about, type=Timing)
        more, search = refilled(timing, one.known, fired.now, one.missed)
        pairs = [(tick, timing.due(one.name, tick)) for tick in more]
        final = not pairs or pairs[-1][0] <= fired.now
        refills.append(ticks.Refill(one, pairs, search.passed, search.more, final or len(pairs) < 16))
    if refills:
        stage.run(ticks.refill(stage.keys, refills))


def fire(stage: Stage, limit: int = 500) -> ticks.Fired:
    """Fire, refill where that is wanted, and fire again; the last answer."""
    fired = stage.run(ticks.fire(stage.keys, limit))
    if fired.wanting:
        refill(stage, fired)
        again = stage.run(ticks.fire(stage.keys, limit))
        return ticks.Fired(fired.ran + again.ran, again.now, again.due, again.wanting, fired.broken)
    return fired


def schedule(stage: Stage, name: str = "s") -> ScheduleRecord:
    page = stage.run(ticks.read_schedules(stage.keys, [name], ticks=100))
    return page.rows[0]


def counts(stage: Stage) -> dict[str, dict[str, int]]:
    """What became of the ticks of each schedule, but for what did not happen."""
    found = stage.run(ticks.count_ticks(stage.keys))
    return {name: {word: n for word, n in became.items() if n} for name, became in found.items()}


def told(stage: Stage, name: str = "s") -> list[tuple[int, str, int]]:
    """The history: seconds after the first whole minute, what became of the tick, how many it tells of."""
    return [((one.tick - FIRST) // SECOND, one.what, one.count) for one in schedule(stage, name).last]
