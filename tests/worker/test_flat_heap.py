"""Traces and Sentry keep nothing of a job that has ended: as many objects after thousands of jobs as before them."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace import Headrace
from headrace.model.ended import Failed, Succeeded
from headrace.model.form import Form, NewJob
from headrace.model.ids import make_id
from headrace.model.job import Claim
from headrace.tasks.submission import of_rows
from headrace.worker.runner.interrupts import MainGate
from headrace.worker.runner.runner_context import runner_context
from headrace.worker.runner.runner_process import performers

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")
pytest.importorskip("sentry_sdk")

import sentry_sdk
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from sentry_sdk.transport import Transport

from headrace.contrib import sentry
from headrace.tasks import traces

JOBS = 3_000
AT = 1_700_000_000_000


class Nowhere(Transport):
    def capture_envelope(self, envelope: Any) -> None: ...


def job_of(app: Headrace) -> Callable[[int], None]:
    """What sends one job, and starts it: each tenth fails."""
    context = runner_context(app, "host:1", random.random, None)
    perform, _ = performers(context)
    gate = MainGate(lambda _: "")

    def job(n: int) -> None:
        id, args = make_id(AT + n, n), msgspec.msgpack.encode([[n], {}])
        act = of_rows("enqueue", [NewJob(id, args, Form("work"))])
        for middleware in app.client.enqueue_middlewares:
            with middleware(act):
                (row,) = act.rows([NewJob(id, args, Form("work"))])
        token = (AT + n) * 1000
        ended = perform(context, gate, Claim(id, token, "default", token, "work", args, headers=row.form.headers), list)
        assert isinstance(ended, Failed if n % 10 == 0 else Succeeded)

    return job


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("what", ["traces", "sentry"])
def test_the_heap_is_flat(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Headrace("redis://127.0.0.1:1", traces="auto" if what == "traces" else "off")

    @app.task(name="work", retries=0)
    def work(n: int) -> int:
        if n % 10 == 0:
            raise ValueError(n)
        return n

    if what == "traces":
        provider = TracerProvider()
        provider.add_span_processor(SpanProcessor())
        monkeypatch.setattr(traces, "tracer", provider.get_tracer("headrace"))
    else:
        sentry_sdk.init("http://key@127.0.0.1/1", transport=Nowhere, traces_sample_rate=1.0, default_integrations=False)
        sentry.install(app)
    job = job_of(app)
    for n in range(1000):
        job(n)
    before = blocks()
    for n in range(1000, 1000 + JOBS):
        job(n)
    # One entry for each job would be 3,000; caches of the SDKs grow by some hundred.
    assert blocks() - before < JOBS / 4
    sentry_sdk.init(default_integrations=False)
