"""Every feature at once, for a minute, while workers and the server meet every fault: all promises hold in the end.

Single features are judged elsewhere. What breaks here is a combination that nobody thought of.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redis import exceptions as driver

from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.protocol import produce
from headrace.testing import assert_invariants
from tests.deadline import eventually
from tests.processes import below, lives
from tests.servers import Server
from tests.system.ledger import VARIABLE, Ledger
from tests.system.storm import Producer
from tests.system.storm_app import app
from tests.system.test_soak import SEED, say

SECONDS = float(os.environ.get("HR_SECONDS", "60"))
LEASE = 5.0
# Processes and the server stand still for so long at most, so that no lease is lost by that alone.
STILL = 1.5
# The record of a unique job may have gone to a newer one of its name.
UNIQUE = frozenset({"sole", "debounced", "latest"})
LIVE = ("scheduled", "ready", "running", "blocked")


class Workers:
    """Three workers, each a command as people type it; one that ended is followed by another."""

    def __init__(self, directory: Path, environ: dict[str, str], dice: random.Random) -> None:
        self._directory = directory
        self._environ = environ
        self._dice = dice
        self._count = 0
        self.running = [self._start() for _ in range(3)]

    def _start(self) -> subprocess.Popen[bytes]:
        dice, self._count = self._dice, self._count + 1
        options = {
            "queues": dice.choice(["default,low", "default:3,low:1", "low,default"]),
            "processes": dice.choice(["1", "2"]), "forks": "1", "threads": "4", "concurrency": "8",
            "recycle-jobs": dice.choice(["20", "200", "5000"]),
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with (self._directory / f"worker-{self._count}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace", "worker", "tests.system.storm_app:app", "--reload=hup", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ, cwd=self._directory,
            )  # fmt: skip

    def replace_ended(self) -> None:
        for n, worker in enumerate(self.running):
            if worker.poll() is not None:
                self.running[n] = self._start()

    def one(self) -> tuple[psutil.Process, list[psutil.Process]]:
        """One of them, and all processes below it."""
        worker = psutil.Process(self._dice.choice(self.running).pid)
        return worker, below(worker)

    def stop(self) -> list[psutil.Process]:
        """End them; what is left of them afterwards."""
        everyone = [child for worker in self.running for child in below(worker.pid)]
        for worker in self.running:
            worker.terminate()
        for worker in self.running:
            worker.wait(60)
        return [child for child in everyone if lives(child)]

    def kill(self) -> None:
        """However they stand."""
        for worker in self.running:
            for process in (*below(worker.pid), worker):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            worker.wait(60)


class Faults:
    """One fault after another, by the dice."""

    def __init__(self, workers: Workers, server: Server, dice: random.Random) -> None:
        self._workers = workers
        self._server = server
        self._dice = dice
        self.counts = Counter[str]()

    def one(self) -> None:
        of_process = (
            *[self._kill_a_child] * 4, *[self._reload] * 2, self._signal, self._kill_all, self._stand_still,
        )  # fmt: skip
        of_server = (
            self._restart_the_server, self._server_stands_still, self._forget_scripts, self._fill, self._cut,
        )  # fmt: skip
        fault: Callable[[], None] = self._dice.choice([*of_process, *of_process, *of_server])
        self.counts[fault.__name__.strip("_")] += 1
        # The process, or the connection, had ended before.
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, driver.ConnectionError):
            fault()

    def _kill_a_child(self) -> None:
        _, children = self._workers.one()
        if children:
            self._dice.choice(children).kill()

    def _reload(self) -> None:
        self._workers.one()[0].send_signal(signal.SIGHUP)

    def _signal(self) -> None:
        self._workers.one()[0].send_signal(self._dice.choice([signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL]))

    def _kill_all(self) -> None:
        worker, children = self._workers.one()
        # Stopped first, so that nobody has the time to react to the death of another: as a power cut.
        for verb in (psutil.Process.suspend, psutil.Process.kill):
            for process in (worker, *children):
                with contextlib.suppress(psutil.NoSuchProcess):
                    verb(process)

    def _stand_still(self) -> None:
        worker, children = self._workers.one()
        process = self._dice.choice([worker, *children])
        process.suspend()
        time.sleep(self._dice.uniform(0.1, STILL))
        process.resume()

    def _restart_the_server(self) -> None:
        self._server.restart()

    def _server_stands_still(self) -> None:
        os.kill(self._server.pid, signal.SIGSTOP)
        time.sleep(self._dice.uniform(0.1, STILL))
        os.kill(self._server.pid, signal.SIGCONT)

    def _forget_scripts(self) -> None:
        self._server.owner.script_flush()

    def _fill(self) -> None:
        self._server.owner.config_set("maxmemory", 1)
        time.sleep(self._dice.uniform(0.1, STILL))
        self._server.owner.config_set("maxmemory", 0)

    def _cut(self) -> None:
        clients = self._server.owner.client_list()
        for client in self._dice.sample(clients, min(2, len(clients))):
            self._server.owner.execute_command("CLIENT", "KILL", "ID", client["id"])


def _settle(workers: Workers) -> None:
    """Whatever was stopped goes on, until no job is left that could run."""
    for schedule in app.schedules:
        schedule.pause()
    app.queues["low"].resume()
    while ids := app.workflows.ids(state="stopped"):
        for id in ids:
            app.workflows.get(id).start()

    def quiet() -> bool:
        workers.replace_ended()
        return not any(app.overview().states.get(state, 0) for state in LIVE)

    eventually(quiet, timeout=240, what="no job is left")


def _records(jobs: list[str]) -> Iterator[tuple[str, Record | None]]:
    for first in range(0, len(jobs), 500):
        ids = jobs[first : first + 500]
        yield from zip(ids, app.client.run(produce.read(app.client.keys, ids)), strict=True)


def _verdict(producers: list[Producer], ledger: Ledger) -> None:
    starts, ends = ledger.counts("S"), ledger.counts("E")
    assert not (over := ledger.lines("over")), (
        f"{len(over)} starts beyond a limit, or of a name that is taken: {over[:3]}"
    )
    for name in {name for producer in producers for name in producer.jobs}:
        ids = [job.id for producer in producers for job in producer.jobs[name]]
        for id, record in _records(ids):
            assert record is not None or name in UNIQUE, f"{name} {id} was acknowledged, and is gone"
            if record is not None:
                assert record.state.final, f"{name} {id} is {record.state}"
                assert record.state is not State.SUCCEEDED or ends[id], f"{name} {id} succeeded, but never ended"
            assert not name.startswith("once") or starts[id] <= 1, f"{id} started {starts[id]} times"
    for producer in producers:
        last: dict[str, int] = {}
        for id in dict.fromkeys(line.id for line in ledger.starts()):
            if id in producer.places:
                line, number = producer.places[id]
                assert number > last.get(line, -1), f"{id}, number {number} of {line}, came after {last[line]}"
                last[line] = number
    assert ledger.tokens_grow()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_promise_holds_through_a_minute_of_everything(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """HR_SEED chooses other dice, HR_SECONDS another time."""
    say(f"seed {SEED}")
    server, dice, ledger = new_server(append_only=True), random.Random(SEED), Ledger(tmp_path / "ledger")
    root = Path(__file__).parents[2]
    environ = {
        **os.environ, VARIABLE: str(ledger.path), "HR_SLOTS": str(tmp_path), "HEADRACE_URL": server.url,
        "HEADRACE_LEASE": str(LEASE), "HEADRACE_KILL_TIMEOUT": "2", "HEADRACE_MAX_FINISHED": "1000000",
        "HEADRACE_RESULT_TTL": "3600", "PYTHONPATH": f"{root / 'src'}:{root}",
    }  # fmt: skip
    app.override(url=server.url)
    workers = Workers(tmp_path, environ, dice)
    faults = Faults(workers, server, dice)
    producers, over = [Producer(SEED + n) for n in (1, 2)], threading.Event()
    threads = [threading.Thread(target=producer.run, args=(over,)) for producer in producers]
    try:
        for thread in threads:
            thread.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(dice.uniform(0.3, 2.5))
            faults.one()
            workers.replace_ended()
        over.set()
        for thread in threads:
            thread.join()
        _settle(workers)
        assert not (left := workers.stop()), f"processes are left: {left}"
        _verdict(producers, ledger)
    finally:
        over.set()
        workers.kill()
    assert_invariants(server.owner)
    app.close()
    refused = sum((producer.refused for producer in producers), Counter())
    say(f"{sum(ledger.counts().values())} starts; {dict(faults.counts)}; refused: {dict(refused)}")
