"""How one start ended: a union of records, each with what its kind has and nothing else. Pure.

``Ended`` is what runners send, dispatchers gather, and logs and statistics read. ``kind`` names a member in the store,
in JSON and in logs. Every member tells ``data`` and ``amount`` as the store takes them.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec

EndKind: TypeAlias = Literal[
    "succeeded", "grown", "growing", "skipped", "failed", "retry", "snoozed", "limited", "cancelled", "crashed",
    "released", "interrupted", "parked", "corrupt",
]  # fmt: skip


class _Plain(msgspec.Struct, frozen=True, array_like=True, gc=False):
    kind: ClassVar[EndKind]

    @property
    def data(self) -> bytes:
        return b""

    @property
    def amount(self) -> int:
        """Microseconds that it stays, or until it starts again."""
        return 0


class _WithResult(_Plain, frozen=True, array_like=True, gc=False):
    result: bytes
    ttl: int

    @property
    def data(self) -> bytes:
        return self.result

    @property
    def amount(self) -> int:
        return self.ttl


class _WithError(_Plain, frozen=True, array_like=True, gc=False):
    """JSON of a :class:`headrace.model.job.JobError`, and the microseconds that the job stays."""

    error: bytes
    ttl: int

    @property
    def data(self) -> bytes:
        return self.error

    @property
    def amount(self) -> int:
        return self.ttl


class Succeeded(_WithResult, frozen=True, array_like=True, gc=False, tag="succeeded"):
    """The function returned."""


class Growing(_WithResult, frozen=True, array_like=True, gc=False, tag="growing"):
    """The function of a node returned and adds nodes, which are in ``result`` and not stored yet."""


class GrownNode(_WithResult, frozen=True, array_like=True, gc=False, tag="grown"):
    """The function of a node returned, and the nodes that it adds are stored."""


class Skipped(_Plain, frozen=True, array_like=True, gc=False, tag="skipped"):
    """A node whose condition did not hold."""

    ttl: int

    @property
    def amount(self) -> int:
        return self.ttl


class Failed(_WithError, frozen=True, array_like=True, gc=False, tag="failed"):
    """It raised, or cannot be run as it is stored, and does not start again."""


class Retried(_Plain, frozen=True, array_like=True, gc=False, tag="retry"):
    """It raised, and starts again after ``delay`` microseconds."""

    error: bytes
    delay: int

    @property
    def data(self) -> bytes:
        return self.error

    @property
    def amount(self) -> int:
        return self.delay


class Snoozed(_Plain, frozen=True, array_like=True, gc=False, tag="snoozed"):
    """It asked to start again after ``delay`` microseconds."""

    delay: int

    @property
    def amount(self) -> int:
        return self.delay


class RateRefused(_Plain, frozen=True, array_like=True, gc=False, tag="limited"):
    """It was told that it calls too often: the gate of its limit closes for ``delay`` microseconds; 0: as is usual."""

    limit: str
    delay: int

    @property
    def data(self) -> bytes:
        return self.limit.encode()

    @property
    def amount(self) -> int:
        return self.delay


class Cancelled(_WithError, frozen=True, array_like=True, gc=False, tag="cancelled"):
    """It was cancelled, or did not start before its time was over."""


class Crashed(_WithError, frozen=True, array_like=True, gc=False, tag="crashed"):
    """Its runner died. ``ttl`` counts where its crash budget is used up."""


class Interrupted(_WithError, frozen=True, array_like=True, gc=False, tag="interrupted"):
    """A shutdown, or the end of another start, stopped it: it starts again. ``ttl`` counts where it may not."""


class Released(_Plain, frozen=True, array_like=True, gc=False, tag="released"):
    """It was claimed and not started: it goes back to its queue."""


class Parked(_Plain, frozen=True, array_like=True, gc=False, tag="parked"):
    """No worker here knows its task: it waits for one that does."""


class Corrupt(_WithError, frozen=True, array_like=True, gc=False, tag="corrupt"):
    """Its record cannot be read: it is quarantined."""


Ended: TypeAlias = (
    Succeeded | Growing | GrownNode | Skipped | Failed | Retried | Snoozed | RateRefused | Cancelled | Crashed
    | Interrupted | Released | Parked | Corrupt
)  # fmt: skip

for _member in get_args(Ended):
    _member.kind = _member.__struct_config__.tag
