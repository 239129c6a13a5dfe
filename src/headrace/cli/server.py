"""``headrace server``: the private Valkey of a directory."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from headrace.cli.arguments import option
from headrace.cli.commands import command, group
from headrace.cli.failure import ExitCode
from headrace.cli.output import Output, span
from headrace.cli.session import Session
from headrace.model.notation import size

if TYPE_CHECKING:
    from headrace.embedded import Status

SHARED = ("dir", "json", "debug")

DEFAULT_WAIT = 30.0  # seconds

Wait = Annotated[float | None, option("--timeout TIME", "Give up after TIME.", "30s")]

app = group("Start, stop and describe the private Valkey of a directory.")


@command(app, "start", shared=SHARED)
def start(session: Session, timeout: Wait = None) -> None:
    """Start the server, or keep the running one, until `headrace server stop`. Programs start it by themselves."""
    from headrace import embedded

    _show(session.output, embedded.start(session.settings["dir"], timeout=_seconds(timeout)))
    _remind(session.output)


@command(app, "stop", shared=SHARED)
def stop(session: Session, timeout: Wait = None) -> None:
    """Stop the server in order, even while programs use it. Its data stay."""
    from headrace import embedded

    directory = embedded.path(session.settings["dir"])
    stopped = embedded.stop(session.settings["dir"], timeout=_seconds(timeout))
    text = f"the server of {directory} has stopped" if stopped else f"no server runs for {directory}"
    session.output.done(text, {"directory": str(directory), "stopped": stopped})


@command(app, "status", shared=SHARED)
def status(session: Session) -> int:
    """Describe the server; exit 1 if it does not run. Does not start it."""
    from headrace import embedded

    found = embedded.status(session.settings["dir"])
    _show(session.output, found)
    _remind(session.output)
    return ExitCode.OK if found.running else ExitCode.FAILED


@command(app, "path", shared=SHARED)
def path(session: Session) -> None:
    """Print the data directory of the private server. Changes nothing."""
    from headrace import embedded

    directory = str(embedded.path(session.settings["dir"]))
    session.output.done(directory, {"directory": directory})


def _seconds(wait: float | None) -> float:
    return DEFAULT_WAIT if wait is None else wait


def _show(output: Output, found: Status) -> None:
    if output.json:
        known = asdict(found)
        output.document({name: known[name] for name in known if name != "socket"})
        return
    rows: list[tuple[str, object]] = [("directory", found.directory), ("server", _state(found))]
    if found.version:
        rows += [("version", found.version), ("process", found.pid)]
        rows += [("up for", span(found.uptime or 0)), ("clients", found.clients), ("keys", found.keys)]
        rows += [("memory", size(found.memory or 0)), ("data file", size(found.file or 0)), ("url", found.url)]
    output.facts(rows)


def _state(found: Status) -> str:
    if not found.running:
        return "stopped by command" if found.stopped else "does not run"
    words = {"ready": "runs", "loading": "loads its data"}.get(found.health, f"runs, but is {found.health}")
    if found.kept:
        return f"{words}, until headrace server stop"
    return f"{words}, and programs use it" if found.used else f"{words}, about to end: no program uses it"


def _remind(output: Output) -> None:
    if os.environ.get("HEADRACE_URL"):
        output.remark("HEADRACE_URL is set, so programs here use that server, not this one")
