"""A job again with other arguments: what is hidden stays, what cannot be is said beside its field."""

from __future__ import annotations

from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.app import Headrace
from headrace.dashboard import Dashboard
from headrace.dashboard.again_pages import changes_of, restored, shown_arguments
from headrace.errors import ArgumentError
from headrace.model.hidden_values import HIDDEN, Redactor
from headrace.testing import Kit
from tests.dashboard.asking import Answer, ask, fields, operator, viewer
from tests.dashboard.conftest import CANARY, Shop


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, operator)


def said(answer: Answer) -> str:
    assert answer.status == 303, answer.text
    return unquote(answer.cookies["headrace_said"].strip('"'))


def made(answer: Answer) -> str:
    """The id of the new job, to which the browser is led."""
    assert answer.status == 303, answer.text
    return answer.headers["location"].rpartition("/")[2]


async def send(dashboard: Dashboard, id: str, **arguments: str) -> Answer:
    form = {f"argument {name}": text for name, text in arguments.items()}
    return await ask(dashboard, f"/jobs/{id}/act/again", form=form)


async def test_values_that_json_has_no_form_for_are_changed_by_the_annotations(
    shop: Shop, dashboard: Dashboard
) -> None:
    @shop.app.task(name="shop.stock")
    def stock(counts: dict[int, str], data: bytes, kinds: set, pair: tuple, rest: Any) -> None: ...  # type: ignore[type-arg]

    job = stock.enqueue({1: "a", 2: "b"}, b"\xff", {1, 2}, (1, "a"), {1: "a", 2: {3: b"c", 4: 5}})
    same = shop.app.jobs.again(job.id).refresh()
    assert same.args == job.refresh().args
    rest = '{"1": "z", "2": {"3": "Yw==", "4": 6}, "new": 7}'
    answer = await send(
        dashboard, job.id, counts='{"1": "a", "2": "c", "3": "d"}', data='"AAE="', kinds="[3]", rest=rest
    )
    new = shop.app.job(made(answer)).refresh()
    assert new.args == ({1: "a", 2: "c", 3: "d"}, b"\0\1", {3}, (1, "a"), {1: "z", 2: {3: b"c", 4: 6}, "new": 7})
    # What does not fit is said as ever.
    refused = await send(dashboard, job.id, counts='{"one": "a"}')
    assert refused.status == 400
    assert "expected int, got str at key in counts" in refused.text


async def test_a_job_whose_arguments_are_json_takes_values_that_json_has_no_form_for(shop: Shop) -> None:
    @shop.app.task(name="shop.label")
    def label(file: PurePosixPath, price: Decimal, rest: Any = None) -> None: ...

    job = label.enqueue_json('["a/b", "1.50"]')
    new = shop.app.jobs.again(job.id, {"file": PurePosixPath("c"), "price": Decimal(2)}).refresh()
    assert (new.args, new.form) == ((PurePosixPath("c"), Decimal(2)), "json")
    with pytest.raises(
        ArgumentError, match=r"the changes of a job of shop.label, .* cannot be sent \(builtins.object\)"
    ):
        shop.app.jobs.again(job.id, {"rest": object()})


async def test_an_argument_is_changed_and_the_old_job_stays(shop: Shop, dashboard: Dashboard) -> None:
    page = await ask(dashboard, f"/jobs/{shop.done}")
    assert f"/jobs/{shop.done}/again" in set(page.links())
    form = await ask(dashboard, f"/jobs/{shop.done}/again")
    fields = [one["name"] for tag, one in form.elements if tag == "textarea"]
    assert fields == ["argument a", "argument b"]
    answer = await send(dashboard, shop.done, a="40", b="2")
    new = shop.app.job(made(answer)).refresh()
    assert (new.task, new.arguments, new.state) == ("shop.add", {"a": 40, "b": 2}, "ready")
    assert new.headers["headrace-again-of"] == shop.done
    assert shop.app.job(shop.done).refresh().arguments == {"a": 1, "b": 2}
    assert said(answer) == f"Job {new.id} is {shop.done} again, with another a."
    shown = await ask(dashboard, f"/jobs/{new.id}")
    assert "Again of" in shown.text
    assert f"/jobs/{shop.done}" in set(shown.links())
    (act,) = shop.app.acts.page()
    assert (act.verb, act.name) == ("again", shop.done)


async def test_a_form_that_is_sent_twice_makes_one_job(shop: Shop, dashboard: Dashboard) -> None:
    before = shop.app.jobs.count("ready")
    form = fields(await ask(dashboard, f"/jobs/{shop.done}/again"))
    # What cannot be read comes back with the form, which stays the same.
    form = fields(await ask(dashboard, f"/jobs/{shop.done}/act/again", form={**form, "argument a": "{"}))
    first, second = [await ask(dashboard, f"/jobs/{shop.done}/act/again", form=form) for _ in range(2)]
    assert made(first) == made(second)
    assert said(second) == f"Job {made(first)} was made before: this makes no other."
    assert shop.app.jobs.count("ready") == before + 1


async def test_hidden_values_stay_unless_they_are_overwritten(shop: Shop, dashboard: Dashboard) -> None:
    form = await ask(dashboard, f"/jobs/{shop.failed}/again")
    assert CANARY not in form.text
    assert HIDDEN in form.text
    new = shop.app.job(
        made(await send(dashboard, shop.failed, options=f'{{"token": "{HIDDEN}", "more": 1}}'))
    ).refresh()
    assert new.arguments == {"password": CANARY, "options": {"token": CANARY, "more": 1}}
    new = shop.app.job(made(await send(dashboard, shop.failed, password='"new"'))).refresh()
    assert new.arguments == {"password": "new", "options": {"token": CANARY}}
    wrong = await send(dashboard, shop.failed, options=f'{{"other": "{HIDDEN}"}}')
    assert wrong.status == 400
    assert "only where it was" in wrong.text
    assert CANARY not in wrong.text


async def test_what_cannot_be_read_or_does_not_fit_is_said_with_what_was_typed(
    shop: Shop, dashboard: Dashboard
) -> None:
    before = shop.app.jobs.count("ready")
    wrong = await send(dashboard, shop.done, a="{", b="7")
    assert wrong.status == 400
    assert "aria-invalid" in wrong.text
    assert "\n7</textarea>" in wrong.text
    misfit = await send(dashboard, shop.done, a='"<b>"', b="2")
    assert misfit.status == 400
    assert "Nothing was done" in misfit.text
    assert "&#34;&lt;b&gt;&#34;</textarea>" in misfit.text
    assert shop.app.jobs.count("ready") == before
    assert (await ask(dashboard, f"/jobs/{'0' * 21}/again")).status == 404
    assert (await ask(dashboard, "/jobs/no/act/again", form={})).status == 404


async def test_a_job_of_another_program_is_run_again_by_the_numbers_of_its_arguments(shop: Shop, url: str) -> None:
    # As the kit, which has one shard.
    bare = Headrace(url, namespace=shop.app.settings.namespace, shards=1)
    job = bare.by_name("shop.add", queue="slow", priority=3, key="k", note="a note", timeout=5).enqueue(1, b=2)
    dashboard = Dashboard(bare, operator)
    form = await ask(dashboard, f"/jobs/{job.id}/again")
    assert [one["name"] for tag, one in form.elements if tag == "textarea"] == ["argument 1", "argument b"]
    new = bare.job(made(await send(dashboard, job.id, **{"1": "9"}))).refresh()
    assert (new.queue, new.priority, new.key, new.note) == ("slow", 3, "k", "a note")
    assert (new.args, new.kwargs) == ((9,), {"b": 2})
    assert new.options == job.refresh().options
    bare.close()


async def test_a_job_of_a_shell_stays_json_and_one_of_a_workflow_may_refuse(
    shop: Shop, dashboard: Dashboard, kit: Kit
) -> None:
    job = shop.add.enqueue_json("[1, 2]")
    new = shop.app.job(made(await send(dashboard, job.id, b="5"))).refresh()
    assert (new.form, new.arguments) == ("json", {"a": 1, "b": 5})
    nodes = shop.app.workflows.get(shop.flow).nodes()
    first, second = [one.job.id for one in nodes if one.job.task == "shop.add"]
    again = shop.app.job(made(await send(dashboard, first))).refresh()
    assert again.state == "ready"
    refused = await ask(dashboard, f"/jobs/{second}/again")
    assert (refused.status, "run the workflow again" in refused.text) == (404, True)


async def test_only_operators_run_one_again(shop: Shop) -> None:
    looking = Dashboard(shop.app, viewer)
    assert "/again" not in (await ask(looking, f"/jobs/{shop.done}")).text
    page = await ask(looking, f"/jobs/{shop.done}/again")
    assert "Only operators" in page.text
    assert "textarea" not in page.text
    assert (await send(looking, shop.done)).status == 403


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "password", "b"]), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["one", "token", "two"]), VALUES))
def test_what_is_sent_as_it_was_shown_changes_nothing(stored: dict[str, Any]) -> None:
    redactor = Redactor()
    shown = shown_arguments(stored, redactor)
    form = {f"argument {one.name}": (one.text or "").replace("\n", "\r\n") for one in shown}
    changes, typed = changes_of(stored, form, redactor)
    assert changes == {}
    assert [one.problem for one in typed] == [""] * len(stored)
    # Nor does another layout of the same JSON.
    form = {name: f" {text} " for name, text in form.items()}
    assert changes_of(stored, form, redactor)[0] == {}


@pytest.mark.parametrize(
    ("typed", "shown", "stored", "wanted"),
    [
        ([1, HIDDEN], [2, HIDDEN], [2, "x"], [1, "x"]),
        ({"a": [True]}, {"a": [1]}, {"a": [1]}, {"a": [True]}),
        ({"b": 3}, {"a": HIDDEN}, {"a": "x"}, {"b": 3}),
        (["3 B of bytes: 61", 2], ["3 B of bytes: 61", 1], [b"abc", 1], [b"abc", 2]),
    ],
)
def test_what_is_left_as_it_was_shown_stays(typed: Any, shown: Any, stored: Any, wanted: Any) -> None:
    found = restored(typed, shown, stored)
    assert found == wanted
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize(("typed", "shown", "stored"), [([HIDDEN, 1], [1, HIDDEN], [1, "x"]), (HIDDEN, 1, 1)])
def test_a_hidden_value_cannot_move(typed: Any, shown: Any, stored: Any) -> None:
    with pytest.raises(ValueError, match="only where it was"):
        restored(typed, shown, stored)
