"""What a person does in ``headrace top``: filter, mark, ask why, pause. Pure: keys in, a view and an act out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from headrace.cli.top_lines import SORTS

if TYPE_CHECKING:
    from headrace.cli.top_frame import TopFrame

# What a mark is on: a queue by its name, a running job by its id.
Mark: TypeAlias = tuple[Literal["queue", "job"], str]
# What is to be done beside drawing: leave, look at the store now, say why a job does not run, pause or resume a queue.
TopAct: TypeAlias = tuple[Literal["quit", "look", "why job", "why queue", "pause", "resume"], str]

_MOVES = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1}
_ENTER, _ERASE, _ESCAPE, _ENDS = ("\r", "\n"), ("\x7f", "\b"), "\x1b", ("q", "Q", "\x03", "\x04")


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
        return _typed(view, key), None
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


def _typed(view: TopView, key: str) -> TopView:
    if key in _ENTER:
        return replace(view, typing=False)
    if key in (_ESCAPE, "\x03", "\x04"):
        return replace(view, typing=False, like="")
    if key in _ERASE:
        return replace(view, like=view.like[:-1])
    return replace(view, like=(view.like + key)[:60]) if key.isprintable() else view
