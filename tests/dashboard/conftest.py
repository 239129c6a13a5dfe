"""An application whose store holds something of everything, made without a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Concurrency, Cron, Every, Flow, Headrace, Rate, current_job
from headrace.dashboard import dashboard_site
from headrace.protocol.consume import register
from headrace.protocol.limit_verbs import declare_limits
from headrace.stats.resolutions import bucket_of
from headrace.testing import Kit

CANARY = "canary-4f1d"
# As long as a name may be, with places to break and without.
LONG, WHOLE = "a_very.long_name." * 7 + "of.a.task", "n" * 128
TURNED = "\u202egnp.exe \u0645\u0631\u062d\u0628\u0627"
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>" + "\ud800" + "x" * 300


class Shop:
    """An application and what was stored of it.

    Attributes:
        app: without connections of its own yet.
        failed, done, waiting, hostile: ids of jobs; ``flow``: of a workflow, one of whose jobs failed.
        deep, wide: a job with a long traceback, and a workflow of many boxes, after ``harm``.
    """

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.tasks(self.app)
        self.failed = self.done = self.waiting = self.hostile = self.flow = self.deep = self.wide = ""

    def tasks(self, app: Headrace) -> None:
        app.limit("shop.api", Rate(5, per=1), Concurrency(2))
        app.limit("shop.customer", Concurrency(1), by="customer")

        @app.task(name="shop.charge", limits=["shop.api", "shop.customer"])
        def charge(customer: str) -> None:
            pass

        @app.task(name="shop.add")
        def add(a: int, b: int = 0) -> int:
            current_job().log("added <b>them</b>")
            return a + b

        @app.task(name="shop.sign", retries=0)
        def sign(password: str, options: dict[str, Any]) -> None:
            raise ValueError(f"no: token={options['token']}")

        @app.task(name="shop.show", retries=0)
        def show(text: str) -> None:
            current_job().progress(0.5, text)
            current_job().log(text)
            raise RuntimeError(text)

        @app.workflow(name="shop.order")
        def order(flow: Flow, number: int) -> None:
            first = flow.run(add, number)
            second = flow.run(add, first)
            flow.run(sign, CANARY, {"token": CANARY}, after=second)

        self.charge, self.add, self.sign, self.show, self.order = charge, add, sign, show, order

    def fill(self, kit: Kit) -> None:
        self.failed = self.sign.enqueue(CANARY, {"token": CANARY}).id
        self.done = self.add.enqueue(1, 2).id
        self.hostile = self.show.options(key="<i>key</i>", headers={"tenant": "<u>acme</u>"}).enqueue(HOSTILE[:50]).id
        run = self.order.create(1)
        run.start()
        self.flow = run.id
        kit.drain(raises=False)
        self.waiting = self.add.options(queue="mail").enqueue(5).id
        self.add.options(delay=3600).enqueue(6)
        self.app.queues["paused"].pause()
        self.app.cache.set("price-7", 12.5, ttl=600, tags=["prices"])
        self.app.client.run(declare_limits(self.app.client.keys, "", [], self.app.limits.declared()))
        for customer in ("<b>acme</b>", "globex"):
            self.charge.enqueue(customer)
        self.app.schedules.put("shop.nightly", Cron("0 3 * * *", "Europe/Berlin"), self.add, 1, 2).run()
        self.app.schedules.put("shop.often", Every(300), self.add, 3, 4).pause("<b>for</b> the sale")
        counts = {"started": 9, "succeeded": 8, "failed": 1, f"run~{bucket_of(0.2)}": 9, f"wait~{bucket_of(0.01)}": 9}
        for label in ("jobs/shop.add", "queues/mail"):
            self.app.stats.absorb(label, counts, time.time() - 60)
        self.app.stats.absorb("queues", {"samples": 2}, time.time() - 60)
        self.app.stats.absorb("queues/mail", {"ready": 14}, time.time() - 60)
        self.app.stats.flush()

    def harm(self, kit: Kit) -> None:
        """Store names that are as long as they may be, texts that turn around, and an error that says much."""

        def down(text: str, depth: int) -> None:
            if depth % 2:
                down(text, depth - 1)
            elif depth:
                # Python folds lines that repeat: this one differs from the other.
                down(text, depth - 1)
            raise RuntimeError(text)

        @self.app.task(name=LONG, retries=0)
        def deep(text: str, depth: int) -> None:
            down(text, depth)

        @self.app.workflow(name=WHOLE)
        def wide(flow: Flow, number: int) -> None:
            for n in range(number):
                flow.run(self.add, n)
            flow.run(self.sign, "x", {"token": "y"})

        self.deep = deep.options(key=TURNED, note=TURNED * 5).enqueue(TURNED * 3 + "\nx" * 20 + WHOLE, 200).id
        run = wide.create(40)
        run.start()
        self.wide = run.id
        kit.drain(raises=False)
        for name in (LONG, WHOLE):
            self.app.by_name("lost.task", queue=name).enqueue(TURNED)
            self.app.queues[name].pause(note=TURNED + WHOLE)
            self.app.schedules.put(name, Every(300), self.add, 1, 2)
            self.app.cache.set(name, 1, ttl=600, tags=[name])
            self.app.stats.absorb(f"jobs/{name}", {"started": 3, "failed": 3}, time.time() - 60)
        self.app.stats.flush()
        place = [
            "place",
            f"{WHOLE}:4711",
            "queues",
            f"{LONG},{WHOLE}",
            "sizes",
            "process:2",
            "since",
            "1",
            "code",
            WHOLE,
        ]
        self.app.client.run(register(self.app.client.keys, "w0", 600_000_000, place, tasks={"shop.add": "process"}))


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests look at more pages a second than people do, and a busy machine holds up the server."""
    monkeypatch.setattr(dashboard_site, "RATE", 1000)
    monkeypatch.setattr(dashboard_site, "SILENCE", 20.0)
    monkeypatch.setattr(dashboard_site, "PATIENCE", 60.0)


@pytest.fixture
def app(url: str) -> Headrace:
    return Headrace(url)


@pytest.fixture
def kit(app: Headrace, url: str) -> Iterator[Kit]:
    """Runs the jobs of ``app`` when the test says so."""
    with Kit(app, url=url) as kit:
        yield kit


@pytest.fixture
def empty(app: Headrace, kit: Kit) -> Shop:
    """A store that holds nothing."""
    return Shop(app)


@pytest.fixture
def shop(empty: Shop, kit: Kit) -> Shop:
    """A store that holds something of everything."""
    empty.fill(kit)
    return empty
