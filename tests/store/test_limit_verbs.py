"""Limits through the public face: an operator looks at them and changes them, from sync and async code."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Concurrency, Headrace, Limit, Rate
from headrace.errors import LaneFull, NotFound, OptionsError, StateError
from headrace.protocol import consume
from headrace.protocol.limit_verbs import declare_limits

Verb = Callable[..., Any]


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        app.limit("api", Rate(10, per=1))
        app.limit("account", Concurrency(2), by="account")
        yield app


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest, app: Headrace) -> Iterator[Verb]:
    """Calls a verb of a limit, or its asynchronous pair."""
    with asyncio.Runner() as runner:

        def call(limit: Limit, verb: str, *args: Any, **options: Any) -> Any:
            if request.param == "sync":
                return getattr(limit, verb)(*args, **options)
            return runner.run(getattr(limit, f"a{verb}")(*args, **options))

        yield call
        runner.run(app.client.aclose())


def test_numbers_are_set_and_unset(app: Headrace, do: Verb) -> None:
    limit = app.limits["account"]
    do(limit, "set", Rate(5, per=60), Concurrency(7), value="acme", weight=3)
    state = do(limit, "state", "acme")
    assert (state.rate, state.concurrency, state.weight, state.free) == (Rate(5, per=60), Concurrency(7), 3, 7)
    assert do(limit, "state").concurrency == Concurrency(2)
    assert [one.value for one in do(limit, "values").rows] == [None, "acme"]
    assert do(limit, "unset", "acme") is True
    assert do(limit, "unset", "acme") is False
    assert do(limit, "state", "acme").rate is None


def test_a_pause_is_put_and_ended(app: Headrace, do: Verb) -> None:
    limit = app.limits["api"]
    assert do(limit, "pause") is True
    assert do(limit, "pause", duration=60) is False
    assert do(limit, "state").until > 0
    assert do(limit, "unset") is False
    assert do(limit, "resume") is True
    assert do(limit, "resume") is False


def test_the_values_of_arguments_are_named_as_those_of_jobs_are(app: Headrace, do: Verb) -> None:
    limit = app.limits["account"]
    for value in ("a b", 7, True, "", "x" * 200):
        do(limit, "set", Concurrency(9), value=value)
        assert do(limit, "state", value).concurrency == Concurrency(9), value
    assert {"a b", "7", "true", ""} < {one.value for one in do(limit, "values").rows}


def test_what_cannot_be_is_refused(app: Headrace, do: Verb) -> None:
    account, api = app.limits["account"], app.limits["api"]
    with pytest.raises(OptionsError, match="give value="):
        do(account, "set", weight=2)
    with pytest.raises(OptionsError, match="weight must be a number from"):
        do(account, "set", weight=0, value="x")
    with pytest.raises(OptionsError, match="one of each"):
        do(account, "set", Rate(1), Rate(2))
    with pytest.raises(OptionsError, match="one of each"):
        do(account, "set")
    with pytest.raises(OptionsError, match=r"give Rate\(\.\.\.\)"):
        do(account, "set", 5)
    with pytest.raises(OptionsError, match="goes by no value"):
        do(api, "pause", "x")
    with pytest.raises(OptionsError, match="duration"):
        do(api, "pause", duration=0)
    with pytest.raises(OptionsError, match="no limit goes by the value"):
        do(account, "pause", object())
    with pytest.raises(OptionsError, match="no limit goes by the value"):
        do(account, "pause", 10**30)
    with pytest.raises(OptionsError, match="limit name"):
        app.limits[7]  # type: ignore[index]
    with pytest.raises(OptionsError, match="by must be the name of an argument"):
        app.limit("numbered", Rate(1), by=7)  # type: ignore[arg-type]


def test_a_limit_that_neither_workers_nor_this_program_declare_is_unknown(app: Headrace, do: Verb) -> None:
    for verb in ("pause", "resume", "unset", "state", "values"):
        with pytest.raises(NotFound, match="knows no limit other"):
            do(app.limits["other"], verb)
    # One that is declared here is stored with the first change.
    with pytest.raises(NotFound):
        do(app.limits["api"], "state")
    do(app.limits["api"], "pause")
    assert [one.name for one in app.limits.page()] == ["api"]
    assert not app.limits.page("api")


def test_limits_come_in_pages(app: Headrace, do: Verb) -> None:
    for name in ("a", "b", "c"):
        do(app.limit(name, Rate(1)), "pause")
    page = app.limits.page(limit=2)
    assert ([one.name for one in page], page[1].name, len(page), page.count, page.next) == (["a", "b"], "b", 2, 3, "b")
    last = app.limits.page(page.next, limit=2)
    assert ([one.name for one in last], last.count, last.next) == (["c"], 3, None)


def test_the_values_of_one_limit_are_no_page_of_limits(app: Headrace, do: Verb) -> None:
    for name in ("a", "b", "c"):
        do(app.limit(name, Rate(1), by="who"), "pause", value="ann")
    page = app.limits["a"].values(2)
    assert (len(page), page.count, page.next) == (2, 3, None)


def test_a_limit_is_deleted_once_no_worker_declares_it(app: Headrace, do: Verb) -> None:
    limit, keys = app.limits["account"], app.client.keys
    app.client.run(consume.register(keys, "w1", 10**9, ["place", "here:1"]))
    app.client.run(declare_limits(keys, "w1", [], app.limits.declared()))
    do(limit, "pause", "acme")
    with pytest.raises(StateError, match=r"limit account is declared by code that runs \(here:1\): take it out"):
        do(limit, "delete")
    assert app.client.run(consume.retire(keys, "w1", 0))
    assert do(limit, "delete") == 0
    assert [one.name for one in app.limits.page().rows] == ["api"]
    with pytest.raises(NotFound):
        do(limit, "delete")


def test_a_full_backlog_refuses_a_call_as_a_whole(url: str) -> None:
    with Headrace(url) as app:
        app.limit("few", by="account", backlog=3)

        @app.task(name="call", limits=["few"])
        def call(account: str) -> None: ...

        app.client.run(declare_limits(app.client.keys, "", [], app.limits.declared()))
        call.enqueue("acme")
        with pytest.raises(
            LaneFull, match="1 jobs wait for one value of limit few, and its backlog is 3: enqueue fewer"
        ) as caught:
            list(app.enqueue_many(call.job("acme") for _ in range(3)))
            assert (caught.value.limit, caught.value.backlog, caught.value.waiting) == ("few", 3, 1)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        assert app.queues["default"].size == 1
        assert app.overview().states["ready"] == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backlog": 0}, "backlog must be a whole number above 0"),
        ({"full": "later"}, "full must be one of wait, cancel_new"),
        ({"full": "cancel_new"}, "give Concurrency"),
    ],
)
def test_what_a_limit_cannot_do_when_it_is_full_is_refused(url: str, options: dict[str, Any], why: str) -> None:
    with Headrace(url) as app, pytest.raises(OptionsError, match=why):
        app.limit("few", Rate(1), **options)
