"""What traces cost a process, in microseconds of its processor, beside what the SDK's own calls cost in the same run.

Each round takes all cases one after the other, in one process; the fastest of the rounds counts, so that other programs
matter little. Nothing is sent: the store's part of an enqueue is taken out, and so is that of the exporter.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any

from bench.context import Context
from bench.figure import Bar, Figure

_CALLS, _ROUNDS = 10_000, 10
# Microseconds that a send and a start may take, by whether they are sampled.
_BARS = {True: (25, 60), False: (5, 8)}


def _fastest(cases: dict[str, Callable[[], object]], calls: int, rounds: int) -> dict[str, float]:
    found = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, call in cases.items():
            gc.collect()
            begun = time.process_time()
            for _ in range(calls):
                call()
            found[name] = min(found[name], (time.process_time() - begun) / calls * 1e6)
    return found


def _application(traces: Any) -> Any:
    from headrace import Headrace
    from headrace.settings import Settings

    nowhere = "redis://127.0.0.1:1"
    app: Any = Headrace(nowhere, settings=Settings(url=nowhere, traces=traces))
    app.client.submit = _stored

    app.task(_nothing, name="bench.nothing")
    return app


def _nothing(number: int) -> None: ...


def _stored(rows: Any, _requests: Any = ()) -> Any:
    return rows


def _ours(context: dict[str, str]) -> dict[str, Callable[[], object]]:
    """A send and a start, without traces and with them; a start of a job with and without a sender's context."""
    from headrace.model.form import Form, NewJob
    from headrace.model.headers import packed
    from headrace.model.ids import make_id
    from headrace.model.job import Claim
    from headrace.tasks import submission
    from headrace.worker.runner.interrupts import MainGate
    from headrace.worker.runner.runner_context import runner_context
    from headrace.worker.runner.runner_process import performers

    now = 1_700_000_000_000_000
    row = NewJob(make_id(now // 1000, 5), b"\x92\x91\x01\x80", Form("bench.nothing"))
    found: dict[str, Callable[[], object]] = {}
    for traces in ("off", "auto"):
        app = _application(traces)
        found[f"send {traces}"] = lambda app=app: submission.submit(app.client, "enqueue", [row])
        runner, gate = runner_context(app, "host:1", random.random), MainGate(lambda _: "")
        perform, _ = performers(runner)
        for sender, headers in (("alone", b""), ("below", packed(context))):
            claim = Claim(id=row.id, token=now, queue="default", ready=now - 5, task="bench.nothing", args=row.args,
                          headers=headers)  # fmt: skip
            found[f"{sender} {traces}"] = lambda perform=perform, runner=runner, gate=gate, claim=claim: perform(
                runner, gate, claim, lambda _: None
            )
    return found


def _theirs(sent: dict[str, str]) -> dict[str, Callable[[], object]]:
    """What the SDK alone takes for a send and for a start: its calls with as many attributes, nothing around them."""
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace

    tracer, root = trace.get_tracer("floor"), contexts.Context()
    few, many = ({f"headrace.{n}": "attribute" for n in range(most)} for most in (7, 11))

    def send() -> None:
        span = tracer.start_span("send", None, trace.SpanKind.PRODUCER, few)
        current = trace.set_span_in_context(span)
        token = contexts.attach(current)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, current)
        contexts.detach(token)
        span.end()

    def start(above: Callable[[], contexts.Context]) -> None:
        context = above()
        span = tracer.start_span("process", context, trace.SpanKind.CONSUMER, many)
        contexts.detach(contexts.attach(trace.set_span_in_context(span, context)))
        span.end()

    return {
        "send": send,
        "alone": lambda: start(lambda: root),
        "below": lambda: start(lambda: propagate.extract(sent, root)),
    }


def _traced(sampled: bool, calls: int, rounds: int) -> list[Figure]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

    from headrace.tasks import traces

    provider = TracerProvider(sampler=ParentBased(ALWAYS_ON if sampled else ALWAYS_OFF))
    provider.add_span_processor(SpanProcessor())
    # A process has one provider for its life, unless it is asked like this.
    trace._TRACER_PROVIDER = provider  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    traces.tracer = trace.get_tracer("headrace")
    sent = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-0{int(sampled)}"}
    theirs = {f"floor {name}": call for name, call in _theirs(sent).items()}
    took = _fastest(_ours(sent) | theirs, calls, rounds)
    send, start = _BARS[sampled]
    what = "sampled" if sampled else "not sampled"
    names = {"send": "send", "alone": "start without a sender's trace", "below": "start in a sender's trace"}
    return [
        Figure(f"{text}, {what}", took[f"{name} auto"] - took[f"{name} off"], "us", "the SDK alone",
               took[f"floor {name}"], Bar("at most", send if name == "send" else start))
        for name, text in names.items()
    ]  # fmt: skip


def run(context: Context) -> list[Figure]:
    """Send and start, sampled and not: what traces add to each."""
    calls, rounds = (1_000, 3) if context.quick else (_CALLS, _ROUNDS)
    context.say("observability: traces")
    return [*_traced(sampled=False, calls=calls, rounds=rounds), *_traced(sampled=True, calls=calls, rounds=rounds)]
