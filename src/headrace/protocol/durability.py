"""How safe work is when the verb that stores it returns: what travels behind a script, and what the answers mean. Pure.

A mark is written on the connection of the script and behind it: in what a primary sends to its replicas and to its
disk, it follows the script. So WAIT and WAITAOF behind the mark cover the script, also where a repeat wrote nothing. A
mark that is found later proves that this server has what was stored before it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from headrace.errors import NotConfirmed, OptionsError
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, Command
from headrace.settings import Settings

T = TypeVar("T")
# As headrace.store.client says: what each yields is one call, or a list of calls that travel in one round trip.
Steps: TypeAlias = Generator[Call[Any] | list[Call[Any]], Any, T]
# The options ``durability`` and ``replicas`` of a task or a call, "" and 0 where they say nothing.
Asked: TypeAlias = tuple[str, int]

# Of several; None where nothing says anything.
Wishes: TypeAlias = Collection[Asked] | None
# A producer's slot: its name, and the number of a request, which no other has under this name.
Slot: TypeAlias = tuple[str, int]

# Seconds that a mark stays.
MARK_TTL = 60


class Durability(msgspec.Struct, frozen=True):
    """What has a write before its verb returns, besides the server's memory; False where that suffices."""

    fsync: bool = False
    replicas: int = 0

    def __bool__(self) -> bool:
        return self.fsync or self.replicas > 0

    def __or__(self, other: Durability) -> Durability:
        return Durability(self.fsync or other.fsync, max(self.replicas, other.replicas))


def durability(settings: Settings, asked: Wishes = None) -> Durability:
    """What a verb waits for. Raises OptionsError: ``replicas`` is given for work that no replica confirms."""
    found = Durability()
    for given, replicas in asked or (("", 0),):
        word = given or settings.durability
        if replicas and word != "replicated":
            raise OptionsError(f'replicas={replicas} needs durability="replicated", not {word!r}: give both')
        found |= Durability(word == "fsync", (replicas or settings.replicas) if word == "replicated" else 0)
    return found


@lru_cache(64)
def waits(wanted: Durability, milliseconds: int) -> tuple[Command[int], ...]:
    """Wait at most so long until the writes of this connection are safe; each answers how many copies are."""
    disk = Command.of("WAITAOF", 1, 0, milliseconds, parse=lambda reply: reply[0])
    copies = Command.of("WAIT", wanted.replicas, milliseconds)
    return (*([disk] if wanted.fsync else []), *([copies] if wanted.replicas else []))


class _Open(msgspec.Struct, frozen=True):
    call: Call[Any]
    wanted: Durability
    ids: Sequence[str]


class Confirmer:
    """Sends the calls of one verb, and has what they wrote confirmed.

    Attributes:
        asked: how safe the next call's work is to be.
        streams: a call is confirmed with the next one, and the last by :meth:`finish`.
        open: the last call, where that is not confirmed yet.
        slots: producer slots that stay in use until it is.
        own: the slot whose mark this writes; None before the first call.
    """

    __slots__ = ("_key", "_milliseconds", "_shown", "_step", "asked", "open", "own", "slots", "streams")

    def __init__(self, asked: Wishes = None, *, streams: bool = False) -> None:
        self.asked, self.streams = asked, streams
        self.open: _Open | None = None
        self.slots: list[Slot] = []
        self.own: Slot | None = None
        self._step = 0

    @property
    def idle(self) -> bool:
        """Whether a call has nothing to wait for, unless the settings say so."""
        return self.asked is None and self.open is None

    def begin(self, keys: Keys, slot: Slot, milliseconds: int, shown: str) -> None:
        self.own, self._key = slot, keys.mark(slot[0])
        self._milliseconds, self._shown = milliseconds, shown

    def mark(self) -> Command[bool]:
        """Write this mark, and read whether it was written before."""
        assert self.own is not None
        # The key never had this value before, whichever process used the slot.
        value = f"{self.own[1]}.{self._step}"
        return Command.of("SET", self._key, value, "EX", MARK_TTL, "GET", parse=lambda reply: reply == value.encode())

    def store(self, call: Call[T], wanted: Durability, ids: Sequence[str], *, later: bool = False) -> Steps[T]:
        """Send a call that may be repeated, behind what confirms the one before. ``later``: its own confirmation
        travels with the next call, or with :meth:`finish`. Raises NotConfirmed: too few copies in time.
        """
        before = self._asked() if self.open else []
        if not wanted and not before:
            answer: T = yield call
            return answer
        self._step += 1
        own = () if later else waits(wanted, self._milliseconds)
        replies = yield [*before, call, self.mark(), *own]
        size = len(before)
        if before:
            yield from self._answered(replies[:size])
        self.open = _Open(call, wanted, ids) if later else None
        if not later:
            self._check(wanted, ids, replies[size + 2 :])
        answer = replies[size]
        return answer

    def finish(self) -> Steps[None]:
        """Have the last call confirmed. Raises NotConfirmed as :meth:`store`."""
        if self.open:
            yield from self._answered((yield self._asked()))

    def through(self, steps: Steps[T], wanted: Durability, id: str) -> Steps[T]:
        """Run a verb of several calls, each with a mark behind it. Raises NotConfirmed: a server lacks the last one."""
        try:
            step = next(steps)
            while True:
                self._step += 1
                calls = step if isinstance(step, list) else [step]
                try:
                    replies = yield [*calls, self.mark()]
                except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(replies[:-1] if calls is step else replies[0])
        except StopIteration as end:
            value: T = end.value
        found, *counts = yield [self.mark(), *waits(wanted, self._milliseconds)]
        self._check(wanted, [id], counts if found else [0] * len(counts))
        return value

    def _asked(self) -> list[Call[Any]]:
        assert self.open is not None
        return [self.mark(), *waits(self.open.wanted, self._milliseconds)]

    def _answered(self, replies: Sequence[Any]) -> Steps[None]:
        assert self.open is not None
        was, (found, *counts) = self.open, replies
        if not found:
            # A failover may have lost the call with its mark: its request number lets it be stored once.
            _, _, *counts = yield [was.call, self.mark(), *waits(was.wanted, self._milliseconds)]
        self._check(was.wanted, was.ids, counts)
        self.open = None

    def _check(self, wanted: Durability, ids: Sequence[str], counts: Sequence[int]) -> None:
        lacks = list[str]()
        if wanted.fsync and not counts[0]:
            lacks.append("it did not write it to its disk (with appendfsync no it never confirms that)")
        if counts and counts[-1] < wanted.replicas:
            lacks.append(f"{counts[-1]} of {wanted.replicas} replicas confirmed it")
        if lacks:
            more = f" and {len(ids) - 1:,} more" if len(ids) > 1 else ""
            raise NotConfirmed(
                f"{self._shown} stored {ids[0]}{more}, and within {self._milliseconds / 1000:g} s "
                f"{' and '.join(lacks)}: a failover may lose it. Repeat the call with the same request_id, or with the "
                f"same task.job(...): that stores nothing twice",
                tuple(ids),
            )
