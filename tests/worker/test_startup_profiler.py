"""What a runner notes of itself: imports and the time of first starts; and that it notes nothing where nobody asked."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from tests.worker.rig import Runner, claim, runners


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    # Not one system call after the other: the sampler sees what is spent in the code itself.
    while time.process_time() < end:
        sum(range(2000))


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with runners() as make:
        yield make


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of modules that nobody has imported; the first imports the second, and the third raises."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("au_outer", "import au_inner"), ("au_inner", ""), ("au_broken", "1 / 0"), ("au_late", "")):
        (tmp_path / f"{name}.py").write_text(text)
    return ["au_outer", "au_inner", "au_broken", "au_late"]


@pytest.fixture
def app() -> Headrace:
    app = Headrace("redis://x")

    @app.task(name="au.imports")
    def imports(how: str) -> bool:
        if how == "statement":
            import json  # noqa: F401

            import au_outer  # type: ignore[import-not-found]  # noqa: F401
        elif how == "function":
            importlib.import_module("au_late")
        else:
            try:
                import au_broken  # type: ignore[import-not-found]  # noqa: F401
            except ZeroDivisionError:
                return True
        return "au_inner" in sys.modules

    @app.task(name="au.works")
    def works(seconds: float) -> None:
        burn(seconds)

    @app.task(name="au.simmers")
    def simmers() -> None:
        simmer()

    @app.task(name="au.waits")
    def waits() -> None:
        time.sleep(0.05)

    @app.task(name="au.owns")
    def owns() -> str:
        signal.signal(signal.SIGVTALRM, lambda *_: None)
        burn(0.02)
        return str(signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0)

    @app.task(name="au.threads", kind="thread")
    def threads(name: str) -> None:
        importlib.import_module(name)

    @app.task(name="au.coroutine")
    async def coroutine(name: str) -> None:
        importlib.import_module(name)

    return app


def profiled(start: Callable[..., Runner], app: Headrace, kind: str = "process", slots: int = 1) -> Runner:
    return start(kind, slots, app=app, profiled=True)


def told(one: Runner) -> dict[int, list[str]]:
    return {found.number: [name for name, _ in found.imports] for found in one.found}


def test_imports_are_told_with_the_start_that_made_them(
    start: Callable[..., Runner], app: Headrace, modules: list[str]
) -> None:
    one = profiled(start, app)
    for token, how in enumerate(("statement", "function", "broken", "statement"), 1):
        assert one.one(claim(token, "au.imports", how)).ended.kind == "succeeded"
    assert told(one) == {1: ["au_outer"], 2: ["au_late"]}
    assert all(cost > 0 for found in one.found for _, cost in found.imports)
    assert [found.first for found in one.found] == [True, False]


def test_what_hooks_import_is_no_jobs_fault(start: Callable[..., Runner], app: Headrace, modules: list[str]) -> None:
    app.after_fork_child(lambda: importlib.import_module("au_outer"))
    one = profiled(start, app)
    one.one(claim(1, "au.waits"))
    (found,) = one.found
    assert ([name for name, _ in found.early], found.imports) == (["au_outer"], [])


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_imports_of_mates_are_told_apart(
    kind: str, start: Callable[..., Runner], app: Headrace, modules: list[str]
) -> None:
    one, task = profiled(start, app, kind, 2), {"thread": "au.threads", "async": "au.coroutine"}[kind]
    one.run(claim(1, task, "au_outer"), claim(2, task, "au_late"))
    one.until(lambda: one.ended(1, 2), "both ends")
    assert {token: names for token, names in told(one).items() if names} == {1: ["au_outer"], 2: ["au_late"]}


def simmer() -> None:
    burn(0.06)


def test_a_first_start_tells_where_its_time_went_and_no_other_does(start: Callable[..., Runner], app: Headrace) -> None:
    one = profiled(start, app)
    for token in (1, 2):
        one.one(claim(token, "au.simmers"))
    (found,) = one.found
    ((name, cost),) = found.functions
    assert (found.number, name) == (1, f"{__name__}:simmer"), "what can be called without arguments, no task"
    assert 30_000 < cost < 120_000, "microseconds of the process's own time"


def test_waiting_is_no_set_up(start: Callable[..., Runner], app: Headrace) -> None:
    one = profiled(start, app)
    one.one(claim(1, "au.waits"))
    assert [found.functions for found in one.found] == [[]]


def test_a_job_may_use_the_signal_itself(start: Callable[..., Runner], app: Headrace) -> None:
    one = profiled(start, app)
    assert one.one(claim(1, "au.owns")).ended.kind == "succeeded"
    assert one.one(claim(2, "au.works", 0.03)).ended.kind == "succeeded"
    assert one.leave() == 0


def test_a_runner_that_is_not_profiled_says_nothing(
    start: Callable[..., Runner], app: Headrace, modules: list[str]
) -> None:
    one = start(app=app)
    one.one(claim(1, "au.imports", "statement"))
    one.one(claim(2, "au.works", 0.03))
    assert one.found == []
