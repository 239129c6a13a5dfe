"""A private server that is held up for longer than a look at it waits is looked at again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import embedded
from headrace.embedded import Status, handle
from tests.deadline import eventually

status = handle.status


def seen(directory: Path | str | None = None) -> Status:
    """What is known about it, once it answers if it runs: in its silence the pid and all counts are None."""

    def answered() -> Status | None:
        found = status(directory)
        return None if found.health == "silent" else found

    return eventually(answered, 60, what="an answer of the private server")  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Not by the fixture that tests use, some of which undo what they changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "status", seen)
        patch.setattr(handle, "status", seen)
        yield
