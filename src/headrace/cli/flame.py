"""Samples of stacks as a picture: a flame graph, or what speedscope reads. Pure: text in, text out.

A sample is a stack with a weight. A flame graph lays equal callers on top of each other: each box is a function, as
wide as its share of all samples, and what it called stands below it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import msgspec

Stack = tuple[str, ...]

WIDTH, ROW, HEAD = 1200, 17, 44
# Narrower boxes (in user units) are not drawn: nobody could see them.
NARROWEST = 0.3
GLYPH = 6.6


def parse(folded: str) -> dict[Stack, int]:
    """Samples of lines like ``main (app.py:3);work (app.py:9) 42``, the outermost caller first."""
    found: dict[Stack, int] = {}
    for line in folded.splitlines():
        frames, _, count = line.rpartition(" ")
        if frames and count.isdecimal():
            stack = tuple(frames.split(";"))
            found[stack] = found.get(stack, 0) + int(count)
    return found


def merge(several: Iterable[dict[Stack, int]]) -> dict[Stack, int]:
    """The samples of all of them."""
    found: dict[Stack, int] = {}
    for one in several:
        for stack, count in one.items():
            found[stack] = found.get(stack, 0) + count
    return found


def without(samples: dict[Stack, int], leaves: tuple[str, ...]) -> dict[Stack, int]:
    """The samples whose innermost frame holds none of ``leaves``."""
    return {stack: count for stack, count in samples.items() if not any(word in stack[-1] for word in leaves)}


def trim(samples: dict[Stack, int], before: tuple[str, ...]) -> dict[Stack, int]:
    """The samples from after the last frame whose name holds one of ``before``."""

    def cut(stack: Stack) -> Stack:
        last = max((n for n, frame in enumerate(stack) if any(word in frame for word in before)), default=-1)
        return stack[last + 1 :] or stack[-1:]

    return merge({cut(stack): count} for stack, count in samples.items())


def speedscope(samples: dict[Stack, int], title: str, rate: int) -> str:
    """The samples as a file of https://www.speedscope.app, which also works without a network.

    Args:
        rate: samples a second.
    """
    frames: dict[str, int] = {}
    stacks = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in samples]
    weights = [count / rate for count in samples.values()]
    profile = {
        "type": "sampled", "name": title, "unit": "seconds", "startValue": 0, "endValue": sum(weights),
        "samples": stacks, "weights": weights,
    }  # fmt: skip
    document: dict[str, Any] = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": title,
        "exporter": "headrace",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [profile],
    }
    return msgspec.json.encode(document).decode() + "\n"


@dataclass(slots=True)
class Box:
    """A function at one place of the graph: its samples, and what it called."""

    name: str
    count: int = 0
    below: dict[str, Box] = field(default_factory=dict[str, "Box"])


def tree(samples: dict[Stack, int]) -> Box:
    """The samples as a tree, whose root stands for all."""
    root = Box("all")
    for stack, count in samples.items():
        root.count += count
        box = root
        for frame in stack:
            box = box.below.setdefault(frame, Box(frame))
            box.count += count
    return root


def svg(samples: dict[Stack, int], title: str) -> str:
    """The samples as a flame graph, callers above what they called.

    A click on a box gives it the whole width, one on ``all`` takes that back; ``/`` marks what matches a pattern.
    """
    root = tree(samples)
    rows = list(_rows(root, 0, 0.0, WIDTH / max(1, root.count)))
    height = HEAD + ROW * (1 + max((depth for _, depth, _, _ in rows), default=0)) + 8
    boxes = "\n".join(_box(box, depth, x, width, root.count) for box, depth, x, width in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="100%" height="100%" fill="#fffdf8"/>\n'
        f'<text x="8" y="18" font-size="14" font-weight="bold">{escape(title)}</text>\n'
        f'<text id="said" x="8" y="35" fill="#555">{root.count:,} samples; click: widen; /: find</text>\n'
        f"{boxes}\n<script><![CDATA[{_SCRIPT}]]></script>\n</svg>\n"
    )


def _rows(box: Box, depth: int, x: float, scale: float) -> Iterator[tuple[Box, int, float, float]]:
    waiting = [(box, depth, x)]
    while waiting:
        here, level, left = waiting.pop()
        width = here.count * scale
        if width < NARROWEST:
            continue
        yield here, level, left, width
        for child in sorted(here.below.values(), key=lambda one: one.name):
            waiting.append((child, level + 1, left))
            left += child.count * scale


def _box(box: Box, depth: int, x: float, width: float, total: int) -> str:
    share = f"{box.name}: {box.count:,} samples, {100 * box.count / max(1, total):.1f} %"
    room = int((width - 6) / GLYPH)
    shown = box.name if len(box.name) <= room else f"{box.name[: room - 1]}…" if room > 3 else ""
    y = HEAD + ROW * depth
    return (
        f'<g class="b" data-x="{x:.2f}" data-w="{width:.2f}" data-n="{escape(box.name)}"><title>{escape(share)}</title>'
        f'<rect x="{x:.2f}" y="{y}" width="{max(0.2, width - 0.6):.2f}" height="{ROW - 1}" rx="2" '
        f'fill="{_colour(box.name)}"/>'
        f'<text x="{x + 3:.2f}" y="{y + 12}">{escape(shown)}</text></g>'
    )


def _colour(name: str) -> str:
    """The same for the same file, so that the application's own code stands out from what it uses."""
    file = name.rpartition("(")[2].partition(":")[0] if "(" in name else name
    return f"hsl({zlib.crc32(file.encode()) % 360} 62% 76%)"


_SCRIPT = """
const boxes = [...document.querySelectorAll("g.b")], said = document.getElementById("said"), first = said.textContent;
const glyph = 6.6, whole = 1200;
function fit(g, x, w) {
  const rect = g.querySelector("rect"), text = g.querySelector("text"), room = Math.floor((w - 6) / glyph);
  const name = g.dataset.n;
  rect.setAttribute("x", x); rect.setAttribute("width", Math.max(0.2, w - 0.6)); text.setAttribute("x", x + 3);
  text.textContent = name.length <= room ? name : room > 3 ? name.slice(0, room - 1) + "…" : "";
}
function widen(to) {
  const left = +to.dataset.x, width = +to.dataset.w, scale = whole / width;
  for (const g of boxes) {
    const x = +g.dataset.x, w = +g.dataset.w;
    const from = Math.max(x, left), until = Math.min(x + w, left + width);
    g.style.display = until - from > 0.001 ? "" : "none";
    fit(g, (from - left) * scale, (until - from) * scale);
  }
}
for (const g of boxes) {
  g.style.cursor = "pointer";
  g.addEventListener("click", () => widen(g));
  g.addEventListener("mouseenter", () => { said.textContent = g.querySelector("title").textContent; });
  g.addEventListener("mouseleave", () => { said.textContent = first; });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "/") return;
  event.preventDefault();
  const words = prompt("mark functions whose name holds");
  for (const g of boxes) {
    const found = words && g.dataset.n.toLowerCase().includes(words.toLowerCase());
    g.querySelector("rect").setAttribute("stroke", found ? "#c0007a" : "none");
    g.querySelector("rect").setAttribute("stroke-width", found ? 2 : 0);
  }
});
"""
