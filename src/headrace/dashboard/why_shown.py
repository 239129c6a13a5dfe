"""Why something waits, as a page says it under its title: one sentence, and what helps as a link or a button. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace.dashboard.figures import TaskFigures
from headrace.dashboard.live_frame import LiveFrame
from headrace.dashboard.values_shown import cut, duration, jobs_wait, percent, plural, quoted
from headrace.model.ids import flow_of
from headrace.model.limit_rules import LimitState
from headrace.protocol.overviews import WhyFacts, WorkerFacts
from headrace.tasks.reasons import reasons
from headrace.tasks.reasons_of_state import Reason


class Remedy(msgspec.Struct, frozen=True):
    """What helps.

    Attributes:
        words: of the link or button.
        path: below the dashboard's root.
        verb: whether it is a form to send, which operators may; else a page.
        fields: of the form.
    """

    words: str
    path: str
    verb: bool = False
    fields: Mapping[str, str] = {}


class WhyShown(msgspec.Struct, frozen=True):
    """One sentence of a page.

    Attributes:
        lead: what the sentence explains; ``about``: the page of that, empty for none.
        text: without a full stop.
        step: what helps, in words, for a visitor without a button.
    """

    lead: str
    text: str
    step: str = ""
    remedy: Remedy | None = None
    about: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.step}" if self.step else self.text


def why_of(facts: WhyFacts, name: str = "it", about: str = "") -> WhyShown:
    """Why a job waits, or where it runs; ``name`` is what the page calls it."""
    first = reasons(facts)[0]
    lead = f"Where {name} runs" if facts.state == "running" else f"Why {name} waits"
    make = _REMEDIES.get(first.code)
    return WhyShown(lead, first.text, first.next_step, make(first, facts) if make else None, about)


def _act(words: str, kind: str, name: object, verb: str, **fields: str) -> Remedy:
    return Remedy(words, f"/{kind}/{quoted(name)}/act/{verb}", True, fields)


def _gate(one: Reason, _facts: WhyFacts) -> Remedy:
    limit, value = one.evidence["limit"], str(one.evidence["value"])
    if one.evidence["closed_by"] == "paused":
        fields = {} if value in ("", "*") else {"value": value}
        return _act("Resume the limit", "limits", limit, "resume", **fields)
    return Remedy("Show the limit", f"/limits/{quoted(limit)}")


def _nodes(one: Reason, facts: WhyFacts) -> Remedy | None:
    if "retry" in one.next_step:
        return _act("Retry failed jobs", "workflows", flow_of(facts.id), "retry")
    return _show("node", "jobs", "Show that job")(one, facts)


def _show(fact: str, kind: str, words: str) -> Callable[[Reason, WhyFacts], Remedy | None]:
    """Lead to the page of what a reason names, or to all of its kind."""

    def make(one: Reason, _facts: WhyFacts) -> Remedy | None:
        name = one.evidence.get(fact)
        return Remedy(words, f"/{kind}/{quoted(name)}") if name else None

    return make


def _start(one: Reason, facts: WhyFacts) -> Remedy | None:
    return _act("Start the workflow", "workflows", flow_of(facts.id), "start") if one.next_step else None


_REMEDIES: dict[str, Callable[[Reason, WhyFacts], Remedy | None]] = {
    **dict.fromkeys(
        ("no_worker_serves", "no_runner_of_its_kind", "runners_missing", "draining", "parked", "overdue"),
        lambda _one, _facts: Remedy("Show the workers", "/workers"),
    ),
    **dict.fromkeys(("claims_stopped", "owner_silent", "sent_ahead"), _show("worker", "workers", "Show the worker")),
    **dict.fromkeys(("workflow_not_started", "workflow_stopped"), _start),
    "queue_paused": lambda _one, facts: _act("Resume the queue", "queues", facts.queue, "resume"),
    "gate_closed": _gate,
    "all_busy": _show("longest", "jobs", "Show the longest job"),
    "other_queues_first": lambda _one, _facts: Remedy("Show the queues", "/queues"),
    "jobs_ahead": lambda one, facts: (
        Remedy("Show the queue", f"/queues/{quoted(facts.queue)}") if one.evidence.get("ahead") else None
    ),
    "waits_for_nodes": _nodes,
    "waits_for_its_turn": _show("holder", "jobs", "Show that job"),
    "store_refuses": lambda _one, _facts: Remedy("Show the store", "/store"),
    "runs": lambda _one, facts: _act("Show its stack", "jobs", facts.id, "stacks"),
}


def why_limit(whole: LimitState, text: str) -> WhyShown | None:
    """Why jobs of a limit wait; ``text`` is the reason, empty where none waits."""
    if not text:
        return None
    remedy = _act("Resume the limit", "limits", whole.name, "resume") if whole.paused else None
    return WhyShown("Why its jobs wait", text, remedy=remedy)


def why_worker(frame: LiveFrame, one: WorkerFacts) -> WhyShown:
    """What keeps a worker from starting jobs, or that nothing does."""
    lead, held = "How it stands", plural(one.running, "job")
    if one.lease <= frame.now:
        ago = duration((frame.now - one.lease) / 1e6)
        taken = "another worker takes over" if frame.live else "no worker lives to take over"
        return WhyShown(lead, f"it has not renewed its lease, which ended {ago} ago; {taken} the {held} that it held")
    if one.draining:
        how = "it is quiet, and stays until it is told to stop" if one.quiet else "it stops"
        return WhyShown(lead, f"{how}: it finishes {held} and takes no more")
    lines = [queue for queue in frame.queues if queue.name in one.queues and queue.size]
    full = [kind for kind, size in one.sizes.items() if size and one.busy[kind] >= size]
    at_work = [runner for runner in one.runners if runner.kind in full and runner.job and runner.since]
    if full and at_work:
        first = min(at_work, key=lambda runner: runner.since)
        since = duration((frame.now - first.since) / 1e6)
        text = f"all {' and '.join(full)} runners are busy; the longest runs {cut(first.task, 60)} for {since}"
        return WhyShown(lead, text, remedy=Remedy("Show the longest job", f"/jobs/{quoted(first.job)}"))
    if one.running:
        return WhyShown(lead, f"it runs {held} and has room for more")
    if lines and all(queue.paused for queue in lines):
        first_line = max(lines, key=lambda queue: queue.size)
        text = f"it is idle: {jobs_wait(first_line.size)} in queue {first_line.name}, which is paused"
        return WhyShown(lead, text, remedy=_act("Resume the queue", "queues", first_line.name, "resume"))
    return WhyShown(lead, "it is idle: its queues hold no job that may start now")


def why_task(name: str, total: TaskFigures, error: str, share: float) -> WhyShown | None:
    """Why jobs of a task fail, where more than ``share`` of them do."""
    if total.share <= share or not error:
        return None
    text = f"{percent(total.share)} of its starts fail, the last with {error}"
    return WhyShown("Why it fails", text, remedy=Remedy("Show the causes", f"/causes?task={quoted(name)}"))
