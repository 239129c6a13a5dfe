"""Outages, played: an operator starts at the overview, and has three clicks to see, to understand and to mend each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Flow, Headrace
from headrace.errors import StoreFull
from tests.browser import chromium
from tests.browser.outage import BAR, Operator, OutageShop
from tests.deadline import eventually
from tests.servers import Server

Play = tuple[Headrace, OutageShop, Operator]


@pytest.fixture
def config(request: pytest.FixtureRequest) -> dict[str, str]:
    return getattr(request, "param", {})


@pytest.fixture
def play(
    browser: Any, new_server: Callable[..., Server], config: dict[str, str], tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Play]:  # fmt: skip
    """A shop without workers, and an operator who has the overview open. ``HR_SHOTS`` names a folder for pictures."""
    server = new_server(config=config)
    app, shop = Headrace(server.url), OutageShop(server.url, tmp_path)
    shots = os.environ.get("HR_SHOTS", "") and f"{os.environ['HR_SHOTS']}/{request.node.originalname}"
    with app, chromium.served(server.url, tmp_path) as base:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(60_000)
        context.request.post(f"{base}/login", form={"token": chromium.TOKEN}, headers={"origin": base})
        page = context.new_page()
        page.goto(base + "/")
        operator = Operator(page, shots)
        yield app, shop, operator
        print(f"seen after {operator.seen:.1f} s, {operator.clicks} clicks, {operator.seconds:.1f} s to the end")
        assert operator.clicks <= BAR
        context.close()
        shop.close()


def test_a_task_that_fails_for_one_customer(play: Play) -> None:
    app, shop, operator = play
    shop.worker()
    charge = app.by_name("shop.charge")
    app.enqueue_many(charge.job(("acme", "globex", "initech")[n % 3], n) for n in range(60))
    # The page that asks counts once: all that can fail has failed by then.
    eventually(lambda: (app.jobs.count("succeeded"), app.jobs.count("failed")) == (40, 20), 60, what="all have run")
    operator.starts()
    operator.ranks("of shop.charge fail")
    operator.click("link", "of shop.charge fail")
    operator.sees('"globex"')
    assert "ConnectionError: the bank of this account does not answer" in operator.reads()
    (shop.place / "bank-is-back").touch()
    operator.click("link", "retry all")
    operator.sees("Retry 20 jobs?")
    operator.click("button", "Retry 20 jobs")
    operator.sees("20 done")
    eventually(lambda: app.jobs.count("succeeded") == 60, what="all are charged")


def test_a_queue_that_no_worker_serves(play: Play) -> None:
    app, shop, operator = play
    shop.worker("--queues", "default")
    app.enqueue_many(app.by_name("shop.mail", queue="mail").job(f"text {n}") for n in range(30))
    operator.starts()
    operator.ranks("No worker serves queue mail")
    operator.click("link", "No worker serves queue mail")
    operator.sees("headrace worker MODULE:APP --queues mail")
    shop.worker("--queues", "mail")
    operator.sees("0 ready")
    eventually(lambda: "no worker serves queue mail" not in operator.reads(), what="the page says that it is served")
    eventually(lambda: app.jobs.count("succeeded") == 30, what="all mails are sent")


def test_a_worker_that_dies(play: Play) -> None:
    app, shop, operator = play
    first = shop.worker()
    app.enqueue_many(app.by_name("shop.report").job(n) for n in range(2))
    eventually(lambda: app.jobs.count("running") == 2, what="both run")
    # The page may still tell of the time before the worker.
    operator.sees("All is well")
    operator.starts()
    shop.kill(first)
    operator.ranks("No worker is running")
    (shop.place / "reports-go-on").touch()
    shop.worker()
    operator.sees(f":{first.pid} died")
    assert "no job has run" not in operator.reads()
    operator.click("link", f":{first.pid} died")
    operator.sees("worker lost")
    assert "its lease ended" in operator.reads()
    eventually(lambda: app.jobs.count("succeeded") == 2, what="what it ran was run again")
    operator.page.go_back()
    operator.click("link", "Succeeded")
    operator.sees("shop.report")


@pytest.mark.parametrize("config", [{"maxmemory": "8mb", "maxmemory-policy": "noeviction"}], indirect=True)
def test_a_store_that_is_full(play: Play) -> None:
    app, shop, operator = play
    shop.worker("--queues", "default")
    mail = app.by_name("shop.mail", queue="mail")
    operator.starts()
    stored = 0
    with pytest.raises(StoreFull):
        while stored < 10_000:
            mail.enqueue("x" * 20_000)
            stored += 1
    operator.ranks("of its memory")
    operator.click("link", "of its memory")
    operator.sees("nothing can be enqueued")
    operator.click("link", f"delete {stored:,} ready jobs of mail")
    operator.sees(f"Delete {stored:,} jobs?")
    operator.type(str(stored))
    operator.click("button", f"Delete {stored:,} jobs")
    operator.sees("done")
    eventually(lambda: app.queues["mail"].size == 0, what="the queue is empty")
    mail.enqueue("there is room again")


def test_a_paused_limit_that_holds_everything(play: Play) -> None:
    app, shop, operator = play
    shop.worker()
    app.by_name("shop.call").enqueue(0)
    eventually(lambda: app.jobs.count("succeeded") == 1, 60, what="the limit is known")
    app.limits["api"].pause()
    app.enqueue_many(app.by_name("shop.call").job(n) for n in range(20))
    operator.starts()
    operator.ranks("Limit api is paused")
    operator.click("link", "Limit api is paused")
    operator.sees("the limit is paused")
    operator.click("button", "Resume the limit")
    eventually(lambda: app.jobs.count("succeeded") == 21, 60, what="all calls are made")


def test_all_runners_of_one_kind_are_busy(play: Play) -> None:
    app, shop, operator = play
    shop.worker()
    app.enqueue_many(app.by_name("shop.report").job(n) for n in range(2))
    eventually(lambda: app.jobs.count("running") == 2, 60, what="both reports run")
    app.enqueue_many(app.by_name("shop.charge").job("acme", n) for n in range(10))
    operator.starts()
    operator.ranks("All 2 process runners are busy")
    operator.click("link", "All 2 process runners are busy")
    operator.sees("all 2 process runners for it are busy")
    assert "the longest runs shop.report" in operator.reads()
    assert operator.page.get_by_role("link", name="Show the longest job").is_visible()
    # What the sentence names: another worker.
    shop.worker()
    eventually(lambda: app.jobs.count("succeeded") == 10, 60, what="all are charged")
    (shop.place / "reports-go-on").touch()


def test_a_workflow_that_is_stuck(play: Play) -> None:
    app, shop, operator = play
    shop.worker()
    charge = app.task(name="shop.charge")(_charge)
    load = app.task(name="shop.load")(_load)

    @app.workflow(name="shop.import")
    def imports(flow: Flow) -> None:
        first = flow.run(charge, "acme", 1)
        flow.run(load, 1, after=first)

    run = imports.create()
    run.start()
    operator.starts()
    operator.ranks("No worker knows the task shop.load")
    operator.click("link", "No worker knows the task shop.load")
    operator.sees("deploy its code to a worker that serves its queue")
    (shop.place / "deployed").touch()
    shop.worker()
    eventually(lambda: run.state == "succeeded", 60, what="the workflow goes on")


@pytest.mark.timeout(300)
def test_a_workflow_of_3000_nodes_that_failed(play: Play) -> None:
    app, shop, operator = play
    shop.worker()
    part = app.task(name="shop.part")(_load)

    @app.workflow(name="shop.parts")
    def parts(flow: Flow) -> None:
        for number in range(3000):
            flow.run(part, number)

    run = parts.create()
    run.start()
    eventually(lambda: run.state == "failed", 120, what="the workflow failed")
    operator.starts()
    operator.ranks("1 workflow failed")
    operator.click("link", "1 workflow failed")
    operator.sees("ValueError: this part is empty")
    assert "Failed first: part-2501" in operator.reads()
    (shop.place / "bank-is-back").touch()
    operator.click("button", "Retry failed")
    eventually(lambda: run.state == "succeeded", 60, what="the workflow ends well")


def _charge(customer: str, amount: int) -> None: ...


def _load(number: int) -> None: ...
