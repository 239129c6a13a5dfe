"""Make the golden dump of a released layout, with that release's own code: jobs in every state, left by real workers.

    PYTHONPATH=<sources of the release> python -m tests.golden.make > tests/golden/schema-<N>.txt

Run from the checkout, so that only ``headrace`` is the release's. Times and ids are moved to the beginning of 2025, since
a dump that comes from the future would hold leases that have not ended. The machine's name is overwritten.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from headrace import Headrace
from headrace.model import ids
from tests.deadline import eventually
from tests.golden.dump import dump
from tests.servers import Server

BEGINNING = 1_735_689_600
YEARS = str(100 * 365 * 86400)
TASKS = """
import os, signal, sys, time
from headrace import Headrace, Retry, current_job

app = Headrace()

@app.task
def add(x: int, y: int = 1) -> int:
    current_job().log(f"adding {x} and {y}")
    return x + y

@app.task(retries=0)
def fail(text: str) -> None:
    raise ValueError(text)

@app.task(max_crashes=1)
def crash() -> None:
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(retries=Retry(max=1, delay=1800))
def later(marker: str) -> None:
    raise OSError("try again")

@app.task
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
"""


def main() -> None:
    server = Server()
    try:
        with tempfile.TemporaryDirectory(prefix="golden-") as place:
            os.environ |= {"HEADRACE_URL": server.url, "HEADRACE_RESULT_TTL": YEARS, "HEADRACE_FAILURE_TTL": YEARS}
            Path(place, "tasks.py").write_text(TASKS)
            sys.path.insert(0, place)
            client = server.client()
            stage(client, Path(place))
            print(f"# A keyspace of schema {client.get('{hr:0}:schema').decode()}: see make.py.")
            for line in moved(list(dump(client)), client.time()[0]):
                print(line)
    finally:
        server.stop()


def stage(client: Any, place: Path) -> None:
    """Jobs in every state, as real programs leave them."""
    import tasks

    app: Headrace = tasks.app
    for n in range(20):
        tasks.add.enqueue(n, y=2)
    tasks.fail.enqueue("it does not work")
    tasks.crash.enqueue()
    tasks.later.enqueue("x")
    tasks.add.enqueue(1).cancel()
    app.by_name("tasks.unknown").enqueue(1)
    tasks.add.options(request_id="order-7").enqueue(7)
    work(
        place,
        lambda: client.zcard("{hr:0}:succeeded") >= 21 and client.exists("{hr:0}:parked:tasks.unknown"),
        "--burst",
    )
    # A machine that vanished: its lease ends, and its claim stays.
    tasks.nap.enqueue(0.5)
    work(place, lambda: any(client.zcard(key) for key in client.scan_iter("{hr:0}:claims:*")))
    for n in range(5):
        tasks.add.options(priority=n - 2, key="customer-7").enqueue(n)
    for n in range(3):
        tasks.add.options(queue="low").enqueue(n)
    app.queues["low"].pause()
    tasks.add.options(delay=3600).enqueue(60)
    app.close()


def work(place: Path, done: Any, *options: str) -> None:
    """A worker until something is so; then it is killed, unless it left."""
    argv = [sys.executable, "-m", "headrace", "worker", "tasks:app", "--processes", "1", *options]
    process = subprocess.Popen(argv, cwd=place, stderr=sys.stderr)
    eventually(done, timeout=30)
    if "--burst" not in options:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            one.kill()
    process.wait(30)


def moved(lines: list[str], now: int) -> list[str]:
    """The same keyspace as if it had been made at the beginning: every length stays as it is."""
    shift = now - BEGINNING

    def time(found: re.Match[str]) -> str:
        value = int(found[0])
        return str(value - shift * 1_000_000) if abs(value // 1_000_000 - now) < 86400 else found[0]

    def id(found: re.Match[str]) -> str:
        milliseconds = ids.milliseconds_of(found[0])
        if abs(milliseconds // 1000 - now) > 86400:
            return found[0]
        return ids.make_id(milliseconds - shift * 1000, 0)[:8] + found[0][8:]

    host = socket.gethostname()
    text = re.sub(rf"\b{re.escape(host)}(?=:\d)", ("golden" * len(host))[: len(host)], "\n".join(lines))
    text = re.sub(r"\b[0-9a-hjkmnp-tv-z]{21}\b", id, text)
    return re.sub(r"\b\d{16}\b", time, text).splitlines()


if __name__ == "__main__":
    main()
