"""``headrace worker --metrics``: who answers Prometheus, for how long, and what stands in the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.deadline import eventually
from tests.processes import below, lives
from tests.program import TASKS, Program, Worker
from tests.servers import Server

pytestmark = pytest.mark.system

# While the file "full" is there, the system has no room for another process.
FULL = """
fork = os.fork

def refuse():
    if os.path.exists("full"):
        raise BlockingIOError
    return fork()

os.fork = refuse
"""


def url_of(worker: Worker) -> str:
    """Where it says that Prometheus is answered."""
    return worker.says("  metrics").split()[1]


def answering(worker: Worker) -> int:
    """The process that answers: it holds the port."""
    port = int(url_of(worker).rpartition(":")[2].partition("/")[0])

    def holds(process: psutil.Process) -> bool:
        # A supervisor holds it too; a runner or dispatcher may, for a moment, until it has closed what is not its own.
        try:
            return not process.children() and any(
                one.laddr.port == port for one in process.net_connections("tcp") if one.status == "LISTEN"
            )
        except psutil.NoSuchProcess:
            return False

    def found() -> int:
        holders = [child.pid for child in below(worker.process.pid) if holds(child)]
        return holders[0] if len(holders) == 1 else 0

    return eventually(found, 60, what="one process that holds the socket, and no other")


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_it_tells_what_became_of_jobs_and_what_a_queue_wants(headrace: Program, worker: Callable[..., Worker]) -> None:
    url = url_of(worker("--metrics", "0"))
    assert url.startswith("http://127.0.0.1:")
    assert "headrace_workers" in ask(url)
    headrace("enqueue", "tasks.add", "1", "--wait")
    eventually(lambda: 'headrace_task_jobs_total{outcome="succeeded",task="tasks.add"} 1.0' in ask(url), 60)
    headrace("enqueue", "tasks.add", "1", "--queue", "other")
    headrace("queues", "pause", "other")
    # Scrapes within a second share one reading.
    eventually(lambda: 'headrace_queue_paused{queue="other"} 1.0' in ask(url), 60)
    text = ask(url)
    for line in (
        "headrace_workers 1.0",
        'headrace_jobs{state="succeeded"} 1.0',
        'headrace_queue_ready{queue="other"} 1.0',
        'headrace_queue_wait_seconds_count{queue="default"} 1.0',
        'headrace_task_run_seconds_count{task="tasks.add"} 1.0',
        'headrace_runners{kind="process"} 1.0',
    ):
        assert line in text, line
    # For autoscalers.
    url = url.replace("/metrics", "/scale")
    headrace("queues", "resume", "other")

    def load() -> tuple[str, int, int]:
        answer = json.loads(ask(f"{url}?queue=other&target=30"))
        return answer["queue"], answer["ready"], answer["wanted"]

    eventually(lambda: load() == ("other", 1, 1), 60)
    assert json.loads(ask(f"{url}?queue=default"))["wanted"] == 0
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url)
    with caught.value as refused:
        assert (refused.code, refused.read()) == (400, b"say which queue: /scale?queue=mail&target=30\n")
    assert json.loads(headrace("queues", "load", "other", "--json").out)["ready"] == 1


def test_without_it_nothing_listens(headrace: Program, worker: Callable[..., Worker]) -> None:
    one = worker()
    headrace("enqueue", "tasks.add", "1", "--wait")
    found = list[object]()
    for process in (psutil.Process(one.process.pid), *below(one.process.pid)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a process may end at any moment
            found += [c for c in process.net_connections("tcp") if c.status == "LISTEN"]
    assert found == []


def test_the_process_that_answers_is_replaced_when_it_dies_and_jobs_do_not_notice(
    headrace: Program, worker: Callable[..., Worker], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    headrace.write("tasks", TASKS + FULL)
    one = worker("--metrics", "127.0.0.1:0")
    before = answering(one)
    os.kill(before, signal.SIGKILL)
    # The socket is still there: a request waits for the next one.
    assert "headrace_workers 1.0" in ask(url_of(one))
    first = answering(one)
    assert first != before
    # Though it cannot be forked at first. The runner is there: later it could not be forked either.
    headrace("enqueue", "tasks.add", "1", "--wait")
    full.touch()
    os.kill(first, signal.SIGKILL)
    one.says("cannot fork a process")
    headrace("enqueue", "tasks.add", "1", "--wait")
    full.unlink()
    assert "headrace_workers 1.0" in ask(url_of(one))


def test_it_ends_with_a_killed_worker(worker: Callable[..., Worker]) -> None:
    one = worker("--metrics", "0")
    server, url = psutil.Process(answering(one)), url_of(one)
    everyone = below(one.process.pid)
    assert server in everyone
    one.process.kill()
    one.process.wait(60)
    # The others, too: a dispatcher that outlives its supervisor for a moment is no worker of the next test.
    eventually(lambda: not any(lives(process) for process in everyone), 60)
    with pytest.raises(urllib.error.URLError):
        ask(url)


def test_a_store_that_is_away_is_a_failed_scrape(
    headrace: Program, worker: Callable[..., Worker], new_server: Callable[..., Server]
) -> None:
    server = new_server(append_only=True)
    headrace.environment |= {"HEADRACE_URL": server.url, "HEADRACE_TIMEOUT": "5"}
    one = worker("--metrics", "0")
    assert "headrace_workers" in ask(url_of(one))
    server.kill()
    eventually(lambda: refusal(url_of(one)) == (503, True), 60)
    server.start()
    eventually(lambda: "headrace_workers 1.0" in ask(url_of(one)), 60)
    assert "Traceback" not in "".join(one.lines)
    one.stop()  # before its server, which it would look for


def refusal(url: str) -> tuple[int, bool] | None:
    """The status of a failed scrape, and whether it says why; None while scrapes succeed."""
    try:
        ask(url)
    except urllib.error.HTTPError as error:
        with error as answer:
            return answer.code, b"did not answer" in answer.read()
    return None


def test_an_address_that_cannot_be_used_is_told_at_the_start(headrace: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fault = headrace("worker", "tasks:app", "--metrics", str(port), code=1).fault
        assert f"cannot listen on 127.0.0.1:{port}: " in fault
        assert "take another port or address" in fault
    # Others are in tests/worker/test_metrics_address.py.
    fault = headrace("worker", "tasks:app", "--metrics", "localhost", code=2).fault
    assert "metrics='localhost' is not an address: write 127.0.0.1:9464" in fault
    assert fault.endswith("(from --metrics)")
    fault = headrace("worker", "tasks:app", "--metrics", "no.such.host.invalid:1", code=1).fault
    assert "no.such.host.invalid" in fault
    fault = headrace("worker", "tasks:app", code=2, HEADRACE_METRICS="x").fault
    assert "is not an address" in fault
    assert fault.endswith("(from HEADRACE_METRICS)")
