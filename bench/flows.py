"""Flows: a page of the newest workflows among 1,000, 10,000 and 1,000,000; large graphs; removing 100,000 of them.

Speaks to the store as a client does. The workflows of the pages are made by the real script, a thousand to a pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE
from headrace.model.form import Form
from headrace.model.ids import flow_id
from headrace.model.workflow import Graph, NewNode, NodeFacts, Policy, pack_facts
from headrace.protocol import graph
from headrace.protocol.index_pages import Slice
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load
from headrace.settings import Settings
from headrace.store.client import Client
from headrace.store.store import Store
from headrace.store.waiting import wait_end

_SIZES = (1_000, 10_000, 1_000_000)
_KEYS = Keys()
_FORM = Form("bench.app.kept", queue="nobody")
_EMPTY = b"\x92\x90\x80"


def _node(parents: tuple[int, ...] = (), children: tuple[tuple[int, Policy], ...] = ()) -> NewNode:
    return NewNode(_FORM, _EMPTY, parents, children, pack_facts(NodeFacts("kept", "bench")))


def _ids() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield flow_id(time.time_ns() // 1_000_000, number)


def _send(target: Server, calls: list[Call[Any]]) -> None:
    pipe = target.client.pipeline(transaction=False)
    for call in calls:
        pipe.execute_command(*call.command())
    pipe.execute()


def _make(target: Server, ids: Iterator[str], count: int, ttl: int = -1) -> None:
    target.client.script_load(load("flow_create").text)
    one = Graph("bench", (_node(),), ttl=ttl)
    for first in range(0, count, 1000):
        _send(target, [graph.create(_KEYS, id, one) for id in islice(ids, min(1000, count - first))])


def _milliseconds(action: Callable[[], object], times: int = 50) -> float:
    taken: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append(1e3 * (time.perf_counter() - start))
    return median(taken)


def _scan(target: Server) -> None:
    """What a list without an index does: look at every key, read every workflow, sort."""
    keys: list[bytes] = list(target.client.scan_iter(match="{hr:0}:flow:*", count=1000))
    pipe = target.client.pipeline(transaction=False)
    for key in keys:
        pipe.hgetall(key)
    sorted(pipe.execute(), key=lambda record: int(record[b"created"]), reverse=True)[:100]


def _page(store: Store) -> None:
    """What a list shows: name, state, times and progress are read of each row."""
    rows = store.run(graph.flow_page(_KEYS, piece=Slice(100))).rows
    assert len([(row.definition, row.state, row.created_us, row.finished_us, row.progress) for row in rows]) == 100


def _pages(context: Context) -> list[Figure]:
    figures: list[Figure] = []
    taken: dict[int, float] = {}
    with server() as target:
        store, ids, made, scan = Store(target.url, Settings()), _ids(), 0, 0.0
        for size in _SIZES:
            wanted = size if not context.quick else min(size, 20_000)
            context.say(f"pages: {wanted:,} workflows")
            _make(target, ids, wanted - made)
            made = wanted
            taken[size] = _milliseconds(lambda: _page(store))
            if size == 10_000:
                scan = _milliseconds(lambda: _scan(target), 3)
        store.close()
    for size, page in taken.items():
        bar = Bar("at most", 5) if size == _SIZES[-1] else None
        figures.append(Figure(f"newest 100 of {size:,} workflows", page, "ms", bar=bar))
    slowest, quickest = max(taken.values()), min(taken.values())
    bars = (Bar("at most", 2, "ratio"), Bar("at least", 100, "ratio"))
    figures.append(Figure("the slowest of these pages", slowest, "ms", "the quickest", quickest, bars[0]))
    figures.append(Figure("a scan of 10,000 for the same", scan, "ms", "page", taken[10_000], bars[1]))
    return figures


def _large(context: Context) -> list[Figure]:
    """1 -> 10,000 -> 1 and a chain of 1,000, run by a real worker: seconds, the slowest script, bytes a node."""
    figures: list[Figure] = []
    width, length = context.scaled(10_000), context.scaled(1_000)
    for name, verb, count, nodes in (
        ("1 -> 10,000 -> 1", "fan", width, width + 2),
        ("a chain of 1,000", "chain", length, length),
    ):
        context.say(name)
        with server() as target:
            target.client.config_set("slowlog-log-slower-than", 1000)
            target.client.config_set("slowlog-max-len", 1000)
            client = Client(Settings(url=target.url))
            context.produce(HEADRACE, target, "waiting_" + verb, 10)
            before = target.work().memory
            context.produce(HEADRACE, target, "waiting_" + verb, count)
            memory = (target.work().memory - before) / nodes
            (record,) = client.run(graph.flow_page(_KEYS, piece=Slice(1))).rows
            with context.worker(HEADRACE, target) as worker:
                started = time.perf_counter()
                client.run(graph.start(_KEYS, record.id))
                while not wait_end(client, graph.watch_flow, record.id, 5).final:
                    worker.check()
                seconds = time.perf_counter() - started
            slow = max((entry["duration"] / 1e3 for entry in target.client.slowlog_get(1000)), default=1.0)
            client.close()
        figures.append(Figure(f"{name}, start to end", seconds, "s"))
        figures.append(Figure(f"{name}, slowest command", slow, "ms", bar=Bar("at most", 10)))
        figures.append(Figure(f"{name}, memory per node", memory, "bytes"))
    return figures


def _rate(target: Server, seconds: float) -> float:
    """No-ops a second over some seconds, from a queue that does not run dry."""
    done = target.client.register_script("return redis.call('ZCARD', '{hr:0}:ready:default')")
    before, start = int(done()), time.perf_counter()
    time.sleep(seconds)
    return (before - int(done())) / (time.perf_counter() - start)


def _make_ended(target: Server, count: int) -> None:
    """Workflows that ended long ago, all of them."""
    ids = list(islice(_ids(), count))
    _make(target, iter(ids), count, ttl=8_000_000)
    for name in ("flow_cancel", "tend"):
        target.client.script_load(load(name).text)
    pipe = target.client.pipeline(transaction=False)
    for first in range(0, count, 500):
        part = ids[first : first + 500]
        _send(target, [*(graph.cancel(_KEYS, id) for id in part), *(graph.tend(_KEYS, 1000) for _ in range(4))])
        pipe.zadd(_KEYS("lapses"), dict.fromkeys(part, 1))
    pipe.execute()


def _removal(context: Context) -> list[Figure]:
    """Removing workflows whose retention is over, beside no-ops: windows with and without, in turn, of one worker."""
    count = context.scaled(100_000)
    context.say(f"removing {count:,} workflows under load")
    lapses, aside = _KEYS("lapses"), "aside"
    # Renewals, with which a dispatcher learns what is over, come each second.
    system = replace(HEADRACE, env={**HEADRACE.env, "HEADRACE_LEASE": "2.5"})
    alone_s, meanwhile_s, gone = list[float](), list[float](), list[int]()
    with server() as target:
        _make_ended(target, count)
        target.client.rename(lapses, aside)
        context.produce(HEADRACE, target, "bulk", context.scaled(1_000_000))
        target.client.config_set("slowlog-log-slower-than", 1000)
        with context.worker(system, target):
            time.sleep(2)
            target.client.slowlog_reset()
            for _ in range(3):
                alone_s.append(_rate(target, 3))
                target.client.rename(aside, lapses)
                left = int(target.client.zcard(lapses))
                wait_until(lambda left=left: int(target.client.zcard(lapses)) < left, "a removal")
                left = int(target.client.zcard(lapses))
                meanwhile_s.append(_rate(target, 3))
                gone.append(left - int(target.client.zcard(lapses)))
                target.client.rename(lapses, aside)
        slow = max((entry["duration"] / 1e3 for entry in target.client.slowlog_get(100)), default=1.0)
    meanwhile, alone = median(meanwhile_s), median(alone_s)
    return [
        Figure(
            "jobs/s while workflows are removed", meanwhile, "jobs/s", "alone", alone, Bar("at least", 0.9, "ratio")
        ),
        Figure("workflows removed a second meanwhile", median(gone) / 3, "workflows/s"),
        Figure("slowest command meanwhile", slow, "ms", bar=Bar("at most", 10)),
    ]


def run(context: Context) -> list[Figure]:
    """Pages, large graphs, removal."""
    return [*_pages(context), *_large(context), *_removal(context)]
