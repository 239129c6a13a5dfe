"""The documentation as a site: the pages of this directory, and a reference that is made from the docstrings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

from headrace import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Headrace"
copyright = "the Headrace authors"  # noqa: A001 - Sphinx calls it so
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
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
# A reader copies commands without their prompt and without what they print.
copybutton_prompt_text = "$ "

# What stands behind the language of a block says what the block is, and Sphinx drops it.
CAPTIONS = {"console worker": "Worker, in a terminal of its own", "text output": "Output"}
FENCE = re.compile(r"^( *)```(\w+) ([\w./-]+)$", re.MULTILINE)
CHANGES = Path(__file__).parent.parent / "CHANGELOG.md"
# Where `llms.txt` begins; each page of these groups follows, with its title and its first sentence.
SUMMARY = "Background jobs and workflows for Python on Redis or Valkey. Jobs survive crashes of workers."
GROUPS = {"": "Learn and guides", "learn": "Learn", "moving": "Move over", "reference": "Reference", "design": "Design"}


def captioned(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx calls it so
    """Give each block its file name, and the page of changes the text of CHANGELOG.md."""
    if name == "changelog":
        source[0] = CHANGES.read_text().replace("](docs/", "](")
    source[0] = FENCE.sub(
        lambda found: (
            f"{found[1]}```{{code-block}} {found[2]}\n{found[1]}:caption: "
            f"{CAPTIONS.get(f'{found[2]} {found[3]}', found[3])}\n"
        ),
        source[0],
    )


def list_pages(app: Sphinx, error: Exception | None) -> None:
    """Write ``llms.txt``: each page with its title, address and first sentence, for programs that read the site."""
    if error is not None or app.builder.format != "html":
        return
    pages: dict[str, list[str]] = {}
    for name in sorted(app.env.all_docs):
        folder = name.rpartition("/")[0]
        if folder in GROUPS and name != "index":
            page = f"- [{app.env.titles[name].astext()}]({name}.html): {_first_sentence(app.env.get_doctree(name))}"
            pages.setdefault(GROUPS[folder], []).append(page.rstrip(": "))
    parts = [f"## {group}\n\n" + "\n".join(pages[group]) for group in GROUPS.values() if group in pages]
    (Path(app.outdir) / "llms.txt").write_text("\n\n".join(["# Headrace", f"> {SUMMARY}", *parts]) + "\n")


def _first_sentence(page: nodes.document) -> str:
    text = next((one.astext() for one in page.findall(nodes.paragraph)), "")
    return " ".join(text.split()).partition(". ")[0].rstrip(".:")


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
    app.connect("source-read", captioned)
    app.connect("build-finished", list_pages)
    app.connect("autodoc-skip-member", not_for_users)
    app.connect("autodoc-process-docstring", cost_apart, priority=400)
