"""A program of a Django project in a process that a nursery forked: Django and Headrace are imported, and not set up."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.nursery import ROOT


def main() -> int:
    """Run the file that is named first, such as ``manage.py``, as Python does."""
    del sys.argv[0]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    exec(compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec"), {"__name__": "__main__"})
    return 0
