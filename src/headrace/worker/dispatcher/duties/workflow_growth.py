"""Nodes that add nodes: what a start added is stored before its success is settled.

Owns the grafts under way. Produces calls, which travel with the next exchange; sends nothing itself. See "Graphs that
grow" in docs/design/workflows.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.model.ended import Ended, Failed, GrownNode, Succeeded
from headrace.model.ids import MOST_NODES
from headrace.model.job import Claim, JobError, error_json
from headrace.model.workflow import Graft
from headrace.protocol import graph
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher.dispatcher_events import End, Step


class Grown(msgspec.Struct, frozen=True, array_like=True):
    """What a runner says of a start that added nodes: its result, and these."""

    result: bytes
    graft: Graft


_pack = msgspec.msgpack.Encoder().encode
_grown = msgspec.msgpack.Decoder(Grown)
_FULL = error_json(
    JobError(
        type="WorkflowError",
        message=f"its workflow has no numbers left for what it adds: {MOST_NODES} is the most, what attempts that "
        "failed had added included; add fewer nodes, or start another workflow for them",
    )
)


def pack_grown(result: bytes, graft: Graft) -> bytes:
    """The data of an outcome ``grown``."""
    return _pack(Grown(result, graft))


def unpack_grown(data: bytes) -> Grown:
    """What :func:`pack_grown` packed."""
    return _grown.decode(data)


class _Growing(msgspec.Struct):
    claim: Claim
    grown: Grown
    ttl: int
    base: int = -1
    next: int = 1


class Growth:
    """The grafts under way, one after the other.

    Attributes:
        settle: called when a graft is stored, or cannot be any more.
    """

    def __init__(self, keys: Keys, settle: Callable[[End], None]) -> None:
        self.settle = settle
        self.owner = ""
        self._keys = keys
        self._queue: deque[_Growing] = deque()
        self._sent = False
        # Answers to what was sent before a restart do not count.
        self._round = 0

    def __len__(self) -> int:
        return len(self._queue)

    def begin(self, end: End) -> None:
        self._queue.append(_Growing(end.claim, unpack_grown(end.ended.data), end.ended.amount))

    def steps(self) -> list[Step]:
        """The next piece of the first graft."""
        if not self._queue or self._sent:
            return []
        self._sent = True
        one = self._queue[0]
        claim, added = one.claim, one.grown.graft
        if one.base < 0:
            call = graph.reserve(self._keys, self.owner, claim.id, claim.token, len(added.nodes))
            return [(call, self._current(self._reserved))]
        stored, after = graph.graft(self._keys, self.owner, claim.id, claim.token, added, one.base, one.next)
        return [(stored, self._current(lambda word: self._stored(word, after)))]

    def _current(self, read: Callable[[Any], None]) -> Callable[[Any], None]:
        made = self._round

        def answered(reply: Any) -> None:
            if made == self._round:
                read(reply)

        return answered

    def restart(self) -> None:
        """The server may have forgotten what of the first graft it had stored: begin it anew, which changes nothing."""
        self._round += 1
        self._sent = False
        if self._queue:
            self._queue[0].base, self._queue[0].next = -1, 1

    def drop_all(self) -> list[Claim]:
        """Every start whose graft is not stored; none is under way any more."""
        claims = [one.claim for one in self._queue]
        self._queue.clear()
        self._sent = False
        self._round += 1
        return claims

    def _reserved(self, first: int) -> None:
        self._sent = False
        if first > 0:
            self._queue[0].base = first - 1
        elif first < 0:
            # Settled as a success, what follows would run without what was to be added.
            self._end(Failed(_FULL, self._queue[0].ttl))
        else:
            # Cancelled, deleted or taken over: the end counts if it still may, what it adds does not.
            self._end(self._succeeded())

    def _stored(self, word: str, after: int) -> None:
        self._sent = False
        one = self._queue[0]
        one.next = after
        if word == "unreserved":
            self.restart()
        elif word != "ok":
            self._end(self._succeeded())
        elif after > len(one.grown.graft.nodes):
            self._end(GrownNode(one.grown.result, one.ttl))

    def _succeeded(self) -> Succeeded:
        one = self._queue[0]
        return Succeeded(one.grown.result, one.ttl)

    def _end(self, ended: Ended) -> None:
        self.settle(End(self._queue.popleft().claim, ended))
