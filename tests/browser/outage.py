"""An outage to be played: workers of a small shop, and an operator who starts at the overview and counts the clicks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from tests.nursery import Forked, headrace
from tests.processes import below

# How often a click may be needed to see the trouble, find its cause and mend it.
BAR = 3
SHOP = """
import os, time
from headrace import Concurrency, Headrace
app = Headrace()
app.limit("api", Concurrency(2))

@app.task(name="shop.charge")
def charge(customer, amount):
    if customer == "globex" and not os.path.exists("bank-is-back"):
        raise ConnectionError("the bank of this account does not answer")

@app.task(name="shop.call", limits=["api"])
def call(number): pass

@app.task(name="shop.part", retries=0)
def part(number):
    if number == 2500 and not os.path.exists("bank-is-back"):
        raise ValueError("this part is empty")

if os.path.exists("deployed"):
    @app.task(name="shop.load")
    def load(number): pass

@app.task(name="shop.mail", queue="mail")
def mail(text): pass

@app.task(name="shop.report")
def report(number):
    while not os.path.exists("reports-go-on"):
        time.sleep(0.01)
"""


class OutageShop:
    """Workers of the shop, each a process of its own; none is left when it is closed."""

    def __init__(self, url: str, place: Path) -> None:
        self.place = place
        self._environ = os.environ | {"HEADRACE_URL": url, "HEADRACE_LEASE": "3"}
        self._workers: list[Forked] = []
        (place / "shop.py").write_text(SHOP)

    def worker(self, *options: str) -> Forked:
        words = ("worker", "shop:app", "--processes", "2", "-q", *options)
        self._workers.append(headrace(self._environ, *words, directory=self.place))
        return self._workers[-1]

    def kill(self, worker: Forked) -> None:
        """As a power cut: all of its processes at once, so that none can tell of the death of another."""
        everyone = [psutil.Process(worker.pid), *below(worker.pid)]
        for act in (signal.SIGSTOP, signal.SIGKILL):
            for one in everyone:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(act)
        worker.wait(60)

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait(60)


class Operator:
    """Looks at the overview, and clicks from there.

    Attributes:
        clicks: so many; typing is none.
        seen: seconds from the trouble until the overview named it first.
    """

    def __init__(self, page: Any, shots: str = "") -> None:
        self.page = page
        self.clicks = 0
        self.seen = 0.0
        self._begun = 0.0
        self._shots = shots

    @property
    def seconds(self) -> float:
        """Since the trouble began."""
        return time.monotonic() - self._begun

    def starts(self) -> None:
        self._begun = time.monotonic()

    def sees(self, words: str) -> None:
        """Wait, as a person does with the page before them, until it says something."""
        self.page.locator("main").get_by_text(words).first.wait_for()
        if self._shots:
            self.page.screenshot(path=f"{self._shots}-{self.clicks}-{words[:12]}.png".replace(" ", "_"), full_page=True)

    def ranks(self, words: str) -> None:
        """Wait until the overview says it before all else that needs a person, and note how long that took."""
        self.page.locator("#needs li").first.get_by_text(words).wait_for()
        self.seen = time.monotonic() - self._begun
        self.sees(words)

    def click(self, role: str, name: str) -> None:
        self.page.locator("main").get_by_role(role, name=name).first.click()
        self.clicks += 1

    def type(self, text: str) -> None:
        self.page.locator("main form input[name=typed]").fill(text)

    def reads(self) -> str:
        return str(self.page.locator("main").inner_text())
