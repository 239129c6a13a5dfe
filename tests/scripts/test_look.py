from __future__ import annotations

import msgspec
import pytest

from headrace.model.job import JobError, error_json
from headrace.protocol.index_pages import LookedPiece, look
from tests.scripts import limited_stage as limits
from tests.scripts.stage import SECOND, Stage


def args(*given: object) -> bytes:
    return msgspec.msgpack.encode([given, {}])


def found(piece: LookedPiece) -> list[str]:
    return [id for id, _ in piece.rows]


def test_what_does_not_match_stays_and_the_newest_come_first(stage: Stage) -> None:
    ids: list[str] = []
    for n in range(4):
        stage.now += SECOND
        ids.append(stage.finished("failed", b'{"type":"ValueError","message":"No room"}', args=args(f"Acme {n % 2}")))
    for words, wanted in (
        (["acme"], ids[::-1]), (["room"], ids[::-1]), (["valueerror", "acme"], ids[::-1]), (["globex"], []),
        (["acme 1"], [ids[3], ids[1]]), ([ids[0]], [ids[0]]), (["add"], ids[::-1]), ([], ids[::-1]),
    ):  # fmt: skip
        piece = stage.run(look(stage.keys, "failed", words))
        assert found(piece) == wanted, words
        assert (piece.count, piece.looked, piece.last) == (4, 4, None)


def test_a_cursor_goes_on_and_times_bound_it(stage: Stage) -> None:
    ids: list[str] = []
    times: list[int] = []
    for _ in range(5):
        stage.now += SECOND
        ids.append(stage.finished("failed", b"{}"))
        times.append(stage.now)
    first = stage.run(look(stage.keys, "failed", limit=2))
    assert (found(first), first.looked, first.last) == (ids[:2:-1], 2, (times[3], ids[3]))
    second = stage.run(look(stage.keys, "failed", limit=2, after=first.last))
    assert found(second) == [ids[2], ids[1]]
    last = stage.run(look(stage.keys, "failed", limit=2, after=second.last))
    assert (found(last), last.last) == ([ids[0]], None)
    assert found(stage.run(look(stage.keys, "failed", since=times[1], until=times[2]))) == [ids[2], ids[1]]


def test_two_looks_of_one_round_trip_share_the_jobs_and_the_last_one_knows_that_it_is_the_last(stage: Stage) -> None:
    ids: list[str] = []
    for _ in range(5):
        stage.now += SECOND
        ids.append(stage.finished("failed", b"{}"))
    first, second = (stage.run(look(stage.keys, "failed", limit=2, offset=offset)) for offset in (0, 2))
    assert [found(first), found(second)] == [ids[:2:-1], ids[2:0:-1]]
    third, beyond = (
        stage.run(look(stage.keys, "failed", limit=1, after=second.last, offset=offset)) for offset in (0, 1)
    )
    assert (found(third), third.last) == ([ids[0]], None)
    assert (beyond.looked, beyond.rows, beyond.last) == (0, [], None)


def test_queue_task_and_key_are_exact(stage: Stage) -> None:
    (one,) = stage.put(queue="mail", delay=SECOND)
    (two,) = stage.put(task="fetch", delay=SECOND)
    (three,) = stage.put(key="k", delay=SECOND)
    assert found(stage.run(look(stage.keys, "scheduled", queue="mail"))) == [one]
    assert found(stage.run(look(stage.keys, "scheduled", queue="default", task="fetch"))) == [two]
    assert found(stage.run(look(stage.keys, "scheduled", key="k"))) == [three]
    assert found(stage.run(look(stage.keys, "scheduled", task="ad"))) == []


@pytest.mark.parametrize("size", [4000, 5000])
def test_long_arguments_are_not_looked_at(stage: Stage, size: int) -> None:
    stage.put(delay=SECOND, args=args("needle" + "x" * size))
    assert bool(found(stage.run(look(stage.keys, "scheduled", ["needle"])))) == (size < 4096)


def test_what_is_no_job_is_passed_over(stage: Stage) -> None:
    limits.declare(stage, {"add": [limits.API]})
    stage.put(3)
    (plain,) = stage.put(task="other")
    assert found(stage.run(look(stage.keys, "ready:default"))) == [plain]


def test_a_broken_record_matches_nothing(stage: Stage) -> None:
    key = stage.keys.job(stage.finished("failed", b"{}"))
    kept = stage.client.dump(key)
    stage.client.delete(key)
    assert found(stage.run(look(stage.keys, "failed"))) != []
    stage.client.set(key, "x")
    assert found(stage.run(look(stage.keys, "failed"))) == []
    stage.client.delete(key)
    stage.client.restore(key, 0, kept)


def test_of_an_error_its_type_and_message_are_looked_at_and_no_traceback(stage: Stage) -> None:
    error = error_json(
        JobError(type="ValueError", message="No room", traceback="in acme.py: step()", where="acme.py:1")
    )
    id = stage.finished("failed", error, args=args("Globex"))
    for words, wanted in ((["room"], [id]), (["valueerror", "globex"], [id]), (["acme"], []), (["step"], [])):
        assert found(stage.run(look(stage.keys, "failed", words))) == wanted, words
