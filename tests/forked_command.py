"""A command of ``headrace`` in a process that a nursery forked: all is as in an interpreter of its own, but that Headrace
is imported already."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import headrace.cli
from tests.nursery import ROOT


def main() -> int:
    """Be the command, once the prelude has run; the process ends here, since there is nothing of the nursery's to tidy
    up."""
    code: Any = 99
    _, prelude, *words = sys.argv
    sys.argv = ["headrace", *words]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    try:
        exec(prelude, {})
        headrace.cli.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - a fault of the prelude or of ours, which would else be silent
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(int(code or 0))
