"""``headrace worker --reload=hup``: a worker with new code takes the place of the old one, and what may go wrong."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.model.job import State
from headrace.tasks.job_handle import Job
from headrace.worker.child_process import UNHEARD
from tests.deadline import eventually
from tests.system.rolled import GOOD, HELD, STUCK, Rolled, result

pytestmark = pytest.mark.system


def test_the_parent_stays_while_workers_change_and_nothing_is_suspended(rolled: Rolled, tmp_path: Path) -> None:
    """It stays the same process to those who started it; each worker finds the environment as it was.

    A file of settings that the application reads into its environment may have changed since. A HUP while a worker
    starts is followed by one more start.
    """
    text = "import os\nos.environ.setdefault('SHOP', '{}')\n"
    show = "\n@app.task\ndef show() -> str:\n    return os.environ['SHOP'] + os.environ.get('HEADRACE_PARENT', '')\n"
    rolled.program.write("tasks", HELD + text.format("old") + GOOD.format(version=1) + show)
    worker = rolled.start(ready=False)
    eventually((tmp_path / "began").exists, 60)
    # A wish for runners before there are any.
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        worker.process.send_signal(number)
    (tmp_path / "go").touch()
    worker.says("serves default")
    rolled.program.write("tasks", text.format("new") + GOOD.format(version=2) + show)
    rolled.hup(worker)
    (image,) = eventually(lambda: rolled.claims(worker), 60)
    assert rolled.serving(worker) == image
    assert result(rolled.enqueue("show")) == "new"
    for number in (*UNHEARD, signal.SIGPIPE):
        worker.process.send_signal(number)
    os.kill(image, signal.SIGHUP)
    worker.says(f"HUP reloads nothing here: send it to process {worker.process.pid}")
    (tmp_path / "go").unlink()
    rolled.program.write("tasks", HELD + GOOD.format(version=3))
    rolled.hup(worker)
    eventually(lambda: "".join(list(worker.lines)).count("is starting") == 2, 60)
    rolled.hup(worker)
    worker.says("a reload is in progress")
    rolled.hup(worker)
    rolled.code(4)
    (tmp_path / "go").touch()
    eventually(lambda: len(rolled.claims(worker)) == 3, 150)
    assert result(rolled.enqueue("nap", 0)) == 4
    assert rolled.serving(worker) == rolled.claims(worker)[-1]
    assert worker.stop() == 0
    assert len(rolled.claims(worker)) == 3


def test_without_the_flag_hup_is_refused_by_a_line_that_names_it(rolled: Rolled) -> None:
    worker = rolled.start(reload="")
    rolled.code(2)
    rolled.hup(worker)
    worker.says("HUP reloads nothing here: start the worker with --reload=hup")
    assert result(rolled.enqueue("nap", 0)) == 1
    assert worker.stop() == 0


def test_a_worker_that_cannot_work_replaces_nothing_and_says_why(rolled: Rolled, tmp_path: Path) -> None:
    """And the next one takes over. Other reasons are in test_images.py."""
    (tmp_path / "tmp").mkdir()
    rolled.program.environment["TMPDIR"] = str(tmp_path / "tmp")
    worker, said = rolled.start("--log", "json"), "nothing is replaced: the new worker did not become ready: "
    rolled.program.write("tasks", "import math\nmath.sqrt(-1)\n")
    rolled.hup(worker)
    failed = worker.says(f"{said}the module 'tasks' raised while it was imported: ValueError")
    assert '"level":"error"' in failed
    worker.says("math.sqrt(-1)")
    assert len(list((tmp_path / "tmp").iterdir())) == 1, "the file for probes of the worker that serves"
    assert result(rolled.enqueue("nap", 0)) == 1
    rolled.program.write("tasks", STUCK)
    rolled.hup(worker)
    eventually((tmp_path / "stuck").exists, 60)
    os.kill(rolled.starting(worker), signal.SIGKILL)
    worker.says(said + "it left with signal 9")
    assert result(rolled.enqueue("nap", 0)) == 1
    rolled.roll(worker, 7)
    assert result(rolled.enqueue("nap", 0)) == 7
    assert worker.stop() == 0


def test_the_old_code_claims_until_the_runners_of_the_new_have_settled_in(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start()
    slow = f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.005)"
    mark = f"open({str(tmp_path / 'began')!r}, 'w').close()"
    text = GOOD.format(version=2)
    rolled.program.write("tasks", f"{text}\n@app.after_fork_child\ndef connect() -> None:\n    {mark}\n    {slow}\n")
    rolled.hup(worker)
    eventually((tmp_path / "began").exists, 60)
    eventually(lambda: len(rolled.app.overview().workers) == 2, 60)
    assert not any("is serving; old process" in line for line in list(worker.lines))
    (tmp_path / "go").touch()
    eventually(lambda: rolled.claims(worker), 60)
    assert result(rolled.enqueue("nap", 0)) == 2


def test_a_new_worker_that_is_given_up_charges_no_job_that_it_runs(rolled: Rolled, tmp_path: Path) -> None:
    """Its process runners have settled in, and work; its threads never do."""
    rolled.program.environment["HEADRACE_RELOAD_TIMEOUT"] = "40"
    worker = rolled.start("--processes", "1")
    busy = [rolled.enqueue("gate", str(tmp_path / "go"))]
    eventually((tmp_path / "go.began").exists, 60)
    stuck = "\n@app.lifespan(kind='thread')\ndef connect():\n    time.sleep(600)\n    yield\n"
    thread = "\n@app.task(kind='thread')\ndef other() -> None: ...\n"
    rolled.program.write("tasks", GOOD.format(version=2) + stuck + thread)
    rolled.hup(worker)
    busy.append(rolled.enqueue("gate", str(tmp_path / "go2")))
    eventually((tmp_path / "go2.began").exists, 60)
    worker.says("did not become ready: it was not ready within 40 s")
    for name in ("go", "go2"):
        (tmp_path / name).touch()
    for job in busy:
        assert result(job) in (1, 2)
        assert job.refresh().crashes == 0


def test_a_killed_worker_loses_nothing_and_those_of_a_killed_parent_finish(rolled: Rolled, tmp_path: Path) -> None:
    rolled.program.environment["HEADRACE_LEASE"] = "8"
    worker = rolled.start("--shutdown-timeout", "60s")

    def begun(name: str) -> Job[Any]:
        job = rolled.enqueue("gate", str(tmp_path / name))
        eventually((tmp_path / f"{name}.began").exists, 60)
        return job

    old, first = rolled.serving(worker), begun("first")
    rolled.roll(worker, 2)
    # It was finishing its jobs.
    os.kill(old, signal.SIGKILL)
    eventually(lambda: first.refresh().attempt == 2, 60)
    (tmp_path / "first").touch()
    assert (result(first), first.refresh().crashes) == (2, 1)
    jobs = [begun("second")]
    rolled.roll(worker, 3)
    jobs.append(begun("third"))
    rolled.family(worker)
    before = sum("stops claiming" in line for line in list(worker.lines))
    worker.process.kill()
    worker.process.wait(60)
    eventually(lambda: sum("stops claiming" in line for line in list(worker.lines)) == before + 1, 60)
    for name in ("second", "third"):
        (tmp_path / name).touch()
    assert [result(job) for job in jobs] == [2, 3]
    assert {job.refresh().attempt for job in jobs} == {1}
    assert worker.ended() == -signal.SIGKILL
    eventually(lambda: not rolled.living(), 60)


def test_a_stop_while_one_starts_ends_them_all(rolled: Rolled, tmp_path: Path) -> None:
    worker = rolled.start()
    rolled.program.write("tasks", STUCK)
    rolled.hup(worker)
    eventually((tmp_path / "stuck").exists, 60)
    rolled.family(worker)
    assert worker.stop(signal.SIGINT) == 0
    eventually(lambda: not rolled.living(), 60)


def test_a_stop_while_the_first_one_starts_ends_it(rolled: Rolled, tmp_path: Path) -> None:
    rolled.program.write("tasks", STUCK)
    worker = rolled.start(ready=False)
    eventually((tmp_path / "stuck").exists, 60)
    rolled.family(worker)
    assert worker.stop() == 128 + signal.SIGTERM
    eventually(lambda: not rolled.living(), 60)


def test_a_worker_that_ends_unasked_ends_the_parent_with_its_code(rolled: Rolled) -> None:
    rolled.program.write("tasks", "raise RuntimeError('no model')\n")
    worker = rolled.start(ready=False)
    assert worker.ended() == 4
    worker.says("the worker did not become ready: the module 'tasks' raised")
    rolled.code(1)
    worker = rolled.start()
    # The parent learns that the worker serves before the job has ended.
    assert result(rolled.enqueue("nap", 0)) == 1
    os.kill(rolled.serving(worker), signal.SIGKILL)
    worker.says("which was serving, was ended by signal 9")
    assert worker.ended() == 128 + signal.SIGKILL


@pytest.mark.slow
def test_ten_reloads_under_load_lose_and_charge_nothing(rolled: Rolled, tmp_path: Path) -> None:
    task = "\n@app.task(kind={0!r})\n{1} work_{0}() -> int:\n    return VERSION\n"
    words = {kind: "async def" if kind == "async" else "def" for kind in ("process", "fork", "thread", "async")}
    code = GOOD + "".join(task.format(kind, word) for kind, word in words.items())
    rolled.program.write("tasks", code.format(version=1))
    worker = rolled.start("--shutdown-timeout", "600s")
    long = rolled.enqueue("gate", str(tmp_path / "go"))
    eventually((tmp_path / "go.began").exists, 60)
    jobs = [long]
    for version in range(2, 12):
        jobs += [rolled.enqueue(f"work_{kind}") for kind in words for _ in range(10)]
        rolled.program.write("tasks", code.format(version=version))
        taken = len(rolled.claims(worker))
        rolled.hup(worker)
        while len(rolled.claims(worker)) == taken:
            # Some that go on at any moment, and a processor for the worker that starts.
            jobs += [*(rolled.enqueue(f"work_{kind}") for kind in words), rolled.enqueue("nap", 0.1)]
            assert result(jobs[-1], 60) <= version
    assert result(rolled.enqueue("work_fork")) == 11
    (tmp_path / "go").touch()
    assert result(long) == 1, "it finished where it had begun"
    for job in jobs:
        result(job)
        record = job.refresh()
        assert (record.state, record.attempt, record.crashes, record.interruptions) == (State.SUCCEEDED, 1, 0, 0)
    assert worker.stop() == 0
    assert not rolled.app.overview().workers


def test_ctrl_c_in_a_terminal_lets_both_workers_finish(rolled: Rolled, tmp_path: Path) -> None:
    """The terminal signals every process of the foreground; each hears it once."""
    worker = rolled.start("--shutdown-timeout", "60s", start_new_session=True)
    first = rolled.enqueue("gate", str(tmp_path / "go"))
    eventually((tmp_path / "go.began").exists, 60)
    (tmp_path / "go.began").unlink()
    rolled.roll(worker, 2)
    second = rolled.enqueue("gate", str(tmp_path / "go"))
    eventually((tmp_path / "go.began").exists, 60)
    rolled.family(worker)
    os.killpg(worker.process.pid, signal.SIGINT)
    eventually(lambda: sum("stops claiming" in line and "still run: 1" in line for line in list(worker.lines)) == 2, 60)
    (tmp_path / "go").touch()
    assert [result(first), result(second)] == [1, 2]
    assert {job.refresh().attempt for job in (first, second)} == {1}
    assert worker.ended() == 0
    eventually(lambda: not rolled.living(), 60)


def test_neither_blocked_signals_nor_few_descriptors_of_its_starter_hold_it_up(rolled: Rolled) -> None:
    """It hears what was blocked, and has more runners than the soft limit of descriptors allows."""
    start = (
        "import os, resource as r, signal, sys; r.setrlimit(r.RLIMIT_NOFILE, (64, r.getrlimit(r.RLIMIT_NOFILE)[1])); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD]); "
        "os.execv(sys.executable, [sys.executable, '-m', 'headrace', *sys.argv[1:]])"
    )
    worker = rolled.start_by(sys.executable, "-c", start, after=("--processes", "24"))
    assert {result(job) for job in [rolled.enqueue("nap", 0.01) for _ in range(50)]} == {1}
    assert "died" not in "".join(worker.lines)
    assert worker.stop() == 0


def test_a_link_to_the_release_is_followed_to_its_code_and_its_interpreter(rolled: Rolled, tmp_path: Path) -> None:
    """The program lies behind the link, and its first line names the interpreter that was installed with it."""
    show = "\n@app.task\ndef show() -> str:\n    import sys\n    return sys.executable\n"
    pythons = [tmp_path / "release-1" / "python", tmp_path / "release-2" / "python"]
    for version, python in enumerate(pythons, 1):
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        (python.parent / "tasks.py").write_text(GOOD.format(version=version) + show)
        program = python.parent / "headrace-here"
        program.write_text(f"#!{python}\nfrom headrace.cli import main\nmain()\n")
        program.chmod(0o755)
    current = tmp_path / "current"
    current.symlink_to("release-1")
    paths = [path for path in sys.path if path] + [str(Path.cwd() / "src")]
    rolled.program.environment |= {"PYTHONPATH": os.pathsep.join(paths), "PWD": str(current)}
    worker = rolled.start_by(str(current / "headrace-here"), cwd=current)
    assert [result(rolled.enqueue("show")), result(rolled.enqueue("nap", 0))] == [str(pythons[0]), 1]
    current.unlink()
    current.symlink_to("release-2")
    rolled.hup(worker)
    eventually(lambda: rolled.claims(worker), 60)
    assert [result(rolled.enqueue("show")), result(rolled.enqueue("nap", 0))] == [str(pythons[1]), 2]
    # A deploy that removed the interpreter of the release: nothing can be started, nothing stops.
    pythons[1].unlink()
    rolled.hup(worker)
    worker.says("no process could be started, so nothing is replaced: [Errno 2]")
    assert result(rolled.enqueue("nap", 0)) == 2
    assert worker.stop() == 0


def _in_terminal(rolled: Rolled, *before: str, words: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """A worker in the foreground of a terminal of its own, and our end of that."""
    ours, theirs = pty.openpty()
    # Named after the fork, as it was, the terminal becomes that of the new session. Whoever runs the suite by nohup means
    # the suite.
    take = (
        "import os, sys, fcntl, termios, signal; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", take, *before, sys.executable, "-m", "headrace", "worker", "tasks:app", "--processes", "1", *words],
        cwd=rolled.program.directory, env=rolled.program.environment, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


@pytest.mark.parametrize(
    ("before", "words"),
    [((), []), ((), ["--reload=hup"]), (("nohup",), ["--reload=hup"])],
    ids=["alone", "reload", "nohup"],
)
def test_the_end_of_its_terminal_stops_a_worker(rolled: Rolled, before: tuple[str, ...], words: list[str]) -> None:
    process, ours = _in_terminal(rolled, *before, words=words)
    try:
        eventually(lambda: rolled.app.overview().workers, 60)
        os.close(ours)
        if before:
            # It is told, and goes on.
            os.kill(process.pid, signal.SIGHUP)
            assert result(rolled.enqueue("nap", 0)) == 1
            process.terminate()
        assert process.wait(60) == 0
        assert not rolled.app.overview().workers
    finally:
        process.kill()
        process.wait()


def test_as_the_first_process_of_a_container_it_reaps(rolled: Rolled, tmp_path: Path) -> None:
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no process namespace")
    # A child of a child, left to the first process of the namespace, and ended.
    body = "    if not (pid := os.fork()):\n        os.fork()\n        os._exit(0)\n    os.waitpid(pid, 0)\n"
    orphan = f"\n@app.task\ndef orphan() -> None:\n{body}"
    rolled.program.write("tasks", GOOD.format(version=1) + orphan)
    worker = rolled.start_by(*apart, sys.executable, "-m", "headrace")
    (first,) = psutil.Process(worker.process.pid).children()
    first.send_signal(signal.SIGHUP)
    eventually(lambda: rolled.claims(worker), 60)
    eventually(lambda: len(first.children()) == 1, 60)
    jobs = [rolled.enqueue("orphan") for _ in range(3)]
    for job in jobs:
        job.result(timeout=60)

    def clean() -> bool:
        return not [child for child in first.children(recursive=True) if child.status() == psutil.STATUS_ZOMBIE]

    eventually(clean, 60)
    first.terminate()
    assert worker.ended() == 0
