"""Workflow nodes in a dispatcher: nodes that add nodes, and nodes that wait for outputs. Sends nothing itself.

The nodes that a start added are stored before its success is settled: "Graphs that grow" in docs/design/workflows.md.
:class:`Inputs` has a small memory of outputs: of nodes that ended here, whose children most likely come here, too, and
of outputs that were read, since the children of one node are claimed batch by batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.model.ended import Ended, Failed, GrownNode, Succeeded
from headrace.model.ids import MOST_NODES, flow_of, siblings_of
from headrace.model.job import Claim, Input, JobError, error_json
from headrace.model.workflow import Grown, unpack_grown
from headrace.protocol import graph
from headrace.protocol.graph import NodeOutput
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher.dispatcher_events import End, Step

# The scripts that store what was added.
GROWTH = ("reserve", "graft")

_pack = msgspec.msgpack.Encoder().encode
_FULL = (
    f"its workflow has no numbers left for what it adds: {MOST_NODES} is the most, what attempts that failed had added "
    "included; add fewer nodes, or start another workflow for them"
)


class _Growing(msgspec.Struct):
    claim: Claim
    grown: Grown
    ttl: int
    base: int = -1
    next: int = 1


class Growth:
    """The grafts under way, one after the other; ``settle`` is called when one is stored, or cannot be any more."""

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
        return lambda reply: read(reply) if made == self._round else None

    def restart(self) -> None:
        """The server may have forgotten what of the first graft it had stored: begin it anew, which changes nothing."""
        self._round += 1
        self._sent = False
        if self._queue:
            self._queue[0].base, self._queue[0].next = -1, 1

    def drop_all(self) -> list[Claim]:
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
            self._end(Failed(error_json(JobError(type="WorkflowError", message=_FULL)), self._queue[0].ttl))
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


BATCH = 250
# Bytes of outputs that are remembered beyond what is waited for, and what one takes about besides its result.
MEMORY = 16 << 20
OVERHEAD = 400
# Bytes that one node may get: an input is held in the dispatcher and sent to the runner whole.
MOST = 64 << 20

# States in which an output stays as it is: a retry of the workflow may bring others to a success.
FIXED = ("succeeded", "skipped")

_NONE = b"\xc0"


class Inputs:
    def __init__(self, keys: Keys, feed: Callable[[], None] = lambda: None) -> None:
        self._keys, self._feed = keys, feed
        # Claims that wait, by workflow and parents: those that one node was fanned out to take the same.
        self._waiting: dict[tuple[str, str], list[Claim]] = {}
        self._lacking: dict[tuple[str, str], str] = {}
        self._known: dict[str, NodeOutput] = {}
        self._size = 0
        self._wanted: deque[str] = deque()
        self._asked: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, claim: Claim) -> None:
        alike = (flow_of(claim.id), claim.parents)
        if alike in self._waiting:
            self._waiting[alike].append(claim)
        else:
            self._waiting[alike] = [claim]
            self._want(_parents(claim))

    def steps(self) -> list[Step]:
        ids: list[str] = []
        while self._wanted and len(ids) < BATCH:
            if (id := self._wanted.popleft()) in self._asked:
                ids.append(id)
        if not ids:
            return []
        return [(graph.outputs(self._keys, ids), lambda reply: self._read(ids, reply))]

    def ready(self) -> Iterator[tuple[tuple[Input, ...], list[Claim]]]:
        for alike in list(self._waiting):
            if self._lacking.get(alike) in self._asked:
                continue
            parents = _parents(self._waiting[alike][0])
            if lacking := self._unknown(parents):
                self._lacking[alike] = lacking
            else:
                self._lacking.pop(alike, None)
                yield tuple(self._input(id, self._known[id]) for id in parents), self._waiting.pop(alike)
        self._forget()

    def learn(self, claim: Claim, result: bytes) -> None:
        """A node has succeeded here, and the store knows it: its children, if they come here, need not read it."""
        self._asked.discard(claim.id)
        self._forget()
        self._know(claim.id, NodeOutput(claim.facts, claim.task, "succeeded", result))

    def feed(self) -> None:
        if self._waiting:
            self._feed()

    def take(self, id: str) -> list[Claim]:
        taken: list[Claim] = []
        for alike, claims in list(self._waiting.items()):
            taken += (mine := [claim for claim in claims if claim.id == id])
            left = [claim for claim in claims if claim.id != id] if mine else claims
            if left:
                self._waiting[alike] = left
            else:
                del self._waiting[alike]
                self._lacking.pop(alike, None)
        return taken

    def take_all(self) -> list[Claim]:
        taken = [claim for claims in self._waiting.values() for claim in claims]
        for held in (self._waiting, self._lacking, self._wanted, self._asked):
            held.clear()
        return taken

    def _want(self, ids: Sequence[str]) -> None:
        stack = list(ids)
        while stack:
            id = stack.pop()
            output = self._known.get(id)
            if output is not None and output.state in FIXED:
                stack += output.sources or ()
            elif id not in self._asked:
                self._known.pop(id, None)
                self._asked.add(id)
                self._wanted.append(id)

    def _read(self, ids: list[str], reply: list[NodeOutput]) -> None:
        # The reply is cut where it would be too large: the rest is asked for again.
        self._wanted.extendleft(reversed(ids[len(reply) :]))
        for id, output in zip(ids, reply, strict=False):
            self._asked.discard(id)
            self._know(id, output)
            if output.sources:
                self._want(output.sources)
        self._feed()

    def _know(self, id: str, output: NodeOutput) -> None:
        self._known[id] = output
        self._size += OVERHEAD + len(output.result or b"")

    def _unknown(self, ids: list[str]) -> str:
        # They are read in the reverse order: the first one comes last.
        stack = ids[::-1]
        while stack:
            id = stack.pop()
            output = self._known.get(id)
            if output is None:
                return id
            stack += output.sources or ()
        return ""

    def _input(self, id: str, output: NodeOutput) -> Input:
        state = output.state
        if output.sources and not output.many and self._known[output.sources[0]].state == "skipped":
            # It has succeeded, and all that it had added for an output was skipped.
            state = "skipped"
        return Input(id, output.name, output.task, state, self._output(output))

    def _output(self, output: NodeOutput) -> bytes:
        if output.state != "succeeded":
            return _NONE
        if output.sources is None:
            return output.result or _NONE
        parts = [self._output(self._known[source]) for source in output.sources]
        if output.many:
            return _pack([msgspec.Raw(part) for part in parts])
        return parts[0] if parts else _NONE

    def _forget(self) -> None:
        if self._size > MEMORY and not self._waiting:
            self._known.clear()
            self._size = 0


def too_large(inputs: Sequence[Input]) -> str:
    size = sum(len(one.output) for one in inputs)
    if size <= MOST:
        return ""
    return f"its parents' outputs take {size:,} bytes, more than {MOST:,}: store them elsewhere, return references"


def _parents(claim: Claim) -> list[str]:
    return siblings_of(claim.id, claim.parents)
