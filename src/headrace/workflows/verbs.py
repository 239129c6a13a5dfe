"""Verbs on workflows, each written once as steps, and the meaning of the store's answers. Sends nothing by itself."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from headrace.admin.job_paging import check_limit, state_of
from headrace.errors import NotFound, OptionsError, StateError, WaitTimeout, WorkflowNotFound
from headrace.model.ids import MOST_NODES, is_flow, number_of_code
from headrace.model.job import State, number
from headrace.model.job_record import Finder, Page
from headrace.model.workflow import NodeRecord, WorkflowRecord, WorkflowState
from headrace.protocol import graph
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import Duration, microseconds, seconds
from headrace.store.client import Client, Steps

if TYPE_CHECKING:
    from headrace.model.sealing import Seal

READ = 500
# Nodes that are read before it is known how many there are: most workflows have no more.
FIRST = 100
# Nodes that one page looks at when it filters.
LOOK = 1000


def page(
    client: Client, finder: Finder, id: str, state: State | str | None, limit: int, after: str | None, *,
    lean: bool = False,
) -> Steps[Page[NodeRecord]]:  # fmt: skip
    """Nodes from one number on; ``lean``: without results. Cost: see :meth:`~headrace.WorkflowRun.nodes`."""
    wanted = None if state is None else state_of(state)
    if after is not None and not (isinstance(after, str) and after.isascii() and after.isdecimal()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"after={after!r} is not the `next` of a page of nodes")
    passed = int(after or 0)
    numbers = range(passed + 1, min(passed + min(FIRST, check_limit(limit)), MOST_NODES) + 1)
    rows: list[NodeRecord | None]
    records, rows = yield [
        graph.read_flows(client.keys, [id]), graph.read_nodes(client.keys, id, numbers, finder, lean=lean)
    ]  # fmt: skip
    last, kept = _last(id, records), list[NodeRecord]()
    end = min(last, passed + LOOK)
    while True:
        for at, row in zip(numbers, rows, strict=True):
            if row is not None and row.role != "given" and wanted in (None, row.job.state):
                kept.append(row)
                if len(kept) == limit:
                    return Page(kept, last, str(at) if at < last else None)
        at = numbers.stop - 1
        if at >= end:
            return Page(kept, last, str(end) if end < last else None)
        want = READ if wanted is not None else min(READ, limit - len(kept))
        numbers = range(at + 1, min(at + want, end) + 1)
        rows = yield graph.read_nodes(client.keys, id, numbers, finder, lean=lean)


def every(client: Client, id: str, finder: Finder | None = None) -> Steps[list[NodeRecord]]:
    """All nodes by number. Cost: one round trip, and one more per 500. Raises WorkflowNotFound: it is not stored."""
    last = _last(id, (yield graph.read_flows(client.keys, [id])))
    found: list[NodeRecord] = []
    for first in range(1, last + 1, READ):
        rows: list[NodeRecord | None] = yield graph.read_nodes(
            client.keys, id, range(first, min(first + READ, last + 1)), finder
        )
        # Numbers that a growing node kept for itself need not all be taken.
        found += [row for row in rows if row is not None and row.role != "given"]
    return found


def _last(id: str, records: Sequence[WorkflowRecord | None]) -> int:
    if records[0] is None:
        raise WorkflowNotFound(f"no workflow {id} is stored: it was deleted, or ended and its retention is over")
    return number(records[0].fields.get("size"))


def named(id: str, names: Sequence[str], stored: Sequence[NodeRecord]) -> list[NodeRecord]:
    """The nodes of these names, or of a task that has one. Raises NotFound: none, or several; lists them."""
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise NotFound(f"a node is known by its name, a text, not {name!r:.80}")
    by_name = {node.facts.name: node for node in reversed(stored)}
    return [by_name.get(name) or _only(id, name, stored) for name in names]


def _only(id: str, task: str, stored: Sequence[NodeRecord]) -> NodeRecord:
    of_task = [node for node in stored if node.job.task == task and not node.role]
    if len(of_task) == 1:
        return of_task[0]
    if of_task:
        choices = ", ".join(node.facts.name for node in of_task[:10]) + (", …" if len(of_task) > 10 else "")
        raise NotFound(f"{len(of_task)} nodes of workflow {id} run {task}: name one of {choices}")
    names = [node.facts.name for node in stored]
    close = difflib.get_close_matches(task, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names[:10])}"
    raise NotFound(f"workflow {id} has no node {task!r}: {hint}")


def leaves(stored: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Nodes that nothing follows; a node that grew stands for the join of what it added, if that has its output."""
    grown = {joint: node for node in stored if (joint := _gathered(node))}
    found: list[NodeRecord] = []
    for leaf in stored:
        if not leaf.children and leaf.role not in ("undo", "callback"):
            while leaf.number in grown:
                leaf = grown[leaf.number]  # noqa: PLW2901 - a node that grew may have been added by another one
            found.append(leaf)
    return found


def outputs(chosen: Sequence[NodeRecord], stored: Sequence[NodeRecord], seal: Seal | None) -> dict[str, Any]:
    """What some of the stored nodes returned, by their names; those that have not succeeded are left out."""
    if seal is not None:
        stored = [msgspec.structs.replace(node, job=seal.opened_record(node.job)) for node in stored]
    by_number = {node.number: node for node in stored}
    joints = [(node, by_number.get(_gathered(node), node)) for node in chosen]
    done = [node for node, joint in joints if node.job.state is joint.job.state is State.SUCCEEDED]
    return {node.facts.name or str(node.number): _output(by_number[node.number], by_number) for node in done}


def _gathered(node: NodeRecord) -> int:
    code = node.job.fields.get("gather")
    return number_of_code(code.decode()) if code else 0


def _output(node: NodeRecord, by_number: dict[int, NodeRecord]) -> Any:
    if node.job.state is not State.SUCCEEDED:
        return None
    if node.role in ("join", "pass"):
        parents = [by_number[parent] for parent in node.parents if parent in by_number]
        values = [_output(parent, by_number) for parent in parents]
        return values if node.role == "join" else (values or [None])[0]
    joint = by_number.get(_gathered(node))
    return node.job.result if joint is None else _output(joint, by_number)


# Nodes that one call may name.
NAMED = 500
# Pieces (of 400 nodes each) that one verb does of what scripts left over; workers do the rest.
PIECES = 1000

OnPiece = Callable[[int], object]


class Verbs(msgspec.Struct, frozen=True):
    client: Client
    id: str
    definition: str

    def watch(self) -> Call[WorkflowState | None]:
        return graph.watch_flow(self.client.keys, self.id, 0)

    def read(self) -> Call[list[WorkflowRecord | None]]:
        return graph.read_flows(self.client.keys, [self.id])

    def start(self, names: Sequence[str], on_piece: OnPiece | None) -> Steps[WorkflowState]:
        chosen: list[int] = []
        if names:
            stored = yield from every(self.client, self.id)
            chosen = [node.number for node in named(self.id, names, stored)]
        word = ""
        for first in range(0, len(chosen) or 1, NAMED):
            word = yield graph.start(self.client.keys, self.id, chosen[first : first + NAMED])
        if word != WorkflowState.RUNNING:
            self._refuse(word, "started")
        yield from tend(self.client, self.client.keys_for(self.id), on_piece)
        return WorkflowState.RUNNING

    def cancel(self, on_piece: OnPiece | None) -> Steps[WorkflowState]:
        word: str = yield graph.cancel(self.client.keys, self.id)
        self.told(word)
        yield from tend(self.client, self.client.keys_for(self.id), on_piece)
        return self.known((yield self.watch()))

    def retry(self, on_piece: OnPiece | None) -> Steps[WorkflowState]:
        word: str = yield graph.retry_failed(self.client.keys, self.id)
        if word not in (WorkflowState.RUNNING, WorkflowState.STOPPED):
            self._refuse(word, "retried")
        yield from tend(self.client, self.client.keys_for(self.id), on_piece)
        return WorkflowState(word)

    def delete(self, on_piece: OnPiece | None) -> Steps[None]:
        # Asked first: a delete that is repeated, since its reply was lost, finds nothing any more.
        self.known((yield self.watch()))
        yield graph.delete(self.client.keys, self.id)
        yield from tend(self.client, self.client.keys_for(self.id), on_piece)

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
        raise WaitTimeout(
            f"workflow {self.id} of {self.definition} is {state} after {seconds(timeout or 0, 'timeout'):g} s: {known}"
        )

    def _refuse(self, word: str, wish: str) -> NoReturn:
        self.told(word)
        fact, advice = _WORDS.get((wish, word)) or _WORDS.get(("", word), (f"is {word}", ""))
        raise StateError(f"workflow {self.id} of {self.definition} {fact}, so it cannot be {wish}{advice}")


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


def tend(client: Client, keys: Keys, on_piece: OnPiece | None = None) -> Steps[None]:
    """Do what scripts left over on one shard, so that no worker is needed; bounded, since others may add to it."""
    for _ in range(PIECES):
        left, _, _ = yield graph.tend(keys, microseconds(client.settings.failure_ttl))
        if on_piece is not None:
            on_piece(left)
        if not left:
            return


def check_id(id: str) -> str:
    """``id``, if it has the form of a workflow's. Raises WorkflowNotFound: it has not, so there is no such workflow."""
    if not isinstance(id, str) or not is_flow(id):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkflowNotFound(
            f"{id!r} is not the id of a workflow: those have 21 digits and lower-case letters, and workflows list "
            f"shows them; app.jobs finds single jobs"
        )
    return id


def not_found(id: str) -> WorkflowNotFound:
    return WorkflowNotFound(
        f"no workflow {id} is stored: it never existed, was deleted, it ended and its retention is over, or the server "
        "lost it"
    )


def found(id: str, records: list[WorkflowRecord | None]) -> WorkflowRecord:
    if records[0] is None:
        raise not_found(id)
    return records[0]
