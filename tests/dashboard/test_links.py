"""Every page that a link leads to, in a store in which each page has all that it can show."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from starlette.routing import compile_path

from headrace import Concurrency, Flow, Rate
from headrace.admin.alarms import look_at_alarms
from headrace.dashboard import Dashboard
from headrace.dashboard.job_pages import LISTED
from headrace.dashboard.mounting import PAGES
from headrace.dashboard.values_shown import quoted
from headrace.model.ended import EndKind
from headrace.model.job import JobError, Outcome, error_json
from headrace.protocol import consume
from headrace.protocol.operations import JobFilter
from headrace.testing import Kit
from tests.dashboard.asking import Answer, ask, operator
from tests.dashboard.conftest import Shop

HOUR = 3_600_000_000
# A name may hold these, and must not end as another page's does.
ODD = "a/b:c@d+e.json"
# Pages that forms lead to, and links only elsewhere.
STARTS = (f"/queues/{quoted(ODD)}", f"/tasks/{quoted(ODD)}")
# Pages whose path ends with a name, and questions that make another page of one.
NAMED = "queues|tasks|limits|schedules|workers|cache"
TOLD = ("state", "show", "kind", "verb")


class Filled:
    """A shop to whose store all is added that a page can show."""

    def __init__(self, shop: Shop, kit: Kit) -> None:
        self.shop, self.app, self.requests = shop, shop.app, iter(range(1, 100))
        self._workflows(kit)
        self._jobs()
        self._figures()
        self._numbers()
        self._people()

    def _workflows(self, kit: Kit) -> None:
        @self.app.workflow(name="shop.small")
        def small(flow: Flow) -> None:
            flow.run(self.shop.add, 1, name="only")

        small.create().start()
        kit.drain(raises=False)
        small.create()
        runs = [small.create() for _ in range(3)]
        for run in runs:
            run.start()
        runs[0].stop()
        runs[1].cancel()

    def _jobs(self) -> None:
        """Jobs of each state, and workers: one that runs jobs, and one that is silent."""
        add, keys = self.shop.add, self.app.client.keys
        for n in range(60):
            add.options(queue="many").enqueue(n)
            add.options(delay=600 + n).enqueue(n)
        for n in range(3):
            add.options(key="orders/7", ordered=True).enqueue(n)
        for n in range(20):
            add.options(queue=ODD).enqueue(n)
        facts = ["place", "host-0:1", "queues", f"many,{ODD}", "sizes", "process:8 thread:2", "since", "1"]
        self._run(consume.register(keys, "w0", HOUR, facts, tasks={"shop.add": "process", "shop.charge": "thread"}))
        self._run(consume.register(keys, "w1", 1, ["place", "host-1:7", "queues", "mail", "sizes", "fork:1"]))
        error = error_json(JobError(type="shop.Broken", message="no", where="shop.py:7 in add"))
        self._end({"failed": 55, "corrupt": 2, "parked": 1}, "many", error)
        self._end({"failed": 12, "crashed": 1, "retry": 1, "parked": 1}, ODD, error)
        add.options(delay=600).enqueue(0).cancel()
        self._run(consume.claim(keys, "w1", next(self.requests), 1, ["mail"]))
        (first, *_) = self._run(consume.claim(keys, "w0", next(self.requests), 3, [ODD])).jobs
        runners = [{"kind": "process", "pid": 71, "job": first.id, "task": "shop.add", "since": 1}, {"kind": "thread"}]
        self._run(consume.renew(keys, "w0", HOUR, ["runner_facts", json.dumps(runners)]))

    def _run(self, call: Any) -> Any:
        return self.app.client.run(call)

    def _end(self, numbers: Mapping[EndKind, int], queue: str, error: bytes) -> None:
        kinds: list[EndKind] = [kind for kind, number in numbers.items() for _ in range(number)]
        keys = self.app.client.keys
        claims = self._run(consume.claim(keys, "w0", next(self.requests), len(kinds), [queue])).jobs
        rows = [
            (Outcome(one.id, one.token, kind, error, HOUR), one.ready) for one, kind in zip(claims, kinds, strict=True)
        ]
        self._run(consume.settle(keys, "w0", next(self.requests), rows, HOUR))

    def _figures(self) -> None:
        for label in ("jobs/shop.sign", "jobs/shop.add", f"jobs/{ODD}", "queues/default", f"queues/{ODD}"):
            self.app.stats.absorb(label, {"started": 40, "failed": 30, "succeeded": 10}, time.time() - 60)
        self.app.stats.flush()
        self.app.alarm("nobody serves", queue="nowhere", workers=1, for_=0)

    def _numbers(self) -> None:
        """Limits with numbers of people, schedules, cached values."""
        api, customer = self.app.limits["shop.api"], self.app.limits["shop.customer"]
        api.set(Rate(9, per=1), duration=600)
        api.pause(duration=600)
        customer.set(Concurrency(3), value="globex")
        customer.pause("globex")
        for n in range(60):
            self.app.cache.set(f"{ODD}-{n}", n, ttl=600, tags=[ODD])

    def _people(self) -> None:
        """What people do: to one, to many, and what is refused."""
        self.app.queues[ODD].pause(600, "the provider is down")
        self.app.bulk.start("retry", JobFilter("failed", task="shop.sign"), who="ada", by="dashboard")
        self.app.bulk.start("delete", JobFilter("ready", "many"), who="ada", by="dashboard")
        acts = [("retry", "jobs", self.shop.failed), ("pause", "queues", ODD), ("stop", "workflows", self.shop.flow)]
        acts += [("pause", "schedules", "shop.often"), ("pause", "limits", "shop.api"), ("retry", "jobs", "")]
        acts += [("delete", "cache", ODD), ("scale", "workers", "w0")]
        for verb, kind, name in acts:
            self.app.acts.record(verb, kind, name, who="ada", by="dashboard", reply="done")


@pytest.fixture
async def filled(shop: Shop, kit: Kit) -> AsyncIterator[Shop]:
    found = await asyncio.to_thread(Filled, shop, kit)
    app = found.app
    for _ in range(2):
        await asyncio.to_thread(look_at_alarms, app.client, app.stats, app.alarms.declared.values())
    yield shop
    # Jobs that are shown as running have no end.
    kit.close(check=False)


@dataclass(frozen=True)
class Step:
    """A link, or a form that leads to a page that asks."""

    to: str
    form: tuple[tuple[str, str], ...] = ()

    @cached_property
    def page(self) -> str:
        """The page that it leads to, whatever that is about."""
        path = re.sub(r"(?<=/)([0-9a-z]{21}|[0-9a-f]{16})(?![0-9a-z])", "ID", urlsplit(self.to).path)
        return re.sub(rf"^(/({NAMED})/).+?(/act/.*|\.json|\.csv)?$", r"\1NAME\3", path)

    @cached_property
    def view(self) -> str:
        """The page, and which of it; a document is one."""
        told = [] if self.page.endswith((".json", ".csv")) else [self.fields.get(name, [""])[0] for name in TOLD]
        return " ".join([self.page, *told])

    @cached_property
    def kind(self) -> str:
        """The view, with the names of all that is asked of it."""
        return " ".join([self.view, *sorted(self.fields)])

    @cached_property
    def fields(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.to).query)


def steps(page: str, answer: Answer) -> Iterator[Step]:
    """Links of a page, its forms that change nothing, and those that lead to a page that asks."""
    action, fields, buttons = "", dict[str, str](), list[str]()
    # A button may stand before the fields of its form.
    for tag, given in [*answer.elements, ("form", {})]:
        if tag == "form":
            if "ask" in fields or ("id" in fields and "sure" not in fields):
                yield from (Step(urljoin(page, to), tuple(fields.items())) for to in buttons)
            buttons = []
        link, kind = given.get("action" if tag == "form" else "href", ""), given.get("type")
        if tag == "form":
            action, fields = urljoin(page, link), {}
        elif tag == "input" and (kind == "hidden" or given.get("name") == "id") and "disabled" not in given:
            fields.setdefault(given["name"], given["value"])
        elif tag == "button":
            buttons.append(given.get("formaction", action))
        if link and given.get("method") != "post" and not link.startswith("data:"):
            yield Step(urljoin(page, link))


async def follow(dashboard: Dashboard, step: Step) -> list[Step]:
    """Ask for a page; the steps from there to others. Those to a part of it are taken at once."""
    page = step.to.partition("#")[0]
    answer = await ask(dashboard, page, form=step.form or None)
    assert answer.status == 200, (step, answer.text[-400:])
    if not answer.headers["content-type"].startswith("text/html"):
        return []
    found = list(dict.fromkeys(steps(page, answer)))
    ids = {attributes.get("id") for _, attributes in answer.elements}
    parts = [one for one in found if one.to.startswith(f"{page}#")]
    assert [one for one in parts if one.to.partition("#")[2] not in ids] == []
    return [one for one in found if one not in parts]


async def test_every_link_of_every_page_leads_to_a_page(filled: Shop) -> None:
    """Of the links of one kind on pages of one kind, one is taken."""
    dashboard = Dashboard(filled.app, operator)
    todo = deque(map(Step, ["/", *STARTS, f"/workflows/{filled.flow}?near=1"]))
    seen, ways = set(todo), set[tuple[str, str]]()
    while todo:
        step = todo.popleft()
        for found in await follow(dashboard, step):
            if found not in seen and (way := (step.view, found.kind)) not in ways:
                ways.add(way)
                seen.add(found)
                todo.append(found)
    states = json.loads((await ask(dashboard, "/overview.json")).text)["states"]
    assert [state for state in LISTED if not states.get(state)] == []
    visited = {urlsplit(step.to).path for step in seen}
    assert [page for page in PAGES if not any(map(compile_path(page)[0].match, visited))] == []
    assert {step.page for step in seen if step.form} == {
        "/jobs/ID/act/delete", "/jobs/ID/act/cancel", "/jobs/ticked/act/retry", "/jobs/ticked/act/delete",
        "/jobs/ticked/act/cancel", "/cache/NAME/act/untag", "/schedules/NAME/act/run", "/workflows/ID/act/cancel",
        "/workflows/ID/act/delete", "/bulk/ID/act/stop", "/workflows/ticked/act/retry", "/workflows/ticked/act/stop",
        "/workflows/ticked/act/delete", "/workers/NAME/act/stop",
    }  # fmt: skip
