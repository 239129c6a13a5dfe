"""The program: all commands together, and what is said of a command line that cannot be parsed (else see ``ends``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace.cli import (
    alarms,
    bulk_jobs,
    cron,
    demo,
    enqueue,
    health,
    history,
    job_verbs,
    limits,
    migrate,
    profile,
    queues,
    server,
    stats,
    top,
    web,
    worker,
    workers,
    workflows,
)  # fmt: skip
from headrace.cli.commands import command, group
from headrace.cli.exit_codes import ExitCode
from headrace.cli.failure import explain, last_word
from headrace.cli.output import plain

app = group("Background jobs for Python on Redis or Valkey that lose no job.")


def _version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


command(app, "worker", shared=worker.SHARED)(worker.worker)
command(app, "enqueue")(enqueue.enqueue)
app.add_typer(job_verbs.app, name="jobs")
app.add_typer(bulk_jobs.app, name="errands")
app.add_typer(workflows.app, name="workflows")
app.add_typer(queues.app, name="queues")
app.add_typer(workers.app, name="workers")
app.add_typer(limits.app, name="limits")
app.add_typer(cron.app, name="cron")
app.add_typer(stats.app, name="stats")
app.add_typer(server.app, name="server")
command(app, "acts")(history.acts)
command(app, "events")(history.events)
app.add_typer(alarms.app, name="alarms")
command(app, "top")(top.top)
command(app, "dashboard")(web.dashboard)
command(app, "health", shared=health.SHARED)(health.health)
command(app, "profile")(profile.profile)
command(app, "migrate")(migrate.migrate)
command(app, "demo", shared=demo.SHARED)(demo.demo)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Never raises but for what ends the process anyway."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    json, debug = "--json" in ours, "--debug" in ours
    try:
        code: Any = typer.main.get_command(app).main(list(arguments), prog_name="headrace", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last word on every error
        return _explain(error, json=json, debug=debug)
    return code if isinstance(code, int) else ExitCode.OK


def _explain(error: BaseException, *, json: bool, debug: bool) -> int:
    """Say why the command ended, once; its exit code."""
    if not hasattr(error, "format_message"):
        return explain(error, json=json, debug=debug)
    text = _usage(error)
    return last_word(error, text, ExitCode.USAGE, json=json, debug=debug) if text else ExitCode.USAGE


def _usage(error: Any) -> str:
    """The line of a command line that cannot be parsed; empty when the help was printed instead."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(plain(error.format_message()), file=sys.stderr)
        return ""
    text = error.format_message().rstrip(".").replace("Value error, ", "")
    path = context.command_path if context else "headrace"
    if path == "headrace" and any(option in text for option in ("--json", "--url", "--debug", "--namespace")):
        return f"{text.partition(' (')[0]}: options stand after the command, such as headrace jobs list --json"
    return f"{text} (see {path} --help)"
