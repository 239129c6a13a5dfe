"""Runs what blocks beside an event loop, also in the exit hooks of a program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(act: Callable[[], T]) -> T:
    """Run it in a thread, so that the event loop is free; in an exit hook, which gets no thread any more, here."""
    if threading.main_thread().is_alive():
        return await asyncio.to_thread(act)
    return act()
