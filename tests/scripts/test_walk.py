from __future__ import annotations

import msgspec
import pytest

from headrace.model.job import JobError, error_json
from headrace.protocol.index_pages import Slice, WalkedPart, walk
from tests.scripts import limited_stage as limits
from tests.scripts.stage import SECOND, START, Stage


def lined_up(stage: Stage) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for queue, count in (("a", 3), ("b", 0), ("c", 1), ("d", 4)):
        for n in range(count):
            stage.now = START + n
            stage.put(queue=queue)
        found[f"ready:{queue}"] = list(stage.members(f"ready:{queue}").items())
    return found


def args(*given: object) -> bytes:
    return msgspec.msgpack.encode([given, {}])


def ids(part: WalkedPart) -> list[str]:
    return [id for id, _ in part.rows]


@pytest.mark.parametrize("desc", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 4, 5, 8, 1000])
def test_structures_follow_each_other(stage: Stage, desc: bool, limit: int) -> None:
    rows = {queue: found[::-1] if desc else found for queue, found in lined_up(stage).items()}
    part = stage.run(walk(stage.keys, list(rows), Slice(limit, desc=desc)))
    assert part.rows == [row for found in rows.values() for row in found][:limit]
    assert (part.count, part.last is None) == (3, limit > 8)
    if part.last:
        assert part.last == part.rows[-1][::-1]
        assert part.rows[-1] in rows[list(rows)[part.behind]]


@pytest.mark.parametrize("desc", [True, False])
def test_a_cursor_is_one_of_the_first(stage: Stage, desc: bool) -> None:
    rows = {queue: found[::-1] if desc else found for queue, found in lined_up(stage).items()}
    id, score = rows["ready:a"][1]
    part = stage.run(walk(stage.keys, ["ready:a", "ready:d"], Slice(3, (score, id), desc=desc)))
    assert part.rows == rows["ready:a"][2:] + rows["ready:d"][:2]


def test_a_window_holds_in_each(stage: Stage) -> None:
    rows = lined_up(stage)
    told = stage.run(walk(stage.keys, list(rows), Slice(100, desc=False, since=START + 1, until=START + 2)))
    assert told.rows == [row for found in rows.values() for row in found[1:3]]


def test_claims_parked_jobs_and_those_behind_a_key(stage: Stage) -> None:
    parked = stage.running(task="t")
    stage.end(parked, "parked")
    claim = stage.running()
    assert stage.run(walk(stage.keys, ["claims:w0", "claims:w1"], Slice(9))).rows == [(claim.id, claim.token)]
    assert stage.run(walk(stage.keys, ["parked:t"], Slice(9))).rows == [(parked.id, stage.now)]
    assert stage.run(walk(stage.keys, ["chain:k"], Slice(9))) == WalkedPart(0, 0, [], [])


def test_what_does_not_match_stays_and_the_newest_come_first(stage: Stage) -> None:
    made: list[str] = []
    for n in range(4):
        stage.now += SECOND
        made.append(stage.finished("failed", b'{"type":"ValueError","message":"No room"}', args=args(f"Acme {n % 2}")))
    for words, wanted in (
        (["acme"], made[::-1]), (["room"], made[::-1]), (["valueerror", "acme"], made[::-1]), (["globex"], []),
        (["acme 1"], [made[3], made[1]]), ([made[0]], [made[0]]), (["add"], made[::-1]), ([], made[::-1]),
    ):  # fmt: skip
        part = stage.run(walk(stage.keys, ["failed"], Slice(100), words=words))
        assert ids(part) == wanted, words
        assert (part.count, part.looked, part.last) == (4, 4, None)


def test_a_walk_goes_on_where_it_has_looked_at_enough(stage: Stage) -> None:
    made = [stage.put(delay=SECOND + n, task="rare" if n == 4 else "add")[0] for n in range(6)]
    after, looked = None, []
    while True:
        part = stage.run(walk(stage.keys, ["scheduled"], Slice(100, after), task="rare", looks=2))
        looked.append(part.looked)
        if part.rows:
            assert ids(part) == [made[4]]
        if part.last is None:
            break
        after = part.last
    assert looked == [2, 2, 2, 0]


def test_queue_task_and_key_are_exact(stage: Stage) -> None:
    (one,) = stage.put(queue="mail", delay=SECOND)
    (two,) = stage.put(task="fetch", delay=SECOND)
    (three,) = stage.put(key="k", delay=SECOND)
    for wanted, by in (
        ([one], {"queue": "mail"}), ([two], {"queue": "default", "task": "fetch"}), ([three], {"key": "k"}),
        ([], {"task": "ad"}),
    ):  # fmt: skip
        assert ids(stage.run(walk(stage.keys, ["scheduled"], Slice(100), **by))) == wanted


@pytest.mark.parametrize(
    ("value", "word", "met"),
    [
        (44812, "4481", True), (44812, "4482", False), ("44812", "481", True), ("44812", "482", False),
        ([7, {"order": 90210}], "90210", True), ([7, {"order": 90210}], "90211", False),
        # Lua rounds these, and what it cannot read it lets through.
        (1234567890123456789, "6789", True), (0.30000000000000004, "000004", True), (None, "123", False),
    ],
)  # fmt: skip
def test_digits_are_found_in_numbers(stage: Stage, value: object, word: str, met: bool) -> None:
    stage.put(delay=SECOND, args=args(value))
    assert bool(stage.run(walk(stage.keys, ["scheduled"], Slice(100), words=[word])).rows) == met


@pytest.mark.parametrize("size", [4000, 5000])
def test_long_arguments_are_not_looked_at(stage: Stage, size: int) -> None:
    stage.put(delay=SECOND, args=args("needle" + "x" * size))
    assert bool(stage.run(walk(stage.keys, ["scheduled"], Slice(100), words=["needle"])).rows) == (size < 4096)


def test_what_is_no_job_is_passed_over(stage: Stage) -> None:
    limits.declare(stage, {"add": [limits.API]})
    limited = stage.put(3)
    (plain,) = stage.put(task="other")
    part = stage.run(walk(stage.keys, ["ready:default"], Slice(100, desc=False)))
    assert (ids(part), part.count) == ([plain, *limited], 4)


def test_a_broken_record_matches_nothing(stage: Stage) -> None:
    key = stage.keys.job(stage.finished("failed", b"{}"))
    kept = stage.client.dump(key)
    stage.client.delete(key)
    assert ids(stage.run(walk(stage.keys, ["failed"], Slice(100), words=["failed"]))) == []
    stage.client.set(key, "x")
    assert ids(stage.run(walk(stage.keys, ["failed"], Slice(100), words=["failed"]))) == []
    stage.client.delete(key)
    stage.client.restore(key, 0, kept)


def test_of_an_error_its_type_and_message_are_looked_at_and_no_traceback(stage: Stage) -> None:
    error = error_json(
        JobError(type="ValueError", message="No room", traceback="in acme.py: step()", where="acme.py:1")
    )
    stage.finished("failed", error)
    assert ids(stage.run(walk(stage.keys, ["failed"], Slice(100), words=["room"]))) != []
    assert ids(stage.run(walk(stage.keys, ["failed"], Slice(100), words=["acme"]))) == []
