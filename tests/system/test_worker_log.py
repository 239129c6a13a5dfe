"""Who reads a worker's output may stop reading, go away or never have been there: no job and no lease suffers."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.model.job import State
from tests.deadline import eventually
from tests.program import Program, Worker

pytestmark = pytest.mark.system

CHORES = """
import pathlib

@app.task
def flood(seconds: float = 0.0) -> int:
    for stream in (sys.stderr, sys.stdout):
        for _ in range(30):
            stream.write("x" * 99_999 + "\\n")
        if stream is sys.stderr:
            logging.getLogger("shop").warning("flooded")
    time.sleep(seconds)
    return current_job().attempt

@app.task
def murmur(text: str) -> None:
    print(text, end="", file=sys.stderr)
    logging.getLogger("shop").warning("said")

@app.task(max_crashes=1)
def dies() -> None:
    os.write(2, b"last words")
    os._exit(9)

@app.task
def mutter(text: str, path: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
"""


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Program:
    headrace = Program(tmp_path, url, own=True)
    headrace.write("tasks", (tmp_path / "tasks.py").read_text() + CHORES)
    return headrace


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for one in made:
        if one.poll() is None:
            one.terminate()
            one.wait(60)
        one.communicate()


def test_a_reader_of_the_log_that_stops_costs_neither_the_lease_nor_a_job(
    headrace: Program, app: Headrace, started: list[subprocess.Popen[str]]
) -> None:
    headrace.environment["HEADRACE_LEASE"] = "9"
    # Nobody reads its stderr until the end.
    process = headrace.start("worker", "tasks:app", "--processes", "2", stdout=subprocess.DEVNULL)
    started.append(process)
    # Two leases long, behind a full pipe.
    assert app.by_name("tasks.flood").enqueue(18.0).result(timeout=60) == 1
    assert app.by_name("tasks.add").enqueue(1).result(timeout=60) == 2
    read = Worker(process)
    started.remove(process)
    try:
        read.says("lines of output were dropped, since their reader was too slow")
        assert read.stop() == 0
        assert not any("could not be kept" in line for line in read.lines)
    finally:
        read.close()


@pytest.mark.parametrize("how", ["<&- >&- 2>&-", ""], ids=["closed", "the reader went away"])
def test_closed_streams_end_nothing_and_fail_no_job(
    headrace: Program, app: Headrace, started: list[subprocess.Popen[str]], how: str
) -> None:
    command = shlex.join([sys.executable, "-m", "headrace", "worker", "tasks:app", "--processes", "1"])
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command} {how}"],
        cwd=headrace.directory, env=headrace.environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(process)
    assert process.stdout is not None
    assert process.stderr is not None
    for stream in (process.stdout, process.stderr):
        stream.close()
    process.stdout = process.stderr = None
    jobs = [app.by_name("tasks.flood").enqueue() for _ in range(3)]
    assert [job.result(timeout=60) for job in jobs] == [1, 1, 1]
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    process.terminate()
    assert process.wait(60) == 0


def test_a_line_that_a_job_does_not_end_takes_no_other_line_with_it(
    headrace: Program, app: Headrace, tmp_path: Path
) -> None:
    worker = Worker(headrace.start("worker", "tasks:app", "--processes", "1", "--log", "json"))
    try:
        worker.says("serves default")
        app.by_name("tasks.mutter").enqueue("no end", str(tmp_path / "go"))
        # It is shown, although the job goes on without a word.
        assert worker.says("no end") == "no end\n"
        before = len(worker.lines)
        worker.process.send_signal(signal.SIGTTIN)
        worker.says("at once")
        (tmp_path / "go").touch()
        for line in worker.lines[before:]:
            assert json.loads(line)
        # That of a runner is shown when it dies.
        job = app.by_name("tasks.dies").enqueue()
        assert worker.says("last words") == "last words\n"
        eventually(lambda: job.state.final, 60)
        assert "last words" in str(job.refresh())
        assert worker.stop() == 0
    finally:
        worker.close()


SECRETIVE = """
app.job_log("INFO")

@app.task
def tell(secret: str, token: str) -> str:
    log = logging.getLogger("shop")
    log.warning("hello password=%s", secret, extra={"api_key": token})
    log.debug("not told")
    add.enqueue(1)
    raise ValueError(f"https://user:{secret}@host refused token={token}")

@app.workflow
def pair(flow):
    flow.run(add, 1, name="first")
"""


BLOCKERS = """
import asyncio

@app.task
async def blocks() -> None:
    time.sleep(1.2)
    await asyncio.sleep(0)  # here

@app.task
async def ends() -> None:
    time.sleep(1.2)

@app.task
async def waits() -> None:
    await asyncio.sleep(1.2)
"""


def json_log(headrace: Program) -> tuple[str, list[dict[str, object]]]:
    headrace.own = False
    said = headrace.burst("--log", "json").err
    return said, [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_lines_about_a_job_carry_what_is_known_of_it_and_hide_what_is_secret(headrace: Program, app: Headrace) -> None:
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + SECRETIVE)
    job = app.by_name("tasks.tell").enqueue(secret="canary1", token="canary2")
    run = headrace("workflows", "create", "tasks.pair", "--start", "--app", "tasks:app", "--json").json["id"]
    # A log line does not go on in one that a job has not ended: programs that read the log could not read that line.
    app.enqueue_many(app.by_name("tasks.murmur").job("no newline") for _ in range(3))
    said, lines = json_log(headrace)
    assert said.splitlines().count("no newline") == 3
    assert [line["event"] for line in lines].count("said") == 3
    about = [line for line in lines if line.get("task") == "tasks.tell"]
    assert [(line["logger"], line.get("code")) for line in about] == [("shop", None), ("headrace.worker", "job.failed")]
    for line in about:
        assert line["job"] == line["correlation"] == job.id
        assert (line["queue"], line["attempt"]) == ("default", 1)
        assert str(line["worker"]).count(":") == 1
    assert about[0]["api_key"] == "***"
    assert about[1]["error"] == "ValueError"
    assert float(str(about[1]["ran"])) > 0
    # What it enqueued has its correlation; a node names its workflow and itself.
    added = {str(line["correlation"]): line for line in lines if line.get("task") == "tasks.add"}
    assert added.keys() == {job.id, run}
    assert added[job.id]["job"] != job.id
    assert (added[run]["workflow"], added[run]["node"]) == (run, "first")
    # The log of the job is that of logging; neither it, nor the log, nor the lists of commands tell what is secret.
    assert job.logs() == ["WARNING shop: hello password=***"]
    shown = [headrace("jobs", verb, *more).out for verb, more in (("show", [job.id]), ("list", []), ("logs", [job.id]))]
    shown += [headrace("jobs", "show", job.id, "--json").out, headrace("jobs", "list", "--json").out]
    for text in (said, *shown):
        assert "canary" not in text
    assert "canary1" in headrace("jobs", "show", job.id, HEADRACE_REDACT="nothing").out


def test_figures_whose_names_look_secret_are_shown(headrace: Program, app: Headrace) -> None:
    app.stats.add("llm", {"tokens": 512})
    app.stats.close()
    assert '"tokens":512' in headrace("stats", "show", "llm", "--json").out


def test_a_task_that_blocks_its_event_loop_is_named_once_and_a_flood_of_failures_is_counted(
    headrace: Program, app: Headrace
) -> None:
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + BLOCKERS)
    job = app.by_name("tasks.blocks").enqueue()
    app.enqueue_many(app.by_name(name).job() for name in ("tasks.blocks", "tasks.ends", "tasks.waits"))
    app.enqueue_many(app.by_name("tasks.fail").job() for _ in range(300))
    _, lines = json_log(headrace)
    failed = [line for line in lines if line.get("code") == "job.failed"]
    more = sum(int(str(line.get("more", 0))) for line in failed)
    assert more + len([line for line in failed if "more" not in line]) == 300
    assert more > 100
    named = {str(line["task"]): line for line in lines if line.get("code") == "job.blocks_loop"}
    assert sorted(str(line["task"]) for line in lines if line.get("code") == "job.blocks_loop") == sorted(named)
    assert set(named) == {"tasks.blocks", "tasks.ends"}
    assert named["tasks.blocks"]["job"] in str(named["tasks.blocks"]["event"])
    line = (headrace.directory / "tasks.py").read_text().splitlines().index("    await asyncio.sleep(0)  # here") + 1
    assert f"before tasks.py:{line} in blocks, where the job paused next" in str(named["tasks.blocks"]["event"])
    assert "before the end of the job" in str(named["tasks.ends"]["event"])
    assert job.state == "succeeded"
