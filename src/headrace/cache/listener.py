"""The agent that keeps local copies true: one thread, its link to the server, and the shelf that both guard.

Duties:

1. Open a link when the cache is first used; again, by itself, whenever one is lost, with a back-off.
2. Drop what the server announces as changed, and what has come to its end, as soon as it hears of it.
3. On any fault, empty the shelf before anything else, and let nothing in that was read over the old link.
4. Notice a server that fell silent, where a network lies between.
5. Begin anew in a forked child: no copies, no thread, no socket of the parent's.

A link is its own epoch: what is read over one is kept only while that one stands. Each read is a token: what it brought
is kept only if nothing that concerns the name happened since it left.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.cache.computing import ChangeWatchers
from headrace.cache.local_store import Bounds, Shelf
from headrace.cache.tracking_link import Announced, Flight, TrackingLink, Untracked
from headrace.clock import monotonic
from headrace.protocol.keys import Keys
from headrace.store.connection import Bell, Lost, pause_before
from headrace.store.connection_pool import in_forks
from headrace.store.url import Target

log = logging.getLogger("headrace.cache")

# Connecting and the self-test together have this long (seconds) before a first reader goes on without.
FIRST = 1.0
# Reads of a forked child before it gets a thread and a connection: many children end sooner.
CHILDHOOD = 8
# Between tries where the server is there, but does not announce changes.
RELUCTANT = 30.0
# Where it takes no writes, as a replica that is promoted soon, or a master whose replicas are on their way.
PASSING = 1.0


class Listener:
    """See the module.

    Attributes:
        shelf: local copies. Readers look into its dictionaries; everything else happens under the lock.
        epochs: links so far.
        announced: names that the server said were changed.
        unreachable: the last try to reach the server failed, or a read was not answered in time.
        watchers: told when a name may have changed.
        fault: why there is no link, in words; empty while there is one.
    """

    def __init__(
        self, target: Callable[[], Target], keys: Keys, bounds: Bounds, *, timeout: float, silence: float
    ) -> None:
        self.shelf, self.watchers = Shelf(bounds), ChangeWatchers()
        self._target, self._keys = target, keys
        self._timeout, self._silence = timeout, silence
        self._childhood = 0
        self._begin()
        in_forks(self)

    def _begin(self) -> None:
        self.epochs = self.announced = 0
        self.unreachable = False
        self.fault = ""
        self._lock = threading.Lock()
        self._link: TrackingLink | None = None
        self._pending: dict[str, Flight] = {}
        self._thread: threading.Thread | None = None
        self._bell: Bell | None = None
        self._closing = False
        self._planned = float("inf")
        self._first: list[Callable[[], object]] | None = []

    @property
    def armed(self) -> bool:
        """Whether changes are heard of, so that copies may be kept."""
        return self._link is not None

    def start(self, landed: Callable[[], object]) -> bool:
        """See to it that a link is sought; True if ``landed`` will be called when the first try has ended."""
        with self._lock:
            if self._childhood > 0:
                self._childhood -= 1
                return False
            if self._thread is None:
                self._closing = False
                try:
                    bell = Bell()
                    self._thread = bell.start(partial(self._run, bell), "headrace-cache")
                    self._bell = bell
                except RuntimeError as error:  # a later read tries again
                    self.fault = str(error)
                    return False
            if self._first is not None:
                self._first.append(landed)
            return self._first is not None

    def depart(self, name: str, landed: Callable[[], object]) -> Flight | None:
        """Send a read whose reply may be kept; None without a link. ``landed`` is called by the listening thread."""
        if sys.is_finalizing():
            # No thread is left that would hear the reply.
            return None
        with self._lock:
            link = self._link
            if link is None:
                return None
            flight = Flight(name, link, landed)
            self._pending[name] = flight
            try:
                link.read(flight)
            except Lost as lost:
                self._disarm(str(lost))
            return flight

    def keep(self, flight: Flight, value: Any, size: int, end: float) -> None:
        """Keep what a flight brought, unless something happened to the name, or the link, since it left."""
        with self._lock:
            if self._pending.get(flight.name) is flight and self._link is flight.link:
                self.shelf.put(flight.name, value, size, end)
                self._plan(end)

    def keep_absent(self, flight: Flight, end: float) -> None:
        """Keep the knowledge that there is no value, on the same terms."""
        with self._lock:
            if self._pending.get(flight.name) is flight and self._link is flight.link:
                self.shelf.put_absent(flight.name, end)
                self._plan(end)

    def end(self, flight: Flight) -> None:
        """The flight is over, whatever it brought: no token of it stays."""
        with self._lock:
            if self._pending.get(flight.name) is flight:
                del self._pending[flight.name]

    def forget(self, names: Sequence[str]) -> None:
        """Drop copies of what this process has changed, and whatever is being read of them."""
        with self._lock:
            for name in names:
                self._pending.pop(name, None)
                self.shelf.drop(name)

    def forget_all(self) -> None:
        """Drop all copies; they are read again when they are asked for."""
        with self._lock:
            self._pending.clear()
            self.shelf.clear()

    def suspect(self, flight: Flight) -> None:
        """A reply is overdue: give the link up that owes it, and let nobody wait as long again before there is one."""
        with self._lock:
            if self._link is flight.link:
                self.unreachable = True
                self._disarm("the server did not answer a read in time")

    def close(self) -> None:
        """End the thread, close the connections, keep nothing. It starts again when it is used again."""
        with self._lock:
            thread, bell, self._closing = self._thread, self._bell, True
            if bell is not None:
                bell.ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * self._timeout)

    def begin_anew(self) -> None:
        """Forget the parent's thread, close our copies of its sockets, start empty."""
        link, bell = self._link, self._bell
        self._begin()
        self.watchers.begin_anew()
        self._childhood = CHILDHOOD
        self.shelf.clear()
        with contextlib.suppress(Exception):
            for one in (link, bell):
                if one is not None:
                    one.close()

    def _plan(self, end: float) -> None:
        if end < self._planned and self._bell is not None:
            self._bell.ring()

    def _disarm(self, why: str) -> None:
        """Serve nothing any more that was read over this link. Holds the lock."""
        link, self._link, self.fault = self._link, None, why
        self.shelf.clear()
        self._pending.clear()
        if link is not None:
            while link.flights:
                link.flights.popleft().fail()
            self.watchers.tell_all()
        if self._bell is not None:
            self._bell.ring()

    def _run(self, bell: Bell) -> None:
        failures = 0
        while not self._closing:
            pause, began = 0.0, monotonic()
            try:
                self._live(TrackingLink(self._target(), self._timeout, self._keys), bell)
            except Lost as lost:
                # At once, unless links do not last: then somebody ends them on purpose.
                failures = 0 if monotonic() - began > 1.0 else failures + 1
                pause = pause_before(failures - 1, random.random()) if failures > 1 else 0.0
                log.info("the cache lost its connection and is empty: %s", lost)
            except Untracked as error:
                pause = (PASSING if error.passes else RELUCTANT) * (0.5 + 0.5 * random.random())
                if self.fault != str(error):
                    log.warning("the cache keeps no local copies: %s; it tries again by itself", error)
                self._rest(str(error), unreachable=False)
            except Exception as error:  # noqa: BLE001 - whatever stands in the way, the next try may succeed
                failures += 1
                # Readers go without a value meanwhile, so no long pauses.
                pause = min(pause_before(failures, random.random()), 0.5)
                self._rest(f"the server cannot be reached: {error}", unreachable=True)
            if pause and not self._closing:
                bell.wait((), pause)
        with self._lock:
            self._disarm("closed")
            self._thread = self._bell = None
            bell.close()
        self._verdict()
        self._first = []

    def _rest(self, why: str, unreachable: bool) -> None:
        self.unreachable, self.fault = unreachable, why
        self._verdict()

    def _verdict(self) -> None:
        with self._lock:
            waiting, self._first = self._first or [], None
        for landed in waiting:
            landed()

    def _live(self, link: TrackingLink, bell: Bell) -> None:
        """Serve one link until it is lost or we close."""
        try:
            with self._lock:
                self._link = link
                self.fault = ""
                self.unreachable = False
                self.epochs += 1
            self._verdict()
            while not self._closing:
                spoke = bell.wait([link.wire], self._until(link))
                with self._lock:
                    if self._link is not link:
                        raise Lost(self.fault)
                    if spoke:
                        link.listen(self._hear)
                    self.shelf.expire(monotonic())
        except Lost as lost:
            with self._lock:
                if self._link is link:
                    self._disarm(str(lost))
            raise
        finally:
            with self._lock:
                if self._link is link:
                    self._disarm("the listener ended")
            link.close()

    def _hear(self, announced: Announced) -> None:
        """Drop what was announced as changed; None says: everything. Called in the order of the stream."""
        if announced is None:
            for name in list(self._pending):
                self._overtake(name)
            self.shelf.clear()
            self.watchers.tell_all()
            return
        self.announced += len(announced)
        for name in announced:
            self._overtake(name)
            self.shelf.drop(name)
        self.watchers.tell(announced)

    def _overtake(self, name: str) -> None:
        flight = self._pending.get(name)
        # A reply that comes after the announcement was read after the change: our own write, mostly.
        if flight is not None and flight.replies:
            del self._pending[name]

    def _until(self, link: TrackingLink) -> float | None:
        """Seconds until there is something to do unasked: a copy ends, or the server has been silent for too long."""
        with self._lock:
            now, end = monotonic(), self.shelf.next_end()
            times = [] if end is None else [end]
            if link.may_fall_silent and (len(self.shelf) or link.flights):
                times.append(link.look(now, self._silence / 2))
            self._planned = min(times, default=float("inf"))
            return None if not times else self._planned - now
