from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import sys
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.output import to_json
from headrace.dashboard.values_shown import json_bytes, json_text
from headrace.errors import ArgumentError, PayloadTooLarge, ResultMismatch
from headrace.model import codec, job_record
from headrace.model.signature import Signature, Unchecked
from headrace.model.type_registry import Types


class Level(enum.IntEnum):
    HIGH = 3


class Record(msgspec.Struct):
    name: str


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(plain)
def test_plain_values_come_back(value: Any) -> None:
    assert codec.decode(codec.encode(value, 1 << 20, "it")) == value


def test_what_msgspec_knows_can_be_sent() -> None:
    moment = dt.datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    values = [Level.HIGH, Record("a"), moment, dt.date(2030, 1, 1), decimal.Decimal("1.5"), uuid.UUID(int=7), {1, 2}]
    decoded = codec.decode(codec.encode(values, 1000, "it"))
    assert decoded[:3] == [3, {"name": "a"}, moment]
    assert decoded[4:6] == ["1.5", str(uuid.UUID(int=7))]


class Alien:
    pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Alien(), r"test_codec.Alien"),
        ([{"deep": Alien()}], r"test_codec.Alien"),
        (1 << 64, "integers of at most 64 bits"),
        (lambda: None, "builtins.function"),
        (1j, "builtins.complex"),
    ],
)
def test_what_cannot_be_sent_says_what_can(value: object, reason: str) -> None:
    with pytest.raises(ArgumentError, match=r"^it cannot be sent .*use JSON-like values, dataclasses") as caught:
        codec.encode(value, 1000, "it")
    assert reason in str(caught.value)


def nested(levels: int) -> bytes:
    return b"\x91" * levels + b"\x01"


def test_what_is_nested_too_deeply_is_named() -> None:
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match=r"^result of tasks.tree cannot be sent: nested too deeply to be"):
        codec.encode(deep, 1 << 20, "result of tasks.tree")
    deep = [1, {"a": (2, [])}]
    deep[1]["a"][1].append(deep)  # type: ignore[index]
    with pytest.raises(ArgumentError, match=r"^result of tasks.tree cannot be sent: it contains itself; send"):
        codec.encode(deep, 1 << 20, "result of tasks.tree")
    with pytest.raises(msgspec.DecodeError, match="nested too deeply to be read here"):
        codec.decode(nested(50_000))
    assert codec.readable(nested(50_000)) == "<50001 bytes, nested too deeply to be read here>"
    slot = msgspec.msgpack.encode(msgspec.msgpack.Ext(codec.SLOT, b"\x00"))
    with pytest.raises(ArgumentError, match="nested too deeply"):
        job_record.fill(b"\x91" * 50_000 + slot, [b"\xc0"])


def test_arguments_and_results_that_are_nested_too_deeply_are_named() -> None:
    def tree(root: object) -> object: ...

    signature = Signature("tasks.tree", tree, Types())
    for data in (b"\x92\x91" + nested(50_000) + b"\x80", b"\x92\x90\x81\xa4root" + nested(50_000)):
        with pytest.raises(ArgumentError, match=r"^the arguments of tasks.tree are nested too deeply"):
            signature.unpack(data)
    for one in (signature, Unchecked("tasks.tree", Types())):
        with pytest.raises(ResultMismatch, match=r"the stored result of tasks.tree is .*nested too deeply"):
            one.unpack_result(nested(50_000))
    deep: list[object] = []
    # Deep enough to be written, and too deep to be read within the call that checks it.
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
        try:
            signature.pack((deep,), {}, 1 << 20)
        except ArgumentError as error:
            assert "nested too deeply" in str(error)  # noqa: PT017
            return
    raise AssertionError("no nesting is too deep")


def test_the_cap_is_exact() -> None:
    assert len(codec.encode("x" * 29, 30, "it")) == 30
    with pytest.raises(PayloadTooLarge, match="it takes 31 bytes, more than the cap of 30: store it elsewhere"):
        codec.encode("x" * 30, 30, "it")


def test_people_read_json_or_are_told_that_it_is_none() -> None:
    assert codec.readable(codec.encode([1, {"a": "é"}], 100, "it")) == '[1,{"a":"é"}]'
    assert codec.readable(b"\xc1\xc1") == "<2 bytes that are not MessagePack>"
    assert codec.readable(codec.encode(b"\xff", 100, "it")) == '"/w=="'


def test_numbers_that_json_has_no_form_for_are_texts() -> None:
    value = {"a": [math.nan, {"b": (math.inf, -math.inf)}], "c": 1.5, 2: None}
    assert codec.for_json(value, str) == {"a": ["NaN", {"b": ["Infinity", "-Infinity"]}], "c": 1.5, "2": None}
    assert to_json(math.nan) == '"NaN"'
    assert json_text([math.inf], indent=-1) == '["Infinity"]'
    assert json_bytes({"result": math.nan}) == b'{"result":"NaN"}'
