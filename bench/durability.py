"""Durability: what ``replicated`` costs an enqueue beside ``memory``, on one primary with one replica, in one run.

In turns, so that both meet the same machine. Ratios count on an idle machine only: producer, primary and replica want a
core each, and who waits for a confirmation meets cold caches where others work meanwhile.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Literal, TypeAlias

from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import wait_until
from bench.servers import Server, server
from headrace import Headrace
from headrace.tasks.bound_task import BoundTask

Durability = Literal["memory", "replicated"]
_WORDS: tuple[Durability, Durability] = ("memory", "replicated")
_CHUNKS = 10_000
_Tasks: TypeAlias = dict[Durability, tuple[Headrace, BoundTask[[int], None]]]


@contextmanager
def _tasks() -> Iterator[tuple[Server, _Tasks]]:
    """A primary with its replica, and a task of an application of each durability."""
    with ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        primary = stack.enter_context(server("--repl-diskless-sync-delay", "0", port=port))
        replica = stack.enter_context(server("--replicaof", f"127.0.0.1 {port}"))
        wait_until(lambda: replica.client.info("replication")["master_link_status"] == "up", "the replica's link", 30)
        # Replicas are in a network, so programs reach the primary over one, too.
        apps = {word: stack.enter_context(Headrace(f"redis://127.0.0.1:{port}", durability=word)) for word in _WORDS}
        yield primary, {word: (app, app.task(name="work")(_work).options()) for word, app in apps.items()}


def _work(number: int) -> None:
    del number


def _in_turns(rounds: int, each: Callable[[Durability, int], None]) -> None:
    for number in range(rounds):
        for word in _WORDS if number % 2 else reversed(_WORDS):
            each(word, number)


def run(context: Context) -> list[Figure]:
    """One at a time, and in chunks of 1,000."""
    single: dict[Durability, list[float]] = {word: [] for word in _WORDS}
    bulk: dict[Durability, list[float]] = {word: [] for word in _WORDS}
    cpu: dict[Durability, list[float]] = {word: [] for word in _WORDS}
    with _tasks() as (primary, tasks):

        def one(word: Durability, number: int) -> None:
            began = time.perf_counter()
            tasks[word][1].enqueue(number)
            single[word].append((time.perf_counter() - began) * 1e6)

        def many(word: Durability, _: int) -> None:
            app, task = tasks[word]
            primary.client.execute_command("FLUSHALL")
            primary.client.execute_command("WAIT", 1, 10_000)
            worked, mine, began = primary.work().cpu, time.process_time(), time.perf_counter()
            app.enqueue_many(task.job(number) for number in range(_CHUNKS))
            bulk[word].append((time.perf_counter() - began) / _CHUNKS * 1e6)
            cpu[word].append(((time.process_time() - mine) * 1e6 + primary.work().cpu - worked) / _CHUNKS)

        context.say("durability: one at a time")
        _in_turns(context.scaled(2_000), one)
        context.say("durability: in chunks of 1,000")
        _in_turns(5 if context.quick else 31, many)
    return [
        Figure(f"replicated, {name}", median(had["replicated"]), unit, "memory", median(had["memory"]), bar)
        for name, had, unit, bar in (
            ("one at a time", single, "us/job", Bar("at most", 1.5, "ratio")),
            ("chunks of 1,000", bulk, "us/job", Bar("at most", 1.05, "ratio")),
            ("chunks of 1,000: producer and primary", cpu, "CPU us/job", None),
        )
    ]
