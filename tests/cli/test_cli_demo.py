"""The stage of ``headrace demo``, which a signal leads off."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest

from headrace.cli.demo import DemoWorker, staged


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo may leave something: its own TMPDIR, short enough for a socket."""
    place = tmp_path / "t"
    place.mkdir()
    return place


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leads_off_the_stage(temporary: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setenv("HEADRACE_DIR", "theirs")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = signal.getsignal(number)
    tidied = False
    with pytest.raises(SystemExit) as end, staged():
        assert len(list(temporary.iterdir())) == 1
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            tidied = True
    assert tidied
    assert end.value.code == 128 + number
    assert list(temporary.iterdir()) == []
    assert signal.getsignal(number) is before


def test_a_signal_that_comes_while_the_worker_ends_leaves_none(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stage sets it, and later tests of this process would use its private server.
    monkeypatch.setenv("HEADRACE_DIR", "theirs")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr("headrace.cli.demo.STOPPING", 0.1)
    with staged() as (_, _, directory), DemoWorker(directory, 1) as worker:
        process = worker._process
        process.send_signal(signal.SIGSTOP)
        wait = process.wait

        def interrupted(limit: float | None = None) -> int:
            signal.raise_signal(signal.SIGINT)
            return wait(limit)

        monkeypatch.setattr(process, "wait", interrupted)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGKILL)
