"""Envelopes: every option survives, and bytes that anybody may have written are refused in words."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from headrace import Debounce, Headrace, Latest, Retry, Throttle, Unique
from headrace.errors import EnvelopeError
from headrace.model.form import Form
from headrace.model.ids import flow_id, make_id, node_id, ordered_id, unique_id
from headrace.tasks.envelope import Envelope, EnvelopeReader, Letter
from headrace.tasks.submission import UnsentJob

ID = make_id(1_700_000_000_000, 5)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue": "low", "priority": -7, "delay": 5, "expires": 60.5},
    {"at": datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)},
    {"key": "customer 7", "ordered": True},
    {"retries": 3},
    {"retries": Retry(max=2, delay=1.0, factor=1.5, max_delay=timedelta(minutes=1), jitter=0.5)},
    {"timeout": 0.1, "hard_timeout": 7},
    {"timeout": math.inf, "hard_timeout": math.inf},
    {"at_most_once": True, "retries": 0},
    {"max_crashes": 9},
    {"result_ttl": 0, "failure_ttl": timedelta(days=400)},
    {"headers": {"tenant": "a", "empty": ""}, "request_id": "order 7"},
    {"unique": Unique(text="n", clash="raise")},
    {"unique": Unique(text="n", within=60)},
    {"unique": Latest(text="n")},
    {"unique": Debounce(5, most=60, text="n")},
    {"unique": Throttle(5, trailing=True, text="n")},
]  # fmt: skip


@pytest.fixture
def app() -> Headrace:
    # Port 1: a test that connects fails.
    app = Headrace("redis://localhost:1/0")
    app.task(name="fetch", retries=Retry(max=9, delay=30))(fetch)
    return app


def fetch(*values: Any, **others: Any) -> None: ...


def read(data: object, row: int = 0, most: int = 100_000) -> Letter:
    return EnvelopeReader(most, 1).read(data, row)


def fields(job: UnsentJob[Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(job.pack())
    return found


def made(**changed: Any) -> bytes:
    return msgspec.msgpack.encode({"v": 1, "id": ID, "task": "fetch"} | changed)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "none")
def test_what_was_asked_for_survives(app: Headrace, options: dict[str, Any]) -> None:
    job = app.tasks["fetch"].options(**options).job(1, b"\x00", [None, 2.5], name="Ada")
    letter = read(job.pack())
    assert letter == Letter(job.id, job.args, letter.options, job.form)
    assert letter.options.request_id == options.get("request_id", "")
    # As the producer's task has it, not as some task is here.
    assert read(app.by_name("fetch", **options).job().pack()).form == app.by_name("fetch", **options).job().form


def test_what_is_default_takes_no_byte(app: Headrace) -> None:
    job = app.by_name("elsewhere.task").job()
    assert fields(job) == {"v": 1, "id": job.id, "task": "elsewhere.task"}
    assert len(job.pack()) < 60


def test_durations_are_whole_microseconds(app: Headrace) -> None:
    job = app.by_name("x", delay=0.5, timeout=2, hard_timeout=1e-9 + 3, retries=1, result_ttl=60).job("a", b=1)
    assert fields(job) == {
        "v": 1, "id": job.id, "task": "x", "args": ["a"], "kwargs": {"b": 1}, "delay": 500_000, "timeout": 2_000_000,
        "hard_timeout": 3_000_000, "retries": 1, "result_ttl": 60_000_000,
    }  # fmt: skip
    assert fields(app.by_name("x", timeout=1e-9).job())["timeout"] == 1
    assert fields(app.by_name("x", timeout=math.inf).job())["timeout"] == 0


def test_a_foreign_envelope_is_read_as_documented() -> None:
    letter = read(bytearray(made(args=[1], kwargs={"a": None}, headers={"tenant": "a"}, priority=3)))
    assert (letter.id, letter.args) == (ID, msgspec.msgpack.encode(([1], {"a": None})))
    assert letter.form == Form("fetch", priority=3, headers=msgspec.msgpack.encode({"tenant": "a"}))
    assert read(memoryview(made())).form == Form("fetch")
    assert read(made(form="msgpack")).form == Form("fetch")


def test_arguments_that_come_from_json_stay_json(app: Headrace) -> None:
    letter = read(made(form="json", args=["2026-01-02", {"1": None}], kwargs={"a": 0.5}))
    assert letter.args == b'[["2026-01-02",{"1":null}],{"a":0.5}]'
    job: UnsentJob[Any] = UnsentJob(app.by_name("fetch"), letter.args, letter.form, drawn=ID)
    assert fields(job) == {
        "v": 1, "id": ID, "task": "fetch", "form": "json", "args": ["2026-01-02", {"1": None}], "kwargs": {"a": 0.5},
    }  # fmt: skip
    assert read(job.pack()).args == letter.args
    with pytest.raises(EnvelopeError, match="envelope 0"):
        read(made(form="json", args=[msgspec.msgpack.Ext(7, b"x")]))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"v": 2, "new": 1}, "it has version 2, and this Headrace knows 1: upgrade headrace here"),
        ({"v": 2}, "it has version 2, and this Headrace knows 1"),
        ({"v": "1"}, "it has version '1', and this Headrace knows 1"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"form": "pickle"}, "Invalid enum value 'pickle' - at `$.form`"),
        ({"id": 7}, "Expected `str`, got `int` - at `$.id`"),
        ({"id": "short"}, "'short' is not the id of a job"),
        ({"id": make_id(1, 1, 3)}, "its id is not that of a job of this store"),
        ({"id": flow_id(1, 1)}, "its id is not that of a job of this store"),
        ({"id": node_id(flow_id(1, 1), 7)}, "its id is not that of a job of this store"),
        ({"id": ordered_id(ID)}, "its id and its field ordered contradict each other"),
        ({"ordered": True, "key": "k"}, "its id and its field ordered contradict each other"),
        ({"id": ordered_id(ID), "ordered": True}, "it is ordered by key, and has no key"),
        ({"unique": {"text": "n"}}, "its id and its field unique contradict each other"),
        ({"id": unique_id(ID)}, "its id and its field unique contradict each other"),
        ({"id": unique_id(ID), "unique": {}}, "unique.text must be the name"),
        ({"id": unique_id(ID), "unique": {"text": "n", "hold": "within"}}, "unique.span is the microseconds"),
        ({"id": unique_id(ID), "unique": {"text": "n", "clash": "latest", "hold": "start"}}, "latest does not go with"),
        ({"id": unique_id(ID), "unique": {"text": "n", "hold": "for ever"}}, "Invalid enum value 'for ever'"),
        ({"task": ""}, "task name '' cannot be used"),
        ({"task": "a b"}, "task name 'a b' cannot be used"),
        ({"args": {"a": 1}}, "Expected `array`, got `object` - at `$.args`"),
        ({"kwargs": {1: 2}}, "Expected `str`, got `int` - at `key` in `$.kwargs`"),
        ({"queue": "@host:1:ab"}, "queue name '@host:1:ab' cannot be used"),
        ({"priority": 101}, "priority must be a whole number from -100 to 100, not 101"),
        ({"priority": True}, "Expected `int`, got `bool` - at `$.priority`"),
        ({"priority": 2**63}, "priority must be a whole number"),
        ({"delay": -1}, "delay must be at least 0"),
        ({"delay": 1.5}, "Expected `int`, got `float` - at `$.delay`"),
        ({"delay": 2**62}, "delay must be at least 0 and at most 100 years"),
        ({"delay": 5, "at": 5}, "delay and at contradict each other"),
        ({"at": -1}, "at must be microseconds since 1970, below 2**53, not -1"),
        ({"at": 2**53}, "at must be microseconds since 1970, below 2**53"),
        ({"expires": -1}, "expires must be more than 0"),
        ({"expires": 5, "delay": 5}, "expires must be more than delay"),
        ({"key": "k" * 257}, "key must be a text of 1 to 256 characters"),
        ({"max_crashes": 1001}, "must be a whole number from 1 to 1000, not 1001"),
        ({"retries": -1}, "retries must be a whole number from 0 to 1000, not -1"),
        ({"retries": 1, "at_most_once": True}, "at_most_once and retries contradict each other"),
        ({"retry_delay": [1, -1]}, "each delay before a retry must be at least 0"),
        ({"retry_delay": -1}, "the delay before a retry must be at least 0"),
        ({"retry_factor": 0.5}, "the factor between retries must be from 1 to 1000, not 0.5"),
        ({"retry_factor": math.nan}, "the factor between retries must be from 1 to 1000, not nan"),
        ({"retry_jitter": 2}, "jitter is a share of the delay, from 0 to 1"),
        ({"timeout": -1}, "timeout must be more than 0"),
        ({"timeout": 5, "hard_timeout": 5}, "hard_timeout=5e-06 must be more than timeout=5e-06"),
        ({"result_ttl": -1}, "must be at least 0"),
        ({"request_id": "r" * 257}, "request_id must be a text of 1 to 256 characters"),
        ({"headers": {"a": 1}}, "Expected `str`, got `int` - at `$.headers[...]`"),
        ({"headers": {str(n): "" for n in range(17)}}, "at most 16 headers"),
        ({"headers": {"a": "x" * 5000}}, "at most 4,096 bytes in all"),
        ({"args": ["x" * 100_001]}, "arguments of fetch takes 100,009 bytes, more than the cap of 100,000"),
        ({"task": "x" * 200_000}, "bytes, and 116,384 are the most"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        read(made(**changed), 7)
    assert says in str(caught.value)
    assert str(caught.value).startswith("envelope 7")
    assert caught.value.row == 7


@pytest.mark.parametrize("missing", ["v", "id", "task"])
def test_what_is_required_is_named(missing: str) -> None:
    whole = {"v": 1, "id": ID, "task": "fetch"}
    with pytest.raises(EnvelopeError, match=f"missing required field `{missing}`"):
        read(msgspec.msgpack.encode({name: value for name, value in whole.items() if name != missing}))


@pytest.mark.parametrize(
    "data", ["text", None, 7, b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91" * 2000, made()[:-1], made() + b"\x00"]
)
def test_what_is_no_envelope_is_refused(data: Any) -> None:
    with pytest.raises(EnvelopeError):
        read(data)


def test_arguments_that_nobody_could_read_are_refused() -> None:
    broken = made(args=["text"]).replace(b"text", b"t\xff\xfet")
    deep = made(args=[1]).replace(b"\x91\x01", b"\x91" * 50_000 + b"\x01")
    for data in (broken, deep):
        with pytest.raises(EnvelopeError):
            read(data)


def test_rubbish_is_refused_or_read_and_nothing_else_happens() -> None:
    dice = random.Random(7)
    good = made(args=[1, "a", {"b": None}], headers={"a": "b"}, priority=2, retries=1, timeout=5)
    outcomes = set[str]()
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            letter = read(bytes(data))
        except EnvelopeError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
            msgspec.msgpack.decode(letter.args)
    assert outcomes == {"read", "refused"}


def test_the_page_names_every_field() -> None:
    from pathlib import Path

    docs = Path(__file__).resolve().parents[2] / "docs"
    page = (docs / "envelope.md").read_text() + (docs / "options.md").read_text().partition("## In an envelope")[2]
    for name in Envelope.__struct_fields__:
        assert f"| `{name}` |" in page, name
