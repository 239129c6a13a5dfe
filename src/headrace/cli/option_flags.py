"""The flags of ``headrace enqueue`` that give options of a job, made from the table of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from headrace.cli.units import parse_duration
from headrace.model.option_checks import OptionRow
from headrace.model.options import ROWS


def with_option_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for each option that has one; it gets what was given as ``**options``.

    They stand before its parameters that go by name only.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    first = [one for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    last = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
    flags = [_parameter(name, row) for name, row in ROWS.items() if row.flag is not None]
    command.__signature__ = inspect.Signature([*first, *flags, *last])  # type: ignore[attr-defined]
    return command


def _parameter(name: str, row: OptionRow) -> inspect.Parameter:
    assert row.flag is not None
    kind: Any = row.kind | None
    default: Any = None
    spelled, given = f"--{name.replace('_', '-')}", row.flag
    if row.kind is bool:
        kind, default, option = bool, False, typer.Option(spelled, help=given.text)
    elif row.unit == "wait":
        kind = float | None
        option = typer.Option(spelled, parser=parse_duration, metavar=given.value, help=given.text)
    else:
        option = typer.Option(spelled, metavar=given.value, help=given.text, show_default=row.default or True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
