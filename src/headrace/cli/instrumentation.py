"""``opentelemetry-instrument headrace worker``: what that tool does to a program, done in each runner.

The tool makes providers, with their threads, before the first line of the program, and threads do not survive a fork.
The worker becomes another program when it has read its options, so that it is rid of them, and each runner does the
same anew: providers after the OTEL_ variables, and instrumented libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.app import Headrace

# The module of the tool that begins a program; and how images of a worker hear of it that come later.
TOOL = "opentelemetry.instrumentation.auto_instrumentation"
MARK = "_HEADRACE_INSTRUMENTED"


def instrument_runners(app: Headrace, environ: Mapping[str, str]) -> None:
    """Have each runner begin as the tool let the worker begin, whose environment this is, before the hooks."""
    if MARK not in environ:
        return
    app.after_fork_child_hooks.insert(0, _instrument)
    if app.settings.traces == "off":
        # What libraries told in jobs is sent before a runner leaves; where starts are traced, it is so already.
        from headrace.tasks import traces

        app.closers.append(traces.flush)


def _instrument() -> None:
    # As the tool has it, which is no package that headrace needs.
    import_module(TOOL).initialize()
