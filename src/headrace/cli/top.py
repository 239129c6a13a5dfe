"""``headrace top``: what goes on, in a terminal that is redrawn in place; or a line, or a document, for each look."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, NoReturn

from msgspec.structs import replace

from headrace.cli.flags import option
from headrace.cli.output import one_line
from headrace.cli.session import Session
from headrace.cli.top_lines import SORTS, cut_to, lines_of, summary
from headrace.cli.top_view import TopAct, TopView, keys_of, pressed, question

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.cli.top_frame import TopFrame

# Seconds between two looks.
EVERY = 2.0
_CLEAR_LINE, _CLEAR_BELOW, _HOME = "\x1b[K", "\x1b[J", "\x1b[H"


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

        self._session, self._app, self._pause = session, app, pause
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
