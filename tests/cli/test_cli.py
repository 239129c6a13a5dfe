"""Every command, as a process, against a real server: what it prints and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from headrace import Headrace
from headrace.cli.jobs import EACH
from headrace.model.ids import shard_of
from headrace.model.job import State
from headrace.protocol import consume
from headrace.protocol.keys import keys_of
from tests.commands import Commands
from tests.program import on_terminal
from tests.servers import Server

ID = re.compile(r"[0-9a-z]{21}")


def test_a_job_from_the_shell_to_its_result(headrace: Commands) -> None:
    id = headrace.enqueue("tasks.add", "40", "y=2")
    assert ID.fullmatch(id)

    listed = headrace("jobs", "list", "--json").lines
    assert [(job["id"], job["state"], job["task"], job["queue"]) for job in listed] == [
        (id, "ready", "tasks.add", "default")
    ]
    worked = headrace.burst()
    assert "tasks:app, 4 tasks" in worked.err
    assert f"shop: adding job={id} task=tasks.add attempt=1 customer=7" in worked.err

    assert headrace("jobs", "result", id).json == 42
    assert headrace("jobs", "result", id, "--json").json == {"id": id, "result": 42}
    assert headrace("jobs", "logs", id).out == "first line\n[red]second[/red] \\x1b[31mline\n"
    assert headrace("jobs", "logs", id, "--limit", "1", "--json").lines == ["[red]second[/red] \x1b[31mline"]

    shown = headrace("jobs", "show", id).out
    for text in (id, "succeeded", "arguments", "40, y=2", "result", "42", "50% half [b]way", "first line"):
        assert text in shown, shown
    assert "\x1b" not in shown
    facts = headrace("jobs", "show", id, "--json").json
    assert (facts["args"], facts["kwargs"], facts["result"], facts["attempt"]) == ([40], {"y": 2}, 42, 1)
    assert facts["created"] < facts["started"] < facts["finished"]


@pytest.mark.parametrize("command", ["jobs why", "queues list"])
def test_why_a_queue_is_paused_tells_no_secret_to_people_or_programs(headrace: Commands, command: str) -> None:
    id = headrace.enqueue("tasks.add", "1")
    headrace("queues", "pause", "default", "--note", "the provider is down: token=canary-4f1d")
    for how in ((), ("--json",)):
        told = headrace(*command.split(), *([id] if command == "jobs why" else []), *how).out
        assert "the provider is down" in told
        assert "token=***" in told
        assert "canary-4f1d" not in told
        assert not re.search(r"(?m)^ +by +\d", told)


def test_a_failure_and_its_retry(headrace: Commands) -> None:
    id = headrace.enqueue("tasks.fail")
    headrace.burst("--quiet")

    assert "ValueError: [red]boom[/red]" in headrace("jobs", "list", "--state", "failed").out
    fault = headrace("jobs", "result", id, code=1).fault
    assert "ValueError: [red]boom[/red]" in fault
    assert f"headrace jobs show {id}" in fault

    shown = headrace("jobs", "show", id).out
    assert "message  [red]boom[/red]" in shown
    assert "raise ValueError(text)" in shown
    assert "src/headrace" not in shown, "the traceback is that of the user's code"

    assert headrace("jobs", "retry", id).out == f"{id} is ready again\n"
    assert headrace("jobs", "cancel", id, "--json").json == {"id": id, "done": True, "text": "is cancelled"}
    assert headrace("jobs", "count", "--json").json["states"]["cancelled"] == 1

    waits = headrace.enqueue("tasks.fail", "--delay", "1h")
    ended = headrace("jobs", "retry", waits, id, code=1)
    assert f"job {waits} is scheduled: only a job that has ended can be retried" in ended.fault
    assert ended.out == f"{id} is ready again\n", "one that refuses does not keep the others from it"


def test_the_evidence_of_a_crash(headrace: Commands) -> None:
    id = headrace.enqueue("tasks.crash", "--app", "tasks:app")
    headrace.burst()
    shown = headrace("jobs", "show", id).out
    for text in ("quarantined", "SIGKILL (9)", "last words", "1 crashed"):
        assert text in shown, shown
    error = headrace("jobs", "show", id, "--json").json["error"]
    assert (error["signal"], error["signal_name"]) == (9, "SIGKILL")


def test_the_attempts_of_a_job_are_shown_with_those_before_a_retry_by_hand(headrace: Commands) -> None:
    id = headrace.enqueue("tasks.fail", "first line", "--app", "tasks:app")
    well = headrace.enqueue("tasks.add", "1", "--app", "tasks:app")
    headrace.burst()
    (first,) = headrace("jobs", "show", id, "--json").json["attempts"]
    assert (first["number"], first["outcome"], first["error"]) == (1, "failed", "ValueError: first line")
    assert first["waited"] >= 0
    assert first["ran"] >= 0
    headrace("jobs", "retry", id)
    headrace.burst()
    again = headrace("jobs", "show", id, "--json").json["attempts"]
    assert again[0] == first
    assert [one["number"] for one in again] == [1, 2]
    shown = headrace("jobs", "show", id).out
    assert "\nattempts\n" in shown
    assert first["worker"] in shown
    assert headrace("jobs", "show", well, "--json").json["attempts"] == []
    assert "\nattempts\n" not in headrace("jobs", "show", well).out


@pytest.mark.mangles
def test_a_record_of_alien_bytes_is_shown_and_not_obeyed(headrace: Commands, client: redis.Redis) -> None:
    id = headrace.enqueue("tasks.add", "1")
    alien = {"args": b"\xff\x00", "st": "no state", "task": b"\xff[red]\x1b[2J", "finished": "9" * 30, "error": "{"}
    client.hset(keys_of("hr").job(id), mapping=alien)
    shown = headrace("jobs", "show", id).out
    assert "<2 bytes that are not MessagePack>" in shown
    assert "[red]\\x1b[2J" in shown
    assert headrace("jobs", "show", id, "--json").json["error"]["type"] == "Corrupt"
    assert id in headrace("jobs", "list").out


def test_enqueue_with_options(headrace: Commands) -> None:
    late = headrace.enqueue("tasks.add", "1", "--delay", "2h", "--queue", "low", "--priority", "5")
    first = headrace.enqueue("tasks.add", "--kwargs", '{"x": 1}', "text", '{"a": [1, null]}', "--request-id", "order-1")
    assert headrace.enqueue("tasks.add", "9", "--request-id", "order-1") == first
    assert headrace.enqueue("tasks.add", "--", "-3")

    facts = headrace("jobs", "show", late, "--json").json
    assert (facts["state"], facts["queue"], facts["priority"]) == ("scheduled", "low", 5)
    assert "due        " in headrace("jobs", "show", late).out
    facts = headrace("jobs", "show", first, "--json").json
    assert (facts["args"], facts["kwargs"]) == (["text", {"a": [1, None]}], {"x": 1})


def test_enqueue_says_that_another_job_has_the_name(headrace: Commands) -> None:
    stored = headrace("enqueue", "tasks.add", "1", "--unique", "nightly", "--json").json
    assert stored["fresh"] is True
    again = headrace("enqueue", "tasks.add", "2", "--unique", "nightly")
    assert again.out.split() == [stored["id"]]
    assert again.err == f"no new job was stored: {stored['id']} has this name\n"
    assert headrace("enqueue", "tasks.add", "2", "--unique", "nightly", "--json").json == stored | {"fresh": False}
    headrace.enqueue("tasks.add", "1", "--request-id", "order-2")
    assert "has this name or request id" in headrace("enqueue", "tasks.add", "1", "--request-id", "order-2").err


def test_enqueue_and_wait(headrace: Commands) -> None:
    worker = headrace.start("worker", "tasks:app", "--processes", "1", "--max-jobs", "2", "--quiet")
    try:
        assert headrace("enqueue", "tasks.add", "1", "--wait", "--timeout", "20s").json == 2
        ended = headrace("enqueue", "tasks.fail", "--wait", "--json", code=1)
        assert '"type":"JobFailed"' in ended.err
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.communicate()


TYPED = """
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from pydantic import BaseModel
from headrace import Flow, Headrace

app = Headrace()

class Order(BaseModel):
    name: str
    count: int

@app.task
def told(order: Order, data: bytes, by: dict[int, Decimal], at: datetime, file: Path) -> list[str]:
    return [repr(one) for one in (order, data, by, at.year, file.name)]

@app.task
def same(order: Order) -> Order:
    return order

@app.workflow
def flow(flow: Flow, order: Order, *, data: bytes = b"") -> None:
    assert (type(order), data) == (Order, b"\\xff")
    flow.run(same, order, name="same")
"""


def test_the_shell_sends_what_json_says_by_the_annotations(headrace: Commands, tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    given = ['{"name": "a", "count": 2}', "/w==", '{"1": "1.10"}', "2030-01-02T00:00:00Z", "file=/tmp/x"]
    ids = [headrace.enqueue("typed.told", *given), headrace.enqueue("typed.told", *given, "--app", "typed:app")]
    same = headrace.enqueue("typed.same", given[0])
    wrong = headrace.enqueue("typed.same", '{"name": "secret", "count": "secret"}')
    run = headrace("workflows", "create", "typed.flow", given[0], "data=/w==", "--app", "typed:app", "--start").out
    assert headrace("jobs", "show", ids[0], "--json").json["form"] == "json"
    headrace("worker", "typed:app", "--burst", "--quiet")
    expected = ["Order(name='a', count=2)", r"b'\xff'", "{1: Decimal('1.10')}", "2030", "'x'"]
    assert [headrace("jobs", "result", id).json for id in ids] == [expected, expected]
    assert headrace("jobs", "result", same).json == {"name": "a", "count": 2}
    fault = headrace("jobs", "result", wrong, code=1).err
    assert "argument 'order' of typed.same: not a valid Order (count: int parsing, got str)" in fault
    assert "secret" not in fault + str(headrace("jobs", "show", wrong, "--json").json["error"])
    assert headrace("workflows", "show", run.split()[0], "--json").json["state"] == "succeeded"
    refused = headrace("enqueue", "typed.same", "{}", "--app", "typed:app", code=2)
    assert "not a valid Order (name: missing; count: missing)" in refused.err


def test_the_time_to_wait_has_an_exit_code_of_its_own(headrace: Commands) -> None:
    ended = headrace("enqueue", "tasks.add", "1", "--wait", "--timeout", "50ms", code=5)
    id, fault = ended.err.splitlines()
    assert f"{id} of tasks.add is ready" in fault
    assert headrace("jobs", "result", id, "--timeout", "0", code=5).fault


def test_pages(headrace: Commands) -> None:
    ids = [headrace.enqueue("tasks.add", str(n)) for n in range(3)]
    headrace("queues", "pause", "other", "--create")
    headrace("enqueue", "tasks.add", "--delay", "1h")
    *rows, cursor = headrace("jobs", "list", "--state", "ready", "--limit", "2", "--order", "asc", "--json").lines
    assert [row["id"] for row in rows] == ids[:2]
    rest = headrace("jobs", "list", "--order", "asc", "--after", cursor["next"], "--json").lines
    assert [row["id"] for row in rest][:1] == ids[2:]
    assert [row["state"] for row in rest] == ["ready", "scheduled"], "without --state the next state follows"
    assert "more: --after" in headrace("jobs", "list", "--limit", "1").err


def test_queues(headrace: Commands) -> None:
    for _ in range(2):
        headrace.enqueue("tasks.add", "1", "--queue", "low")
    assert headrace("queues", "pause", "low").out == "low is paused\n"
    assert headrace("queues", "pause", "low", "--json").json == {
        "name": "low", "paused": True, "changed": False, "for": None
    }  # fmt: skip
    (queue,) = headrace("queues", "list", "--json").lines
    assert (queue["name"], queue["ready"], queue["paused"], queue["paused_until"]) == ("low", 2, True, None)
    assert queue["oldest_wait"] > 0
    table = headrace("queues", "list").out.splitlines()
    assert table[0].split() == ["queue", "ready", "paused", "oldest", "wait", "workers"]
    assert table[1].split()[:3] == ["low", "2", "paused"]
    assert headrace("queues", "resume", "low").out == "low is served again\n"

    assert "add --yes" in headrace("queues", "purge", "low", code=2).fault
    assert "Delete 2 jobs of low for good?" in (
        refused := on_terminal(headrace, "queues", "purge", "low", answer="n\n")
    )
    assert "nothing was deleted" in refused
    assert headrace("queues", "purge", "low", "--yes", "--json").json == {"name": "low", "deleted": 2}
    assert headrace("queues", "purge", "low").out == "deleted 0 jobs of low\n"


def test_a_queue_that_is_nowhere_in_use_is_likely_mistyped(headrace: Commands) -> None:
    assert "no queue mail has held work lately, is paused or is served: there is none yet. Add --create" in (
        headrace("queues", "pause", "mail", code=1).fault
    )
    headrace.enqueue("tasks.add", "1", "--queue", "mail")
    assert "did you mean mail?" in headrace("queues", "purge", "mial").err
    for verb in ("pause", "resume"):
        said = headrace("queues", verb, "mial", code=1).fault
        assert "no queue mial has held work lately, is paused or is served: did you mean mail?" in said
        assert ("--create" in said) == (verb == "pause")
    assert headrace("queues", "pause", "mial", "--create").out == "mial is paused\n"
    assert headrace("queues", "resume", "mial").out == "mial is served again\n"
    assert headrace("queues", "pause", "mail").out == "mail is paused\n"


def test_a_pause_with_an_end(headrace: Commands) -> None:
    before = datetime.now(UTC)
    assert headrace("queues", "pause", "low", "--for", "10h", "--create").out == "low is paused; it is resumed in 10h\n"
    (queue,) = headrace("queues", "list", "--json").lines
    until = datetime.fromisoformat(queue["paused_until"]) - timedelta(hours=10)
    assert (queue["paused"], before <= until <= datetime.now(UTC)) == (True, True)
    assert re.search(
        r"^low +0 +until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ \(in 10h\) ", headrace("queues", "list").out, re.MULTILINE
    )
    again = headrace("queues", "pause", "low", "--for", "30m", "--json").json
    assert again == {"name": "low", "paused": True, "changed": False, "for": 1800}
    assert headrace("queues", "pause", "low").out == "low was paused already\n"
    (queue,) = headrace("queues", "list", "--json").lines
    assert (queue["paused"], queue["paused_until"]) == (True, None)
    assert "duration must be more than 0" in headrace("queues", "pause", "low", "--for", "0", code=2).fault


def test_a_purge_that_is_confirmed_shows_its_progress(headrace: Commands) -> None:
    headrace.enqueue("tasks.add", "1")
    shown = on_terminal(headrace, "queues", "purge", "default", answer="y\n")
    assert "1/1" in shown
    assert "deleted 1 job of default" in shown


def test_a_purge_names_a_shard_that_is_away(new_server: Callable[..., Server], tmp_path: Path) -> None:
    """It deleted as many jobs as the others had, here none, and called that done."""
    servers = [new_server(append_only=True) for _ in range(3)]
    headrace = Commands(tmp_path, " ".join(server.url for server in servers))
    id = headrace.enqueue("tasks.add", "1")
    away = servers[shard_of(id)]
    away.kill()
    told = headrace("queues", "purge", "default", "--yes", code=3, HEADRACE_TIMEOUT="1")
    assert f"shard {shard_of(id)} ({away.url}) did not answer" in told.fault
    assert told.out == ""
    away.start()
    assert headrace("queues", "purge", "default", "--yes").out == "deleted 1 job of default\n"


def test_the_private_server(tmp_path: Path) -> None:
    headrace = Commands(tmp_path, None)
    headrace.environment["HEADRACE_EMBEDDED_IDLE_TIMEOUT"] = "0"
    assert headrace("server", "path").out == f"{tmp_path / '.headrace'}\n"
    assert headrace("server", "status", code=1).out.splitlines()[1].split(maxsplit=1) == ["server", "does not run"]
    try:
        assert headrace("server", "start", "--json").json["running"]
        id = headrace.enqueue("tasks.add", "1")
        assert headrace("jobs", "list", "--json").lines[0]["id"] == id
        status = headrace("server", "status")
        assert "runs, until headrace server stop" in status.out
        password = (tmp_path / ".headrace" / "password").read_text().strip()
        assert password not in headrace("server", "status", "--json").out + status.out
    finally:
        assert headrace("server", "stop").out == f"the server of {tmp_path / '.headrace'} has stopped\n"
    assert headrace("server", "stop", "--json").json["stopped"] is False


def test_a_terminal_gets_tables_and_whole_ids_at_any_width(headrace: Commands) -> None:
    id = headrace.enqueue("tasks.add", "1", "--queue", "a-queue-with-a-rather-long-name-in-it")
    for columns in (40, 80):
        shown = on_terminal(headrace, "jobs", "list", columns=columns)
        assert id in shown
        assert "─" in shown
    lines = shown.splitlines()
    table = [line for line in lines if not line.startswith("no worker serves")]
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in table), lines
    assert not re.search("[─\x1b]", headrace("jobs", "list").out), "a pipe gets plain text"


def test_a_reader_that_leaves_ends_the_command_quietly(headrace: Commands) -> None:
    headrace.enqueue("tasks.add", "1")
    process = headrace.start("jobs", "list", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (141, "")


def test_states_that_can_be_named_are_those_that_exist() -> None:
    assert set(EACH) == set(State)


def test_help_loads_neither_drivers_nor_rich_nor_an_event_loop(headrace: Commands) -> None:
    """They cost more than everything else that a help text needs."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "headrace", "--help"],
        cwd=headrace.directory, env=headrace.environment, text=True, capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    rooms = {"admin", "app", "protocol", "stats", "store", "tasks", "worker", "workflows"}
    assert not loaded & {"asyncio", "redis", "rich", *(f"headrace.{room}" for room in rooms)}
    assert "..." not in run.stdout.partition("Commands:")[2]


def test_a_worker_that_stops_is_marked_in_the_list(headrace: Commands, url: str) -> None:
    with Headrace(url) as app:
        keys, run = app.client.keys, app.client.run
        run(consume.register(keys, "w0", 3_600_000_000, ["queues", "mail", "runners", "process:1", "draining", 1]))
        assert re.search(r"(?m)^w0 .* process:1 +0, draining ", headrace("workers", "list").out)
        run(consume.retire(keys, "w0", 0))
