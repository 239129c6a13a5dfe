"""A worker's warm-up as its user sees it: which hook runs where, what each runner has for itself, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.cli.session import ExitCode
from tests.deadline import eventually
from tests.program import Program, Worker
from tests.worker.test_memory_mapping import joins

pytestmark = [pytest.mark.system, pytest.mark.slow]

HOOKS = """
import os, pathlib
from headrace import Headrace

app = Headrace()
here = pathlib.Path("said")

def say(word):
    with here.open("a") as out:
        out.write(f"{word} {os.getpid()}\\n")

def hook(register, word):
    register(lambda: say(word))

hook(app.on_preload, "preload")
hook(app.before_fork, "before-1")
hook(app.before_fork, "before-2")
hook(app.after_fork_parent, "parent")
hook(app.after_fork_child, "child")
hook(app.on_exit, "exit")

@app.before_fork
def broken():
    raise ValueError("a hook's fault")

@app.task
def work():
    say("job")
"""

FORKS = """
import logging, logging.handlers, random, time
import numpy
from headrace import Headrace

app = Headrace()
random.seed(1)
numpy.random.seed(1)
log = logging.getLogger("shop")

@app.on_preload
def warm():
    app.stats.add("preloaded", {"count": 1})
    handler = logging.handlers.MemoryHandler(1000, target=logging.FileHandler("lines"))
    log.addHandler(handler)
    log.warning("warm")

@app.task(kind="fork")
def draw() -> list:
    app.stats.add("drawn", {"count": 1})
    log.warning("drawn")
    return [random.random(), float(numpy.random.random())]

@app.on_exit
def hang():
    time.sleep(600)
"""


def counted(app: Headrace, label: str) -> dict[str, int]:
    return dict(app.stats.find(label, time.time() - 600).total().counts)


KEEPS = """
import logging.handlers, sys
from headrace import Headrace

app = Headrace()

def keep(name):
    handler = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(name))
    logging.getLogger(name).addHandler(handler)

@app.on_preload
def early():
    keep("early")

@app.task(kind="fork")
def speak() -> None:
    keep("late")
    for name in ("early", "late", "never"):
        logging.getLogger(name).warning("kept " + name)
    sys.stdout.write("unfinished")
"""


def test_what_a_forked_job_left_in_buffers_is_written(headrace: Program, tmp_path: Path) -> None:
    headrace.write("keeps", KEEPS)
    headrace.enqueue("keeps.speak")
    headrace.enqueue("keeps.speak")
    ended = headrace("worker", "keeps:app", "--burst", "--forks", "1")
    assert ended.out.count("unfinished") == 2
    assert [ended.err.count(f"kept {name}") for name in ("early", "late", "never")] == [2] * 3
    for name in ("early", "late"):
        assert (tmp_path / name).read_text() == f"kept {name}\n" * 2


def test_each_hook_runs_in_its_order_and_process(headrace: Program, tmp_path: Path) -> None:
    headrace.write("hooked", HOOKS)
    headrace.enqueue("hooked.work")
    ended = headrace("worker", "hooked:app", "--burst", "--processes", "1")
    lines = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    by_process = {"supervisor": list[str](), "runner": list[str]()}
    supervisor = lines[0][1]
    for word, pid in lines:
        by_process["supervisor" if pid == supervisor else "runner"].append(word)
    assert by_process["supervisor"] == ["preload", "before-2", "before-1", "parent"]
    assert by_process["runner"] == ["child", "job", "exit"]
    assert "the hook hooked.broken failed around a fork" in ended.err
    assert "a hook's fault" in ended.err


def test_forked_children_share_nothing_that_they_must_not(headrace: Program, app: Headrace, tmp_path: Path) -> None:
    """Random numbers differ, buffers are written once, and a hook that hangs takes no flush with it."""
    headrace.write("forking", FORKS)
    count = 3
    ids = [headrace.enqueue("forking.draw") for _ in range(count)]
    ended = headrace("worker", "forking:app", "--burst", "--forks", str(count))
    drawn = [app.jobs.get(id).result(timeout=0) for id in ids]
    assert len({first for first, _ in drawn}) == count
    assert len({second for _, second in drawn}) == count
    assert counted(app, "drawn") == {"count": count}, ended.err
    assert counted(app, "preloaded") == {"count": 1}
    assert sorted((tmp_path / "lines").read_text().split()) == [*["drawn"] * count, "warm"], ended.err
    assert "the exit hook forking.hang took more than" in ended.err


def test_no_runner_that_left_is_waited_for(headrace: Program, app: Headrace) -> None:
    """Its socket's end and its death come in any order, often in the same turn of the dispatcher's loop."""
    app.enqueue_many(app.by_name("tasks.add").job(n) for n in range(100))
    said = headrace("worker", "tasks:app", "--burst", "--processes", "16").err
    assert "runners that do not exit" not in said


LARGE = """
from pathlib import Path
from headrace import Headrace

app = Headrace()
MODEL = [str(number) for number in range(1_000_000)]

def memory() -> list[int]:
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    told = {words[0]: int(words[1]) for words in lines}
    return [told["AnonHugePages:"], told["Private_Dirty:"]]

for kind in ("process", "fork"):
    app.task(name=kind, kind=kind)(memory)
"""


@pytest.mark.skipif(not joins(), reason="this kernel joins no pages on request")
def test_a_large_application_is_in_huge_pages_that_its_runners_share(headrace: Program, app: Headrace) -> None:
    headrace.write("large", LARGE)
    headrace.own = True
    jobs = [headrace.enqueue(kind) for kind in ("process", "fork")]
    headrace("worker", "large:app", "--burst", "--processes", "1", "--forks", "1")
    for job in jobs:
        huge, own = app.jobs.get(job).result(timeout=0)
        assert huge > 32 << 10, "kB, of the 60 MB that the list takes"
        assert own < 16 << 10


LATE = """
import time
from headrace import Headrace
from models import MODELS
from sqlalchemy import select

app = Headrace()

@app.task(kind="fork")
def report() -> list:
    import sys
    warm = ["late_report" in sys.modules, not MODELS[0].registry._new_mappers]
    import late_report
    str(select(MODELS[3]))
    return warm
"""

MODELS = """
from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

class Model(DeclarativeBase): ...

def model(number):
    body = {"__tablename__": f"t{number}", "id": mapped_column(primary_key=True), "__annotations__": {"id": Mapped[int]}}
    if number:
        body["up_id"] = mapped_column(ForeignKey(f"t{number - 1}.id"))
        body["up"] = relationship(f"M{number - 1}", back_populates="down")
    if number < 23:
        body["down"] = relationship(f"M{number + 1}", back_populates="up")
    return type(f"M{number}", (Model,), body)

MODELS = [model(number) for number in range(24)]
"""


@pytest.fixture
def late(headrace: Program) -> Iterator[Callable[..., Worker]]:
    """Start a worker whose jobs each import a module and configure SQLAlchemy's mappers, in a fork of their own."""
    for name, text in {"late": LATE, "models": MODELS, "late_report": "import time\ntime.sleep(0.05)"}.items():
        headrace.write(name, text)
    headrace.environment["HEADRACE_LEASE"] = "3"
    started: list[Worker] = []

    def start(*arguments: str) -> Worker:
        started.append(Worker(headrace.start("worker", "late:app", "--forks", "2", *arguments)))
        started[-1].says("serves default")
        return started[-1]

    yield start
    for one in started:
        one.close()


def reports(app: Headrace, count: int) -> list[list[bool]]:
    """What so many jobs found done when they began: the import, and the mappers."""
    drafts = [app.by_name("late.report").job() for _ in range(count)]
    app.enqueue_many(drafts)
    return [draft.handle.result(timeout=60) for draft in drafts]


def test_the_startup_profile_names_imports_and_what_may_be_set_up(
    headrace: Program, app: Headrace, late: Callable[..., Worker]
) -> None:
    worker = late()
    assert reports(app, 5) == [[False, False]] * 5
    advice = 'preload=["late_report"]'
    told = worker.says(f"{advice} does it once; if sqlalchemy.orm:configure_mappers is set-up, preload=")
    assert "each first start of late.report in a runner may lose" in told

    def profile() -> Any:
        (found,) = headrace("workers", "startup", "--json").lines
        return found if found["preload"] else None

    found = eventually(profile, 60)
    (row,) = found["tasks"]
    assert (row["task"], row["kind"]) == ("late.report", "fork")
    assert row["to"]["late_report"] > 0.05
    assert row["to"]["sqlalchemy.orm:configure_mappers"] > 0.01
    # On a busy machine other functions may take long enough to be named, too.
    named = row["to"]["late_report"] + row["to"]["sqlalchemy.orm:configure_mappers"]
    assert named - 1e-4 <= row["lost_each"] <= sum(row["to"].values()) + 1e-4
    assert (found["preload"][:1], found["maybe"][:1]) == (["late_report"], ["sqlalchemy.orm:configure_mappers"])
    shown = headrace("workers", "startup", found["worker"][:8]).out
    assert "late.report" in shown
    assert advice in shown
    assert "may be set-up: sqlalchemy.orm:configure_mappers" in shown
    assert "no worker is called" in headrace("workers", "startup", "nobody", code=ExitCode.FAILED).fault
    worker.stop()
    pasted = late("--preload", ",".join(found["preload"] + found["maybe"]))
    assert reports(app, 3) == [[True, True]] * 3
    assert pasted.stop() == 0
    assert not [line for line in pasted.lines if "lose" in line]
