"""Ids of new jobs, drawn ahead. Owns what is drawn and not given out."""

from __future__ import annotations

import os
import time
from collections import deque

from headrace.model.ids import id_at, make_tail

# Drawn ahead, since asking the kernel for each id is a third of what an id costs. A child draws its own.
_drawn: deque[str] = deque()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_drawn.clear)


def new_id() -> str:
    """An id that no other process draws. Cost: none."""
    try:
        tail = _drawn.pop()
    except IndexError:
        # Not the random module: a program that seeds it, as simulations do, would make the same ids twice.
        dice = os.urandom(7 * 64)
        tails = [make_tail(int.from_bytes(dice[n : n + 7]) >> 1) for n in range(0, 7 * 64, 7)]
        tail = tails.pop()
        _drawn.extend(tails)
    return id_at(time.time_ns() // 1_000_000, tail)
