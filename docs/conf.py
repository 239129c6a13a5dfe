"""The documentation as a site: the pages of this directory, and a reference that is made from the docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Headrace"
copyright = "the Headrace authors"  # noqa: A001 - Sphinx calls it so
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
# Pages link to each other's headings as they do where the repository is read.
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
# How an object is made is said by the verb that makes it; where users make it themselves, by __init__.
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Cost", "notes_style")]
html_theme = "furo"
html_title = f"Headrace {version}"


def cost_apart(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Give a cost at the end of a sentence a paragraph: napoleon takes what stands before a colon for a type."""
    found: list[str] = []
    for line in lines:
        text, mark, cost = line.partition(" Cost: ")
        found += [text, "", f"Cost: {cost}"] if mark and text.strip() else [line]
    lines[:] = found


def not_for_users(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:  # noqa: ARG001 - Sphinx calls it so
    """Leave out how an object is made where a verb makes it: ``Use task.enqueue(...)``."""
    text = getattr(value, "__doc__", None) or ""
    # What a record has there is Python's text.
    return True if name == "__init__" and (text.startswith(("Use ", "Initialize self")) or not text) else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", not_for_users)
    app.connect("autodoc-process-docstring", cost_apart, priority=400)
