"""Parameters of commands, each written as the help shows it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from headrace.cli.units import parse_duration, parse_size

# Parameters by name: the type with the option, and the default.
Flags = Mapping[str, tuple[Any, Any]]

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


def flag(kind: Any, spelling: str, text: str, default: str | bool = True, **more: Any) -> tuple[Any, Any]:
    """One of :data:`Flags`, see :func:`option`: without it None, where the type has that, else false, 0 or empty."""
    return Annotated[kind, option(spelling, text, default, **more)], kind() if isinstance(kind, type) else None


def parameters(flags: Flags) -> list[inspect.Parameter]:
    """Flags as the parameters of a function, which get them by name."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in flags.items()
    ]


def with_flags(flags: Flags) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command more options, before those that it names behind a star; it gets them as ``**options``."""

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        first = [one for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        last = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        command.__signature__ = inspect.Signature([*first, *parameters(flags), *last])  # type: ignore[attr-defined]
        return command

    return give


Yes = Annotated[bool, option("--yes -y", "Do not ask.")]
