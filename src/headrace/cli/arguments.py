"""Arguments of tasks and workflows as a shell gives them. Prints nothing."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import traceback
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from headrace.cli.exit_codes import ApplicationFault, UsageFault
from headrace.cli.flags import argument, option

if TYPE_CHECKING:
    import msgspec

    from headrace.app import Headrace

Given = Annotated[list[str] | None, argument("[ARG...]", "Arguments: JSON, or else text; name=ARG gives one by name.")]
Checker = Annotated[str | None, option("--app MODULE:APP", "Check the arguments with its code.", envvar="HEADRACE_APP")]

_NO_TEXT = re.compile(r"expected str\b.*, got (?:int|float|bool|null|array|object)")
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def parse_arguments(given: list[str], kwargs: str | None = None) -> tuple[bytes, bytes]:
    """A JSON array and a JSON object: each text is JSON or, where it is not, text; ``name=text`` goes by name.

    Raises:
        UsageFault: an argument is given twice, or ``kwargs`` is not a JSON object.
    """
    import msgspec

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
    """A JSON text as it is; anything else as the text that it is.

    Raises:
        UsageFault: it begins as JSON and is none; or it is no text, but bytes that are no UTF-8, which Python hands
            over as halves of surrogate pairs.
    """
    import msgspec

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
    """Say how a text is written that is JSON, too, where one was wanted and something else was read."""
    from headrace.errors import ArgumentError

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
    """What to raise where an application has no task or workflow of this name."""
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known)[:10]) or 'none'}"
    return UsageFault(f"the application has no {kind} {name}: {hint}")


@contextmanager
def defining(name: str) -> Generator[None]:
    """Let the code of a definition run, which may fail as any code does: ApplicationFault then says where."""
    from headrace.errors import HeadraceError

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
