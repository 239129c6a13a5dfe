"""What an interpreter writes of its stacks, told from what else a process writes to stderr."""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.stacks import MOST_EACH, MOST_FRAMES, jobs_first, stack, stacks_and_others

LINES = (
    b"Traceback (most recent call last):\n", b'  File "a.py", line 3, in f\n', b"    raise ValueError\n", b"a line\n",
    b"Thread 7 has ended\n", b"\n", b"Current thread: none\n",
)  # fmt: skip


def dumped() -> bytes:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read()


def test_stacks_of_this_interpreter_are_known_as_such() -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    data = dumped()
    leave.set()
    thread.join()
    assert b"in dumped" in data
    assert data.count(b"hread 0x") >= 2
    assert stacks_and_others(data) == (data, b"")


def test_a_stack_of_ours_is_known_as_one_whatever_its_file_is_called() -> None:
    data: list[bytes] = []
    code = compile("keep(stack(7, frame()))", 'a\n"b.py", line 1 in c\n\udcff', "exec")
    exec(code, {"keep": data.append, "stack": stack, "frame": sys._getframe})
    assert b" in test_a_stack_of_ours" in data[0]
    assert stacks_and_others(data[0]) == (data[0], b"")


def test_a_deep_stack_is_cut_off() -> None:
    def deeper(levels: int) -> bytes:
        return deeper(levels - 1) if levels else stack(7, sys._getframe())

    data = deeper(2 * MOST_FRAMES)
    assert data.count(b" in deeper\n") == MOST_FRAMES
    assert data.endswith(b"  ...\n\n")
    assert stacks_and_others(data) == (data, b"")


@given(st.lists(st.sampled_from(LINES)), st.lists(st.sampled_from(LINES)))
def test_other_lines_are_passed_on(before: list[bytes], after: list[bytes]) -> None:
    data = dumped()
    said = [line for line in (*before, *after) if line != b"\n"]
    stacks, others = stacks_and_others(b"".join(before) + data + b"".join(after))
    assert stacks.replace(b"\n", b"") == data.replace(b"\n", b"")
    assert [line for line in others.splitlines(keepends=True) if line != b"\n"] == said


@given(st.integers(0, 5))
def test_a_piece_may_begin_within_a_stack(line: int) -> None:
    lines = dumped().splitlines(keepends=True)
    first, second = stacks_and_others(b"".join(lines[:line])), stacks_and_others(b"".join(lines[line:]))
    assert (first[0] + second[0]).replace(b"\n", b"") == b"".join(lines).replace(b"\n", b"")


def block(thread: int, *frames: str) -> bytes:
    lines = [f"Thread 0x{thread:016x} (most recent call first):", *(f'  File "{one}' for one in frames), "", ""]
    return "\n".join(lines).encode()


OURS = '/lib/headrace/worker/runner/execute.py", line 118 in perform'


def test_the_stacks_of_jobs_come_before_idle_threads() -> None:
    idle = b"".join(block(n, *['/lib/threading.py", line 324 in wait'] * 30) for n in range(40))
    job = block(99, 'tasks.py", line 7 in fetch', OURS)
    text = jobs_first(idle + job, MOST_EACH)
    assert text.startswith(job)
    assert len(text) == MOST_EACH
    # With jobs alone each has a share, from its innermost frame on.
    jobs = [block(n, f'tasks.py", line {n} in fetch', *['/lib/a.py", line 1 in b'] * 90, OURS) for n in range(10)]
    text = jobs_first(idle + b"".join(jobs), MOST_EACH)
    assert all(f"line {n} in fetch".encode() in text for n in range(10))


@given(st.lists(st.sampled_from([*LINES, block(1, OURS), block(2, "a.py")])), st.integers(0, 300))
def test_nothing_is_lost_that_has_room(parts: list[bytes], most: int) -> None:
    data = b"".join(parts)
    assert sorted(jobs_first(data, len(data)).splitlines()) == sorted(data.splitlines())
    assert len(jobs_first(data, most)) <= most
