"""Calls of a dispatcher: its lease, its claims, the ends of its starts, and the upkeep of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from headrace.model.job import Claim, Outcome, StartNote, moment, number, priority_of, ready_at
from headrace.model.options import Kind
from headrace.protocol.keys import OLDEST, SCHEMA, Keys
from headrace.protocol.script import Call, blob, by_turns, done_and_next, load, name_of, text_of, texts_of


def register(
    keys: Keys, owner: str, lease: int, metadata: Sequence[str | int], tasks: Mapping[str, str] | None = None
) -> Call[int]:
    """Begin an incarnation's lease of ``lease`` microseconds, and leave our layout in a store without one. People see
    ``metadata`` (field, value, ...), whose ``place`` names the worker in the evidence of crashes. Returns microseconds
    in which nothing of other incarnations may be reclaimed: the server, or all of them, were silent.
    """
    return load("register").bind(
        keys, int, owner=owner, lease=lease, version=SCHEMA, oldest=OLDEST, count=keys.count, metadata=list(metadata),
        tasks=by_turns(tasks or {}),
    )  # fmt: skip


class Renewed(msgspec.Struct, frozen=True):
    """The answer to a renewal. Times are microseconds, and 0 where there is none.

    Attributes:
        alive: False when the lease was lost.
        due: when the next scheduled job becomes due.
        lapse: when the first lease in the store ends, and whose it is.
        cancels: ids that run here and were asked to stop; ``parking``: tasks that have parked jobs.
        over: when the next finished job's retention ends; ``ends``: the next workflow's.
        kept, bytes: finished jobs in the store, and what their results and errors take.
        chore: since when something is left to do that a script began, or from when on.
        resumes: when the next pause ends by itself.
        held: how many jobs the incarnation holds.
        tick: when the next tick of a schedule is due; None when that was not asked for.
        paused: those of its queues that are paused; ``ready``: how many of the others have ready jobs.
        replaced: ``limits``, ``schedules``: other code has changed some since it declared its own.
    """

    alive: bool
    now: int = 0
    due: int = 0
    lapse: int = 0
    lapsing: str = ""
    cancels: tuple[str, ...] = ()
    parking: tuple[str, ...] = ()
    over: int = 0
    bytes: int = 0
    kept: int = 0
    ends: int = 0
    chore: int = 0
    resumes: int = 0
    held: int = 0
    tick: int | None = 0
    paused: tuple[str, ...] = ()
    ready: int = 0
    replaced: tuple[str, ...] = ()


def _renewed(reply: Any) -> Renewed:
    if len(reply) == 1:
        return Renewed(False)
    _, now, due, lapse, lapsing, cancels, parking, over, *rest = reply
    size, kept, ends, chore, resumes, held, tick, paused, ready, replaced = rest
    return Renewed(
        True, now, moment(due), moment(lapse), name_of(lapsing), tuple(texts_of(cancels)), tuple(texts_of(parking)),
        moment(over), size, kept, moment(ends), moment(chore), moment(resumes), held,
        None if tick == -1 else moment(tick), tuple(texts_of(paused)), ready, tuple(texts_of(replaced)),
    )  # fmt: skip


def renew(
    keys: Keys,
    owner: str,
    lease: int,
    metadata: Sequence[str | int] = (),
    queues: Sequence[str] = (),
    ticks: bool = True,
) -> Call[Renewed]:
    """Keep everything that an incarnation holds for another lease; O(log workers), however many jobs it holds. One of
    its ``queues`` with work and no wake-up token gets a token.
    """
    rest = {"metadata": list(metadata), "names": list(queues), "ticks": int(ticks)}
    return load("renew").bind(keys, _renewed, owner=owner, lease=lease, **rest)


def reclaim(keys: Keys, victim: str, known_dead: bool, limit: int, ttl: int) -> Call[tuple[str, int]]:
    """Give at most 500 jobs of a dead incarnation back to their queues; each start counts as a crash.

    A supervisor ``known_dead`` saw it die; without, only once its lease is over. Returns ``alive``, ``some`` (call
    again) or ``done``, and how many jobs moved.
    """
    return load("reclaim").bind(
        keys, lambda reply: (reply[0].decode(), reply[1]), owner=victim, known=int(known_dead), limit=limit, ttl=ttl
    )


def retire(keys: Keys, owner: str, ttl: int = 0, why: str = "") -> Call[bool]:
    """End an incarnation; False: it holds jobs. Broadcasts not begun are cancelled. ``why``: empty if in order."""
    return load("retire").bind(keys, lambda reply: reply == b"ok", owner=owner, ttl=ttl, why=why)


def promote(keys: Keys, limit: int) -> Call[tuple[int, int, int, int]]:
    """Make due jobs ready and open due gates: how many, server time, the next due (0: none), 1: gates were opened."""
    return load("promote").bind(keys, lambda reply: (reply[0], reply[1], moment(reply[2]), reply[3]), limit=limit)


def sweep(keys: Keys, limit: int, most: int, room: int) -> Call[tuple[int, int, int]]:
    """Remove finished jobs whose retention is over or that exceed the caps on count (``most``) and bytes (``room``).
    Returns how many, server time, and when the next retention ends (0: nothing is kept).
    """
    return load("sweep").bind(keys, done_and_next, limit=limit, most=most, room=room)


def unpark(keys: Keys, task: str, limit: int, queues: Sequence[str]) -> Call[int]:
    """Make parked jobs of a task ready, each at its old place in its queue. For a worker that knows the task, serves
    these queues, has room for this many and claims in the same trip: workers of other queues may not know the task.
    """
    return load("unpark").bind(keys, int, task=task, limit=limit, names=list(queues))


class Note(msgspec.Struct, frozen=True):
    """What a running job says of itself.

    Attributes:
        progress: a share from 0 to 1; None: unchanged.
        swallowed: JSON of the :class:`headrace.model.job.JobError` that a middleware swallowed.
        spent: limits, and units that it cost them beyond what its enqueue said.
        data: JSON that came with the progress.
    """

    id: str
    token: int
    progress: float | None = None
    text: str = ""
    lines: tuple[str, ...] = ()
    swallowed: str = ""
    spent: tuple[tuple[str, int], ...] = ()
    data: str = ""


def note(keys: Keys, owner: str, notes: Sequence[Note], most: int = 1000, request: int = 0) -> Call[int]:
    """Store progress and at most ``most`` log lines a job, for the newest starts only; returns how many notes were
    stored. ``request`` grows with each call: the same number again stores no line twice. 0: not numbered.
    """
    rows = [
        (
            n.id, n.token, "" if n.progress is None else str(n.progress), n.text, n.lines,
            *([n.swallowed, n.spent, n.data][: 3 if n.data else 2 if n.spent else bool(n.swallowed)]),
        )
        for n in notes
    ]  # fmt: skip
    return load("note").bind(keys, int, owner=owner, request=request, notes=rows, most=most)


class UnreadableClaim(msgspec.Struct, frozen=True):
    """A claimed job whose id, score or record cannot be read. Its id has surrogates where its bytes are no text."""

    id: str
    token: int


class Claimed(msgspec.Struct, frozen=True):
    """The answer to a claim.

    Attributes:
        alive: False when the lease was lost: the incarnation must stop its runners and begin anew.
        due: when the next scheduled job becomes due, 0 when there is none.
        lost: ids that were ready but whose record has another type, or is gone and is not a node; they left the queue.
        unreadable: leased now, too, and of no use.
    """

    alive: bool
    now: int
    due: int
    jobs: list[Claim]
    lost: list[str]
    unreadable: Sequence[UnreadableClaim] = ()


# Few queues and tasks have many jobs.
_name = lru_cache(256)(text_of)


def _claims(
    flat: list[Any], more: list[Any], nodes: list[Any], held: list[Any], shard: int | None
) -> tuple[list[Claim], list[UnreadableClaim]]:
    simple = not (more or nodes or held)
    rest = {} if simple else {fields[0]: fields[1] for fields in more}
    about = zip(nodes[1::4], nodes[2::4], nodes[3::4], strict=True)
    graph = {} if simple else dict(zip(nodes[::4], about, strict=True))
    lanes = {} if simple else dict(zip(held[::2], held[1::2], strict=True))
    claims: list[Claim] = []
    unreadable: list[UnreadableClaim] = []
    fields = iter(flat)
    for id, token, queue, score, task, args in zip(*[fields] * 6, strict=True):
        # Each apart: one that cannot be read must not take its neighbours, and this dispatcher, with it.
        try:
            ready = int(float(score))
            if not -_MOST < ready < _MOST:
                raise OverflowError(ready)
            fence = int(token)
            number = fence if shard is None else fence << SHARD_BITS | shard
            head = (id.decode(), fence, _name(queue), ready, _name(task), args, number)
            if simple or not (id in rest or id in graph):
                claims.append(Claim(*head, lane=_lane(lanes[id])) if id in lanes else Claim(*head))
            else:
                claims.append(_whole(head, rest.get(id, _NO_REST), graph.get(id, _NO_NODE), lanes.get(id, b"")))
        except (ValueError, OverflowError, TypeError):
            unreadable.append(UnreadableClaim(id.decode("utf-8", "surrogateescape"), int(token)))
    return claims, unreadable


def _lane(held: bytes) -> str:
    return _name(held.partition(b" ")[0])


# The last bits of a start's number, where a worker serves several shards.
SHARD_BITS = 7
# No time is so far away, microseconds.
_MOST = 1 << 62
_NO_REST = [None] * 10
_NO_NODE = [b""] * 3


def _whole(head: tuple[Any, ...], fields: list[Any], node: Sequence[bytes], held: bytes) -> Claim:
    options, key, failures, crashes, interruptions, snoozes, once, expires, priority, attempts, *late = fields
    wishes, parents, facts = node
    # Most of it is absent in most jobs, and every node of a workflow passes here.
    level = priority_of(priority) if priority else 0
    rest: tuple[Any, ...] = (
        options or wishes, text_of(key), number(failures) if failures else 0, number(crashes) if crashes else 0,
        number(interruptions) if interruptions else 0, number(snoozes) if snoozes else 0, bool(once),
        number(expires) if expires else 0, text_of(parents), facts, (), level, number(attempts) if attempts else 0,
    )  # fmt: skip
    headers, cost, limited, logged = (*late, None, None, None, None)[:4]
    rest += (headers or b"", number(cost) or 1, number(limited), _lane(held), bool(logged))
    if level:
        head = (*head[:3], ready_at(head[3], level), *head[4:])
    return Claim(*head, *rest)


def _claimed(reply: Any, shard: int | None = None) -> Claimed:
    if len(reply) == 1:
        return Claimed(False, 0, 0, [], [])
    _, now, due, jobs, more, nodes, lost, _, held, *_ = reply
    claims, unreadable = _claims(jobs, more, nodes, held, shard)
    # Few calls where there is nothing to read: the first job of an idle worker pays for each of them dearly.
    return Claimed(True, now, moment(due) if due else 0, claims, texts_of(lost) if lost else [], unreadable)


def leased(reply: Any) -> int:
    """How many jobs the unread reply to a claim leases; 0 when the lease is lost."""
    return 0 if len(reply) == 1 else len(reply[3]) // 6


def brought(reply: Any) -> int:
    """How many ids the unread reply to a claim took from the queues; 0 when the lease is lost."""
    return 0 if len(reply) == 1 else len(reply[3]) // 6 + len(reply[6])


# An entry of a queue: its score as the server wrote it, and its id.
Cursor = tuple[bytes, bytes]


class Looked(NamedTuple):
    """What a claim found that was to pass over jobs of some kinds.

    Attributes:
        cursors: the last entry that it looked at, by queue.
        beyond: whether there are others behind one of those.
    """

    passed: frozenset[Kind]
    cursors: dict[str, Cursor]
    beyond: bool


class ClaimSummary(msgspec.Struct, frozen=True):
    """What the unread reply to a claim tells of the queues.

    Attributes:
        brought: how many ids it took from them; 0 when the lease is lost.
        halted: how many paused queues it met, from which nothing came.
        looked: None: it had nothing to pass over, or it is a repeat.
    """

    brought: int
    halted: int = 0
    looked: Looked | None = None


def summary(reply: Any) -> ClaimSummary:
    if len(reply) == 1:
        return ClaimSummary(0)
    if len(reply) <= 10:
        return ClaimSummary(brought(reply), reply[7])
    rows = list(zip(*[iter(reply[10])] * 4, strict=True))
    cursors = {text_of(queue): (score, id) for queue, score, id, _ in rows}
    looked = Looked(frozenset(kind.decode() for kind in reply[9]), cursors, any(rest for *_, rest in rows))
    return ClaimSummary(brought(reply), reply[7], looked)


def claim(
    keys: Keys, owner: str, request: int, limit: int, queues: Sequence[str],
    passing: Sequence[tuple[str, int, Sequence[str]]] = (), cursors: Mapping[str, Cursor] | None = None, *,
    own: int = 0, shard: int | None = None,
) -> Call[Claimed]:  # fmt: skip
    """Lease up to ``limit`` (at most 1000) ready jobs to a dispatcher incarnation; O(limit log n).

    Each job leaves the ready index and enters the owner's claims in one script, so it is never in both and never in
    neither. A paused queue yields nothing rather than an error. The claim ends at the job with which it brings 4 MiB of
    arguments: a longer reply could outlast the lease on a slow line. A token of the queue tells the next sleeper on it
    of what is left.

    Args:
        request: grows with each claim; the same number again gets the same answer.
        queues: in the order in which they are emptied.
        passing: kinds with the most that may be claimed of each and its tasks; 200 entries a queue are looked at.
        cursors: entries behind which to go on looking, by queue.
        own: most jobs of the queue of built-in jobs.
        shard: of a worker that serves several, since tokens are unique in one only; see :attr:`Claim.number`.
    """
    at = [part for queue, (score, id) in (cursors or {}).items() for part in (queue, blob(score), blob(id))]
    over = msgspec.msgpack.encode([list(passing), at]) if passing else ""
    read = _claimed if shard is None else partial(_claimed, shard=shard)
    return load("claim").bind(
        keys, read, owner=owner, request=request, limit=limit, names=list(queues), own=own, passing=over
    )


class Settled(msgspec.Struct, frozen=True):
    """The answer to a settle.

    Attributes:
        repeated: this very request had been applied before; its reply was lost.
        stale: ids whose start is not the newest any more: nothing changed for them.
        kept, bytes: finished jobs in the store, and what their results and errors take.
        chores: what this settle, or others, left to do (see ``tend``).
    """

    repeated: bool
    stale: list[str]
    kept: int
    bytes: int
    chores: int


def settle(
    keys: Keys,
    owner: str,
    request: int,
    outcomes: Sequence[tuple[Outcome, int]],
    failure_ttl: int,
    starts: Sequence[StartNote] = (),
) -> Call[Settled]:
    """Record how starts ended; each job moves to the structure of its new state; O(n log m).

    Args:
        request: grows with each settle; the same number again changes nothing.
        outcomes: at most 1000, each with its claim's ``score``, at which a released job lines up again.
        failure_ttl: microseconds that a job stays which had been asked to stop, or whose record cannot be read.
        starts: of the outcomes that go into the journals of their jobs.
    """
    groups: dict[tuple[str, int], list[Any]] = {}
    for outcome, ready in outcomes:
        rows = groups.setdefault((outcome.kind, outcome.amount), [])
        id = outcome.id if outcome.kind not in _OF_ALIENS else _wire(outcome.id)
        rows += (id, outcome.token, blob(outcome.data), ready)
    notes = [part for one in starts for part in (_wire(one.id), one.ready, one.error, one.signal, one.exit_code)]
    packed = [(kind, amount, rows) for (kind, amount), rows in groups.items()]
    return load("settle").bind(
        keys, lambda reply: Settled(reply[0] == b"repeated", texts_of(reply[1]), *reply[2:]), owner=owner,
        request=request, failure_ttl=failure_ttl, outcomes=packed, starts=notes,
    )  # fmt: skip


# How starts end whose ids may be anything.
_OF_ALIENS = ("corrupt", "interrupted")


def _wire(id: str) -> str | msgspec.Raw:
    return id if id.isascii() else blob(id.encode("utf-8", "surrogateescape"))


def starts_of(call: Call[Settled]) -> list[tuple[str, int]]:
    names = [arg.name for arg in call.script.header.args]
    packed = call.args[names.index("outcomes") - len(names)]
    assert isinstance(packed, bytes)
    # An empty list is not packed.
    rows = [row for group in _groups(packed) for row in group[2]] if packed else []
    # Their data is not a text, though it travels as one: see script.blob.
    return [(_unpacked(id), _integer(token)) for id, token in zip(rows[::4], rows[1::4], strict=True)]


_groups = msgspec.msgpack.Decoder(list[tuple[msgspec.Raw, msgspec.Raw, list[msgspec.Raw]]]).decode
_str = msgspec.msgpack.Decoder(str).decode
_integer = msgspec.msgpack.Decoder(int).decode


def _unpacked(id: msgspec.Raw) -> str:
    try:
        return _str(id)
    except UnicodeDecodeError:
        # One whose bytes are no text: no other can be taken for the same.
        return bytes(id).decode("utf-8", "replace")


class Held(msgspec.Struct, frozen=True):
    """What the store knows of an incarnation.

    Attributes:
        claimed: number of its last claim; ``first``: the first token that this gave.
        settled: number of its last settle.
        starts: a page of what it holds, by token: id and token.
    """

    claimed: int
    first: int
    settled: int
    starts: list[tuple[str, int]]


def _held(reply: Any) -> Held | None:
    if not reply:
        return None
    claimed, first, settled, flat = reply
    couples = zip(flat[::2], flat[1::2], strict=True)
    starts = [(id.decode("utf-8", "surrogateescape"), int(float(token))) for id, token in couples]
    return Held(claimed, first, settled, starts)


def holds(keys: Keys, owner: str, after: int, limit: int) -> Call[Held | None]:
    """What the store knows of an incarnation, with at most 1000 starts of tokens above ``after``; None: nothing."""
    return load("holds").bind(keys, _held, owner=owner, after=after, limit=limit)


class Restored(msgspec.Struct, frozen=True):
    """Starts that were not restored: ``others`` have another state now or a newer start, ``gone`` have no record."""

    others: list[str]
    gone: list[str]


def restore(keys: Keys, owner: str, starts: Sequence[tuple[str, int]], promise: int = 0) -> Call[Restored]:
    """Claim again, under the same tokens, at most 500 starts that the store forgot to be claimed. No token up to the
    largest of these is given out again, also by a server whose clock is behind. ``promise``: until when the store has
    promised the incarnation its lease: a store whose leases are a minute older is an old copy, and no worker claims
    from it.
    """
    flat = [one for start in starts for one in start]
    return load("restore").bind(
        keys, lambda reply: Restored(*map(texts_of, reply)), owner=owner, starts=flat, promise=promise
    )
