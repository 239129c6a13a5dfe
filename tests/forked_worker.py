"""``headrace worker`` in a process that a nursery forked: all is as in an interpreter of its own, but that Headrace is
imported already.

The command reads its options and would become another program, which begins with an empty memory. Here it goes on in
this one. Tests of what that changes start interpreters (``Program(..., own=True)``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import headrace.cli
from headrace.cli import worker_process
from tests.nursery import ROOT

_EXECVE = os.execve


class _BecomesWorkerError(BaseException):
    """The command has read its options; past all that answers errors."""


def main() -> int:
    """Be the command, then the worker; the exit code."""
    words = sys.argv[1:]
    sys.argv = ["headrace", *words]
    sys.orig_argv = [sys.executable, "-m", "headrace", *words]
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]
    os.execve = _execve  # type: ignore[assignment]
    with contextlib.suppress(_BecomesWorkerError):
        headrace.cli.main()
    # Past the exception, which no error of a job is to name as what it came of.
    return worker_process.main()


def _execve(path: str, words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    os.execve = _EXECVE
    if "headrace.cli.worker_process" not in words:
        os.execve(path, words, environ)  # type: ignore[arg-type]
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [str(worker_process.__file__), *words[words.index("headrace.cli.worker_process") + 1 :]]
    sys.orig_argv = list(words)
    raise _BecomesWorkerError
