"""``headrace health``, ``/healthz`` and ``/readyz``: what probes are told while a worker's processes and server fail."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.cli.probe import quick
from headrace.worker.health_stamps import stamps
from tests.commands import Commands
from tests.deadline import eventually
from tests.processes import dispatcher_of
from tests.program import Worker
from tests.proxy import Proxy
from tests.servers import Server

pytestmark = pytest.mark.system
LEASE = "5"


@pytest.fixture
def headrace(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    program = Commands(tmp_path, url)
    # Probes see the workers of this test alone.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    program.environment |= {"TMPDIR": str(tmp_path / "tmp"), "HEADRACE_LEASE": LEASE}
    return program


@pytest.fixture
def worker(headrace: Commands) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(*arguments: str) -> Worker:
        process = headrace.start("worker", "tasks:app", "--processes", "1", *arguments, stderr=subprocess.PIPE)
        started.append(Worker(process))
        return started[-1]

    yield start
    for one in started:
        for stopped in (one.process.pid, *(stamp.process for stamp in stamps())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
        one.stop()
        one.close()


def reasons(*flags: str) -> list[str]:
    """Why the one worker is not as it should be, as ``headrace health`` says it; without a process for each question."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        quick(["--json", *flags])
    (row,) = map(json.loads, said.getvalue().splitlines())
    return list(row["reasons"])


def stays(*expected: str, ready: bool, leases: float = 3) -> None:
    """For so many leases the worker is healthy, and ready or not."""
    until = time.monotonic() + leases * float(LEASE)

    def later() -> bool:
        assert reasons() == list(expected)
        assert is_ready() is ready
        return time.monotonic() > until

    eventually(later, 60, every=0.2)


def is_ready() -> bool:
    return bool(stamps()) and reasons("--ready") == []


def is_ready_each(workers: int) -> Callable[[], bool]:
    return lambda: len(stamps()) == workers and all(not one.reasons_unready(time.monotonic()) for one in stamps())


def test_a_worker_is_ready_when_it_claims_and_gone_when_it_has_ended(
    headrace: Commands, worker: Callable[..., Worker]
) -> None:
    assert "no worker" in headrace("health", code=1).err
    one = worker()
    eventually(is_ready, 60)
    assert headrace("health").out == f"worker {one.process.pid} is healthy\n"
    assert headrace("health", str(one.process.pid), "--ready").out == f"worker {one.process.pid} is ready\n"
    assert headrace("health", "1", code=1).err.startswith("headrace: no worker with process id 1 ")
    assert headrace("health", "--worker", code=2).fault
    one.stop()
    assert "no worker" in headrace("health", code=1).err
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []


def test_a_probe_selects_workers_by_application_and_by_server(
    headrace: Commands, new_server: Callable[..., Server], worker: Callable[..., Worker], tmp_path: Path
) -> None:
    """The probe of one application ended its healthy workers while another application was away."""
    own, other = headrace.environment["HEADRACE_URL"], new_server(tcp=True, password="s3cret")
    one = worker()
    (tmp_path / "shop.py").write_text("from tasks import app\n")
    headrace.environment |= {"HEADRACE_URL": other.url}
    two = Worker(headrace.start("worker", "shop:app", "--processes", "1", stderr=subprocess.PIPE))
    try:
        # A worker that does not serve shows its log. One that serves has its file.
        for started in (one, two):
            started.serves()
        eventually(is_ready_each(2), 60)
        other.kill()
        eventually(lambda: headrace("health", "--ready", code=None).code == 1, 60)
        assert "s3cret" in other.url
        for chosen in (["--app", "tasks:app"], [f"--url={own}"], ["--url", own, "--app=tasks:app"]):
            assert headrace("health", "--ready", *chosen).out == f"worker {one.process.pid} is ready\n"
        for chosen in (["--app", "shop:app"], ["--url", other.url], ["--url", other.url.replace(":s3cret@", "")]):
            (row,) = headrace("health", "--ready", "--json", *chosen, code=1).lines
            assert (row["worker"], row["app"]) == (two.process.pid, "shop:app")
            assert row["reasons"] == ["the server does not answer"]
        assert "s3cret" not in "".join(path.read_text("latin-1") for path in (tmp_path / "tmp").glob("*.health"))
        wrong = headrace("health", "--app", "shop:app", "--url", own, code=1)
        assert wrong.err.startswith("headrace: no worker of the application shop:app on the server ")
    finally:
        two.stop(signal.SIGQUIT)
        two.close()


def test_a_process_that_hangs_is_unhealthy_until_it_goes_on(headrace: Commands, worker: Callable[..., Worker]) -> None:
    one = worker()
    eventually(is_ready, 60)
    dispatcher = dispatcher_of(one.process.pid)
    assert dispatcher is not None
    for role, pid in (("supervisor", one.process.pid), ("dispatcher", dispatcher.pid)):
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda role=role: any(f"the {role} is silent" in why for why in reasons()), 60)
        assert headrace("health", code=None).code == 1
        os.kill(pid, signal.SIGCONT)
        eventually(is_ready, 60)


def test_a_server_that_is_full_a_replica_or_away_leaves_a_worker_healthy(
    headrace: Commands, new_server: Callable[..., Server], worker: Callable[..., Worker]
) -> None:
    server = new_server(append_only=True)
    headrace.environment |= {"HEADRACE_URL": server.url}
    worker()
    eventually(is_ready, 60)
    client = server.client()
    client.config_set("maxmemory", 1)
    # A full one still keeps leases, and lets jobs that are stored start.
    stays(ready=True)
    client.config_set("maxmemory", 0)
    client.replicaof("127.0.0.1", 1)
    eventually(lambda: not is_ready(), 60)
    stays(ready=False)
    client.replicaof("NO", "ONE")
    eventually(is_ready, 60)
    assert headrace("enqueue", "tasks.add", "1", "--wait").out
    server.kill()
    eventually(lambda: "the server does not answer" in reasons("--ready"), 60)
    stays(ready=False)
    server.start()
    eventually(is_ready, 60)


def test_a_worker_that_waits_for_its_server_to_start_lives(headrace: Commands, worker: Callable[..., Worker]) -> None:
    headrace.environment |= {"HEADRACE_URL": "redis://127.0.0.1:1"}
    worker().says("Waiting for it")
    assert reasons() == []
    assert reasons("--ready") == ["the worker starts"]


def test_a_worker_that_stops_is_not_ready(headrace: Commands, worker: Callable[..., Worker], tmp_path: Path) -> None:
    headrace.write(
        "tasks",
        "import pathlib, time, headrace\napp = headrace.Headrace()\n@app.task\n"
        "def nap(seconds: float) -> None:\n    pathlib.Path('began').touch()\n    time.sleep(seconds)\n",
    )
    one = worker()
    headrace("enqueue", "tasks.nap", "60")
    # A job that is claimed and has not begun goes back, and its worker leaves at once.
    eventually((tmp_path / "began").exists, 60)
    one.process.terminate()
    eventually(lambda: reasons("--ready") == ["the worker claims no more"], 60)
    assert reasons() == []
    one.process.send_signal(signal.SIGQUIT)
    one.ended()


def test_claims_that_stop_while_jobs_are_ready_and_runners_free_are_told(
    headrace: Commands, new_server: Callable[..., Server], worker: Callable[..., Worker]
) -> None:
    with Proxy(new_server(tcp=True)) as proxy:
        headrace.environment |= {"HEADRACE_URL": proxy.url}
        # The request that sleeps on the queues is lost on a connection that stays open; all else is answered.
        lost: list[bytes] = []

        def is_lost(data: bytes) -> bool:
            if b"BZPOPMIN" in data:
                lost.append(data)
            return b"BZPOPMIN" in data

        proxy.lost_request = is_lost
        one = worker()
        eventually(lambda: lost and is_ready(), 60)

        def told() -> bool:
            # It also claims when it has lost its lease, as on a slow machine.
            if not app.jobs.count("ready"):
                app.by_name("tasks.add").enqueue(1)
            return any("claims stopped" in why for why in reasons("--ready"))

        with Headrace(proxy.url) as app:
            eventually(told, 60)
        assert reasons() == []
        one.stop(signal.SIGQUIT)


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_server_of_metrics_answers_probes(headrace: Commands, worker: Callable[..., Worker]) -> None:
    one = worker("--metrics", "0")
    where = one.says("http://").rpartition("http://")[2].split("/metrics")[0]
    eventually(lambda: ask(f"http://{where}/readyz") == (200, "ok\n"), 60)
    assert ask(f"http://{where}/healthz") == (200, "ok\n")
    dispatcher = dispatcher_of(one.process.pid)
    assert dispatcher is not None
    dispatcher.suspend()
    eventually(lambda: ask(f"http://{where}/healthz")[0] == 503, 60)
    assert "the dispatcher is silent" in ask(f"http://{where}/readyz")[1]
    dispatcher.resume()
    eventually(lambda: ask(f"http://{where}/readyz")[0] == 200, 60)


def test_the_probe_loads_neither_an_application_nor_a_driver(headrace: Commands, tmp_path: Path) -> None:
    shown = "import sys; sys.argv[1:] = ['health', '--ready', '--app', 'tasks:app', '--url=redis://db']\nimport atexit, json, headrace.cli\n"
    shown += "atexit.register(lambda: print(json.dumps(sorted(sys.modules))))\nheadrace.cli.main()"
    ended = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, check=False, env=headrace.environment
    )
    assert ended.returncode == 1
    loaded = set(json.loads(ended.stdout))
    assert not loaded & {"redis", "typer", "rich", "msgspec", "asyncio", "logging", "headrace.app", "headrace.settings"}
