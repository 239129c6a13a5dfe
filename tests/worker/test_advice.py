"""The sums of the startup profile: what is asked for, what is said and when, and that nothing grows without end."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.worker.messages import Found, Function, Judged, Rehearsed
from headrace.worker.preload import advice
from headrace.worker.preload.advice import Waste
from headrace.worker.preload.trial import WARM, WORK

SETUP = Function("orm.mapper", "_configure", 10, 100_000)


def found(imports: Any = (), functions: Any = (), *, first: bool = True, early: Any = ()) -> Found:
    return Found(1, 0, first, list(imports), list(early), list(functions))


def make(*, auto: bool = False) -> Waste:
    return Waste(enabled=True, auto=auto)


def two_starts(one: Waste) -> None:
    for number in (1, 2):
        one.heard(number, "shop.report", "fork", found([("pandas", 50_000)], [SETUP]))
        one.ended("shop.report")


def judge(one: Waste, *judged: Judged, done: int = 0) -> None:
    assert one.request() is not None
    one.judged(Rehearsed(list(judged), done))


WARMTH = (Judged("pandas", WARM, 40_000, ()), Judged("orm:configure", WARM, 90_000, (0,)))


def test_the_first_runners_of_a_kind_are_profiled_then_one_in_sixteen() -> None:
    one = make()
    assert [n for n in range(64) if one.profiles("fork")] == [*range(16), 16, 32, 48]
    assert one.profiles("process")
    assert not Waste(enabled=False, auto=False).profiles("fork")


def test_a_child_that_was_seen_once_may_be_an_accident() -> None:
    one = make()
    one.heard(1, "t", "fork", found([("pandas", 50_000)]))
    assert one.request() is None
    one.heard(2, "t", "fork", found([("pandas", 50_000)]))
    request = one.request()
    assert request is not None
    assert request.imports == ["pandas"]
    assert one.request() is None, "one at a time"


def test_what_costs_next_to_nothing_is_not_tried() -> None:
    one = make()
    one.heard(1, "t", "process", found([("json", 900)], [Function("a", "b", 1, 1_000)]))
    assert one.request() is None


def test_what_was_tried_is_not_tried_again() -> None:
    one = make()
    two_starts(one)
    judge(one, *WARMTH)
    two_starts(one)
    assert one.request() is None


def test_after_an_import_that_is_refused_the_rest_is_asked_for_again() -> None:
    one = make()
    for number in (1, 2):
        one.heard(number, "t", "fork", found([("bad", 50_000), ("good", 50_000)], [SETUP]))
    judge(one, Judged("bad", "its import starts a thread", 1, ()))
    request = one.request()
    assert request is not None
    assert (request.imports, request.functions) == (["good"], [SETUP])
    one.judged(Rehearsed([], 0))
    assert one.request() is None, "a rehearsal that says nothing is not repeated for ever"


def test_the_log_says_it_once_and_whenever_it_has_doubled() -> None:
    one = make()
    two_starts(one)
    assert list(one.lines()) == [], "nothing was judged"
    judge(one, *WARMTH)
    (line,) = one.lines()
    assert "each first start of shop.report in a runner loses 150 ms" in line
    assert "300 ms so far: orm:configure 100 ms, pandas 50 ms" in line
    assert 'preload=["pandas","orm:configure"]' in line
    said = []
    for job in range(1, 100):
        one.ended("shop.report")
        said += [job] * len(list(one.lines()))
    assert said == [2, 6, 14, 30, 62]


def test_work_is_not_called_set_up() -> None:
    one = make()
    for number in (1, 2):
        one.heard(number, "t", "fork", found((), [SETUP]))
    judge(one, Judged("orm:configure", WORK, 90_000, (0,)))
    assert list(one.lines()) == []
    assert one.preload == []
    assert msgspec.json.decode(one.summary())["rows"] == []


def test_a_long_lived_runner_loses_it_once() -> None:
    one = make()
    one.heard(1, "t", "process", found([("pandas", 50_000)]))
    judge(one, WARMTH[0])
    for _ in range(1000):
        one.ended("t")
    assert list(one.lines()) == []
    (row,) = msgspec.json.decode(one.summary())["rows"]
    assert (row["jobs"], row["lost"], row["total"]) == (1000, 50_000, 50_000)


def test_what_is_done_is_counted_anew() -> None:
    one = make(auto=True)
    two_starts(one)
    judge(one, *WARMTH, done=7)
    assert one.done == {"pandas": 40_000, "orm:configure": 90_000}
    one.heard(7, "shop.report", "fork", found([("pandas", 50_000)]))
    assert one.rows == {}, "that one was forked before"
    one.heard(8, "shop.report", "fork", found([("late", 50_000)]))
    assert set(one.rows["shop.report"].imports) == {"late"}
    assert one.profiles("fork")


def test_the_summary_is_bounded_whatever_jobs_do() -> None:
    one = make()
    for task in range(200):
        imports = [(f"package{task}.module{n}.{'x' * 80}", 10_000) for n in range(100)]
        functions = [Function(f"m{task}", f"f{n}", n, 50_000) for n in range(100)]
        one.heard(1, f"task-{task}-{'y' * 100}", "process", found(imports, functions))
        one.ended(f"task-{task}")
    assert len(one.rows) == advice.TASKS
    assert all(len(row.imports) == len(row.functions) == advice.KINDS for row in one.rows.values())
    request = one.request()
    assert request is not None
    assert len(request.imports) <= advice.KINDS
    one.judged(Rehearsed([Judged(name, WARM, 10_000, ()) for name in request.imports], 0))
    assert len(one.summary()) <= advice.SUMMARY
    assert not one.changed
    for _ in range(100):
        while (request := one.request()) is not None:
            one.judged(Rehearsed([], 0))
        one.news = True
    assert len(one._tried) < advice.TRIED + 2 * advice.KINDS
