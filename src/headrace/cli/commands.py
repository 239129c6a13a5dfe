"""The program ``headrace``: its commands, the options that they share, its help, and their completion in a shell."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from importlib import import_module
from inspect import signature
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, get_args, get_origin

import typer
from typer.core import TyperGroup

from headrace import __version__
from headrace.cli.arguments import Flags, argument, flag, option, parameters
from headrace.cli.output import Output, plain, print_to_stderr
from headrace.cli.session import ExitCode, Session, explain, last_word
from headrace.errors import UrlError

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
    """Add a command to a group, with the shared options. It gets a :class:`Session`, and returns an exit code."""

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
        short = re.split(r"(?<=\.)\s|\n\n", text)[0].replace("\n", " ").rstrip(".") + "."
        group.command(name, help=text, short_help=short)(run)
        return function

    return register


def group(text: str, kind: type[TyperGroup] = TyperGroup) -> typer.Typer:
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
    from headrace.store.url import parse, passwords

    with suppress(UrlError):  # which the command tells
        parse(url)
        if not passwords(url):
            return
        output.remark(
            "the password in --url is in the list of processes, which every user of this machine can read: "
            "set HEADRACE_URL instead"
        )


# The module of each command and of each group of commands, in the order of the help. There it is the function or the
# group of its name, else the group ``app``.
MODULES = {
    "worker": "worker", "enqueue": "jobs", "jobs": "jobs", "bulk": "jobs", "workflows": "workflows",
    "queues": "queues", "workers": "workers", "limits": "limits", "cron": "cron", "stats": "stats",
    "server": "server", "acts": "history", "events": "history", "alarms": "history", "top": "queues",
    "dashboard": "web", "health": "workers", "profile": "workers", "shards": "server", "doctor": "server",
    "restored": "server", "acl": "server", "migrate": "server", "outbox": "bridge", "bridge": "bridge",
    "completion": "commands", "demo": "demo",
}  # fmt: skip
# The shared options of commands that do not have all of them.
_FEWER: dict[str, tuple[str, ...]] = {
    "health": ("json", "debug"), "acl": ("namespace", "json", "debug"), "completion": ("debug",),
    "demo": ("json", "debug"),
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
        print(f"headrace {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, option("--version", "Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    pass


def program(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command, or the group of commands, that the first argument names; all of them if it names none. The modules
    and parsers of all take a quarter of the time of a short command.
    """
    named = [name for name in arguments[:1] if name in MODULES]
    app = group("Background jobs for Python on Redis or Valkey that lose no job.")
    app.callback()(_root)
    for name in named or MODULES:
        module: Any = import_module(f"headrace.cli.{MODULES[name]}")
        found = getattr(module, name, None) or module.app
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            command(app, name, shared=_FEWER.get(name, ALL_SHARED))(found)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Never raises but for what ends the process anyway."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    json, debug = "--json" in ours, "--debug" in ours
    try:
        parser: Any = typer.main.get_command(program(arguments))
        code = parser.main(list(arguments), prog_name="headrace", standalone_mode=False)
    except SystemExit as end:
        # The parser's way to end a program whose output has no reader.
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
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print_to_stderr(plain(error.format_message()))
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


# A pattern of what stands before the word, and the words that fit. The first row that matches counts.
Row = tuple[str, str]

_BASH = """\
_headrace() {
    local IFS=' ' found=''
    case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in
%s
    esac
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _headrace headrace"""
_ZSH = """\
#compdef headrace
_headrace() {
    local IFS=' ' found=''
    case "${words[2,CURRENT-1]} " in
%s
    esac
    compadd -- ${=found} || _files
}
compdef _headrace headrace"""
_FISH = """\
function __headrace_words
    set -l before (commandline -opc)
    set -e before[1]
    set -l line (string join ' ' -- $before)
    switch "$line "
%s
    end
end
complete -c headrace -a '(__headrace_words)'"""


def completion(
    session: Session,
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("bash|zsh|fish", "The shell that reads the script.")],
) -> None:
    """Print a script that completes commands, options and choices in a shell.

    Write in ~/.bashrc: eval "$(headrace completion bash)". In ~/.zshrc, after compinit: eval "$(headrace completion
    zsh)". In config.fish: headrace completion fish | source. Where nothing fits, the shell offers files.
    """
    if shell == "fish":
        form, row = _FISH, "        case '{}'\n            string split ' ' -- '{}'"
    else:
        # The space of a pattern is quoted, its star is not.
        form, row = _BASH if shell == "bash" else _ZSH, "        {}) found='{}' ;;"
    rows = ((pattern if shell == "fish" else pattern.replace(" ", "\\ "), words) for pattern, words in _rows())
    session.output.line(form % "\n".join(row.format(*pair) for pair in rows))


def _rows() -> Iterator[Row]:
    root = program()
    alone = {str(one.name): one for one in root.registered_commands}
    groups = {str(one.name): one.typer_instance for one in root.registered_groups}
    for name, command in alone.items():
        yield from _rows_of(f"{name} ", command.callback)
    for name, group in groups.items():
        commands = {str(one.name): one for one in group.registered_commands} if group else {}
        for inner, command in commands.items():
            yield from _rows_of(f"{name} {inner} ", command.callback)
        yield f"{name} ", " ".join(commands)
    yield " ", " ".join((*alone, *groups, "--version", "--help"))


def _rows_of(path: str, command: Any) -> Iterator[Row]:
    words = ["--help"]
    for parameter in signature(command).parameters.values():
        kind, declared = get_args(parameter.annotation)
        choices = _choices(kind)
        # Typer keeps the first name as the default until it parses.
        names = [name for name in (declared.default, *(declared.param_decls or ())) if str(name).startswith("-")]
        words += [name for name in names if name.startswith("--")] or choices
        # The value of --reload may be left out.
        if kind is not bool and not declared.metavar.startswith("["):
            yield from ((f"{path}*{name} ", " ".join(choices)) for name in names)
    yield f"{path}*", " ".join(words)


def _choices(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [one.value for one in kind]
    parts = get_args(kind)
    return list(parts) if get_origin(kind) is Literal else [choice for part in parts for choice in _choices(part)]
