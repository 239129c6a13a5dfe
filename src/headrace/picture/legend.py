"""The lines below an SVG picture that say what its colours and its kinds of edges mean, as far as it has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.picture import theme
from headrace.picture.markup import dashes, icon, line, tag, text_width, words
from headrace.picture.view import View, tally

DASHES = {"continue": "6 4", "skip": "2 3", "undo": "8 3 1.5 3", "after": "12 4"}
MEANING = {
    "stop": "runs if the first succeeded",
    "continue": "runs however the first ended",
    "skip": "is skipped unless the first succeeded",
    "undo": "undoes the first after a failure",
    "after": "is called at the end",
}
ROW = 22
SIZE = 12


@dataclass(frozen=True, slots=True)
class LegendNote:
    """One sign and what it means; ``edge`` tells a policy from a state."""

    name: str
    text: str
    edge: bool = False

    @property
    def width(self) -> float:
        return 62 + text_width(self.text, SIZE)


def notes(view: View, policies: Collection[str]) -> list[LegendNote]:
    """States with how many nodes are in each, and policies if there is more than the plain one."""
    states = [LegendNote(state, f"{state} {count}" if count else state) for state, count in tally(view.nodes)]
    used = [policy for policy in MEANING if policy in policies]
    return states + ([LegendNote(policy, MEANING[policy], edge=True) for policy in used] if used != ["stop"] else [])


def rows(notes: Sequence[LegendNote], width: float) -> list[tuple[float, float]]:
    """Place of each note, as many in a row as fit; the last one's row is the lowest."""
    places: list[tuple[float, float]] = []
    x, y = 0.0, 0.0
    for note in notes:
        if x and x + note.width > width:
            x, y = 0.0, y + ROW
        places.append((x, y))
        x += note.width
    return places


def draw(note: LegendNote, x: float, y: float) -> str:
    if note.edge:
        dash = dashes(DASHES.get(note.name, ""))
        sign = line(f"M{x:.1f} {y:.1f}h28", stroke_width=1.3, marker_end="url(#tip)", **dash)
    else:
        look = theme.look(note.name)
        style = dashes("4 3" if look.dashed else "")
        sign = tag("rect", x=x, y=y - 9, width=28, height=18, rx=4, fill=look.fill, stroke=look.line, **style)
        sign += icon(look, x + 8, y - 6)
    kind = "legend" if note.edge else f"legend s-{note.name}"
    return tag("g", sign, words(note.text, x + 36, y + 4, SIZE, theme.FAINT), class_=kind)
