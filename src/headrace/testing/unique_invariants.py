"""What holds of the names of unique jobs: a name has a live job, or it does not exist.

Pure: from what was read of one shard to what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.model.ids import FINAL, LENGTH, is_unique
from headrace.testing.keyspace_reading import text_of

Values = dict[str, dict[str, Any]]


def name_breaches(values: Values, timed: set[str], now: int) -> Iterator[str]:
    """What is wrong with the names of a shard, a sentence each.

    Args:
        timed: names that end with a time; what has become of their jobs does not matter.
        now: microseconds since 1970; a job that expired before it started need not have its name.
    """
    records, names = values["job"], values["unique"]
    for name, value in names.items():
        id, follower = value[:LENGTH], value[LENGTH + 1 :]
        record = records.get(id, {})
        state = text_of(record.get("st"))
        if name not in timed and (text_of(record.get("unique")) != name or state in ("", *FINAL)):
            yield f"unique:{name}: {id} has it, which is {state or 'not stored'}"
        if follower and not follows(values, follower, records.get(follower, {})):
            yield f"unique:{name}: {follower} waits for it, which is not blocked by it"
        if follower and name in timed:
            yield f"unique:{name}: {follower} waits for it, and it expires"
    for id, record in records.items():
        name = text_of(record.get("unique"))
        has = id in (names.get(name, "")[:LENGTH], names.get(name, "")[LENGTH + 1 :])
        if bool(name) != is_unique(id):
            yield f"job {id}: its id and its record disagree whether it is unique"
        elif name and "hold" not in record and _holds(record, now) and not has:
            yield f"job {id}: {text_of(record.get('st'))}, but {names.get(name, 'no job')} has its name {name}"


def follows(values: Values, id: str, record: dict[str, Any]) -> bool:
    """Whether a job waits for the end of another one that has its name."""
    value: str = values["unique"].get(text_of(record.get("unique")), "")
    return value[LENGTH + 1 :] == id and text_of(record.get("st")) == "blocked"


def followers(values: Values) -> int:
    """How many do so."""
    return sum(len(value) > LENGTH for value in values["unique"].values())


def _holds(record: dict[str, Any], now: int) -> bool:
    """Whether a job of this record must have its name: one that expired before it started need not.

    It is claimed nevertheless, to be ended.
    """
    expires, started = (int(text_of(record.get(name)) or 0) for name in ("expires", "token"))
    over = 0 < expires < (started or now)
    return text_of(record.get("st")) not in FINAL and not over
