"""``python -m tests.docs.reference [cli|settings|options]``: the pages of these names in docs/, from the code.

Prints a page. The text comes from what the program parses and checks, so that page and program cannot disagree.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import typer

from headrace.cli.commands import ALL_SHARED, program
from headrace.cli.session import ExitCode
from headrace.model.option_checks import rows_of
from headrace.model.options import TASK_ONLY, CallOptions, TaskOptions
from headrace.model.unique_rules import UniqueRule
from headrace.settings import Settings, environment_name
from headrace.tasks.envelope import OPTION_FIELDS

_HEAD = """\
# {title}

<!-- Printed by `python -m tests.docs.reference {name}`; a test fails when it is not current. -->

"""

_INTRODUCTION = """\
`headrace COMMAND --help` prints the same. TIME is seconds, or a number with `ms`, `s`, `m`, `h` or `d`; SIZE is bytes,
or a number with `K`, `M` or `G`. With `--json` results are one JSON document on stdout, lists one document a line, and
errors `{"error": …, "type": …, "exit": …}` on stderr; times are ISO 8601 in UTC, durations seconds, sizes bytes. Errors
are one line that says what to do; `--debug` adds the traceback.

"""

_SETTINGS = """\
Durations are seconds, at most 100 years; sizes are bytes. A setting has the value of the first layer that gives one:

| layer | example |
|---|---|
| a flag of the command line | `headrace worker tasks:app --shutdown-timeout 60s` |
| arguments of `Headrace(...)` | `Headrace(shutdown_timeout=60)` |
| the environment | `HEADRACE_SHUTDOWN_TIMEOUT=60` |
| the defaults of the application | `Headrace(defaults={"shutdown_timeout": 60})` |
| Headrace's own default | 25 |

None and an empty variable count as not given. `app.settings` holds the values that count, `app.sources` where each came
from. `Headrace(settings=Settings(...))` takes the place of the environment and of the defaults. `app.override(...)` is
the layer of the flags for programs that have a command line of their own.

Nine options of [`headrace worker`](cli.md#headrace-worker) have variables: `HEADRACE_QUEUES`,
`HEADRACE_PROCESSES`, `HEADRACE_FORKS`, `HEADRACE_THREADS`, `HEADRACE_CONCURRENCY`, `HEADRACE_MAX_JOBS`,
`HEADRACE_MAX_IDLE`, `HEADRACE_RECYCLE_JOBS` and `HEADRACE_RECYCLE_MEMORY`. Five more variables have an effect:
`HEADRACE_APP` names the application for `headrace worker` and for commands that take `--app`. `HEADRACE_SERVER_BINARY`
names the program of the private server, if you do not want that of the `embedded` extra. `HEADRACE_DASHBOARD_TOKEN`,
`HEADRACE_DASHBOARD_VIEWER_TOKEN` and `HEADRACE_DASHBOARD_PRODUCER_TOKEN` are tokens of the [dashboard](dashboard.md).
Any other variable that begins with `HEADRACE_` and is no setting has no effect; a warning names the nearest setting
once.

| setting | environment | default | meaning |
|---|---|---|---|
"""

_OPTIONS = """\
You give an option to `@app.task(...)` as the default of its jobs, and to `task.options(...)` for one or more jobs. A
time is seconds or a `timedelta`. None counts as not given.

| option | meaning |
|---|---|
"""

_OF_TASKS = """\

`@app.task(...)` also takes:

| option | meaning |
|---|---|
"""

_ENVELOPE = """\

## In an envelope

An [envelope](envelope.md) has these fields for options. Durations are integers, in microseconds. A field that is absent
has its default; `as the task says` is the task's definition where the job runs.

| field | type | meaning | default |
|---|---|---|---|
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command's full name and click object, in the order of the help."""
    root: Any = typer.main.get_command(program())
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            for inner, leaf in command.commands.items():
                yield f"headrace {name} {inner}", leaf
        else:
            yield f"headrace {name}", command


def cli() -> str:
    """The reference of the command line."""
    parts = [
        _HEAD.format(title="The command line", name="cli"),
        _INTRODUCTION,
        "## Exit codes\n\n| code | meaning |\n|---|---|\n",
        *(f"| {code.value} | {code.meaning} |\n" for code in ExitCode),
        "\n## Options that commands share\n\n",
        _table([p for p in dict(commands())["headrace enqueue"].params if p.name in ALL_SHARED]),
    ]
    for name, command in commands():
        parts.append(f"\n## {name}\n\n{command.help}\n\n```\n{_usage(name, command)}\n```\n\n")
        own = [p for p in command.params if p.name not in ALL_SHARED]
        parts.append(_table(own) if own else "")
        shared = ", ".join(f"`{p.opts[0]}`" for p in command.params if p.name in ALL_SHARED)
        parts.append(f"\nAlso {shared}.\n" if own else f"Options: {shared}.\n")
    return "".join(parts)


def texts_of_settings() -> dict[str, str]:
    """What the docstring says of each setting."""
    lines = (inspect.getdoc(Settings) or "").partition("Attributes:\n")[2]
    entries = re.sub(r"\n {8}", " ", lines).splitlines()
    return {name.strip(): text for name, _, text in (entry.partition(": ") for entry in entries)}


def settings() -> str:
    """The reference of the settings."""
    parts = [
        _HEAD.format(title="Settings", name="settings"),
        _SETTINGS,
    ]
    hints, texts = get_type_hints(Settings, include_extras=True), texts_of_settings()
    for field in msgspec.structs.fields(Settings):
        limits = next((_limits(part) for part in get_args(hints[field.name]) if isinstance(part, msgspec.Meta)), "")
        text = f"{texts[field.name]}{f' {limits}.' if limits else ''}"
        parts.append(f"| `{field.name}` | `{environment_name(field.name)}` | {_default(field.default)} | {text} |\n")
    return "".join(parts)


def options() -> str:
    """The reference of the options of tasks and jobs."""
    parts = [
        _HEAD.format(title="Options of tasks and jobs", name="options"),
        _OPTIONS,
    ]
    for name, row in rows_of(CallOptions).items():
        of_job = " Of a job only." if row.travels == "request" else ""
        shell = f" In a shell: `headrace enqueue --{name.replace('_', '-')}`." if row.flag else ""
        parts.append(f"| `{name}` | {_markdown(row.doc)}{of_job}{shell} |\n")
    parts.append(_OF_TASKS)
    parts += [
        f"| `{name}` | {_markdown(row.doc)} |\n" for name, row in rows_of(TaskOptions).items() if name in TASK_ONLY
    ]
    parts.append(_ENVELOPE)
    for name, field in OPTION_FIELDS.items():
        default = "as the task says" if field.override else _absent(field.default)
        parts.append(f"| `{name}` | {_WIRE[field.kind]} | {field.meaning} | {default} |\n")
    return "".join(parts)


def _absent(default: Any) -> str:
    return "none" if default in ("", {}) else f"`{default}`" if isinstance(default, str) else str(default).lower()


_WIRE = {
    str: "text",
    int: "integer",
    int | None: "integer",
    int | tuple[int, ...] | None: "integer or array",
    float | None: "number",
    bool: "boolean",
    dict[str, str]: "map from text to text",
    UniqueRule | None: "map",
}


def _markdown(text: str) -> str:
    """A docstring's text as a sentence of Markdown."""
    plain = re.sub(r":class:`(\w+)`", r"`\1`", text).replace("``", "`")
    return plain[0].upper() + plain[1:]


def _limits(meta: msgspec.Meta) -> str:
    words = (("at least", meta.ge), ("more than", meta.gt), ("at most", meta.le), ("less than", meta.lt))
    return ", ".join(f"{word} {limit:g}" for word, limit in words if limit is not None).capitalize()


def _default(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    return f"{value:,g}".replace(",", "") if isinstance(value, float) else str(value)


def _usage(name: str, command: Any) -> str:
    arguments = [_names(p).strip("`") for p in command.params if p.param_type_name == "argument"]
    return " ".join([name, *arguments, "[OPTIONS]"])


def _table(params: list[Any]) -> str:
    rows = "".join(f"| {_names(p)} | {_help(p)} |\n" for p in params)
    return f"| | |\n|---|---|\n{rows}"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`"
    value = "" if param.is_flag else f" {param.metavar or '|'.join(param.type.choices)}"
    names = (f"`{option}{value if option.startswith('--') else ''}`" for option in param.opts)
    return ", ".join(names).replace("|", "\\|")


def _help(param: Any) -> str:
    variable = f" Or `{param.envvar}`." if param.envvar else ""
    shown = param.default not in (None, False, 0, []) and not callable(param.default)
    told = param.show_default if isinstance(param.show_default, str) else param.default if shown else ""
    default = f" Default: {told}." if told and param.param_type_name == "option" else ""
    return f"{param.help}{variable}{default}".replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(
        {"cli": cli, "settings": settings, "options": options}[sys.argv[1] if len(sys.argv) > 1 else "cli"]()
    )
