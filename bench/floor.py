"""The floor: the least that a crash-safe queue can do on this server, and nothing else.

A job has a record; its id waits in a list; a lease moves ids to a sorted set scored by the lease's end
and returns their records; an acknowledgement removes both. No retries, results, priorities, fencing or
limits. As a program it drains the queue: ``python -m bench.floor <batch> [bare]``. ``bare`` does without
records: the id is all there is.
"""

from __future__ import annotations

import os
import signal
import sys

import redis

READY, LEASES, LEASE = "floor:ready", "floor:leases", 15_000_000

_LEASE = """
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {} end
local now = redis.call('TIME')
local ends = now[1] * 1000000 + now[2] + ARGV[2]
local leased = {}
for i, id in ipairs(ids) do
  redis.call('ZADD', KEYS[2], ends, id)
  leased[2 * i - 1] = id
  leased[2 * i] = redis.call('GET', 'floor:job:' .. id)
end
return leased
"""
_ACKNOWLEDGE = """
for _, id in ipairs(ARGV) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('DEL', 'floor:job:' .. id)
end
"""
_LEASE_BARE = """
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {} end
local now = redis.call('TIME')
local ends = now[1] * 1000000 + now[2] + ARGV[2]
local scored = {}
for i, id in ipairs(ids) do
  scored[2 * i - 1] = ends
  scored[2 * i] = id
end
redis.call('ZADD', KEYS[2], unpack(scored))
return ids
"""
_ACKNOWLEDGE_BARE = "redis.call('ZREM', KEYS[1], unpack(ARGV))"


def _connect() -> redis.Redis:
    return redis.Redis.from_url(os.environ["BENCH_URL"], protocol=2)


def bulk(count: int) -> None:
    """Enqueue ``count`` jobs, a thousand in a round trip."""
    client, bare = _connect(), "BENCH_BARE" in os.environ
    for start in range(0, count, 1000):
        pipe = client.pipeline(transaction=False)
        ids = [f"{number:016d}" for number in range(start, min(start + 1000, count))]
        if not bare:
            for id in ids:
                pipe.set(f"floor:job:{id}", b"noop\x90")
        pipe.rpush(READY, *ids)
        pipe.execute()


def drain(batch: int, *, bare: bool) -> None:
    """Lease and acknowledge until nothing is left."""
    client = _connect()
    lease = client.register_script(_LEASE_BARE if bare else _LEASE)
    acknowledge = client.register_script(_ACKNOWLEDGE_BARE if bare else _ACKNOWLEDGE)
    while leased := lease(keys=[READY, LEASES], args=[batch, LEASE]):
        acknowledge(keys=[LEASES], args=leased if bare else leased[::2])


if __name__ == "__main__":
    drain(int(sys.argv[1]), bare="bare" in sys.argv[2:])
    # Stay until stopped: a worker's processor time is read while it lives, so is the floor's.
    signal.pause()
