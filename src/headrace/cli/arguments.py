"""Arguments of tasks and workflows as a shell gives them. Prints nothing."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.exits import ApplicationFault, UsageFault

if TYPE_CHECKING:
    from headrace.app import Headrace

_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def parse_arguments(given: list[str], kwargs: str | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Positions and keywords: each text is JSON or, where it is not, text; ``name=text`` goes by name.

    Raises:
        UsageFault: an argument is given twice, or ``kwargs`` is not a JSON object.
    """
    import msgspec

    named: dict[str, Any] = {}
    if kwargs is not None:
        try:
            named = msgspec.json.decode(kwargs, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageFault(f"--kwargs {kwargs!r} is not a JSON object: {error}") from error
    positions: list[Any] = []
    for text in given:
        if (found := _NAMED.fullmatch(text)) is None:
            positions.append(_parsed(text))
        elif found[1] in named:
            raise UsageFault(f"the argument {found[1]} is given twice")
        else:
            named[found[1]] = _parsed(found[2])
    return positions, named


def _parsed(text: str) -> Any:
    """The value of a JSON text; anything else is taken as the text that it is."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return text


def definition_of(app: Headrace, name: str) -> Any:
    """The workflow that an application defines under a name.

    Raises:
        UsageFault: it defines none.
    """
    known = app.workflow_definitions
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known)[:10]) or 'none'}"
        raise UsageFault(f"the application has no workflow {name}: {hint}")
    return known[name]


@contextmanager
def defining(name: str) -> Generator[None]:
    """Let the code of a definition run, which is the application's and may fail as any code does.

    Raises:
        ApplicationFault: it did; says where.
    """
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
