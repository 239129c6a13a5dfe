"""``headrace top``: queues and workers in a terminal that is redrawn in place, or a line or document for each look.

1. :func:`lines_of`: a frame as lines of a terminal. Pure.
2. :class:`TopView` and :func:`pressed`: filter, mark, ask for reasons, pause. Pure: keys in, a view and an act out.
3. :func:`top`: the command, with its terminal and its reads.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, TypeAlias

import msgspec
from msgspec.structs import replace

from headrace.cli.arguments import option
from headrace.cli.output import NARROW, number, one_line, several, span, spark
from headrace.cli.session import Session
from headrace.model.notation import size

if TYPE_CHECKING:
    from headrace.app import Headrace
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


# What a mark is on: a queue by its name, a running job by its id.
Mark: TypeAlias = tuple[Literal["queue", "job"], str]
# What is to be done beside drawing: leave, look at the store now, say why a job does not run, pause or resume a queue.
TopAct: TypeAlias = tuple[Literal["quit", "look", "why job", "why queue", "pause", "resume"], str]

_MOVES = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1}
_ENTER = ("\r", "\n")
_ERASE = ("\x7f", "\b")
_ESCAPE = "\x1b"
_ENDS = ("q", "Q", "\x03", "\x04")


class TopView(msgspec.Struct, frozen=True):
    """What is shown, and how.

    Attributes:
        sort: of tasks, a number of ``SORTS``.
        stopped: whether nothing is asked of the server.
        like: only what has this in its name is shown.
        typing: whether keys change that.
        mark: what keys act on; None: nothing yet.
        asked: the queue whose pause or end of pause is to be confirmed; empty: none.
        note: lines that answer the last act.
    """

    sort: int = 0
    stopped: bool = False
    like: str = ""
    typing: bool = False
    mark: Mark | None = None
    asked: str = ""
    note: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """The line above all."""
        if self.typing:
            return f"filter: {self.like}_ · Enter keeps it, Esc drops it"
        stopped = "stopped · " if self.stopped else ""
        like = f" · only {self.like!r}" if self.like else ""
        # All of it stands in 80 columns.
        keys = "q quit p stop s sort / filter ↑↓ mark Enter why P pause"
        return f"top · {stopped}tasks by {SORTS[self.sort]}{like} · {keys}"

    def filtered(self, frame: TopFrame) -> TopFrame:
        """A frame without what the filter leaves out. The counts above stay those of all."""
        like = self.like.lower()
        return replace(
            frame,
            queues=[one for one in frame.queues if like in one.name.lower()],
            tasks=[one for one in frame.tasks if like in one.name.lower()],
            workers=[one for one in frame.workers if like in one.place.lower()],
            runs=[one for one in frame.runs if like in f"{one.task} {one.job} {one.worker}".lower()],
        )


def keys_of(text: str) -> list[str]:
    """What was read of a terminal, as single keys."""
    return re.findall(r"\x1b\[[0-9;]*[A-Za-z~]|.", text, re.DOTALL)


def pressed(view: TopView, key: str, frame: TopFrame | None) -> tuple[TopView, TopAct | None]:
    """The view after a key, and what is to be done; ``frame`` is what is on the screen, filtered."""
    if view.typing:
        return _filter_typed(view, key), None
    if view.asked:
        return _answered(view, key, frame)
    view = replace(view, note=())
    if key in _ENDS:
        return view, ("quit", "")
    if key in _PLAIN:
        return _PLAIN[key](view)
    return _on_marked(view, key, frame)


_PLAIN: Mapping[str, Callable[[TopView], tuple[TopView, TopAct | None]]] = {
    "p": lambda view: (replace(view, stopped=not view.stopped), ("look", "") if view.stopped else None),
    " ": lambda view: (replace(view, stopped=False), ("look", "")),
    "s": lambda view: (replace(view, sort=(view.sort + 1) % len(SORTS)), None),
    "/": lambda view: (replace(view, typing=True, like=""), None),
    _ESCAPE: lambda view: (replace(view, like="", mark=None), None),
}


def _on_marked(view: TopView, key: str, frame: TopFrame | None) -> tuple[TopView, TopAct | None]:
    if frame is None:
        return view, None
    marks = marks_of(frame)
    if key in _MOVES and marks:
        at = marks.index(view.mark) + _MOVES[key] if view.mark in marks else 0
        return replace(view, mark=marks[max(0, min(at, len(marks) - 1))]), None
    if view.mark is None or view.mark not in marks:
        return view, None
    kind, name = view.mark
    if key in _ENTER:
        return view, ("why job" if kind == "job" else "why queue", name)
    if key == "P" and kind == "queue":
        return replace(view, asked=name), None
    return view, None


def marks_of(frame: TopFrame) -> list[Mark]:
    """What may be marked, from above to below."""
    queues: list[Mark] = [("queue", one.name) for one in frame.queues]
    return [*queues, *(("job", one.job) for one in frame.runs)]


def question(view: TopView, frame: TopFrame | None) -> str:
    """What is asked before a queue is paused or resumed; empty: nothing is."""
    if not view.asked:
        return ""
    return f"{'Resume' if _paused(view.asked, frame) else 'Pause'} {view.asked}? [y/N]"


def _paused(queue: str, frame: TopFrame | None) -> bool:
    return frame is not None and any(one.paused for one in frame.queues if one.name == queue)


def _answered(view: TopView, key: str, frame: TopFrame | None) -> tuple[TopView, TopAct | None]:
    act: TopAct = ("resume" if _paused(view.asked, frame) else "pause", view.asked)
    return replace(view, asked=""), act if key in ("y", "Y") else None


def _filter_typed(view: TopView, key: str) -> TopView:
    if key in _ENTER:
        return replace(view, typing=False)
    if key in (_ESCAPE, "\x03", "\x04"):
        return replace(view, typing=False, like="")
    if key in _ERASE:
        return replace(view, like=view.like[:-1])
    return replace(view, like=(view.like + key)[:60]) if key.isprintable() else view


# Seconds between two looks.
EVERY = 2.0
_CLEAR_LINE = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"
_HOME = "\x1b[H"


def top(
    session: Session,
    every: Annotated[float | None, option("--every TIME", "How often to look.", "2s")] = None,
    once: Annotated[bool, option("--once", "Look once, print it and exit.")] = False,
) -> None:
    """Show queues, tasks, workers and the jobs that run longest, and redraw them in place.

    Keys: q quits, p stops and goes on, s sorts tasks by time, starts or failures, space looks now, / filters by name.
    The arrows mark a queue or a running job: Enter says why it waits, P pauses or resumes a queue. Into a pipe it
    prints one line for each look, with --json one document; while the server is away it waits. A stopped display asks
    the server nothing.
    """
    from headrace.cli.top_frame import read_top

    pause = max(0.2, EVERY if every is None else every)
    with session.view(stats=True) as app:
        if once:
            _print_once(session, read_top(app))
        elif session.output.json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _follow(session, app, pause)
        else:
            _Screen(session, app, pause).run()


def _print_once(session: Session, frame: TopFrame) -> None:
    if session.output.json:
        session.output.document(frame.document())
        return
    for line in lines_of(frame, session.output.console().width, 1000, "time"):
        session.output.line(line.rstrip())


def _follow(session: Session, app: Headrace, pause: float) -> NoReturn:
    """A line or a document for each look, until Ctrl-C. An outage of the store is a gap."""
    from headrace.cli.top_frame import read_top

    frame = read_top(app)
    while True:
        session.output.done(summary(frame), frame.document())
        sys.stdout.flush()
        time.sleep(pause)
        frame = _next(app)


def _next(app: Headrace) -> TopFrame:
    from headrace.cli.top_frame import read_top
    from headrace.errors import StoreUnavailable

    while True:
        # A look waits for as long as any call does, and says so.
        with contextlib.suppress(StoreUnavailable):
            return read_top(app)


class _Screen:
    """A terminal that is redrawn until q or Ctrl-C."""

    def __init__(self, session: Session, app: Headrace, pause: float) -> None:
        from headrace.model.hidden_values import Redactor

        self._session = session
        self._app = app
        self._pause = pause
        self._hide = Redactor.of(app.settings).text
        self._view = TopView()
        self._frame: TopFrame | None = None
        self._trouble, self._due = "", 0.0

    def run(self) -> None:
        with _other_screen():
            while True:
                if not self._view.stopped and time.monotonic() >= self._due:
                    self._look()
                shown = self._draw()
                typed = _typed(None if self._view.stopped else max(0.0, self._due - time.monotonic()))
                for key in keys_of(typed):
                    self._view, act = pressed(self._view, key, shown)
                    if act is not None and act[0] == "quit":
                        return
                    if act is not None:
                        self._do(act)

    def _look(self) -> None:
        """Take a new frame; where there is none, keep the last one and say why."""
        from headrace.cli.top_frame import read_top
        from headrace.errors import HeadraceError

        try:
            self._frame, self._trouble = read_top(self._app), ""
        except HeadraceError as error:
            self._trouble = one_line(error)
        self._due = time.monotonic() + self._pause

    def _do(self, act: TopAct) -> None:
        from headrace.errors import HeadraceError

        verb, name = act
        if verb == "look":
            self._due = 0.0
            return
        try:
            note = self._why(verb, name) if verb.startswith("why") else self._operate(verb, name)
        except HeadraceError as error:
            note = [one_line(error)]
        self._view, self._due = replace(self._view, note=tuple(note)), 0.0

    def _why(self, verb: str, name: str) -> list[str]:
        """Why a running job runs on, or why the next job of a queue does not start."""
        if verb == "why queue":
            found = self._app.jobs.page("ready", queue=name, limit=1, order="asc")
            if not found:
                return [f"{one_line(name)} is empty"]
            name = found[0].id
        why = self._app.jobs.why(name)
        reasons = (f"  {reason.code}: {reason.sentence}" for reason in why.reasons)
        return [one_line(self._hide(line)) for line in (f"{why.id} is {why.state}", *reasons)]

    def _operate(self, verb: str, name: str) -> list[str]:
        with self._session.acting(verb, "queues", name, view=True) as (app, act):
            queue = app.queues[name]
            queue.pause() if verb == "pause" else queue.resume()
            act.reply = f"{name} is paused" if verb == "pause" else f"{name} is served again"
        return [one_line(act.reply)]

    def _draw(self) -> TopFrame | None:
        """Draw; what is shown, of which a row may be marked."""
        view, shown = self._view, None
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        above = [view.head, *([f"! {self._trouble}"] if self._trouble else []), *view.note]
        body = [*above, *filter(None, [question(view, self._frame)])]
        if self._frame is not None:
            shown = cut_to(view.filtered(self._frame), rows - len(body), SORTS[view.sort])
            marked = view.mark[1] if view.mark else ""
            body += lines_of(shown, columns, rows - len(body), SORTS[view.sort], marked)
        text = "\n".join(line[:columns] + _CLEAR_LINE for line in body[:rows])
        print(_HOME + text + _CLEAR_BELOW, end="", flush=True)
        return shown


@contextlib.contextmanager
def _other_screen() -> Generator[None]:
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


def _typed(wait: float | None) -> str:
    """What was typed within so many seconds; empty: nothing."""
    ready, _, _ = select.select([sys.stdin], [], [], wait)
    # A terminal that is gone is readable and has nothing.
    return (os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace") or "q") if ready else ""
