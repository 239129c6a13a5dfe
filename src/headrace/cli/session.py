"""What a command works with: how it prints, the application it speaks through, and how it ends when it fails."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import errors
from headrace.cli.output import Output, discard, plain, print_to_stderr

if TYPE_CHECKING:
    from headrace.app import Headrace

# Settings of the program that runs the command, below the environment: ``manage.py`` has those of its project.
defaults: dict[str, Any] = {}


class OpenAct(msgspec.Struct):
    """What a command does to what is stored, until it is recorded.

    Attributes:
        reply: what came of it, in words.
        count: how many it was meant for.
        facts: printed with the reply when it is recorded, as JSON in its place; None: the command prints.
    """

    reply: str = ""
    count: int = 1
    facts: dict[str, Any] | None = None

    def done(self, reply: str, /, **facts: Any) -> None:
        self.reply, self.facts = reply, facts


def close_values(app: Headrace) -> Headrace:
    """The application, which reads no encrypted value from now on: commands show that there is one."""
    if (seal := app.client.keys.seal) is not None:
        seal.closed = True
    return app


class Session(msgspec.Struct, frozen=True):
    """One command that runs.

    Attributes:
        output: how it prints.
        settings: those that the command line gave, by name; they win over the environment.
        debug: whether an error shows its traceback.
    """

    output: Output
    settings: dict[str, Any]
    debug: bool = False

    def app(self) -> Headrace:
        """An application without tasks, not connected yet. Raises UsageFault: settings or a URL that cannot be used."""
        from headrace.app import Headrace

        if self.settings.get("url") and self.settings.get("dir"):
            raise UsageFault("--url and --dir each name a server: give one of them")
        try:
            app = Headrace(defaults=defaults, **self.settings)
            app.override(**self.settings)
        except errors.SettingsError as error:
            raise UsageFault(str(error)) from error
        check_url(app)
        return app

    def view(self, *, stats: bool = False, hide: bool = False) -> Headrace:
        """As :meth:`app`, for a command that only looks: it starts no private server. ``stats``: at statistics, which
        may have a server of their own. ``hide``: secrets in what users gave to jobs, see the setting ``redact``. Raises
        ServerError: no private server runs for this project, and no URL names another server.
        """
        from headrace.model.hidden_values import Redactor

        app = close_values(self.app())
        self.output.redactor = Redactor.of(app.settings) if hide else None
        if app.settings.url is None and not (stats and app.settings.stats_url):
            from headrace import embedded

            app.client.announce_private()
            embedded.require(app.settings.dir)
        return app

    @contextmanager
    def acting(
        self, verb: str, kind: str, *names: str, scope: str = "", view: bool = False, code: str | None = None
    ) -> Generator[tuple[Headrace, OpenAct]]:
        """An application for a verb that changes what is stored, and the act to fill in; it is recorded at the end.

        What the store refuses is recorded with the reason. Without a store to reach nothing is recorded.

        Args:
            names: of what the verb is done to.
            scope: what it is done to all of.
            view: it starts no private server.
            code: the application of ``module:attribute``, with its tasks; None: one without.
        """
        act = OpenAct(count=len(names) or 1)
        with self.code(code) if code else self.view() if view else self.app() as app:
            try:
                yield app, act
            except errors.StoreUnavailable:
                raise
            except errors.HeadraceError as error:
                act.reply = f"refused: {error}"
                raise
            finally:
                if act.reply:
                    self._record(app, act, verb, kind, names, scope)
        if act.facts is not None:
            self.output.done(act.reply, act.facts)

    def tell_each(self, act: OpenAct, replies: Iterable[tuple[str, bool, str, errors.HeadraceError | None]]) -> int:
        """Print what became of each, and fill in the act; the exit code. ``replies``: id, done, words, any error."""
        told = failed = 0
        for id, done, words, error in replies:
            told, failed = told + 1, failed + (not done)
            if error is not None:
                act.reply = f"refused: {words}"
                self.output.fault(words, type(error).__name__, ExitCode.FAILED)
            else:
                act.reply = words
                self.output.done(f"{id} {words}", {"id": id, "done": done, "text": words})
        if told > 1:
            act.reply = f"{told - failed} done, {failed} not"
        return ExitCode.FAILED if failed else ExitCode.OK

    def _record(self, app: Headrace, act: OpenAct, verb: str, kind: str, names: tuple[str, ...], scope: str) -> None:
        shown = " ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        try:
            app.acts.record(
                verb, kind, shown, who=user_at_host(), by="cli", scope=scope, count=act.count, reply=act.reply
            )
        except errors.HeadraceError as error:
            self.output.remark(f"this act is not in the record of acts: {error}")

    def code(self, target: str | None) -> Headrace:
        """The application of ``module:attribute``, with these settings. Nothing connects yet.

        Settings reach it through the environment, for what the module does with it at its import, and then as flags,
        which win over those that the module gives it. Raises UsageFault: no target, or a setting that cannot be used.
        Raises AppImportError: the module cannot be imported.
        """
        from headrace.loader import load
        from headrace.settings import environment_name

        if not target:
            raise UsageFault("name the application: module:attribute, such as tasks:app, or set HEADRACE_APP")
        self.app()
        wanted = {name: value for name, value in self.settings.items() if value is not None}
        if "dir" in wanted and "url" not in wanted:
            # The private server there is meant; and by the module, too.
            os.environ.pop(environment_name("url"), None)
        os.environ.update({environment_name(name): str(value) for name, value in wanted.items()})
        app = load(target)
        try:
            app.override(**wanted)
        except errors.SettingsError as error:
            raise UsageFault(str(error)) from error
        check_url(app)
        return app


def user_at_host() -> str:
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"  # one that the system has no name for
    return f"{user}@{socket.gethostname()}"


def check_url(app: Headrace) -> None:
    from headrace.store.url import located

    if isinstance(app.settings.credentials, str) and (here := os.getcwd()) not in sys.path:  # noqa: PTH109
        # The function's module lies where that of an application does.
        sys.path.insert(0, here)
    if app.settings.url is not None:
        try:
            located(app.client.url(), app.settings)
        except errors.UrlError as error:
            raise UsageFault(f"{error} (from {app.sources.get('url', 'settings')})") from error
        except errors.SettingsError as error:
            raise UsageFault(str(error)) from error


class ExitCode(IntEnum):
    """What a script may rely on; the reference page lists the same words."""

    OK = 0
    FAILED = 1
    USAGE = 2
    SERVER = 3
    APPLICATION = 4
    WAITING = 5
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE = 141

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the operation failed: no such job or workflow, the job failed, a private server that does not "
    "run, no room for the output, no memory left",
    ExitCode.USAGE: "a wrong option, argument, setting or URL; nothing was done",
    ExitCode.SERVER: "the server is unreachable or cannot be used: wrong password, too old, may drop keys, full, "
    "another schema",
    ExitCode.APPLICATION: "the application cannot be imported or preloaded, has no task for this worker, or has a "
    "workflow that is invalid or whose definition raises",
    ExitCode.WAITING: "the job had not ended within `--timeout`; it continues",
    ExitCode.INTERNAL: "a fault in Headrace itself; `--debug` shows the traceback",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
    ExitCode.PIPE: "the reader of the output exited (as `head` does)",
}


class UsageFault(Exception):
    """The command was given something that cannot be used; the text says what would be right."""


class OperationFault(Exception):
    """What was asked for could not be done; the text says why."""


class ApplicationFault(Exception):
    """The application cannot be worked with; the text says what to do."""


def exit_of(error: BaseException) -> ExitCode:
    usage = (UsageFault, errors.OptionsError, errors.ArgumentError, errors.PayloadTooLarge)
    table: tuple[tuple[tuple[type[BaseException], ...], ExitCode], ...] = (
        ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
        (usage, ExitCode.USAGE),
        ((OperationFault,), ExitCode.FAILED),
        ((ApplicationFault, errors.AppImportError, errors.WorkflowError), ExitCode.APPLICATION),
        # Raised after the connection was made: a URL that cannot even be parsed is a usage fault (see session).
        ((errors.UrlError, errors.ServerError), ExitCode.SERVER),
        ((errors.SettingsError,), ExitCode.USAGE),
        ((errors.WaitTimeout,), ExitCode.WAITING),
        ((errors.HeadraceError,), ExitCode.FAILED),
    )
    return next((code for kinds, code in table if isinstance(error, kinds)), ExitCode.INTERNAL)


# A reader that is gone, a full disk, a quota, a limit of a file's size, a terminal that hung up.
_NO_ROOM = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# Characters of a refusal that are shown.
_FIRST = 1_000
_LAST = 500


def explain(error: BaseException, *, json: bool, debug: bool) -> int:
    if isinstance(error, FileNotFoundError) and _directory_is_gone():
        error = UsageFault("the current directory was removed: change to another directory").with_traceback(
            error.__traceback__
        )
    if isinstance(error, MemoryError):
        error = OperationFault("there is no memory left, or its limit is reached (ulimit -a, the control group)")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        reached = OperationFault("the limit of open files is reached: raise it, such as with ulimit -n 1024")
        error = reached.with_traceback(error.__traceback__)
    if (unwritten := _unwritten(error)) is not None:
        # What is kept would raise again.
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return ExitCode.PIPE
        error = unwritten
    code = exit_of(error)
    if code is ExitCode.INTERRUPTED:
        return code
    return last_word(error, _text(error), code, json=json, debug=debug)


def last_word(error: BaseException, text: str, code: ExitCode, *, json: bool, debug: bool) -> int:
    output = Output(json=json)
    if code is ExitCode.USAGE and (left := len(text) - _FIRST - _LAST) > 0:
        # The value may be a whole file; the end says what would be right.
        text = f"{text[:_FIRST]} ({left:,} characters left out) {text[-_LAST:]}"
    if debug:
        print_to_stderr(plain("".join(traceback.format_exception(error)).rstrip("\n")))
    output.fault(text, type(error).__name__, code)
    return code


def _unwritten(error: BaseException) -> OperationFault | None:
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _NO_ROOM:
        return None
    fault = OperationFault(f"the output cannot be written: {error.strerror}; what was printed is not whole")
    return fault.with_traceback(error.__traceback__)


def _directory_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd is the same
    except FileNotFoundError:
        return True
    return False


def _text(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, errors.JobUnsuccessful):
        return f"{text.splitlines()[0]}; headrace jobs show {error.id} shows all that is known"
    if exit_of(error) is ExitCode.INTERNAL:
        return f"internal error: {type(error).__name__}: {text}; please report it with what --debug shows"
    return text


def confirm(deed: str, refused: str, warning: str = "") -> None:
    """Ask the person at the terminal; raise ``refused`` after a no. ``deed``: such as ``delete 3 jobs for good``."""
    if not sys.stdin.isatty():
        raise UsageFault(f"this would {deed}: add --yes if that is meant")
    if not agreed(f"{deed[0].upper()}{deed[1:]}?{warning and ' ' + warning}"):
        raise OperationFault(refused)


def agreed(question: str) -> bool:
    print(f"{plain(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
