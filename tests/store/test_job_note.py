"""The option ``note``: a text for people, which lists of jobs show."""

from __future__ import annotations

from pathlib import Path

from headrace import Flow, Headrace
from headrace.model.workflow import parse_facts
from headrace.worker.runner.runner_context import spread
from tests.commands import Commands
from tests.store.test_app import Worker


def fetch(n: int = 0) -> int:
    return n


def test_a_note_is_shown_wherever_its_job_is(tmp_path: Path, url: str) -> None:
    headrace = Commands(tmp_path, url)
    id = headrace.enqueue("tasks.add", "1", "--note", "order [7] of Ada")
    other = headrace.enqueue("tasks.add", "1")
    (line,) = [line for line in headrace("jobs", "list").out.splitlines() if id in line]
    assert line.endswith("order [7] of Ada")
    assert headrace("jobs", "list", "--json").out.count('"note":"order [7] of Ada"') == 1
    assert "note       order [7] of Ada" in headrace("jobs", "show", id).out
    assert headrace("jobs", "show", id, "--json").json["note"] == "order [7] of Ada"
    assert headrace("jobs", "show", other, "--json").json["note"] is None


def test_a_note_stands_before_what_happened(tmp_path: Path, url: str) -> None:
    headrace = Commands(tmp_path, url)
    id = headrace.enqueue("tasks.unknown", "--note", "the first", "--expires", "1ms")
    with Headrace(url) as app:
        worker = Worker(app)
        (claim,) = worker.claim()
        worker.settle(claim, "failed", b'{"type":"ValueError","message":"boom"}')
    (line,) = [line for line in headrace("jobs", "list").out.splitlines() if id in line]
    assert line.endswith("the first; ValueError: boom")


def test_a_note_travels_with_jobs_nodes_broadcasts_and_envelopes(url: str) -> None:
    with Headrace(url) as app:
        task = app.task(name="fetch", note="of the task")(fetch)
        Worker(app)
        assert task.enqueue().refresh().note == "of the task"
        bound = task.options(note="mine")
        jobs = [
            bound.enqueue(),
            *bound.broadcast(),
            *(app.job(one.job_id) for one in app.enqueue_packed([bound.job().pack()])),
        ]
        assert [job.refresh().note for job in jobs] == ["mine"] * 3

        @app.workflow
        def graph(flow: Flow) -> None:
            flow.run(task, 1, name="one", options={"note": "of a node"})

        assert graph.create().node("one").refresh().note == "of a node"


def test_the_jobs_of_a_map_have_its_note(url: str) -> None:
    with Headrace(url) as app:
        task = app.task(name="fetch")(fetch)

        @app.workflow
        def graph(flow: Flow) -> None:
            flow.map(task, flow.run("listing"), name="each", options={"note": "of a map"})

        run = graph.create()
        run.start()
        worker = Worker(app)
        worker.succeed(b"\x92\x01\x02")
        (claim,) = worker.claim()
        graft = spread(claim, parse_facts(claim.facts), b"\x92\x91\x92\x01\x02\x80")
        assert graft is not None
        assert [node.form.note for node in graft.nodes] == ["of a map", "of a map", ""]
