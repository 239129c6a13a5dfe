"""What the tests of commands ask for: the program, in the process of the test, on the shared server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import Commands


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Commands:
    return Commands(tmp_path, url)
