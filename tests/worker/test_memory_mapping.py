"""How the memory of a process is mapped that is forked often."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.worker import warmup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere forks are left as they are")


def joins() -> bool:
    """Whether this kernel joins pages when it is asked to: since 6.1, if it has huge ones at all."""
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    return release >= (6, 1) and bool(warmup._huge())


# Figures in kB; ``fork`` runs a function in a child.
TOOLS = """
import json, mmap, os
from headrace.worker import warmup

def told(field, places=None):
    found, inside = 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            inside = places is None or int(words[0].partition("-")[0], 16) in places
        elif inside and words[0] == field:
            found += int(words[1])
    return found

def fork(function):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, json.dumps(function()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 1 << 16))
"""


def run(text: str) -> Any:
    run = subprocess.run([sys.executable, "-c", TOOLS + text], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(run.stdout)


@pytest.mark.skipif(not joins(), reason="this kernel joins no pages on request")
def test_memory_that_is_in_use_is_joined_and_children_have_it_so() -> None:
    before, ours, childs, right, left = run("""
kept = [str(number) for number in range(1_000_000)]
before = told("AnonHugePages:")
warmup.join()
ours, childs = told("AnonHugePages:"), fork(lambda: told("AnonHugePages:"))
# This writes to each page of them, if only a count.
right = fork(lambda: [number for number, text in enumerate(kept) if text != str(number)] == [])
print(json.dumps([before, ours, childs, right, told("AnonHugePages:")]))
""")
    assert before + (32 << 10) <= ours, "it takes 60 MB"
    assert childs >= ours / 2, "but for what the fork itself has written to"
    assert right
    assert left >= ours / 2


@pytest.mark.skipif(not joins(), reason="this kernel joins no pages on request")
def test_memory_that_was_only_reserved_stays_so() -> None:
    before, after = run("""
reserved = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for place in range(0, 64 << 20, 1 << 20):
    reserved[place] = 1
before = told("Rss:")
warmup.join()
print(json.dumps([before, told("Rss:")]))
""")
    assert after < before + (16 << 10)


@pytest.mark.skipif(not joins(), reason="this kernel joins no pages on request")
def test_what_others_have_in_small_pages_is_not_copied() -> None:
    own = run("""
kept = [str(number) for number in range(2_000_000)]

def joined():
    warmup.join()
    return told("Private_Dirty:")

print(json.dumps(fork(joined)))
""")
    assert own < 36 << 10, "kB, of 120 MB"


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    """What the system tells of mappings is no text: it holds names of files."""
    assert run(f"""
name = os.fsencode({str(tmp_path)!r}) + "/jos\\u2028e".encode() + b"\\xe9"
os.close(os.open(name, os.O_RDWR | os.O_CREAT))
os.truncate(name, 4096)
with open(name, "r+b") as file:
    shown = mmap.mmap(file.fileno(), 4096)
print(json.dumps(len(list(warmup._mappings())) > 10))
""")


def test_where_the_kernel_has_no_huge_pages_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warmup, "_HUGE", tmp_path)
    warmup._huge.cache_clear()
    warmup.join()
    monkeypatch.undo()
    warmup._huge.cache_clear()
