"""Headers as options, and as a job holds them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace import CurrentJob, Flow, Headrace
from headrace.errors import CorruptRecord, OptionsError
from headrace.model.form import Form
from headrace.model.headers import packed, unpacked
from headrace.model.job import Claim
from headrace.running_job import running
from headrace.tasks.bound_task import BoundTask


@pytest.fixture
def app() -> Headrace:
    # Port 1: a test that connects fails.
    app = Headrace("redis://localhost:1/0")
    app.task(name="fetch", headers={"team": "web"})(fetch)
    app.task(name="plain")(plain)
    return app


def fetch(x: int = 0) -> int:
    return x


def plain(x: Any = None) -> None: ...


def of(bound: BoundTask[..., Any]) -> dict[str, str]:
    return dict(unpacked(bound.job().form.headers))


# Of what a job makes.
FAMILY = {"correlation": "id"}


def inside(**headers: str) -> running:
    data = msgspec.msgpack.encode(headers) if headers else b""
    return running(CurrentJob(Claim("id", 1, "default", 0, "outer", b"", headers=data), lambda note: None))


def test_headers_of_task_and_call_add_up(app: Headrace) -> None:
    task = app.tasks["fetch"]
    assert of(task.options()) == {"team": "web"}
    assert of(task.options(headers={"tenant": "a"}).options(headers={"tenant": "b"})) == {"team": "web", "tenant": "b"}
    assert of(task.options(headers={"team": None})) == {}
    assert of(app.by_name("elsewhere.task", headers={"tenant": "a"})) == {"tenant": "a"}


def test_a_job_without_headers_has_no_bytes_for_them(app: Headrace) -> None:
    assert app.tasks["plain"].options(headers={}).job().form == Form("plain")


def test_what_is_made_in_a_job_inherits_its_headers_and_its_own_come_first(app: Headrace) -> None:
    task, plain = app.tasks["fetch"], app.tasks["plain"]
    with inside(tenant="a", team="ops"):
        assert of(plain.options()) == {"tenant": "a", "team": "ops"} | FAMILY
        assert of(task.options()) == {"tenant": "a", "team": "web"} | FAMILY
        assert of(task.options(headers={"tenant": None})) == {"team": "web"} | FAMILY
    kept = plain.options()
    for tenant in ("a", "b"):
        with inside(tenant=tenant):
            assert of(kept) == {"tenant": tenant} | FAMILY
    with inside():
        assert of(kept) == FAMILY
    assert of(kept) == {}


def test_what_a_job_enqueues_shares_one_form(app: Headrace) -> None:
    """Else each enqueue would read the headers of the job and pack them again."""
    task = app.by_name("fetch")
    with inside(trace="1"):
        assert task.job().form is task.job().form


def test_nodes_undos_and_callbacks_inherit(app: Headrace) -> None:
    def inner(flow: Flow) -> None:
        flow.run("plain", name="deep")

    def outer(flow: Flow) -> None:
        flow.run("plain", name="first", undo="plain")
        flow.run("plain", name="own", options={"headers": {"tenant": "own"}})
        flow.run(nested, name="nested")
        flow.map("plain", [1, 2], name="many")

    nested = app.workflow(name="inner", headers={"nested": "1"})(inner)
    made = app.workflow(name="outer", headers={"tenant": "a"}, on_success="plain")(outer)

    def found() -> dict[str, dict[str, str]]:
        graph = made.graph()
        jobs = [node for node in graph.nodes if node.role in ("", "undo", "callback")]
        names = [msgspec.msgpack.decode(node.facts)[0] for node in jobs]
        return {name: dict(unpacked(node.form.headers)) for name, node in zip(names, jobs, strict=True)}

    mine = {"tenant": "a"}
    assert found() == {
        "first": mine, "own": {"tenant": "own"}, "nested/deep": {"tenant": "a", "nested": "1"}, "many[0]": mine,
        "many[1]": mine, "first (undo)": mine, "(on_success)": mine,
    }  # fmt: skip
    with inside(tenant="b", trace="t"):
        assert found()["first"] == {"tenant": "a", "trace": "t"} | FAMILY
    made = made.options(headers={"tenant": "c"})
    assert found()["first"] == {"tenant": "c"}


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ("tenant=a", "headers must be a dictionary of texts by name, not 'tenant=a'"),
        ({"tenant": 7}, "header 'tenant' must be a text, not int: write str(...)"),
        ({7: "a"}, "the name of a header must be a text that is not empty, not 7"),
        ({"": "a"}, "the name of a header must be a text that is not empty, not ''"),
        ({"a": "\ud800"}, "a header holds '\\ud800', which is not a character of a text"),
        ({str(n): "" for n in range(17)}, "at most 16 headers, those that it inherits included, and these are 17"),
        ({"a": "x" * 4096}, "at most 4,096 bytes in all, and these take 4,097: send the others as arguments"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(app: Headrace, headers: Any, says: str) -> None:
    with pytest.raises(OptionsError) as caught:
        app.tasks["plain"].options(headers=headers)
    assert says in str(caught.value)


def test_the_limits_count_for_the_sum_of_all(app: Headrace) -> None:
    plain = app.tasks["plain"]
    assert of(plain.options(headers={"a": "x" * 4095}))
    assert len(of(plain.options(headers={str(n): "" for n in range(16)}))) == 16
    with inside(**{f"h{n}": "" for n in range(16)}):
        assert len(of(plain.options())) == 16
        with pytest.raises(OptionsError, match="these are 17"):
            plain.options(headers={"more": ""}).job()


@pytest.mark.parametrize("data", [b"\xc1", b"\x90", msgspec.msgpack.encode({"a": 1}), packed({"a": "b"})[:-1]])
def test_alien_headers_are_told(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="another program wrote or cut them"):
        unpacked(data)
