"""Each script with its k-th command refused, as by an access rule or a slot that moves: what is left, the doctor repairs."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from headrace import Headrace
from headrace.admin.doctor import KeyspaceDoctor
from headrace.protocol.script import Call
from headrace.testing import violations
from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage
from tests.store.plays import PLAYS

pytestmark = pytest.mark.mangles

# A counter before each command; the one that brings it to nothing is refused.
REFUSAL = """
local kth_left = {count}
local function kth_command(protected, ...)
  kth_left = kth_left - 1
  if kth_left ~= 0 then return (protected and redis.pcall or redis.call)(...) end
  if protected then return {{err = 'NOPERM refused'}} end
  return error({{err = 'NOPERM refused'}}, 0)
end
"""


def refusing(call: Call[Any], k: int) -> list[Any]:
    """The call with its k-th command refused."""
    text = call.script.text.replace("redis.call(", "kth_command(false, ").replace("redis.pcall(", "kth_command(true, ")
    text = text.replace("pcall(redis.call,", "pcall(kth_command, false,")
    return ["EVAL", REFUSAL.format(count=k) + text, len(call.keys), *call.keys, *call.args]


@pytest.fixture
def doctor(client: redis.Redis, url: str) -> Iterator[Callable[..., set[str]]]:
    with Headrace(url) as app:

        def look(*, repair: bool = False) -> set[str]:
            found = KeyspaceDoctor(app.client, client, repair=repair, share=1, apart=0).run()
            return {one.id for one in found}

        yield look


def play_of(stage: Stage, name: str) -> Call[Any]:
    """A call of a play, with its scene set."""
    stage.client.flushall()
    stage.now, stage._made, stage._requests, Flow.made_so_far = Stage(stage.client).now, 0, 0, 0
    play = PLAYS[name]
    return play.call(stage.keys, play.arrange(stage), stage.now).at(stage.now)


def commands(stage: Stage, name: str) -> int:
    """How many commands the script of a play sends."""
    call = play_of(stage, name)
    before = stage.commands()
    stage.client.execute_command(*refusing(call, 0))
    return stage.commands() - before


def outcome(stage: Stage, name: str, k: int, doctor: Callable[..., set[str]]) -> str:
    """What became of a play whose k-th command was refused."""
    call = play_of(stage, name)
    before, wrong = stage.everything(), violations(stage.client)
    with suppress(redis.ResponseError):  # a script may catch the refusal
        stage.client.execute_command(*refusing(call, k))
    if stage.everything() == before:
        return "nothing written"
    if not (violations(stage.client) - wrong):
        return "whole"
    found = doctor()
    doctor(repair=True)
    if not (rest := violations(stage.client) - wrong):
        return "repaired"
    # A value that no list of the cache has ends by itself.
    named = bool(found) or all(said.startswith(("cache:", "filling:")) for said in rest)
    return "named" if named else f"unnamed: {sorted(rest)}"


def judge(stage: Stage, doctor: Callable[..., set[str]], names: list[str]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for name in names:
        for k in range(1, commands(stage, name) + 1):
            what = outcome(stage, name, k, doctor)
            assert not what.startswith("unnamed"), f"{name}, command {k} refused: {what}"
            seen[what] += 1
    return seen


# One of each kind of work: storing, claiming, ending, moving, parking, limits, order, names, workflows, schedules.
SAMPLE = [
    "enqueue", "claim", "settle", "promote", "move", "reclaim", "enqueue_ordered", "enqueue_unique", "flow_start",
    "schedule_declare",
]  # fmt: skip


def test_what_a_refused_command_leaves_is_named_or_repaired(
    client: redis.Redis, doctor: Callable[..., set[str]]
) -> None:
    seen = judge(Stage(client, guarded=False), doctor, SAMPLE)
    assert min(seen["nothing written"], seen["repaired"]) > 0


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_every_command_of_every_script(client: redis.Redis, doctor: Callable[..., set[str]], part: int) -> None:
    judge(Stage(client, guarded=False), doctor, [name for name in PLAYS if zlib.crc32(name.encode()) % 8 == part])
