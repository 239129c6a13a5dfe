"""Acts from the shell: each verb that changes something is recorded once, with who did it and what the store replied."""

from __future__ import annotations

import getpass
import json
import signal
import socket
import subprocess
from pathlib import Path

from tests.commands import Commands


def test_verbs_are_recorded_and_looks_are_not(headrace: Commands) -> None:
    one, two = headrace.enqueue("tasks.add", "1"), headrace.enqueue("tasks.add", "2")
    headrace("jobs", "list")
    headrace("jobs", "cancel", one, two, two)
    headrace("jobs", "retry", one)
    headrace("jobs", "cancel", "0" * 21, code=1)
    headrace("queues", "pause", "default", "--for", "5m")
    headrace("queues", "purge", "default", code=2)
    headrace("queues", "purge", "default", "--yes")
    found = headrace("acts", "--json", "--order", "asc").lines
    assert [(act["verb"], act["kind"], act["name"], act["count"], act["reply"]) for act in found] == [
        ("cancel", "jobs", f"{one} {two}", 2, "2 done, 0 not"),
        ("retry", "jobs", one, 1, "is ready again"),
        ("cancel", "jobs", "0" * 21, 1, f"refused: no job {'0' * 21} is stored: it never existed, it ended and its "
         "retention (result_ttl, failure_ttl) is over, or the server lost it"),
        ("pause", "queues", "default", 1, "default is paused; it is resumed in 5m"),
        ("purge", "queues", "default", 1, "deleted 1 job of default"),
    ]  # fmt: skip
    assert {(act["who"], act["by"]) for act in found} == {(f"{getpass.getuser()}@{socket.gethostname()}", "cli")}


def test_acts_for_people(headrace: Commands) -> None:
    headrace.enqueue("tasks.add", "1")
    assert "no act is recorded" in headrace("acts").err
    headrace("queues", "pause", "default")
    headrace("queues", "resume", "default")
    shown = headrace("acts", "--limit", "1")
    assert "resume" in shown.out
    assert "default is served again" in shown.out
    cursor = shown.err.split("--after ")[1].split()[0]
    assert "default is paused" in headrace("acts", "--after", cursor).out
    assert "not the id of an act" in headrace("acts", "--after", "yesterday", code=2).err


def test_events_are_listed_and_followed(headrace: Commands) -> None:
    assert "nothing has failed" in headrace("events").err
    headrace("queues", "pause", "default", "--create")
    (first,) = headrace("events", "--json").lines
    assert (first["kind"], first["queue"], first["until"]) == ("queue_paused", "default", "0")
    assert "queue_paused  queue=default" in headrace("events", "--kind", "queue_paused").out
    assert "did you mean failed?" in headrace("events", "--kind", "faild", code=2).err
    with headrace.start("events", "--follow", "--json", "--after", first["id"], stdout=subprocess.PIPE) as process:
        headrace("queues", "resume", "default")
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert (told["kind"], told["queue"]) == ("queue_resumed", "default")
    assert told["id"] > first["id"]


def test_an_export_is_verified_without_a_server(headrace: Commands, tmp_path: Path) -> None:
    for verb in ("pause", "resume", "pause"):
        headrace("queues", verb, "default", *(["--create"] if verb == "pause" else []))
    lines = headrace("acts", "export", "--since", "1h").out.splitlines()
    assert len(lines) == 3
    export = tmp_path / "acts.jsonl"
    export.write_text("\n".join(lines))
    away = Commands(tmp_path, "redis://127.0.0.1:1/0")
    assert "3 acts in one chain" in away("acts", "verify", str(export)).out
    export.write_text("\n".join([lines[0], lines[2]]))
    assert "the chain breaks at act" in away("acts", "verify", str(export), code=1).err
    export.write_text("{}")
    assert "not an exported act" in away("acts", "verify", str(export), code=1).err
