"""A job that is not stored yet: made by ``task.job(...)``, stored by ``app.enqueue_many``, or packed for others.

Owns the id of the job and whether it is stored. Sends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from headrace.errors import OptionsError
from headrace.model.form import Form, NewJob

if TYPE_CHECKING:
    from headrace.tasks.job_handle import Job

R = TypeVar("R")


class JobSource(Protocol[R]):
    """A task and the options of a job that is not stored yet: a ``BoundTask``."""

    @property
    def task(self) -> str: ...
    def draw(self) -> str:
        """An id for the job, which no other process draws."""
        ...

    def fitting(self, id: str, /) -> str:
        """An id that was drawn, as the options want it."""
        ...

    def handle(self, id: str, /, *, fresh: bool = False) -> Job[R]:
        """A handle on the stored job."""
        ...


# A Struct, since a million of them pass: made in a third of the time, and nothing for the garbage collector.
class UnsentJob(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A job that is not stored yet, made by ``task.job(...)``: ``app.enqueue_many`` stores it, once.

    Attributes:
        bound: the task and its options.
        args: packed.
        form: everything else that is stored of it.
        request_id: within the setting ``request_id_ttl`` it makes one job; empty: the job has none.
        drawn: its id, if it was asked for.
        shared: another sender may store it, or an earlier attempt may have: it is stored only if it is not there yet.
        stored: id of the job that it is stored as; empty: it is not stored, as far as is known here.
        name: of a unique job.
    """

    bound: JobSource[R]
    args: bytes
    form: Form
    request_id: str = ""
    drawn: str = ""
    shared: bool = False
    stored: str = ""
    name: str = ""

    @property
    def id(self) -> str:
        """Id of the job, from the moment that it is made. Cost: none."""
        if not self.drawn:
            self.drawn = self.bound.draw()
        return self.drawn

    @property
    def handle(self) -> Job[R]:
        """A handle on the job: on the one that has its name or request id, where the store said so. Cost: none."""
        return self.bound.handle(self.stored or self.id, fresh=self.stored == self.id)

    def pack(self) -> bytes:
        """The job as an envelope: documented bytes for a file, a table or another program; see docs/envelope.md.

        ``app.enqueue_packed`` stores it, once, however many senders have these bytes. Its delay and expiry count from
        that moment.

        Raises:
            OptionsError: an option has a value that no envelope can carry.

        Cost: none.
        """
        # Loaded at first use: a program without envelopes must not pay for them.
        from headrace.tasks.envelope import packed

        self.shared = True
        return packed(self.id, self.args, self.form, self.request_id, self.name)

    def take(self, drawn: str) -> NewJob:
        """The row to store.

        Args:
            drawn: an id to take if it has none yet.

        Raises:
            OptionsError: it is stored already.
        """
        if self.stored:
            raise OptionsError(f"this job was stored already, as {self.stored}: make another with task.job(...)")
        if not self.drawn:
            self.drawn = self.bound.fitting(drawn)
        self.stored = self.drawn
        return NewJob(self.drawn, self.args, self.form, self.name)

    def untaken(self) -> None:
        """The attempt to store it failed: it may be stored or not."""
        self.stored, self.shared = "", True

    @property
    def wish(self) -> str:
        """What the store looks for before it stores the job: its request id, or its own id, or nothing."""
        return self.request_id or (self.drawn if self.shared else "")

    def __repr__(self) -> str:
        return f"<UnsentJob of {self.bound.task} {self.drawn or 'without an id yet'}>"
