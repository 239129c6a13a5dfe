"""The plays: at least one of each script, named by it, and by what happens in it where it has several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.form import Form
from headrace.model.job import Claim, Outcome
from headrace.model.limit_rules import DeclaredLimits
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import cache_calls, consume, index_pages, operations, overviews, produce, stats_calls, ticks
from headrace.protocol.consume import Note
from headrace.protocol.keys import SCHEMA, Keys
from headrace.protocol.limit_verbs import (
    change_limit,
    declare_limits,
    delete_limit,
    hold_limit,
    keep_hold,
    read_limits,
    release_hold,
    take_limits,
)
from headrace.protocol.operations import (
    AlarmNote,
    BulkRequest,
    JobFilter,
    due_calls,
    note_alarms,
    progress_of,
    stored_watches,
)
from headrace.protocol.overviews import store_load, why
from headrace.protocol.script import Call
from tests.schedules.bench_of_ticks import MINUTE, fire, put, row
from tests.scripts import limited_stage as limits
from tests.scripts.stage import KEEP, SECOND, START, Stage
from tests.store.play import Play, alike, claim, claims_alike, fewer, nothing, reclaim, says, settle, settled_before
from tests.store.plays_flows import FLOWS

# -- jobs -----------------------------------------------------------------------------------------------------------


def outcomes(stage: Stage) -> list[tuple[Outcome, int]]:
    stage.put(9)
    kinds = ("succeeded", "failed", "retry", "snoozed", "crashed", "released", "interrupted", "parked", "corrupt")
    return [(stage.outcome(c, kind, b"{}", SECOND), c.ready) for c, kind in zip(stage.take(), kinds, strict=True)]


def scheduled(stage: Stage) -> int:
    stage.put(5, delay=1)
    return stage.now + 1


def parked(stage: Stage) -> None:
    stage.put(5)
    stage.settle(*(stage.outcome(c, "parked") for c in stage.take()))


BULK = BulkRequest("retry", JobFilter("failed"), 1 << 52, 0, 1, exact=True, who="ada", by="cli")
OWN_ID = "0" * 21


def once(first: tuple[int, dict[str, int] | None], second: tuple[int, dict[str, int] | None]) -> bool:
    return first[1] == {"default": 2} and second[1] is None


def fires_once(first: ticks.Fired, second: ticks.Fired) -> bool:
    return first.ran == 1 and second.ran in (0, 1)


NAMED = UniqueRule("n")

JOBS: dict[str, Play] = {
    "enqueue": Play(
        lambda s: [s.job(), s.job(delay=5)],
        lambda k, jobs, t: produce.enqueue(k, jobs, "p", 1).at(t),
        says("repeated"),
    ),
    "enqueue_ordered": Play(
        lambda s: [s.job(key="k", ordered=True), s.job(key="k", ordered=True)],
        lambda k, jobs, t: produce.enqueue(k, jobs, "p", 1).at(t),
        says("repeated"),
    ),
    "enqueue_ordered, of a job that follows another": Play(
        lambda s: [s.job(after=s.put()[0])],
        lambda k, jobs, t: produce.enqueue(k, jobs, "p", 1).at(t),
        says("repeated"),
    ),
    "enqueue_unique": Play(
        lambda s: [s.job(unique=NAMED), s.job()],
        lambda k, jobs, t: produce.enqueue(k, jobs, "p", 1).at(t),
        says("repeated"),
    ),
    "enqueue_unique, of a name that is held": Play(
        lambda s: (s.put(unique=NAMED), [s.job(unique=NAMED)])[1],
        lambda k, jobs, t: produce.enqueue(k, jobs, "p", 1).at(t),
    ),
    "broadcast": Play(
        lambda s: s.register(),
        lambda k, o, t: produce.broadcast(k, Form("add"), b"\x90", [(o, "0" * 21), ("gone", "1" * 21)]).at(t),
    ),
    "command": Play(lambda s: s.register(), lambda k, o, t: operations.command(k, o, "scale:process:2").at(t)),
    "cancel": Play(lambda s: s.put()[0], lambda k, id, t: produce.cancel(k, id, KEEP).at(t)),
    "rerun": Play(Stage.finished, lambda k, id, t: produce.rerun(k, id, "r").at(t)),
    "why": Play(lambda s: (s.register(), s.put()[0])[1], lambda k, id, t: why(k, id).at(t)),
    "watch": Play(lambda s: s.put()[0], lambda k, id, t: produce.watch(k, id, KEEP).at(t)),
    "read": Play(lambda s: s.put(3), lambda k, ids, _: produce.read(k, ids)),
    "register": Play(nothing, lambda k, _, t: consume.register(k, "w9", KEEP, ["place", "x"]).at(t)),
    "renew": Play(lambda s: s.register(), lambda k, o, t: consume.renew(k, o, KEEP, ["load", "1"], ["default"]).at(t)),
    "claim": Play(lambda s: (s.put(5), s.register())[1], claim, claims_alike),
    "settle": Play(outcomes, settle, settled_before),
    "holds": Play(lambda s: (s.put(5), s.take())[0], lambda k, _, __: consume.holds(k, "w1", 0, 500)),
    "restore": Play(
        lambda s: (s.put(3), s.register())[0],
        lambda k, ids, t: consume.restore(k, "w1", [(id, t + n) for n, id in enumerate(ids)]),
        lambda *_: True,
    ),
    "note": Play(
        lambda s: s.running(),
        lambda k, c, _: consume.note(k, "w1", [Note(c.id, c.token, 0.5, "half", ("one", "two"))], request=99),
        says(0),
    ),
    "promote": Play(scheduled, lambda k, at, _: consume.promote(k, 10).at(at), fewer),
    "reclaim": Play(lambda s: (s.put(5), s.take())[0], reclaim, lambda *_: True),
    "retire": Play(lambda s: s.register(), lambda k, o, _: consume.retire(k, o)),
    "sweep": Play(
        lambda s: [s.finished() for _ in range(3)],
        lambda k, _, t: consume.sweep(k, 10, 10**9, 10**9).at(t + KEEP),
        fewer,
    ),
    "unpark": Play(parked, lambda k, _, t: consume.unpark(k, "add", 10, ["default"]).at(t), says(0)),
    "overview": Play(lambda s: s.put(3), lambda k, _, t: overviews.overview(k).at(t)),
    "load": Play(lambda s: s.put(3), lambda k, _, t: store_load(k, ["default"], SECOND).at(t), alike),
    "page": Play(lambda s: s.put(3), lambda k, _, __: index_pages.page(k, "ready:default", index_pages.Slice(2))),
    "page, with records": Play(
        lambda s: s.put(3), lambda k, _, __: index_pages.page(k, "ready:default", index_pages.Slice(2), values=False)
    ),
    "walk": Play(lambda s: s.put(3), lambda k, _, __: index_pages.walk(k, ["ready:default"], index_pages.Slice(2))),
    "walk, with records": Play(
        lambda s: s.put(3), lambda k, _, __: index_pages.walk(k, ["ready:default"], index_pages.Slice(2), values=True)
    ),
    "server_info": Play(nothing, lambda k, _, __: operations.server_info(k), lambda *_: True),
    "pause": Play(nothing, lambda k, _, __: operations.pause(k, "q"), says(False)),
    "pause, with an end": Play(nothing, lambda k, _, t: operations.pause(k, "q", SECOND).at(t), says(False)),
    "schedule_declare": Play(nothing, lambda k, _, t: ticks.declare(k, "", [row()]).at(t), says(["same"])),
    "schedule_declare, by a worker": Play(
        lambda s: s.register(), lambda k, o, t: ticks.declare(k, o, [row()]).at(t), says(["same"])
    ),
    "refill": Play(
        lambda s: (put(s), s.run(ticks.fire(s.keys)).wanting)[1],
        lambda k, wanting, t: ticks.refill(k, [ticks.Refill(one, [(t + 5, t + 9)]) for one in wanting]).at(t),
        fewer,
    ),
    "fire": Play(lambda s: (put(s), fire(s))[1], lambda k, _, t: ticks.fire(k).at(t + MINUTE), fires_once),
    "schedule_walk": Play(put, lambda k, _, t: ticks.walk_schedules(k).at(t)),
    "schedule_read": Play(put, lambda k, _, t: ticks.read_schedules(k).at(t)),
    "schedule_counts": Play(put, lambda k, _, __: ticks.count_ticks(k)),
    "schedule_pause": Play(put, lambda k, _, t: ticks.pause_schedule(k, "s", "").at(t), says("was")),
    "schedule_resume": Play(
        lambda s: (put(s), s.run(ticks.pause_schedule(s.keys, "s", ""))),
        lambda k, _, t: ticks.resume_schedule(k, "s").at(t),
        says("was"),
    ),
    "schedule_run": Play(put, lambda k, _, t: ticks.run_schedule(k, "r", "s").at(t)),
    "schedule_delete": Play(put, lambda k, _, __: ticks.delete_schedule(k, "s"), says(False)),
    "resume_due": Play(
        lambda s: [s.run(operations.pause(s.keys, q, 1)) for q in "ab"],
        lambda k, _, t: operations.resume_due(k, 10).at(t + 1),
        fewer,
    ),
    "sample": Play(lambda s: s.put(2), lambda k, _, t: operations.sample(k).at(t), once),
    "resume": Play(
        lambda s: s.run(operations.pause(s.keys, "q")), lambda k, _, __: operations.resume(k, "q"), says(False)
    ),
    "paused": Play(lambda s: s.run(operations.pause(s.keys, "q")), lambda k, _, __: operations.paused(k)),
    "purge": Play(lambda s: s.put(5), lambda k, _, t: operations.purge(k, "default", 1000).at(t), fewer),
    "logs": Play(lambda s: s.put()[0], lambda k, id, _: operations.logs(k, id)),
    "limit_change": Play(
        lambda s: limits.declare(s, {"call": [limits.ACCOUNT]}),
        lambda k, _, t: change_limit(k, "account", "x", [], [("paused", SECOND, [])]).at(t),
        says(frozenset({"paused"})),
    ),
    "limit_delete": Play(
        lambda s: limits.change(s, "account", value="x", paused=True, declared=limits.ACCOUNT),
        lambda k, _, t: delete_limit(k, "account").at(t),
        lambda first, second: (first.word, second.word) == ("deleted", "unknown"),
    ),
    "limit_declare": Play(
        lambda s: s.register(),
        lambda k, o, t: declare_limits(k, o, ["call"], DeclaredLimits([("api", limits.API.fields)], [])).at(t),
        says(0),
    ),
    "limit_hold": Play(
        lambda s: limits.declare(s, {"call": [limits.API]}),
        lambda k, _, t: hold_limit(k, "api", "*", "a", SECOND, []).at(t),
        lambda first, second: first == second,
    ),
    "limit_keep": Play(
        lambda s: (limits.declare(s, {"call": [limits.API]}), limits.hold(s, "api")),
        lambda k, _, t: keep_hold(k, "api:", "a", SECOND).at(t),
    ),
    "limit_take": Play(
        lambda s: limits.declare(s, {"call": [limits.API]}),
        lambda k, _, t: take_limits(k, Claim("j", 1, "q", 0, "call", b"\x92\x90\x80"), "a", SECOND).at(t),
        lambda first, second: first == second,
    ),
    "limit_release": Play(
        lambda s: (limits.declare(s, {"call": [limits.API]}), limits.hold(s, "api")),
        lambda k, _, t: release_hold(k, "api", "api:", "a").at(t),
        says(False),
    ),
    "causes_read": Play(lambda s: s.finished("failed"), lambda k, _, __: index_pages.read_causes(k)),
    "limit_read": Play(
        lambda s: limits.declare(s, {"call": [limits.ACCOUNT]}),
        lambda k, _, t: read_limits(k, ["account"], values=True).at(t),
    ),
    "delete": Play(Stage.finished, lambda k, id, t: produce.delete(k, id).at(t), says("missing")),
    "stacks_tell": Play(nothing, lambda k, _, __: operations.tell_stacks(k, "w1", "{}")),
    "stacks_read": Play(nothing, lambda k, _, __: operations.read_stacks(k, "w1")),
    "move": Play(lambda s: s.put()[0], lambda k, id, t: produce.move(k, id, "mail", 5).at(t)),
    "bulk_piece": Play(
        lambda s: s.finished("failed"),
        lambda k, _, t: operations.bulk_piece(k, "", "e", BULK, KEEP, 9, b"").at(t),
        lambda _, second: bool(progress_of(second).ended),
    ),
    "bulk_count": Play(
        lambda s: s.finished("failed"), lambda k, _, t: operations.count_meant(k, JobFilter("failed"), 9).at(t)
    ),
    "own_store": Play(
        nothing,
        lambda k, _, t: operations.store_own(k, OWN_ID, {"task": "headrace.test", "args": b"\x92\x90\x80"}).at(t),
        says("known"),
    ),
    "examine": Play(
        lambda s: (s.put(3), s.client.zpopmin(s.keys("ready:default")))[0],
        lambda k, ids, t: operations.examine(k, "", ids, KEEP, repair=True).at(t),
        lambda first, second: first[1][0].repaired and second == (0, []),
    ),
    "recount": Play(
        lambda s: s.client.hset(s.keys("totals"), "bytes", 5),
        lambda k, _, __: operations.recount(k, "bytes", 5, 0),
        lambda first, second: first and not second,
    ),
    "restored": Play(
        lambda s: s.client.hset(s.keys("copy"), "lost", 9),
        lambda k, _, __: operations.restored(k, go=True),
        lambda first, second: (first, second) == (9, 0),
    ),
    "tell": Play(nothing, lambda k, _, __: operations.tell(k, "acts", "r", {"who": "ada"}), alike),
    "told": Play(
        lambda s: s.run(operations.tell(s.keys, "acts", "r", {"who": "ada"})),
        lambda k, _, __: operations.told(k, "acts", 9),
        alike,
    ),
    "own_calls": Play(nothing, lambda k, _, t: due_calls(k, [("hook:a", SECOND, ["failed"])], 9).at(t)),
    "alarm_note": Play(
        nothing,
        lambda k, _, t: note_alarms(k, [AlarmNote("alarm:b", 0, {"raised": t}, "alarm_raised", {"alarm": "b"})]).at(t),
    ),
    "watches": Play(
        lambda s: s.run(due_calls(s.keys, [("hook:a", SECOND, [])], 9)),
        lambda k, _, t: stored_watches(k).at(t),
    ),
    "greet": Play(nothing, lambda k, _, __: operations.greet(k, SCHEMA)),
}


# -- statistics and the cache ---------------------------------------------------------------------------------------

ENDS = START // SECOND + 10**9
"""Of buckets and events, seconds: beyond the server's own clock, by which they expire."""
COUNTS = stats_calls.Counts({("2099", ENDS): {"a": {"n": 1}, "b": {"n": 2, "m": 3}}}, {"": {"a": ENDS, "b": ENDS}})


def counted(stage: Stage) -> None:
    stage.run(stats_calls.add(stage.keys, "s", 1, COUNTS))


def happened(keys: Keys, _: Any, now: int) -> Call[stats_calls.Applied]:
    return stats_calls.event(keys, "e", now, 10**9, b"x", COUNTS).at(now)


def lined_up(stage: Stage) -> list[str]:
    """Batches in line; their ids."""
    for number in range(4):
        stage.run(stats_calls.send(stage.keys, "s", number, b"x%d" % number, 100, hold=False))
    return [id for id, _ in stage.run(stats_calls.peek(stage.keys, 100)).batches]


def line_alike(first: stats_calls.Line, second: stats_calls.Line) -> bool:
    """Ids of a line are the server's time."""
    return [batch for _, batch in first.batches] == [batch for _, batch in second.batches]


def send(hold: bool, most: int = 4) -> Callable[[Keys, Any, int], Call[stats_calls.Applied]]:
    return lambda keys, _, __: stats_calls.send(keys, "s", 99, b"new", most, hold=hold)


def cached(stage: Stage) -> list[str]:
    names = ["a", "b", "c"]
    for name in names:
        stage.run(cache_calls.store(stage.keys, name, b"\xc0", 60, ("x", name)))
    return names


def store(keys: Keys, lease: str, now: int) -> Call[bool]:
    return cache_calls.store(keys, "a", b"\xc3", 60, ("x", "y"), lease).at(now)


REST: dict[str, Play] = {
    "stats_add": Play(nothing, lambda k, _, t: stats_calls.add(k, "s", 1, COUNTS).at(t), says("repeated")),
    "stats_send": Play(lined_up, send(hold=True, most=5), says("repeated")),
    "stats_send, into a full line": Play(lined_up, send(hold=False), says("repeated")),
    "stats_send, into one that holds": Play(lined_up, send(hold=True)),
    "stats_consume": Play(
        lined_up, lambda k, ids, t: stats_calls.consume(k, ids[0], ids[2], COUNTS).at(t), says("gone")
    ),
    "stats_take": Play(
        nothing,
        lambda k, _, t: stats_calls.take(k, [stats_calls.Span("s.0", 1, 3)], COUNTS, upto=t).at(t),
        says(stats_calls.Took({"s.0": 3})),
    ),
    "stats_event": Play(nothing, happened, says("known")),
    "stats_read": Play(counted, lambda k, _, __: stats_calls.read(k, ["2099:a", "2099:b"])),
    "stats_children": Play(counted, lambda k, _, t: stats_calls.children(k, "").at(t)),
    "stats_children, with buckets": Play(counted, lambda k, _, t: stats_calls.held_below(k, "", ["2099"], 0, 9).at(t)),
    "stats_peek": Play(lined_up, lambda k, _, t: stats_calls.peek(k, 2).at(t), line_alike),
    "stats_look": Play(
        lambda s: s.run(happened(s.keys, None, s.now)), lambda k, _, __: stats_calls.look(k, ["e", "f"])
    ),
    "cache_list": Play(cached, lambda k, _, t: cache_calls.page(k, "x").at(t)),
    "cache_get": Play(cached, lambda k, _, __: cache_calls.read(k, "a")),
    # The first one's lease: whoever got a reply does not know that others wait for it, and lets its time end it.
    "cache_lease": Play(
        nothing,
        lambda k, _, t: cache_calls.lease(k, "a").at(t),
        lambda first, second: (first.lease, first.left, first.first, second.first) == (second.lease, 0, True, False),
    ),
    "cache_lease, whose turn is over": Play(
        lambda s: s.run(cache_calls.lease(s.keys, "a")),
        lambda k, _, t: cache_calls.lease(k, "a", (), 5).at(t + 6 * SECOND),
        lambda first, second: (first.left, second.left) == (0, 5),
    ),
    "cache_release": Play(
        lambda s: s.run(cache_calls.lease(s.keys, "a")).lease,
        lambda k, lease, _: cache_calls.release(k, "a", lease),
        says("gone"),
    ),
    "cache_probe": Play(nothing, lambda k, _, __: cache_calls.probe(k, "link")),
    "cache_set": Play(lambda s: (cached(s), "")[1], store),
    # The first one used the lease up; whoever computed then reads what is there.
    "cache_set, under a lease": Play(lambda s: s.run(cache_calls.lease(s.keys, "a")).lease, store, says(False)),
    "cache_delete": Play(cached, lambda k, names, _: cache_calls.delete(k, names), says(0)),
    # Its number ends leases that are older: one that is larger ends those of the moment in between too, as a later drop.
    "cache_drop": Play(
        cached,
        lambda k, _, t: cache_calls.drop(k, "x", True).at(t),
        lambda _, second: (second.names, second.left) == ([], 0),
        frozenset({"leases", "dropped"}),
    ),
}

PLAYS = JOBS | FLOWS | REST
