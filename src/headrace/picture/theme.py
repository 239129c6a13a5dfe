"""How each state looks: a colour, and an icon that tells the state without the colour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Look:
    """One state's look.

    Attributes:
        fill, line: colours of box and border; the tints differ in lightness too, for those who see few hues.
        glyph: one character for terminals, of width one in every font that has it.
        icon: SVG path in a square of 12, stroked and not filled; empty: none.
        dashed: the border is broken: nothing has happened here yet, and maybe never will.
    """

    fill: str
    line: str
    glyph: str = " "
    icon: str = ""
    dashed: bool = False


_CLOCK = "M6 1.5a4.5 4.5 0 1 0 .01 0M6 3.5V6l2 1.5"
LOOKS = {
    "succeeded": Look("#cfeadd", "#00734f", "✓", "M1.5 6.5 4.5 9.5 10.5 2.5"),
    "running": Look("#cfe4f7", "#0062a8", "▶", "M3 1.5 10 6 3 10.5z"),
    "ready": Look("#eef5fb", "#4a7fa8", "○", "M6 2a4 4 0 1 0 .01 0"),
    "scheduled": Look("#e9e4f5", "#66529c", "◷", _CLOCK),
    "blocked": Look("#f4f5f6", "#8a929a", "·", "M3 6h.01M6 6h.01M9 6h.01", dashed=True),
    "parked": Look("#f2e6ee", "#96507c", "‖", "M4 2v8M8 2v8"),
    "stopped": Look("#e3e5e8", "#4f5963", "■", "M2.5 2.5h7v7h-7z"),
    "skipped": Look("#fafafa", "#8a929a", "»", "M2 2 6 6 2 10M6.5 2l4 4-4 4", dashed=True),
    "cancelled": Look("#f8ecc2", "#806000", "⊘", "M6 1.5a4.5 4.5 0 1 0 .01 0M3 9 9 3"),
    "failed": Look("#f9cfbb", "#b02f00", "✗", "M2 2 10 10M10 2 2 10"),
    "quarantined": Look("#e8a49a", "#7c1409", "!", "M6 1.5V7M6 10v.01"),
}
PLAIN = Look("#ffffff", "#57606a")

INK = "#1f2328"
FAINT = "#57606a"
STRUCK = "#8f2700"
LINE = "#6e7781"


def look(state: str) -> Look:
    return LOOKS.get(state, PLAIN)
