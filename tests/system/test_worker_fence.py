"""A worker whose network falls silent: it stops its jobs before its lease ends, whatever it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.proxy import Proxy
from tests.servers import Server
from tests.system.fleet import LEASE, Fleet


@pytest.fixture
def proxied(new_server: Callable[..., Server]) -> Iterator[tuple[Server, Proxy]]:
    server = new_server(tcp=True)
    with Proxy(server) as proxy:
        yield server, proxy


@pytest.mark.parametrize("then", ["connections open and stay silent", "connections are refused"])
def test_two_starts_of_a_job_never_overlap_when_one_workers_network_falls_silent(
    proxied: tuple[Server, Proxy], new_fleet: Callable[..., Fleet], tmp_path: Path, then: str
) -> None:
    server, proxy = proxied
    # The worker that is not cut off must keep its own, however busy the machine is.
    fleet = new_fleet(server.url, lease=3 * LEASE)
    cut_off = fleet.worker(url=proxy.url)
    go = tmp_path / "go"
    job = fleet.enqueue("process.beat", str(go))
    fleet.started(job)
    other = fleet.worker()
    proxy.mode = "swallow"
    if then == "connections are refused":
        proxy.mode = "refuse"
        proxy.drop()
    fleet.started(job, times=2)
    # It has written down that it runs, which comes a moment later.
    fleet.until(lambda: "2 " in [line[:2] for line in Path(f"{go}.beats").read_text().splitlines()])
    go.touch()
    # The other worker reclaimed it: a lease that ended without an outcome is a crash.
    assert job.result(timeout=60) == 2
    beats = [line.split() for line in Path(f"{go}.beats").read_text().splitlines()]
    first, second = ([float(at) for attempt, at in beats if attempt == which] for which in "12")
    assert max(first) < min(second)
    assert "could not be kept" in cut_off.log()
    assert "could not be kept" not in other.log()
    # The network is back: the worker that was cut off works again.
    proxy.mode = "pass"
    other.terminate()
    other.wait()
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2
    fleet.end()
    fleet.check()
