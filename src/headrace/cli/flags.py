"""Parameters of commands, each written as the help shows it; and those that several commands have."""

from __future__ import annotations

from typing import Any

import typer

from headrace.cli.units import parse_duration, parse_size

_PARSERS = {"TIME": parse_duration, "SIZE": parse_size}


def option(spelling: str, text: str, default: str | bool = True, **more: Any) -> Any:
    """An option, such as ``option("--output -o FILE", "The file to write.")``.

    Args:
        spelling: its names, and the word for its value: a TIME comes as seconds, a SIZE as bytes.
        default: what the help says of the default; True: the default itself.
    """
    words = spelling.split()
    names = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(names) :])
    more = {"parser": _PARSERS.get(value), **more}
    return typer.Option(*names, metavar=value or None, help=text, show_default=default, **more)


def argument(value: str, text: str, **more: Any) -> Any:
    """An argument, such as ``argument("[ID...]", "Ids of jobs.")``."""
    return typer.Argument(metavar=value, help=text, **more)
