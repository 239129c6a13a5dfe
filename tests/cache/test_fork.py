"""A forked child has none of its parent's copies, thread or connections; and its parent keeps all of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import redis

from tests.nursery import nursery_of

CHILD = """
import os, sys, threading, time
from headrace import Headrace
from headrace.cache import values
from headrace.cache import listener
from headrace.cache.listener import CHILDHOOD

url = sys.argv[1]
app, writer = Headrace(url, timeout=20.0), Headrace(url, timeout=20.0)
values.FIRST = listener.PROBE_TIMEOUT = 20.0
cache = app.cache

def threads():
    return [t for t in threading.enumerate() if t.name == "headrace-cache"]

def forked(body):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, body

def sees(value):
    end = time.monotonic() + 20
    while cache.get("a") != value:
        assert time.monotonic() < end
        time.sleep(0.002)
"""

BODIES = {
    "starts empty, and reads the truth": """
writer.cache.set("a", 1)
assert cache.get("a") == cache.get("a") == 1 and len(threads()) == 1
def body():
    assert not cache._values and not threads() and not cache.statistics().healthy
    Headrace(url, timeout=20.0).cache.set("a", 2)
    assert cache.get("a") == 2
forked(body)
sees(2)
assert cache.statistics().epochs == 1, "the parent's connection was none of the child's business"
""",
    "gets no thread while it is young, and one when it lives on": """
writer.cache.set("a", 1)
cache.get("a")
def body():
    for n in range(CHILDHOOD):
        assert cache.get("a") == 1 and not threads() and not cache._values
    for n in range(3):
        assert cache.get("a") == 1
    assert len(threads()) == 1 and cache._values == {"a": 1}
    Headrace(url, timeout=20.0).cache.set("a", 2)
    sees(2)
forked(body)
sees(2)
""",
    "does not keep the parent's connections open": """
writer.cache.set("a", 1)
cache.get("a")
def tracked():
    from tests.servers import connect
    with connect(url) as client:
        return sum("t" in c["flags"] for c in client.client_list())
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
assert tracked() == 1
cache.close()
end = time.monotonic() + 20
while tracked():
    assert time.monotonic() < end, "the child holds it"
    time.sleep(0.01)
os.close(writing)
os.waitpid(pid, 0)
""",
    "may come at any moment of busy threads": """
stop = threading.Event()
def busy(n):
    while not stop.is_set():
        cache.set(f"b{n}", 1)
        cache.get(f"b{n}")
        cache.get("a")
        cache.delete(f"b{n}")
crowd = [threading.Thread(target=busy, args=(n,)) for n in range(4)]
for t in crowd:
    t.start()
writer.cache.set("a", 1)
def body():
    for _ in range(12):
        assert cache.get("a") == 1
for _ in range(25):
    forked(body)
stop.set()
for t in crowd:
    t.join()
assert cache.statistics().epochs == 1
""",
    "counts from zero, and asks a server that its parent could not reach": """
writer.cache.set("a", 1)
assert [cache.get(name) for name in "aab"] == [1, 1, None]
cache._listener.unreachable = True
def body():
    assert cache.get("a") == 1
    counted = cache.statistics()
    assert (counted.hits, counted.misses, counted.faults, counted.epochs) == (0, 1, 0, 0)
forked(body)
assert cache.statistics().hits == 1
""",
    "of a child is a child too": """
writer.cache.set("a", 1)
cache.get("a")
def inner():
    assert not cache._values and cache.get("a") == 1
def body():
    for _ in range(12):
        cache.get("a")
    assert cache._values
    forked(inner)
    assert cache.get("a") == 1 and cache.statistics().epochs == 1
forked(body)
sees(1)
""",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_forked_child(name: str, url: str, client: redis.Redis, tmp_path: Path) -> None:
    script = tmp_path / "commands.py"
    script.write_text(CHILD + BODIES[name] + "\napp.close()\nwriter.close()\n")
    program = nursery_of(os.environ).start(
        "tests.cache.forked_program", os.environ, str(script), url,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, errors = program.communicate(200)
    assert program.returncode == 0, errors
    client.flushall()
