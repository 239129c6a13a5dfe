"""What to write instead of an option that there is not, or that stands at the wrong place. Pure."""

from __future__ import annotations

import difflib

from headrace.model import elsewhere
from headrace.model.options import ROWS, TASK_ONLY


def misplaced(task: str, name: str, value: object) -> str:
    """What an error adds where an option was given to ``enqueue`` as an argument; empty where it is none."""
    if name in ROWS:
        return f"; as an option of the job: {task}.options({name}={value!r:.40}).enqueue(...)"
    return f"; as an option, {elsewhere.OPTIONS[name]}" if name in elsewhere.OPTIONS else ""


def instead(name: str) -> str:
    """What to write for an option that does not exist."""
    if name in elsewhere.OPTIONS:
        return elsewhere.OPTIONS[name]
    known = [*ROWS, *sorted(TASK_ONLY)]
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(known)}"
