"""Drain the queues of Celery or RQ into Headrace: ``headrace bridge``.

1. :class:`Bridge` takes messages, stores their jobs and acknowledges them, in this order.
2. A :class:`MessageSource` knows the queues of the other system. It moves a message atomically out of the queue and
   keeps it where the next bridge finds it, until the message is acknowledged.

The request id of a job is made of the id that the other system gave its message. So a message that is sent to the store
twice makes one job, and a bridge that is killed at any moment is simply started again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from headrace.errors import EnvelopeError
from headrace.tasks.bound_task import new_id
from headrace.tasks.envelope import VERSION, EnvelopeReader

if TYPE_CHECKING:
    from headrace.app import Headrace

# Messages of one round.
MOST = 200
# Messages of one queue that may stay behind: every round reads past them.
MOST_LEFT = 10_000


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
    """The queues of the other system.

    Attributes:
        errors: what the server behind them raises.
    """

    errors: tuple[type[Exception], ...]

    def take(self, most: int) -> TakenMessages:
        """Move up to ``most`` messages out of their queues; first those that an earlier bridge took and left."""
        ...

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Forget messages whose jobs are stored."""
        ...

    def resume(self) -> None:
        """Give messages that were taken and not acknowledged again, with the next :meth:`take`."""
        ...

    def waiting(self) -> int:
        """Messages that wait in the queues now."""
        ...

    def close(self) -> None: ...


class Envelopes:
    """Makes envelopes of the facts of messages, checked as the store will check them. Draws ids; no I/O.

    Args:
        prefix: of request ids: the other system's name.
        to: the queue of all jobs; None: the queue of the same name.
    """

    def __init__(self, app: Headrace, prefix: str, to: str | None) -> None:
        self._shard = app.client.keys.shard
        self._reader = EnvelopeReader(app.settings.max_payload, app.client.count)
        self._prefix = prefix
        self._to = to

    def made(self, id: str, task: str, fields: Mapping[str, Any]) -> bytes:
        """An envelope. ``id``: of the message, by which it makes one job. ``fields``: of the envelope, those that are
        None left out. Raises Unmovable: the store would refuse it.
        """
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
