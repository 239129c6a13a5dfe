"""``headrace top``: what goes on, in a terminal that is redrawn in place; or a line, or a document, for each look."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from headrace.cli.output import NARROW, one_line
from headrace.cli.plot import number, spark
from headrace.cli.session import Session
from headrace.cli.units import parse_duration, several, span
from headrace.model.notation import size

if TYPE_CHECKING:
    from headrace.cli.top_frame import TopFrame, TopReader

# Seconds between two looks.
EVERY = 2.0
SHOWN = ("ready", "running", "scheduled", "blocked", "parked", "failed", "quarantined")
SORTS = ("time", "starts", "failed")
_CLEAR_LINE, _CLEAR_BELOW, _HOME = "\x1b[K", "\x1b[J", "\x1b[H"


def top(
    session: Session,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="TIME", parser=parse_duration, show_default="2s", help="How often to look."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, print it and exit.")] = False,
) -> None:
    """Show queues, tasks, workers and the jobs that run longest, and redraw them in place.

    Keys: q quits, p stops and goes on, s sorts tasks by time, starts or failures, space looks now. Into a pipe it
    prints one line for each look, with --json one document. While it is stopped it asks the server nothing.
    """
    from headrace.cli.top_frame import TopReader

    pause = max(0.2, EVERY if every is None else every)
    with session.view(stats=True) as app:
        reader = TopReader(app)
        if once:
            _print_once(session, reader.read())
        elif session.output.json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _follow(session, reader, pause)
        else:
            _interactive(reader, pause)


def _print_once(session: Session, frame: TopFrame) -> None:
    if session.output.json:
        session.output.document(frame.document())
        return
    for line in lines_of(frame, session.output.console().width, 1000, "time"):
        session.output.line(line.rstrip())


def _follow(session: Session, reader: TopReader, pause: float) -> NoReturn:
    """A line or a document for each look, until Ctrl-C."""
    while True:
        frame = reader.read()
        session.output.done(summary(frame), frame.document())
        sys.stdout.flush()
        time.sleep(pause)


def _interactive(reader: TopReader, pause: float) -> None:
    """Redraw until q or Ctrl-C."""
    stopped, sort, frame, trouble, due = False, 0, None, "", 0.0
    with _screen():
        while True:
            if not stopped and time.monotonic() >= due:
                frame, trouble = _look(reader, frame)
                due = time.monotonic() + pause
            _draw(frame, SORTS[sort], stopped, trouble)
            key = _key(None if stopped else max(0.0, due - time.monotonic()))
            if key in ("q", "Q", "\x03", "\x04"):
                return
            if key == "p":
                stopped, due = not stopped, 0.0
            elif key == "s":
                sort = (sort + 1) % len(SORTS)
            elif key == " ":
                stopped, due = False, 0.0


def _look(reader: TopReader, last: TopFrame | None) -> tuple[TopFrame | None, str]:
    """A new frame; or the last one, and why there is no new one."""
    from headrace.errors import HeadraceError

    try:
        return reader.read(), ""
    except HeadraceError as error:
        return last, one_line(error)


@contextlib.contextmanager
def _screen() -> Generator[None]:
    """Another screen of the terminal, keys as they are pressed, and no cursor; the old one is back afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    print("\x1b[?1049h\x1b[?25l", end="", flush=True)
    try:
        yield
    finally:
        print("\x1b[?25h\x1b[?1049l", end="", flush=True)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(wait: float | None) -> str:
    """The key that was pressed within so many seconds; empty: none was."""
    ready, _, _ = select.select([sys.stdin], [], [], wait)
    # A terminal that is gone is readable and has nothing.
    return (os.read(sys.stdin.fileno(), 1).decode("latin-1") or "q") if ready else ""


def _draw(frame: TopFrame | None, sort: str, stopped: bool, trouble: str) -> None:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    head = f"headrace top · {'stopped' if stopped else 'q quit, p stop, s sort, space now'} · tasks by {sort}"
    body = [head, *([f"! {trouble}"] if trouble else [])]
    if frame is not None:
        body += lines_of(frame, columns, rows - len(body), sort)
    text = "\n".join(line[:columns] + _CLEAR_LINE for line in body[:rows])
    print(_HOME + text + _CLEAR_BELOW, end="", flush=True)


def summary(frame: TopFrame) -> str:
    """A frame in one line."""
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
    return time.strftime("%H:%M:%S", time.localtime(frame.now / 1e6))


def lines_of(frame: TopFrame, columns: int, rows: int, sort: str) -> list[str]:
    """A frame as lines for a terminal of this size; what finds no room is left out, the last rows of each table first.

    Args:
        sort: of tasks: ``time``, ``starts`` or ``failed``.
    """
    width = max(NARROW, min(columns, 160))
    left = max(12, rows - 12)
    most = [max(2, left // 4)] * 4
    tasks = sorted(frame.tasks, key=lambda one: -{"time": one.busy, "starts": one.started, "failed": one.failed}[sort])
    queues = [
        (one.name, f"{one.ready:,}", span(one.delay) if one.ready else "-", "paused" if one.paused else "",
         f"{one.workers}" if one.workers or not one.ready else "NONE")
        for one in frame.queues[: most[0]]
    ]  # fmt: skip
    done = [
        (one.name, f"{one.started:,}", f"{one.failed:,}", _brief(one.run50), _brief(one.run95), _brief(one.busy))
        for one in tasks[: most[1]]
    ]
    workers = [
        (one.place, f"{one.running:,}/{one.slots:,}", size(one.memory) if one.memory else "-")
        for one in frame.workers[: most[2]]
    ]
    runs = [(one.task, span(one.seconds), one.worker, one.job) for one in frame.runs[: most[3]]]
    return [
        summary(frame)[:width],
        f"ended   {spark(frame.ended)} by minute",
        *([f"failed  {spark(frame.failed)}"] if any(frame.failed) else []),
        *_table(("queue", ">ready", ">delay", "", ">workers"), queues, width),
        *_table(("task, in ten minutes", ">starts", ">failed", ">p50", ">p95", ">time"), done, width),
        *_table(("worker", ">jobs", ">memory"), workers, width),
        *_table(("runs longest", ">for", "worker", "job"), runs, width),
    ]


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
