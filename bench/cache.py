"""The client cache: what a hit costs, how soon a foreign write is felt, and what a web handler gains.

Hits are timed in this process, in turns with a dictionary behind a function, and beside GET with redis-py over the same
Unix socket. A write is felt when the last of eight reading processes has returned the old value for the last time; the
clock starts when the write returned. The handler is a Starlette one that reads fifty settings a request, behind uvicorn
on a Unix socket, asked by sixteen connections.

A pause is felt by a worker when it has started its last job, the end of one when it starts the next; four workers are
measured beside a backlog of jobs of a millisecond, and each time it is the last one that counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import redis

from bench.context import Context
from bench.figure import Bar, Figure, percentile
from bench.processes import ROOT, BenchError, running, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE

READERS, SETTINGS = 8, 50
WORKERS, ROUNDS = 4, 10
_ENV = {"PYTHONPATH": str(ROOT)}


def _each(count: int, **functions: Callable[[str], object]) -> dict[str, float]:
    """Nanoseconds of one call of each, the best of many short rounds in turns: others use this machine too."""
    # Compiled one by one: one loop for all would be a call site that no interpreter can specialise.
    timers = {name: timeit.Timer("call('setting')", globals={"call": call}) for name, call in functions.items()}
    empty, best = timeit.Timer("pass"), dict.fromkeys(timers, float("inf"))
    loop = min(empty.repeat(20, count))
    for _ in range(40):
        for name, timer in timers.items():
            best[name] = min(best[name], timer.timeit(count))
    return {name: (seconds - loop) / count * 1e9 for name, seconds in best.items()}


def _rate(function: Callable[[str], object], threads: int, count: int) -> float:
    """Calls a second of all threads together."""
    ready = threading.Barrier(threads + 1)

    def work() -> None:
        ready.wait()
        for _ in range(count // threads):
            function("setting")

    crowd = [threading.Thread(target=work) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in crowd:
        thread.join()
    return count / (time.perf_counter() - began)


def _hits(context: Context, target: Server) -> list[Figure]:
    from headrace import Headrace

    plain = {"setting": "value"}

    def look_up(name: str) -> str:
        return plain[name]

    count = context.scaled(500_000)
    with Headrace(target.url) as app, redis.Redis.from_url(target.url, protocol=2) as client:
        app.cache.set("setting", "value")
        client.set("setting", "value")
        wait_until(lambda: app.cache.get("setting") and app.cache.statistics().used, "the first hit")
        get: Callable[[str], object] = app.cache.get
        taken = _each(count // 25, hit=get, bare=look_up)
        hit, bare = taken["hit"], taken["bare"]
        trip = _each(20, trip=client.get)["trip"]
        one, eight = (max(_rate(get, threads, count) for _ in range(3)) for threads in (1, 8))
    return [
        Figure("cache hit", hit, "ns", "dictionary behind a function", bare, Bar("at most", 3, "ratio")),
        Figure("GET over a Unix socket", trip, "ns", "cache hit", hit, Bar("at least", 100, "ratio")),
        Figure("cache hits, 8 threads together", eight, "hits/s", "1 thread", one, Bar("at least", 0.8, "ratio")),
    ]


def _felt(context: Context, target: Server, pause: float) -> list[float]:
    """Milliseconds for each write, from its return to the last old value that anybody returned."""
    from headrace import Headrace

    dice, writes, acknowledged = random.Random(1), context.scaled(400), dict[int, float]()
    argv = [sys.executable, "-m", "bench.cache_reader", target.url, str(pause)]
    with contextlib.ExitStack() as ends, Headrace(target.url) as app:
        app.cache.set("number", 0)
        readers = [ends.enter_context(running(argv, _ENV)) for _ in range(READERS)]
        wait_until(lambda: all(reader.answer() == "reads" for reader in readers), "the readers", 30)
        for number in range(1, writes + 1):
            app.cache.set("number", number)
            acknowledged[number] = time.monotonic()
            time.sleep(dice.uniform(0.005, 0.025))
        app.cache.set("number", -1)
        for reader in readers:
            reader.wait(30)
        old = [json.loads(reader.answer()) for reader in readers]
    felt: list[float] = []
    for number, at in acknowledged.items():
        last = max(reader.get(str(number), 0.0) for reader in old)
        felt.append(max(0.0, last - at) * 1e3)
    return felt


def _requests(path: str, route: str, seconds: float) -> float:
    """Requests a second over sixteen connections that each wait for their answer."""
    request = f"GET {route} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    done, answered = 0, dict[socket.socket, bytes]()
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as ends:
        for _ in range(16):
            peer = ends.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(path)
            selector.register(peer, selectors.EVENT_READ)
            answered[peer] = b""
            peer.sendall(request)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for key, _ in selector.select(1):
                peer = key.fileobj  # type: ignore[assignment]
                answered[peer] += peer.recv(1 << 16)
                head, end, body = answered[peer].partition(b"\r\n\r\n")
                if end and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
                    done += 1
                    answered[peer] = b""
                    peer.sendall(request)
        return done / (time.perf_counter() - began)


def _web(context: Context, target: Server) -> list[Figure]:
    name = "web handler, 50 settings from the cache"
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        return [Figure(name, None, "requests/s", note="needs starlette and uvicorn: make setup")]
    rates: dict[str, list[float]] = {"cache": [], "redis": [], "dict": []}
    with tempfile.TemporaryDirectory(prefix="hb-") as directory:
        path = str(Path(directory) / "web")
        env = _ENV | {"BENCH_URL": target.url, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        with running([sys.executable, "-m", "bench.cache_web", path], env) as group:

            def serves() -> bool:
                group.check()
                return Path(path).exists() and _requests(path, "/cache", 0.05) > 0

            wait_until(serves, "the web server", 30)
            # In turns, so that a slow moment of the machine slows all three.
            for _ in range(1 if context.quick else 3):
                for route, found in rates.items():
                    found.append(_requests(path, f"/{route}", 0.3 if context.quick else 2.0))
    best = {route: max(found) for route, found in rates.items()}
    return [
        Figure(name, best["cache"], "requests/s", "reading Redis", best["redis"], Bar("at least", 5, "ratio")),
        Figure(f"{name}, beside a dictionary", best["cache"], "requests/s", "a module's dictionary", best["dict"],
               Bar("at least", 0.9, "ratio")),
    ]  # fmt: skip


def _pauses(context: Context) -> list[Figure]:
    """Milliseconds until the last of the workers has felt a pause, and until it has felt the end of one."""
    from headrace import Headrace

    paused, resumed = list[float](), list[float]()
    with server() as target, tempfile.TemporaryDirectory(prefix="hb-") as directory, contextlib.ExitStack() as ends:
        ledger = Path(directory) / "ledger"
        ledger.touch()
        system = replace(HEADRACE, env={"BENCH_LEDGER": str(ledger), "HEADRACE_STATS_JOBS": "false"})
        for _ in range(WORKERS):
            ends.enter_context(context.worker(system, target))
        app = ends.enter_context(Headrace(target.url))
        task, queue = app.by_name("bench.app.sleep", result_ttl=0), app.queues["default"]
        app.enqueue_many(task.job("short", 0.001) for _ in range(1000))
        wait_until(lambda: len({line.split()[1] for line in _lines(ledger)}) == WORKERS, "the workers", 60)
        for _ in range(2 if context.quick else ROUNDS):
            app.enqueue_many(task.job("short", 0.001) for _ in range(4000))
            seen = len(_lines(ledger))
            wait_until(lambda seen=seen: len(_lines(ledger)) > seen + 200, "jobs that run", 30)
            queue.pause()
            stop = time.monotonic_ns()
            time.sleep(0.5)
            # Wakes those that sleep: from here on they know why, and sleep on other queues.
            for _ in range(20):
                task.enqueue("short", 0.001)
            time.sleep(0.1)
            late = [int(line.split()[2]) for line in _lines(ledger)]
            paused.append(max(0, max(late) - stop) / 1e6)
            queue.resume()
            go = time.monotonic_ns()
            time.sleep(0.5)
            starts: dict[str, int] = {}
            for line in _lines(ledger):
                _, pid, start, _ = line.split()
                if int(start) > go:
                    starts[pid] = min(starts.get(pid, int(start)), int(start))
            if len(starts) < WORKERS:
                raise BenchError(f"only {len(starts)} of {WORKERS} workers felt the end of the pause")
            resumed.append((max(starts.values()) - go) / 1e6)
    return [
        Figure(f"a pause felt by the last of {WORKERS} workers, worst", max(paused), "ms", bar=Bar("at most", 100)),
        Figure(f"the end of one, by the last of {WORKERS}, worst", max(resumed), "ms", bar=Bar("at most", 100)),
        Figure(f"the end of one, by the last of {WORKERS}, median", median(resumed), "ms"),
    ]


def _lines(ledger: Path) -> list[str]:
    whole, _, _ = ledger.read_text().rpartition("\n")
    return whole.splitlines()


def run(context: Context) -> list[Figure]:
    """Hits, the reach of a write, and of a pause, and a web handler."""
    with server() as target:
        context.say("cache: hits")
        figures = _hits(context, target)
        context.say("cache: foreign writes, eight processes reading")
        for pause, note, bar in (
            (0.001, "each reads every millisecond", Bar("at most", 10.0)),
            (0.0, "none ever pauses", None),
        ):
            felt = _felt(context, target, pause)
            figures += [
                Figure(f"foreign write to last old value, p99: 8 readers, {note}", percentile(felt, 99), "ms", bar=bar),
                Figure(f"foreign write to last old value, p50: 8 readers, {note}", percentile(felt, 50), "ms"),
            ]
        context.say("cache: pauses")
        figures += _pauses(context)
        context.say("cache: a web handler")
        return figures + _web(context, target)
