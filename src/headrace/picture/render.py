"""Which form a picture takes, and the one way to draw one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal, get_args

from headrace.errors import PictureError
from headrace.picture import dot, mermaid, svg, text
from headrace.picture.maps import together_by_map
from headrace.picture.view import MOST, View, clean
from headrace.picture.view import collapse as together

Form = Literal["svg", "dot", "mermaid", "text"]
FORMS: tuple[str, ...] = get_args(Form)
ENDINGS = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid", ".mermaid": "mermaid", ".txt": "text"}


def render(
    view: View, form: str, *, collapse: bool | None = None, width: int = 100, links: Mapping[int, str] | None = None
) -> str:
    """Draw a workflow. The same view gives the same text.

    Args:
        form: ``svg``, ``dot``, ``mermaid`` or ``text``. Only ``svg`` needs the extra ``viz``.
        collapse: draw wide fan-outs of alike nodes as one box that says how many are in which state. None: if there
            are more than 200 boxes. A map is one box in any case, unless this is False. DOT, which is for other
            programs, stays whole unless this is True.
        width: columns that a text may take.
        links: where each box leads, by its number, which makes an SVG part of a page: without background and title.

    Raises:
        PictureError: an unknown form, or an SVG of more boxes than anybody can read.
        MissingExtra: SVG without the extra ``viz``.
    """
    if form not in FORMS:
        raise PictureError(f"there is no form {form!r}: a picture is {', '.join(FORMS[:-1])} or {FORMS[-1]}")
    whole = form == "dot" if collapse is None else not collapse
    view = clean(view) if whole else boxes_of(view, collapse=bool(collapse))
    match form:
        case "svg":
            return svg.render(view, links)
        case "dot":
            return dot.render(view)
        case "mermaid":
            return mermaid.render(view)
        case _:
            return text.render(view, width)


def boxes_of(view: View, *, collapse: bool = False) -> View:
    """The boxes that are drawn: a map is one, and so are alike nodes if there are many or the caller says so."""
    view = clean(together_by_map(view))
    return together(view) if collapse or len(view.nodes) > MOST else view


def form_of(path: str | PurePath) -> str:
    """The form that a file's ending asks for.

    Raises:
        PictureError: none does.
    """
    ending = PurePath(path).suffix.lower()
    if ending not in ENDINGS:
        raise PictureError(f"{str(path)!r} does not say which form it is: end it in {', '.join(ENDINGS)}")
    return ENDINGS[ending]
