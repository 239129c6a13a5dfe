"""What the supervisor does about rehearsals, apart from what they find."""

from __future__ import annotations

import os
import selectors
from pathlib import Path

import pytest

from headrace.worker.messages import Judged, Rehearse
from headrace.worker.preload.apply import Stage
from tests.worker.jobs import app


def test_a_rehearsal_that_cannot_be_forked_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[list[Judged], bool]] = []

    def refuse() -> int:
        raise BlockingIOError

    def tell(judged: list[Judged], *, adopted: bool) -> None:
        told.append((judged, adopted))

    monkeypatch.setattr(os, "fork", refuse)
    with selectors.DefaultSelector() as selector:
        stage = Stage(app, selector, tell)
        before = len(list(Path("/dev/fd").iterdir()))
        stage.rehearse(Rehearse(["json"], []))
        assert len(list(Path("/dev/fd").iterdir())) == before
        stage.close()
    assert told == [([], False)]
