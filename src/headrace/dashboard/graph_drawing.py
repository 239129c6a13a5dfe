"""Graphs of workflows, laid out in a process of their own: a large one must hold up no other page.

Owns the last few pictures. A graph that is as it was is not drawn again, and one that changes only so often that
drawing takes a small part of the time.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping

import msgspec
from markupsafe import Markup

from headrace.errors import PictureError
from headrace.picture import View
from headrace.picture.layout import SECONDS

# Seconds that a layout may take altogether, on a machine that has much else to do.
PATIENCE = 30.0
# Seconds that a page waits for a picture, and pictures that are kept.
WAITS = 2.0
KEPT = 32
# How long a picture stays while its graph changes: seconds at least, and as a multiple of what it took to draw.
STAYS = 10.0
TIMES = 10


class Drawing(msgspec.Struct, frozen=True):
    """A picture, or why there is none.

    Attributes:
        asked: what was to be drawn.
        picture: an SVG element whose colours are the stylesheet's; None: there is none.
        problem: why.
        until: monotonic seconds; until then it stays, whatever changed.
    """

    asked: bytes
    picture: Markup | None
    problem: str
    until: float


class Drawer:
    """Draws one graph at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Drawing] = OrderedDict()
        self._drawing: dict[str, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()

    async def draw(self, name: str, view: View, links: Mapping[int, str]) -> Drawing:
        """The picture of a graph as it is, or was a short while ago; ``name`` tells it from others."""
        asked = msgspec.json.encode({"title": view.title, "nodes": view.nodes, "edges": view.edges, "links": links})
        kept = self._kept.get(name)
        if kept is None or (time.monotonic() > kept.until and (kept.asked != asked or kept.picture is None)):
            if name not in self._drawing:
                self._drawing[name] = asyncio.ensure_future(self._draw(name, asked))
            await asyncio.wait([self._drawing[name]], timeout=WAITS)
        return self._kept.get(name) or Drawing(asked, None, "it is being laid out, and comes in a moment", 0)

    async def _draw(self, name: str, asked: bytes) -> None:
        try:
            async with self._lock:
                self._kept[name] = await _drawn(asked)
                self._kept.move_to_end(name)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        finally:
            del self._drawing[name]


async def _drawn(asked: bytes) -> Drawing:
    began, picture, problem = time.monotonic(), None, ""
    try:
        picture = await _elsewhere(asked)
    except TimeoutError:
        problem = f"its layout took more than {SECONDS} s"
    except (PictureError, OSError) as error:
        problem = str(error)
    now = time.monotonic()
    return Drawing(asked, picture, problem, now + max(STAYS, TIMES * (now - began)))


async def _elsewhere(asked: bytes) -> Markup:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.picture", stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(PATIENCE):
            drawn, said = await process.communicate(asked)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        raise TimeoutError
    if process.returncode:
        raise PictureError(said.decode("utf-8", "replace").strip().splitlines()[-1] if said else "it cannot be drawn")
    # Made of escaped texts by headrace.picture.
    return Markup(drawn.decode())  # noqa: S704
