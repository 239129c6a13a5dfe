"""What a process's cache has done so far. Pure."""

from __future__ import annotations

import msgspec


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one process.

    Attributes:
        hits: reads that took no round trip, "there is no value" included.
        misses: reads that asked the server.
        hit_ratio: hits among all reads, two digits; None before the first read.
        used: entries that are kept now.
        capacity: entries that may be kept.
        utilization: ``used`` of ``capacity``, two digits.
        bytes: memory that the entries take, estimated.
        capacity_bytes: memory that they may take.
        evicted: entries that had to make room. High beside a low ``hit_ratio``: the cache is too small. Where some
            names are read more often than others, ``cache_eviction="sieve"`` keeps those.
        announced: names that the server said were changed.
        epochs: connections so far; each began with an empty cache.
        faults: reads that went without an answer of the server, or met a value that cannot be read.
        healthy: changes are heard of. While they are not, nothing is kept and each read asks the server.
        fault: why they are not; empty when they are.
    """

    hits: int
    misses: int
    hit_ratio: float | None
    used: int
    capacity: int
    utilization: float
    bytes: int
    capacity_bytes: int
    evicted: int
    announced: int
    epochs: int
    faults: int
    healthy: bool
    fault: str
