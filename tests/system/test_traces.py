"""Traces with the real SDK in real runners: which span belongs to which, how each ends, and what no killed one loses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import OptionsError
from headrace.workflows.builder import Flow
from tests.program import Program

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult, StaticSampler

from headrace.tasks import traces
from headrace.tasks.submission import Submission

pytestmark = pytest.mark.system

TRACED = """
import json, os, signal, sys, time
from headrace import Headrace, Retry, current_job
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

app = Headrace()

class ToFile(SpanExporter):
    def export(self, spans):
        while os.path.exists("hang"):
            time.sleep(0.05)
        with open("spans", "a") as out:
            for span in spans:
                out.write(span.to_json(indent=None) + chr(10))
        return SpanExportResult.SUCCESS

@app.after_fork_child
def provide():
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=100))
    trace.set_tracer_provider(provider)

def _own(name):
    with trace.get_tracer("shop").start_as_current_span(name):
        return format(trace.get_current_span().get_span_context().trace_id, "032x")

@app.task(kind="process")
def process(): return _own("own")
@app.task(kind="fork")
def fork(): return _own("own")
@app.task(kind="thread")
def thread(): return _own("own")
@app.task(kind="async")
async def coroutine(): return _own("own")

@app.task(retries=Retry(max=1, delay=0.01))
def fail(times: int, password: str = "canary"):
    if current_job().attempt <= times:
        raise ValueError(f"password={password}")

@app.task
def snooze():
    if not current_job().snoozes:
        current_job().snooze(0.01)

@app.task
def die():
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@app.task
def parent():
    process.enqueue()

@app.task(trace="link")
def apart(): return _own("own")
"""


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Program:
    program = Program(tmp_path, url)
    program.write("tasks", TRACED)
    program.environment |= {"HEADRACE_TRACES": "auto", "PYTHONDONTWRITEBYTECODE": "1"}
    return program


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, traces="auto") as app:
        yield app


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans of this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "tracer", provider.get_tracer("headrace"))
    return exporter


def spans(headrace: Program, name: str) -> list[dict[str, Any]]:
    """Those of runners of this name, in the order of their ends."""
    path = headrace.directory / "spans"
    lines = path.read_text().splitlines() if path.exists() else []
    return [span for span in map(json.loads, lines) if span["name"] == name]


def hexa(number: int, digits: int) -> str:
    return f"0x{number:0{digits}x}"


@pytest.mark.parametrize("kind", ["process", "fork", "thread", "coroutine"])
def test_a_start_is_a_child_of_its_sender_and_the_jobs_own_spans_are_below_it(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter, kind: str
) -> None:
    job = app.by_name(f"tasks.{kind}", queue="mail").enqueue()
    headrace.burst("--queues", "mail")
    (send,) = sent.get_finished_spans()
    (start,), (own,) = spans(headrace, f"process tasks.{kind}"), spans(headrace, "own")
    assert send.name == f"send tasks.{kind}"
    assert send.kind.name == "PRODUCER"
    assert send.context is not None
    assert dict(send.attributes or {}) == {
        "messaging.system": "headrace", "messaging.operation.name": "enqueue", "messaging.operation.type": "send",
        "messaging.destination.name": "mail", "headrace.task": f"tasks.{kind}", "messaging.message.id": job.id,
        "messaging.message.body.size": 3,
    }  # fmt: skip
    assert start["kind"] == "SpanKind.CONSUMER"
    assert start["context"]["trace_id"] == hexa(send.context.trace_id, 32) == f"0x{job.result()}"
    assert start["parent_id"] == hexa(send.context.span_id, 16)
    assert own["parent_id"] == start["context"]["span_id"]
    said = start["attributes"]
    assert said["messaging.message.id"] == job.id
    assert (said["headrace.outcome"], said["headrace.attempt"]) == ("succeeded", 1)
    assert start["status"] == {"status_code": "UNSET"}


def test_a_sampler_knows_the_task_and_a_refused_send_is_an_error(
    app: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class Sampler(StaticSampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            asked.append(dict(kwargs.get("attributes") or args[4]))
            return super().should_sample(*args, **kwargs)

    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=Sampler(Decision.RECORD_AND_SAMPLE))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "tracer", provider.get_tracer("headrace"))

    @app.enqueue_middleware
    @contextmanager
    def refuse(act: Submission) -> Iterator[None]:
        raise ValueError("not today")
        yield

    before = trace.get_current_span()
    with pytest.raises(ValueError, match="not today"):
        app.by_name("tasks.process", queue="mail").enqueue()
    assert trace.get_current_span() is before
    assert (asked[0]["messaging.destination.name"], asked[0]["headrace.task"]) == ("mail", "tasks.process")
    (span,) = exporter.get_finished_spans()
    assert asked[0] == dict(span.attributes or {})
    assert (span.status.status_code.name, span.status.description) == ("ERROR", "ValueError: not today")
    assert [event.name for event in span.events] == ["exception"]


def test_what_a_job_enqueues_is_below_its_start(headrace: Program, app: Headrace, sent: InMemorySpanExporter) -> None:
    app.by_name("tasks.parent").enqueue()
    headrace.burst()
    (above,), (send,), (below,) = (
        spans(headrace, f"{what}") for what in ("process tasks.parent", "send tasks.process", "process tasks.process")
    )
    assert send["parent_id"] == above["context"]["span_id"]
    assert below["parent_id"] == send["context"]["span_id"]
    assert len({span["context"]["trace_id"] for span in (above, send, below)}) == 1


def test_delayed_jobs_and_one_of_many_begin_traces_that_link_to_their_sender(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    task = app.by_name("tasks.process")
    task.options(delay=0.01).enqueue()
    app.enqueue_many(task.job() for _ in range(30))
    app.enqueue_many(app.by_name("tasks.thread").job() for _ in range(5))
    headrace.burst()
    late, many, few = sent.get_finished_spans()
    assert all(span.context is not None for span in (late, many, few))
    assert (many.attributes or {})["messaging.batch.message_count"] == 30
    found = spans(headrace, "process tasks.process")
    assert len({span["context"]["trace_id"] for span in found}) == 31
    assert all(span["parent_id"] is None for span in found)
    linked = sorted(span["links"][0]["context"]["trace_id"] for span in found)
    assert linked == sorted([hexa(late.context.trace_id, 32), *[hexa(many.context.trace_id, 32)] * 30])
    siblings = spans(headrace, "process tasks.thread")
    assert {span["parent_id"] for span in siblings} == {hexa(few.context.span_id, 16)}


def test_each_failed_start_is_an_error_and_a_retry_is_a_trace_of_its_own(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    app.by_name("tasks.fail").enqueue(1)
    headrace.burst()
    first, second = spans(headrace, "process tasks.fail")
    assert first["status"]["status_code"] == "ERROR"
    assert (first["attributes"]["headrace.outcome"], first["attributes"]["error.type"]) == ("retry", "ValueError")
    (event,) = first["events"]
    assert event["name"] == "exception"
    assert "in fail" in event["attributes"]["exception.stacktrace"]
    assert "canary" not in json.dumps(first)
    assert second["status"] == {"status_code": "UNSET"}
    assert second["attributes"]["headrace.attempt"] == 2
    assert second["context"]["trace_id"] != first["context"]["trace_id"]
    assert second["links"][0]["context"]["trace_id"] == first["context"]["trace_id"]


def test_a_snooze_is_no_error(headrace: Program, app: Headrace, sent: InMemorySpanExporter) -> None:
    app.by_name("tasks.snooze").enqueue()
    headrace.burst()
    outcomes = [(s["attributes"]["headrace.outcome"], s["status"]) for s in spans(headrace, "process tasks.snooze")]
    assert outcomes == [("snoozed", {"status_code": "UNSET"}), ("succeeded", {"status_code": "UNSET"})]


def test_the_start_after_a_killed_one_tells_of_it(headrace: Program, app: Headrace, sent: InMemorySpanExporter) -> None:
    app.by_name("tasks.die").enqueue()
    headrace.burst()
    (start,) = spans(headrace, "process tasks.die")
    (event,) = start["events"]
    assert event["name"] == "previous start crashed"
    assert event["attributes"]["headrace.crash.signal"] == 9
    assert event["attributes"]["headrace.crash.attempt"] == 1


def test_a_workflow_is_one_trace(headrace: Program, app: Headrace, sent: InMemorySpanExporter) -> None:
    @app.workflow(name="shop.order")
    def order(flow: Flow) -> None:
        flow.run("tasks.process", name="second", after=flow.run("tasks.thread", name="first"))

    run = order.create()
    run.start()
    headrace.burst()
    create, *_ = sent.get_finished_spans()
    assert create.name == "create shop.order"
    assert create.context is not None
    for name in ("process tasks.thread", "process tasks.process"):
        (start,) = spans(headrace, name)
        assert start["parent_id"] == hexa(create.context.span_id, 16)
        assert start["attributes"]["messaging.message.conversation_id"] == run.id


@pytest.mark.parametrize("kind", ["process", "fork", "thread", "coroutine"])
def test_no_span_is_lost_with_a_runner_that_leaves(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter, kind: str
) -> None:
    # The exporter would send them later than these runners live.
    headrace.write("tasks", TRACED.replace("schedule_delay_millis=100", "schedule_delay_millis=60_000"))
    app.enqueue_many(app.by_name(f"tasks.{kind}").job() for _ in range(10))
    headrace.burst("--recycle-jobs", "3")
    assert len(spans(headrace, f"process tasks.{kind}")) == 10


def test_a_collector_that_hangs_holds_up_neither_jobs_nor_the_end_of_the_worker(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    (headrace.directory / "hang").touch()
    jobs = [app.by_name("tasks.process").enqueue() for _ in range(3)]
    headrace.burst()
    assert all(job.result(timeout=0) for job in jobs)
    assert spans(headrace, "process tasks.process") == []


def test_a_job_without_room_for_the_context_is_stored_without_it(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    full = {f"header-{n}": "x" for n in range(16)}
    job = app.by_name("tasks.process", headers=full).enqueue()
    assert dict(job.refresh().headers) == full
    headrace.burst()
    (start,) = spans(headrace, "process tasks.process")
    assert start["parent_id"] is None
    assert start["links"] == []


def test_headers_that_a_middleware_adds_to_the_context_are_measured(app: Headrace, sent: InMemorySpanExporter) -> None:
    @app.enqueue_middleware
    @contextmanager
    def stamp(act: Submission) -> Iterator[None]:
        act.jobs[0].headers["large"] = "x" * 5000
        yield

    with pytest.raises(OptionsError, match=r"take at most 4,096 bytes in all, and these take 5,\d+"):
        app.by_name("tasks.process").enqueue()


def test_without_the_setting_nothing_of_it_is_loaded(headrace: Program, url: str) -> None:
    headrace.environment["HEADRACE_TRACES"] = "off"
    headrace.write(
        "tasks",
        """
import sys
from headrace import Headrace
app = Headrace()

@app.task
def loaded():
    return [name for name in sys.modules if name.startswith("headrace") and "trace" in name]
""",
    )
    # As where the extra is not installed. (The driver of the server imports it by itself where it is.)
    (headrace.directory / "absent").mkdir()
    (headrace.directory / "absent/opentelemetry.py").write_text("raise ImportError")
    headrace.environment["PYTHONPATH"] = str(headrace.directory / "absent")
    with Headrace(url) as plain:
        assert plain.client.enqueue_middlewares == []
        job = plain.by_name("tasks.loaded").enqueue()
        # In an interpreter of its own: this one has loaded it.
        headrace.fresh("worker", "tasks:app", "--burst", "--processes", "1")
        wrong = headrace.fresh("worker", "tasks:app", code=None, HEADRACE_TRACES="auto")
        assert "pip install 'headrace[otel]'" in wrong.err
        assert wrong.code
        assert job.result(timeout=0) == []
        assert dict(job.refresh().headers) == {}


def test_a_provider_that_is_made_before_the_fork_is_told_with_the_hook_to_use(headrace: Program) -> None:
    headrace.write("tasks", TRACED.replace("@app.after_fork_child\ndef provide", "def provide") + "\nprovide()\n")
    said = headrace.burst().err
    assert "the import of tasks:app started" in said
    assert "start it in @app.after_fork_child" in said


def test_a_task_says_itself_of_which_trace_its_starts_are(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    headrace.environment["HEADRACE_TRACES"] = "parent"
    for name in ("apart", "process"):
        app.by_name(f"tasks.{name}").enqueue()
    headrace.burst()
    senders = {span.name.removeprefix("send tasks."): span.context.trace_id for span in sent.get_finished_spans()}
    (apart,), (process,) = spans(headrace, "process tasks.apart"), spans(headrace, "process tasks.process")
    assert apart["parent_id"] is None
    assert [link["context"]["trace_id"] for link in apart["links"]] == [hexa(senders["apart"], 32)]
    assert process["context"]["trace_id"] == hexa(senders["process"], 32)


def test_another_word_for_it_is_refused() -> None:
    app = Headrace("redis://127.0.0.1:1")
    with pytest.raises(OptionsError, match="trace must be 'parent' or 'link', not 'both'"):
        app.task(trace="both")  # type: ignore[call-overload]


def test_what_warms_a_forker_up_leaves_no_span(headrace: Program, app: Headrace) -> None:
    # Of a provider that the program sets as it is imported, so that the fork server has it, too.
    text = TRACED.replace("@app.after_fork_child\n", "").replace(", schedule_delay_millis=100", "")
    headrace.write("tasks", text.replace("BatchSpanProcessor", "SimpleSpanProcessor") + "\nprovide()\n")
    app.by_name("tasks.fork", queue="mail").enqueue()
    headrace.burst("--queues", "mail")
    assert len(spans(headrace, "process tasks.fork")) == 1
    assert not spans(headrace, "process headrace.dry_run")
