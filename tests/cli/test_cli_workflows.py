"""Every command about workflows, as a process, against a real server: what it prints and how it ends."""

from __future__ import annotations

import os
import pty
import re
import sys
import xml.etree.ElementTree as ET
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from headrace.cli import output
from headrace.cli.output import Output
from headrace.cli.workflows import StateName
from headrace.model.job import State
from headrace.model.workflow import WorkflowState
from headrace.picture.view import URGENCY
from tests.commands import Commands
from tests.program import Ended, on_terminal

TASKS = """
from headrace import Headrace

app = Headrace()

@app.task
def numbers(first: int, last: int = 3) -> list[int]:
    return list(range(first, last + 1))

@app.task
def double(x: int) -> int:
    if x == 13:
        raise ValueError("[red]unlucky[/red]")
    return 2 * x

@app.task
def total(parts: list[int]) -> int:
    return sum(parts)

@app.workflow
def sums(flow, first: int, last: int = 3) -> None:
    flow.run(total, flow.map(double, flow.run(numbers, first, last, name="list"), name="each"), name="sum")

@app.workflow
def risky(flow, amount: int = 2) -> None:
    parts = [flow.run(double, 13 if n == 1 else n, name=f"part [b]{n}") for n in range(amount)]
    flow.run(total, parts, name="sum")

@app.workflow
def loop(flow) -> None:
    flow.run(double, 1, name="a", after="b")
    flow.run(double, 1, name="b", after="a")

@app.workflow
def odd(flow, number: int) -> None:
    flow.run(double, 10 // number)
"""


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Commands:
    program = Commands(tmp_path, url)
    program.write("tasks", TASKS)
    return program


def create(headrace: Commands, *arguments: str) -> str:
    id = headrace("workflows", "create", *arguments, HEADRACE_APP="tasks:app").out.strip()
    assert re.fullmatch(r"[0-9a-z]{21}", id), id
    return id


def facts(headrace: Commands, id: str) -> dict[str, object]:
    found: dict[str, object] = headrace("workflows", "show", id, "--json").json
    return found


def test_a_workflow_from_the_shell_to_its_end(headrace: Commands) -> None:
    made = headrace("workflows", "create", "tasks.sums", "1", "last=4", "--app", "tasks:app")
    id = made.out.strip()
    assert made.err == f"start it with headrace workflows start {id}\n"
    assert facts(headrace, id)["state"] == "pending"
    assert headrace("workflows", "start", id).out == f"{id} is running\n"
    headrace.burst("--quiet")
    shown = facts(headrace, id)
    assert (shown["state"], shown["total"], shown["done"], shown["progress"]) == ("succeeded", 7, 7, 1.0)
    assert (shown["args"], shown["kwargs"], shown["definition"]) == ([1, 4], {}, "tasks.sums")
    jobs = {job["name"]: job for job in shown["jobs"]}  # type: ignore[attr-defined]
    assert headrace("jobs", "result", jobs["sum"]["id"]).json == 20


def test_create_and_start_at_once(headrace: Commands) -> None:
    made = headrace("workflows", "create", "tasks.sums", "first=2", "--start", "--json", "--app", "tasks:app").json
    assert (made["state"], made["definition"], made["created"]) == ("running", "tasks.sums", True)
    headrace.burst("--quiet")
    assert facts(headrace, made["id"])["state"] == "succeeded"


def test_a_key_that_lives_creates_no_other(headrace: Commands) -> None:
    id = create(headrace, "tasks.sums", "1", "--key", "daily")
    again = headrace("workflows", "create", "tasks.sums", "1", "--key", "daily", "--app", "tasks:app")
    assert again.out.strip() == id
    assert again.err == f"{id} has this key and has not ended, so no other was created\n"
    assert "key         daily" in headrace("workflows", "show", id).out
    assert create(headrace, "tasks.sums", "1", "--key", "weekly") != id


def test_what_cannot_be_created_is_said(headrace: Commands) -> None:
    def refused(code: int, *arguments: str) -> str:
        return headrace("workflows", "create", *arguments, "--app", "tasks:app", code=code).fault

    assert refused(2, "tasks.summs") == "the application has no workflow tasks.summs: did you mean tasks.sums?"
    assert "tasks.loop wait for each other: a -> b -> a" in refused(4, "tasks.loop")
    assert "argument 'first' of tasks.sums: expected int, got str" in refused(2, "tasks.sums", "x")
    assert "is missing its argument 'first'" in refused(2, "tasks.sums")
    assert "name the application" in headrace("workflows", "create", "tasks.sums", "1", code=2).fault
    text = "the definition of workflow tasks.odd raised ZeroDivisionError: "
    assert text in refused(4, "tasks.odd", "0")
    assert re.search(r"\(.*tasks\.py:\d+\)$", refused(4, "tasks.odd", "0"))
    assert text in headrace("workflows", "viz", "tasks.odd", "0", "--app", "tasks:app", code=4).fault
    assert headrace("workflows", "list", "--json").lines == []


def test_named_jobs_start_instead_of_the_first_ones(headrace: Commands) -> None:
    id = create(headrace, "tasks.risky")
    assert "has no node 'part [b]9': did you mean part [b]" in (
        headrace("workflows", "start", id, "part [b]9", code=1).fault
    )
    headrace("workflows", "start", id, "part [b]0")
    headrace.burst("--quiet")
    jobs = facts(headrace, id)["jobs"]
    assert {job["name"]: job["state"] for job in jobs} == {  # type: ignore[attr-defined]
        "part [b]0": "succeeded", "part [b]1": "blocked", "sum": "blocked",
    }  # fmt: skip


def test_stop_and_start_again(headrace: Commands) -> None:
    id = create(headrace, "tasks.sums", "1", "--start")
    assert headrace("workflows", "stop", id).out == f"{id} is stopped\n"
    headrace.burst("--quiet")
    shown = facts(headrace, id)
    assert (shown["state"], shown["done"]) == ("stopped", 0)
    assert "stopped 0/3 [0%]" in headrace("workflows", "show", id, "--skip-jobs").out
    headrace("workflows", "start", id)
    headrace.burst("--quiet")
    assert facts(headrace, id)["state"] == "succeeded"
    assert "has succeeded, so it cannot be stopped" in headrace("workflows", "stop", id, code=1).fault


def test_a_failure_is_named_and_retried(headrace: Commands) -> None:
    id = create(headrace, "tasks.risky", "3", "--start")
    headrace.burst("--quiet")
    shown = headrace("workflows", "show", id).out
    for text in ("state       failed at part [b]1", "failed      1, first part [b]1", "succeeded   2", "remaining   1"):
        assert text in shown, shown
    assert "ValueError: [red]unlucky[/red]" in shown
    names = re.findall(r"^(part \[b\]\d|sum) ", shown, re.MULTILINE)
    assert names == ["part [b]1", "sum", "part [b]0", "part [b]2"], "what failed comes first, what ended last"
    assert "part [b]1 failed" in headrace("workflows", "list").out

    (job,) = headrace("workflows", "show", id, "--jobs", "failed", "--json").json["jobs"]
    assert (job["name"], job["error"]) == ("part [b]1", {"type": "ValueError", "message": "[red]unlucky[/red]"})
    assert [(one["outcome"], one["error"]) for one in job["attempts"]] == [("failed", "ValueError: [red]unlucky[/red]")]
    assert headrace("workflows", "retry", id).out == f"{id} is running again\n"
    headrace.burst("--quiet")
    assert facts(headrace, id)["state"] == "failed", "it is as unlucky as before"
    (job,) = headrace("workflows", "show", id, "--jobs", "failed", "--json").json["jobs"]
    assert [one["number"] for one in job["attempts"]] == [1, 2]
    assert "2 attempts, ValueError: [red]unlucky[/red]" in headrace("workflows", "show", id).out


def test_show_leaves_out_what_is_not_wanted(headrace: Commands) -> None:
    id = create(headrace, "tasks.risky", "5")
    overview = headrace("workflows", "show", id, "--skip-jobs").out
    assert "arguments   5" in overview
    assert "part" not in overview
    jobs = headrace("workflows", "show", id, "--skip-overview", "--limit", "2")
    assert "arguments" not in jobs.out
    assert len(re.findall("part", jobs.out)) == 2
    assert jobs.err == "4 more: --limit, or --jobs STATE\n"
    assert "no job of it is failed" in headrace("workflows", "show", id, "--jobs", "failed").err
    assert set(headrace("workflows", "show", id, "--skip-overview", "--json").json) == {"jobs"}
    assert "jobs" not in headrace("workflows", "show", id, "--skip-jobs", "--json").json
    assert "take one" in headrace("workflows", "show", id, "--skip-jobs", "--skip-overview", code=2).fault


def test_show_remarks_queues_that_no_worker_serves(headrace: Commands) -> None:
    headrace.write(
        "post",
        "from headrace import Headrace\n"
        "app = Headrace()\n"
        "@app.task(queue='mail')\n"
        "def send() -> None: pass\n"
        "@app.workflow\n"
        "def letters(flow) -> None:\n"
        "    flow.run(send)\n",
    )
    id = headrace("workflows", "create", "post.letters", "--start", HEADRACE_APP="post:app").out.strip()
    shown = headrace("workflows", "show", id)
    assert "no worker serves mail: jobs there wait until one is started with --queues mail" in shown.err
    assert headrace("workflows", "show", id, "--skip-jobs").err == ""
    headrace.burst("--queues", "mail")
    assert re.search(r" parked .* no worker here knew its task\n", headrace("workflows", "show", id).out)
    assert "no worker here knew its task" in headrace("jobs", "list", "--state", "parked").out


def test_cancel_ends_what_waits(headrace: Commands) -> None:
    first, second = (create(headrace, "tasks.risky", "700", "--start") for _ in range(2))
    ended = headrace("workflows", "cancel", first, "1" * 21, second, code=1)
    assert ended.out == f"{first} is cancelled\n{second} is cancelled\n", "one that is not there stops no other"
    assert "is not the id of a workflow" in ended.fault
    shown = headrace("workflows", "show", first, "--json", "--skip-jobs").json
    assert (shown["state"], shown["cancelled"]) == ("cancelled", 701)
    again = headrace("workflows", "cancel", first, "--json", code=1).json
    assert again == {"id": first, "done": False, "text": "had ended already: cancelled"}


def test_lists_by_state_definition_time_and_position(headrace: Commands) -> None:
    ids = [create(headrace, "tasks.sums" if n % 2 else "tasks.risky", "1") for n in range(5)]
    headrace("workflows", "cancel", ids[0])

    def listed(*arguments: str) -> list[str]:
        return [row["id"] for row in headrace("workflows", "list", "--json", *arguments).lines if "id" in row]

    assert listed() == ids[::-1]
    assert listed("--order", "asc") == listed("--order", "asc", "--limit", "2", "--all") == ids
    assert listed("--state", "cancelled") == ids[:1]
    assert listed("--definition", "tasks.sums") == [ids[3], ids[1]]
    assert listed("--limit", "2", "--offset", "1") == [ids[3], ids[2]]
    assert listed("--offset", "-2", "--order", "asc") == ids[3:], "the newest two, oldest first"
    assert listed("--until", "1h") == []
    assert listed("--since", "1h") == ids[::-1]
    now = datetime.now().astimezone()
    assert listed("--since", (now - timedelta(hours=1)).isoformat(), "--until", now.isoformat()) == ids[::-1]
    assert "since is the earlier one in both orders" in (
        headrace("workflows", "list", "--since", "1h", "--until", "2h", code=2).fault
    )
    assert "is not a time: write one such as" in headrace("workflows", "list", "--since", "soon", code=2).fault

    *rows, cursor = headrace("workflows", "list", "--json", "--limit", "2").lines
    assert listed("--after", cursor["next"]) == ids[2::-1]
    assert (rows[0]["state"], rows[0]["total"], rows[0]["progress"]) == ("pending", 2, 0.0)
    table = headrace("workflows", "list", "--limit", "2")
    assert table.out.splitlines()[0].split() == ["id", "definition", "state", "jobs", "done", "created", "remark"]
    assert table.err.splitlines()[0] == "2 of 5 workflows"
    assert table.err.splitlines()[1].startswith("more: --after '")


def test_retention_and_removal(headrace: Commands) -> None:
    id = create(headrace, "tasks.sums", "1")
    assert headrace("workflows", "expire", id, "2d").out == f"{id} goes 2d after its end\n"
    assert "kept        2d after its end" in headrace("workflows", "show", id).out
    assert headrace("workflows", "expire", id, "never", "--json").json == {"id": id, "ttl": None}
    assert "kept        for ever" in headrace("workflows", "show", id).out
    assert "is not a duration" in headrace("workflows", "expire", id, "soon", code=2).fault

    refused = headrace("workflows", "rm", id, code=1)
    assert refused.out == f"{id} is pending, 3 jobs of it to go: --yes removes it nevertheless\n"
    assert "Remove it for good? [y/N]" in on_terminal(headrace, "workflows", "rm", id, answer="n\n")
    assert facts(headrace, id)["state"] == "pending"
    headrace("workflows", "cancel", id)
    headrace("workflows", "expire", id, "1h")
    assert headrace("workflows", "rm", id).out == f"{id} is removed\n", "one that has ended needs no word more"
    assert f"no workflow {id} is stored" in headrace("workflows", "show", id, code=1).fault
    other = create(headrace, "tasks.sums", "1")
    assert headrace("workflows", "rm", other, "--yes", "--json").json["done"] is True


def test_pictures(headrace: Commands) -> None:
    id = create(headrace, "tasks.risky", "--start")
    headrace.burst("--quiet")
    drawn = headrace("workflows", "viz", id).out
    for text in ("✗ part [b]1", "✓ part [b]0", "· sum", id):
        assert text in drawn, drawn
    plan = headrace("workflows", "viz", "tasks.sums", "1", HEADRACE_APP="tasks:app").out
    assert "each" in plan
    assert "✓" not in plan
    made = headrace("workflows", "viz", id, "-o", "flow.svg", "--json").json
    assert made == {"file": "flow.svg", "form": "svg", "jobs": 3}
    assert ET.parse(headrace.directory / "flow.svg").getroot().tag.endswith("svg")
    headrace("workflows", "viz", id, "-o", "flow.dot")
    assert (headrace.directory / "flow.dot").read_text().startswith(("digraph", "//", "strict"))
    headrace("workflows", "viz", id, "-o", "flow.mmd")
    assert "flowchart" in (headrace.directory / "flow.mmd").read_text()
    assert headrace("workflows", "viz", id, "--json").json["form"] == "text"

    def refused(code: int, *arguments: str) -> Ended:
        return headrace("workflows", "viz", *arguments, code=code)

    assert "end it in .svg, .dot" in refused(2, id, "-o", "flow.png").fault
    assert "name its --app" in refused(2, "tasks.sums").fault
    assert "no workflow tasks.nothing" in refused(2, "tasks.nothing", "--app", "tasks:app").fault
    assert "cannot be written: No such file or directory" in refused(1, id, "-o", "nowhere/flow.svg").fault


def test_only_create_and_pictures_of_definitions_need_the_code(headrace: Commands) -> None:
    id = create(headrace, "tasks.sums", "1")
    (headrace.directory / "tasks.py").write_text("raise SystemExit('must not be imported')")
    headrace.environment["HEADRACE_APP"] = "tasks:app"
    for command in (["start"], ["stop"], ["show"], ["viz"], ["cancel"], ["rm"]):
        headrace("workflows", *command, id)


def test_what_is_not_there_is_said_by_each_command(headrace: Commands) -> None:
    id = create(headrace, "tasks.sums", "1")
    headrace("workflows", "rm", id, "--yes")
    for command in ("start", "stop", "cancel", "retry", "show", "rm", "viz"):
        assert headrace("workflows", command, id, code=1).fault.startswith(f"no workflow {id} is stored"), command
    assert headrace("workflows", "expire", id, "5", code=1).fault.startswith(f"no workflow {id} is stored")


def test_states_that_can_be_named_are_those_that_exist() -> None:
    assert {*URGENCY, "skipped", "succeeded"} == set(State)
    assert set(StateName.__args__) == set(WorkflowState)  # type: ignore[attr-defined]


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_bar_shows_when_it_takes_its_time(monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    master, slave = pty.openpty()
    monkeypatch.setattr(output, "PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(master, "rb", 0) as shown, os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with output.late_bar(Output(json=False), 2000) as tell:
            tell(500)
            tell(1200)
        terminal.write("end")
        terminal.flush()
        said = b""
        while not said.endswith(b"end"):
            said += shown.read(4096)
    assert (b"1200/2000" in said) is (patience == 0), said
