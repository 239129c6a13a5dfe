"""What may be done to a workflow and what the store's answers mean, each decided once for both kinds of callers.

Sends nothing by itself: verbs are calls, or steps that yield them.
:class:`headrace.workflows.run.WorkflowRun` pairs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from headrace.errors import ResultTimeout, WorkflowNotFound, WorkflowStateError
from headrace.model.ids import is_flow
from headrace.model.workflow import FOR_EVER, WorkflowRecord, WorkflowState
from headrace.protocol import graph
from headrace.protocol.script import Call
from headrace.settings import Duration, microseconds, seconds
from headrace.store.client import Client, Steps
from headrace.workflows import node_queries

# Nodes that one call may name.
NAMED = 500
# Pieces (of 400 nodes each) that one verb does of what scripts left over; workers do the rest.
PIECES = 1000

OnPiece = Callable[[int], object]


class Verbs(msgspec.Struct, frozen=True):
    """What is said of one workflow."""

    client: Client
    id: str
    definition: str

    def watch(self) -> Call[WorkflowState | None]:
        return graph.watch_flow(self.client.keys, self.id, 0)

    def read(self) -> Call[list[WorkflowRecord | None]]:
        return graph.read_flows(self.client.keys, [self.id])

    def stop(self) -> Call[str]:
        return graph.stop(self.client.keys, self.id)

    def expire(self, after: Duration | None) -> Call[str]:
        ttl = FOR_EVER if after is None else microseconds(seconds(after, "after"))
        return graph.expire(self.client.keys, self.id, ttl)

    def start(self, names: Sequence[str], on_piece: OnPiece | None) -> Steps[WorkflowState]:
        chosen: list[int] = []
        if names:
            stored = yield from node_queries.every(self.client, self.id)
            chosen = [node.number for node in node_queries.named(self.id, names, stored)]
        word = ""
        for first in range(0, len(chosen) or 1, NAMED):
            word = yield graph.start(self.client.keys, self.id, chosen[first : first + NAMED])
        if word != WorkflowState.RUNNING:
            self._refuse(word, "started")
        yield from tend(self.client, on_piece)
        return WorkflowState.RUNNING

    def cancel(self, on_piece: OnPiece | None) -> Steps[WorkflowState]:
        word: str = yield graph.cancel(self.client.keys, self.id)
        self.told(word)
        yield from tend(self.client, on_piece)
        return self.known((yield self.watch()))

    def retry(self, on_piece: OnPiece | None) -> Steps[WorkflowState]:
        word: str = yield graph.retry_failed(self.client.keys, self.id)
        if word not in (WorkflowState.RUNNING, WorkflowState.STOPPED):
            self._refuse(word, "retried")
        yield from tend(self.client, on_piece)
        return WorkflowState(word)

    def delete(self, on_piece: OnPiece | None) -> Steps[None]:
        # Asked first: a delete that is repeated, since its reply was lost, finds nothing any more.
        self.known((yield self.watch()))
        yield graph.delete(self.client.keys, self.id)
        yield from tend(self.client, on_piece)

    def known(self, state: WorkflowState | None) -> WorkflowState:
        if state is None:
            raise not_found(self.id)
        return state

    def told(self, word: str) -> None:
        if word == "missing":
            raise not_found(self.id)

    def stopped(self, word: str) -> WorkflowState:
        if word != WorkflowState.STOPPED:
            self._refuse(word, "stopped")
        return WorkflowState.STOPPED

    def ended(self, state: WorkflowState | None, timeout: Duration | None) -> WorkflowState:
        if self.known(state).final:
            return self.known(state)
        shown = f"headrace workflows show {self.id} tells what it waits for; wait again, or stop or cancel it"
        known = _WAITING.get(self.known(state), shown)
        raise ResultTimeout(
            f"workflow {self.id} of {self.definition} is {state} after {seconds(timeout or 0, 'timeout'):g} s: {known}"
        )

    def _refuse(self, word: str, wish: str) -> NoReturn:
        self.told(word)
        fact, advice = _WORDS.get((wish, word)) or _WORDS.get(("", word), (f"is {word}", ""))
        raise WorkflowStateError(f"workflow {self.id} of {self.definition} {fact}, so it cannot be {wish}{advice}")


# Why a workflow that was waited for has not ended, where that is not since it runs.
_WAITING = {
    WorkflowState.PENDING: "nothing of it runs before start()",
    WorkflowState.STOPPED: "nothing of it starts before start(), which lets it go on",
}

# Why a verb is refused, and what would be allowed; without the wish: whatever the wish was.
_WORDS = {
    ("", "succeeded"): ("has succeeded", ": create another one"),
    ("", "failed"): ("has failed", ": retry_failed() goes on from what failed"),
    ("", "cancelled"): ("was cancelled", ": create another one"),
    ("stopped", "failed"): ("has failed", ": nothing of it runs any more"),
    ("stopped", "succeeded"): ("has succeeded", ": nothing of it runs any more"),
    ("stopped", "cancelled"): ("was cancelled", ": nothing of it will start"),
    ("retried", "succeeded"): ("has succeeded", ": none of its nodes has failed"),
    ("retried", "pending"): ("was never started", ": start it"),
    ("retried", "undone"): ("has undone what it had done", ": create another one"),
    ("retried", "live"): ("has a key that another live workflow has taken", ": wait for that one, or cancel it"),
}  # fmt: skip


def tend(client: Client, on_piece: OnPiece | None = None) -> Steps[None]:
    """Do what scripts left over, so that no worker is needed; bounded, since other programs may add to it meanwhile."""
    for _ in range(PIECES):
        left, _, _ = yield graph.tend(client.keys)
        if on_piece is not None:
            on_piece(left)
        if not left:
            return


def check_id(id: str) -> str:
    """``id``, if it has the form of a workflow's.

    Raises:
        WorkflowNotFound: it has not, so there is no such workflow.
    """
    if not isinstance(id, str) or not is_flow(id):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkflowNotFound(
            f"{id!r} is not the id of a workflow: those have 21 digits and lower-case letters, and workflows list "
            f"shows them; app.jobs finds single jobs"
        )
    return id


def not_found(id: str) -> WorkflowNotFound:
    """What to raise where nothing is stored."""
    return WorkflowNotFound(
        f"no workflow {id} is stored: it never existed, was deleted, it ended and its retention is over, or the server "
        "lost it"
    )


def found(id: str, records: list[WorkflowRecord | None]) -> WorkflowRecord:
    """The only record of a reply.

    Raises:
        WorkflowNotFound: there is none.
    """
    if records[0] is None:
        raise not_found(id)
    return records[0]
