"""The program: all commands together, and what is said of a command line that cannot be parsed (else see ``ends``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from headrace.cli.commands import ALL_SHARED, command, group
from headrace.cli.exit_codes import ExitCode
from headrace.cli.failure import explain, last_word
from headrace.cli.flags import option
from headrace.cli.output import aside, plain

# The module of each command and of each group of commands, in the order of the help.
MODULES = {
    "worker": "worker", "enqueue": "enqueue", "jobs": "job_verbs", "errands": "bulk_jobs", "workflows": "workflows",
    "queues": "queues", "workers": "workers", "limits": "limits", "cron": "cron", "stats": "stats", "server": "server",
    "acts": "history", "events": "history", "alarms": "alarms", "top": "top", "dashboard": "web", "health": "health",
    "profile": "profile", "migrate": "migrate", "demo": "demo",
}  # fmt: skip


# What people who come from other queues type first -> what to write here; a test walks through it.
_COMMANDS = {
    "beat": "workers fire the schedules: headrace worker MODULE:APP; headrace cron list shows them",
    "start": "headrace worker MODULE:APP runs jobs, headrace server start starts the private server",
    "status": "write headrace workers list, headrace queues list or headrace server status",
    "inspect": "write headrace workers list or headrace jobs list --state running",
    "info": "write headrace workers list or headrace queues list",
    "help": "write headrace --help",
    "list": "write headrace jobs list, queues list, workers list or workflows list",
    "purge": "write headrace queues purge",
    "flower": "write headrace dashboard",
}
_NUMBERS = {"integer": "write a whole number", "number": "write a number"}
_PLACE = "the application comes first: headrace worker MODULE:APP"
_KIND = "a task chooses how it runs: @app.task(kind=...)"
_NAMED = "a worker is named by its host and process id"
_OPTIONS = {
    "--name": _NAMED, "-n": _NAMED, "--hostname": _NAMED,
    "--beat": "each worker fires schedules", "-B": "each worker fires schedules",
    "-A": _PLACE, "-Q": "write --queues",
    "-P": _KIND, "--pool": _KIND,
    "-c": "write --processes, --threads or --concurrency",
    "--autoscale": "write --processes N; headrace workers scale changes it while the worker runs",
    "-l": "write --verbose or --quiet", "--loglevel": "write --verbose or --quiet",
    "--quiet": "only headrace worker has it", "-q": "only headrace worker has it",
}  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        print(f"headrace {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, option("--version", "Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


def program(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command, or the group of commands, that the first argument names; all of them if it names none.

    The modules and parsers of all take a quarter of the time of a short command.
    """
    named = [name for name in arguments[:1] if name in MODULES]
    app = group("Background jobs for Python on Redis or Valkey that lose no job.")
    app.callback()(_root)
    for name in named or MODULES:
        module: Any = import_module(f"headrace.cli.{MODULES[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            command(app, name, shared=getattr(module, "SHARED", ALL_SHARED))(getattr(module, name))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Never raises but for what ends the process anyway."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    json, debug = "--json" in ours, "--debug" in ours
    try:
        parser: Any = typer.main.get_command(program(arguments))
        code = parser.main(list(arguments), prog_name="headrace", standalone_mode=False)
    except SystemExit as end:
        # The parser's way to end a program that nobody reads.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return explain(end.__context__, json=json, debug=debug)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last word on every error
        return _explain(error, arguments, json=json, debug=debug)
    return code if isinstance(code, int) else ExitCode.OK


def _explain(error: BaseException, arguments: Sequence[str], *, json: bool, debug: bool) -> int:
    if not hasattr(error, "format_message"):
        return explain(error, json=json, debug=debug)
    text = _usage(error, arguments)
    return last_word(error, text, ExitCode.USAGE, json=json, debug=debug) if text else ExitCode.USAGE


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """The line of a command line that cannot be parsed; empty when the help was printed instead."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        aside(plain(error.format_message()))
        return ""
    text = error.format_message().rstrip(".").replace("Value error, ", "")
    # The parser of options gives no context to what it misses.
    path = context.command_path if context else " ".join(("headrace", *arguments[:2]))
    if hasattr(context and context.command, "commands") and any(
        option in text for option in ("--json", "--url", "--debug", "--namespace")
    ):
        return f"{text.partition(' (')[0]}: options stand after the command, such as headrace jobs list --json"
    if text.partition("No such option: -")[2][:1].isdigit():
        text += "; write an argument that starts with - after --"
    if (missing := re.match(r"No such (?:option: |command ')(-?[\w-]+)'?", text)) is not None:
        table = _OPTIONS if missing[1].startswith("-") else _COMMANDS if path == "headrace" else {}
        text = f"{missing[0]}: {table[missing[1]]}" if missing[1] in table else text
    if "-q" in arguments and "unexpected extra argument" in text:
        text += "; -q is --quiet: write --queues NAMES"
    text = re.sub(r"Input should be a valid (integer|number).*", lambda kind: _NUMBERS[kind[1]], text)
    return f"{text} (see {path} --help)"
