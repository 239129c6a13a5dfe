"""What an interpreter writes of its stacks, told from what else a process writes to stderr."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.stacks import parted

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
    assert parted(data) == (data, b"")


@given(st.lists(st.sampled_from(LINES)), st.lists(st.sampled_from(LINES)))
def test_other_lines_are_passed_on(before: list[bytes], after: list[bytes]) -> None:
    data = dumped()
    said = [line for line in (*before, *after) if line != b"\n"]
    stacks, others = parted(b"".join(before) + data + b"".join(after))
    assert stacks.replace(b"\n", b"") == data.replace(b"\n", b"")
    assert [line for line in others.splitlines(keepends=True) if line != b"\n"] == said


@given(st.integers(0, 5))
def test_a_piece_may_begin_within_a_stack(line: int) -> None:
    lines = dumped().splitlines(keepends=True)
    first, second = parted(b"".join(lines[:line])), parted(b"".join(lines[line:]))
    assert (first[0] + second[0]).replace(b"\n", b"") == b"".join(lines).replace(b"\n", b"")
