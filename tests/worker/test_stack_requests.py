"""Stacks on demand: what is told to whom, and what comes too late."""

from __future__ import annotations

import msgspec
import pytest

from headrace.model.stacks import WorkerStacks
from headrace.worker.dispatcher.dispatcher_events import Capture, StackHeard
from headrace.worker.dispatcher.remote_control import LATE, WAIT, StackRequests
from headrace.worker.dispatcher.runner_pool import RunnerPool
from headrace.worker.messages import Signal, Spawned
from headrace.worker.worker_options import WorkerOptions
from tests.worker.worker_states import arguments, desk_of, worker_state


def told(requests: StackRequests, now: float) -> list[WorkerStacks]:
    return [msgspec.json.decode(arguments(call)["text"], type=WorkerStacks) for call, _ in requests.steps(now)]


def test_stacks_that_come_too_late_are_in_no_answer_and_stay_out_of_the_log() -> None:
    worker = worker_state(options=WorkerOptions(processes=1))
    pool = RunnerPool(worker)
    pool.supply.resize("process", 1)
    pool.supply.up(Spawned(7, "process", 70), 0)
    requests = StackRequests(worker, desk_of(worker), pool.assignment)
    worker.actions.take()
    for now, texts, text in ((1.0, [], ""), (2.0, [b"one\n", b"two\n"], "one\ntwo")):
        worker.now = now
        requests.ask("me")
        assert worker.actions.take() == [Capture(7, pytest.approx(now + WAIT + LATE)), Signal(7, "stacks")]
        for part in texts:
            requests.on_stacks(StackHeard(7, part))
        assert told(requests, now) == []
        (answer,) = told(requests, now + WAIT)
        assert (answer.requests, [one.text for one in answer.runners]) == (["me"], [text])
        requests.on_stacks(StackHeard(7, b"late\n"))
        assert told(requests, now + WAIT) == []
