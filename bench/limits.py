"""Limits: a rate that four workers keep together, one of which is killed, told from a ledger of tokens.

A token is the microsecond of the server's clock at which a job was claimed. What the killed worker had claimed and not
begun is not in the ledger; it starts again, with another token.
"""

from __future__ import annotations

import struct
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.context import Context
from bench.figure import Bar, Figure
from bench.processes import wait_until
from bench.servers import server
from bench.systems import HEADRACE

_RATES, _SECONDS, _WORKERS, _LEASE = (10, 100, 1000, 10_000), 60, 4, 2
_SECOND = 1_000_000
# Starts are made good that come late by up to this, in seconds: see headrace.Rate.
_SLACK = 0.01
_WORKER = ("-m", "headrace", "worker", "bench.limits_app:app", "--processes", "1")


def _tokens(path: Path) -> list[int]:
    data = path.read_bytes() if path.exists() else b""
    return sorted(token for (token,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]))


def most_within(tokens: list[int], length: int) -> int:
    """The most of these sorted times in any window shorter than ``length``."""
    most = first = 0
    for last, token in enumerate(tokens):
        while token - tokens[first] >= length:
            first += 1
        most = max(most, last - first + 1)
    return most


def _kept(context: Context, rate: int, seconds: int) -> list[int]:
    """The tokens of so many seconds, from when all workers work."""
    with server() as target, tempfile.TemporaryDirectory(prefix="hb-") as directory, ExitStack() as stack:
        path = Path(directory) / "tokens"
        env = {"BENCH_RATE": str(rate), "BENCH_TOKENS": str(path), "HEADRACE_LEASE": str(_LEASE)}
        system = replace(HEADRACE, module="bench.limits_app", worker=_WORKER, env=env)
        groups = [stack.enter_context(context.worker(system, target)) for _ in range(_WORKERS)]
        wait_until(lambda: int(target.client.zcard("{hr:0}:owners")) >= _WORKERS, "all workers to come up")
        # Some start while they are enqueued.
        context.produce(system, target, "bulk", round(rate * (1.5 * seconds + 10)))
        wait_until(lambda: _tokens(path), "a first start")
        now, micro = target.client.time()
        begun = now * _SECOND + micro + _SECOND
        time.sleep(1 + seconds / 2)
        groups[0].kill()
        time.sleep(seconds / 2 + 0.5)
        for group in groups[1:]:
            group.check()
        return [token for token in _tokens(path) if begun <= token < begun + seconds * _SECOND]


def run(context: Context) -> list[Figure]:
    """Of each rate: starts, and the most in any second less what is made good, each against what is asked for."""
    figures: list[Figure] = []
    seconds = max(6, context.scaled(_SECONDS) // 10) if context.quick else _SECONDS
    for rate in _RATES:
        context.say(f"limits: {rate:,}/s for {seconds} s, {_WORKERS} workers, one killed")
        tokens = _kept(context, rate, seconds)
        most = most_within(tokens, round((1 - _SLACK) * _SECOND))
        share = len(tokens) / (rate * seconds)
        figures += [
            Figure(f"rate {rate:,}/s: starts of those asked for", share, "share", bar=Bar("at least", 0.99)),
            Figure(f"rate {rate:,}/s: most in any 0.99 s", most, "starts", bar=Bar("at most", rate)),
        ]
    return figures
