"""Bringing the server of a directory up, whoever else is trying to.

Owns the start of a guard and the wait for it. One starter at a time: the others wait for its lock, and then
find that all is done.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clock import monotonic
from headrace.embedded import guard, locks, paths, resp, server
from headrace.errors import ServerError, ServerTooOld

if TYPE_CHECKING:
    from headrace.embedded.paths import DataFiles

# Stands in for the package's own __init__, which imports all of Headrace and its dependencies: a fifth of a
# second that the first command of a directory would wait, and megabytes that the guard would keep.
_BOOT = (
    "import sys, types; package = types.ModuleType('headrace'); package.__path__ = [sys.argv[1]];"
    " sys.modules['headrace'] = package; from headrace.embedded import guard; guard.main(sys.argv[2])"
)


def serves(spot: DataFiles) -> bool:
    """Whether the server answers and a guard looks after it. Cost: one connection, one round trip."""
    # The guard first: it is the cheaper question, and without one the answer is no.
    return locks.holder(spot.guard) is not None and _health(spot) == "ready"


def ensure(spot: DataFiles, idle_timeout: float, deadline: float) -> tuple[str, ...]:
    """Return once the server serves; the caller holds the users' lock, so it will not end meanwhile.

    Returns what was repaired on the way, for people.

    Raises:
        ServerError: it cannot be started, or not until ``deadline`` (of the monotonic clock).
    """
    if serves(spot):
        return ()
    starter = locks.hold(spot.starter, fcntl.LOCK_EX, deadline)
    if starter is None:
        raise ServerError(f"another program is still starting the private server of {spot.directory}: try again")
    try:
        return _bring_up(spot, idle_timeout, deadline)
    finally:
        locks.release(starter)


def _bring_up(spot: DataFiles, idle_timeout: float, deadline: float) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    told = False
    lost = 0
    pause = 0.002
    while not serves(spot):
        if monotonic() > deadline:
            raise ServerError(_stalled(spot))
        if locks.holder(spot.guard) is None:
            report = _start_guard(spot, idle_timeout, deadline)
            if report is None and lost == 2:
                raise ServerError(
                    f"the guards of {spot.directory} end before the server is up: see the end of {spot.journal}"
                )
            lost += report is None
            notes += report or ()
        elif not told and _health(spot) in {"absent", "stranger"}:
            # Its socket or password may have been removed. The guard knows whether it is just starting.
            told = locks.notify(spot.guard, signal.SIGHUP) is not None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return notes


def _start_guard(spot: DataFiles, idle_timeout: float, deadline: float) -> tuple[str, ...] | None:
    """What was repaired; None if the guard was killed before it could tell."""
    from headrace.embedded import binary  # imports much, and only a start needs it

    program = binary.find()
    server.rotate(spot.journal, 1 << 18)
    reader, writer = os.pipe()
    try:
        orders = guard.Orders(str(spot.directory), str(program), idle_timeout, writer)
        try:
            _spawn(spot, orders)
        finally:
            os.close(writer)
        return _hear(spot, reader, deadline)
    finally:
        os.close(reader)


def _spawn(spot: DataFiles, orders: guard.Orders) -> None:
    package = str(Path(__file__).parent.parent)
    # -I -S: nothing from the user's environment or site-packages can run in the guard, or slow its start.
    command = [sys.executable, "-I", "-S", "-c", _BOOT, package, json.dumps(asdict(orders))]
    with paths.log(spot.journal) as journal:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=journal,
            stderr=journal,
            cwd="/",
            pass_fds=[orders.report],
            start_new_session=True,
        )
        process.wait()  # ends as soon as it has forked the guard


def _hear(spot: DataFiles, reader: int, deadline: float) -> tuple[str, ...] | None:
    said = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    # The end of the line, not of the file: a child that another thread forked may keep the pipe open.
    while not said.endswith(b"\n"):
        if not poll.poll(max(0, deadline - monotonic()) * 1000):
            raise ServerError(_stalled(spot))
        piece = os.read(reader, 65536)
        if not piece:
            return None
        said += piece
    report = guard.Report(**json.loads(said))
    if report.error is not None:
        raise (ServerTooOld if report.old else ServerError)(report.error)
    return tuple(report.notes)


def _health(spot: DataFiles) -> resp.Health:
    return resp.health(spot.socket(), spot.password())


def _stalled(spot: DataFiles) -> str:
    pid = locks.holder(spot.guard)
    who = f"the private server of {spot.directory} (guard: process {pid})" if pid else f"{spot.directory}'s server"
    match _health(spot):
        case "loading":
            return f"{who} is still loading its data: try again, or give more time"
        case "silent":
            return f"{who} does not answer: it is stopped, or busy with a long command; see {spot.log}"
        case _:
            return f"{who} did not come up in time: see {spot.journal} and {spot.log}, or try again"
