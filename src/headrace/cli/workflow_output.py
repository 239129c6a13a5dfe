"""Workflows and their nodes, for people and for programs. Asks the store only for nodes, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.job_output import call_of, lasted
from headrace.cli.output import distance, late_bar, moment, percent, span
from headrace.cli.queues import UNKNOWN
from headrace.picture.view import urgency

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.model.workflow import NodeRecord, WorkflowRecord
    from headrace.workflows.run import WorkflowRun

PAGE = 500


def read(output: Output, run: WorkflowRun, state: str | None) -> list[NodeRecord]:
    found: list[NodeRecord] = []
    page = run.nodes(state, limit=PAGE)
    with late_bar(output, page.count) as tell:
        while True:
            found += page
            tell(len(found))
            if page.next is None:
                return found
            page = run.nodes(state, limit=PAGE, after=page.next)


def ordered(nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Those that need a person first; within a state, in the order of the definition."""
    return sorted(nodes, key=lambda node: (urgency(node.job.state), node.job.state, node.number))


def row(record: WorkflowRecord, now: float) -> tuple[object, ...]:
    return (
        record.id,
        record.definition,
        record.state,
        f"{record.total:,}",
        percent(record.progress),
        distance(record.created_us, now),
        _remark(record, now),
    )


def _remark(record: WorkflowRecord, now: float) -> str:
    parts = [f"{record.failed_node} failed" if record.failed_node else "", f"key {record.key}" if record.key else ""]
    if record.lapses_us:
        parts.append(f"goes {distance(record.lapses_us, now)}")
    return ", ".join(part for part in parts if part)


def overview(record: WorkflowRecord, nodes: Sequence[NodeRecord], now: float) -> list[tuple[str, object]]:
    """Names and values. ``nodes``: all of them, or none where they were not read."""
    counts, seconds = record.counts, (record.finished_us - record.started_us) / 1e6
    beside = sum(node.role in ("undo", "callback") for node in nodes)
    running = sum(node.job.state == "running" for node in nodes)
    return [
        ("workflow", record.id),
        ("definition", record.definition or "-"),
        ("state", _state(record)),
        ("key", record.key),
        ("jobs", f"{record.total:,}" + (f", and {beside:,} to undo them or to call at the end" if beside else "")),
        ("failed", _failed(record)),
        ("succeeded", f"{counts['succeeded']:,}"),
        *((name, f"{counts[name]:,}") for name in ("cancelled", "skipped") if counts[name]),
        ("running", f"{running:,}") if nodes else ("active", f"{record.active:,}"),
        ("remaining", f"{record.total - record.done:,}"),
        ("arguments", call_of(record)),
        ("created", moment(record.created_us, now)),
        ("started", moment(record.started_us, now)),
        ("ended", moment(record.finished_us, now) if record.finished_us else None),
        ("ran for", span(seconds) if record.finished_us and record.started_us else None),
        ("kept", _kept(record, now)),
    ]


def _state(record: WorkflowRecord) -> str:
    if record.state == "failed" and record.failed_node:
        return f"failed at {record.failed_node}"
    if record.state not in ("running", "stopped"):
        return record.state
    more = ""
    if record.state == "running" and "undoing" in record.fields:
        more = ", undoing what it did"
    elif record.state == "running" and "cancel" in record.fields:
        more = ", being cancelled"
    return f"{record.state} {record.done:,}/{record.total:,} [{percent(record.progress)}]{more}"


def _failed(record: WorkflowRecord) -> str:
    failed, quarantined = record.counts["failed"], record.counts["quarantined"]
    more = f", {quarantined:,} of them quarantined" if quarantined else ""
    first = f", first {record.failed_node}" if record.failed_node else ""
    return f"{failed + quarantined:,}{more}{first}"


def _kept(record: WorkflowRecord, now: float) -> str:
    if record.state.final and record.lapses_us:
        return f"until {moment(record.lapses_us, now)}"
    kept = "for ever" if record.ttl < 0 else f"{span(record.ttl / 1e6)} after its end"
    return kept + (f"; if it is not started, until {moment(record.lapses_us, now)}" if record.lapses_us else "")


def tables(output: Output, nodes: Sequence[NodeRecord], now: float) -> None:
    """One table, in the order given: the states are together."""
    if not nodes:
        return
    output.heading("jobs")
    rows = [
        (
            n.facts.name or n.number, n.job.state, n.job.task or n.role or "-", n.job.id,
            lasted(n.job.started_us, n.job.finished_us), _since(n, now), _node_remark(n),
        )
        for n in nodes
    ]  # fmt: skip
    columns = ("name", "state", "task", "id", ">took", ">since", "remark")
    output.table(columns, rows, keep=("state", "id", "took", "since"), spare="remark")


def _since(node: NodeRecord, now: float) -> str:
    job = node.job
    at = job.finished_us if job.state.final else job.started_us if job.state == "running" else 0
    return distance(at, now)


def _node_remark(node: NodeRecord) -> str:
    job = node.job
    if job.error is not None:
        count = job.attempts[-1].number if job.attempts else 0
        times = f"{count} attempts, " if count > 1 else ""
        return times + job.error.brief[:120]
    if job.state == "succeeded" and (job.crashes or job.failures):
        words = ((job.failures, "failed"), (job.crashes, "crashed"))
        return f"start {job.attempt}: " + ", ".join(f"{count} {word} before" for count, word in words if count)
    if job.state == "running" and job.progress is not None:
        return f"{percent(job.progress)} {job.progress_text}".strip()
    if job.state == "parked":
        return UNKNOWN
    if job.state == "blocked" and node.role in ("undo", "callback"):
        return "after a failure" if node.role == "undo" else "at the end"
    return f"waits for {node.pending} of {len(node.parents)}" if job.state == "blocked" and node.pending else ""
