"""The files of deploy/ name commands, options and variables that exist, and stop a worker later than it stops itself.

The workflow of a release needs no secret, and tries each Python that the package names.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli.web import PORT, TOKEN
from headrace.settings import Settings, environment_name
from tests.docs.reference import commands

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMANDS = dict(commands())
VARIABLES = {environment_name(name) for name in Settings.__struct_fields__} | {
    TOKEN,
    *(str(param.envvar) for command in COMMANDS.values() for param in command.params if param.envvar),
}


def rendered(template: Path) -> list[Any]:
    """The documents of a template of the chart, with the chart's own values."""
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())

    def value(found: re.Match[str]) -> str:
        verb, path, more = found[1] or "", found[2], found[3] or 0
        if path == "Release.Name":
            return "shop"
        one: Any = values
        for name in path.split(".")[1:]:
            one = one[name]
        return json.dumps(one) if verb == "toJson" else str(one + int(more)) if verb == "add" else str(one)

    text = re.sub(r"\{\{ (?:(toJson|add) )?\.([\w.]+)(?: (\d+))? \}\}", value, template.read_text())
    return list(yaml.safe_load_all(text))


CONTENTS = {
    "Containerfile": [json.loads(re.findall(r"^CMD (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[-1])],
    "compose.yaml": yaml.safe_load((DEPLOY / "compose.yaml").read_text()),
    **{path.name: rendered(path) for path in (DEPLOY / "chart" / "templates").iterdir()},
}


def parts(content: Any) -> Iterator[Any]:
    yield content
    if isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from parts(part)


@pytest.mark.parametrize("name", CONTENTS)
def test_its_commands_and_options_exist(name: str) -> None:
    lines = [part for part in parts(CONTENTS[name]) if isinstance(part, list) and "headrace" in part[:2]]
    assert lines
    for line in lines:
        words = line[line.index("headrace") :]
        known = {option for param in COMMANDS[" ".join(words[:2])].params for option in param.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.parametrize("name", CONTENTS)
def test_its_variables_exist(name: str) -> None:
    texts = [text for part in parts(CONTENTS[name]) for text in (part if isinstance(part, dict) else [part])]
    texts += [part.get("name") for part in parts(CONTENTS[name]) if isinstance(part, dict)]
    assert {text for text in texts if re.fullmatch(r"HEADRACE_\w+", str(text))} <= VARIABLES


def test_a_worker_gets_more_time_than_its_jobs() -> None:
    worker = CONTENTS["compose.yaml"]["services"]["worker"]
    assert int(worker["stop_grace_period"].removesuffix("s")) > int(worker["environment"]["HEADRACE_SHUTDOWN_TIMEOUT"])
    pod = CONTENTS["worker.yaml"][0]["spec"]["template"]["spec"]
    given = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert pod["terminationGracePeriodSeconds"] > int(given["HEADRACE_SHUTDOWN_TIMEOUT"])


def test_passwords_come_by_reference_and_the_port_is_the_default() -> None:
    for name in ("worker.yaml", "dashboard.yaml"):
        (container,) = CONTENTS[name][0]["spec"]["template"]["spec"]["containers"]
        secret = {one["name"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})}
        assert secret == {"HEADRACE_URL", TOKEN} & {one["name"] for one in container["env"]}
    assert CONTENTS["dashboard.yaml"][1]["spec"]["ports"] == [{"port": PORT}]


def test_a_release_passes_the_suite_on_each_python_and_needs_no_secret() -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert "secrets." not in text
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert set(jobs["publish"]["needs"]) == {"test", "build"}
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    named = {found[1] for text in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", text))}
    assert named == set(jobs["test"]["strategy"]["matrix"]["python"])
