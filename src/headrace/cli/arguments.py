"""Arguments of tasks and workflows as a shell gives them, and parameters of commands as the help shows them."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import shlex
import traceback
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from headrace.cli.output import parse_duration, parse_size
from headrace.cli.session import ApplicationFault, UsageFault
from headrace.errors import ArgumentError, HeadraceError

if TYPE_CHECKING:
    from headrace.app import Headrace

# Parameters by name: the type with the option, and the default.
Flags = Mapping[str, tuple[Any, Any]]

_PARSERS = {"TIME": parse_duration, "SIZE": parse_size}


def option(spelling: str, text: str, default: str | bool = True, **more: Any) -> Any:
    """An option, such as ``option("--output -o FILE", "The file to write.")``. ``spelling``: its names, and the word
    for its value: a TIME comes as seconds, a SIZE as bytes. ``default``: what the help says of the default; True: the
    default itself.
    """
    words = spelling.split()
    names = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(names) :])
    more = {"parser": _PARSERS.get(value), **more}
    return typer.Option(*names, metavar=value or None, help=text, show_default=default, **more)


def argument(value: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=value, help=text, **more)


def flag(kind: Any, spelling: str, text: str, default: str | bool = True, **more: Any) -> tuple[Any, Any]:
    """One of :data:`Flags`, see :func:`option`: without it None, where the type has that, else false, 0 or empty."""
    return Annotated[kind, option(spelling, text, default, **more)], kind() if isinstance(kind, type) else None


def parameters(flags: Flags) -> list[inspect.Parameter]:
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


Given = Annotated[list[str] | None, argument("[ARG...]", "Arguments: JSON, or else text; name=ARG gives one by name.")]
Checker = Annotated[str | None, option("--app MODULE:APP", "Check the arguments with its code.", envvar="HEADRACE_APP")]

_NO_TEXT = re.compile(r"expected str\b.*, got (?:int|float|bool|null|array|object)")
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def parse_arguments(given: list[str], kwargs: str | None = None) -> tuple[bytes, bytes]:
    """A JSON array and object; ``name=text`` goes by name. Raises UsageFault: a name twice, or bad ``kwargs``."""
    named: dict[str, msgspec.Raw] = {}
    if kwargs is not None:
        try:
            msgspec.json.decode(kwargs)
            named = msgspec.json.decode(kwargs, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageFault(f"--kwargs {kwargs!r} is not a JSON object: {error}") from error
    positions: list[msgspec.Raw] = []
    for text in given:
        if (found := _NAMED.fullmatch(text)) is None:
            positions.append(json_or_text(text))
        elif found[1] in named:
            raise UsageFault(f"the argument {found[1]} is given twice")
        else:
            named[found[1]] = json_or_text(found[2])
    return msgspec.json.encode(positions), msgspec.json.encode(named)


def json_or_text(text: str) -> msgspec.Raw:
    """A JSON text as it is; anything else as the text that it is. Raises UsageFault: it begins as JSON and is none; or
    it is not a text, but bytes that are no UTF-8, which Python hands over as halves of surrogate pairs.
    """
    try:
        sent = text.encode()
    except UnicodeEncodeError as error:
        raise UsageFault(f"the argument {text!r} cannot be sent: it is not UTF-8") from error
    try:
        msgspec.json.decode(text)
        return msgspec.Raw(sent)
    except (msgspec.MsgspecError, ValueError) as error:
        if text.lstrip()[:1] in ("[", "{", '"'):
            raise UsageFault(
                f"the argument {text!r} begins as JSON and is none ({error}); write a text in quotes of its own: "
                f"{shlex.quote(json.dumps(text, ensure_ascii=False))}"
            ) from error
        return msgspec.Raw(msgspec.json.encode(text))


@contextmanager
def quoting() -> Generator[None]:
    try:
        yield
    except ArgumentError as error:
        if _NO_TEXT.search(str(error)) is None:
            raise
        raise ArgumentError(f"""{error}; a text that is JSON as well needs quotes of its own: '"7"'""") from error


def values_of(app: Headrace, definition: Any, given: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a workflow's function is called with, read by its annotations; ArgumentError where they do not fit."""
    signature = definition.definition.signature
    with quoting():
        packed: bytes = signature.pack_json(*parse_arguments(given), app.settings.max_payload)
    return cast("tuple[tuple[Any, ...], dict[str, Any]]", signature.unpack(packed))


def definition_of(app: Headrace, name: str) -> Any:
    """The workflow that an application defines under a name; UsageFault where it defines none."""
    known = app.workflow_definitions
    if name not in known:
        raise undefined("workflow", name, known)
    return known[name]


def undefined(kind: str, name: str, known: Collection[str]) -> UsageFault:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known)[:10]) or 'none'}"
    return UsageFault(f"the application has no {kind} {name}: {hint}")


@contextmanager
def defining(name: str) -> Generator[None]:
    """Let the code of a definition run, which may fail as any code does: ApplicationFault then says where."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        ours = Path(__file__).parents[1]
        theirs = [at for at in traceback.extract_tb(error.__traceback__) if ours not in Path(at.filename).parents]
        if not theirs:
            raise
        place = f"{theirs[-1].filename}:{theirs[-1].lineno}"
        text = "".join(traceback.format_exception_only(error)).strip()
        raise ApplicationFault(f"the definition of workflow {name} raised {text} ({place})") from error
