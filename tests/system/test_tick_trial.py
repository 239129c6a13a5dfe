"""Ticks while any process is killed and the clock jumps over a gap and a fold; ``bench schedules --minutes 60`` is longer."""

from __future__ import annotations

import pytest

from bench.context import Context
from bench.tick_trial import CHANGES, trial
from headrace.schedules.timetables import time_of
from tests.schedules.zones import ticks
from tests.system.test_soak import SEED, say


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_tick_makes_one_job_whatever_dies_and_wherever_the_clock_jumps() -> None:
    say(f"seed {SEED} (HR_SEED chooses another)")
    context = Context(peers=False, quick=True, say=say)
    rounds = trial(context, workers=3, minutes=0, hours=1.2, every=1.2, rounds=2, seed=SEED)
    for facts, (zone, _) in zip(rounds, CHANGES[:2], strict=True):
        assert facts.ran == facts.wanted
        assert facts.made == {name: len(found) for name, found in facts.wanted.items()}
        assert facts.kills >= 3
        assert facts.jumps >= 5
        # The timetable is that of the slow way.
        for name, timing in facts.timings.items():
            wanted = [time_of(tick) for tick in facts.wanted[name]]
            if timing.cron and wanted:
                start, end = wanted[0], wanted[-1]
                assert [start, *ticks(timing.cron, zone, start, end)] == wanted
