"""Drain the queues of Celery or RQ into Headrace: ``headrace bridge``.

A message is moved atomically out of its queue and kept where the next bridge finds it; its job is stored; then it is
acknowledged. The request id of the job is made of the message's id, so a repeat makes no second job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import redis

from headrace.errors import EnvelopeError, SettingsError
from headrace.tasks.bound_task import new_id
from headrace.tasks.envelope import VERSION, EnvelopeReader

if TYPE_CHECKING:
    from headrace.app import Headrace

MOST = 200  # messages of one round
MOST_LEFT = 10_000  # messages of one queue that may stay behind: every round reads past them


class Unmovable(Exception):
    """A message that no job can be made of: its id in the other system, and the reason."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(f"{id}: {reason}")
        self.id = id
        self.reason = reason


class Message(msgspec.Struct, frozen=True):
    """A message that was taken out of its queue.

    Attributes:
        receipt: what its source acknowledges it by.
        envelope: its job.
    """

    receipt: Any
    envelope: bytes


class TakenMessages(msgspec.Struct):
    """What one round took.

    Attributes:
        messages: to be stored, then acknowledged.
        left: messages that stay in their queues: id of the other system and the reason.
    """

    messages: list[Message] = []
    left: dict[str, str] = {}


class MessageSource(Protocol):
    """The queues of the other system. ``errors``: what the server behind them raises."""

    errors: tuple[type[Exception], ...]

    def take(self, most: int) -> TakenMessages:
        """Move up to ``most`` messages out of their queues; first those that an earlier bridge took and left."""
        ...

    def acknowledge(self, messages: Sequence[Message]) -> None: ...

    def resume(self) -> None:
        """Give messages that were taken and not acknowledged again, with the next :meth:`take`."""
        ...

    def waiting(self) -> int: ...

    def close(self) -> None: ...


class Envelopes:
    """Makes envelopes of the facts of messages, checked as the store will check them. Draws ids; no I/O. ``prefix``: of
    request ids, the other system's name. ``to``: the queue of all jobs; None: the queue of the same name.
    """

    def __init__(self, app: Headrace, prefix: str, to: str | None) -> None:
        self._shard = app.client.keys.shard
        self._reader = EnvelopeReader(app.settings.max_payload, app.client.count)
        self._prefix = prefix
        self._to = to

    def made(self, id: str, task: str, fields: Mapping[str, Any]) -> bytes:
        """An envelope of a message's ``fields`` that are not None. Raises Unmovable: the store would refuse it."""
        given = {name: value for name, value in fields.items() if value is not None}
        if self._to is not None:
            given["queue"] = self._to
        own = {"v": VERSION, "id": new_id(self._shard), "task": task, "request_id": f"{self._prefix}:{id}"}
        try:
            envelope = msgspec.msgpack.encode(own | given)
            self._reader.read(envelope, 0)
        except EnvelopeError as error:
            raise Unmovable(id, str(error).partition("cannot be stored: ")[2] or str(error)) from None
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise Unmovable(id, f"its arguments cannot be stored: {error}") from None
        return envelope


class Bridge:
    """Moves messages of a source into the store of an application.

    Attributes:
        moved: messages whose jobs were stored by this bridge.
        repeated: messages whose jobs were stored already.
        left: messages that stay in their queues, as the last round saw them: id and reason.
    """

    def __init__(self, app: Headrace, source: MessageSource) -> None:
        self.moved = 0
        self.repeated = 0
        self.left: dict[str, str] = {}
        self._app = app
        self._source = source

    def step(self) -> int:
        """Move what one round takes; how many messages that were. Raises HeadraceError, ``source.errors``: a server
        cannot be reached, or refuses. The next step goes on where this one stopped.
        """
        try:
            taken = self._source.take(MOST)
            self.left = taken.left
            if taken.messages:
                receipts = self._app.enqueue_packed(message.envelope for message in taken.messages)
                self._source.acknowledge(taken.messages)
                stored = sum(receipt.stored for receipt in receipts)
                self.moved += stored
                self.repeated += len(receipts) - stored
        except BaseException:
            self._source.resume()
            raise
        return len(taken.messages)


# Entries leave a list or a sorted set for the list of the held ones, each unless it is gone by now.
_TAKE = """
local sorted, taken = redis.call('TYPE', KEYS[1]).ok == 'zset', {}
for n = 2, #ARGV, 2 do
  local gone = sorted and redis.call('ZREM', KEYS[1], ARGV[n]) or redis.call('LREM', KEYS[1], ARGV[1], ARGV[n])
  if gone > 0 then
    redis.call('LPUSH', KEYS[2], ARGV[n + 1])
    taken[#taken + 1] = n / 2
  end
end
return taken
"""


class RedisQueue(msgspec.Struct, frozen=True):
    """One list or sorted set.

    Attributes:
        key: where it is.
        name: of the queue that it belongs to.
        oldest_last: the oldest entry is the last one of the list.
        timed: a sorted set, whose scores are the times of its jobs.
    """

    key: str
    name: str
    oldest_last: bool = False
    timed: bool = False

    @property
    def held(self) -> str:
        return f"headrace:bridge:{self.key}"


class QueueEntry(msgspec.Struct, frozen=True):
    """An entry of a queue.

    Attributes:
        member: as it stands in the queue.
        at: when its job is due, seconds since 1970; 0: at once.
    """

    queue: RedisQueue
    member: bytes
    at: float = 0.0

    @property
    def held_form(self) -> bytes:
        return b"%r " % self.at + self.member


class RedisQueues:
    """A source of messages, see :class:`headrace.bridge.MessageSource`.

    Args:
        url: of the server.
        queues: in the order in which they are drained.
        read: envelopes of entries, in their order; for one that no job can be made of the :class:`Unmovable`.
        forget: what else to send when these are acknowledged.
    """

    errors: tuple[type[Exception], ...] = (redis.RedisError,)

    def __init__(
        self,
        url: str,
        queues: Sequence[RedisQueue],
        read: Callable[[Any, Sequence[QueueEntry]], Sequence[bytes | Unmovable]],
        forget: Callable[[Any, QueueEntry], None] | None = None,
    ) -> None:
        try:
            self.client: Any = redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]
        except ValueError as error:
            raise SettingsError(f"--from {url.partition('://')[0]}://...: {error}") from error
        self._take = self.client.register_script(_TAKE)
        self._queues = queues
        self._read = read
        self._forget = forget
        self._resuming = True
        self._left = dict.fromkeys(queues, 0)

    def take(self, most: int) -> TakenMessages:
        taken = TakenMessages()
        if self._resuming:
            for queue in self._queues:
                held = [_of_held(queue, entry) for entry in self.client.lrange(queue.held, 0, -1)]
                taken.messages += [Message(entry, envelope) for entry, envelope in self._movable(held, taken)]
            self._resuming = False
            if taken.messages:
                return taken
        for queue in self._queues:
            if (room := most - len(taken.messages)) > 0:
                self._take_from(queue, room, taken)
        return taken

    def _take_from(self, queue: RedisQueue, room: int, taken: TakenMessages) -> None:
        entries = self._oldest(queue, room + self._left[queue])
        movable = self._movable(entries, taken)
        self._left[queue] = len(entries) - len(movable)
        if self._left[queue] > MOST_LEFT:
            raise SettingsError(
                f"{self._left[queue]:,} messages of {queue.name} cannot be moved, one of them since "
                f"{next(iter(taken.left.values()))}: let a worker of the other system drain them"
            )
        if movable:
            pairs = [part for entry, _ in movable for part in (entry.member, entry.held_form)]
            numbers: list[int] = self._take([queue.key, queue.held], [-1 if queue.oldest_last else 1, *pairs])
            taken.messages += [Message(*movable[number - 1]) for number in numbers]

    def _movable(self, entries: list[QueueEntry], taken: TakenMessages) -> list[tuple[QueueEntry, bytes]]:
        found: Sequence[bytes | Unmovable] = self._read(self.client, entries) if entries else ()
        taken.left |= {one.id: one.reason for one in found if isinstance(one, Unmovable)}
        return [(entry, one) for entry, one in zip(entries, found, strict=True) if not isinstance(one, Unmovable)]

    def _oldest(self, queue: RedisQueue, most: int) -> list[QueueEntry]:
        if queue.timed:
            rows: Any = self.client.zrange(queue.key, 0, most - 1, withscores=True)
            return [QueueEntry(queue, member, score) for member, score in rows]
        if queue.oldest_last:
            return [QueueEntry(queue, member) for member in reversed(self.client.lrange(queue.key, -most, -1))]
        return [QueueEntry(queue, member) for member in self.client.lrange(queue.key, 0, most - 1)]

    def acknowledge(self, messages: Sequence[Message]) -> None:
        with self.client.pipeline() as pipe:
            for message in messages:
                pipe.lrem(message.receipt.queue.held, 1, message.receipt.held_form)
                if self._forget is not None:
                    self._forget(pipe, message.receipt)
            pipe.execute()

    def resume(self) -> None:
        self._resuming = True

    def waiting(self) -> int:
        with self.client.pipeline(transaction=False) as pipe:
            for queue in self._queues:
                (pipe.zcard if queue.timed else pipe.llen)(queue.key)
                pipe.llen(queue.held)
            return sum(pipe.execute())

    def close(self) -> None:
        self.client.close()


def _of_held(queue: RedisQueue, held: bytes) -> QueueEntry:
    at, _, member = held.partition(b" ")
    return QueueEntry(queue, member, float(at))
