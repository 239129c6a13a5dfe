"""Jobs of RQ as jobs of ours: those that are queued and those that are scheduled.

RQ keeps a job's call as JSON, or as a pickle, which is its default. A pickle can run any code when it is read. So it
stays where it is, or, if asked for, a pickle of plain values is read: numbers, texts, bytes, lists and dictionaries.
"""

from __future__ import annotations

import io
import json
import pickle
import zlib
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from headrace.bridge import Envelopes, QueueEntry, RedisQueue, RedisQueues, Unmovable

_FIELDS = ("data", "timeout", "result_ttl", "failure_ttl", "retries_left", "retry_intervals", "success_callback_name",
           "failure_callback_name", "stopped_callback_name", "repeats_left", "origin")  # fmt: skip
# Values whose constructors run no code of others.
_PLAIN = {(one.__module__, one.__name__): one for one in (datetime, date, time, timedelta, timezone, Decimal, UUID)}
# Bytes that a call may have, unpacked.
_MOST = 16 * 2**20


def rq_in_redis(url: str, queues: Sequence[str], envelopes: Envelopes, *, plain_pickles: bool = False) -> RedisQueues:
    """RQ's queues, and the jobs that are scheduled for them."""

    def read(client: Any, entries: Sequence[QueueEntry]) -> list[bytes | Unmovable]:
        with client.pipeline(transaction=False) as pipe:
            for entry in entries:
                key = f"rq:job:{entry.member.decode()}"
                pipe.hmget(key, *_FIELDS)
                pipe.exists(f"{key}:dependents")
            rows = pipe.execute()
        return [
            _read(entry, dict(zip(_FIELDS, fields, strict=True)), bool(others), envelopes, plain_pickles)
            for entry, fields, others in zip(entries, rows[::2], rows[1::2], strict=True)
        ]

    def forget(pipe: Any, entry: QueueEntry) -> None:
        pipe.unlink(f"rq:job:{entry.member.decode()}")

    lists = [RedisQueue(f"rq:queue:{name}", name) for name in queues]
    timed = [RedisQueue(f"rq:scheduled:{name}", name, timed=True) for name in queues]
    return RedisQueues(url, [*lists, *timed], read, forget)


def _read(
    entry: QueueEntry, fields: dict[str, bytes | None], others: bool, envelopes: Envelopes, plain_pickles: bool
) -> bytes | Unmovable:
    try:
        return _envelope(entry, fields, others, envelopes, plain_pickles)
    except Unmovable as error:
        return error


def _envelope(
    entry: QueueEntry, fields: dict[str, bytes | None], others: bool, envelopes: Envelopes, plain_pickles: bool
) -> bytes:
    id = entry.member.decode()
    if fields["data"] is None:
        raise Unmovable(id, "its job is gone: RQ would drop it, too")
    if others:
        raise Unmovable(id, "other jobs depend on it: let an RQ worker end them")
    if fields["repeats_left"] or any(fields[name] for name in _FIELDS if name.endswith("callback_name")):
        raise Unmovable(id, "it repeats or has a callback: let an RQ worker end it, and write a schedule or a workflow")
    function, instance, args, kwargs, form = _call(id, fields["data"], plain_pickles)
    if instance is not None:
        raise Unmovable(id, "it is a method of an object: make it a function")
    left = _number(fields["retries_left"])
    delays: list[int] = json.loads(fields["retry_intervals"] or b"[]")
    return envelopes.made(
        id,
        str(function),
        {
            "args": list(args),
            "kwargs": dict(kwargs),
            "form": form,
            "queue": entry.queue.name,
            "at": int(entry.at * 1e6) or None,
            "timeout": _micro(_number(fields["timeout"])),
            "result_ttl": _micro(_number(fields["result_ttl"])),
            "failure_ttl": _micro(_number(fields["failure_ttl"])),
            "retries": left,
            "retry_delay": _micro(delays[0]) if left and delays else None,
            "headers": {"rq-id": id},
        },
    )


def _call(id: str, data: bytes, plain_pickles: bool) -> tuple[Any, Any, Any, Any, str]:
    try:
        unpacked = zlib.decompressobj().decompress(data, _MOST)
    except zlib.error:
        unpacked = data
    is_json = unpacked[:1] == b"["
    if not is_json and not plain_pickles:
        raise Unmovable(id, "it is a pickle, which is never read: use RQ's JSONSerializer, or --plain-pickles")
    try:
        function, instance, args, kwargs = (
            json.loads(unpacked) if is_json else PlainUnpickler(io.BytesIO(unpacked)).load()
        )
        return function, instance, args, kwargs, "json" if is_json else "msgpack"
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything
        raise Unmovable(id, f"its call cannot be read: {error}") from None


class PlainUnpickler(pickle.Unpickler):
    """Reads plain values only. Without a name of a class or function a pickle cannot run code."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (found := _PLAIN.get((module_name, global_name))) is not None:
            return found
        raise pickle.UnpicklingError(f"it holds {module_name}.{global_name}, and only plain values are read")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002 - the base class names it
        raise pickle.UnpicklingError("it refers to something outside")


def _number(text: bytes | None) -> int | None:
    """A number of RQ's; None: not given, or -1, which says without end."""
    number = int(text) if text else -1
    return None if number < 0 else number


def _micro(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1_000_000
