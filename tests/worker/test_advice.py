"""The sums of the startup profile: what is said and when, and that nothing grows without end."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.worker import startup_profiler
from headrace.worker.messages import Found
from headrace.worker.startup_profiler import Advice

SETUP = ("orm:configure", 100_000)


def found(imports: Any = (), functions: Any = (), *, first: bool = True, early: Any = ()) -> Found:
    return Found(1, first, list(imports), list(early), list(functions))


def make() -> Advice:
    return Advice(enabled=True)


def two_starts(one: Advice) -> None:
    for _ in range(2):
        one.on_found("shop.report", "fork", found([("pandas", 50_000)], [SETUP]))
        one.ended("shop.report")


def test_the_first_runners_of_a_kind_are_profiled_then_one_in_sixteen() -> None:
    one = make()
    assert [n for n in range(64) if one.profiles("fork")] == [*range(16), 16, 32, 48]
    assert one.profiles("process")
    assert not Advice(enabled=False).profiles("fork")


def test_a_child_that_was_seen_once_may_be_an_accident() -> None:
    one = make()
    one.on_found("t", "fork", found([("pandas", 500_000)]))
    assert list(one.lines()) == []
    one.on_found("t", "fork", found([("pandas", 500_000)]))
    assert len(list(one.lines())) == 1


def test_what_costs_next_to_nothing_is_no_advice() -> None:
    one = make()
    one.on_found("t", "process", found([("json", 400)], [("a:b", 400)]))
    shown = msgspec.json.decode(one.summary())
    assert (shown["preload"], shown["maybe"]) == ([], [])


def test_the_log_says_it_once_and_whenever_it_has_doubled() -> None:
    one = make()
    two_starts(one)
    (line,) = one.lines()
    assert "each first start of shop.report in a runner may lose 150 ms" in line
    assert "300 ms so far: orm:configure 100 ms, pandas 50 ms" in line
    assert line.endswith(
        'preload=["pandas"] does it once; if orm:configure is set-up, preload=["orm:configure"] does that once'
    )
    said = []
    for job in range(1, 100):
        one.ended("shop.report")
        said += [job] * len(list(one.lines()))
    assert said == [2, 6, 14, 30, 62]


def test_functions_below_each_other_are_counted_once() -> None:
    one = make()
    for _ in range(2):
        one.on_found("t", "fork", found((), [SETUP, ("orm:outer", 120_000)]))
    assert one.rows["t"].sums == (120_000, 240_000)


def test_a_long_lived_runner_loses_it_once() -> None:
    one = make()
    one.on_found("t", "process", found([("pandas", 50_000)]))
    for _ in range(1000):
        one.ended("t")
    assert list(one.lines()) == []
    (row,) = msgspec.json.decode(one.summary())["tasks"]
    assert (row["jobs"], row["lost_each"], row["lost"]) == (1000, 0.05, 0.05)


def test_each_incarnation_is_told_anew() -> None:
    one = make()
    two_starts(one)
    assert one.changed
    one.summary()
    assert not one.changed
    one.renew()
    assert one.changed


def test_the_summary_is_bounded_whatever_jobs_do() -> None:
    one = make()
    for task in range(200):
        imports = [(f"package{task}.module{n}.{'x' * 80}", 10_000) for n in range(100)]
        one.on_found(
            f"task-{task}-{'y' * 100}", "process", found(imports, [(f"m{task}:f{n}", 50_000) for n in range(100)])
        )
        one.ended(f"task-{task}")
    assert len(one.rows) == startup_profiler.TASKS
    assert all(len(row.imports) == len(row.functions) == startup_profiler.KINDS for row in one.rows.values())
    assert len(one.summary()) <= startup_profiler.SUMMARY
