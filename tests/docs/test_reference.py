"""What is documented is what there is: pages, commands, options, settings and exit codes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands import MODULES
from headrace.cli.session import ExitCode
from headrace.settings import NO_SETTINGS, Settings, environment_name
from tests.docs import reference

PAGES = {"cli": reference.cli, "settings": reference.settings, "options": reference.options}
ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[str, Any] = dict(reference.commands())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_program_prints(name: str) -> None:
    stored = (ROOT / "docs" / f"{name}.md").read_text()
    assert stored == PAGES[name](), f"run: python -m tests.docs.reference {name} > docs/{name}.md"


def test_each_command_option_and_exit_code_has_its_place() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(zip(*[iter(re.split(r"^## (.*)$", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    for name, command in COMMANDS.items():
        for option in (option for param in command.params for option in param.opts if option.startswith("--")):
            assert f"`{option}" in sections[name], f"{option} of {name}"
    for code in ExitCode:
        assert f"| {code.value} | {code.meaning} |" in page


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name].help])
def test_a_list_of_commands_shows_whole_sentences(name: str) -> None:
    """A part of a sentence misleads: "Show queues." was all that the list said of a command that shows more."""
    text = " ".join(COMMANDS[name].help.split())
    assert f"{text} ".startswith(f"{COMMANDS[name].get_short_help_str(limit=200)} ")


def test_each_setting_has_its_place() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    for field in Settings.__struct_fields__:
        assert f"| `{field}` | `{environment_name(field)}` |" in page


def test_each_variable_of_operators_that_is_no_setting_has_its_place() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    # The last three are between a worker's own processes.
    assert [name for name in NO_SETTINGS[:-3] if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name)
def test_each_table_has_one_heading(page: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.MULTILINE)
    assert [
        table[:200] for table in tables if len(re.findall(r"^\|(?: ?:?-+:? ?\|)+$", table, flags=re.MULTILINE)) > 1
    ] == []


def test_each_command_and_option_has_a_help_text() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        for param in command.params:
            assert param.help, f"{param.name} of {name}"


def test_each_group_of_commands_is_in_the_program() -> None:
    """A module of commands that ``program`` does not name would be no command at all, and no other test would notice."""
    texts = {path.stem: path.read_text() for path in (ROOT / "src" / "headrace" / "cli").glob("*.py")}
    groups = {name for name, text in texts.items() if re.search(r"^app = group\(", text, re.MULTILINE)} - {"program"}
    assert len(groups) > 5
    assert groups - {*MODULES.values()} == set()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name)
def test_command_lines_in_the_docs_exist(page: Path) -> None:
    for line in _command_lines(page.read_text()):
        words = shlex.split(line, comments=True)
        name = next((n for n in (" ".join(words[:3]), " ".join(words[:2])) if n in COMMANDS), None)
        if name is None:
            known = {*(" ".join(n.split()[:2]) for n in COMMANDS), "headrace", "headrace --version", "headrace --help"}
            assert len(words) <= 2, line
            assert " ".join(words) in known, line
            continue
        options = {option for param in COMMANDS[name].params for option in param.opts} | {"--help", "-h"}
        given = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
        assert not {word for word in given if word.startswith("-")} - options, line


def _command_lines(text: str) -> Iterator[str]:
    """What stands after a prompt or alone on a line of a fenced block, and begins with the program's name."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            command = re.match(r"\s*(?:\$ )?(headrace(?: .*)?)$", line)
            # A usage line is no command line: its words in brackets stand for others.
            if command and "[OPTIONS]" not in line and "|" not in line:
                yield re.split(r"\s(?:&|&&|;|>|2>).*$", command[1])[0]
