"""The functions that run the starts of a runner: with a span around each, where the application wants traces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from headrace.model.ended import Ended
from headrace.model.job import Claim
from headrace.worker.runner.execute import Drive, aperform, perform
from headrace.worker.runner.interrupts import Gate
from headrace.worker.runner.runner_context import Emit, RunnerContext

Perform: TypeAlias = Callable[[RunnerContext, Gate, Claim, Emit], Ended]
Aperform: TypeAlias = Callable[[RunnerContext, Drive, Claim, Emit], Awaitable[Ended]]


def performers(runner_context: RunnerContext) -> tuple[Perform, Aperform]:
    client = runner_context.app.client
    if client.settings.traces == "off":
        return perform, aperform
    from headrace.worker.runner.traced_starts import TracedStarts

    traced = TracedStarts(client.settings, client)
    return traced.perform, traced.aperform
