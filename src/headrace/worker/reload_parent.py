"""``headrace worker --reload``: a parent without application that replaces its worker by one with new code.

It starts a worker by the same command line, in a new interpreter; replaces a worker when the next one is ready,
forwards signals and sizes, and ends as it ends. One thread, no store connection. Of the application's files it reads
the times again and again, which needs no library and works on every mount.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Literal, Self

import msgspec

from headrace.model.options import Kind
from headrace.worker import child_process
from headrace.worker.channel import Channel, Closed, Garbled
from headrace.worker.child_process import Terminal, reap
from headrace.worker.messages import FromWorker, Resize, Serves, Size, StartFailed
from headrace.worker.standard_streams import STREAMS, log

# Seconds between two scans, and for how long changes must rest: editors write a file in several steps.
PAUSE, REST = 0.25, 0.1
# A scan takes one part in this many of a core at most.
SHARE = 20
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceFiles:
    """Each ``.py`` below a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen = self._scan()
        self._changed = set[str]()
        self.next = 0.0

    def changes(self) -> list[str]:
        now, old = self._scan(), self._seen
        self._seen = now
        return sorted(path for path in now.keys() | old.keys() if now.get(path) != old.get(path))

    def settled_changes(self, now: float) -> str:
        if now < self.next:
            return ""
        began = time.perf_counter()
        changes = self.changes()
        names = [os.path.relpath(path, self._directory) for path in sorted(self._changed)]
        self._changed = {*self._changed, *changes} if changes else set[str]()
        self.next = now + max(REST if self._changed else PAUSE, SHARE * (time.perf_counter() - began))
        return "" if changes else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _scan(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for place, directories, files in os.walk(self._directory):
            directories[:] = [name for name in directories if not _is_skipped(place, name)]
            for path in (f"{place}/{name}" for name in files if name.endswith(".py")):
                with contextlib.suppress(OSError):
                    facts = os.stat(path)  # noqa: PTH116 - thousands of these four times a second
                    found[path] = facts.st_mtime_ns, facts.st_size
        return found


def _is_skipped(place: str, name: str) -> bool:
    # The last one is an environment of installed packages, whatever its name.
    return name.startswith(".") or name in _SKIPPED or Path(place, name, "pyvenv.cfg").exists()


# Names the descriptor of a worker's link and its health file; taken out of the environment before other code runs.
VARIABLE = "HEADRACE_PARENT"
# A worker that ends at once returns its jobs, to a server that may be away. It is killed this many seconds later.
PATIENCE = 30.0
SAME_SIGNAL = 1.0
NEVER = float("inf")


class ReloadedWorker(msgspec.Struct, eq=False):
    """A worker of this parent; ``due``: when it is given up (while it starts) or killed (monotonic seconds)."""

    process: subprocess.Popen[bytes]
    channel: Channel[FromWorker]
    state: Literal["starting", "serving", "leaving"] = "starting"
    due: float = NEVER

    def send(self, message: Size | Resize) -> None:
        """Send without waiting: a worker may import its application for minutes."""
        with contextlib.suppress(Closed):
            self.channel.send_or_keep(message)

    def signal(self, number: int) -> None:
        """Only for a child that was not reaped yet: its number cannot belong to another process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.process.pid, number)


class WorkerCommand(msgspec.Struct, frozen=True):
    """How this program was started: its words, its environment, and its directory as the shell named it. Where the
    directory or the program lies behind a link to a release, a new worker follows that link.
    """

    argv: list[str]
    environ: dict[str, str]
    directory: str

    @classmethod
    def of_process(cls, environ: Mapping[str, str], orig_argv: list[str]) -> Self:
        words = [sys.executable, *orig_argv[1:]]
        # A program is started by its own first line, which names the interpreter of its release.
        with contextlib.suppress(OSError, IndexError):
            if os.access(words[1], os.X_OK) and Path(words[1]).read_bytes()[:2] == b"#!":
                del words[0]
        directory = str(Path.cwd())
        with contextlib.suppress(OSError, KeyError):
            if Path(environ["PWD"]).samefile(directory):
                directory = environ["PWD"]
        return cls(words, {name: value for name, value in environ.items() if name != VARIABLE}, directory)

    def start(self, health: str, *, first: bool) -> ReloadedWorker:
        mine, theirs = socket.socketpair()
        # Signals that come before the worker can handle them wait until then.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*child_process.HEARD, *child_process.UNHEARD))
        try:
            environ = {**self.environ, VARIABLE: f"{theirs.fileno()}:{health}:{int(first)}"}
            # A group of its own: Ctrl-C in a terminal reaches the parent alone, which forwards it once.
            process = subprocess.Popen(
                self.argv, env=environ, cwd=self.directory, pass_fds=[theirs.fileno()], process_group=0
            )
        except OSError:
            mine.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        return ReloadedWorker(process, Channel(mine, FromWorker))


class ReloadParent:
    """Runs in the main thread of a process that has no other, until its last worker has ended.

    Args:
        limit: seconds that a new worker may take to become ready.
        sources: the watched files (``--reload=files``); None: only HUP asks for new code.
        final: exit codes of a worker that no change of the code would help.
    """

    def __init__(
        self, command: WorkerCommand, limit: float, sources: SourceFiles | None, final: Container[int]
    ) -> None:
        self._command, self._limit, self._sources, self._final = command, limit, sources, final
        self._children = dict[int, ReloadedWorker]()
        self._sizes = dict[Kind, int]()
        self._terminal = Terminal.of_process()
        self._selector = selectors.DefaultSelector()
        self._health = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._code = 1
        # The serving worker has ended; the parent was told to stop; one more start is to follow the present one.
        self._over = self._stopping = self._again = False
        self._last_signal = 0.0

    def run(self) -> int:
        STREAMS.install()
        self._selector.register(child_process.listen(child_process.HEARD), selectors.EVENT_READ, self._on_signals)
        child_process.disregard()
        child_process.let_in()
        self._reload()
        while self._children or self._waits_for_change:
            scan = NEVER if self._sources is None else self._sources.next
            due = min(*(child.due for child in self._children.values()), scan, STREAMS.next)
            for key, _ in self._selector.select(None if due == NEVER else max(0.0, due - time.monotonic())):
                key.data()
            self._tick(time.monotonic())
        STREAMS.drain()
        return self._code

    @property
    def _waits_for_change(self) -> bool:
        return self._sources is not None and not (self._stopping or self._over or self._code in self._final)

    def _in(self, state: str) -> ReloadedWorker | None:
        return next((child for child in self._children.values() if child.state == state), None)

    def _tick(self, now: float) -> None:
        if now >= STREAMS.next:
            STREAMS.pass_on()
        for child in self._children.values():
            if now >= child.due and child.state == "starting":
                self._failed(child, f"it was not ready within {self._limit:g} s")
                self._give_up(child)
            elif now >= child.due:
                child.due = NEVER
                child.signal(signal.SIGKILL)
        if self._sources is not None and (names := self._sources.settled_changes(now)):
            log.info("%s changed", names, code="reload.changed")
            # A worker that starts now has read the old code.
            if starting := self._in("starting"):
                self._give_up(starting)
            self._reload()

    def _on_signals(self) -> None:
        for number, times in child_process.taken_signals().items():
            if number == signal.SIGCHLD:
                for pid, status, _ in reap():
                    self._ended(pid, status)
            elif number == signal.SIGHUP and not self._terminal.gone:
                self._reload()
            elif number in child_process.RESIZE:
                if target := self._in("serving") or self._in("starting"):
                    target.send(Resize(child_process.RESIZE[signal.Signals(number)] * times))
            elif number in child_process.STOPS or (number == signal.SIGHUP and not self._terminal.ignored):
                self._stop(at_once=number == signal.SIGQUIT)

    def _reload(self) -> None:
        before, self._again = self._again, self._in("starting") is not None
        if self._again and not before:
            log.info("a reload is in progress; another one follows it", code="reload.waiting")
        if self._stopping or self._again:
            return
        serving = self._in("serving")
        try:
            child = self._command.start(self._health, first=serving is None)
        except OSError as error:
            log.error("no process could be started, so nothing is replaced: %s", error, code="reload.failed")
            return
        # A first one may wait for its server for ever, as without a parent.
        child.due = NEVER if serving is None else time.monotonic() + self._limit
        self._children[child.process.pid] = child
        self._selector.register(child.channel, selectors.EVENT_READ, lambda: self._on_messages(child))
        self._send_sizes(child)
        if serving is not None:
            log.info("reloading: new process %d is starting", child.process.pid, code="reload.begun")

    def _send_sizes(self, child: ReloadedWorker) -> None:
        for kind, size in self._sizes.items():
            child.send(Size(kind, size))

    def _on_messages(self, child: ReloadedWorker) -> None:
        # A signal of the same turn told that it has ended, and its messages were read then.
        if child.channel.closed:
            return
        try:
            messages = child.channel.receive(wait=False)
        except Closed:
            self._selector.unregister(child.channel)
            child.channel.close()
            return
        except Garbled:
            messages = []
        for message in messages:
            self._on_message(child, message)
        if child.channel.garbled:
            # Its end stays open, since a worker that loses its parent stops.
            self._selector.unregister(child.channel)
            pid = child.process.pid
            log.error("process %d sent what is not a message; it is heard no more", pid, code="reload.garbled")
            if child.state == "starting":
                self._failed(child, "it cannot say when it is")
                self._give_up(child)

    def _on_message(self, child: ReloadedWorker, message: FromWorker) -> None:
        match message:
            case Serves() if child.state == "starting":
                self._replace(child)
            case StartFailed(text) if child.state == "starting":
                self._failed(child, text)
            case Size(kind, size):
                self._sizes[kind] = size
                for other in self._children.values():
                    if other is not child and other.state != "leaving":
                        other.send(message)
            case _:
                pass

    def _replace(self, child: ReloadedWorker) -> None:
        old, child.state, child.due = self._in("serving"), "serving", NEVER
        if old is not None:
            old.state = "leaving"
        if self._stopping:
            return
        # Sizes that found no room while it started.
        self._send_sizes(child)
        if old is not None:
            pids = child.process.pid, old.process.pid
            log.info("new process %d is serving; old process %d is draining", *pids, code="reload.done")
            old.signal(signal.SIGTERM)
        if self._again:
            self._reload()

    def _failed(self, child: ReloadedWorker, reason: str) -> None:
        child.state, child.due = "leaving", NEVER
        if not self._stopping:
            what = "the worker" if self._in("serving") is None else "nothing is replaced: the new worker"
            log.error("%s did not become ready: %s", what, reason, code="reload.failed")

    def _give_up(self, child: ReloadedWorker) -> None:
        child.state, child.due = "leaving", min(child.due, time.monotonic() + PATIENCE)
        child.signal(signal.SIGQUIT)

    def _ended(self, pid: int, status: int) -> None:
        child = self._children.get(pid)
        if child is None:
            return
        while not (child.channel.closed or child.channel.garbled):
            self._on_messages(child)
        child.channel.close()
        del self._children[pid]
        child.process.returncode = os.waitstatus_to_exitcode(status)
        code = child.process.returncode if child.process.returncode >= 0 else 128 - child.process.returncode
        how = child_process.how(status)
        if child.state == "serving":
            if code > 128 and not self._stopping:
                log.error("process %d, which was serving, was ended by %s", pid, how, code="reload.died")
            self._code, self._over = code, True
            self._stop()
        elif child.state == "starting":
            self._failed(child, f"it left with {how}")
        if self._in("serving") is None and not self._over:
            self._code = code
        if self._again:
            self._reload()

    def _stop(self, *, at_once: bool = False) -> None:
        """Stop all workers: as at a first TERM or INT; ``at_once`` or a second later again: as at QUIT."""
        now, again = time.monotonic(), at_once or self._stopping
        if again and not at_once and now - self._last_signal < SAME_SIGNAL:
            return
        self._last_signal, self._stopping = now, True
        for child in self._children.values():
            if again:
                self._give_up(child)
            elif child.state != "leaving":
                child.signal(signal.SIGTERM)
