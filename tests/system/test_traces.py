"""Traces with the real SDK in real runners: which span belongs to which, how each ends, and what no killed one loses."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace, Job
from headrace.workflows.scope import Flow
from tests.deadline import eventually
from tests.program import Program, Worker

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")

from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.tasks import traces

pytestmark = pytest.mark.system

KINDS = ("process", "fork", "thread", "coroutine")

TRACED = """
import contextlib, json, os, signal, sys, time
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

@app.task(kind="fork")  # so that it takes no spans of others with it
def die():
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@app.task
def parent():
    process.enqueue()

@app.task
def wait():
    open("waits", "w").close()
    while True:
        time.sleep(0.02)

@app.task
def carried():
    from opentelemetry import baggage
    state = trace.get_current_span().get_span_context().trace_state
    return [baggage.get_baggage("tenant"), state.get("vendor")]

@app.task
def says():
    import logging
    with trace.get_tracer("shop").start_as_current_span("own") as span:
        logging.getLogger("shop").warning("hello")
    raise ValueError

@app.middleware
@contextlib.contextmanager
def around(job):
    with trace.get_tracer("shop").start_as_current_span("around") if job.task == "tasks.framed" else contextlib.nullcontext():
        yield

@app.task
def framed(): return _own("own")

@app.task
def sum_of(left, right): return left + right

@app.task
def number(): return 1

@app.workflow(name="tasks.inner")
def inner(flow, start):
    flow.run(sum_of, flow.run(number, name="one"), start, name="total")
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
    # What has no end yet is still being written.
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [span for span in map(json.loads, lines) if span["name"] == name]


def hexa(number: int, digits: int) -> str:
    return f"0x{number:0{digits}x}"


def test_each_start_belongs_to_the_trace_of_its_sender(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    """One worker runs a job of each sort; each assertion reads its spans."""
    jobs = {kind: app.by_name(f"tasks.{kind}", queue="mail").enqueue() for kind in KINDS}
    sends = sent.get_finished_spans()
    for task in ("parent", "snooze", "framed", "die", "says"):
        app.by_name(f"tasks.{task}").enqueue()
    app.by_name("tasks.fail").enqueue(1)
    sender = trace.SpanContext(7, 7, is_remote=True, trace_flags=trace.TraceFlags(1),
                               trace_state=trace.TraceState([("vendor", "x")]))  # fmt: skip
    context = baggage.set_baggage("tenant", "acme", trace.set_span_in_context(trace.NonRecordingSpan(sender)))
    token = contexts.attach(context)
    try:
        at_once, late = (app.by_name("tasks.carried").options(delay=delay).enqueue() for delay in (0, 0.01))
    finally:
        contexts.detach(token)
    # A job without room for the context is stored without it.
    full = {f"header-{n}": "x" for n in range(16)}
    crowded = app.by_name("tasks.thread", headers=full).enqueue()
    assert dict(crowded.refresh().headers) == full
    lines = headrace.burst("--queues", "default,mail", "--log", "json").err.splitlines()
    for send, (kind, job) in zip(sends, jobs.items(), strict=True):
        _is_a_child_of_its_sender(headrace, kind, job, send)
    assert at_once.result(timeout=0) == ["acme", "x"]
    # A trace of its own begins without what vendors know of another one.
    assert late.result(timeout=0) == ["acme", None]
    start = _start(headrace, crowded)
    assert (start["parent_id"], start["links"]) == (None, [])
    _is_below_what_encloses_it(headrace)
    _fails_and_snoozes(headrace)
    _is_named_in_log_lines(headrace, [json.loads(line) for line in lines if line.startswith("{")])


def _start(headrace: Program, job: Job[Any]) -> dict[str, Any]:
    """The span of the only start of a job."""
    found = spans(headrace, f"process {job.refresh().task}")
    (start,) = (one for one in found if one["attributes"]["messaging.message.id"] == job.id)
    return start


def _is_a_child_of_its_sender(headrace: Program, kind: str, job: Job[Any], send: ReadableSpan) -> None:
    start = _start(headrace, job)
    (own,) = (one for one in spans(headrace, "own") if one["context"]["trace_id"] == start["context"]["trace_id"])
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
    assert 0 <= said.pop("headrace.waited") < 60
    place, _, pid = said.pop("messaging.client.id").rpartition(":")
    assert place
    assert pid.isdecimal()
    # Nothing else: no argument, and no result.
    assert said == {
        "messaging.system": "headrace", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": "mail", "headrace.task": f"tasks.{kind}", "messaging.message.id": job.id,
        "messaging.message.body.size": 3, "headrace.attempt": 1, "headrace.outcome": "succeeded",
        "headrace.correlation": f"{send.context.trace_id:032x}",
    }  # fmt: skip
    assert start["status"] == {"status_code": "UNSET"}


def _is_below_what_encloses_it(headrace: Program) -> None:
    """Jobs that a job enqueues, and spans below a middleware's."""
    (above,), (send,) = (spans(headrace, name) for name in ("process tasks.parent", "send tasks.process"))
    (below,) = (
        one for one in spans(headrace, "process tasks.process") if one["parent_id"] == send["context"]["span_id"]
    )
    assert send["parent_id"] == above["context"]["span_id"]
    assert len({span["context"]["trace_id"] for span in (above, send, below)}) == 1
    (start,), (middle,) = spans(headrace, "process tasks.framed"), spans(headrace, "around")
    assert middle["parent_id"] == start["context"]["span_id"]
    assert middle["context"]["span_id"] in [one["parent_id"] for one in spans(headrace, "own")]


def _fails_and_snoozes(headrace: Program) -> None:
    """Each failed start is an error, a retry a trace of its own, and a snooze no error."""
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
    outcomes = [(s["attributes"]["headrace.outcome"], s["status"]) for s in spans(headrace, "process tasks.snooze")]
    assert outcomes == [("snoozed", {"status_code": "UNSET"}), ("succeeded", {"status_code": "UNSET"})]


def _is_named_in_log_lines(headrace: Program, lines: list[dict[str, Any]]) -> None:
    """And the start after a killed one reports that one."""
    (hello,) = [line for line in lines if line["event"] == "hello"]
    (failed,) = [line for line in lines if line.get("code") == "job.failed" and line["task"] == "tasks.says"]
    (start,) = spans(headrace, "process tasks.says")
    (own,) = (one for one in spans(headrace, "own") if one["parent_id"] == start["context"]["span_id"])
    assert hello["trace_id"] == start["context"]["trace_id"].removeprefix("0x")
    assert hello["span_id"] == own["context"]["span_id"].removeprefix("0x")
    assert failed["trace_id"] == hello["trace_id"]
    (start,) = spans(headrace, "process tasks.die")
    (event,) = start["events"]
    assert event["name"] == "previous start crashed"
    assert event["attributes"]["headrace.crash.signal"] == 9
    assert event["attributes"]["headrace.crash.attempt"] == 1
    assert event["attributes"]["headrace.crash.peak_memory"] > 1 << 20
    assert ":" in event["attributes"]["headrace.crash.worker"]


def test_delayed_jobs_and_one_of_many_begin_traces_that_link_to_their_sender(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    task = app.by_name("tasks.process")
    task.options(delay=0.01).enqueue()
    app.enqueue_many(task.job() for _ in range(22))
    app.enqueue_many(app.by_name("tasks.thread").job() for _ in range(21))
    headrace.burst()
    late, many, few = sent.get_finished_spans()
    assert all(span.context is not None for span in (late, many, few))
    assert (many.attributes or {})["messaging.batch.message_count"] == 22
    found = spans(headrace, "process tasks.process")
    assert len({span["context"]["trace_id"] for span in found}) == 23
    assert all(span["parent_id"] is None for span in found)
    linked = sorted(span["links"][0]["context"]["trace_id"] for span in found)
    assert linked == sorted([hexa(late.context.trace_id, 32), *[hexa(many.context.trace_id, 32)] * 22])
    # With 20 others at most they are its children.
    siblings = spans(headrace, "process tasks.thread")
    assert len(siblings) == 21
    assert {span["parent_id"] for span in siblings} == {hexa(few.context.span_id, 16)}


def test_a_start_that_is_stopped_is_no_error(headrace: Program, app: Headrace, sent: InMemorySpanExporter) -> None:
    waits = headrace.directory / "waits"
    worker = Worker(headrace.start("worker", "tasks:app", "--processes", "1", "--shutdown-timeout", "10s"))
    try:
        job = app.by_name("tasks.wait").enqueue()
        eventually(waits.exists, 60)
        job.cancel()
        eventually(lambda: job.state.final, 60)
        waits.unlink()
        app.by_name("tasks.wait").enqueue()
        eventually(waits.exists, 60)
        assert worker.stop() == 0
    finally:
        worker.close()
    starts = spans(headrace, "process tasks.wait")
    assert [start["attributes"]["headrace.outcome"] for start in starts] == ["cancelled", "interrupted"]
    assert [(start["status"], start["events"]) for start in starts] == [({"status_code": "UNSET"}, [])] * 2


def test_a_workflow_is_one_trace(headrace: Program, app: Headrace, sent: InMemorySpanExporter) -> None:
    @app.workflow(name="shop.order")
    def order(flow: Flow) -> None:
        flow.run("tasks.process", name="second", after=flow.run("tasks.thread", name="first"))

    @app.workflow(name="shop.outer")
    def outer(flow: Flow) -> None:
        flow.run("workflow:tasks.inner", flow.run("tasks.number", name="first"), name="inner")

    plain, grown = order.create(), outer.create()
    for run in (plain, grown):
        run.start()
    headrace.burst()
    created = {span.name: span for span in sent.get_finished_spans() if span.name.startswith("create")}
    create = created["create shop.order"]
    assert create.context is not None
    for name in ("process tasks.thread", "process tasks.process"):
        (start,) = spans(headrace, name)
        assert start["parent_id"] == hexa(create.context.span_id, 16)
        assert start["attributes"]["messaging.message.conversation_id"] == plain.id
    assert grown.state.value == "succeeded"
    _is_of_the_trace_of_its_maker(headrace, grown.id, created["create shop.outer"])


def _is_of_the_trace_of_its_maker(headrace: Program, run: str, create: ReadableSpan) -> None:
    """A workflow that a node makes; and edges are named."""
    assert create.context is not None
    (first, one), (total,) = spans(headrace, "process tasks.number"), spans(headrace, "process tasks.sum_of")
    (inner,) = spans(headrace, "process workflow:tasks.inner")
    for span in (first, inner, one, total):
        assert span["context"]["trace_id"] == hexa(create.context.trace_id, 32)
        assert span["attributes"]["messaging.message.conversation_id"] == run
    assert first["parent_id"] == inner["parent_id"] == hexa(create.context.span_id, 16)
    # What a node adds is below that node.
    assert one["parent_id"] == total["parent_id"] == inner["context"]["span_id"]
    assert all("headrace.parents" not in span["attributes"] for span in (first, one))
    assert inner["attributes"]["headrace.parents"] == ["first"]
    assert [span["attributes"]["headrace.node"] for span in (first, inner)] == ["first", "inner"]
    assert total["attributes"]["headrace.parents"] == ["inner/one"]


def test_no_span_is_lost_with_a_runner_that_leaves(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    # The exporter would send them later than these runners live.
    headrace.write("tasks", TRACED.replace("schedule_delay_millis=100", "schedule_delay_millis=60_000"))
    app.enqueue_many(app.by_name(f"tasks.{kind}").job() for kind in KINDS for _ in range(10))
    headrace.burst("--recycle-jobs", "3")
    assert {kind: len(spans(headrace, f"process tasks.{kind}")) for kind in KINDS} == dict.fromkeys(KINDS, 10)


def test_no_span_is_lost_when_a_worker_has_fewer_runners_or_ends(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    headrace.write("tasks", TRACED.replace("schedule_delay_millis=100", "schedule_delay_millis=60_000"))
    worker = Worker(headrace.start("worker", "tasks:app", "--processes", "2", "--concurrency", "2"))
    kinds = ("process", "thread", "coroutine")
    try:
        jobs = [app.by_name(f"tasks.{kind}").enqueue() for kind in kinds for _ in range(4)]
        assert all(job.result(timeout=60) for job in jobs)
        worker.process.send_signal(signal.SIGTTOU)
        eventually(lambda: spans(headrace, "process tasks.process"), 60)
        assert worker.stop() == 0
    finally:
        worker.close()
    assert {len(spans(headrace, f"process tasks.{kind}")) for kind in kinds} == {4}


def test_a_collector_that_hangs_holds_up_neither_jobs_nor_the_end_of_the_worker(
    headrace: Program, app: Headrace, sent: InMemorySpanExporter
) -> None:
    (headrace.directory / "hang").touch()
    jobs = [app.by_name("tasks.process").enqueue() for _ in range(3)]
    headrace.burst()
    assert all(job.result(timeout=0) for job in jobs)
    assert spans(headrace, "process tasks.process") == []


def test_without_the_setting_nothing_of_it_is_loaded(headrace: Program, url: str) -> None:
    headrace.environment["HEADRACE_TRACES"] = "off"
    headrace.write(
        "tasks",
        """
import sys
from headrace import Headrace, Job
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


def test_what_warms_a_forker_up_leaves_no_span(headrace: Program, app: Headrace) -> None:
    # Of a provider that the program sets as it is imported, so that the fork server has it, too.
    text = TRACED.replace("@app.after_fork_child\n", "").replace(", schedule_delay_millis=100", "")
    headrace.write("tasks", text.replace("BatchSpanProcessor", "SimpleSpanProcessor") + "\nprovide()\n")
    app.by_name("tasks.fork", queue="mail").enqueue()
    headrace.burst("--queues", "mail")
    assert len(spans(headrace, "process tasks.fork")) == 1
    assert not spans(headrace, "process headrace.dry_run")
