"""What ``headrace worker`` does so that other code can take its place: see worker/reload/handover.py.

Owns the moment before the application is imported: what is taken down there, and how an image that cannot work says
why to the one that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Collection, Generator
from types import FrameType
from typing import TYPE_CHECKING, Self

import msgspec

from headrace.cli.failure import ExitCode, exit_of

if TYPE_CHECKING:
    from headrace.cli.session import Session
    from headrace.worker.reload.handover import Succession
    from headrace.worker.reload.image_launch import Heir, Launch
    from headrace.worker.reload.pid_holder import LogForm


class Origin(msgspec.Struct):
    """Where this image comes from.

    Attributes:
        launch: how it was started.
        heir: set when another image started it.
    """

    launch: Launch
    heir: Heir | None
    _carries: tuple[Succession, LogForm] | None = None
    _early: list[int] = msgspec.field(default_factory=list[int])

    @classmethod
    def taken(cls, launch: Launch) -> Self:
        """Of this process, before the application is imported."""
        from headrace.worker.forking import child_process
        from headrace.worker.reload.image_launch import heir_of

        origin = cls(launch, heir_of(os.environ))

        def note(number: int, _frame: FrameType | None) -> None:
            origin._early.append(number)

        # A HUP that comes before there is anything to replace must not end the worker, nor must a wish for more or
        # fewer runners, of which there are none yet, suspend it.
        signal.signal(signal.SIGHUP, note)
        for number in child_process.RESIZE:
            signal.signal(number, child_process.only_wake)
        child_process.disregard()
        # QUIT too, which would leave a core.
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, child_process.leave_at_once)
        child_process.let_in()
        return origin

    @property
    def announces(self) -> bool:
        """Whether this image should say at length what the worker is: those after it are the same worker."""
        return self.heir is None or self.heir.first

    @contextlib.contextmanager
    def confessing(self) -> Generator[None]:
        """Say why this image cannot work to the one that started it, which logs it; else as any command does."""
        try:
            yield
        except Exception as error:
            if self.heir is None:
                raise
            self.tell_modules(error)
            code = exit_of(error)
            text = traceback.format_exc().rstrip() if code is ExitCode.INTERNAL else str(error)
            self.heir.failed(text)
            raise SystemExit(int(code)) from error

    def tell_modules(self, error: BaseException | None = None) -> None:
        """Say which files the application consists of: those of its modules, and those that an error came through."""
        from headrace.worker.reload.image_launch import application_files

        if self.heir is None:
            return
        files = set(application_files(list(sys.modules.values())))
        while error is not None:
            files.update(frame.filename for frame in traceback.extract_tb(error.__traceback__))
            if isinstance(error, SyntaxError) and error.filename:
                files.add(error.filename)
            error = error.__cause__ or error.__context__
        self.heir.link.say("modules", *sorted(files))

    def lineage(self, limit: float, shape: str, level: int, secrets: Collection[str]) -> Succession | Heir:
        """What the supervisor is to know of images before and after it."""
        from headrace.worker.reload.handover import Succession
        from headrace.worker.reload.pid_holder import LogForm

        if self.heir is not None:
            self.heir.early = self._early
            return self.heir
        succession = Succession(self.launch, limit, self._early)
        self._carries = succession, LogForm(shape, level, sorted(secrets))
        return succession

    def carry_on(self, code: int) -> int:
        """The supervisor has ended: go on as the anchor of the images after it, if there are any; the exit code."""
        from headrace.worker.reload.pid_holder import carry_on

        return code if self._carries is None else carry_on(*self._carries, code)


def reload(session: Session, launch: Launch, level: int) -> int:
    """Be the anchor of images that follow each other as the code changes, until Ctrl-C; the exit code."""
    from headrace.cli import logs
    from headrace.settings import environment_name
    from headrace.worker.reload.handover import Reload, Succession
    from headrace.worker.reload.pid_holder import Anchor

    settings = session.app().settings
    logs.configure(settings.log, level)
    if session.settings.get("shutdown_timeout") is None and environment_name("shutdown_timeout") not in os.environ:
        # Who edits wants the new code now: what ran is handed back and runs again with that.
        launch.environ[environment_name("shutdown_timeout")] = "0"
    if session.settings.get("log") is None:
        launch.environ[environment_name("log")] = settings.log
    # Python takes a compiled file for fresh that was made within the second, of a source of the same size.
    launch.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    anchor = Anchor(Succession(launch, settings.reload_timeout))
    anchor.duty = Reload(anchor.succession, {ExitCode.SERVER})
    return anchor.run()
