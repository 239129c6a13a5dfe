"""Messages that wait for Celery and RQ become jobs of ours: each once, whoever is killed, whatever else takes them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from rq.serializers import JSONSerializer

from headrace import Headrace
from tests.brokers import Rabbit, is_debian, make_celery
from tests.commands import Commands
from tests.deadline import eventually
from tests.servers import Server

pytestmark = pytest.mark.system

TASKS = """
from headrace import Headrace
import redis, os
app = Headrace()

@app.task(name="shop.note")
def note(number: int) -> None:
    redis.Redis.from_url(os.environ["THEIRS"]).rpush("done", f"ours {number}")
"""
THEIR_TASKS = """
import celery, os, redis
app = celery.Celery("shop", broker=os.environ["THEIRS"].replace("unix://", "redis+socket://"))

@app.task(name="shop.note")
def note(number):
    redis.Redis.from_url(os.environ["THEIRS"]).rpush("done", f"theirs {number}")
"""


def test_celery_may_work_on_while_bridges_are_killed(
    headrace: Commands, url: str, tmp_path: Path, their_server: Server, theirs: redis.Redis
) -> None:
    headrace.write("tasks", TASKS)
    headrace.write("shop", THEIR_TASKS)
    headrace.environment["THEIRS"] = their_server.url
    _, send = make_celery(their_server.url)
    count, dice = 120, random.Random(7)
    line = ("bridge", "celery", "--from", their_server.url, "--queues", "celery", "--to", "default")
    celery_worker = [
        sys.executable,
        "-m",
        "celery",
        *["-A", "shop", "worker", "-P", "solo", "-Q", "celery", "-l", "ERROR"],
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with ExitStack() as kills:

        def start(process: Any) -> Any:
            kills.callback(process.wait, 30)
            kills.callback(process.kill)
            return process

        worker = start(headrace.start("worker", "tasks:app", **quiet))
        old = start(subprocess.Popen(celery_worker, cwd=tmp_path, env=headrace.environment, stdout=subprocess.DEVNULL))
        for number in range(count):
            send.delay(number)
            if number % 60 == 30:
                bridges = [start(headrace.start(*line, **quiet)) for _ in range(2)]
                eventually(lambda: theirs.llen("celery") == 0, 60)
                for bridge in bridges:
                    bridge.send_signal(dice.choice((signal.SIGKILL, signal.SIGTERM)))
        # It gives back what it has fetched and not begun.
        old.terminate()
        old.wait(60)
        start(headrace.start(*line, **quiet))
        eventually(lambda: theirs.llen("done") >= count, 90)
        worker.terminate()
        worker.wait(60)
    done = [entry.decode().split() for entry in theirs.lrange("done", 0, -1)]
    assert sorted(int(number) for _, number in done) == list(range(count))
    assert {who for who, _ in done} >= {"ours"}
    assert theirs.llen("headrace:bridge:celery") == 0


@pytest.mark.slow
@pytest.mark.skipif(not is_debian(), reason="RabbitMQ is taken from Debian's packages, and this is not Debian")
def test_messages_at_rabbitmq_are_moved_too(headrace: Commands, url: str, nothing_left_running: None) -> None:
    broker = Rabbit()
    try:
        broker.start()
        _, send = make_celery(broker.url)
        for number in range(30):
            send.apply_async((number,), serializer="pickle" if number == 3 else "json", priority=number % 3)
        line = ("bridge", "celery", "--from", broker.url, "--until-empty", "--json", "--queues")
        ran = headrace(*line, "celery", code=1).json
        assert (ran["moved"], len(ran["left"])) == (29, 1)
        assert len(headrace(*line, "celery", code=1).json["left"]) == 1
        assert "no such queue" in headrace(*line, "absent", code=2).err
        with Headrace(url) as ours:
            assert {one.priority for one in ours.jobs.page("ready")} == {0, 1, 2}
    finally:
        broker.stop()


def test_a_bridge_goes_on_when_their_server_is_back(
    headrace: Commands, url: str, new_server: Callable[..., Server]
) -> None:
    server = new_server("valkey-9")
    queue = rq.Queue("mail", connection=server.client(), serializer=JSONSerializer)
    line = ("bridge", "rq", "--from", server.url, "--queues", "mail")
    bridge = headrace.start(*line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        with Headrace(url) as app:
            queue.enqueue("shop.note", 1)
            eventually(lambda: app.jobs.count("ready") == 1, 60)
            server.kill()
            assert "again in 1 s" in bridge.stderr.readline()  # type: ignore[union-attr]
            server.start()
            queue.enqueue("shop.note", 2)
            eventually(lambda: app.jobs.count("ready") == 2, 60)
    finally:
        bridge.terminate()
        bridge.communicate(timeout=30)
