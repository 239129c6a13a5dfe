"""Stacks of runners: how a thread's is written, and told from what else a process writes. Pure."""

from __future__ import annotations

import re
from types import FrameType

import msgspec

# Bytes of all stacks of a worker, those of one runner, and those that are read of one before the jobs' are chosen.
MOST = 60_000
MOST_EACH = 12_000
MOST_READ = 1_000_000

# Frames of a thread that are written; faulthandler's own bound.
MOST_FRAMES = 100

# As faulthandler writes them; a name of a file may be anything, its line and function end the line.
_HEAD = re.compile(
    rb"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):\n|Stack \(most recent call first\):\n"
)
_FRAME = re.compile(rb'  File "[^\n]*", line [0-9?]+ in [^\n]*\n|  (\.\.\.|<[^\n]*>)\n|  Extension modules: [^\n]*\n')

# A frame of the code that runs a job: the stack is one of a job. Of a deep stack this frame is cut off.
_OF_A_JOB = re.compile(rb'runner[/\\]execute\.py", line |\n  \.\.\.\n')


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
    lines = [f"Thread 0x{thread:016x} (most recent call first):"]
    while frame is not None and len(lines) <= MOST_FRAMES:
        code = frame.f_code
        name = code.co_filename.encode("unicode_escape").decode()
        lines.append(f'  File "{name}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    if frame is not None:
        lines.append("  ...")
    return "\n".join([*lines, "", ""]).encode("utf-8", "backslashreplace")


def stacks_and_others(data: bytes) -> tuple[bytes, bytes]:
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


def jobs_first(data: bytes, most: int) -> bytes:
    """The stacks of a runner, cut to ``most`` bytes: those of jobs first, since threads may write idle ones first."""
    starts = [found.start() for found in _HEAD.finditer(data)]
    each = [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=False)]
    of_jobs = [one for one in each if _OF_A_JOB.search(one)]
    share = max(1000, most // max(1, len(of_jobs)))
    cut = [one if len(one) <= share else one[: one.rfind(b"\n", 0, share) + 1] + b"  ...\n\n" for one in of_jobs]
    return b"".join([data[: starts[0]] if starts else data, *cut, *(one for one in each if one not in of_jobs)])[:most]
