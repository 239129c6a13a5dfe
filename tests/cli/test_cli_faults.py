"""Wrong input: each ends with its exit code and one line that says what to do; nothing is lost, nothing is printed."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.session import ExitCode, explain
from headrace.model.hidden_values import Redactor
from headrace.settings import WORKER_VARIABLES
from tests.commands import Commands
from tests.servers import Server

ABSENT = "a801hbybfkaavtsxynk00"

USAGE = {
    ("jobs", "shwo"): "Did you mean 'show'? (see headrace jobs --help)",
    ("jobs", "list", "--limti", "3"): "--limit",
    ("--url", "unix:///x", "jobs", "list"): "options stand after the command",
    ("jobs", "--namespace", "x", "list"): "--namespace: options stand after the command",
    ("jobs", "list", "--url"): "'--url' requires an argument (see headrace jobs list --help)",
    ("jobs", "list", "--limit", "0"): "limit must be a whole number from 1 to 1000",
    ("jobs", "list", "--limit", "x"): "'--limit'",
    ("jobs", "list", "--state", "nope"): "'nope' is not one of",
    ("jobs", "list", "--after", "x"): "is not the `next` of a page",
    ("jobs", "list", "--queue", "a b"): "queue name 'a b' cannot be used",
    ("jobs", "show"): "Missing argument 'ID'",
    ("jobs", "result", ABSENT, "--timeout", "soon"): "'--timeout': 'soon' is not a duration",
    ("jobs", "list", "--url", "http://host"): "has the scheme 'http'",
    ("jobs", "list", "--url", "redis://:secret@"): "names no host",
    ("jobs", "list", "--namespace", "a b"): "namespace='a b' cannot be used",
    ("queues", "pause", "x\ny"): "queue name 'x\\ny' cannot be used",
    ("enqueue", "bad name"): "task name 'bad name' cannot be used",
    ("enqueue", "tasks.add", "-1"): "No such option: -1; write an argument that starts with - after --",
    ("enqueue", "tasks.add", "1", "--priority", "1000"): "priority must be a whole number from -100 to 100",
    ("enqueue", "tasks.add", "1", "--delay", "-5"): "'--delay': '-5' is not a duration",
    ("enqueue", "tasks.add", "--kwargs", "[1]"): "is not a JSON object",
    ("enqueue", "tasks.add", "\udcff"): "the argument '\\udcff' cannot be sent: it is not UTF-8",
    ("enqueue", "tasks.add", "1", "--key", "\udcff"): "key must be a text of 1 to 256 characters",
    ("jobs", "again", ABSENT, "x=\udcff"): "cannot be sent: it is not UTF-8",
    ("workflows", "list", "--since", f"{10**12}d"): "is not a time",
    ("cron", "backfill", "nightly", "--from", f"{10**12}d"): "is not a time",
    ("enqueue", "tasks.add", "x=1", "x=2"): "the argument x is given twice",
    ("enqueue", "tasks.add", "1", "--timeout", "1"): "give both",
    ("enqueue", "tasks.add", "1", "2", "3", "--app", "tasks:app"): "takes at most 2 arguments by position",
    ("enqueue", "tasks.add", "one", "--app", "tasks:app"): "argument 'x' of tasks.add: expected int, got str",
    ("enqueue", "tasks.fail", "7", "--app", "tasks:app"): "expected str, got int; a text that is JSON as well needs",
    ("enqueue", "tasks.ad", "1", "--app", "tasks:app"): "did you mean tasks.add?",
    ("worker",): "name the application",
    ("enqueue", "tasks.mean", "[1,2"): """begins as JSON and is none (Input data was truncated); write""",
    ("enqueue", "tasks.mean", "x={1}"): "'\"{1}\"'",
    ("jobs", "list", "--url", ""): "the empty URL has the scheme ''",
    ("worker", "tasks:app", "--processes", "many"): "write a whole number (see",
    ("worker", "-q", "high", "tasks:app"): "-q is --quiet: write --queues NAMES",
    ("beat",): "No such command 'beat': workers fire the schedules",
    ("list",): "No such command 'list': write headrace jobs list",
    ("queues", "lst"): "Did you mean 'list'?",
    ("worker", "tasks:app", "--name", "x"): "No such option: --name: a worker is named by its host",
    ("worker", "-A", "tasks:app"): "No such option: -A: the application comes first",
    ("jobs", "list", "-q"): "No such option: -q: only headrace worker has it",
    ("worker", "tasks:app", "--processes", "0"): "has --processes 0",
    ("worker", "tasks:app", "--processes", "-1"): "processes must be 0 or more",
    ("worker", "tasks:app", "--queues", "high:3,low"): "gives weights to some queues only",
    (
        "worker",
        "tasks:app",
        "--recycle-memory",
        "much",
    ): "'--recycle-memory' (env var: 'HEADRACE_RECYCLE_MEMORY'): 'much' is not a size",
    ("worker", "tasks:app", "--recycle-memory", "512"): "means 512 bytes, and every runner has more: write 512M",
    ("worker", "tasks:app", "--recycle-memory", "9" * 310): "is not a size",
}

APPLICATION = {
    "tasks.py": "a path to a file is not",
    "nosuch:app": "there is no module 'nosuch'",
    "tasks:nope": "did you mean tasks:app?",
    "tasks:add": "not a Headrace application",
    "bare": "holds no application",
    "idle:app": "has no task",
    "forgot:app": "the Tasks of mail are in no application: app.include(...) with them",
    "mistook:app": "mistook' raised while it was imported: headrace.errors.OptionsError: app.include takes headrace.Tasks, not "
    "<module 'mail'",
    "twice:app": "are in another application of this process already",
    "doubles:app": "there is a task mail.send already",
    "nogenerator:app": "OptionsError: a lifespan is a function with one yield, `def` or `async def`, not <function print_it",
    "nokind:app": "OptionsError: kind must be one of process, fork, thread, async, or several of them, not 'threads'",
    "noloop:app": "OptionsError: the lifespan noloop.pool is asynchronous, and runners of the kind process have no event loop",
    "needs:app": "OptionsError: the lifespan needs.pool is called without arguments, and it takes url",
}

WORKERS_ONLY = ("idle:app", "forgot:app", "nosuch:app")


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Commands:
    program = Commands(tmp_path, url)
    program.write("bare", "x = 1")
    program.write("idle", "from headrace import Headrace\napp = Headrace()")
    program.write("mail", "from headrace import Tasks\ntasks = Tasks()\n@tasks.task\ndef send() -> None: pass")
    for name, text in {
        "forgot": "",
        "mistook": "app.include(mail)",
        "twice": "app.include(mail.tasks); Headrace().include(mail.tasks)",
        "nogenerator": "app.lifespan(print_it)",
        "nokind": "app.lifespan(kind='threads')",
        "noloop": "@app.lifespan(kind='process')\nasync def pool(): yield",
        "needs": "@app.lifespan\ndef pool(url): yield url",
        "doubles": "app.task(name='mail.send')(print_it); app.include(mail.tasks)",
    }.items():
        start = "from headrace import Headrace\nimport mail\napp = Headrace()\ndef print_it() -> None: pass\n"
        program.write(name, start + text)
    return program


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage(headrace: Commands, arguments: tuple[str, ...]) -> None:
    ended = headrace(*arguments, code=ExitCode.USAGE)
    assert USAGE[arguments] in ended.fault
    assert ended.out == ""
    assert "secret" not in ended.err


@pytest.mark.parametrize("target", APPLICATION)
def test_an_application_that_cannot_be_used(headrace: Commands, target: str) -> None:
    # Each command that imports an application says the same, and a worker starts a second program for it.
    headrace.own = target == WORKERS_ONLY[0]
    command = ("worker", target) if target in WORKERS_ONLY else ("enqueue", "some.task", "--app", target)
    said = headrace(*command, code=ExitCode.APPLICATION).err
    assert APPLICATION[target] in said.splitlines()[0]


def test_a_module_that_raises_shows_its_own_traceback_and_nothing_else(headrace: Commands) -> None:
    headrace.write("broken", "def f():\n    return 1 / 0\n\nf()")
    said = headrace("worker", "broken:app", code=ExitCode.APPLICATION).err
    assert said.startswith("headrace: the module 'broken' raised while it was imported: ZeroDivisionError")
    assert said.count('File "') == 2
    assert "src/headrace" not in said


def test_a_module_of_tasks_that_cannot_be_imported_is_shown_with_its_line(headrace: Commands) -> None:
    headrace.write("letters", "from headrace import Tasks\nimport stamps_that_nobody_installed\ntasks = Tasks()")
    headrace.write(
        "post", "from headrace import Headrace\nimport letters\napp = Headrace()\napp.include(letters.tasks)"
    )
    said = headrace("worker", "post:app", code=ExitCode.APPLICATION).err
    first, *rest = said.splitlines()
    assert "'post' raised while it was imported: ModuleNotFoundError: No module named 'stamps_that_nobody_" in first
    assert any('letters.py", line 2' in line for line in rest)
    assert "importlib" not in said


def test_a_preload_hook_that_raises_shows_its_own_traceback(headrace: Commands) -> None:
    headrace.write("hooked", "from tasks import app\n@app.on_preload\ndef warm():\n    raise OSError('cold')")
    said = headrace("worker", "hooked:app", code=ExitCode.APPLICATION).err
    assert said.startswith("headrace: the on_preload hook hooked.warm failed: OSError('cold')")
    assert said.count('File "') == 1


def test_a_url_that_cannot_be_used_is_told_with_the_place_that_it_came_from(headrace: Commands) -> None:
    headrace.write("fixed", "from headrace import Headrace\napp = Headrace('http://jobs')\n@app.task\ndef f(): ...")
    for arguments, environment, source in (
        (("jobs", "list"), {"HEADRACE_URL": "http://jobs"}, "HEADRACE_URL"),
        (("jobs", "list", "--url", "http://jobs"), {}, "--url"),
        (("worker", "fixed:app"), {}, "Headrace(url=...)"),
    ):
        assert headrace(*arguments, code=ExitCode.USAGE, **environment).err.splitlines()[0].endswith(f"(from {source})")


def test_a_variable_that_is_no_setting_is_told_once(headrace: Commands) -> None:
    headrace.write(
        "twice", "from headrace import Headrace\nother = Headrace()\napp = Headrace()\n@app.task\ndef f(): ..."
    )
    told = headrace.fresh("enqueue", "twice.f", "--app", "twice:app", HEADRACE_LEESE="3", HEADRACE_APP="twice:app").err
    assert (
        told == "HEADRACE_LEESE is set, but there is no such setting (did you mean HEADRACE_LEASE?): it has no effect\n"
    )


def test_jobs_that_do_not_exist(headrace: Commands) -> None:
    for command in ("show", "result", "logs", "cancel", "retry"):
        assert f"no job {ABSENT} is stored" in headrace("jobs", command, ABSENT, code=ExitCode.FAILED).fault
    assert "is not the id of a job" in headrace("jobs", "show", "zzz", code=ExitCode.FAILED).fault


def test_a_refusal_does_not_repeat_a_whole_file(headrace: Commands) -> None:
    file = "x" * 50_000
    for arguments in (("enqueue", "tasks.add", "1", "--kwargs", file), ("jobs", "again", ABSENT, file), (file,)):
        fault = headrace(*arguments, code=ExitCode.USAGE).fault
        assert "characters left out) xxx" in fault
        assert len(fault) < 1_600
    told = headrace("jobs", "again", ABSENT, file, "--json", code=ExitCode.USAGE)
    assert len(told.out + told.err) < 1_800
    assert headrace("jobs", "again", ABSENT, file, code=ExitCode.USAGE).fault.endswith("each name once")


def test_faults_as_json(headrace: Commands) -> None:
    for arguments, kind, code in (
        (("jobs", "show", ABSENT), "JobNotFound", 1),
        (("jobs", "list", "--limit", "0"), "OptionsError", 2),
        (("jobs", "list", "--nope"), "NoSuchOption", 2),
        (("jobs", "list", "--url", "unix:///absent"), "StoreUnavailable", 3),
    ):
        fault = json.loads(headrace(*arguments, "--json", code=code, HEADRACE_TIMEOUT="5").err)
        assert (fault["type"], fault["exit"]) == (kind, code)
        assert fault["error"]


def test_the_traceback_comes_with_debug_only(headrace: Commands) -> None:
    assert "Traceback (most recent call last)" in headrace("jobs", "show", ABSENT, "--debug", code=1).err


# A real name server may not answer in time.
NO_NAME_SERVER = """
import socket

def unknown(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

socket.getaddrinfo = unknown
"""


def test_servers_that_cannot_be_used(headrace: Commands, new_server: Callable[..., Server]) -> None:
    headrace.prelude = NO_NAME_SERVER
    headrace.environment["HEADRACE_TIMEOUT"] = "5"
    locked = new_server(password="open-sesame")
    wrong = locked.url.replace("open-sesame", "guessed-wrong")
    evicting = new_server(config={"maxmemory-policy": "allkeys-lru"})
    cases = {
        wrong: "refused the credentials",
        evicting.url: "maxmemory-policy allkeys-lru",
        "redis://no-such-host.invalid:6379": "no-such-host.invalid",
        "unix:///absent/socket": "is the server running?",
    }
    for url, text in cases.items():
        fault = headrace("jobs", "count", code=ExitCode.SERVER, HEADRACE_URL=url).fault
        assert text in fault
        assert "guessed-wrong" not in fault
        # A worker's log line says it as well.
        assert Redactor().text(fault) == fault
    for url in (wrong, evicting.url):
        assert headrace("worker", "tasks:app", code=ExitCode.SERVER, HEADRACE_URL=url).fault


def test_a_missing_extra_is_named_in_one_line(tmp_path: Path) -> None:
    for package in ("typer", "rich"):
        hidden = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['headrace', 'queues', 'list']; "
        run = subprocess.run(
            [sys.executable, "-c", f"{hidden}import headrace.cli; headrace.cli.main()"],
            cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
            env={"PATH": "/usr/bin:/bin", "HEADRACE_URL": "unix:///absent", "HEADRACE_TIMEOUT": "0.1"},
        )  # fmt: skip
        assert run.returncode == ExitCode.USAGE
        assert run.stderr == f"headrace: the command line needs {package}: pip install 'headrace[cli]'\n"


def test_a_flag_wins_over_what_the_application_was_given(headrace: Commands, url: str) -> None:
    headrace.write(
        "fixed",
        "from headrace import Headrace\napp = Headrace('redis://127.0.0.1:1', shutdown_timeout=3, namespace='own')\n"
        "@app.task\ndef f() -> str:\n    return f'{app.settings.shutdown_timeout} {app.settings.namespace}'\n",
    )
    flags = ("--url", url, "--namespace", "hr")
    id = headrace("enqueue", "fixed.f", "--app", "fixed:app", *flags, "--json").json["id"]
    headrace("worker", "fixed:app", *flags, "--burst", "--shutdown-timeout", "5s", "--processes", "1")
    assert headrace("jobs", "result", id, *flags).out.strip() == '"5.0 hr"'


def test_a_removed_directory_is_a_wrong_place_and_no_server_that_is_away(headrace: Commands, tmp_path: Path) -> None:
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); from headrace.cli import main; main()"
    environ = {name: value for name, value in headrace.environment.items() if name != "HEADRACE_URL"}
    for words in (["jobs", "list"], ["server", "status"], ["worker", "tasks:app"]):
        ended = subprocess.run(
            [sys.executable, "-c", gone, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert ended.returncode == ExitCode.USAGE, ended.stderr
        assert "the current directory was removed" in ended.stderr


def test_a_worker_refuses_resolutions_that_it_cannot_read(headrace: Commands) -> None:
    """The dispatcher died again and again, with a traceback each time."""
    said = headrace("worker", "tasks:app", code=ExitCode.USAGE, HEADRACE_STATS_KEEP="week=2d").fault
    assert "stats_keep='week=2d' cannot be used: there is no resolution 'week'" in said


def test_a_reached_limit_of_open_files_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(OSError(errno.EMFILE, "Too many open files"), json=False, debug=False) == ExitCode.FAILED
    assert "the limit of open files is reached: raise it" in capsys.readouterr().err


def test_options_of_a_worker_come_from_the_environment_too(headrace: Commands) -> None:
    wrong = {"HEADRACE_QUEUES": "a,a", "HEADRACE_PROCESSES": "-1", "HEADRACE_MAX_IDLE": "soon"}
    for name, value in wrong.items():
        said = headrace("worker", "tasks:app", code=ExitCode.USAGE, **{name: value}).err
        assert any(text in said for text in ("named twice", "processes must be", "'soon' is not a duration")), said
    id = headrace("enqueue", "tasks.add", "1", "--queue", "high").out.strip()
    given = {"HEADRACE_QUEUES": "high", "HEADRACE_PROCESSES": "1", "HEADRACE_MAX_JOBS": "1"}
    ended = headrace("worker", "tasks:app", **given)
    assert "there is no such setting" not in ended.err
    assert headrace("jobs", "result", id).out == "2\n"
    words = headrace("worker", "--help").out.split()
    assert set(WORKER_VARIABLES) < {
        f"HEADRACE_{word[2:].upper().replace('-', '_')}" for word in words if word[:2] == "--"
    }


def test_a_task_of_a_notebook_is_refused_where_it_is_enqueued() -> None:
    """It was stored under __main__, where no worker finds it."""
    code = (
        "from headrace import Headrace\napp = Headrace('redis://x')\ndef cell() -> None: ...\napp.task(cell).enqueue()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "OptionsError: __main__.cell is defined in a notebook or on a command line" in ended.stderr.splitlines()[-1]
