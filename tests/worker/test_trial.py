"""Trials: what they find worth doing once, what they refuse, and that they do no harm."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select as query
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import ForeignKey

from headrace.worker.preload import warmup
from headrace.worker.preload.startup_profiler import Hot, Sampler, candidates
from headrace.worker.preload.warmup import UNRELATED, WARM, WORK
from tests.deadline import eventually
from tests.processes import lives

KIT = """
import ctypes, functools, gc, os, random, socket, struct, subprocess, threading, time, uuid

def burn(seconds=0.03):
    end = time.thread_time() + seconds
    while time.thread_time() < end: sum(range(2000))

@functools.cache
def table():
    burn()

_done = []

def _prepare(what):
    if not _done:
        burn()
        _done.append(what)

def prepare():
    _prepare("all")

def work():
    burn()

def quick(): ...

def needs(argument): ...

async def later(): ...

def fails():
    burn(); raise ValueError("no")

def leaves():
    os._exit(0)

def reads():
    burn()
    try: open("/etc/hostname").close()
    except OSError: pass

def removes():
    try: os.remove(PATH)
    except BaseException: pass

def kills():
    try: os.kill(os.getppid(), 0)
    except BaseException: pass

def runs():
    try: subprocess.run(["true"])
    except BaseException: pass

def threads():
    try: threading.Thread(target=time.sleep, args=[1], daemon=True).start()
    except BaseException: pass

@functools.cache
def sweeps():
    burn()
    gc.collect()

@functools.cache
def secret():
    burn()
    return uuid.uuid4()

@functools.cache
def dice():
    burn()
    return random.random()

@functools.cache
def names_itself():
    burn()
    return os.getpid()

@functools.cache
def connects():
    burn()
    try: socket.create_connection(("127.0.0.1", PORT))
    except OSError: pass

@functools.cache
def connects_in_c():
    burn()
    libc = ctypes.CDLL(None)
    libc.connect(libc.socket(2, 1, 0), ADDRESS, 16)
"""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "trial_kit.py").write_text(KIT)
    module = __import__("trial_kit")
    yield module
    del sys.modules["trial_kit"]


def verdict(function: Any) -> str:
    name = f"trial_kit:{function.__name__}"
    return warmup.attempt([name], ())[name]


APART = """
import sys
sys.path.insert(0, sys.argv[1])
import trial_kit
from headrace.worker.preload import warmup
trial_kit.PORT = 9
print(warmup.attempt([sys.argv[2]], ())[sys.argv[2]])
"""


def hot(function: Any) -> Hot:
    code = getattr(function, "__wrapped__", function).__code__
    return Hot(function.__module__, code.co_qualname, code.co_firstlineno, 30_000)


def test_set_up_takes_its_time_once(kit: Any) -> None:
    assert warmup.attempt(["trial_kit:table", "trial_kit:work"], ()) == {
        "trial_kit:table": WARM,
        "trial_kit:work": WORK,
    }


def test_the_way_in_is_found_from_what_was_on_the_stack(kit: Any) -> None:
    assert candidates([hot(kit._prepare)]) == [("trial_kit:prepare", 30_000)]
    assert verdict(kit.prepare) == WARM


def test_what_takes_no_time_is_not_what_took_it(kit: Any) -> None:
    assert verdict(kit.quick) == UNRELATED


def test_a_task_is_never_tried_nor_what_needs_arguments(kit: Any) -> None:
    assert candidates([hot(kit.table)], {kit.table}) == []
    assert candidates([hot(kit.needs), hot(kit.later)]) == []
    names = ["trial_kit:table", "trial_kit:needs", "trial_kit:later", "os:getpid"]
    assert set(warmup.attempt(names, {kit.table}).values()) == {"it is a task, or needs arguments"}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("fails", "its call failed: ValueError('no')"),
        ("leaves", "it ends the process that does it"),
        ("reads", "it opens files or sockets (/etc/hostname)"),
        ("kills", "it does os.kill"),
        ("runs", "it "),
        ("threads", "it "),
        ("secret", "it asks for random numbers or the process id"),
        ("dice", "it asks for random numbers or the process id"),
        ("names_itself", "it asks for random numbers or the process id"),
        ("connects", "it opens files or sockets"),
    ],
)
def test_what_is_more_than_memory_is_refused(kit: Any, name: str, word: str) -> None:
    """As a supervisor tries it: a process that has no threads forks the child."""
    command = [sys.executable, "-c", APART, str(Path(kit.__file__).parent), f"trial_kit:{name}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    assert said.startswith(word)
    assert said not in (WARM, WORK, UNRELATED)


def test_it_is_not_charged_with_garbage_of_the_process_that_it_is_a_copy_of(kit: Any) -> None:
    class Old:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            os.getpid()

    gc.disable()
    try:
        Old()
        assert verdict(kit.sweeps) == WARM
    finally:
        gc.enable()


def test_nothing_outside_is_touched(kit: Any, tmp_path: Path) -> None:
    """Not even by C code that swallows every error."""
    kit.PATH = str(tmp_path / "precious")
    (tmp_path / "precious").touch()
    with socket.create_server(("127.0.0.1", 0)) as there:
        kit.PORT = there.getsockname()[1]
        kit.ADDRESS = b"\x02\x00" + kit.PORT.to_bytes(2, "big") + socket.inet_aton("127.0.0.1") + bytes(8)
        warmup.attempt(["trial_kit:removes", "trial_kit:connects", "trial_kit:connects_in_c"], ())
        assert not select.select([there], [], [], 0)[0], "somebody called"
        kit.connects_in_c()
        assert select.select([there], [], [], 5)[0], "this test would notice"
    assert (tmp_path / "precious").exists()


def test_imports_are_tried_in_order_and_the_first_that_leaves_a_thread_is_the_last(tmp_path: Path, kit: Any) -> None:
    for name, text in (
        ("re_good", "x = 1"),
        ("re_broken", "1 / 0"),
        ("re_thread", "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()"),
        ("re_after", ""),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    names = ["re_good", "re_broken", "re_thread", "re_after", "trial_kit:table"]
    verdicts = warmup.attempt(names, ())
    assert list(verdicts) == ["re_good", "re_broken", "re_thread"]
    assert [word == WARM for word in verdicts.values()] == [True, False, False]
    assert "ZeroDivisionError" in verdicts["re_broken"]
    assert "its import starts the thread" in verdicts["re_thread"]
    assert "re_good" not in sys.modules, "nothing of it happens here"


def test_it_ends_with_its_supervisor(tmp_path: Path, kit: Any) -> None:
    (tmp_path / "re_sleeps.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(50)"
    )
    supervisor = os.fork()
    if not supervisor:
        try:
            warmup.attempt(["re_sleeps"], ())
        finally:
            os._exit(0)
    pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    eventually(lambda: not lives(pid))


# --- the case that it was made for ---


class Model(DeclarativeBase): ...


def _model(number: int) -> type:
    body: dict[str, Any] = {"__tablename__": f"t{number}", "id": mapped_column(primary_key=True)}
    body["__annotations__"] = {"id": Mapped[int]}
    if number:
        body["up_id"] = mapped_column(ForeignKey(f"t{number - 1}.id"))
        body["up"] = relationship(f"M{number - 1}", back_populates="down")
    if number < 59:
        body["down"] = relationship(f"M{number + 1}", back_populates="up")
    return type(f"M{number}", (Model,), body)


MODELS = [_model(number) for number in range(60)]


# As a runner's own code, which the sampler does not look beyond: what called it here is longer than what it tells.
JOB: dict[str, Any] = {"__name__": "headrace.worker.runner.execute"}
exec("def perform(work): work()", JOB)


def _first_start() -> list[tuple[str, int]]:
    sampler = Sampler()
    sampler.start()
    JOB["perform"](lambda: str(query(MODELS[3])))
    return candidates(sampler.stop())


def test_the_mappers_of_sqlalchemy_are_found_without_knowing_it() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, "\n".join(name for name, _ in _first_start()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:  # noqa: PTH123 - a descriptor, no path
        names = pipe.read().splitlines()
    os.waitpid(pid, 0)
    verdicts = warmup.attempt(names, ())
    assert verdicts["sqlalchemy.orm:configure_mappers"] == WARM
    assert list(verdicts.values()).count(WARM) == 1, verdicts
