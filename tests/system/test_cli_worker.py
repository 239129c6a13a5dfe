"""``headrace worker`` as a process: how it greets, logs, waits for its server and stops."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import Headrace
from headrace import __version__ as headrace_version
from tests.commands import Commands
from tests.deadline import eventually
from tests.processes import dispatcher_of
from tests.program import Worker, on_terminal
from tests.servers import Server

pytestmark = pytest.mark.system

THREAD = """
import threading
threading.Thread(target=time.sleep, args=[60], name="poller", daemon=True).start()
"""


def test_what_runners_are_forked_from_has_nothing_of_the_command_line_and_ends_quietly(
    headrace: Commands, worker: Callable[..., Worker], url: str
) -> None:
    text = "\n@app.task\ndef loaded() -> list[str]:\n    import sys\n    return sorted(sys.modules)\n"
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + text)
    one = worker(own=True)
    with Headrace(url) as app:
        loaded = set(app.by_name("tasks.loaded").enqueue().result(timeout=60))
    assert one.stop(signal.SIGINT) == 0
    assert "Traceback" not in "".join(one.lines)
    assert {"typer", "rich", "pydantic"} & loaded == set()
    assert "headrace.worker.supervisor" in loaded


def test_forks_of_jobs_share_the_driver_once_a_job_has_used_it(
    headrace: Commands, worker: Callable[..., Worker], url: str
) -> None:
    text = """import sys
from headrace import Headrace

app = Headrace()


@app.task(kind="fork")
def loaded() -> list[str]:
    return sorted({"asyncio", "hiredis", "redis", "ssl"} & sys.modules.keys())


@app.task(kind="fork")
def starts_another() -> str:
    return loaded.enqueue().id
"""
    headrace.write("tasks", text)
    worker("--forks", "1", own=True)
    with Headrace(url) as app:

        def ran(name: str) -> Any:
            return app.by_name(f"tasks.{name}").enqueue().result(timeout=60)

        assert ran("loaded") == []
        assert app.jobs.get(ran("starts_another")).state
        # Of the jobs that began before the fork server had learned of it, one follows at most.
        ran("loaded")
        assert {"hiredis", "redis"} <= set(ran("loaded"))


def test_it_keeps_the_flags_of_its_interpreter(headrace: Commands) -> None:
    flags = ("-X", "importtime", "-W", "error::ImportWarning")
    ended = subprocess.run(
        [sys.executable, *flags, "-m", "headrace", "worker", "tasks:app", "--burst"],
        cwd=headrace.directory, env=headrace.environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert re.search(r"import time: .* headrace\.worker\.supervisor", ended.stderr)


def test_it_introduces_itself_is_listed_resized_and_stopped(headrace: Commands, worker: Callable[..., Worker]) -> None:
    """Whether it lives is an exit code, for a probe of its container."""
    # A heartbeat tells what it runs.
    headrace.environment["HEADRACE_LEASE"] = "5"
    text = '\n@app.task(kind="thread", queue="high")\ndef threaded() -> None: ...\n'
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + text)
    one = worker("--queues", "high:3,low:1", "--shutdown-timeout", "7s", "--threads", "2")
    one.says("serves high, low")
    banner = "".join(one.lines[:6])
    for text in (f"process {one.process.pid}", "tasks:app, 5 tasks", "Valkey 9", "high (weight 3), low (weight 1)"):
        assert text in banner
    assert "1 process" in banner
    assert "get 7.0s to finish" in banner
    (listed,) = headrace("workers", "list", "--json").lines
    name, place = listed["worker"], f"{socket.gethostname()}:{one.process.pid}"
    assert (listed["queues"], listed["runners"]) == (["high", "low"], {"process": 1, "thread": 1})
    assert 0 < listed["lease_left"] <= 5
    assert (listed["version"], listed["draining"]) == (headrace_version, False)
    assert name in headrace("workers", "list").out
    assert name in on_terminal(headrace, "workers", "list", columns=40)
    assert headrace("workers", "show", place, "--json").json["place"] == place

    assert headrace("workers", "scale", place, "2").out.endswith(": 2 at once, of kind process\n")
    told = headrace("workers", "scale", place, "3", "--kind", "thread", "--json").json
    assert (told["kind"], told["size"]) == ("thread", 3)
    eventually(lambda: headrace("workers", "show", place, "--json").json["sizes"] == {"process": 2, "thread": 3}, 60)
    refused = headrace("workers", "scale", place, "3", "--kind", "async", code=1).fault
    assert "has no async runners: it has process, thread" in refused

    id = headrace.enqueue("tasks.nap", "600", "--queue", "low")
    eventually(lambda: id in headrace("workers", "show", name, "--json").out, 60)
    assert id in headrace("workers", "show", name).out
    headrace("jobs", "cancel", id)
    assert headrace("workers", "stop", name).out == f"told {name} to stop\n"
    one.says("stops claiming")
    assert one.process.wait(60) == 0
    assert "no worker is named" in headrace("workers", "stop", name, code=1).fault
    assert "no worker is named" in headrace("workers", "show", place, code=1).fault
    assert "no worker serves this server" in headrace("workers", "list").err


def test_json_lines_have_fields_and_a_burst_tells_how_many_jobs_it_ran(
    headrace: Commands, worker: Callable[..., Worker]
) -> None:
    # No renewal would wake one that finds nothing within the patience of this test.
    headrace.environment["HEADRACE_LEASE"] = "3600"
    ids = [headrace.enqueue("tasks.add", str(n)) for n in range(3)]
    one = worker("--json", "--burst")
    assert one.ended() == 0
    lines = [json.loads(line) for line in one.lines]
    assert lines[0]["event"] == "worker starts"
    assert lines[0]["app"] == "tasks:app, 4 tasks"
    said = next(line for line in lines if line["event"] == "adding")
    assert (said["task"], said["level"], said["logger"], said["customer"]) == ("tasks.add", "warning", "shop", 7)
    assert said["job"] in ids
    assert said["time"].endswith("Z")
    text = "".join(one.lines)
    assert "jobs that have run: 3; that still run: 0" in text
    assert "jobs that have run: 3" in text.partition("that still run: 0")[2]
    again = worker("--burst")
    assert again.ended() == 0


def test_a_queue_of_its_tasks_that_nobody_serves_is_told_and_remarked(
    headrace: Commands, worker: Callable[..., Worker]
) -> None:
    text = "from headrace import Headrace\napp = Headrace()\n@app.task(queue='mail')\ndef send() -> None: pass\n"
    headrace.write("post", text)
    one = worker(target="post:app")
    one.says("WARNING no worker serves queue mail, where jobs of post.send go; those of this worker are default")
    one.says("serves default")
    remark = (
        "no worker serves mail: jobs there wait until one is started with --queues mail; see 'Why does my job not run?'"
    )
    enqueued = headrace("enqueue", "post.send", "--app", "post:app")
    assert remark in enqueued.err
    id = enqueued.out.strip()
    assert headrace("enqueue", "tasks.add", "1").err == ""
    told = headrace("enqueue", "post.send", "--app", "post:app", "--json")
    assert (told.json["queue"], told.err) == ("mail", "")
    for command in ("queues", "jobs"):
        assert remark in headrace(command, "list").err
    rows = {queue["name"]: queue for queue in headrace("queues", "list", "--json").lines}
    assert (rows["mail"]["workers"], rows["default"]["workers"]) == (0, 1)
    said = "no worker serves queue mail; workers serve default"
    assert said in headrace("jobs", "show", id).out
    assert said in headrace("jobs", "show", id, "--json").json["waits"]
    assert said in headrace("jobs", "result", id, "--timeout", "0.1", code=5).fault
    other = worker("--queues", "mail", target="post:app")
    other.says("serves mail")
    assert headrace("jobs", "result", id, "--timeout", "20").out
    assert headrace("queues", "list").err == ""
    assert not [line for line in other.lines if "WARNING" in line]
    assert headrace("jobs", "show", id, "--json").json["waits"] is None


def test_quiet_says_nothing_when_all_is_well(worker: Callable[..., Worker]) -> None:
    one = worker("--quiet", "--burst", own=True)
    assert one.ended() == 0
    assert one.lines == []


def test_a_quiet_worker_finishes_its_job_takes_no_other_and_stays_until_it_is_stopped(
    headrace: Commands, worker: Callable[..., Worker], tmp_path: Path
) -> None:
    text = "\n@app.task\ndef waits(path: str) -> None:\n    import os, time\n"
    text += "    while not os.path.exists(path): time.sleep(0.01)\n"
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + text)
    one = worker()
    one.says("serves default")
    first = headrace("enqueue", "tasks.waits", str(tmp_path / "go"), "--json").json["id"]
    eventually(lambda: headrace("jobs", "show", first, "--json").json["state"] == "running", 60)
    name = headrace("workers", "list", "--json").lines[0]["worker"]
    assert headrace("workers", "quiet", name).out == f"told {name} to claim no more\n"
    one.says("stops claiming")
    eventually(lambda: headrace("workers", "show", name, "--json").json["quiet"], 60)
    second = headrace("enqueue", "tasks.waits", str(tmp_path / "go"), "--json").json["id"]
    (tmp_path / "go").touch()
    eventually(lambda: headrace("jobs", "show", first, "--json").json["state"] == "succeeded", 60)
    dispatcher = dispatcher_of(one.process.pid)
    assert dispatcher is not None
    dispatcher.kill()
    one.says("the dispatcher died")
    one.says("serves default")

    def successors() -> list[str]:
        rows = headrace("workers", "list", "--json").lines
        return [row["worker"] for row in rows if row["quiet"] and row["worker"] != name]

    (name,) = eventually(successors, 60)
    assert ", quiet" in headrace("workers", "list").out
    assert headrace("jobs", "why", second, "--json").json["reasons"][0]["code"] == "draining"
    headrace("workers", "stop", name)
    assert one.process.wait(60) == 0
    assert headrace("jobs", "show", second, "--json").json["state"] == "ready"


def test_no_password_is_logged(
    tmp_path: Path, new_server: Callable[..., Server], worker: Callable[..., Worker], headrace: Commands
) -> None:
    server = new_server(password="open-sesame")
    headrace.environment["HEADRACE_URL"] = server.url
    headrace.write(
        "leaky",
        "import logging, os\nfrom tasks import app\n@app.after_fork_child\n"
        "def tell():\n    logging.getLogger('x').warning(os.environ['HEADRACE_URL'])",
    )
    one = worker(target="leaky:app")
    assert "***" in one.says("WARNING x: unix://")
    assert one.stop() == 0
    assert "open-sesame" not in "".join(one.lines)


def test_a_password_on_the_command_line_leaves_the_list_of_processes(
    new_server: Callable[..., Server], worker: Callable[..., Worker], headrace: Commands
) -> None:
    server = new_server(password="open-sesame")
    one = worker("--url", server.url, own=True)
    one.says("the password in --url is in the list of processes")
    one.says("serves default")
    process = psutil.Process(one.process.pid)
    assert "***" in " ".join(process.cmdline())
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert "sesame" not in " ".join(each.cmdline())
    assert one.stop() == 0
    said = "".join(one.lines)
    assert "open-sesame" not in said
    assert said.count("list of processes") == 1
    assert "list of processes" in headrace("queues", "list", "--url", server.url).err
    assert "list of processes" not in headrace("queues", "list", HEADRACE_URL=server.url).err


def test_a_worker_that_reloads_shows_no_password_either(
    new_server: Callable[..., Server], worker: Callable[..., Worker]
) -> None:
    server = new_server(password="open-sesame")
    one = worker("--reload", f"--url={server.url}")
    one.says("the password in --url is in the list of processes")
    one.says("serves default")
    process = psutil.Process(one.process.pid)
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert "sesame" not in " ".join(each.cmdline())
    assert "--reload" in process.cmdline()
    assert one.stop() == 0
    assert "".join(one.lines).count("list of processes") == 1


def test_an_application_that_configures_logging_keeps_its_own(
    headrace: Commands, worker: Callable[..., Worker]
) -> None:
    headrace.write(
        "shop",
        "import logging.config\nfrom tasks import app\n"
        "logging.config.dictConfig({'version': 1, 'formatters': {'f': {'format': 'SHOP %(message)s'}},"
        " 'handlers': {'h': {'class': 'logging.StreamHandler', 'formatter': 'f'}},"
        " 'root': {'handlers': ['h'], 'level': 'INFO'}})",
    )
    headrace.enqueue("tasks.add", "1")
    one = worker("--burst", target="shop:app")
    assert one.ended() == 0
    assert "SHOP adding\n" in one.lines
    assert next(line for line in one.lines if "serves default" in line).startswith("20")


def test_an_interrupted_command_is_quiet(headrace: Commands) -> None:
    id = headrace.enqueue("tasks.nap", "1")
    waiting = headrace.start("enqueue", "tasks.nap", "1", "--wait")
    try:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().strip() > id, "it waits once it has said the id"
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
        waiting.communicate()
    assert (waiting.returncode, out, err) == (130, "", "")


def test_it_warns_of_tasks_that_are_not_included_and_of_a_thread_before_the_fork(
    headrace: Commands, worker: Callable[..., Worker]
) -> None:
    headrace.write("mail", "from headrace import Tasks\ntasks = Tasks()\n@tasks.task\ndef send() -> None: pass")
    headrace.write("tasks", (headrace.directory / "tasks.py").read_text() + "\nimport mail\n" + THREAD)
    started = worker()
    started.says("the import of tasks:app started the thread 'poller' (runs time.sleep)")
    started.says("start it in @app.after_fork_child")
    started.says("the Tasks of mail are in no application: app.include(...) with them has them run here")


@pytest.mark.parametrize("wait", ["job.result()", "app.wait([job])", "asyncio.run(job.aresult())"])
def test_a_module_that_waits_while_the_worker_imports_it_is_refused(headrace: Commands, wait: str) -> None:
    """The worker waited for itself, for ever, without a line."""
    code = f"import asyncio\n{(headrace.directory / 'tasks.py').read_text()}\njob = add.enqueue(1)\nprint({wait})\n"
    headrace.write("waiting", code)
    ended = headrace("worker", "waiting:app", "--burst", code=4)
    assert "WaitRefused" in ended.err
    assert "while headrace imports the module waiting" in ended.err
    assert "under `if __name__ == '__main__':`" in ended.err
