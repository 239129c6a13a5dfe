"""Which node of a cluster has a slot: one map for all connections of a process to that cluster.

1. A MOVED corrects one entry. A node that cannot be reached, or says that it is down, makes its entry doubtful.
2. Where the node is not known, a random node is asked: for the whole map, by one caller at a time and at most once in
   five seconds; between these for the one slot, which costs the cluster as little as a read.
3. The seeds are asked for ever, as they were written: addresses in a map die.

Nothing here connects: the caller passes the way to ask one node. Nor is a node ever asked because of a time-out alone.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from redis import exceptions as driver
from redis.crc import key_slot

from headrace.clock import monotonic

Place: TypeAlias = tuple[str, int]
Ask: TypeAlias = Callable[[Place, Sequence[str]], Any]

MAP_PAUSE = 5.0  # the whole map is asked for at most once in this many seconds, or up to half as many more
FOLLOW_PAUSE = 0.1  # two nodes that name each other are followed once in this many seconds
# What a node answers that may have lost the slot without knowing who has it.
_DOUBTFUL = ("CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY")


class SlotMap:
    """The map of one cluster. ``asked``: how often the whole map was asked for."""

    def __init__(self, seeds: Sequence[Place], *, tls: bool) -> None:
        self.asked = 0
        self._seeds, self._tls = tuple(seeds), tls
        self._nodes: frozenset[Place] = frozenset()
        # By address: the name that a node announces, for which its certificate is.
        self._names: dict[Place, str] = {}
        self._places: dict[int, Place] = {}
        self._doubted: Place | None = None
        self._ask_at = self._follow_at = 0.0
        self._asking = threading.Lock()

    def known(self, tag: str) -> Place | None:
        return self._places.get(key_slot(tag.encode()))

    def find(self, tag: str, ask: Ask, timeout: float) -> Place:
        """The node of these keys, as a node says. Raises RedisError, OSError: none answered, or none has the slot."""
        slot, end = key_slot(tag.encode()), monotonic() + timeout
        whole = monotonic() >= self._ask_at and self._asking.acquire(blocking=False)
        error: Exception = driver.ConnectionError("no node of the cluster answered in time")
        try:
            for place in self._candidates():
                if monotonic() >= end:
                    break
                try:
                    if whole:
                        self._read(ask(place, ("CLUSTER", "SLOTS")), place, slot)
                    else:
                        ask(place, ("EXISTS", f"{tag}void"))
                        self._places[slot] = place
                except driver.MovedError as moved:
                    self._places[slot] = self._new_place(moved, place)
                except driver.AskError:
                    self._places[slot] = place  # it has the slot, which is about to move
                except (driver.RedisError, OSError) as failed:
                    # A node that is up and knows of no owner says more than others that are away.
                    error = error if isinstance(error, driver.ClusterDownError) else failed
                    continue
                if found := self._places.get(slot):
                    return found
                error = driver.ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")
        finally:
            if whole:
                self._ask_at = monotonic() + MAP_PAUSE * random.uniform(1.0, 1.5)
                self._asking.release()
        raise error

    def forget_place(self, tag: str) -> None:
        if (place := self._places.pop(key_slot(tag.encode()), None)) is not None:
            self._doubted = place

    def learn(self, error: Exception, tag: str) -> bool:
        """Take in what a node's refusal says; whether the call may go out again at once, to another node."""
        if not isinstance(error, driver.MovedError):
            # By class too: the driver takes the code that it knows off the text.
            doubtful = (driver.ClusterDownError, driver.BusyLoadingError, driver.MasterDownError, driver.ReadOnlyError)
            if isinstance(error, doubtful) or str(error).startswith(_DOUBTFUL):
                self.forget_place(tag)
            return False
        slot = key_slot(tag.encode())
        before, now = self._places.get(slot), monotonic()
        new = self._new_place(error, before or self._seeds[0])
        if new == before:
            return True  # another connection learned it first
        self._places[slot] = new
        follow, self._follow_at = now >= self._follow_at, now + FOLLOW_PAUSE
        return follow

    def _candidates(self) -> list[Place]:
        found = [*self._nodes.union(self._seeds)]
        random.shuffle(found)
        return sorted(found, key=lambda place: place == self._doubted)

    def _read(self, slots: Any, asked: Place, wanted: int) -> None:
        self.asked += 1
        nodes: set[Place] = set()
        self._places.pop(wanted, None)
        for first, last, *owners in slots:
            for n, (host, port, _, *facts) in enumerate(owners):
                names = dict(zip(facts[0][::2], facts[0][1::2], strict=True)) if facts else {}
                text = host.decode() if isinstance(host, bytes) else host or ""
                if self._tls and (name := names.get(b"hostname")):
                    self._names[text or asked[0], port] = name.decode()
                place = self._named(text, port, asked)
                nodes.add(place)
                if n == 0 and first <= wanted <= last:
                    self._places[wanted] = place
        self._nodes = frozenset(nodes)

    def _new_place(self, moved: Any, asked: Place) -> Place:
        return self._named(moved.host, moved.port, asked)

    def _named(self, host: str, port: int, asked: Place) -> Place:
        host = asked[0] if host in ("", "?") else host
        return self._names.get((host, port), host), port


_maps: dict[tuple[Any, ...], SlotMap] = {}


def slot_map(seeds: tuple[Place, ...], *, tls: bool) -> SlotMap:
    # A fork has its own: a thread of its parent may have held the lock.
    key = (os.getpid(), seeds, tls)
    return _maps.get(key) or _maps.setdefault(key, SlotMap(seeds, tls=tls))
