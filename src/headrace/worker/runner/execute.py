"""One start of one job: find, unpack, run, pack, conclude. Every step takes and returns values; the outcome is data.

User code runs in :func:`_enclosed` and :func:`_aenclosed` only. An exception that a middleware swallows is kept in the
job, for its record: the job succeeds in spite of it. Sends nothing, knows no channel and no kind of runner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from headrace.context import CurrentJob
from headrace.errors import CorruptRecord, Interrupt, NotFound, OptionsError, RateLimited, Snooze
from headrace.model import codec
from headrace.model.ended import (
    Corrupt,
    Crashed,
    Ended,
    Failed,
    Growing,
    Parked,
    RateRefused,
    Skipped,
    Snoozed,
    Succeeded,
)
from headrace.model.headers import unpacked
from headrace.model.hidden_values import encrypts
from headrace.model.ids import flow_of
from headrace.model.job import Claim
from headrace.model.limit_rules import pause_of
from headrace.model.retry import signal_in
from headrace.model.workflow import Grown, pack_grown, parse_facts, unpack_grown
from headrace.protocol.consume import Note
from headrace.running_job import begin, running
from headrace.settings import microseconds, seconds
from headrace.tasks.submission import Middleware, Submission, aenter, around, ordinary, submission_of_nodes
from headrace.tasks.task import RunPlan, Task
from headrace.worker.messages import of_error
from headrace.worker.runner import runner_context
from headrace.worker.runner.interrupts import Gate
from headrace.worker.runner.reporting import evidence, fault, forget, plain
from headrace.worker.runner.runner_context import Emit, RunnerContext

# Stands for the value of a function whose exception a middleware has swallowed.
SWALLOWED = object()


def called(
    middlewares: Sequence[Middleware], job: CurrentJob, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """The value of an ordinary function; :data:`SWALLOWED` where it has none."""
    result, innermost = SWALLOWED, _Innermost()
    with ExitStack() as stack:
        stack.enter_context(running(job))
        for middleware in middlewares:
            stack.push(innermost)
            stack.enter_context(ordinary(middleware(job), job.task, "is an ordinary function: make it `async def`"))
        stack.push(innermost)
        result = function(*args, **kwargs)
    job.swallowed = innermost.error
    return result


async def acalled(
    middlewares: Sequence[Middleware], job: CurrentJob, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    result, innermost = SWALLOWED, _Innermost()
    async with AsyncExitStack() as stack:
        stack.enter_context(running(job))
        for middleware in middlewares:
            stack.push(innermost)
            await aenter(stack, middleware(job))
        stack.push(innermost)
        result = await function(*args, **kwargs)
    job.swallowed = innermost.error
    return result


class _Innermost:
    """Stands between middlewares, and remembers the innermost exception that passed; swallows none."""

    error: BaseException | None = None

    def __call__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.error = self.error or error


Ready = tuple[Claim, Task[..., Any, Any], RunPlan, tuple[Any, ...], dict[str, Any]]
Drive = Callable[[CurrentJob, Coroutine[Any, Any, Any]], Awaitable[Any]]
Perform = Callable[[RunnerContext, Gate, Claim, Emit], Ended]
Aperform = Callable[[RunnerContext, Drive, Claim, Emit], Awaitable[Ended]]
_NOTHING = object()


class Refused(Exception):
    def __init__(self, ended: Ended) -> None:
        super().__init__()
        self.ended = ended


def perform(runner: RunnerContext, gate: Gate, claim: Claim, emit: Emit) -> Ended:
    """Run one start of a function to its end; raises nothing: a fault of Headrace's own code is a crash."""
    ended = _performed(runner, gate, claim, emit)
    if not isinstance(ended, Growing) or not runner.app.client.enqueue_middlewares:
        return ended
    try:
        return runner.context.copy().run(_submitted, runner, runner.job(claim, emit, (), {}), ended)
    except BaseException as error:  # noqa: BLE001 - a middleware is user code
        return _not_added(runner, claim, error)


def _performed(runner: RunnerContext, gate: Gate, claim: Claim, emit: Emit) -> Ended:
    try:
        claim, task, plan, args, kwargs = prepare(runner, claim)
        job = runner.job(claim, emit, args, kwargs, plan)
        try:
            value = runner.context.copy().run(_enclosed, runner, gate, job, task.function, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - SystemExit of a job ends the job, not its runner
            return conclude(runner, claim, plan, error, job)
        if job.swallowed is not None:
            _report_swallowed(runner, claim, job, job.swallowed, emit)
        return packed(runner, claim, task, plan, value, job)
    except Refused as refused:
        return refused.ended
    except BaseException as error:  # noqa: BLE001 - what escapes would leave the job running for ever
        return Crashed(fault(error, claim.attempt, runner.place), runner.failure_ttl)


async def aperform(runner: RunnerContext, drive: Drive, claim: Claim, emit: Emit) -> Ended:
    ended = await _aperformed(runner, drive, claim, emit)
    if not isinstance(ended, Growing) or not runner.app.client.enqueue_middlewares:
        return ended
    try:
        job = runner.job(claim, emit, (), {})
        act, grown = _submission(job, ended)
        with running(job):
            async with around(runner.app.client, act):
                return _changed(ended, act, grown)
    except BaseException as error:  # noqa: BLE001 - as above
        return _not_added(runner, claim, error)


async def _aperformed(runner: RunnerContext, drive: Drive, claim: Claim, emit: Emit) -> Ended:
    try:
        claim, task, plan, args, kwargs = prepare(runner, claim)
        job = runner.job(claim, emit, args, kwargs, plan)
        try:
            value = await drive(job, _aenclosed(runner, job, task.function, args, kwargs))
        except BaseException as error:  # noqa: BLE001 - as above
            return conclude(runner, claim, plan, error, job)
        if job.swallowed is not None:
            _report_swallowed(runner, claim, job, job.swallowed, emit)
        return packed(runner, claim, task, plan, value, job)
    except Refused as refused:
        return refused.ended
    except BaseException as error:  # noqa: BLE001 - as above
        return Crashed(fault(error, claim.attempt, runner.place), runner.failure_ttl)


def _submitted(runner: RunnerContext, job: CurrentJob, ended: Growing) -> Growing:
    act, grown = _submission(job, ended)
    with running(job), around(runner.app.client, act):
        return _changed(ended, act, grown)


def _submission(job: CurrentJob, ended: Growing) -> tuple[Submission, Grown]:
    grown = unpack_grown(ended.result)
    # Their numbers, and so their ids, are reserved when the dispatcher stores them.
    return submission_of_nodes("grow", grown.graft.nodes, flow_of(job.id), lambda _: ""), grown


def _changed(ended: Growing, act: Submission, grown: Grown) -> Growing:
    made = replace(grown.graft, nodes=act.nodes(grown.graft.nodes))
    return Growing(pack_grown(grown.result, made), ended.ttl)


def _not_added(runner: RunnerContext, claim: Claim, error: BaseException) -> Ended:
    try:
        return Failed(evidence(error, claim.attempt, runner.place), runner.failure_ttl)
    finally:
        forget(error)


def _report_swallowed(runner: RunnerContext, claim: Claim, job: CurrentJob, error: BaseException, emit: Emit) -> None:
    told = evidence(error, claim.attempt, runner.place, hide=job.hide).decode()
    emit(Note(claim.id, claim.token, swallowed=told))
    forget(error)


def prepare(runner: RunnerContext, stored: Claim) -> Ready:
    """The decrypted claim, its task, plan and arguments. Raises Refused, with the outcome: its code is not to run."""
    claim = stored
    if runner.seal is not None:
        try:
            claim = runner.seal.opened(stored)
        except CorruptRecord as error:
            raise Refused(Corrupt(plain(error, stored.attempt, runner.place), runner.failure_ttl)) from None
    task = runner.tasks.get(claim.task)
    if task is None:
        raise Refused(Parked())
    ttl = runner.failure_ttl
    try:
        plan = task.plan(claim.options)
        ttl = plan.failure_ttl
        if claim.headers:
            unpacked(claim.headers)
        args, kwargs = task.unpack(_of_node(claim, plan, stored) if claim.facts else claim.args)
    except Refused:
        raise
    except CorruptRecord as error:
        raise Refused(Corrupt(plain(error, claim.attempt, runner.place, "Corrupt"), ttl)) from None
    except Exception as error:  # noqa: BLE001 - ArgumentError; or whatever a class of theirs raises while it is filled
        raise Refused(Failed(plain(error, claim.attempt, runner.place), ttl)) from None
    return claim, task, plan, args, kwargs


def _of_node(claim: Claim, plan: RunPlan, stored: Claim) -> bytes:
    """A node's arguments. Raises Refused: it is skipped, or is a map: what it comes to is known without its code."""
    facts = parse_facts(claim.facts)
    if runner_context.is_skipped(facts, claim.inputs):
        raise Refused(Skipped(plan.result_ttl))
    args = runner_context.filled(claim)
    if not facts.map:
        return args
    graft = runner_context.spread(claim, facts, args)
    if graft is None:
        raise Refused(Succeeded(runner_context.EMPTY_LIST, plan.result_ttl))
    if claim is not stored and any(map(codec.holds_sealed, (stored.args, *(one.output for one in stored.inputs)))):
        graft = runner_context.with_all_encrypted(graft)
    raise Refused(Growing(pack_grown(codec.NONE, graft), plan.result_ttl))


def _enclosed(
    runner: RunnerContext,
    gate: Gate,
    job: CurrentJob,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The function's value; a stop may be raised in here and nowhere else."""
    value = _NOTHING
    try:
        try:
            gate.open(job)
            if runner.middlewares:
                result = called(runner.middlewares, job, function, args, kwargs)
            else:
                # For the rest of this context, which was made for this start.
                begin(job)
                result = function(*args, **kwargs)
            value = result
        finally:
            gate.close()
    except Interrupt:
        # The stop came between the last line of their code and our close(): the job had done all of its work.
        gate.close()
        if value is _NOTHING:
            raise
    return value


async def _aenclosed(
    runner: RunnerContext, job: CurrentJob, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if runner.middlewares:
        return await acalled(runner.middlewares, job, function, args, kwargs)
    with running(job):
        return await function(*args, **kwargs)


def packed(
    runner: RunnerContext, claim: Claim, task: Task[..., Any, Any], plan: RunPlan, value: Any, job: CurrentJob
) -> Ended:
    """The outcome of a function that returned: a success if its result can be sent, else a failure without retry."""
    try:
        # None, whatever the annotation says: the function returned nothing.
        result = codec.NONE if value is SWALLOWED else task.pack_result(value)
        if runner.seal is not None and plan.secrets:
            result = runner.seal.result(claim, plan.secrets, result)
        graft = None if job.added is None else runner_context.added(job)
        if graft is None:
            return Succeeded(result, plan.result_ttl)
        return Growing(pack_grown(result, graft), plan.result_ttl)
    except Exception as error:  # noqa: BLE001 - ArgumentError, WorkflowError, ...; or what a class of theirs raises
        return Failed(plain(error, claim.attempt, runner.place), plan.failure_ttl)


def conclude(runner: RunnerContext, claim: Claim, plan: RunPlan, error: BaseException, job: CurrentJob) -> Ended:
    """The outcome of a function that raised; afterwards nothing holds its frames."""
    try:
        signal = signal_in(error)
    except BaseException as broken:  # noqa: BLE001 - even isinstance asks for an attribute, which is user code
        forget(error)
        error = signal = Exception(f"an exception that cannot be shown: its attributes raise {type(broken).__name__}")
    if runner.raised is not None:
        runner.raised(error)
    try:
        if isinstance(signal, Snooze):
            return Snoozed(microseconds(seconds(signal.delay, "the delay of a snooze")))
        if isinstance(signal, RateLimited):
            return RateRefused(runner.limit_of(claim, signal.limit), pause_of(signal.after))
        data = evidence(error, claim.attempt, runner.place, type(signal), job.hide)
        if runner.seal is not None and encrypts(plan.secrets):
            whole = evidence(error, claim.attempt, runner.place, type(signal))
            data = runner.seal.error(claim, data, whole)
        return of_error(plan, claim, signal, data, runner.random(), job.stopped_by)
    except (OptionsError, NotFound) as odd:
        return Failed(plain(odd, claim.attempt, runner.place), plan.failure_ttl)
    finally:
        forget(error)
