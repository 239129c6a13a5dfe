"""SVG elements as text, with every attribute and text escaped in one place."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headrace.picture import theme
from headrace.picture.view import cells

# Advance of a character in the widest of the fonts that are asked for, as a share of the size: labels stay in boxes.
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
ADVANCE = 0.605

Value = str | float


def tag(name: str, *inside: str, **attributes: Value) -> str:
    """One element. ``inside`` is markup already; in names of attributes an underscore stands for a hyphen."""
    head = "".join(f' {key.strip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{head}>{''.join(inside)}</{name}>" if inside else f"<{name}{head}/>"


def words(text: str, x: float, y: float, size: float = 13, fill: str = theme.INK, **attributes: Value) -> str:
    """A line of text, escaped."""
    return tag("text", escape(text), x=x, y=y, font_size=size, fill=fill, **attributes)


def line(path: str, stroke: str = theme.LINE, **attributes: Value) -> str:
    return tag("path", d=path, fill="none", stroke=stroke, **attributes)


def icon(look: theme.Look, x: float, y: float) -> str:
    """A state's icon with its upper left corner there; nothing where the state has none."""
    if not look.icon:
        return ""
    place = f"translate({number(x)} {number(y)})"
    return line(
        look.icon, look.line, transform=place, stroke_width=1.8, stroke_linecap="round", stroke_linejoin="round"
    )


def dashes(pattern: str) -> dict[str, str]:
    return {"stroke_dasharray": pattern} if pattern else {}


def text_width(text: str, size: float) -> float:
    return cells(text) * size * ADVANCE


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def points(values: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{number(x)} {number(y)}" for x, y in values)


def _value(value: Value) -> str:
    return escape(value) if isinstance(value, str) else number(value)
