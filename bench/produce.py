"""The producer's side of a benchmark, in a process of its own: ``python -m bench.produce <module> <verb>
<count>``.

Runs in the peers' environment too, so it imports only the standard library and the module named. That
module gives ``bulk(n)`` (the way the system enqueues many), and where they are measured ``single()``,
``small(n)`` (with two small arguments) and ``stamp()`` (a job whose first line is
``mark(time.monotonic_ns())``). The answer is one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def mark(now: int) -> None:
    """Called by a job: tell the producer when its first line ran."""
    pipe = os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY)
    try:
        os.write(pipe, b"%d\n" % now)
    finally:
        os.close(pipe)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def single(module: Any, count: int) -> dict[str, float]:
    """Seconds for ``count`` jobs enqueued one at a time, the connection being open; processor time of it."""
    for _ in range(20):
        module.single()

    def all_of_them() -> None:
        for _ in range(count):
            module.single()

    before = time.process_time()
    return {"seconds": _timed(all_of_them), "cpu": time.process_time() - before}


def four_threads(module: Any, count: int) -> dict[str, float]:
    """Seconds for ``count`` jobs that four threads enqueue one at a time."""
    return _in_threads(module, count, 4)


def eight_threads(module: Any, count: int) -> dict[str, float]:
    """The same of eight threads."""
    return _in_threads(module, count, 8)


def _in_threads(module: Any, count: int, threads: int) -> dict[str, float]:
    module.single()

    def share() -> None:
        for _ in range(count // threads):
            module.single()

    crew = [threading.Thread(target=share) for _ in range(threads)]

    def all_of_them() -> None:
        for one in crew:
            one.start()
        for one in crew:
            one.join()

    return {"seconds": _timed(all_of_them)}


def beside_a_loop(module: Any, count: int) -> dict[str, float]:
    """As ``single``, while another process keeps a processor busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as loop:
        try:
            return single(module, count)
        finally:
            loop.kill()


def _peak() -> int:
    """Bytes that this program held resident at most."""
    if sys.platform == "linux":
        # Not getrusage: its peak survives exec, so it starts at that of the larger program that started this one.
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def stream(module: Any, count: int) -> dict[str, float]:
    """Bytes by which the producer grew while it streamed ``count`` jobs, after 20,000 to warm up."""
    module.bulk(20_000)
    before = _peak()
    seconds = _timed(lambda: module.bulk(count))
    return {"seconds": seconds, "growth": _peak() - before}


def latency(module: Any, count: int) -> dict[str, list[int]]:
    """Nanoseconds from the call of enqueue to the job's first line, ``count`` times, on an idle worker.

    Gaps of 20 to 50 ms, drawn with a fixed seed, so that a worker that polls is met at every phase.
    """
    return _starts(module, count, (0.020, 0.050))


def tail(module: Any, count: int) -> dict[str, list[int]]:
    """The same with gaps of 4 to 12 ms, so that ten thousand starts take a minute and a half."""
    return _starts(module, count, (0.004, 0.012))


def _starts(module: Any, count: int, gaps: tuple[float, float]) -> dict[str, list[int]]:
    # Opened for both directions: with a reader always there, a job never meets a broken pipe.
    pipe = os.open(os.environ["BENCH_STAMPS"], os.O_RDWR)
    dice, taken = random.Random(8), []
    for number in range(-10, count):
        time.sleep(dice.uniform(*gaps))
        start = time.monotonic_ns()
        module.stamp()
        if not select.select([pipe], [], [], 60)[0]:
            raise TimeoutError(f"job {number} did not start within 60 s")
        first_line = int(os.read(pipe, 64))
        if number >= 0:
            taken.append(first_line - start)
    os.close(pipe)
    return {"latency": taken}


def _until_marked(module: Any, verb: str, count: int) -> dict[str, list[int]]:
    """Nanoseconds from the start of a load to the first line of its last job, after a small one to warm up.

    The verb makes the load ready and returns what starts it.
    """
    pipe, taken = os.open(os.environ["BENCH_STAMPS"], os.O_RDWR), 0
    for size in (10, count):
        begin = getattr(module, verb)(size)
        start = time.monotonic_ns()
        begin()
        if not select.select([pipe], [], [], 300)[0]:
            raise TimeoutError(f"the last of {size} jobs did not start within 300 s")
        taken = int(os.read(pipe, 64)) - start
        # What is left to settle must not be in the next one's time.
        time.sleep(0.5)
    os.close(pipe)
    return {"latency": [taken]}


def fan(module: Any, count: int) -> dict[str, list[int]]:
    """One job, then ``count``, then one: nanoseconds from the start to the last one's first line."""
    return _until_marked(module, "fan", count)


def burst(module: Any, count: int) -> dict[str, list[int]]:
    """``count`` plain jobs at once: nanoseconds from the start to the last one's first line."""
    return _until_marked(module, "burst", count)


def plain(module: Any, verb: str, count: int) -> dict[str, float]:
    """Seconds for any other verb of the module: it enqueues a load of its own."""
    return {"seconds": _timed(lambda: getattr(module, verb)(count))}


VERBS = {
    verb.__name__: verb
    for verb in (single, four_threads, eight_threads, beside_a_loop, stream, latency, tail, fan, burst)
}

if __name__ == "__main__":
    _, name, verb, count = sys.argv
    module = importlib.import_module(name)
    answer = VERBS[verb](module, int(count)) if verb in VERBS else plain(module, verb, int(count))
    print(json.dumps(answer), flush=True)
    # At once: what a peer says while its interpreter ends is not the answer.
    os._exit(0)
