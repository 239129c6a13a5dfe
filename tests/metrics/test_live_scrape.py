"""What a real worker with jobs of all ends tells Prometheus: each series that a rule or the board asks for is there."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace import Headrace
from headrace.metrics import FAMILIES, board, rules_document
from headrace.model.ids import shard_of
from tests.deadline import eventually
from tests.program import TASKS, Program, Worker
from tests.servers import connect

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.system

Series = list[tuple[str, dict[str, str], float]]
RULES = rules_document()["groups"][0]["rules"]
ASKED = [rule["expr"] for rule in RULES] + [line["expr"] for panel in board()["panels"] for line in panel["targets"]]
SELECTOR = re.compile(r"(headrace_\w+)(?:\{([^}]*)\})?")
MORE = """
from headrace import Concurrency, Retry

@app.task(retries=Retry(max=1, delay=0))
def again() -> None:
    if current_job().attempt == 1:
        raise ValueError

@app.task
def dies_once() -> None:
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

app.every(1, add, 1, name="often")
app.limit("few", Concurrency(1))
"""


@pytest.fixture
def scrape(tmp_path: Path, url: str) -> Iterator[Callable[[], Series]]:
    """What the worker told last, after each way in which a job can end."""
    program = Program(tmp_path, url)
    program.write("tasks", TASKS + MORE)
    for task in ("fail", "crash", "absent", "again", "dies_once"):
        program.enqueue(f"tasks.{task}")
    program.enqueue("tasks.add", "1")
    program.enqueue("tasks.add", "1", "--queue", "unserved")
    spoiled = program.enqueue("tasks.add", "1")
    with Headrace(url) as app, connect(url) as client:
        keys = app.client.shards[shard_of(spoiled)]
        client.hset(keys.job(spoiled), mapping={"headers": msgspec.msgpack.encode({"tenant": 1}), "more": 1})
    worker = Worker(program.start("worker", "tasks:app", "--processes", "1", "--metrics", "0", stderr=subprocess.PIPE))
    try:
        where = "http://" + worker.says("metrics").partition("http://")[2].split()[0]

        def read() -> Series:
            with urllib.request.urlopen(where, timeout=30) as answer:
                text = answer.read().decode()
            families = text_string_to_metric_families(text)
            return [(one.name, dict(one.labels), one.value) for family in families for one in family.samples]

        yield read
    finally:
        worker.close()


def matches(selector: tuple[str, str], series: Series) -> bool:
    """Whether a series has the name, and the values of labels that are asked for."""
    wanted = re.findall(r'(\w+)(=~|=)"([^"]*)"', selector[1])
    return any(
        name == selector[0]
        and all("$" in value or re.fullmatch(value, labels.get(label, "")) for label, _, value in wanted)
        for name, labels, _ in series
    )


def test_each_series_that_is_asked_for_is_told(scrape: Callable[[], Series]) -> None:
    asked = {found for expr in ASKED for found in SELECTOR.findall(expr)}
    asked |= set(SELECTOR.findall(str(board()["templating"])))
    # Each of several values is one that the exporter gives.
    asked |= {(name, re.sub(r'=~"[^"]*"', f'="{value}"', labels)) for name, labels in asked
              for values in re.findall(r'=~"([^"$]*)"', labels) for value in values.split("|")}  # fmt: skip

    def missing() -> list[tuple[str, str]]:
        series = scrape()
        return [one for one in sorted(asked) if not matches(one, series)]

    try:
        eventually(lambda: not missing(), 60)
    except AssertionError as error:
        error.add_note(f"missing: {missing()}")
        raise


def test_it_tells_each_family_of_the_table(scrape: Callable[[], Series]) -> None:
    names = {family.name + ("_count" if family.type == "histogram" else "") for family in FAMILIES}
    ended = {
        ("headrace_jobs", "quarantined"): 2, ("headrace_jobs", "failed"): 1, ("headrace_task_parked", "tasks.absent"): 1,
        ("headrace_queue_workers", "unserved"): 0, ("headrace_queue_ready", "unserved"): 1,
        ("headrace_task_jobs_total", "tasks.again", "retried"): 1,
    }  # fmt: skip
    values: dict[tuple[str, ...], float] = {}

    def told() -> bool:
        values.clear()
        for name, labels, value in scrape():
            # As in the table: what it is of comes before what became of it.
            of = sorted(labels, key=lambda label: label in ("outcome", "le", "result"))
            values[name, *(labels[label] for label in of)] = value
        return names <= {key[0] for key in values} and ended.items() <= values.items()

    try:
        eventually(told, 60)
    except AssertionError as error:
        error.add_note(f"missing: {names - {key[0] for key in values}}, {ended.items() - values.items()}")
        raise
    assert values["headrace_kept_bytes",] > 0
    assert [key for key in values if key[0] == "headrace_build_info" and "" not in key]
