"""``python -m headrace.picture``: draw the view on standard input, as JSON, as SVG for a page. The dashboard starts it.

A program of its own since a layout may take seconds. It imports nothing but what draws: all else costs each picture.
"""

from __future__ import annotations

import json
import resource
import sys

from headrace.picture.render import render
from headrace.picture.svg import SECONDS
from headrace.picture.view import View, ViewNode


def main() -> int:
    """Draw what ``title``, ``nodes``, ``edges`` and ``links`` say; 1, and why on stderr, where it cannot."""
    asked = json.loads(sys.stdin.buffer.read())
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    view = View(asked["title"], [ViewNode(**node) for node in asked["nodes"]], asked["edges"])
    try:
        text = render(view, "svg", links={int(number): link for number, link in asked["links"].items()})
    except Exception as error:  # noqa: BLE001 - the page says why, whatever it is
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
