"""BullMQ's limiter at the rates of ``python -m bench limits --peers``, where node and bullmq are installed.

It counts starts in windows of a second that begin with a start, and none of its workers is killed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

from bench.context import Context
from bench.processes import ROOT, BenchError, answer
from bench.servers import server

_MODULES = ROOT / ".venv-peers" / "node_modules"
_SCRIPT = ROOT / "bench" / "peers" / "bullmq_limiter.cjs"
MISSING = "needs node, and bullmq: npm install --prefix .venv-peers bullmq ioredis"


def bullmq(context: Context, rate: int, seconds: int) -> list[int] | None:
    """The sorted microseconds of what it lets start in so many seconds; None where it is not installed, or failed."""
    node = shutil.which("node")
    if node is None or not (_MODULES / "bullmq").is_dir():
        return None
    context.say(f"limits: BullMQ, {rate:,}/s for {seconds} s")
    try:
        return _starts(node, rate, seconds)
    except BenchError as error:
        context.failures.append(f"limits: BullMQ: {error}")
        return None


def _starts(node: str, rate: int, seconds: int) -> list[int]:
    with server() as target:
        socket = target.url.removeprefix("unix://")
        argv: Sequence[str] = [node, str(_SCRIPT), socket, str(rate), str(seconds)]
        line = answer(argv, {"NODE_PATH": str(_MODULES)}, 2 * seconds + 120)
    return sorted(int(one) for one in json.loads(line))
