"""``headrace stats`` as a process: what it shows, serves and consumes; and counts from inside of jobs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.stats import Stats
from tests.deadline import eventually
from tests.nursery import Forked
from tests.program import Program, on_terminal
from tests.servers import Server

pytestmark = pytest.mark.system

Make = Callable[..., Stats]


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Program:
    program = Program(tmp_path, url)
    program.environment["COLUMNS"] = "110"
    return program


@pytest.fixture
def counted(make_stats: Make) -> None:
    stats, now = make_stats(), time.time()
    for minute in range(10):
        stats.add("views/shop", {"count/chrome": 2 + minute}, now - 60 * minute)
        stats.observe("views/blog", {"seconds": 0.5 * (1 + minute)}, now - 60 * minute)
    stats.flush()


@contextmanager
def beside(headrace: Program, *arguments: str) -> Iterator[subprocess.Popen[str] | Forked]:
    process = headrace.start(*arguments)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.usefixtures("counted")
def test_a_label_is_shown_with_those_below_it(headrace: Program) -> None:
    shown = headrace("stats", "views", "--since", "1h").out
    assert shown == headrace("stats", "show", "views", "--since", "1h").out
    for text in ("count/chrome", "65", "seconds", "p99", "views/shop", "views/blog"):
        assert text in shown, shown
    assert "views/shop" not in headrace("stats", "views/blog").out
    assert headrace("stats").out.startswith("label")


@pytest.mark.usefixtures("counted")
def test_a_terminal_has_each_count_in_one_line(headrace: Program) -> None:
    shown = on_terminal(headrace, "stats", "views", "--since", "1h", columns=80)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("count/chrome", "views/shop", "p50 of seconds"):
        assert any(name in line for line in lines), shown
    assert any(re.search(r"count/chrome +65 ", line) for line in lines), shown


@pytest.mark.usefixtures("counted")
def test_a_label_for_programs(headrace: Program) -> None:
    whole, blog, shop = headrace("stats", "views", "--json").lines
    assert (whole["label"], blog["label"], shop["label"]) == ("views", "views/blog", "views/shop")
    assert (whole["counts"], whole["every"], whole["exact"]) == ({"count": 65, "count/chrome": 65}, "minute", True)
    assert blog["observed"]["seconds"]["count"] == 10
    assert blog["observed"]["seconds"]["p99"] == pytest.approx(5, rel=0.02)
    assert sum(bucket["counts"].get("count", 0) for bucket in shop["series"]) == 65
    assert headrace("stats", "views", "--since", "300d", "--json").lines[0]["every"] == "month"


@pytest.fixture
def worked(make_stats: Make) -> Stats:
    """As workers count."""
    stats = make_stats()
    for name in ("shop.fetch", "shop.resize"):
        stats.add(f"jobs/{name}", {"started": 3, "succeeded": 2})
        stats.observe(f"jobs/{name}", {"run": 0.5})
    stats.add("queues/default", {"started": 6})
    stats.add("queues/eu/low", {"started": 1})
    stats.of_workers().add("host:4711", {"busy": 1000})
    stats.flush()
    return stats


@pytest.mark.usefixtures("worked")
def test_units_and_sums_are_told(headrace: Program) -> None:
    everything = headrace("stats").out
    assert re.search(r"^jobs +started +6 ", everything, re.MULTILINE), "each job once, not by task and by queue"
    assert re.search(r"^queues +started +7 ", everything, re.MULTILINE)
    assert re.search(r"^workers +busy \(microseconds\) +1,000 ", everything, re.MULTILINE)
    assert "p50 of run (seconds)" in everything
    assert "run (seconds)" in headrace("stats", "jobs/shop.fetch").out
    assert headrace("stats", "workers/host:4711", "--json").json["units"] == {"busy": "microseconds"}
    assert headrace("stats", "jobs/shop.fetch", "--json").json["units"] == {"run": "seconds"}
    # A range of months is none of a worker's resolutions: what others counted is shown all the same.
    assert "workers" not in headrace("stats", "--since", "300d").out
    assert "jobs" in headrace("stats", "--since", "300d").out


def test_live_workers_are_shown_however_many_there_were(headrace: Program, make_stats: Make) -> None:
    stats, now = make_stats(), time.time()
    for n in range(600):
        stats.of_workers().add(f"past:{n}", {"busy": 1}, now - 7200)
    stats.of_workers().add("live:1", {"busy": 7})
    stats.flush()
    shown = headrace("stats", "workers")
    assert "workers/live:1" in shown.out
    assert "there are more labels below: these 50 were counted last" in shown.err
    assert headrace("stats", "workers/past:599", "--json").json["label"] == "workers/past:599"


def test_the_label_that_was_counted_last_is_shown_whatever_its_name(headrace: Program, make_stats: Make) -> None:
    stats, now = make_stats(), time.time()
    for n in range(60):
        stats.add(f"shop/old-{n:02}", {"sold": 1}, now - 200 * 86400)
    stats.add("shop/zebra", {"sold": 7}, now)
    stats.flush()
    shown = headrace("stats", "shop", "--since", "300d")
    assert "shop/zebra" in shown.out
    assert "shop/old-59" in shown.out


def test_nothing_is_said_to_be_nothing(headrace: Program) -> None:
    assert "there are no counts under views in the last 30m" in headrace("stats", "views", "--since", "30m").err
    assert "take one of minute" in headrace("stats", "views", "--every", "second", code=2).fault
    assert "not a duration" in headrace("stats", "--since", "soon", code=2).fault


@pytest.mark.usefixtures("counted")
def test_watching_goes_on(headrace: Program, make_stats: Make) -> None:
    stats = make_stats(stats_buffer=0)
    with beside(headrace, "stats", "views/shop", "--watch", "--json") as process:
        assert process.stdout is not None
        assert '"count":65' in process.stdout.readline()
        stats.add("views/shop", {"count": 1000})
        # It may have looked once more before that.
        assert any('"count":1065' in line for line in process.stdout)


@pytest.mark.usefixtures("counted")
def test_prometheus_is_served_on_this_machine_only(headrace: Program) -> None:
    pytest.importorskip("prometheus_client")
    with beside(headrace, "stats", "serve", "views", "--port", "0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode()
        assert 'headrace_stats_total{field="count/chrome",label="views/shop"} 65.0' in text
        assert 'headrace_stats_observed_total{field="seconds",label="views"} 10.0' in text
        assert 'headrace_stats_quantile{field="seconds",label="views/blog",quantile="0.99"}' in text
        assert "headrace_stats_waiting 0.0" in text
        taken = url.rsplit(":", 1)[1].partition("/")[0]
        assert "cannot listen" in headrace("stats", "serve", "--port", taken, code=1).fault


def test_a_line_is_consumed(headrace: Program, make_stats: Make) -> None:
    """RS15: with its lag shown."""
    stats = make_stats(stats="stream")
    for _ in range(3):
        stats.add("a", {"n": 1})
        stats.flush()
    said = headrace("stats", "consume", "--burst", "--json").lines
    assert [(line["batches"], line["waiting"], line["lost"]) for line in said] == [(3, 3, 0), (0, 0, 0)]
    assert said[0]["lag"] >= 0
    assert stats.find("a", time.time() - 60)["n"] == 3
    with beside(headrace, "stats", "consume", "--every", "0.1"):
        stats.add("a", {"n": 4})
        stats.flush()
        eventually(lambda: stats.find("a", time.time() - 60)["n"] == 7, timeout=60)


@pytest.mark.parametrize("fault", ["full", "away"])
def test_a_consumer_outlives_what_its_server_suffers(
    tmp_path: Path, new_server: Callable[..., Server], fault: str
) -> None:
    server = new_server()
    headrace = Program(tmp_path, server.url)
    headrace.environment["HEADRACE_TIMEOUT"] = "3"
    said = tmp_path / "said"
    if fault == "full":
        server.client().config_set("maxmemory", "1")
    else:
        server.kill()
    with said.open("w") as err:
        process = headrace.start("stats", "consume", "--every", "0.1", stderr=err)
    try:
        eventually(lambda: "goes on when" in said.read_text() or process.poll() is not None, timeout=60)
        assert process.poll() is None, said.read_text()
        if fault == "full":
            server.client().config_set("maxmemory", "0")
        else:
            server.start()
        with Headrace(server.url, stats="stream", stats_flush_interval=3600) as app:
            app.stats.add("a", {"n": 1})
            app.stats.flush()
            eventually(lambda: app.stats.find("a", time.time() - 600)["n"] == 1, timeout=60)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert said.read_text().count("goes on when") == 1


@pytest.mark.parametrize("mode", ["direct", "stream"])
def test_counts_of_jobs_arrive_whichever_kind_runs_them(headrace: Program, url: str, mode: str) -> None:
    """RS3, RS14: a runner flushes when it leaves; a forked one leaves after its job."""
    headrace.write(
        "counts",
        "from headrace import Headrace\n"
        "app = Headrace()\n"
        "def count(kind):\n"
        "    app.stats.add(f'mine/{kind}', {'n': 1})\n"
        "    app.stats.observe(f'mine/{kind}', {'s': 0.1})\n"
        "@app.task\ndef process(): count('process')\n"
        "@app.task(kind='fork')\ndef fork(): count('fork')\n"
        "@app.task(kind='thread')\ndef thread(): count('thread')\n"
        "@app.task\nasync def coroutine(): await app.stats.aadd('mine/async', {'n': 1})\n",
    )
    headrace.environment |= {"HEADRACE_STATS": mode, "HEADRACE_STATS_FLUSH_INTERVAL": "60"}
    with Headrace(url) as app:
        tasks = [app.by_name(f"counts.{name}") for name in ("process", "fork", "thread", "coroutine")]
        app.enqueue_many(task.job() for task in tasks for _ in range(5))
        headrace("worker", "counts:app", "--burst", "--processes", "2")
        if mode == "stream":
            headrace("stats", "consume", "--burst")
        found = app.stats.find("mine", time.time() - 600)
        assert {child.label: child["n"] for child in found.children()} == {
            "mine/async": 5, "mine/fork": 5, "mine/process": 5, "mine/thread": 5,
        }  # fmt: skip
        assert found.total().histogram("s").count == 15


def test_the_environment_is_asked(headrace: Program) -> None:
    assert "stats_keep" in headrace("stats", code=2, HEADRACE_STATS_KEEP="week=2d").fault
    assert os.environ.get("HEADRACE_STATS_KEEP") is None
