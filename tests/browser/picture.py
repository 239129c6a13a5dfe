"""The picture of the overview that README and docs show: ``python -m tests.browser.picture`` takes it anew.

A store of its own, an hour of figures, a worker that runs jobs, and a browser that looks.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace import Headrace
from headrace.stats.resolutions import bucket_of
from tests.browser import chromium
from tests.deadline import eventually

TARGET = Path(__file__).parents[2] / "docs" / "dashboard.png"
# Seconds that the browser looks on while jobs run.
LOOKS = 40
SHOP = """
import time
from headrace import Headrace
app = Headrace()

@app.task(name="shop.fetch")
def fetch(n): time.sleep(0.1)

@app.task(name="shop.resize", queue="slow")
def resize(n): time.sleep(0.3)

@app.task(name="shop.report", queue="slow")
def report(n): time.sleep(20)

@app.task(name="shop.charge", queue="payments", retries=0)
def charge(n):
    time.sleep(0.05)
    raise ConnectionError("the bank does not answer")
"""
# Starts a minute, share of failures, median of runs and of waits in seconds, and queue, by task.
TASKS = {
    "fetch": (200, 0.004, 0.07, 0.02, "default"),
    "resize": (120, 0.017, 0.3, 0.05, "slow"),
    "charge": (65, 0.06, 0.06, 0.01, "payments"),
    "report": (2, 0.0, 10.0, 0.3, "slow"),
}


def an_hour_of_figures(app: Headrace, dice: random.Random) -> None:
    """What workers would have counted in the last hour."""
    now = time.time()
    for minute in range(1, 61):
        busy = 1 + 0.4 * math.sin(minute / 9) + dice.uniform(-0.1, 0.1)
        for task, (rate, share, run, wait, queue) in TASKS.items():
            counts: dict[str, int] = {}
            for _ in range(round(rate * busy)):
                ended = "failed" if dice.random() < share else "succeeded"
                took = dice.lognormvariate(math.log(run), 0.6)
                waited = dice.lognormvariate(math.log(wait * busy**4), 0.8)
                for field in ("started", ended, f"run~{bucket_of(took)}", f"wait~{bucket_of(waited)}"):
                    counts[field] = counts.get(field, 0) + 1
            counts["ready"] = round(wait * 200 * busy**4)
            for label in (f"jobs/shop.{task}", f"queues/{queue}"):
                app.stats.absorb(label, counts, now - 60 * minute)
        app.stats.absorb("queues", {"samples": 1}, now - 60 * minute)
    app.stats.flush()


def a_store(app: Headrace) -> None:
    """What waits, is paused and has failed."""
    mail, archive = app.by_name("shop.mail", queue="mail"), app.by_name("shop.archive", queue="archive")
    app.queues["archive"].pause()
    app.enqueue_many([*(mail.job(n) for n in range(12)), archive.job(1)])
    app.enqueue_many(app.by_name("shop.fetch", delay=600 + 60 * n).job(n) for n in range(40))
    app.enqueue_many(app.by_name("shop.charge", queue="payments").job(n) for n in range(6))


@contextmanager
def a_worker(place: Path, url: str) -> Generator[None]:
    (place / "shop.py").write_text(SHOP)
    command = [sys.executable, "-m", "headrace", "worker", "shop:app", "--queues", "default,payments,slow"]
    worker = subprocess.Popen([*command, "--processes", "4", "-q"], cwd=place, env=os.environ | {"HEADRACE_URL": url})
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(60)


def look(app: Headrace, base: str) -> None:
    """Look at the overview while jobs come, and take the picture."""
    from playwright.sync_api import sync_playwright

    fetch, resize = app.by_name("shop.fetch"), app.by_name("shop.resize", queue="slow")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.executable(), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light").new_page()
        page.context.request.post(f"{base}/login", form={"token": chromium.TOKEN}, headers={"origin": base})
        page.goto(base + "/")
        dice, end = random.Random(2), time.monotonic() + LOOKS
        while time.monotonic() < end:
            app.enqueue_many([*(fetch.job(n) for n in range(dice.randint(6, 12))), *(resize.job(n) for n in range(2))])
            page.wait_for_timeout(1000)
        page.screenshot(path=str(TARGET), full_page=True)
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with Headrace(dir=directory) as app:
            url = app.client.url()
            an_hour_of_figures(app, random.Random(1))
            a_store(app)
            with a_worker(place, url), chromium.served(url, place) as base:
                eventually(lambda: app.jobs.count("failed") == 6, 60, what="six failures")
                app.enqueue_many(app.by_name("shop.report", queue="slow").job(n) for n in range(2))
                look(app, base)
        print(TARGET)


if __name__ == "__main__":
    main()
