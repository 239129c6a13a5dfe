"""``preload=auto``: what earlier runs learned is tried in a child, then done before the first fork."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.protocol import operations
from headrace.worker.preload.advice import apply_learned
from headrace.worker.preload.warmup import WORK


@pytest.fixture
def app(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Headrace]:
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()"
    work = "def work():\n    sum(range(5_000_000))\n"
    for name, text in (("ap_good", ""), ("ap_thread", thread), ("ap_late", work), ("ap_other", "")):
        (tmp_path / f"{name}.py").write_text(text)
    with Headrace(url, preload=["auto"]) as app:
        app.task(lambda: None, name="known")
        yield app
    for name in ("ap_good", "ap_thread", "ap_late", "ap_other"):
        sys.modules.pop(name, None)


def learn(app: Headrace, *lines: str) -> None:
    app.client.run(operations.learn(app.client.keys, lines))


def test_what_stands_the_trial_is_done_and_what_does_not_is_tried_once(
    app: Headrace, caplog: pytest.LogCaptureFixture
) -> None:
    learn(app, "known ap_late:work", "known ap_thread", "known ap_good", "stranger ap_other", " ap_late")
    with caplog.at_level(logging.INFO, "headrace.worker"):
        learned = apply_learned(app)
    assert set(learned.done) == {"ap_good", "ap_late"}
    assert learned.refused["ap_late:work"] == WORK
    assert "its import starts the thread" in learned.refused["ap_thread"]
    assert "done before the fork, since earlier runs did it in each runner: ap_good" in caplog.text
    assert ("ap_good" in sys.modules, "ap_thread" in sys.modules, "ap_other" in sys.modules) == (True, False, False)
    again = apply_learned(app)
    assert again.done == {}, "it is done"
    assert again.refused == learned.refused, "a refusal is remembered"


def test_without_auto_nothing_is_asked(url: str) -> None:
    with Headrace("redis://127.0.0.1:1") as app:
        assert apply_learned(app).done == {}


def test_a_store_that_cannot_be_asked_is_no_reason_not_to_start(caplog: pytest.LogCaptureFixture) -> None:
    with Headrace("redis://127.0.0.1:1", preload=["auto"]) as app:
        assert apply_learned(app).done == {}
    assert "what earlier runs learned is not known" in caplog.text


def test_without_room_for_a_trial_nothing_is_done(
    app: Headrace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> int:
        raise BlockingIOError

    learn(app, "known ap_good")
    monkeypatch.setattr(os, "fork", refuse)
    app.disconnect()
    before = len(list(Path("/dev/fd").iterdir()))
    assert apply_learned(app).done == {}
    assert len(list(Path("/dev/fd").iterdir())) == before
    assert "no trial can be forked" in caplog.text
