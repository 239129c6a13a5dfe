"""The options of ``headrace worker``, on their way into the process that does the work.

1. :class:`Order`: the options that were read.
2. :func:`instrument_runners` and :func:`instrumented`: ``opentelemetry-instrument headrace worker``, done anew in each
   runner.

The tool of OpenTelemetry makes providers, with their threads, before the first line of the program, and threads do not
survive a fork. So the worker becomes another program when it has read its options, which ends these threads, and each
runner makes them anew: providers after the OTEL_ variables, and instrumented libraries.
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
from headrace.worker.reload.image_launch import VARIABLE, Launch
from headrace.worker.worker_options import WorkerOptions

if TYPE_CHECKING:
    from headrace.app import Headrace

# The module of the tool that begins a program; and how images of a worker hear of it that come later.
TOOL = "opentelemetry.instrumentation.auto_instrumentation"
MARK = "_HEADRACE_INSTRUMENTED"


def instrument_runners(app: Headrace, environ: Mapping[str, str]) -> None:
    """Have each runner begin as the tool let the worker begin, whose environment this is, before the hooks."""
    if MARK not in environ:
        return
    app.after_fork_child_hooks.insert(0, _instrument)
    if app.settings.traces == "off":
        # What libraries told in jobs is sent before a runner leaves; where starts are traced, it is so already.
        from headrace.tasks import traces

        app.closers.append(traces.flush)


def _instrument() -> None:
    # As the tool has it, which is no package that headrace needs.
    import_module(TOOL).initialize()


_NAME = "HEADRACE_ORDER"


class Order(msgspec.Struct, frozen=True):
    """One worker.

    Attributes:
        target: the application, ``module:attribute``.
        settings: those that the command line gave, by name.
        level: of the log.
        json, debug: how an error is told.
        launch: how the command was started, but for its environment; filled in on the way.
    """

    target: str | None
    options: WorkerOptions
    settings: dict[str, Any]
    level: int
    json: bool
    debug: bool
    launch: Launch | None = None

    def carry_out(self, launch: Launch) -> NoReturn:
        """Become the worker: this process goes on as another program, without the command line in its memory."""
        order = replace(self, launch=replace(launch, environ={}))
        heir = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        environ = {**launch.environ, **heir, _NAME: json.dumps(msgspec.to_builtins(order))}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # -P: a module of the application's directory must not take the place of Python's own. The words at the end are
        # for people who look at the list of processes.
        words = [sys.executable, *_flags(), "-P", "-m", "headrace.cli.worker_process", *_shown(sys.argv[1:])]
        os.execve(sys.executable, words, environ)  # noqa: S606

    @classmethod
    def taken(cls, environ: MutableMapping[str, str]) -> tuple[Self, Launch] | None:
        """The order in ``environ``, taken out of it, and how the command was started; None: there is none."""
        text = environ.pop(_NAME, None)
        if text is None:
            return None
        order = msgspec.convert(json.loads(text), cls)
        first = {name: value for name, value in environ.items() if name != VARIABLE}
        # Commands that jobs start are none of ours.
        environ.pop(MARK, None)
        assert order.launch is not None
        return order, replace(order.launch, environ=first)


def instrumented(launch: Launch) -> Launch:
    """The same start without ``opentelemetry-instrument``, if that began it, and with a mark: see worker_order.py.

    The tool is a directory in PYTHONPATH; some of its versions take themselves out, others begin each program below.
    """
    tool = sys.modules.get(TOOL)
    if tool is None or tool.__file__ is None:
        return launch
    paths = launch.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = os.pathsep.join(path for path in paths if path != str(Path(tool.__file__).parent))
    return replace(launch, environ={**launch.environ, MARK: "1", "PYTHONPATH": left})


def discreet(launch: Launch, url: str | None) -> Launch:
    """The same start, with a URL that holds a password in the environment and not on the command line.

    The images of a worker that follow each other are started by that command line.
    """
    if url is None or not passwords(url):
        return launch
    words = [word for word in launch.argv if word != f"--url={url}"]
    if url in words:
        place = words.index(url)
        del words[place - 1 : place + 1]
    return replace(launch, argv=words, environ={**launch.environ, "HEADRACE_URL": url})


def start_again(launch: Launch) -> NoReturn:
    """Run the same command in this process, under the command line that ``discreet`` made."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(launch.argv[0], launch.argv, launch.environ)  # noqa: S606


def _shown(words: Sequence[str]) -> list[str]:
    """A command line without passwords: every user of the machine can read it while the worker runs."""
    secrets = {secret for word in words for secret in passwords(word.removeprefix("--url="))}
    for secret in sorted(secrets, key=len, reverse=True):
        words = [word.replace(secret, HIDDEN) for word in words]
    return list(words)


def _flags() -> list[str]:
    """What the interpreter was told, such as ``-X`` and ``-W``; nothing, where our words are not the program's."""
    words, given = sys.orig_argv[1:], sys.argv[1:]
    if words[len(words) - len(given) :] != given:
        return []
    words = words[: len(words) - len(given)]
    return words[:-2] if words[-2:-1] == ["-m"] else words[:-1]
