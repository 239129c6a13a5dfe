"""What happens to a dispatcher (events), and what it does about it (actions): all that its loop and its core exchange.
Messages between the supervisor and the core (messages.py) are events and actions, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.model.ended import Ended
from headrace.model.job import Claim
from headrace.protocol.script import Call
from headrace.worker.messages import Drain, Exit, FromRunner, Size, Spawned, Stop, ToSupervisor

# A call to the store, and the function of the core that reads its reply.
Step = tuple[Call[Any], Callable[[Any], None]]

# Mail: something was broadcast to this worker; a pause was given an end, which renewals tell.
CALLED = "@"
HURRY = "renew"


# -- events: the runners ----------------------------------------------------------------------------------------------


class Heard(msgspec.Struct, frozen=True):
    runner: int
    messages: list[FromRunner]


class TakenBack(msgspec.Struct, frozen=True):
    """The answer to :class:`TakeBack`, before anything else that happens to this runner: the last ``count`` jobs."""

    runner: int
    count: int


class RunnerClosed(msgspec.Struct, frozen=True):
    """A runner closed its socket: it leaves or died; or it is ``garbled``: what it sent is not a message."""

    runner: int
    garbled: bool = False


class RunnerDied(msgspec.Struct, frozen=True):
    """A runner was reaped.

    Attributes:
        signal, code: how it ended; 0 when they do not apply.
        memory: its peak, bytes.
        heard: its last messages; ``stderr``: the end of what it wrote there.
        unstarted: this many of the last jobs that it was given it has not begun.
        fenced: the supervisor killed it, since this process did not move until its lease ended.
    """

    runner: int
    signal: int = 0
    code: int = 0
    memory: int = 0
    heard: list[FromRunner] = []
    unstarted: int = 0
    stderr: bytes = b""
    fenced: bool = False


class StackHeard(msgspec.Struct, frozen=True):
    runner: int
    text: bytes


# -- events: the supervisor, the store, others ------------------------------------------------------------------------


class Orphaned(msgspec.Struct, frozen=True):
    """The supervisor died. The loop has killed the runners: a :class:`RunnerDied` follows for each."""


class Replied(msgspec.Struct, frozen=True):
    read: Callable[[Any], None]
    reply: Any
    script: str


class CallRefused(msgspec.Struct, frozen=True):
    """The store refused a step, which is not sent again by itself. ``asleep``: it was the claim of a sleep."""

    step: Step
    asleep: bool = False


class Woken(msgspec.Struct, frozen=True):
    """The claim of a sleep was answered; ``by_queue``: a queue ended the sleep, no time and no :class:`WakeUp`."""

    read: Callable[[Any], None]
    reply: Any
    by_queue: bool


class Ready(msgspec.Struct, frozen=True):
    """The store can be sent steps: everything that was sent before is answered."""


class Disconnected(msgspec.Struct, frozen=True):
    """The connections to the store are gone. What was sent, a sleep's claim included, is sent again on new ones."""


class Connected(msgspec.Struct, frozen=True):
    """New connections are there. What :class:`SendFirst` says now goes out before all that is sent again."""


class Mail(msgspec.Struct, frozen=True):
    text: str


StoreEvent = Replied | CallRefused | Woken | Ready | Disconnected | Connected | Mail


class DeskEvent(msgspec.Struct, frozen=True):
    shard: int
    event: StoreEvent


RunnerEvent = Spawned | Heard | TakenBack | RunnerClosed | RunnerDied | StackHeard
Event = RunnerEvent | Drain | Size | Orphaned | StoreEvent | DeskEvent


# -- actions ----------------------------------------------------------------------------------------------------------


class Give(msgspec.Struct, frozen=True):
    runner: int
    claims: list[Claim]


class Notify(msgspec.Struct, frozen=True):
    runner: int
    message: Stop | Exit


class TakeBack(msgspec.Struct, frozen=True):
    """Take back up to ``most`` of a runner's last jobs that it has not begun; :class:`TakenBack` answers."""

    runner: int
    most: int


class Capture(msgspec.Struct, frozen=True):
    """Until a time keep stacks that a runner writes to its stderr out of the log; :class:`StackHeard` has them."""

    runner: int
    until: float


class Send(msgspec.Struct, frozen=True):
    """Send steps to the store in one round trip, again on each new connection until they are answered or refused."""

    steps: list[Step]


class SendFirst(msgspec.Struct, frozen=True):
    """As :class:`Send`, but before what waits to be sent again, each in its own trip; forgotten with the connection."""

    steps: list[Step]


class Sleep(msgspec.Struct, frozen=True):
    """Sleep on wake-up keys and make this claim when the sleep ends. :class:`Woken` answers."""

    keys: list[str]
    claim: Step


class WakeUp(msgspec.Struct, frozen=True):
    """End the sleep; its claim is made anyway."""


class Subscribe(msgspec.Struct, frozen=True):
    """Hear what is written to this channel, and no longer to the one before."""

    channel: str


class Log(msgspec.Struct, frozen=True):
    level: int
    text: str
    args: tuple[Any, ...]
    code: str
    extra: dict[str, Any] | None = None


StoreAction = Send | SendFirst | Sleep | WakeUp | Subscribe


class DeskAction(msgspec.Struct, frozen=True):
    shard: int
    action: StoreAction


Action = Give | Notify | TakeBack | Capture | ToSupervisor | StoreAction | DeskAction | Log


class Actions:
    """The actions that the parts of a core have decided and the loop has not taken."""

    __slots__ = ("_all", "add")

    def __init__(self) -> None:
        self._all: list[Action] = []
        self.add = self._all.append

    def log(self, level: int, text: str, *args: Any, code: str, facts: dict[str, Any] | None = None) -> None:
        self.add(Log(level, text, args, code, {"facts": facts} if facts else None))

    def given(self, runner: int) -> int:
        """How many claims a runner is to be given by these actions: it has no tickets of them yet."""
        return sum(len(one.claims) for one in self._all if isinstance(one, Give) and one.runner == runner)

    def take(self) -> Sequence[Action]:
        if not self._all:
            return ()
        taken = self._all.copy()
        self._all.clear()
        return taken


class DeskActions:
    def __init__(self, actions: Actions, shard: int) -> None:
        self._actions, self._shard = actions, shard

    def add(self, action: StoreAction) -> None:
        self._actions.add(DeskAction(self._shard, action))


class End(msgspec.Struct, frozen=True, gc=False):
    """How a start ended.

    Attributes:
        cost: microseconds that its code ran; 0: not known.
        memory: the most resident memory that its process had until then, bytes; 0: not known.
        logged: it wrote log lines.
    """

    claim: Claim
    ended: Ended
    cost: int = 0
    memory: int = 0
    logged: bool = False
