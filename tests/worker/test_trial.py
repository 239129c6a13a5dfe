"""Rehearsals: what they find worth doing once, what they refuse, and that they do no harm."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select as query
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import ForeignKey

from headrace.worker.messages import Function, Judged, Rehearse
from headrace.worker.preload import trial
from headrace.worker.preload.startup_profiler import Sampler
from headrace.worker.preload.trial import UNRELATED, WARM, WORK
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
    (tmp_path / "rehearsal_kit.py").write_text(KIT)
    module = __import__("rehearsal_kit")
    yield module
    del sys.modules["rehearsal_kit"]


def rehearse(
    functions: Collection[Function], imports: Collection[str] = (), never: Collection[object] = ()
) -> list[Judged]:
    pid, voice = trial.begin(Rehearse(list(imports), list(functions)), never)
    os.set_blocking(voice, True)
    with open(voice, "rb") as pipe:  # noqa: PTH123 - a descriptor, no path
        said = pipe.read()
    os.waitpid(pid, 0)
    return trial.read(said)


def told(function: Any, cost: int = 30_000) -> Function:
    code = getattr(function, "__wrapped__", function).__code__
    return Function(function.__module__, code.co_qualname, code.co_firstlineno, cost)


def verdict(function: Any) -> str:
    (judged,) = (one for one in rehearse([told(function)]) if one.name == f"rehearsal_kit:{function.__name__}")
    return judged.word


def test_set_up_takes_its_time_once(kit: Any) -> None:
    judged = {one.name: one for one in rehearse([told(kit.table), told(kit.work)])}
    assert judged["rehearsal_kit:table"].word == WARM
    assert judged["rehearsal_kit:table"].cost > 20_000
    assert judged["rehearsal_kit:table"].seen == (0,)
    assert judged["rehearsal_kit:work"].word == WORK


def test_the_way_in_is_found_from_what_was_on_the_stack(kit: Any) -> None:
    assert [(one.name, one.word) for one in rehearse([told(kit._prepare)])] == [("rehearsal_kit:prepare", WARM)]


def test_what_takes_no_time_is_not_what_took_it(kit: Any) -> None:
    assert verdict(kit.quick) == UNRELATED


def test_a_task_is_never_tried(kit: Any) -> None:
    assert rehearse([told(kit.table)], never={kit.table}) == []
    assert rehearse([told(kit.needs), told(kit.later)]) == []


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
    kit.PORT = 9
    said = verdict(getattr(kit, name))
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
        rehearse([told(kit.removes), told(kit.connects), told(kit.connects_in_c)])
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
    judged = rehearse([told(kit.table)], ["re_good", "re_broken", "re_thread", "re_after"])
    assert [one.name for one in judged] == ["re_good", "re_broken", "re_thread"]
    assert [one.word == WARM for one in judged] == [True, False, False]
    assert "ZeroDivisionError" in judged[1].word
    assert "its import starts the thread" in judged[2].word
    assert "re_good" not in sys.modules, "nothing of it happens here"


def test_it_is_alone_and_ends_with_its_supervisor(tmp_path: Path, kit: Any) -> None:
    (tmp_path / "re_sleeps.py").write_text("import time\ntime.sleep(50)")
    read, write = os.pipe()
    supervisor = os.fork()
    if not supervisor:
        try:
            pid, _ = trial.begin(Rehearse(["re_sleeps"], []), ())
            os.write(write, f"{pid} {os.getpgid(pid)}".encode())
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    os.close(write)
    pid, group = map(int, os.read(read, 100).split())
    os.close(read)
    assert group == pid
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


def _first_start() -> list[Function]:
    sampler = Sampler()
    sampler.start()
    JOB["perform"](lambda: str(query(MODELS[3])))
    return sampler.stop()


def _of_child(work: Callable[[], list[Function]]) -> list[Function]:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            for one in work():
                os.write(write, f"{one.module} {one.name} {one.line} {one.cost}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:  # noqa: PTH123 - a descriptor, no path
        lines = [line.split() for line in pipe]
    os.waitpid(pid, 0)
    return [Function(module, name, int(line), int(cost)) for module, name, line, cost in lines]


def test_the_mappers_of_sqlalchemy_are_found_without_knowing_it() -> None:
    functions = _of_child(_first_start)
    judged = {one.name: one.word for one in rehearse(functions)}
    assert judged["sqlalchemy.orm:configure_mappers"] == WARM
    assert list(judged.values()).count(WARM) == 1, judged
