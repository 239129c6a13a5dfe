"""Stacks of runners: how a thread's is written, and told from what else a process writes. Pure."""

from __future__ import annotations

import re
from types import FrameType

import msgspec

# Bytes of all stacks of a worker, and characters of one runner's.
MOST, MOST_EACH = 60_000, 12_000

# Frames of a thread that are written; faulthandler's own bound.
MOST_FRAMES = 100

# As faulthandler writes them; a name of a file may be anything, its line and function end the line.
_HEAD = re.compile(
    rb"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):\n|Stack \(most recent call first\):\n"
)
_FRAME = re.compile(rb'  File "[^\n]*", line [0-9?]+ in [^\n]*\n|  (\.\.\.|<[^\n]*>)\n|  Extension modules: [^\n]*\n')


class RunnerStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks of one runner.

    Attributes:
        kind, place, pid: which runner; place: its number among those of its kind, -1: it leaves.
        job, task: what it runs, or the oldest of several; empty: it is idle.
        text: a stack for each thread, as the interpreter writes it, innermost frame first; empty: it did not answer.
    """

    kind: str
    place: int
    pid: int
    job: str
    task: str
    text: str


class WorkerStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks of a worker's runners, in answer to one request or to several that came at once.

    Attributes:
        requests: the names of the requests.
        runners: each of them, at most as many as a heartbeat tells of.
    """

    requests: list[str]
    runners: list[RunnerStacks]


def stack(thread: int, frame: FrameType | None) -> bytes:
    """The stack of a thread as ``faulthandler`` writes it, innermost frame first."""
    lines = [f"Thread 0x{thread:016x} (most recent call first):"]
    while frame is not None and len(lines) <= MOST_FRAMES:
        code = frame.f_code
        name = code.co_filename.encode("unicode_escape").decode()
        lines.append(f'  File "{name}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    if frame is not None:
        lines.append("  ...")
    return "\n".join([*lines, "", ""]).encode("utf-8", "backslashreplace")


def parted(data: bytes) -> tuple[bytes, bytes]:
    """Whole lines of a process's stderr: those of stacks, and the others."""
    stacks, others, inside = bytearray(), bytearray(), False
    for line in data.splitlines(keepends=True):
        if _HEAD.fullmatch(line):
            inside = True
            stacks += line
        elif (inside and (_FRAME.fullmatch(line) or line == b"\n")) or _FRAME.fullmatch(line):
            stacks += line
        else:
            inside = False
            others += line
    return bytes(stacks), bytes(others)
