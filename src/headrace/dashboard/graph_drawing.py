"""Graphs of workflows, laid out in a process of their own: a large one must hold up no other page.

Owns the pictures of the last few graphs; the same graph is not laid out twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Mapping

import msgspec
from markupsafe import Markup

from headrace.errors import PictureError
from headrace.picture import View, ViewNode, render

# Seconds that one layout may take, and pictures that are kept.
PATIENCE, KEPT = 5.0, 32


class Asked(msgspec.Struct, frozen=True):
    """What the other process is sent: a view, and where each box leads."""

    title: str
    nodes: list[ViewNode]
    edges: list[tuple[int, int, str]]
    links: dict[int, str]


class Drawer:
    """Draws one graph at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Markup] = OrderedDict()
        self._lock = asyncio.Lock()

    async def draw(self, view: View, links: Mapping[int, str]) -> Markup:
        """The picture as an SVG element whose colours are the stylesheet's.

        Raises:
            PictureError: it has too many boxes, or cannot be laid out here.
            TimeoutError: it took longer than ``PATIENCE``.
        """
        asked = msgspec.msgpack.encode(Asked(view.title, view.nodes, view.edges, dict(links)))
        async with self._lock:
            if asked not in self._kept:
                self._kept[asked] = await _elsewhere(asked)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(asked)
            return self._kept[asked]


async def _elsewhere(asked: bytes) -> Markup:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.dashboard.graph_drawing", stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(PATIENCE):
            drawn, said = await process.communicate(asked)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise PictureError(said.decode("utf-8", "replace").strip().splitlines()[-1] if said else "it cannot be drawn")
    # Made of escaped texts by headrace.picture.
    return Markup(drawn.decode())  # noqa: S704


def main() -> int:
    """Draw what stands on standard input."""
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Asked)
    try:
        text = render(View(asked.title, asked.nodes, asked.edges), "svg", links=asked.links)
    except Exception as error:  # noqa: BLE001 - the page says why, whatever it is
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
