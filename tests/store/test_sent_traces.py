"""Spans of programs that enqueue: what a sampler is told, and how a send that is refused ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import OptionsError

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult, StaticSampler

from headrace.tasks import traces
from headrace.tasks.submission import Submission

pytestmark = pytest.mark.any_server


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url, traces="auto") as app:
        yield app


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


def test_headers_that_a_middleware_adds_to_the_context_are_measured(app: Headrace) -> None:
    @app.enqueue_middleware
    @contextmanager
    def stamp(act: Submission) -> Iterator[None]:
        act.jobs[0].headers["large"] = "x" * 5000
        yield

    with pytest.raises(OptionsError, match=r"take at most 4,096 bytes in all, and these take 5,\d+"):
        app.by_name("tasks.process").enqueue()


def test_another_word_for_it_is_refused() -> None:
    app = Headrace("redis://127.0.0.1:1")
    with pytest.raises(OptionsError, match="trace must be 'parent' or 'link', not 'both'"):
        app.task(trace="both")  # type: ignore[call-overload]
