"""Images of a worker: how one is started, and the words between them.

An *image* is a supervisor with everything that it forked, from one interpreter that imported the application once.

1. :class:`Launch`: how the worker was started, and how a new image is: the same program, with the code of that moment.
2. :class:`Words`, :class:`Image`, :class:`Heir`: two images of a worker speak over a socket, one line of JSON for each
   word. ``handover.py`` decides on the reaction to a word.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import msgspec

from headrace.model.options import Kind
from headrace.worker.forking import child_process

# Names the descriptor through which a new image speaks; taken out of the environment before any other code runs.
VARIABLE = "HEADRACE_LINEAGE"


Word = list[Any]
"""``["claims"]``, ``["failed", text]``, ``["modules", path, ...]`` or ``["roll"]``; both ways also
``["size", kind, number]`` and ``["grow", number]``."""


class Words:
    """Lines of JSON over a socket that does not block for reading.

    Attributes:
        begun: what has come of a line that is not there yet.
    """

    def __init__(self, sock: socket.socket, begun: bytes = b"") -> None:
        self.sock = sock
        self.begun = begun

    def fileno(self) -> int:
        return self.sock.fileno()

    def say(self, *word: Any) -> None:
        """Whoever is gone need not hear it."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(word).encode() + b"\n")

    def offer(self, *word: Any) -> None:
        """The same to somebody who may not listen for long: without waiting, so that it may be lost."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(word).encode() + b"\n", socket.MSG_DONTWAIT)

    def hear(self) -> tuple[list[Word], bool]:
        """The words that have arrived, and whether more may come."""
        try:
            data = self.sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        *lines, self.begun = (self.begun + data).split(b"\n")
        return [json.loads(line) for line in lines], bool(data)

    def close(self) -> None:
        self.sock.close()


class Image(msgspec.Struct, frozen=True):
    """Another process that is an image, seen from the one that started it.

    Attributes:
        link: where it speaks; closed at our end it stops as at TERM.
    """

    pid: int
    link: Words

    def signal(self, number: int) -> None:
        """Only for one that was not reaped yet: its number cannot belong to a stranger."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)


class Launch(msgspec.Struct, frozen=True):
    """How this program was started, so that it can be started again with the code that is there then.

    Attributes:
        argv: the program and its arguments.
        environ: as it was before the application's modules could change it: a variable that one of them read from a
            file would else outlive that file.
        directory: as the shell named it. Where that is a symbolic link, a new image follows it to the new release.
        terminal: whether a terminal belongs to it, whose hang-up is no wish for a new image.
        immune: hang-ups were ignored when it was started (``nohup``).
    """

    argv: list[str]
    environ: dict[str, str]
    directory: str
    terminal: bool
    immune: bool

    @classmethod
    def taken(cls, environ: Mapping[str, str], orig_argv: list[str]) -> Self:
        """Of this process; to be called before the application is imported."""
        return cls(
            argv=_again(orig_argv),
            environ={name: value for name, value in environ.items() if name != VARIABLE},
            directory=_directory(environ),
            terminal=_has_terminal(),
            immune=signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
        )

    @property
    def hung_up(self) -> bool:
        """Whether the terminal that it had is gone."""
        return self.terminal and not _has_terminal()

    def start(self, *, first: bool) -> Image:
        """A new image, in an interpreter of its own. Call it in a process of one thread only.

        Raises:
            OSError: there can be no further process, or socket, now.
        """
        mine, theirs = socket.socketpair()
        # A stop that came between fork and exec would be lost: it waits until it can end the child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*child_process.HEARD, *child_process.UNHEARD))
        try:
            pid = os.fork()
            if not pid:
                self._exec(theirs, f"{theirs.fileno()}{':first' if first else ''}")
        except OSError:
            mine.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        return Image(pid, Words(mine))

    def _exec(self, link: socket.socket, name: str) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for number in child_process.STOPS:
                signal.signal(number, signal.SIG_DFL)
            # Whoever starts it may have blocked them for longer than this, as one that becomes an anchor has.
            child_process.let_in()
            os.chdir(self.directory)
            link.set_inheritable(True)
            os.execve(self.argv[0], self.argv, {**self.environ, VARIABLE: name})  # noqa: S606
        except BaseException as error:
            Words(link).say("failed", f"it could not be started: {error}")
            raise
        finally:
            os._exit(70)


def _again(orig_argv: list[str]) -> list[str]:
    # A program by its own first line: where it lies behind a link to the release, that names the release's interpreter.
    words = orig_argv[1:]
    with contextlib.suppress(OSError, IndexError):
        if os.access(words[0], os.X_OK) and Path(words[0]).read_bytes()[:2] == b"#!":
            return words
    return [sys.executable, *words]


def _directory(environ: Mapping[str, str]) -> str:
    real, named = str(Path.cwd()), environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if named and Path(named).samefile(real):
            return named
    return real


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Works(Protocol):
    """The image that a lineage belongs to, seen from there."""

    def retire(self) -> None:
        """Another image claims: finish what runs here."""
        ...

    def asked_to_stop(self) -> None: ...

    def resize(self, kind: Kind, size: int) -> None:
        """Run so many of a kind at once, as the image before this one did."""
        ...

    def grow(self, by: int) -> None:
        """Run so many more at once, or fewer."""
        ...


class Heir:
    """The lineage of an image that another process started, and watches: what ``Succession`` is to the first one.

    The end of that process is an orderly stop: whoever restarts the worker starts a whole one.

    Attributes:
        first: nothing worked before it.
        early: hang-ups that came before it could hear them.
    """

    next = float("inf")

    def __init__(self, link: Words, *, first: bool) -> None:
        self.link = link
        self.first = first
        self._claims = False
        self.early: Sequence[int] = ()

    def tick(self, now: float) -> None:
        """Nothing here is due at a time."""

    def join(self, selector: selectors.BaseSelector, works: Works) -> None:
        def heard() -> None:
            words, open_ = self.link.hear()
            for word in words:
                match word:
                    case ["size", ("process" | "fork" | "thread" | "async") as kind, int(size)]:
                        works.resize(kind, size)
                    case ["grow", int(by)]:
                        works.grow(by)
                    case _:
                        pass
            if not open_:
                selector.unregister(self.link)
                works.asked_to_stop()

        selector.register(self.link, selectors.EVENT_READ, heard)
        # Sizes were said at the start: nothing is forked yet, and so no runner in vain.
        heard()
        if self.early:
            self.hung_up()

    def links(self) -> list[socket.socket]:
        return [self.link.sock]

    def hung_up(self) -> None:
        # Somebody took this process for the worker.
        self.link.say("roll")

    def claims(self) -> None:
        self._claims = True
        self.link.say("claims")

    def failed(self, reason: str) -> bool:
        """Whether the image is to stop: it has not claimed, so the one before it goes on."""
        if not self._claims:
            self.link.say("failed", reason)
        return not self._claims

    def resized(self, kind: Kind, size: int) -> None:
        self.link.say("size", kind, size)

    def grow(self, by: int) -> None:
        self.link.say("grow", by)

    def stop(self, *, again: bool) -> None:
        """Whoever watches this image hears of its end, and of no more."""

    def reaped(self, pid: int, status: int) -> None:
        """A stranger that was left to this process."""


def heir_of(environ: MutableMapping[str, str]) -> Heir | None:
    """What the process that started this image left in ``environ``, taken out of it; None: nobody did."""
    number, _, first = environ.pop(VARIABLE, "").partition(":")
    if not number.isdecimal():
        return None
    try:
        sock = socket.socket(fileno=int(number))
    except OSError:
        return None
    sock.set_inheritable(False)
    return Heir(Words(sock), first=bool(first))


def application_files(modules: Iterable[Any]) -> list[str]:
    """Files of imported modules that are neither Python's nor installed: what somebody may be editing."""
    installed = {"site-packages", "dist-packages", "lib-dynload"}
    library = Path(os.__file__).parent
    found: set[str] = set()
    for module in modules:
        text = getattr(module, "__file__", None)
        if isinstance(text, str):
            path = Path(text)
            if not installed.intersection(path.parts) and library not in path.parents:
                found.add(str(path))
    return sorted(found)
