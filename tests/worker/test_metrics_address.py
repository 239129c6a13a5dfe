"""The address of a worker's metrics, which the image before this one has until it retires."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Iterator

import pytest

from headrace import Headrace
from headrace.errors import OptionsError
from headrace.stats import prometheus
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.runner_processes import PATIENCE, MetricsServer


@pytest.fixture
def stamps() -> Iterator[HealthStamps]:
    made = HealthStamps()
    yield made
    made.end()


@pytest.mark.parametrize("wrong", ["localhost", "127.0.0.1:", "::1:9464", "1:2:3", "127.0.0.1:65536", "a:b"])
def test_a_text_that_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(OptionsError, match=f"metrics='{wrong}' is not an address: write 127.0.0.1:9464"):
        prometheus.address_of(wrong)


def test_an_address_that_is_given_up_soon_is_waited_for_in_silence(
    stamps: HealthStamps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.worker")
    before = prometheus.listen("127.0.0.1", 0)
    server = MetricsServer("127.0.0.1", before.getsockname()[1], stamps)
    assert not server.listens(100.0)
    assert not server.listens(99.9 + PATIENCE)
    assert not caplog.records
    before.close()
    assert server.listens(100.0 + PATIENCE)
    server.stop()
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_an_address_that_another_program_keeps_is_told_of_once(
    stamps: HealthStamps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.worker")
    with prometheus.listen("127.0.0.1", 0) as taken:
        server = MetricsServer("127.0.0.1", taken.getsockname()[1], stamps)
        for now in (0.0, PATIENCE, 2 * PATIENCE):
            assert not server.listens(now)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "cannot start yet: cannot listen on 127.0.0.1:" in record.getMessage()


def test_an_address_is_tried_many_times_a_second_since_nobody_is_answered_there_meanwhile(
    stamps: HealthStamps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 50.0)
    with prometheus.listen("127.0.0.1", 0) as taken, selectors.DefaultSelector() as selector:
        server = MetricsServer("127.0.0.1", taken.getsockname()[1], stamps)
        server.fork(Headrace(), selector, [])
    assert server.pid == 0
    assert server.next - 50.0 <= 0.1
