"""Every page for users is run as it stands, and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import Reader

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
# docs/design is for those who work on Headrace; generated references have tests of their own.
GENERATED = {"cli.md", "settings.md"}
# What an interpreter has imported is shown, or processes are spawned, which begin with the file that their parent ran.
OWN = {"workers.md", "pool.md"}
FOLDERS = (ROOT / "docs", ROOT / "docs" / "learn", ROOT / "docs" / "moving")
PAGES = [page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name not in GENERATED]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    with Reader(page, tmp_path, own=page.name in OWN) as reader:
        reader.read()
