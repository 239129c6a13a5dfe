"""What the images of a worker, one after the other, know of each other, and the word that a new one says.

An *image* is a supervisor with everything that it forked, from one interpreter that imported the application once.
What follows from a word is decided in handover.py.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.model.options import Kind
from headrace.worker.reload.image_launch import VARIABLE, Words


class Works(Protocol):
    """The image that a lineage belongs to, seen from there."""

    def retire(self) -> None:
        """Another image claims: finish what runs here."""
        ...

    def asked_to_stop(self) -> None: ...

    def resize(self, kind: Kind, size: int) -> None:
        """Run so many of a kind at once, as the image before this one did."""
        ...

    def grow(self, by: int) -> None:
        """Run so many more at once, or fewer."""
        ...


class Heir:
    """The lineage of an image that another process started, and watches: what ``Succession`` is to the first one.

    The end of that process is an orderly stop: whoever restarts the worker starts a whole one.

    Attributes:
        first: nothing worked before it.
        early: hang-ups that came before it could hear them.
    """

    next = float("inf")

    def __init__(self, link: Words, *, first: bool) -> None:
        self.link = link
        self.first = first
        self._claims = False
        self.early: Sequence[int] = ()

    def tick(self, now: float) -> None:
        """Nothing here is due at a time."""

    def join(self, selector: selectors.BaseSelector, works: Works) -> None:
        def heard() -> None:
            words, open_ = self.link.hear()
            for word in words:
                match word:
                    case ["size", ("process" | "fork" | "thread" | "async") as kind, int(size)]:
                        works.resize(kind, size)
                    case ["grow", int(by)]:
                        works.grow(by)
                    case _:
                        pass
            if not open_:
                selector.unregister(self.link)
                works.asked_to_stop()

        selector.register(self.link, selectors.EVENT_READ, heard)
        # Sizes were said at the start: nothing is forked yet, and so no runner in vain.
        heard()
        if self.early:
            self.hung_up()

    def links(self) -> list[socket.socket]:
        return [self.link.sock]

    def hung_up(self) -> None:
        # Somebody took this process for the worker.
        self.link.say("roll")

    def claims(self) -> None:
        self._claims = True
        self.link.say("claims")

    def failed(self, reason: str) -> bool:
        """Whether the image is to stop: it has not claimed, so the one before it goes on."""
        if not self._claims:
            self.link.say("failed", reason)
        return not self._claims

    def resized(self, kind: Kind, size: int) -> None:
        self.link.say("size", kind, size)

    def grow(self, by: int) -> None:
        self.link.say("grow", by)

    def stop(self, *, again: bool) -> None:
        """Whoever watches this image hears of its end, and of no more."""

    def reaped(self, pid: int, status: int) -> None:
        """A stranger that was left to this process."""


def heir_of(environ: MutableMapping[str, str]) -> Heir | None:
    """What the process that started this image left in ``environ``, taken out of it; None: nobody did."""
    number, _, first = environ.pop(VARIABLE, "").partition(":")
    if not number.isdecimal():
        return None
    try:
        sock = socket.socket(fileno=int(number))
    except OSError:
        return None
    sock.set_inheritable(False)
    return Heir(Words(sock), first=bool(first))


def application_files(modules: Iterable[Any]) -> list[str]:
    """Files of imported modules that are neither Python's nor installed: what somebody may be editing."""
    installed = {"site-packages", "dist-packages", "lib-dynload"}
    library = Path(os.__file__).parent
    found: set[str] = set()
    for module in modules:
        text = getattr(module, "__file__", None)
        if isinstance(text, str):
            path = Path(text)
            if not installed.intersection(path.parts) and library not in path.parents:
                found.add(str(path))
    return sorted(found)
