"""A program of a test, in a process that a nursery forked: all is as with ``python -W error``."""

from __future__ import annotations

import runpy
import sys
import warnings


def main() -> int:
    """Run the file that the first argument names; the others are its own."""
    warnings.simplefilter("error")
    sys.argv[:] = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0
