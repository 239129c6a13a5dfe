"""What a command that runs works with: how it prints, and the application it speaks through."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli.failure import ExitCode, UsageFault
from headrace.cli.output import Output

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.errors import HeadraceError

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
        """An application without tasks, for what needs no code. Nothing connects yet. Raises UsageFault: a setting or
        the URL cannot be used, or both a URL and a directory were given.
        """
        from headrace.app import Headrace
        from headrace.errors import SettingsError

        if self.settings.get("url") and self.settings.get("dir"):
            raise UsageFault("--url and --dir each name a server: give one of them")
        try:
            app = Headrace(defaults=defaults, **self.settings)
            app.override(**self.settings)
        except SettingsError as error:
            raise UsageFault(str(error)) from error
        check_url(app)
        return app

    def view(self, *, stats: bool = False, hide: bool = False) -> Headrace:
        """As :meth:`app`, for a command that only looks: it starts no private server.

        Args:
            stats: it looks at the statistics, which may be on a server of their own.
            hide: it shows what users gave to jobs, and hides secrets in it; see the setting ``redact``.

        Raises:
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
        from headrace.errors import HeadraceError, StoreUnavailable

        act = OpenAct(count=len(names) or 1)
        with self.code(code) if code else self.view() if view else self.app() as app:
            try:
                yield app, act
            except StoreUnavailable:
                raise
            except HeadraceError as error:
                act.reply = f"refused: {error}"
                raise
            finally:
                if act.reply:
                    self._record(app, act, verb, kind, names, scope)
        if act.facts is not None:
            self.output.done(act.reply, act.facts)

    def tell_each(self, act: OpenAct, replies: Iterable[tuple[str, bool, str, HeadraceError | None]]) -> int:
        """Print what became of each job or workflow that a verb was for, and fill in the act; the exit code.
        ``replies``: id, whether the verb was done, the words for it, and the error if it was refused.
        """
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
        from headrace.errors import HeadraceError

        shown = " ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        try:
            app.acts.record(verb, kind, shown, who=user(), by="cli", scope=scope, count=act.count, reply=act.reply)
        except HeadraceError as error:
            self.output.remark(f"this act is not in the record of acts: {error}")

    def code(self, target: str | None) -> Headrace:
        """The application of ``module:attribute``, with these settings. Nothing connects yet.

        Settings reach it through the environment, for what the module does with it at its import, and then as flags,
        which win over those that the module gives it.

        Raises:
            UsageFault: no target, or a setting that cannot be used.
            AppImportError: the module cannot be imported.
        """
        from headrace.errors import SettingsError
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
        except SettingsError as error:
            raise UsageFault(str(error)) from error
        check_url(app)
        return app


def user() -> str:
    """Who types: the user, and the host of the shell."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"  # one that the system has no name for
    return f"{user}@{socket.gethostname()}"


def check_url(app: Headrace) -> None:
    """Refuse a URL, or credentials, that cannot be used before anything connects."""
    from headrace.errors import SettingsError, UrlError
    from headrace.store.url import located

    if isinstance(app.settings.credentials, str) and (here := os.getcwd()) not in sys.path:  # noqa: PTH109
        # The function's module lies where that of an application does.
        sys.path.insert(0, here)
    if app.settings.url is not None:
        try:
            located(app.client.url(), app.settings)
        except UrlError as error:
            raise UsageFault(f"{error} (from {app.sources.get('url', 'settings')})") from error
        except SettingsError as error:
            raise UsageFault(str(error)) from error
