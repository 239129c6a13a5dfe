"""Rolling restarts: a new image is warmed up beside the present one, then takes over; and the watch over files.

:class:`Succession` has these duties:

1. on HUP (``asked``) start a new image: a fresh interpreter, so new code;
2. when that one claims, let the old one finish its running jobs, within ``shutdown_timeout``;
3. when it cannot (it fails, is killed, takes too long), report the reason and leave the old one as it is;
4. one start at a time: requests in the meantime get one more start, since the code may have changed again;
5. pass a stop on to every image, and a size to the one that works: a roll changes the code, not the size.

It owns the images that this process started. Its owner is the process that others watch: a supervisor, which then is
the first image itself, or the anchor that it becomes when its own jobs have ended. To the supervisor of the first image
it is the lineage; those of later images have an :class:`headrace.worker.reload.image_launch.Heir` instead.

:class:`Reload` is ``headrace worker --reload``: new code replaces the old as soon as it is saved. It asks the file
system for the times of all files again and again, which needs no library and works on every mount; its pause grows with
the cost, so that it never takes more than a twentieth of a core.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import msgspec

from headrace.model.options import Kind
from headrace.worker.forking.standard_streams import log
from headrace.worker.reload.image_launch import Image, Launch, Word, Works

# An image that was given up hands its jobs back; one that has not ended so many seconds later is killed.
PATIENCE = 5.0
# The same for one that a second signal ends: longer than a living one takes to hand back, whose server may be away.
LAST_PATIENCE = 60.0


class Succession(msgspec.Struct):
    """The images of one worker, but for the first, which is the process itself.

    Attributes:
        launch: how to start one.
        limit: seconds that a new image may take until it claims.
        early: hang-ups that came before it could hear them.
        selector: of the loop, for the links of images; its data are called when these can be read.
        stop_wanted: called when the terminal is gone, and the worker should stop.
        retire: makes the process's own image drain; None: it is no image.
        heard: called with the modules of an image that has imported them.
        current: the image that works; None: the process itself, or nobody.
        warming: the one that is to take over.
        retiring: those that finish their jobs, by pid.
        sizes: how many jobs of a kind run at once, where somebody wished another number while it worked.
        code: how the last one that worked ended.
        over: the image that worked has ended by itself.
        again: one more is to follow the one that warms up.
        stopping: the worker is to end.
        reason: why the one that warms up cannot work.
        given_up: when those are killed that were told to end at once, by pid (monotonic seconds).
    """

    launch: Launch
    limit: float
    early: Sequence[int] = ()
    selector: selectors.BaseSelector = msgspec.field(default_factory=selectors.DefaultSelector)
    stop_wanted: Callable[[], None] = lambda: None
    retire: Callable[[], None] | None = None
    heard: Callable[[list[str]], None] = lambda _: None
    current: Image | None = None
    warming: Image | None = None
    retiring: dict[int, Image] = msgspec.field(default_factory=dict[int, Image])
    sizes: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    code: int = 0
    over: bool = False
    again: bool = False
    stopping: bool = False
    reason: str = ""
    given_up: dict[int, float] = msgspec.field(default_factory=dict[int, float])
    _until: float = float("inf")

    @property
    def images(self) -> list[Image]:
        """All that live or were not reaped yet."""
        return [image for image in (self.current, self.warming) if image] + list(self.retiring.values())

    # -- the first image --------------------------------------------------------------------------------------------

    def join(self, selector: selectors.BaseSelector, works: Works) -> None:
        """Take part in the supervisor's loop."""
        self.selector = selector
        self.stop_wanted = works.asked_to_stop
        self.retire = works.retire
        if self.early:
            self.hung_up()

    def links(self) -> list[socket.socket]:
        """What its children must close: a link that one of them holds does not end with its image."""
        return [image.link.sock for image in self.images]

    def claims(self) -> None:
        """It serves its queues, and its runners have begun. Nobody was there before it."""

    def failed(self, _reason: str) -> bool:
        """Whether it is to stop, since one of its runners cannot begin: no other image would work instead."""
        return False

    # -- new images -------------------------------------------------------------------------------------------------

    def hung_up(self) -> None:
        """HUP came."""
        if not self.launch.hung_up:
            self.asked()
        elif not self.launch.immune:
            self.stop_wanted()

    def asked(self) -> None:
        """Somebody wants the code that is there now."""
        if self.stopping:
            return
        if self.warming is not None:
            if not self.again:
                log.info("a reload is in progress; another one follows it", code="reload.waiting")
            self.again = True
            return
        self.again, self.reason = False, ""
        try:
            self.warming = self.launch.start(first=self.current is None and self.retire is None)
        except OSError as error:
            log.error("the new process could not be started, so nothing is replaced: %s", error, code="reload.failed")
            return
        self.grant()
        self._tell_sizes(self.warming)
        log.info("reloading: new process %d is warming up", self.warming.pid, code="reload.begun")
        self.adopt(self.warming)

    def grant(self) -> None:
        """The image that warms up has its time from now."""
        self._until = time.monotonic() + self.limit

    def supersede(self) -> None:
        """The code has changed again: what warms up has read the old one."""
        if self.warming is not None:
            self._give_up(self.warming)
            self.retiring[self.warming.pid] = self.warming
            self.warming = None
        self.asked()

    def _give_up(self, image: Image, patience: float = PATIENCE) -> None:
        """End an image that claims already, perhaps: its jobs must not be charged for that."""
        image.signal(signal.SIGQUIT)
        self.given_up.setdefault(image.pid, time.monotonic() + patience)

    def adopt(self, image: Image) -> None:
        """Listen to an image."""
        self.selector.register(image.link, selectors.EVENT_READ, lambda: self._on_words(image))

    def _unheard(self, image: Image) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(image.link)

    @property
    def next(self) -> float:
        """When :meth:`tick` has something to do (monotonic seconds)."""
        return min(self._until if self.warming is not None else float("inf"), *self.given_up.values(), float("inf"))

    def tick(self, now: float) -> None:
        if self.warming is not None and now >= self._until:
            self._until = float("inf")
            self.reason = self.reason or f"it did not claim within {self.limit:g} s"
            self._give_up(self.warming)
        for image in self.images:
            if now >= self.given_up.get(image.pid, float("inf")):
                del self.given_up[image.pid]
                image.signal(signal.SIGKILL)

    def _on_words(self, image: Image) -> None:
        while True:
            words, open_ = image.link.hear()
            for word in words:
                self._on_word(image, word)
            if not open_:
                self._unheard(image)
            if not (words and open_):
                return

    def _on_word(self, image: Image, word: Word) -> None:
        match word:
            case ["claims"] if image is self.warming and not self.reason:
                self._hand_over(image)
            case ["failed", str(text)] if image is self.warming:
                self.reason = text
            case ["modules", *files]:
                self.heard(files)
            case ["roll"]:
                self.asked()
            case ["size", ("process" | "fork" | "thread" | "async") as kind, int(size)]:
                self.resized(kind, size, image)
            case ["grow", int(by)] if image.pid in self.retiring:
                self.grow(by)
            case _:
                pass

    def resized(self, kind: Kind, size: int, by: Image | None = None) -> None:
        """An image (None: the process itself) was told to run so many at once: those that came after it do the same."""
        self.sizes[kind] = size
        if by is not None and by is self.warming:
            return
        for image in (self.current, self.warming):
            if image is not None and image is not by:
                image.link.offer("size", kind, size)

    def grow(self, by: int) -> None:
        """So many more were wished at once, or fewer: of the image that works, or of the only one there is."""
        image = self.current or self.warming
        if image is not None:
            image.link.offer("grow", by)

    def _tell_sizes(self, image: Image) -> None:
        for kind, size in self.sizes.items():
            image.link.offer("size", kind, size)

    def _hand_over(self, image: Image) -> None:
        old, self.current, self.warming = self.current, image, None
        self.over, self.code = False, 0
        if old is not None:
            self.retiring[old.pid] = old
        if self.stopping:
            # Both were told.
            return
        # While it warmed up it may not have listened, and some may have found no room.
        self._tell_sizes(image)
        if old is not None:
            log.info("new process %d is serving; old process %d is draining", image.pid, old.pid, code="reload.done")
            old.signal(signal.SIGTERM)
        elif self.retire is not None:
            log.info(
                "new process %d is serving; old process %d is draining, then only supervises",
                image.pid,
                os.getpid(),
                code="reload.done",
            )
            self.retire()
            self.retire = None
        if self.again:
            self.asked()

    def reaped(self, pid: int, status: int) -> None:
        """A child ended; one that is not ours does not matter."""
        image = next((image for image in self.images if image.pid == pid), None)
        if image is None:
            return
        self.given_up.pop(pid, None)
        # Its last words count: they may say why it ended.
        self._on_words(image)
        self._unheard(image)
        image.link.close()
        code = os.waitstatus_to_exitcode(status)
        if image is self.warming:
            self.warming = None
            self._failed(code)
        elif image is self.current:
            self.current = None
            self.over = True
            self.code = code if code >= 0 else 128 - code
            if code < 0 and not self.stopping:
                log.error("process %d, which was serving, was ended by signal %d", pid, -code, code="reload.died")
        else:
            del self.retiring[pid]

    def _failed(self, code: int) -> None:
        if self.stopping:
            return
        if not self.over:
            # Matters where nothing works yet.
            self.code = code if code >= 0 else 128 - code
        how = self.reason or (f"it was ended by signal {-code}" if code < 0 else f"it left with exit code {code}")
        log.error("the new process did not become ready, so nothing is replaced: %s", how, code="reload.failed")
        if self.again:
            self.asked()

    def stop(self, *, again: bool) -> None:
        """The worker is to end: as at the first TERM, or ``again``, when an image that does not move is killed."""
        self.stopping = True
        for image in self.images:
            if again:
                self._give_up(image, PATIENCE if image is self.warming else LAST_PATIENCE)
            elif image.pid not in self.retiring:
                image.signal(signal.SIGTERM)


PAUSE = 0.25
# Editors write a file in several steps, and people save several files: what changed must rest for this long.
REST = 0.1
SHARE = 20
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

Stamp = tuple[int, int]


class Sources:
    """The files of an application, and when they changed.

    Attributes:
        files: watched wherever they are; those below ``directory`` that end in ``.py`` are watched as well, since a
            module that could not be imported yet is in nobody's list.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files: set[str] = set()
        self.cost = 0.0
        self._seen = self._scan()

    def add(self, files: Iterable[str]) -> None:
        """Watch these too, from what they are now."""
        new = set(files) - self.files
        self.files |= new
        self._seen |= {path: stamp for path in new - self._seen.keys() if (stamp := _stamp(path))}

    def changes(self) -> list[str]:
        """Files that changed, came or went since this was last asked."""
        now, old = self._scan(), self._seen
        self._seen = now
        return sorted(path for path in now.keys() | old.keys() if now.get(path) != old.get(path))

    def _scan(self) -> dict[str, Stamp]:
        began = time.perf_counter()
        found = {path: stamp for path in self.files if (stamp := _stamp(path))}
        found.update(_below(self.directory))
        self.cost = time.perf_counter() - began
        return found


class Reload:
    """What the anchor of a worker in development does beside its duties.

    Attributes:
        final: exit codes of an image that no change of the code would help.
    """

    def __init__(self, succession: Succession, final: Container[int] = ()) -> None:
        self.final = final
        self._succession = succession
        self._sources = Sources(succession.launch.directory)
        succession.heard = self._sources.add
        self._changed: set[str] = set()
        self.next = 0.0
        succession.asked()

    @property
    def waits(self) -> bool:
        """Whether to go on although no image lives: the next change may bring one."""
        state = self._succession
        return not (state.stopping or state.over or state.code in self.final)

    def tick(self, now: float) -> None:
        """Look for changes, and start an image when the last of them has rested."""
        if now < self.next:
            return
        changes = self._sources.changes()
        self._changed.update(changes)
        if self._changed and not changes:
            log.info("%s changed", _few(sorted(self._changed), self._sources.directory), code="reload.changed")
            self._changed.clear()
            self._succession.supersede()
        pause = REST if self._changed else PAUSE
        self.next = now + max(pause, SHARE * self._sources.cost)


def _stamp(path: str) -> Stamp | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 - thousands of these four times a second
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _below(directory: str) -> Iterator[tuple[str, Stamp]]:
    waiting = [directory]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    # An environment of installed packages, whatever its name.
                    if not os.path.exists(f"{entry.path}/pyvenv.cfg"):  # noqa: PTH110
                        waiting.append(entry.path)
                elif entry.name.endswith(".py") and (stamp := _stamp(entry.path)):
                    yield entry.path, stamp


def _few(files: list[str], directory: str) -> str:
    names = [os.path.relpath(file, directory) if file.startswith(directory) else file for file in files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
