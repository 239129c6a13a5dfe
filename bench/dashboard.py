"""The dashboard over a store that holds a million jobs, 10,000 workflows, 100 queues and 20 workers.

Each page is asked of a dashboard of its own, so that nothing is shared with the page before; the application that is
asked is the same. Round trips are requests that the server read. A script's time is the server's own, from its slow
log, so other programs matter little; our time is this process's. Seconds on the wall count on an idle machine only.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from bench.context import Context
from bench.dashboard_store import fill
from bench.figure import Bar, Figure, percentile
from bench.servers import Server, server

T = TypeVar("T")

_JOBS, _FLOWS = 1_000_000, 10_000
_ROUNDS, _TABS, _BYTES = 40, 50, 1000
# Round trips that a page may take, the frame included that all tabs share for two seconds.
_PAGES = {
    "/": 1, "/?span=1y": 1, "/workers": 1, "/workers/host-0:1": 2, "/causes": 1, "/activity": 1, "/queues": 2,
    "/tasks": 2, "/jobs?state=failed": 2, "/jobs?state=ready": 2, "/jobs?state=failed&q=nothing": 21, "/jobs/ID": 2,
    "/jobs/new": 1,
    "/workflows": 2, "/workflows/SMALL": 3, "/workflows/LARGE": 3, "/queues/queue-1": 2, "/tasks/shop.task-1": 4,
    "/schedules": 2, "/limits": 2, "/cache": 2, "/store": 2, "/bulk": 2,
    "/bulk/new?verb=retry&state=failed&task=shop.add": 20, "/bulk/new?verb=retry&state=failed&cause=CAUSE": 20,
}  # fmt: skip
# Scripts that look at jobs which a page may not want, a bite each; milliseconds of a bite, and of any script.
_LOOKS, _BITE, _SCRIPT = (
    {
        "/jobs?state=failed&q=nothing": "look",
        "/causes": "page",
        "/bulk/new?verb=retry&state=failed&task=shop.add": "bulk_count",
        "/bulk/new?verb=retry&state=failed&cause=CAUSE": "bulk_count",
    },
    2,
    10,
)
# Their pictures are drawn by a process, and come with the first refresh; milliseconds of the page once it is drawn.
_PICTURES, _AGAIN = {"/workflows/SMALL", "/workflows/LARGE"}, 100
# Microseconds. A slow log that takes all has an entry for each command of a script, too: 500 looks of two commands took
# the server 3.6 ms with it, and 1.4 ms without.
_BRIEF = 50
_FILES = {"live.js": 12, "*.css": 25}


@dataclass(slots=True)
class _Cost:
    """What one page cost, each time: trips, its slowest script, milliseconds, bytes; how often there was no page.

    ``bites``: milliseconds of each of its looks. ``again``: milliseconds of the page once its picture is drawn.
    """

    trips: list[float] = field(default_factory=list[float])
    slowest: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    bites: list[float] = field(default_factory=list[float])
    server: list[float] = field(default_factory=list[float])
    ours: list[float] = field(default_factory=list[float])
    wall: list[float] = field(default_factory=list[float])
    again: list[float] = field(default_factory=list[float])
    size: int = 0
    away: int = 0


class _Scripts:
    """How long the server ran each script, by its slow log; scripts that were shorter than ``_BRIEF`` are left out."""

    def __init__(self, target: Server) -> None:
        from headrace.protocol.script import load
        from headrace.protocol.script_header import parse_header

        texts = {Path(one.name).stem: one.read_text() for one in files("headrace").joinpath("scripts").iterdir()}
        included = {name for text in texts.values() for name in parse_header(text).includes}
        self._names = {load(name).sha: name for name in texts.keys() - included}
        self._client = target.client
        self._client.config_set("slowlog-log-slower-than", _BRIEF)
        self._client.config_set("slowlog-max-len", 10_000)

    def since(self) -> list[tuple[float, str]]:
        """Milliseconds and name of each that ran since it was asked last."""
        told = [(one["duration"] / 1e3, one["command"].split()) for one in self._client.slowlog_get(10_000)]
        self._client.slowlog_reset()
        return [
            (took, self._names.get(words[1].decode(), "?"))
            for took, words in told
            if len(words) > 1 and words[0].upper() == b"EVALSHA"
        ]


def _dashboard(app: Any) -> Any:
    from headrace.dashboard import Dashboard, Visitor

    return Dashboard(app, lambda _request: Visitor("bench", "operator"))


async def _ask(dashboard: Any, path: str, *, refreshes: bool = False) -> int:
    """Ask for one page, or as its tab does that refreshes it; its bytes, 0 where the store was away for too long."""
    from headrace.dashboard.dashboard_site import POLL

    headers = [(b"host", b"bench"), (b"accept", b"text/html"), *([(POLL.encode(), b"1")] if refreshes else [])]
    place, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "method": "GET", "scheme": "http", "http_version": "1.1",
        "path": place, "raw_path": place.encode(), "root_path": "", "query_string": query.encode(),
        "headers": headers, "server": ("bench", 80), "client": ("bench", 1),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await dashboard(scope, receive, send)
    if sent[0]["status"] == 503:
        return 0
    assert sent[0]["status"] == 200, (path, sent[0]["status"])
    return sum(len(message.get("body", b"")) for message in sent[1:])


async def _measured(
    app: Any, target: Server, scripts: _Scripts, paths: dict[str, str], rounds: Iterable[int]
) -> dict[str, _Cost]:
    found = {name: _Cost() for name in paths}
    # As `headrace dashboard` does. The collector takes 60 ms to look at what the bench itself holds.
    gc.freeze()
    for round_ in rounds:
        for name, cost in found.items():
            scripts.since()
            before, ours, begun = target.work(), time.process_time(), time.perf_counter()
            dashboard = _dashboard(app)
            size = await _ask(dashboard, paths[name])
            cost.away += not size
            cost.size = max(cost.size, size)
            wall, ours = time.perf_counter() - begun, time.process_time() - ours
            spent, ran = target.work() - before, scripts.since()
            # The first of each connects and loads scripts. A question of ours is a trip, too.
            if round_:
                cost.trips.append(spent.trips - 1)
                cost.slowest.append(max(ran, default=(0.0, "none")))
                cost.bites += [took for took, which in ran if which == _LOOKS.get(name)]
                cost.server.append(sum(took for took, _ in ran))
                cost.ours.append(1e3 * ours)
                cost.wall.append(1e3 * wall)
            if round_ and name in _PICTURES:
                await _ask(dashboard, paths[name], refreshes=True)
                begun = time.perf_counter()
                await _ask(dashboard, paths[name])
                cost.again.append(1e3 * (time.perf_counter() - begun))
    return found


async def _tabs(app: Any, target: Server) -> tuple[float, float]:
    """Round trips, and processor milliseconds of this process, of 50 tabs that refresh the overview at once."""
    shared = _dashboard(app)
    before, ours = target.work(), time.process_time()
    await asyncio.gather(*(_ask(shared, "/", refreshes=True) for _ in range(_TABS)))
    return (target.work() - before).trips - 1, 1e3 * (time.process_time() - ours)


def _of_page(name: str, path: str, cost: _Cost) -> Iterator[Figure]:
    # The median: where other programs have the processor, the slow log counts what the server waits for it.
    took = percentile([took for took, _ in cost.slowest], 50)
    which = next((script for one, script in cost.slowest if one == took), "")
    yield Figure(f"{name}: round trips", max(cost.trips), "", bar=Bar("at most", _PAGES[path]))
    yield Figure(f"{name}: slowest script", took, "ms", bar=Bar("at most", _SCRIPT), note=which)
    if cost.bites:
        # The median: every 2,500 jobs or so one of them frees what all have left in Lua, which takes it twice as long.
        yield Figure(f"{name}: a bite", percentile(cost.bites, 50), "ms", bar=Bar("at most", _BITE), note=_LOOKS[path])
    yield Figure(f"{name}: all scripts", percentile(cost.server, 50), "ms")
    yield Figure(f"{name}: our time", percentile(cost.ours, 50), "ms CPU")
    drawn = path in _PICTURES
    yield Figure(f"{name}: p95", percentile(cost.wall, 95), "ms", bar=Bar("at most", 50))
    yield Figure(f"{name}: p99", percentile(cost.wall, 99), "ms", bar=Bar("at most", 200))
    if drawn:
        yield Figure(f"{name}, drawn: p95", percentile(cost.again, 95), "ms", bar=Bar("at most", _AGAIN))
    yield Figure(f"{name}: no answer", cost.away, "", bar=Bar("at most", 0))
    yield Figure(f"{name}: size", cost.size / _BYTES, "kB", bar=Bar("at most", 60) if path == "/" else None)


def _of_files() -> Iterator[Figure]:
    static = files("headrace").joinpath("dashboard", "static")
    for pattern, most in _FILES.items():
        size = sum(path.stat().st_size for path in Path(str(static)).glob(pattern)) / _BYTES
        yield Figure(f"dashboard, {pattern}: size", size, "kB", bar=Bar("at most", most))


def run(context: Context) -> list[Figure]:
    """What each page costs, in round trips, processor time, seconds and bytes."""
    jobs, flows = context.scaled(_JOBS), context.scaled(_FLOWS)
    rounds = range(6 if context.quick else _ROUNDS + 1)
    with server() as target:
        app, ids = fill(target.url, jobs, flows, lambda said: context.say(f"dashboard: {said}"))
        paths = {name: next((name.replace(*one) for one in ids.items() if one[0] in name), name) for name in _PAGES}
        scripts = _Scripts(target)

        def told() -> Iterator[int]:
            for n in rounds:
                context.say(f"dashboard: pages are asked for, {n} of {len(rounds)} times")
                yield n

        async def measure() -> tuple[dict[str, _Cost], tuple[float, float]]:
            try:
                return await _measured(app, target, scripts, paths, told()), await _tabs(app, target)
            finally:
                await app.aclose()

        found, (trips, ours) = asyncio.run(measure())
    figures = [one for path, cost in found.items() for one in _of_page(f"dashboard, {jobs:,} jobs, {path}", path, cost)]
    tabs = f"dashboard, {_TABS} tabs of the overview at once"
    figures.append(Figure(f"{tabs}: round trips", trips, "", bar=Bar("at most", 1)))
    # They ask each two seconds, and may take 3 % of a core.
    figures.append(Figure(f"{tabs}: our time", ours, "ms CPU", bar=Bar("at most", 60)))
    return figures + list(_of_files())
