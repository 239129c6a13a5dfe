"""Messages of Celery as jobs, and where they come from: a Redis server, or a broker that kombu speaks to.

Version 2 of Celery's messages, as JSON. Pickles, compressed messages and links of a canvas stay where they are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
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
    """The job of a message. Pure but for the id. ``now``: seconds since 1970. Raises Unmovable: it is a pickle, a part
    of a canvas, or of another version.
    """
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
    try:
        return envelope_of(message, envelopes, now)
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
