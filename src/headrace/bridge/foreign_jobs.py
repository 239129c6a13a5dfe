"""Messages of Celery and jobs of RQ as jobs of ours, and where they come from: a Redis server, or a broker of kombu.

Of Celery version 2 of its messages is read, as JSON. Pickles, compressed messages and links of a canvas stay where they
are.

RQ keeps a job's call as JSON, or as a pickle, which is its default. A pickle can run any code when it is read. So it
stays where it is, or, if asked for, a pickle of plain values is read: numbers, texts, bytes, lists and dictionaries.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from headrace.bridge import MOST_LEFT, Envelopes, Message, QueueEntry, RedisQueue, RedisQueues, TakenMessages, Unmovable
from headrace.errors import MissingExtra, SettingsError

# Headers that Celery writes itself; all others are the user's.
_OWN = frozenset((
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps", "compression", "headers", "meth", "sent_event",
))  # fmt: skip
# Celery's steps of priority in Redis: each has a list of its own.
_STEPS = range(1, 10)
_STEP = "\x06\x16"


class CeleryMessage(msgspec.Struct, frozen=True):
    """A message, whatever brought it.

    Attributes:
        body: as the content type says.
        priority: as ours: higher starts sooner.
    """

    body: bytes
    headers: Mapping[str, Any]
    content_type: str
    queue: str
    priority: int = 0


def envelope_of(message: CeleryMessage, envelopes: Envelopes, now: float) -> bytes:
    """The job of a message. ``now``: seconds since 1970. Raises Unmovable: a pickle, part of a canvas, or too old."""
    headers = message.headers
    id, task = str(headers.get("id") or ""), headers.get("task")
    if not id or not isinstance(task, str):
        raise Unmovable(id or "?", "it has no id or no task in its headers: version 1 of Celery's messages, or foreign")
    if message.content_type != "application/json" or headers.get("compression"):
        raise Unmovable(id, f"it is {headers.get('compression') or message.content_type}, which is never read; JSON is")
    args, kwargs, embed = _parts(id, message.body)
    if links := [name for name in ("chain", "chord", "callbacks", "errbacks") if embed.get(name)]:
        raise Unmovable(id, f"it has a {links[0]} behind it: let a Celery worker end that, and write a workflow")
    hard, soft = (*(headers.get("timelimit") or ()), None, None)[:2]
    ends = _moment(id, headers.get("expires"))
    retries = headers.get("retries") or 0
    fields = {
        "args": args,
        "kwargs": kwargs,
        "form": "json",
        "queue": message.queue,
        "priority": message.priority or None,
        "at": _micro(_moment(id, headers.get("eta"))),
        "expires": None if ends is None else max(1, int((ends - now) * 1e6)),
        "timeout": _micro(soft),
        "hard_timeout": _micro(hard),
        "headers": {k: v for k, v in headers.items() if k not in _OWN and isinstance(v, str)} | {"celery-id": id},
    }
    # Celery sends the next try of a task under the same id.
    return envelopes.made(f"{id}:{retries}" if retries else id, task, fields)


def _parts(id: str, body: bytes) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    try:
        args, kwargs, embed = json.loads(body, object_hook=_plain)
        return list(args), dict(kwargs), dict(embed or {})
    except (ValueError, TypeError) as error:
        raise Unmovable(id, f"its body cannot be read: {error}") from None


def _plain(value: dict[str, Any]) -> Any:
    """What kombu marks as a value of a type, as the text that Headrace reads the type from."""
    if value.keys() != {"__type__", "__value__"}:
        return value
    kind, text = value["__type__"], value["__value__"]
    if kind == "uuid":
        return str(UUID(text["hex"]))
    if kind == "bytes":
        return base64.b64encode(text.encode()).decode()
    if kind in ("datetime", "date", "time", "decimal", "base64"):
        return text
    raise ValueError(f"the bridge does not know the type {kind}")


def _moment(id: str, text: Any) -> float | None:
    if text is None or isinstance(text, int | float):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise Unmovable(id, f"{text!r:.60} cannot be read as a time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _micro(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e6)


def celery_in_redis(
    url: str, queues: Sequence[str], envelopes: Envelopes, clock: Callable[[], float], prefix: str = ""
) -> RedisQueues:
    """Celery's queues in Redis. ``prefix``: Celery's ``global_keyprefix``."""

    def read(_client: Any, entries: Sequence[QueueEntry]) -> list[bytes | Unmovable]:
        return [_read(entry, envelopes, clock()) for entry in entries]

    # Celery takes the lower number first, and 0 is both the first and the default.
    keys = [(queue, f"{prefix}{queue}{f'{_STEP}{step}' if step else ''}") for step in (0, *_STEPS) for queue in queues]
    return RedisQueues(url, [RedisQueue(key, queue, oldest_last=True) for queue, key in keys], read)


def _read(entry: QueueEntry, envelopes: Envelopes, now: float) -> bytes | Unmovable:
    try:
        found = json.loads(entry.member)
        properties, body = found["properties"], found["body"]
        raw = base64.b64decode(body) if properties.get("body_encoding") == "base64" else body.encode()
        message = CeleryMessage(
            raw, found["headers"], found["content-type"], entry.queue.name, -int(properties.get("priority") or 0)
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return Unmovable(f"{entry.member[:40]!r}", f"it is not a message of Celery: {type(error).__name__} {error}")
    return _tried(envelope_of, message, envelopes, now)


def _tried(make: Callable[..., bytes], *given: Any) -> bytes | Unmovable:
    try:
        return make(*given)
    except Unmovable as error:
        return error


class CeleryBroker:
    """Celery's queues at a broker that kombu speaks to, RabbitMQ above all.

    A message is acknowledged when its job is stored. The broker gives all others back when the connection ends.
    """

    def __init__(self, url: str, queues: Sequence[str], envelopes: Envelopes, clock: Callable[[], float]) -> None:
        try:
            import kombu
            from kombu.exceptions import OperationalError
        except ImportError as error:
            raise MissingExtra("a broker other than Redis needs kombu: pip install 'headrace[amqp]'") from error
        broker: Any = kombu
        self._connection: Any = broker.Connection(url, connect_timeout=5)
        self._queue: Any = broker.Queue
        connection = self._connection
        self.errors: tuple[type[Exception], ...] = (
            OperationalError, *connection.connection_errors, *connection.channel_errors,
        )  # fmt: skip
        self._queues = queues
        self._envelopes = envelopes
        self._clock = clock
        self._left: dict[str, str] = {}

    def take(self, most: int) -> TakenMessages:
        taken = TakenMessages(left=self._left)
        channel = self._connection.default_channel
        for name in self._queues:
            queue = self._queue(name, channel=channel)
            while len(taken.messages) < most and (message := queue.get(no_ack=False)) is not None:
                body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
                priority = min(100, int(message.properties.get("priority") or 0))
                try:
                    found = CeleryMessage(body, message.headers or {}, message.content_type or "", name, priority)
                    taken.messages.append(Message(message, envelope_of(found, self._envelopes, self._clock())))
                except Unmovable as error:
                    # Not acknowledged: the broker keeps it for others.
                    self._left[error.id] = error.reason
                    if len(self._left) > MOST_LEFT:
                        raise SettingsError(f"{len(self._left):,} messages cannot be moved: {error}") from error
        return taken

    def acknowledge(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message.receipt.ack()

    def resume(self) -> None:
        # What was not acknowledged goes back to its queue.
        self._left = {}
        self._connection.close()

    def waiting(self) -> int:
        return sum(self._declared(name).message_count for name in self._queues)

    def _declared(self, name: str) -> Any:
        try:
            return self._queue(name, channel=self._connection.default_channel).queue_declare(passive=True)
        except self._connection.channel_errors as error:
            raise SettingsError(f"--queues {name}: the broker has no such queue ({error})") from error

    def close(self) -> None:
        self._connection.close()


_FIELDS = ("data", "timeout", "result_ttl", "failure_ttl", "retries_left", "retry_intervals", "success_callback_name",
           "failure_callback_name", "stopped_callback_name", "repeats_left", "origin")  # fmt: skip
# Values whose constructors run no code of others.
_PLAIN = {(one.__module__, one.__name__): one for one in (datetime, date, time, timedelta, timezone, Decimal, UUID)}
_MOST = 16 * 2**20  # bytes that a call may have, unpacked


def rq_in_redis(url: str, queues: Sequence[str], envelopes: Envelopes, *, plain_pickles: bool = False) -> RedisQueues:
    def read(client: Any, entries: Sequence[QueueEntry]) -> list[bytes | Unmovable]:
        with client.pipeline(transaction=False) as pipe:
            for entry in entries:
                key = f"rq:job:{entry.member.decode()}"
                pipe.hmget(key, *_FIELDS)
                pipe.exists(f"{key}:dependents")
            rows = pipe.execute()
        return [
            _tried(_envelope, entry, dict(zip(_FIELDS, fields, strict=True)), bool(others), envelopes, plain_pickles)
            for entry, fields, others in zip(entries, rows[::2], rows[1::2], strict=True)
        ]

    def forget(pipe: Any, entry: QueueEntry) -> None:
        pipe.unlink(f"rq:job:{entry.member.decode()}")

    lists = [RedisQueue(f"rq:queue:{name}", name) for name in queues]
    timed = [RedisQueue(f"rq:scheduled:{name}", name, timed=True) for name in queues]
    return RedisQueues(url, [*lists, *timed], read, forget)


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
    # As RQ finds the next: the list ends with the last retry, and its first counts for all before.
    waits = [delays[max(len(delays) - n, 0)] * 1_000_000 for n in range(left or 0, 0, -1)] if delays else []
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
            "retry_delay": waits or None,
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
