"""How a command becomes part of the program: its shared options, its help, the way it ends.

Owns no printing and no decision about exit codes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec

import typer
from typer.core import TyperGroup

from headrace.cli.flags import Flags, flag, parameters
from headrace.cli.output import Output
from headrace.cli.session import Session

P = ParamSpec("P")

_SHARED: Flags = {
    "url": flag(
        str | None, "--url URL", "URL of the server. Default: HEADRACE_URL, else the private Valkey of this project."
    ),
    "namespace": flag(
        str | None, "--namespace NAME", "First part of every key. Default: HEADRACE_NAMESPACE, else hr."
    ),
    "dir": flag(
        str | None, "--dir PATH",
        "Use the private Valkey of this directory. Default: HEADRACE_DIR, else .headrace of the project.",
    ),
    "json": flag(bool, "--json", "Print JSON on stdout, and errors as JSON on stderr."),
    "debug": flag(bool, "--debug", "Show the traceback of an error."),
}  # fmt: skip
ALL_SHARED = tuple(_SHARED)


def command(
    group: typer.Typer, name: str, *, shared: tuple[str, ...] = ALL_SHARED
) -> Callable[[Callable[Concatenate[Session, P], int | None]], Callable[Concatenate[Session, P], int | None]]:
    """Add a command to a group: its own parameters, then the shared options; it gets a :class:`Session` first.

    The function returns its exit code, None for 0.
    """

    def register(
        function: Callable[Concatenate[Session, P], int | None],
    ) -> Callable[Concatenate[Session, P], int | None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        more = parameters({name: _SHARED[name] for name in ALL_SHARED if name in shared})

        def run(**given: Any) -> int:
            common = {option: given.pop(option) for option in shared}
            output = Output(json=common.pop("json", False))
            debug = common.pop("debug", False)
            _warn_of_password(output, common.get("url"))
            call: Any = function
            with _remarks(output):
                code = call(Session(output, common, debug), **given) or 0
            sys.stdout.flush()
            return int(code)

        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + more
        # Typer reads a function's signature: this one is the command's own and the shared options together.
        run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        # With -OO there are no docstrings.
        text = inspect.getdoc(function) or name
        # Without a short help of our own, Click cuts the first sentence in the middle.
        short = re.split(r"[:;,.]\s|\n", text)[0].rstrip(".") + "."
        group.command(name, help=text, short_help=short)(run)
        return function

    return register


def group(text: str, kind: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group of commands; alone it prints its help."""
    return typer.Typer(
        cls=kind,
        help=text,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


@contextmanager
def _remarks(output: Output) -> Generator[None]:
    """Show what the library warns of as a command's remarks: with --json, programs read what is on stderr."""
    import logging

    class Remarks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.remark(record.getMessage())

    log, remarks = logging.getLogger("headrace"), Remarks(logging.WARNING)
    log.addHandler(remarks)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(remarks)
        log.propagate = True


def _warn_of_password(output: Output, url: str | None) -> None:
    # An URL without an @ has none: commands that are given none do not wait for the driver to be imported.
    if url is None or ("@" not in url and "password" not in url):
        return
    from headrace.errors import UrlError
    from headrace.store.url import parse, passwords

    with suppress(UrlError):  # which the command tells
        parse(url)
        if not passwords(url):
            return
        output.remark(
            "the password in --url is in the list of processes, which every user of this machine can read: "
            "set HEADRACE_URL instead"
        )
