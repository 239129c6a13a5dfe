"""The systems that are measured: who produces, who works, and how the server is asked what is left.

A system is described by data, so that the floor, Headrace and every peer go through the very same code.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class System:
    """One job queue in one configuration.

    Attributes:
        name: as printed.
        module: has the producer's verbs, see ``bench.produce``.
        worker: arguments that make the interpreter a worker with one process and one job at a time.
        unsettled: Lua that returns how many jobs are not settled yet, those that run included.
        jobs: how many to drain: a second or more of work.
        peer: installed in the peers' environment, not in ours.
        survives: whether a job that runs is still known to the server when its worker is killed.
        env: for its processes.
    """

    name: str
    module: str
    worker: tuple[str, ...]
    unsettled: str
    jobs: int
    peer: bool = True
    survives: bool = True
    env: dict[str, str] = field(default_factory=dict, hash=False)


_FLOOR = "return redis.call('LLEN', 'floor:ready') + redis.call('ZCARD', 'floor:leases')"
_HEADRACE = """
local left = redis.call('ZCARD', '{hr:0}:ready:default')
for _, owner in ipairs(redis.call('ZRANGE', '{hr:0}:owners', 0, -1)) do
  left = left + redis.call('ZCARD', '{hr:0}:claims:' .. owner)
end
return left
"""
_RQ = """
return redis.call('LLEN', 'rq:queue:default') + redis.call('LLEN', 'rq:queue:default:intermediate')
  + redis.call('ZCARD', 'rq:wip:default')
"""
_CELERY = "return redis.call('LLEN', 'celery') + redis.call('HLEN', 'unacked')"
_DRAMATIQ = "return redis.call('HLEN', 'dramatiq:default.msgs')"
_HUEY = "return redis.call('LLEN', 'huey.redis.bench')"

#: Stands for the server's address among a worker's arguments.
URL = "{url}"

_RQ_APP = "bench.peers.rq_app"
_RQ_RUN = ("-c", "from rq.cli import main; main()", "worker", "--quiet", "--path", ".", "--url", URL)
_CELERY_RUN = (
    "-m", "celery", "-A", "bench.peers.celery_app", "worker", "--concurrency", "1", "--loglevel", "ERROR",
    "--without-gossip", "--without-mingle", "--without-heartbeat",
)  # fmt: skip
_DRAMATIQ_RUN = (
    "-m",
    "dramatiq",
    "--processes",
    "1",
    "bench.peers.dramatiq_app",
    "--skip-logging",
    "--threads",
)
_HUEY_RUN = ("-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "--quiet", "--workers", "1", "-k")

FLOOR = System("floor", "bench.floor", ("-m", "bench.floor", "100"), _FLOOR, 50_000, peer=False)
FLOOR_ONE = System("floor, one at a time", "bench.floor", ("-m", "bench.floor", "1"), _FLOOR, 10_000, False)
FLOOR_BARE = System(
    "floor, bare ids", "bench.floor", ("-m", "bench.floor", "100", "bare"), _FLOOR, 50_000, False,
    env={"BENCH_BARE": "1"},
)  # fmt: skip

HEADRACE = System(
    "Headrace",
    "bench.app",
    ("-m", "headrace", "worker", "bench.app:app", "--processes", "1"),
    _HEADRACE,
    50_000,
    False,
)

PEERS = (
    System("Huey, thread", "bench.peers.huey_app", (*_HUEY_RUN, "thread"), _HUEY, 10_000, survives=False),
    System("Huey, process", "bench.peers.huey_app", (*_HUEY_RUN, "process"), _HUEY, 10_000, survives=False),
    System("Dramatiq, 8 threads", "bench.peers.dramatiq_app", (*_DRAMATIQ_RUN, "8"), _DRAMATIQ, 8_000),
    System(
        "Dramatiq, prefetch 128", "bench.peers.dramatiq_app", (*_DRAMATIQ_RUN, "8"), _DRAMATIQ, 8_000,
        env={"dramatiq_queue_prefetch": "128"},
    ),
    System("Celery, prefork", "bench.peers.celery_app", (*_CELERY_RUN, "--pool", "prefork"), _CELERY, 3_000),
    System("Celery, threads", "bench.peers.celery_app", (*_CELERY_RUN, "--pool", "threads"), _CELERY, 3_000),
    System("RQ, in process", _RQ_APP, (*_RQ_RUN, "-w", "rq.SimpleWorker", "default"), _RQ, 2_000),
    System("RQ, forking", _RQ_APP, (*_RQ_RUN, "default"), _RQ, 200),
)  # fmt: skip
