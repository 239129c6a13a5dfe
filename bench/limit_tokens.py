"""The ledger of tokens of workers that keep a rate: when each start was claimed, and when its first line ran.

A token is the microsecond of the server's clock at which a job was claimed. What a killed worker had claimed and not
begun is not in the ledger; it starts again, with another token.
"""

from __future__ import annotations

import struct
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.context import Context
from bench.processes import wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE

WORKER = ("-m", "headrace", "worker", "bench.limits_app:app", "--processes", "1")
_SECOND, _LEASE = 1_000_000, 2


class Start(NamedTuple):
    """One start: when it was claimed, and when its first line ran, microseconds of the machine's clock."""

    token: int
    began: int


def _read(path: Path) -> list[Start]:
    data = path.read_bytes() if path.exists() else b""
    return sorted(Start(*row) for row in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]))


def enough_workers(target: Server, count: int) -> None:
    """Wait until so many have registered."""
    wait_until(lambda: int(target.client.zcard("{hr:0}:owners")) >= count, f"{count} workers to come up")


def settle_tokens(seconds: float) -> None:
    """Let what starts workers up be over, which is not measured."""
    time.sleep(seconds)


def tokens_of(context: Context, rate: int, seconds: float, *, workers: int, kill: bool) -> list[Start]:
    """The starts of so many seconds, from when all workers work; halfway one is killed."""
    with server() as target, tempfile.TemporaryDirectory(prefix="hb-") as directory, ExitStack() as stack:
        path = Path(directory) / "tokens"
        env = {"BENCH_RATE": str(rate), "BENCH_TOKENS": str(path), "HEADRACE_LEASE": str(_LEASE)}
        system = replace(HEADRACE, module="bench.limits_app", worker=WORKER, env=env)
        groups = [stack.enter_context(context.worker(system, target)) for _ in range(workers)]
        enough_workers(target, workers)
        # Some start while they are enqueued.
        context.produce(system, target, "bulk", round(rate * (1.5 * seconds + 10)))
        wait_until(lambda: _read(path), "a first start")
        now, micro = target.client.time()
        begun = now * _SECOND + micro + _SECOND
        time.sleep(1 + seconds / 2)
        if kill:
            groups.pop(0).kill()
        time.sleep(seconds / 2 + 0.5)
        for group in groups:
            group.check()
        return [start for start in _read(path) if begun <= start.token < begun + seconds * _SECOND]
