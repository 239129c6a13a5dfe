"""An error inside a script reaches the caller with the file and the line that raised it, also from an included file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files

import pytest
import redis

from headrace import errors
from headrace.protocol import operations, produce, script_header
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load
from tests.scripts.stage import KEEP, Stage
from tests.store.twin import KINDS, Twin


@pytest.fixture(params=KINDS)
def twin(request: pytest.FixtureRequest, url: str) -> Iterator[Twin]:
    twin = Twin(request.param, url)
    yield twin
    twin.close()


@pytest.fixture
def stage(client: redis.Redis) -> Iterator[Stage]:
    stage = Stage(client)
    yield stage
    stage.close()


def line_of(file: str, words: str) -> int:
    """The one line of a file that holds these words."""
    lines = files("headrace").joinpath("scripts", f"{file}.lua").read_text().splitlines()
    (found,) = [n for n, line in enumerate(lines, 1) if words in line]
    return found


@pytest.mark.mangles
def test_a_refused_command_of_an_included_file_is_located(twin: Twin, stage: Stage) -> None:
    stage.client.set(stage.keys("totals"), "no hash")
    line = line_of("finish", "'HINCRBY', totals, 'bytes'")
    with pytest.raises(errors.ServerError, match=rf"answered to cancel: WRONGTYPE .* on finish\.lua:{line}\b"):
        twin.run(produce.cancel(stage.keys, stage.put()[0], KEEP).at(stage.now))


@pytest.mark.mangles
@pytest.mark.parametrize("place", [0, 1])
def test_a_fault_of_an_included_file_is_located(
    twin: Twin, stage: Stage, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    line = line_of("wake", "local function wake_up(queue)") + 1
    calls = [operations.paused(Keys()), faulty("wake", line, "local missing = queue.size.of", monkeypatch)(stage)]
    with pytest.raises(errors.ServerError, match=rf"wake\.lua:{line}: .*attempt to index") as caught:
        twin.run_all(calls if place else calls[::-1])
    assert "user_script" not in str(caught.value)


def faulty(file: str, line: int, text: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Stage], Call[object]]:
    """``enqueue`` as if one of its files had another line there."""
    load("enqueue")  # into the cache, before the file seems to hold another text
    original = script_header._source

    def source(name: str) -> str:
        lines = original(name).splitlines()
        return "\n".join([*lines[: line - 1], text, *lines[line - 1 :]] if name == file else lines)

    with monkeypatch.context() as patch:
        patch.setattr(script_header, "_source", source)
        altered = load.__wrapped__("enqueue")

    def made(stage: Stage) -> Call[object]:
        call = produce.enqueue(stage.keys, [stage.job()], "s", stage.next()).at(stage.now)
        return Call(altered, call.keys, call.args, call.parse)

    return made
