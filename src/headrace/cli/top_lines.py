"""How ``headrace top`` shows a frame: as lines of a terminal. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.cli.output import NARROW, one_line
from headrace.cli.plot import number, spark
from headrace.cli.units import several, span
from headrace.model.notation import size

if TYPE_CHECKING:
    from headrace.cli.top_frame import TopFrame

SHOWN = ("ready", "running", "scheduled", "blocked", "parked", "failed", "quarantined")
SORTS = ("time", "starts", "failed")


def summary(frame: TopFrame) -> str:
    counts = {name: frame.states.get(name, 0) for name in SHOWN}
    states = " ".join(f"{name} {count:,}" for name, count in counts.items() if count or name in SHOWN[:2])
    slots = several(sum(worker.slots for worker in frame.workers), "slot")
    text = f"{_clock(frame)} {states}, {number(frame.rate)}/s, {several(len(frame.workers), 'worker')}, {slots}"
    slow = frame.queues[0] if frame.queues and frame.queues[0].delay else None
    return text + (f", {one_line(slow.name)} waits {span(slow.delay)}" if slow else "")


def _brief(seconds: float) -> str:
    """A duration that may be well below a second: ``0.003ms``, ``12ms``, ``3.2s``."""
    return f"{seconds * 1000:.3g}ms" if seconds < 0.9995 else span(seconds)


def _clock(frame: TopFrame) -> str:
    return time.strftime("%H:%M:%S %Z", time.localtime(frame.now / 1e6))


def cut_to(frame: TopFrame, rows: int, sort: str) -> TopFrame:
    """A frame without the rows that find no room in so many lines: the last of each table.

    Args:
        sort: of tasks: ``time``, ``starts`` or ``failed``.
    """
    most = max(2, max(12, rows - 12) // 4)
    tasks = sorted(frame.tasks, key=lambda one: -{"time": one.busy, "starts": one.started, "failed": one.failed}[sort])
    return replace(
        frame, queues=frame.queues[:most], tasks=tasks[:most], workers=frame.workers[:most], runs=frame.runs[:most]
    )


def lines_of(frame: TopFrame, columns: int, rows: int, sort: str, marked: str | None = None) -> list[str]:
    """A frame as lines for a terminal of this size.

    Args:
        sort: see :func:`cut_to`.
        marked: the queue, or the id of the job, whose row has a mark before it; None: no row can have one.
    """
    width = max(NARROW, min(columns, 160))
    frame = cut_to(frame, rows, sort)
    queues = [
        (one.name, f"{one.ready:,}", span(one.delay) if one.ready else "-", "paused" if one.paused else "",
         f"{one.workers}" if one.workers or not one.ready else "NONE")
        for one in frame.queues
    ]  # fmt: skip
    done = [
        (one.name, f"{one.started:,}", f"{one.failed:,}", _brief(one.run50), _brief(one.run95), _brief(one.busy))
        for one in frame.tasks
    ]
    workers = [
        (one.place, f"{one.running:,}/{one.slots:,}", size(one.memory) if one.memory else "-") for one in frame.workers
    ]
    runs = [(one.task, span(one.seconds), one.worker, one.job) for one in frame.runs]
    tables: tuple[tuple[Sequence[str], Sequence[Sequence[str]], list[str]], ...] = (
        (("queue", ">ready", ">delay", "", ">workers"), queues, [one.name for one in frame.queues]),
        (("task, in ten minutes", ">starts", ">failed", ">p50", ">p95", ">time"), done, []),
        (("worker", ">jobs", ">memory"), workers, []),
        (("runs longest", ">for", "worker", "job"), runs, [one.job for one in frame.runs]),
    )
    return [
        summary(frame)[:width],
        f"ended   {spark(frame.ended)} by minute",
        *([f"failed  {spark(frame.failed)}"] if any(frame.failed) else []),
        *(line for heads, cells, names in tables for line in _marked(_table(heads, cells, width - 2), names, marked)),
    ]


def _marked(lines: list[str], names: Sequence[str], marked: str | None) -> list[str]:
    """The lines of a table with room for a mark before them, where rows may have one."""
    if marked is None:
        return lines
    # Above the rows are an empty line and the headings.
    at = names.index(marked) + 2 if marked in names else -1
    return [("> " if n == at else "  ") + line for n, line in enumerate(lines)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns aligned; the first one takes what is left. No rows, no table."""
    if not rows:
        return []
    cells = [tuple(one_line(cell) for cell in row) for row in rows]
    names = [head.lstrip(">") for head in heads]
    widths = [max(len(name), *(len(row[n]) for row in cells)) for n, name in enumerate(names)]
    widths[0] = max(12, min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    lines: list[str] = [""]
    for row in (tuple(names), *cells):
        parts = [
            cell[: widths[n]].rjust(widths[n]) if heads[n].startswith(">") else cell[: widths[n]].ljust(widths[n])
            for n, cell in enumerate(row)
        ]
        lines.append("  ".join(parts))
    return lines
