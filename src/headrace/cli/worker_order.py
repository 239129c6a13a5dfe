"""The options of ``headrace worker``, on their way into the process that does the work.

``opentelemetry-instrument`` makes providers, with their threads, before the first line of the program, and threads do
not survive a fork. So the worker becomes another program, and each runner makes them anew.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec
from msgspec.structs import replace

from headrace.settings import HIDDEN
from headrace.store.url import passwords
from headrace.worker.reload_parent import VARIABLE, WorkerCommand
from headrace.worker.worker_options import WorkerOptions

if TYPE_CHECKING:
    from headrace.app import Headrace

# The module of the tool that begins a program; and how the worker's process learns that it did.
TOOL = "opentelemetry.instrumentation.auto_instrumentation"
MARK = "_HEADRACE_INSTRUMENTED"


def instrument_runners(app: Headrace) -> None:
    # As the tool has it, which is not a package that headrace needs.
    app.after_fork_child_hooks.insert(0, lambda: import_module(TOOL).initialize())
    if app.settings.traces == "off":
        # What libraries told in jobs is sent before a runner leaves; where starts are traced, it is so already.
        from headrace.tasks import traces

        app.closers.append(traces.flush)


_NAME = "HEADRACE_ORDER"


class Order(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        target: the application, ``module:attribute``.
        settings: those that the command line gave, by name.
        level: of the log.
        json, debug: how an error is told.
        instrumented: ``opentelemetry-instrument`` began the command; filled in on the way.
    """

    target: str | None
    options: WorkerOptions
    settings: dict[str, Any]
    level: int
    json: bool
    debug: bool
    instrumented: bool = False

    def carry_out(self, environ: Mapping[str, str]) -> NoReturn:
        """Become the worker: this process goes on as another program, without the command line in its memory."""
        link = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        environ = {**environ, **link, _NAME: json.dumps(msgspec.to_builtins(self))}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # -P: a module of the application's directory must not take the place of Python's own. The words at the end are
        # for people who look at the list of processes.
        words = [sys.executable, *_flags(), "-P", "-m", "headrace.cli.worker_process", *_shown(sys.argv[1:])]
        os.execve(sys.executable, words, environ)  # noqa: S606

    @classmethod
    def take_from(cls, environ: MutableMapping[str, str]) -> Self | None:
        text = environ.pop(_NAME, None)
        if text is None:
            return None
        # Commands that jobs start are not instrumented.
        marked = environ.pop(MARK, None) is not None
        return replace(msgspec.convert(json.loads(text), cls), instrumented=marked)


def instrumented(command: WorkerCommand) -> WorkerCommand:
    """The same start without ``opentelemetry-instrument``, if that began it, and with a mark: see worker_order.py. The
    tool is a directory in PYTHONPATH; some of its versions take themselves out, others begin each program below.
    """
    tool = sys.modules.get(TOOL)
    if tool is None or tool.__file__ is None:
        return command
    paths = command.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = os.pathsep.join(path for path in paths if path != str(Path(tool.__file__).parent))
    return replace(command, environ={**command.environ, MARK: "1", "PYTHONPATH": left})


def discreet(command: WorkerCommand, url: str | None) -> WorkerCommand:
    """The same start, but a URL with a password is in the environment: ``--reload`` repeats the command line."""
    if url is None or not passwords(url):
        return command
    words = [word for word in command.argv if word != f"--url={url}"]
    if url in words:
        place = words.index(url)
        del words[place - 1 : place + 1]
    return replace(command, argv=words, environ={**command.environ, "HEADRACE_URL": url})


def start_again(command: WorkerCommand) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(command.argv[0], command.argv, command.environ)  # noqa: S606


def _shown(words: Sequence[str]) -> list[str]:
    secrets = {secret for word in words for secret in passwords(word.removeprefix("--url="))}
    for secret in sorted(secrets, key=len, reverse=True):
        words = [word.replace(secret, HIDDEN) for word in words]
    return list(words)


def _flags() -> list[str]:
    words, given = sys.orig_argv[1:], sys.argv[1:]
    if words[len(words) - len(given) :] != given:
        return []
    words = words[: len(words) - len(given)]
    return words[:-2] if words[-2:-1] == ["-m"] else words[:-1]
