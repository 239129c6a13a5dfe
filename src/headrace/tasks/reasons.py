"""Why a job does not run: the table of reasons, in the order in which they decide, and the reads that feed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from headrace.errors import OptionsError
from headrace.model.activity import NEWEST, Act, act_of, newest_act
from headrace.model.ids import flow_of
from headrace.model.job import FINAL, State
from headrace.model.option_checks import is_name
from headrace.protocol import operations, stats_calls
from headrace.protocol.overviews import WhyFacts, why
from headrace.protocol.script import Call
from headrace.stats.reading import Plan, SeriesQuery, cover
from headrace.stats.resolutions import QUEUES, layout_of
from headrace.store.client import Client, Steps
from headrace.tasks import reasons_of_state as state
from headrace.tasks.edited_job import check_id
from headrace.tasks.reasons_of_state import Reason

# Where every reason is explained.
PAGE = "see 'Why does my job not run?' in the documentation"

# Others whose reasons are read, too; seconds over which a queue's rate is taken.
_OTHERS = 3
_WINDOW = 600

Decide: TypeAlias = Callable[[WhyFacts], Reason | None]

_LINE: tuple[Decide, ...] = (
    state.not_consistent, state.store_refuses, state.broadcast, state.queue_paused, state.no_worker_serves,
    state.parked, state.no_runner_of_its_kind, state.draining, state.gate_closed, state.runners_missing,
    state.all_busy, state.other_queues_first, state.claims_stopped, state.jobs_ahead, state.suspect,
    state.disk_failed, state.memory_full,
)  # fmt: skip
_WAITS: tuple[Decide, ...] = (
    state.not_consistent, state.workflow_not_started, state.workflow_stopped, state.waits_for_nodes,
    state.waits_for_jobs, state.waits_for_its_turn, state.store_refuses, state.disk_failed, state.memory_full,
)  # fmt: skip
_LATER: tuple[Decide, ...] = (
    state.not_consistent, state.store_refuses, state.overdue, state.scheduled, state.disk_failed, state.memory_full,
)  # fmt: skip
_ENDED: tuple[Decide, ...] = (state.ended,)

# Of each state the reasons that may hold, the deciding ones first.
TABLE: dict[str, tuple[Decide, ...]] = {
    State.READY: _LINE,
    State.PARKED: _LINE,
    State.BLOCKED: _WAITS,
    State.STOPPED: _WAITS,
    State.SCHEDULED: _LATER,
    State.RUNNING: (state.not_consistent, state.owner_silent, state.asked_to_stop, state.sent_ahead, state.runs),
    State.SUCCEEDED: _ENDED,
    State.FAILED: _ENDED,
    State.CANCELLED: _ENDED,
    State.QUARANTINED: _ENDED,
    State.SKIPPED: _ENDED,
}

# Final states into which no person brings a job.
_OVER = (State.SUCCEEDED, State.FAILED, State.QUARANTINED, State.SKIPPED)

# Every code, in the order of the documentation.
CODES = (
    "unknown", "ended", "runs", "sent_ahead", "owner_silent", "asked_to_stop", "scheduled", "overdue",
    "workflow_not_started", "workflow_stopped", "waits_for_nodes", "waits_for_jobs", "waits_for_its_turn", "parked",
    "queue_paused", "no_worker_serves", "broadcast", "all_busy", "no_runner_of_its_kind", "runners_missing",
    "jobs_ahead", "other_queues_first", "draining", "claims_stopped", "store_refuses", "gate_closed", "suspect",
    "not_consistent",
)  # fmt: skip

# Of reasons that a person may have made: by which verb, and on what.
_VERBS = {
    "queue_paused": ("pause", "queues"),
    "asked_to_stop": ("cancel", "jobs"),
    "ended": ("cancel", "jobs"),
    "workflow_stopped": ("stop", "workflows"),
}


class Why(msgspec.Struct, frozen=True):
    """Why a job does not run, or where it runs.

    Attributes:
        id: of the job.
        state: empty: no job of this id is stored.
        reasons: all that hold, the deciding one first; never empty.
    """

    id: str
    state: str
    reasons: tuple[Reason, ...]

    @property
    def code(self) -> str:
        return self.reasons[0].code

    def __str__(self) -> str:
        return self.reasons[0].sentence


def reasons(facts: WhyFacts) -> tuple[Reason, ...]:
    if facts.kind == "none":
        return (state.unknown(facts),)
    found = tuple(reason for decide in TABLE.get(facts.state, ()) if (reason := decide(facts)) is not None)
    if not found:
        last = state.next_in_line(facts) or state.not_consistent(facts)
        found = (last or Reason("jobs_ahead", f"nothing is known that keeps it in queue {facts.queue}", {}),)
    return found


def reason(facts: WhyFacts) -> str:
    return reasons(facts)[0].sentence


def explain(client: Client, id: str) -> Steps[Why]:
    """Read and decide. Raises JobNotFound: it can be neither the id of a job nor a request id. Cost: one round trip;
    two for a job that waits for other jobs, is behind others, or that a person may have stopped.
    """
    if not is_name(id):
        check_id(id)
    facts: WhyFacts = yield why(client.keys, id)
    settings = client.settings
    facts = replace(facts, kept={"result_ttl": settings.result_ttl, "failure_ttl": settings.failure_ttl})
    others = [one.id for one in facts.others if one.state and one.state not in FINAL][:_OTHERS]
    plan = _plan(client, facts)
    calls: list[Call[Any]] = [why(client.keys, other) for other in others]
    if plan is not None:
        label = f"{QUEUES}/{facts.queue}"
        calls.append(stats_calls.read(client.keys, [f"{date}:{label}" for date, _ in plan.buckets()], ["started"]))
    acts = any(one.code in _VERBS and facts.state not in _OVER for one in reasons(facts))
    if acts:
        calls.append(operations.told(client.keys, "acts", NEWEST))
    if calls:
        replies = yield calls
        done = [act_of(*row) for row in replies.pop().rows] if acts else []
        told = {one.id: reasons(one)[0].text for one in replies[: len(others)]}
        rate = 0.0
        if plan is not None:
            signs = (sign for _, sign in plan.buckets())
            started = sum(sign * held.get("started", 0) for sign, held in zip(signs, replies[-1], strict=True))
            rate = started / _WINDOW
        facts = replace(facts, told=told, rate=rate)
        return Why(id, facts.state, tuple(_by(one, facts, done) for one in reasons(facts)))
    return Why(id, facts.state, reasons(facts))


def _by(reason: Reason, facts: WhyFacts, acts: Sequence[Act]) -> Reason:
    subjects = {"queues": facts.queue, "jobs": facts.id, "workflows": flow_of(facts.id)}
    made = _VERBS.get(reason.code)
    act = newest_act(acts, *made, subjects[made[1]]) if made else None
    if act is None:
        return reason
    evidence = reason.evidence | {"by": act.who, "at_us": act.at_us}
    return msgspec.structs.replace(reason, text=f"{reason.text}, by {act.who}", evidence=evidence)


def _plan(client: Client, facts: WhyFacts) -> Plan | None:
    """Which counts tell how fast its queue goes; None where that is not known, or says nothing."""
    settings = client.settings
    if not facts.where("ahead") or facts.state != State.READY or settings.stats_url is not None:
        return None
    now = facts.now // 1_000_000
    try:
        layout = layout_of(settings.stats_keep)
        query = SeriesQuery("", layout, now - _WINDOW, now, layout.levels[0].cut.name, True, (), {})
        return query.plan(cover, now)
    except OptionsError:
        return None
