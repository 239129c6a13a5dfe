"""Lifespans as they are written down, and how what several yield becomes one state."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import MappingProxyType
from typing import Any

import pytest

from headrace import Headrace, Tasks
from headrace.errors import LifespanError, OptionsError
from headrace.worker.runner.lifespans import merged


@pytest.fixture
def app() -> Headrace:
    return Headrace("redis://localhost:1/0")


def pool() -> Iterator[dict[str, int]]:
    yield {"pool": 1}


async def apool() -> AsyncIterator[dict[str, int]]:
    yield {"apool": 1}


def plain() -> int:
    return 1


async def coroutine() -> None: ...


def takes(one: int, two: int = 1) -> Iterator[int]:
    yield one + two


ALL = {"process", "fork", "thread", "async"}


def test_without_a_kind_all_runners_have_it_and_only_event_loops_an_asynchronous_one(app: Headrace) -> None:
    assert app.lifespan(pool) is pool
    assert app.lifespan(apool) is apool
    app.lifespan()(pool)
    app.lifespan(kind="thread")(pool)
    app.lifespan(kind=("process", "async"))(pool)
    app.lifespan(kind="async")(apool)
    kinds = [set(one.kinds) for one in app.context.lifespans]
    assert kinds == [ALL, {"async"}, ALL, {"thread"}, {"process", "async"}, {"async"}]
    assert [one.is_async for one in app.context.lifespans] == [False, True, False, False, False, True]
    assert app.context.lifespans[0].name == f"{__name__}.pool"


def test_functions_that_contextlib_has_decorated_are_taken_too(app: Headrace) -> None:
    app.lifespan(contextlib.contextmanager(pool))
    app.lifespan(contextlib.asynccontextmanager(apool))
    app.lifespan(functools.partial(takes, 1) and contextlib.contextmanager(pool))
    first, second, _ = app.context.lifespans
    assert (first.is_async, second.is_async) == (False, True)
    with first.open() as state:  # type: ignore[union-attr]
        assert state == {"pool": 1}
    assert second.name == f"{__name__}.apool"


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (plain, None, "a lifespan is a function with one yield, `def` or `async def`, not <function plain"),
        (coroutine, None, "a lifespan is a function with one yield"),
        (7, None, "a lifespan is a function with one yield, `def` or `async def`, not 7"),
        (contextlib.nullcontext(), None, "a lifespan is a function with one yield"),
        (takes, None, r"the lifespan .*test_lifespan\.takes is called without arguments, and it takes one$"),
        (apool, "process", r"test_lifespan\.apool is asynchronous, and runners of the kind process have no event loop"),
        (apool, ["thread", "async", "process"], "runners of the kind process, thread have no event loop: write `def`"),
        (pool, "threads", "kind must be one of process, fork, thread, async, or several of them, not 'threads'"),
        (pool, ["thread", "x"], "kind must be one of"),
        (pool, [], r"kind must be one of .*, not \[\]"),
        (pool, 3, "kind must be one of .*, not 3"),
    ],
)
def test_what_can_be_no_lifespan_is_refused_where_it_is_written(
    app: Headrace, function: Any, kind: Any, text: str
) -> None:
    with pytest.raises(OptionsError, match=text):
        app.lifespan(kind=kind)(function)
    assert app.context.lifespans == []


def test_a_kind_is_checked_before_there_is_a_function(app: Headrace) -> None:
    wrong: Any = "threads"
    for register in (app.lifespan, Tasks().lifespan):
        with pytest.raises(OptionsError, match="kind must be one of"):
            register(kind=wrong)


def test_lifespans_of_included_tasks_are_those_of_the_application(app: Headrace) -> None:
    tasks, other = Tasks(), Headrace("redis://localhost:1/1")
    tasks.lifespan(pool)
    app.lifespan(kind="thread")(pool)
    app.include(tasks)
    tasks.lifespan(kind="async")(apool)
    assert [one.name.rpartition(".")[2] for one in app.context.lifespans] == ["pool", "pool", "apool"]
    other.include(tasks, move=True)
    assert [set(one.kinds) for one in app.context.lifespans] == [{"thread"}]
    assert [set(one.kinds) for one in other.context.lifespans] == [ALL, {"async"}]


def test_one_value_is_the_state_and_several_mappings_become_one() -> None:
    value = object()
    assert merged([]) is None
    assert merged([("a", None), ("b", None)]) is None
    assert merged([("a", None), ("b", value), ("c", None)]) is value
    assert merged([("a", {"x": 1}), ("b", None), ("c", MappingProxyType({"y": 2}))]) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([("a", {"x": 1}), ("b", 3)], r"the lifespan b yields a int, and others yield something too \(a\): let each"),
        ([("a", {"x": 1}), ("b", {"y": 1, "x": 2})], "the lifespans a and b both yield 'x': rename one of them"),
    ],
)
def test_values_that_cannot_be_put_together_are_refused(values: list[tuple[str, Any]], text: str) -> None:
    with pytest.raises(LifespanError, match=text):
        merged(values)


def test_a_lifespan_can_be_used_by_tests_as_it_stands(app: Headrace) -> None:
    decorated: Callable[[], Any] = app.lifespan(contextlib.contextmanager(pool))
    with decorated() as state:
        assert state == {"pool": 1}
