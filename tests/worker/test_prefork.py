"""What a forker does before its first child."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no forkers")

MAPPED = """
import json, os, sys
from headrace.worker import prefork

def resident():
    found, inside = 0, False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            inside = int(words[0].partition("-")[0], 16) in places
        elif inside and words[0] == "Rss:":
            found += int(words[1])
    return found

def of_child():
    read, write = os.pipe()
    if not os.fork():
        os.write(write, str(resident()).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))

places = list(prefork._large_mappings())
before = of_child()
prefork._share_code()
print(json.dumps([resident(), before, of_child()]))
"""


def test_children_have_the_interpreters_code_in_their_page_tables() -> None:
    """Where the kernel lets a process write to its own code; else forks cost more, and nothing is wrong."""
    said = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True, timeout=60).stdout
    ours, before, after = json.loads(said)
    assert before < ours
    assert after >= ours
