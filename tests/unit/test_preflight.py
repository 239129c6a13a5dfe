"""What a starting worker says of its queues: one that nobody serves, and one that looks mistyped."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from headrace import Headrace
from headrace.cli.server_check import queue_warnings
from headrace.cli.session import ApplicationFault
from headrace.cli.worker_process import check_tasks
from headrace.protocol.overviews import Overview, QueueFacts, WorkerFacts
from headrace.worker.worker_options import WorkerOptions


def seen(*served: str, queues: tuple[str, ...] = (), alive: bool = True) -> Overview:
    workers = [WorkerFacts(f"w{n}", 2 if alive else 1, 0, {"queues": names}) for n, names in enumerate(served)]
    return Overview(1, {}, [QueueFacts(name, 1, False, 1, 0) for name in queues], workers, {}, 0)


def shop() -> Headrace:
    app = Headrace("redis://unused")
    for name, queue in (("send", "mail"), ("greet", "mail"), ("add", "default")):
        app.task(name=name, queue=queue)(lambda: None)
    return app


def test_a_queue_of_its_tasks_that_no_worker_serves_is_named() -> None:
    for found in (seen(), seen("default,low"), seen("mail", alive=False)):
        assert queue_warnings(shop(), ("default", "high"), found) == [
            "no worker serves queue mail, where jobs of send and 1 other task go; those of this worker are default, high: add "
            "mail to its --queues, or start another worker for it"
        ]


def test_a_workflow_alone_needs_no_queue() -> None:
    app = Headrace("redis://unused")
    send = app.task(name="send", queue="mail")(lambda: None)
    app.workflow(name="letters")(lambda flow: flow.run(send))
    assert "workflow:letters" in app.tasks
    assert queue_warnings(app, ("mail",), seen()) == []


def test_what_another_live_worker_serves_is_no_matter() -> None:
    assert queue_warnings(shop(), ("default",), seen("low,mail")) == []
    assert queue_warnings(shop(), ("default", "mail"), seen()) == []


def test_a_name_that_looks_mistyped_is_named() -> None:
    (_, warning) = queue_warnings(shop(), ("default", "mial"), seen())
    assert warning == "this worker serves queue mial, which is new: did you mean mail?"
    # One in which jobs are enqueued by name only, which is near to no other, or which is known already.
    assert queue_warnings(shop(), ("default", "mail", "reports"), seen()) == []
    assert len(queue_warnings(shop(), ("default", "mial"), seen(queues=("mial",)))) == 1


@pytest.mark.parametrize(
    ("module", "asked", "call"),
    [
        ("gevent.monkey", "is_module_patched", r"gevent\.monkey\.patch_all\(\)"),
        ("eventlet.patcher", "is_monkey_patched", r"eventlet\.monkey_patch\(\)"),
    ],
)
def test_what_gevent_and_eventlet_have_patched_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: str, asked: str, call: str
) -> None:
    patched: list[str] = []
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asked: patched.__contains__}))
    check_tasks(shop(), "shop:app", WorkerOptions())
    patched.append("socket")
    with pytest.raises(ApplicationFault, match=f"shop:app calls {call}"):
        check_tasks(shop(), "shop:app", WorkerOptions())
