"""The README runs as it stands; what it and the other pages name exists; each page can be found from the README."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest

import headrace
from headrace import errors, testing
from headrace.model.options import CallOptions, TaskOptions
from headrace.model.retry import Retry
from headrace.settings import NO_SETTINGS, Settings, environment_name
from tests.docs.page import Reader, blocks

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
# References that programs print have tests of their own.
GENERATED = {"cli.md", "settings.md"}
FOLDERS = (ROOT / "docs", ROOT / "docs" / "learn", ROOT / "docs" / "moving")
EVERY = [README, *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]
PAGES = [page for page in EVERY if page.name not in GENERATED]


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    with Reader(README, tmp_path, own=True) as reader:
        assert reader.read() >= 8


def test_the_two_commands_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README.read_text(), re.MULTILINE))
    assert {"demo", "test", "bench"} <= named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    links = set(re.findall(r"\]\((docs/[^)#]+)\)", README.read_text()))
    assert {page.relative_to(ROOT).as_posix() for page in EVERY[1:]} <= links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"\bHEADRACE_[A-Z_]+\b", page.read_text()))
    assert named <= {environment_name(field) for field in Settings.__struct_fields__} | set(NO_SETTINGS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_error_that_is_named_exists(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", prose))
    others = {"FailedJobRegistry", "Retry", "HardTimeLimit", "KillMode", "SecretStr", "TypedDict", "ZoneInfo"}
    others |= {"BackgroundTasks", "DataFrame", "EventSource", "JobSender", "TestCase"}
    assert named <= others | {*vars(errors), *vars(builtins), *dir(testing)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_tells_to_raise_can_be_imported(page: Path) -> None:
    told = set(re.findall(r"`raise ([A-Z]\w+)", page.read_text()))
    assert told - {"Reject"} <= {*headrace.__all__, *vars(builtins)}  # Celery's has its row


def test_every_option_is_explained_somewhere() -> None:
    text = "".join(page.read_text() for page in PAGES)
    options = {*CallOptions.__annotations__, *TaskOptions.__annotations__, *Retry.__annotations__}
    assert {name for name in options if not re.search(rf"`{name}(=[^`]*)?`", text)} == set()


def test_the_table_of_figures_says_how_to_reproduce_it() -> None:
    text = README.read_text()
    table = text[text.index("<!-- figures:begin") : text.index("<!-- figures:end")]
    assert "make bench" in table


def test_no_block_is_of_an_unknown_kind() -> None:
    known = {"python", "console", "text", "ini", "sh", "dockerfile", "yaml", "{toctree}"}
    for page in PAGES:
        for block in blocks(page.read_text()):
            assert block.words, f"{page.name}:{block.line}: name the block's language"
            assert block.words[0] in known, f"{page.name}:{block.line}: {block.words[0]}"
