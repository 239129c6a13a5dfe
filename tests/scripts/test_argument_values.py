"""argument_values.lua: values are named as Python names them."""

from __future__ import annotations

import datetime as dt
import uuid

import msgspec
import pytest

from headrace.model.limit_rules import LimitRule, value_name
from tests.scripts.limited_stage import declare
from tests.scripts.stage import Stage

FAIR = LimitRule("fair", by="account")
VALUES = (
    "acme-1", "", "a b|c%ü", "x" * 40, "y" * 300, 0, 7, 127, 128, 70_000, 5_000_000_000, -1, -200, 1 << 60, True, False,
    None, 1.5, b"bytes", [1, 2], {"a": 1}, 2**52,
)  # fmt: skip


def lane(stage: Stage, args: bytes) -> str:
    job = stage.job(task="call", args=args)
    stage.enqueue(job)
    return stage.record(job.id)["lane"].decode().removeprefix("default|fair=|")


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_lua_and_python_name_values_alike(stage: Stage, value: object) -> None:
    declare(stage, {"call": [FAIR]})
    name = value_name(msgspec.msgpack.encode(value))
    assert lane(stage, msgspec.msgpack.encode([[value, 2], {}])) == name
    assert lane(stage, msgspec.msgpack.encode([[], {"n": 2, "account": value}])) == name


def test_arguments_that_lua_cannot_read_are_passed_over(stage: Stage) -> None:
    rule = LimitRule("fair", by="n")
    declare(stage, {"call": [rule]})
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for other in (
        b"\xff" * 300,
        b"",
        now,
        uuid.UUID(int=1),
        1.5,
        "x" * 70_000,
        [b"1"] * 20,
        {str(n): n for n in range(20)},
    ):
        assert lane(stage, msgspec.msgpack.encode([[other, "me"], {}])) == "me"


def test_arguments_as_json(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    for args, name in (
        (b'[["acme"],{}]', "acme"),
        (b'[[],{"account":12}]', "12"),
        (b"[[true],{}]", "true"),
        (b"[[],{}]", ""),
    ):
        assert lane(stage, args) == name


@pytest.mark.parametrize("number", [2**53 - 1, 2**53, 2**53 + 1, 2**60, 2**60 + 1, 2**63 - 1, 2**64 - 1, -(2**53), -(2**60) - 1, -(2**63)])  # fmt: skip
def test_a_large_integer_is_named_alike_in_json(stage: Stage, number: int) -> None:
    """Ids of accounts have 64 bits, and numbers of Lua 53."""
    declare(stage, {"call": [FAIR]})
    name = value_name(msgspec.msgpack.encode(number))
    for args in (
        f"[[{number}],{{}}]",
        f'[[ {number} , "a, {2**60 + 9}]"],{{"account":1}}]',
        f'[[],{{"account":{number}}}]',
        f'[[],{{"a":{{"account":[{2**60 + 9},"\\"]"]}},"n\\\\":[[],{{}}], "account" : {number} }}]',
    ):
        assert lane(stage, args.encode()) == name, args


def test_jobs_without_the_value_or_with_unreadable_arguments_share_a_lane(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    for args in (b"\x92\x90\x80", b"\xc1", b"", b"\x92"):
        assert lane(stage, args) == ""


def test_a_job_without_arguments_has_the_lane_of_the_default_when_it_comes_and_when_it_comes_again(
    stage: Stage,
) -> None:
    declare(stage, {"call": [FAIR]}, account="std")
    assert lane(stage, b"\x92\x90\x80") == lane(stage, b"\x92\x91\xa3std\x80") == "std"
    (first, _) = stage.take(limit=10)
    stage.end(first, "snoozed", b"", 0)
    assert stage.record(first.id)["lane"] == b"default|fair=|std"
