"""The core of a dispatcher, in a world that is turned by hand: never idle with work that could start, nothing lost.

Each order is a world of its own (kinds, sizes, queues, weights, strategies) and twenty events in it, in any order: jobs
come, end, retry and are cancelled, limits hold some of them back, and some wait for outputs; requests are served late,
connections are cut before and after the store has acted, and the store forgets its last moments; another worker takes
jobs and wake-up tokens; runners start, die and are recycled; queues are paused; the worker is resized, loses its lease
and is drained, at the end or before; a shard falls silent, for ever or for a while.
A failure names the number of its order, with which ``play`` plays it again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from random import Random
from unittest.mock import patch

import pytest

from headrace import dispatch
from headrace.model.ended import Growing, Succeeded
from headrace.model.form import Form
from headrace.model.job import Claim
from headrace.model.workflow import Graft, NewNode, pack_grown
from headrace.protocol.consume import Note
from headrace.settings import Settings
from headrace.worker.dispatcher import worker_state
from headrace.worker.dispatcher.claim_demand import QueueKnowledge
from headrace.worker.dispatcher.core import FAREWELL
from headrace.worker.dispatcher.dispatcher_events import CALLED, HURRY, Heard, Orphaned
from headrace.worker.dispatcher.local_queues import MOST
from headrace.worker.dispatcher.store_session import SCRIPTS
from headrace.worker.dispatcher.worker_state import NEVER
from headrace.worker.messages import Begun, Done, Drain, Size
from headrace.worker.worker_options import QueueOrder, WorkerOptions
from tests.worker.cranked import INPUTS, KINDS, QUEUES, RIVAL, Dice, Job, Session, SharedRing, World

# What the worlds call often; the first of starts on other shards.
AT_HOME = ("limit_take", "limit_keep", "limit_release")
REFUSABLE = (
    "register", "limit_declare", "claim", "claim", "settle", "settle", "renew", "promote", "outputs", "holds", "restore",
    "retire", "reclaim", "note", *AT_HOME,
)  # fmt: skip
LANES = ("api|", "account=|x", "api,account=|y")
ORDERS, FEW, PARTS, STEPS = 20_000, 2_000, 45, 20


def any_world(dice: Random, shards: int = 1) -> World:
    kinds = tuple(sorted(dice.sample(KINDS, dice.randint(1, 3))))
    names = tuple(dice.sample(QUEUES, dice.randint(1, 3)))
    weights = tuple(float(dice.randint(1, 3)) for _ in names) if dice.random() < 0.3 else ()
    options = WorkerOptions(
        processes=dice.randint(1, 3), forks=dice.randint(1, 2), threads=dice.randint(1, 3),
        concurrency=dice.randint(1, 4), queues=QueueOrder(names, weights), recycle_jobs=dice.choice((0, 0, 1, 2)),
        recycle_memory=dice.choice((0, 0, 100)),
    )  # fmt: skip
    lease, ahead = dice.choice((15.0, 600.0)), dice.choice((0, 0.005, 0.005))
    world = World(dice, Settings(lease=lease, prefetch_seconds=ahead, startup_profiling=False), options, kinds, shards)
    for session in world.sessions:
        session.store.brings = dice.choice((1000, 1000, 1000, 1, 2))
        session.store.forgetful = dice.random() < 0.3
        session.store.remember()
    for _ in range(dice.randint(0, 5)):
        enqueue(world)
    if dice.random() < 0.9:
        world.calm(0.0)
    return world


# -- what may happen ----------------------------------------------------------------------------------------------------


def one_of(world: World) -> Session:
    """A shard of the worker."""
    return world.dice.choice(world.sessions) if len(world.sessions) > 1 else world


def at(what: Callable[[Session], object]) -> Callable[[World], object]:
    """What happens at one of the shards."""
    return lambda world: what(one_of(world))


def enqueue(world: World) -> None:
    dice = world.dice
    kind = dice.choice(world.kinds)
    for _ in range(dice.choice((1, 1, 2, 7))):
        queue, session = dice.choice(QUEUES), one_of(world)
        task = f"{kind}-limited" if session.shard and dice.random() < 0.3 else f"{kind}-task"
        session.store.add(
            task, queue, key=dice.choice(("", "", "k", "l")), crashes=int(dice.random() < 0.1),
            first=dice.random() < 0.1, order=dice.choice(("", "", "", queue)),
            lane="" if session.shard else dice.choice(("", "", "", *(f"{queue}|{limit}" for limit in LANES))),
            parents=dice.choice(INPUTS),
        )  # fmt: skip


def a_job_ends(world: World) -> bool:
    return world.end("succeeded", "succeeded", "succeeded", "failed", "retry", "snoozed", "limited")


def resize(world: World) -> None:
    kind, size = world.dice.choice(world.kinds), world.dice.randint(1, 4)
    if world.dice.random() < 0.5:
        world.told(Size(kind, size))
    else:
        one_of(world).mail(f"scale:{kind}:{size}")


def cancel(session: Session) -> None:
    running = [job.id for job in session.store.jobs.values() if job.state == "running"]
    if running:
        id = session.world.dice.choice(running)
        session.store.cancelled.add(id)
        session.mail(id)


def broadcast(session: Session) -> None:
    if session.incarnation.desk.owner in session.store.owners:
        world = session.world
        session.store.broadcast(session.incarnation.desk.owner, f"{world.dice.choice(world.kinds)}-task")
        session.mail(CALLED)


def take_over(session: Session) -> None:
    if session.world.now > session.incarnation.maintenance.renewal.lease_until:
        session.store.take_over(session.incarnation.desk.owner)


def exchange(world: World) -> None:
    """All that is under way comes to its end, and what runs begins."""
    session = one_of(world)
    session.connect()
    for act in (session.store_acts, session.store_answers, session.waker_acts, session.waker_answers, world.begin):
        act()
        world.turn()


# What others do to the worker's jobs.
OTHERS: dict[Callable[[World], object], int] = {
    at(cancel): 2,
    at(broadcast): 1,
    at(take_over): 1,
    at(lambda one: one.store.rival_claims()): 3,
    at(lambda one: one.store.rival_ends()): 3,
    at(lambda one: one.store.take_over(RIVAL)): 1,
}
EVENTS: dict[Callable[[World], object], int] = {
    exchange: 0,
    enqueue: 22,
    at(Session.store_acts): 12,
    at(Session.store_answers): 12,
    at(Session.waker_acts): 6,
    at(lambda one: one.waker_answers() or one.unblocks()): 6,
    World.begin: 8,
    a_job_ends: 24,
    lambda world: world.spawn() or world.come_up() or world.leave(): 4,
    World.die: 2,
    at(lambda one: one.cut() or one.connect()): 3,
    lambda world: world.advance(world.now + world.dice.choice((0.0005, 0.01, 0.02, 0.3, 1.5, 7.0, 20.0))): 5,
    at(lambda one: one.pause(one.world.dice.choice(QUEUES))): 2,
    resize: 2,
    **OTHERS,
    at(Session.forgets): 4,
    at(lambda one: one.refusals.add(one.world.dice.choice(REFUSABLE))): 3,
}


@patch.object(dispatch, "Ring", SharedRing)
def play(number: int, shards: int = 1, *, alone: bool = False) -> World:
    """``alone``: nobody else touches the jobs, and the store forgets much at once."""
    dice = Dice(number)
    world = any_world(dice, shards)
    events = EVENTS | dict.fromkeys(OTHERS, 0) | {exchange: 60} if alone else EVENTS
    choices, weights = list(events), list(accumulate(events.values()))
    world.alone = alone
    for session in world.sessions if alone else ():
        session.store.forgetful = True
        session.store.remember()
    silent = dice.randrange(STEPS) if shards > 1 else -1
    stops = dice.randrange(STEPS) if number % 8 in (5, 6) else -1
    for step in range(STEPS * (3 if alone else 1)):
        if step == silent:
            one_of(world).silent = True
        if step == stops:
            world.told(Drain(now=False))
        # What cannot happen now makes room for what can.
        while dice.choices(choices, cum_weights=weights)[0](world) is False:
            pass
        # Several events may come in one turn.
        if dice.random() < 0.8:
            world.turn()
            world.check_all()
    world.turn()
    for session in world.sessions if number % 8 == 3 else ():
        session.silent = False
    world.calm()
    world.check_all()
    if stops >= 0:
        leave(world)
        return world
    # A look from the front may have been put off until a retry or a gate had come.
    assert not world.startable() or world.set("anew"), (world.startable(), world.core.incarnation.demand.known)
    if number % 16 == 0:
        finish(world)
    return world


def finish(world: World) -> None:
    """Every job ends, once; then the worker leaves, and holds nothing."""
    for session in world.sessions:
        for queue in list(session.store.paused):
            session.pause(queue)
        session.store.take_over(RIVAL)
    served = set(world.core.worker.options.queues.names)
    for _ in range(400):
        world.calm()
        # Few or all at once: each calm costs as much as ten events.
        if not sum(world.end("succeeded") for _ in range(world.dice.choice((1, 100)))):
            if not left_of(world, served):
                break
            world.advance(world.now + 3.0)
        world.turn()
    assert left_of(world, served) == []
    world.told(Drain(now=False))
    world.turn()
    leave(world)


def leave(world: World) -> None:
    """A worker that stops leaves, and holds nothing where the store answered in time."""
    for _ in range(50):
        if world.core.left:
            break
        world.calm()
        world.end("succeeded")
        world.turn()
        if any(one.silent for one in world.sessions):
            world.advance(world.now + 1.0)
    assert world.core.left
    if world.core.worker.timers.due("leave", world.core.worker.now):
        return
    stores = [one.store for one in world.sessions if not one.silent]
    assert not any(store.owners[name].claims for store in stores for name in store.owners if name != RIVAL)
    # One that forgets may forget that it was told of an end.
    assert world.silent or world.store.forgetful or not world.store.holders


def left_of(world: World, served: set[str]) -> list[Job]:
    """Jobs that have not ended, at shards that answer. Where that of limits does not, jobs of others wait for it, and
    those behind them in their order.
    """
    jobs = [job for one in world.sessions if not one.silent for job in one.store.jobs.values()]
    waiting = {job.id for job in jobs if world.silent and (job.task.endswith("-limited") or job.state == "ordered")}
    return [job for job in jobs if job.queue in served and job.state != "ended" and job.id not in waiting]


@pytest.mark.parametrize("part", range(PARTS))
def test_never_idle_with_work_that_could_start(part: int) -> None:
    """Every second order has three shards, of which one falls silent for ever."""
    for number in range(part, FEW, PARTS):
        play_named(number, 3 if number % 2 else 1)


@pytest.mark.parametrize("part", range(PARTS))
@patch.object(worker_state, "KEEP", NEVER)
def test_what_has_ended_never_starts_again_where_only_the_store_forgets(part: int) -> None:
    for number in range(part, FEW, PARTS):
        play_named(number, 3 if number % 2 else 1, alone=True)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("shards", [1, 3])
def test_never_idle_in_all_orders_of_one_shard_and_of_three(part: int, shards: int) -> None:
    for number in range(part, ORDERS, PARTS):
        play_named(number, shards)


def play_named(number: int, shards: int, *, alone: bool = False) -> None:
    try:
        play(number, shards, alone=alone)
    except Exception as error:
        raise AssertionError(f"play({number}, {shards}, {alone=})") from error


# -- what was found so --------------------------------------------------------------------------------------------------


def made(kinds: tuple[str, ...] = ("thread",), queues: tuple[str, ...] = ("a",), **sizes: int) -> World:
    options = WorkerOptions(queues=QueueOrder(queues), **sizes)  # type: ignore[arg-type]
    world = World(Random(1), Settings(lease=600, startup_profiling=False), options, kinds)
    world.calm()
    return world


def of_three() -> World:
    """A worker of three shards that has not reached them."""
    options = WorkerOptions(queues=QueueOrder(("a",)), threads=2)
    return World(Random(1), Settings(lease=600, startup_profiling=False), options, ("thread",), 3)


def test_a_worker_whose_supervisor_died_leaves_a_shard_where_it_sleeps() -> None:
    """Of three shards only those left at once whose jobs went back and woke it there; the others kept their lease."""
    world = of_three()
    world.calm()
    world.told(Orphaned())
    world.turn()
    world.calm(0.0)
    assert world.core.worker.phase == "left"
    assert not any(session.store.owners for session in world.sessions)


def others_act(world: World) -> None:
    """All shards but the first answer all that they are asked."""
    for _ in range(20):
        for one in world.sessions[1:]:
            for act in (one.store_acts, one.store_answers, one.waker_acts, one.waker_answers, one.unblocks):
                act()
                world.turn()


def test_a_worker_lets_go_of_what_it_holds_at_home_before_it_leaves() -> None:
    """Where home was slower than the shard of its last limited job, that limit stayed full until the lease was over."""
    world = of_three()
    world.calm()
    world.sessions[1].store.add("thread-limited", "a")
    world.calm()
    assert len(world.store.holders) == 1
    world.told(Drain(now=False))
    world.turn()
    world.calm(0.0)
    world.end("succeeded")
    world.turn()
    others_act(world)
    world.calm(5.0)
    assert world.core.left
    assert not world.store.holders


def test_a_worker_that_stops_repeats_a_refused_claim_that_was_applied() -> None:
    """It left jobs behind that had not begun: they came back when its lease was over, with a crash more."""
    world = made(threads=2)
    world.store.add("thread-task", "a")
    assert world.waker_acts()
    assert world.cut()
    world.refusals.add("claim")
    world.turn()
    world.told(Drain(now=False))
    world.turn()
    world.calm()
    assert world.core.left
    assert [(job.state, job.crashes) for job in world.store.jobs.values()] == [("ready", 0)]
    assert not [line for line in world.log if "still holds jobs" in line]


def test_a_worker_has_one_name_at_all_shards_though_one_refuses_it_at_first() -> None:
    """It was shown as two workers; where a store refused it for a night, each refusal left a name behind."""
    world = of_three()
    world.sessions[1].forbidden.add("register")
    world.calm(60.0)
    world.sessions[1].forbidden.clear()
    world.calm(60.0)
    assert {one.desk.owner for one in world.core.incarnations} == set(world.core.worker.names)
    assert len(world.core.worker.names) == 1


def test_a_worker_says_anew_what_it_is_where_the_store_may_have_forgotten_it() -> None:
    """After a failover a quiet worker was shown as one that works, and one that was resized with its old size."""
    world = made(threads=1)
    world.mail("scale:thread:3")
    world.mail("quiet")
    world.turn()
    world.calm()
    assert world.cut()
    world.turn()
    assert world.connect()
    world.turn()
    said = list[str]()
    while world.store_acts():
        said += [str(call.args) for call, _ in world.inflight if call.script.name == "renew"]
        world.store_answers()
        world.turn()
    assert len(said) == 1
    assert all(word in said[0] for word in ("quiet", "thread:3", "runner_facts"))


def test_a_worker_declares_anew_what_the_store_may_have_forgotten() -> None:
    """After a failover that remembered the worker, and not its limits, these were declared no more."""
    world = made(threads=1)
    assert world.cut()
    world.turn()
    assert world.connect()
    world.turn()
    said = list[str]()
    while world.store_acts():
        said += [call.script.name for call, _ in world.inflight]
        world.store_answers()
        world.turn()
    assert said.count("limit_declare") == 1


def test_a_broadcast_waits_for_a_runner_beside_free_ones_of_another_kind() -> None:
    """It was cancelled: as a job that starts at most once it was to wait for no runner, and cannot go back."""
    world = made(("process", "thread"), processes=1, threads=1)
    world.store.add("process-task", "a")
    world.calm()
    broadcast(world)
    (*_, job) = world.store.jobs.values()
    job.task = "process-task"
    world.turn()
    world.calm()
    assert world.core.local_queues.waiting == 1
    assert world.end("succeeded")
    world.turn()
    world.calm()
    assert (job.state, job.starts) == ("running", 1)


def test_a_worker_that_stops_asks_for_no_outputs() -> None:
    """It waited for them until its lease was over, where the store did not answer any more."""
    world = made(threads=2)
    job = world.store.add("thread-task", "a", parents=INPUTS[5])
    assert world.waker_acts()
    world.told(Drain(now=False))
    world.turn()
    assert world.waker_answers()
    world.turn()
    assert not world.incarnation.inputs
    world.silent = True
    world.advance(world.now + FAREWELL)
    assert world.core.left
    assert job.state == "running"


def test_each_connection_loads_all_that_a_worker_calls_from_its_start_to_its_first_end() -> None:
    """A new server refused the limits that it was told with the registration, which delayed the first claim by a trip."""
    world = made(threads=2)
    world.store.add("thread-task", "a")
    world.calm()
    world.end("succeeded")
    world.turn()
    world.calm()
    assert {"register", "limit_declare", "renew", "claim", "settle"} <= world.store.called <= set(SCRIPTS)


def test_a_job_for_any_runner_finds_the_room_that_one_for_a_place_leaves() -> None:
    """It went back to the server, and no job of its kind was claimed until one ended."""
    world = made(threads=2)
    world.store.add("thread-task", "a", key="k")
    world.store.add("thread-task", "a")
    world.calm()
    assert [len(runner.held) for runner in world.runners.values()] == [2]


def test_jobs_that_go_back_since_no_runner_has_room_are_not_claimed_again_and_again() -> None:
    """They waited for others that end, and a claim that saw the queue without them forgot that they were there."""
    world = made(("fork", "thread"), ("a", "b"), forks=1, threads=9)
    for task, queue in (("thread", "a"), ("fork", "a"), ("fork", "a"), ("fork", "b")):
        world.store.add(f"{task}-task", queue)
    world.calm()
    assert sum(job.state == "running" for job in world.store.jobs.values()) == 2
    assert world.store.claims < 12


def test_a_claim_that_was_applied_and_not_answered_is_repeated_with_its_number() -> None:
    world = made(threads=2)
    world.store.add("thread-task", "a")
    assert world.waker_acts()
    assert world.cut()
    world.turn()
    world.calm()
    assert [len(runner.held) for runner in world.runners.values()] == [1]
    assert [job.starts for job in world.store.jobs.values()] == [1]


def test_a_retry_is_promoted_when_it_is_due_though_no_claim_tells_of_it() -> None:
    world = made(threads=2)
    world.store.add("thread-task", "a")
    world.calm()
    world.end("retry")
    world.turn()
    world.calm()
    assert [job.starts for job in world.store.jobs.values()] == [2]


def test_what_came_before_a_cursor_is_looked_for_in_time_though_nothing_is_known_to_wait() -> None:
    """The time passed unnoticed, or ended a sleep without a claim: the queue waited for the next event of any kind."""
    world = made(threads=2)
    world.core.incarnation.demand.known = QueueKnowledge(frozenset(), cursors={"a": (b"5", b"x")})
    world.core.incarnation.desk.timers.set("anew", world.now + 1)
    claims = world.store.claims
    world.advance(world.now + 1)
    world.calm(0)
    assert world.store.claims == claims + 1
    assert world.asleep


def test_what_runs_is_stopped_before_its_lease_ends_and_handed_back_uncharged() -> None:
    world = made(threads=2)
    world.store.add("thread-task", "a")
    world.calm()
    world.cut()
    world.turn()
    world.advance(world.core.incarnation.maintenance.renewal.lease_until)
    assert [runner.killed for runner in world.runners.values()] == [True]
    world.calm()
    (job,) = world.store.jobs.values()
    assert (job.state, job.crashes) == ("running", 0)
    assert job.starts > 1


def test_a_node_that_waits_for_outputs_does_not_start_where_the_server_lost_its_start() -> None:
    """It was given to a runner while another worker ran it."""
    world = made(threads=2)
    job = world.store.add("thread-task", "a", parents=INPUTS[5])
    assert world.waker_acts()
    assert world.waker_answers()
    world.turn()
    assert world.incarnation.inputs
    world.cut()
    world.turn()
    lost = world.store.owners[world.incarnation.desk.owner]
    lost.claims.clear()
    lost.claimed = 0
    # Another worker has it.
    job.token += 1
    world.calm()
    assert not world.incarnation.inputs
    assert [runner.held for runner in world.runners.values()] == [[]]


@pytest.mark.parametrize(
    "script", sorted({*REFUSABLE} - {*AT_HOME, "register", "renew", "retire", "reclaim", "restore"})
)
def test_while_the_store_refuses_one_script_the_lease_is_kept_and_all_else_goes_on(script: str) -> None:
    """Each refusal took the connections down and was sent first again: the lease ended, and jobs counted crashes."""
    world = made(threads=3)
    world.forbidden.add(script)
    for n in range(3):
        world.store.add("thread-task", "a", parents=INPUTS[5] if n else "")
    runner_jobs = lambda: [job for job in world.store.jobs.values() if job.starts]  # noqa: E731
    for _ in range(20):
        world.mail(HURRY)
        world.calm()
        world.end("succeeded")
        world.advance(world.now + world.settings.lease * 0.3)
        world.turn()
    assert not world.core.incarnation.desk.fenced
    assert not [line for line in world.log if "lease" in line]
    assert len(world.store.owners) == 1
    if script != "claim":
        assert runner_jobs()
    world.forbidden.clear()
    for _ in range(5):
        world.calm()
        world.end("succeeded", "succeeded")
        world.turn()
    assert {job.state for job in world.store.jobs.values()} == {"ended"}
    assert {job.crashes for job in world.store.jobs.values()} == {0}


def test_a_refused_script_is_called_ever_more_seldom() -> None:
    world = made(threads=1)
    world.forbidden.add("claim")
    world.store.add("thread-task", "a")
    world.calm(60.0)
    assert 30 < world.refused["claim"] < 90


def test_a_worker_that_stops_waits_for_no_nodes_that_a_full_server_does_not_store() -> None:
    settings = Settings(lease=600, shutdown_timeout=1, startup_profiling=False)
    world = World(Random(1), settings, WorkerOptions(queues=QueueOrder(("a",)), threads=1), ("thread",))
    world.forbidden.add("reserve")
    world.calm()
    job = world.store.add("thread-task", "a", parents=INPUTS[5])
    world.mail(HURRY)
    world.calm()
    (claim,) = next(iter(world.runners.values())).held
    graft = pack_grown(b"", Graft((NewNode(Form("t"), b"", role="join"),), 1, gather=True))
    world.inbox.append(Heard(1, [Done(claim.number, Growing(graft, 1), 0, 0)]))
    next(iter(world.runners.values())).held.clear()
    world.turn()
    world.calm()
    world.told(Drain(now=False))
    world.turn()
    for _ in range(10):
        world.calm()
        world.advance(world.now + 1)
        world.turn()
    assert world.core.left
    assert (job.state, job.crashes) == ("ready", 0)


def test_a_worker_whose_lease_the_store_has_lost_says_so() -> None:
    """It said that it could not keep its lease, as where the server or the machine is too slow."""
    world = made()
    world.store.owners.clear()
    world.mail(HURRY)
    world.turn()
    world.calm()
    lost, again = world.log[-2:]
    assert lost.startswith("the server lost the lease of here:1:")
    assert again.endswith("serves a")


def test_limited_jobs_of_one_key_are_claimed_for_no_runners_line() -> None:
    """A hundred of them waited for the runner of their key, and held what others of their limits waited for."""
    world = made(("process",), processes=3)
    for _ in range(50):
        world.store.add("process-task", "a", key="k", lane="a|fair=|k")
    world.calm()
    assert sum(job.state == "running" for job in world.store.jobs.values()) == 3
    assert world.core.local_queues.waiting == 0
    assert world.store.claims < 12


def test_the_line_of_a_runner_is_served_after_it_was_asked_for_work_and_gave_none_back() -> None:
    """A job that had come meanwhile waited beside a free slot until another one ended there."""
    world = made(("async",), concurrency=2)
    world.store.add("async-task", "a", lane="a|api|")
    world.calm()
    world.store.add("async-task", "a", key="k")
    assert world.waker_acts()
    world.mail(f"closed:{10**18}:api:")
    assert world.waker_answers()
    world.turn()
    world.calm()
    assert [len(runner.held) for runner in world.runners.values()] == [2]


def test_a_worker_that_is_stopped_while_it_registers_leaves_no_incarnation_behind() -> None:
    """It left before the answer: the store counted a worker that claimed nothing until its lease was over."""
    options = WorkerOptions(queues=QueueOrder(("a",)), threads=2)
    world = World(Random(1), Settings(lease=600, startup_profiling=False), options, ("thread",))
    world.connect()
    world.turn()
    world.turn()
    assert world.store_acts()
    assert len(world.store.owners) == 1
    world.told(Drain(now=False))
    world.turn()
    world.calm()
    assert world.core.left
    assert not world.store.owners


@pytest.mark.parametrize(("lease", "after"), [(600, FAREWELL), (4, 4)])
@pytest.mark.parametrize("connected", [False, True])
def test_a_worker_that_is_stopped_before_its_store_has_answered_leaves_soon(
    connected: bool, lease: float, after: float
) -> None:
    options = WorkerOptions(queues=QueueOrder(("a",)), threads=2)
    world = World(Random(1), Settings(lease=lease, startup_profiling=False), options, ("thread",))
    if connected:
        world.connect()
        world.turn()
    world.told(Drain(now=False))
    world.turn()
    world.advance(world.now + after)
    assert world.core.left


def test_a_shutdown_that_leaves_no_time_raises_nothing() -> None:
    """A thread was told to raise, and at times did before it was killed: it said that time was left."""
    settings = Settings(lease=600, shutdown_timeout=0, startup_profiling=False)
    world = World(Random(1), settings, WorkerOptions(queues=QueueOrder(("a",)), threads=1), ("thread",))
    world.calm()
    world.store.add("thread-task", "a")
    world.mail(HURRY)
    world.calm()
    world.told(Drain(now=False))
    world.turn()
    (runner,) = world.runners.values()
    assert (runner.killed, runner.stops) == (True, {})


@pytest.mark.parametrize("answers", [True, False])
def test_a_worker_that_leaves_before_its_store_knows_of_all_ends_says_so(answers: bool) -> None:
    """Jobs that had succeeded ran again, with a crash more, and the log of the worker ended without a word."""
    world = made(threads=1)
    world.store.add("thread-task", "a")
    world.mail(HURRY)
    world.calm()
    world.told(Drain(now=False))
    assert world.end("succeeded")
    world.turn()
    assert "settle" in [call.script.name for call, _ in world.inflight]
    if answers:
        assert world.store_acts()
        assert world.store_answers()
        world.turn()
    world.advance(world.now + FAREWELL)
    assert world.core.left
    said = " ".join(world.log)
    assert ("still holds jobs" in said, "leaves" in said) == (not answers, True)


def test_the_supervisor_is_told_of_first_runners_that_began_before_the_worker_was_registered() -> None:
    world = World(Dice(1), Settings(), WorkerOptions(processes=2), ("process",))
    told: list[Begun] = []
    world._doing[Begun] = told.append
    while world.spawn() or world.come_up():
        world.turn()
    assert told == []
    world.calm(0.0)
    assert told == [Begun()]


def test_what_was_said_while_the_connection_was_lost_is_asked_for() -> None:
    """A queue that was resumed then was not claimed from until the next renewal was due."""
    world = made(threads=1)
    world.pause("a")
    world.mail(HURRY)
    world.turn()
    world.calm()
    world.store.add("thread-task", "a")
    assert world.cut()
    world.pause("a")
    world.turn()
    world.calm()
    assert [len(runner.held) for runner in world.runners.values()] == [1]


def test_a_job_that_the_last_renewal_saw_and_a_claim_took_is_no_sign_that_claims_stopped() -> None:
    """With a long lease a worker that had nothing to do was told to be unhealthy after half a minute."""
    world = made(threads=1)
    world.store.add("thread-task", "a")
    world.mail(HURRY)
    world.turn()
    world.calm()
    assert world.end("succeeded")
    world.turn()
    for _ in range(40):
        world.advance(world.now + 1)
        assert world.core.incarnation.vitals.check(world.now)[2] == 0


@pytest.mark.parametrize(("mates", "lines", "calls"), [(1, 1, 1), (1300, 1, 3), (20, 1000, 4)])
def test_all_notes_come_before_an_end_in_calls_of_bounded_size(mates: int, lines: int, calls: int) -> None:
    """Beyond six hundred notes, a job's last lines came after its end, and the store dropped them."""
    world = made(("process",), processes=1)
    world.store.add("process-task", "a")
    world.calm()
    ((token, start),) = ((claim.token, claim) for runner in world.runners.values() for claim in runner.held)
    for number in (*range(10**6, 10**6 + mates), token):
        world.core.runner_pool.notes[0][number] = Note(start.id, number, lines=("x" * 800,) * lines)
    assert world.end("succeeded")
    world.turn()
    names = [call.script.name for call, _ in world.inflight]
    assert names[: calls + 1] == ["note"] * calls + ["settle"]
    assert not world.core.runner_pool.notes[0]


def test_the_last_words_of_a_job_come_before_its_end_also_where_the_lease_was_lost() -> None:
    world = made(("process",), processes=1)
    world.store.add("process-task", "a")
    world.calm()
    ((token, start),) = ((claim.token, claim) for runner in world.runners.values() for claim in runner.held)
    world.core.runner_pool.notes[0][token] = Note(start.id, token, lines=("said",))
    # The machine slept.
    world.now += 2 * world.settings.lease
    assert world.end("succeeded")
    world.turn()
    assert world.core.incarnation.desk.fenced
    assert [call.script.name for call, _ in world.inflight] == ["note", "settle"]


@pytest.mark.parametrize(("count", "size", "calls"), [(600, 0, 1), (600, 2 << 10, 2), (9, 256 << 10, 2)])
def test_ends_are_told_in_calls_of_bounded_size(count: int, size: int, calls: int) -> None:
    """No server takes an argument of 512 MB: a worker whose jobs ended so asked again and again, and lost its lease."""
    ends = made(("process",), processes=1).core.incarnation.endings
    for token in range(count):
        ends.end(Claim(f"id{token}", token, "a", 0, "process-task", b""), Succeeded(b"x" * size, 0))
    told: list[int] = []
    while ends:
        told.append(sum(len(outcome.data) for outcome, _ in ends.take()))
    assert len(told) == calls
    assert max(told) <= 5 << 18


@pytest.mark.parametrize("key", ["", "k"])
def test_jobs_that_may_start_once_are_not_sent_ahead(key: str) -> None:
    """Those that had not begun failed with the one that ran, when the worker was killed."""
    world = made(("process",), processes=1)
    for _ in range(60):
        world.store.add("process-task", "a", key=key)
    for _ in range(60):
        world.begin()
        world.end("succeeded")
        world.turn()
        world.calm(0.5)
    claims = world.store.claims
    for _ in range(30):
        world.store.add("process-task", "a", key=key).once = True
    for n in range(30):
        world.calm(0.5)
        assert len([job for job in world.store.jobs.values() if job.state == "running"]) == 1
        assert [len(runner.held) for runner in world.runners.values()] == [1], n
        world.begin()
        world.end("succeeded")
        world.turn()
    assert world.store.claims < claims + 100


# -- an uneven store ------------------------------------------------------------------------------------------------------


class Crowd:
    """Workers of four processes each, in one queue over several shards; their jobs take 50 ms each."""

    def __init__(self, workers: int, shards: int) -> None:
        options, settings = WorkerOptions(processes=4, queues=QueueOrder(("a",))), Settings(lease=600)
        self.worlds = [World(Dice(n), settings, options, ("process",), shards) for n in range(workers)]
        self.stores = [one.store for one in self.worlds[0].sessions]
        for world in self.worlds:
            for session, store in zip(world.sessions, self.stores, strict=True):
                session.store = store
            world.calm()
        self.now = max(world.now for world in self.worlds)
        self._begun: dict[tuple[int, int, int], float] = {}

    def enqueue(self, shard: int) -> None:
        self.stores[shard].add("process-task", "a")

    def step(self) -> None:
        """Let 5 ms pass, in which each store answers once."""
        self.now += 0.005
        for n, world in enumerate(self.worlds):
            world.settle_down()
            for runner in world.runners.values():
                for claim in runner.held[: runner.begun]:
                    if self.now - self._begun.setdefault((n, runner.number, claim.number), self.now) >= 0.05:
                        runner.held.remove(claim)
                        runner.begun -= 1
                        world.inbox.append(Heard(runner.number, [Done(claim.number, Succeeded(b"", 0), 100, 0)]))
            world.advance(self.now)

    def drain(self) -> float:
        """Seconds until all jobs have ended."""
        began = self.now
        while any(job.state != "ended" for store in self.stores for job in store.jobs.values()):
            self.step()
        return self.now - began


@pytest.mark.parametrize(("workers", "shards"), [(1, 12), (12, 3)])
def test_an_uneven_store_is_served_as_an_even_one(workers: int, shards: int) -> None:
    """Of a hundred jobs 99 live on the last shard."""
    count, times = 100 + 30 * workers, list[float]()
    for uneven in (False, True):
        crowd = Crowd(workers, shards)
        for n in range(count):
            crowd.enqueue(shards - 1 if uneven and n % 100 else n % shards)
        times.append(crowd.drain())
    assert times[0] >= 0.9 * times[1]
    # Below saturation no job waits while a runner is free.
    for n in range(count):
        crowd.enqueue(shards - 1 if n % 100 else 0)
        for _ in range(5 if workers == 1 else n % 2):
            crowd.step()
            startable = crowd.worlds[n % workers].startable()
            assert [job for job in startable if crowd.stores[0].now - job.score > 2e6] == []
    crowd.drain()


def test_what_waits_for_one_runner_is_bounded_and_the_rest_stays_at_the_store() -> None:
    world = made(("process",), processes=2)
    for _ in range(3 * MOST):
        world.store.add("process-task", "a", key="k")
    world.calm()
    assert MOST <= sum(job.state == "running" for job in world.store.jobs.values()) <= MOST + 3


# -- what ends a worker -------------------------------------------------------------------------------------------------


def end_all(world: World) -> None:
    """Each job that runs ends, and each that follows it, until none runs any more."""
    while world.end("succeeded"):
        world.turn()
        world.calm()


def test_a_worker_leaves_after_its_last_job_and_has_claimed_no_other() -> None:
    world = made(threads=2, max_jobs=3)
    for _ in range(5):
        world.store.add("thread-task", "a")
    world.calm()
    end_all(world)
    assert world.core.worker.phase == "left"
    assert sorted(job.state for job in world.store.jobs.values()) == ["ended"] * 3 + ["ready"] * 2
    assert sorted(job.starts for job in world.store.jobs.values()) == [0, 0, 1, 1, 1]


def test_a_worker_leaves_when_there_was_nothing_to_run_for_its_time() -> None:
    """Neither a job that takes longer is idleness, nor a start in which no runner can take what waits."""
    options = WorkerOptions(queues=QueueOrder(("a",)), threads=2, max_idle=5.0)
    world = World(Random(1), Settings(lease=600, startup_profiling=False), options, ("thread",))
    world.store.add("thread-task", "a")
    with patch.object(World, "spawn", return_value=False), patch.object(World, "check_places"):
        world.calm(20)
    assert world.core.worker.phase == "working"
    world.calm(20)
    assert (world.core.worker.phase, [job.state for job in world.store.jobs.values()]) == ("working", ["running"])
    end_all(world)
    world.calm(20)
    assert world.core.worker.phase == "left"
    assert "there was nothing to run for 5 s" in world.log


def test_a_burst_leaves_when_its_queues_are_empty_and_not_before() -> None:
    options = WorkerOptions(queues=QueueOrder(("a",)), threads=2, burst=True)
    world = World(Random(1), Settings(lease=600, startup_profiling=False), options, ("thread",))
    for _ in range(5):
        world.store.add("thread-task", "a")
    with patch.object(World, "spawn", return_value=False), patch.object(World, "check_places"):
        world.calm(20)
    assert world.core.worker.phase == "working"
    world.calm()
    end_all(world)
    world.calm()
    assert world.core.worker.phase == "left"
    assert {job.state for job in world.store.jobs.values()} == {"ended"}
