"""What supervisor, dispatcher and runners say to each other: the messages that travel over their channels (channel.py).

Owns the form of messages only. Every message is a tagged array, so an unknown one fails at decoding, not later.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.model.ended import Ended
from headrace.model.job import Claim
from headrace.model.options import Kind


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Dispatcher to runner: start these, in this order."""

    claims: list[Claim]


class WakeHint(msgspec.Struct, frozen=True, array_like=True, tag="wake"):
    """Dispatcher to idle runner: a job is about to follow, so wake up already."""


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """Dispatcher to runner: forget the last ``count`` jobs sent; their tickets were taken back."""

    count: int


class Up(msgspec.Struct, frozen=True, array_like=True, tag="up"):
    """Runner to dispatcher: the application's code for its start has run. Sent by those that were said to start."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Dispatcher to runner: this start is to stop. All reasons but ``shutdown`` raise in its code."""

    token: int
    reason: Literal["shutdown", "interrupt", "cancel", "soft"]


class Exit(msgspec.Struct, frozen=True, array_like=True, tag="exit"):
    """Dispatcher to runner: leave when what you hold is done. Fork server to dispatcher: I leave."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """Runner to dispatcher: a start ended.

    Attributes:
        cost: microseconds that the runner was busy with it, its own work included.
        memory: peak resident memory of the runner so far, bytes; 0 when not measured.
    """

    token: int
    ended: Ended
    cost: int
    memory: int


class ChildCrashed(msgspec.Struct, frozen=True, array_like=True, tag="fell"):
    """Fork server to dispatcher: its child ended without saying how its job did; fields as in :class:`Died`."""

    signal: int
    code: int
    memory: int


class JobProgress(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    """Runner to dispatcher: progress (None: unchanged), log lines, what was swallowed or spent, of a running start."""

    token: int
    progress: float | None
    text: str
    lines: tuple[str, ...]
    swallowed: str = ""
    spent: tuple[tuple[str, int], ...] = ()


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """Runner to dispatcher, before the end of a start: what was done in it that each new runner does again.

    Attributes:
        born: microseconds from the fork until the runner was ready; 0 when that was told before.
        first: whether this start was watched as the first of its task here.
        imports: modules that its code imported, with microseconds.
        early: the same of what runs outside of jobs, such as hooks.
        functions: ``module:function`` of what may be set-up that it spent time below, with microseconds.
    """

    token: int
    born: int
    first: bool
    imports: list[tuple[str, int]]
    early: list[tuple[str, int]]
    functions: list[tuple[str, int]]


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag="spawn"):
    """Dispatcher to supervisor: fork a runner; ``profile``: it notes what is done again in it."""

    kind: Kind
    profile: bool = False


class Signal(msgspec.Struct, frozen=True, array_like=True, tag="signal"):
    """Dispatcher to supervisor: interrupt (``stop``) or end (``kill``) a runner, or have it write its ``stacks``."""

    runner: int
    what: str


class Size(msgspec.Struct, frozen=True, array_like=True, tag="size"):
    """From now on so many of a kind at once.

    Dispatcher to supervisor: somebody wished so; the next dispatcher starts with that. Supervisor to dispatcher: the
    image before this one was told so.
    """

    kind: Kind
    size: int


class Resize(msgspec.Struct, frozen=True, array_like=True, tag="resize"):
    """Supervisor to dispatcher: have so many runners more, or fewer."""

    by: int


class Owner(msgspec.Struct, frozen=True, array_like=True, tag="owner"):
    """Dispatcher to supervisor: the incarnation that my successor must take over from."""

    owner: str


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """Dispatcher to supervisor: registered, and no first runner is starting any more; or why one ended in its start."""

    trouble: str = ""


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag="spawned"):
    """Supervisor to dispatcher: a runner; comes with four descriptors: socket, tickets (read, write), its stderr.

    Attributes:
        is_fork_server: it runs no job itself, but forks a child for each.
        starting: it, or its first child, runs code of the application first, and says :class:`Up` when it takes jobs.
    """

    runner: int
    kind: Kind
    pid: int
    is_fork_server: bool = False
    starting: bool = False


class Died(msgspec.Struct, frozen=True, array_like=True, tag="died"):
    """Supervisor to dispatcher: a runner was reaped. ``signal`` and ``code`` are 0 when they do not apply."""

    runner: int
    signal: int
    code: int
    memory: int


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Supervisor to dispatcher: stop claiming, finish, hand back the rest after the timeout; ``now``: at once."""

    now: bool


ToRunner = Run | WakeHint | Recall | Stop | Exit
FromRunner = Done | JobProgress | Found | ChildCrashed | Exit | Up
ToSupervisor = Spawn | Signal | Owner | Begun | Size
FromSupervisor = Spawned | Died | Drain | Resize | Size
