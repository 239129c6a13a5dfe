"""Looking at processes that may end at any moment: whoever has ended does not live, and has nothing below it."""

from __future__ import annotations

import contextlib

import psutil


def lives(process: psutil.Process | int) -> bool:
    """Whether it runs still: as itself, not as a reused number, and not as a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def below(process: psutil.Process | int, *, recursive: bool = True) -> list[psutil.Process]:
    """The living processes below it; none once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process) if isinstance(process, int) else process
        return [child for child in process.children(recursive=recursive) if lives(child)]
    return []
