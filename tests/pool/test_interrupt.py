"""Ctrl-C ends a program that waits for its pool, and what the pool runs for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Pool
from tests.deadline import eventually
from tests.pool import chores
from tests.pool.conftest import Blocks
from tests.processes import lives

PROGRAM = """
import asyncio, atexit, sys
from pathlib import Path
from headrace import Pool
from tests.pool import chores

path, how = Path(sys.argv[1]), sys.argv[2]
options = {"kind": "process"}
if how == "deaf":
    options |= {"initializer": chores.deaf_to_interrupts, "shutdown_timeout": 0.2}
elif how == "thread":
    options |= {"kind": "thread", "shutdown_timeout": 0.2}

if __name__ == "__main__":
    if how == "forgotten":
        pool = Pool(2, **options)
        pool.submit(chores.sleep_and_clean_up, path).result()
    elif how == "ended":
        pool = Pool(2, **options)
        pool.submit(chores.sleep_and_clean_up, path)
        atexit.register((path / "ending").touch)
    elif how == "asyncio":
        async def main():
            await asyncio.get_running_loop().run_in_executor(pool, chores.sleep_and_clean_up, path)
        pool = Pool(2, **options)
        asyncio.run(main())
    else:
        with Pool(2, **options) as pool:
            if how == "thread":
                pool.call(chores.sleep_for_long, path)
            elif how == "call":
                pool.call(chores.sleep_and_clean_up, path)
            else:
                pool.submit(chores.sleep_and_clean_up, path).result()
"""


@pytest.mark.parametrize("how", ["call", "with", "forgotten", "ended", "asyncio", "deaf", "thread"])
def test_a_program_ends_with_what_it_waits_for(root: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "commands.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "commands.py"), str(tmp_path), how]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        eventually((tmp_path / "pids").exists, what="the call runs")
        if how == "ended":
            eventually((tmp_path / "ending").exists, what="the pool's exit handler comes next")
            # The first may come before it, and be of no use.
            eventually(lambda: program.send_signal(signal.SIGINT) or program.poll() is not None, 60, every=0.05)
        else:
            program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert how == "ended" or program.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    if how != "thread":
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        eventually(lambda: not any(lives(pid) for pid in pids), 20, what="what ran has ended, with what it started")
    if how not in ("thread", "ended"):
        assert (tmp_path / "cleaned").exists() == (how != "deaf"), "the call was interrupted, not killed"


def test_an_interrupt_hits_the_running_call_alone(make: Callable[..., Pool], blocks: Blocks) -> None:
    pool: Any = make(2, kind="process")
    pool.wait_ready(60)
    call, release = blocks.hold(pool)
    idle = [member for member in pool._scheduler.members if member.running is None]
    for member in pool._scheduler.members:
        member.body.interrupt()
    with pytest.raises(KeyboardInterrupt):
        call.result(20)
    os.kill(idle[0].body.pid, signal.SIGINT)
    assert pool.broadcall(chores.double, 2, timeout=20).values == {0: 4, 1: 4}
    assert [member.restarts for member in pool.stats().members] == [0, 0]
    release.touch()
