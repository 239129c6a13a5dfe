"""The rules of ``headrace acl``: each role can do what it is for, and a producer cannot read one argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace import Headrace, errors
from headrace.protocol.access import ROLES, Role, access_rules, scripts_of
from headrace.protocol.durability import Durability
from headrace.protocol.keys import Keys
from tests.program import Program
from tests.scripts.graphs import Flow
from tests.scripts.stage import Stage
from tests.scripts.test_headers import ALONE
from tests.servers import Server
from tests.store.plays import PLAYS


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    return new_server()


@pytest.fixture
def user(server: Server) -> Callable[..., redis.Redis]:
    """A client of a user with the rules of a role."""

    def make(role: Role, *more: str) -> redis.Redis:
        rules = access_rules(role, Keys(), Durability())
        server.owner.execute_command("ACL", "SETUSER", role, "reset", "on", ">pw", *rules, *more)
        return server.client(username=role, password="pw", client_name=None)

    return make


@pytest.fixture(autouse=True)
def nothing_is_denied_in_silence(server: Server) -> Iterator[None]:
    """A script may catch a refusal, and then do what is wrong: the server's log of refusals shows it."""
    yield
    # The driver's own words at the beginning of a connection are no part of a script.
    assert [entry for entry in server.owner.execute_command("ACL", "LOG") if b"lua" in entry] == []


def test_each_script_has_a_role() -> None:
    of_operators = {"examine", "recount", "restored"}
    assert {script for role in ROLES for script in scripts_of(role)} | of_operators == set(ALONE)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_can_play_its_scripts(role: Role, server: Server, user: Callable[..., redis.Redis]) -> None:
    stage = Stage(server.client(), guarded=False)
    client = user(role)
    for name, play in PLAYS.items():
        if name.partition(",")[0] not in scripts_of(role):
            continue
        stage.client.flushall()
        stage.now, stage._made, stage._requests, Flow.made_so_far = Stage(stage.client).now, 0, 0, 0
        call = play.call(stage.keys, play.arrange(stage), stage.now)
        client.execute_command("SCRIPT", "LOAD", call.script.text)
        client.execute_command(*call.command())


def test_a_producer_enqueues_and_reads_nothing_of_a_job(server: Server, user: Callable[..., redis.Redis]) -> None:
    client = user("producer")
    with Headrace(server.url_of("producer:pw")) as app:
        job = app.by_name("tasks.add").enqueue("private")
        assert app.enqueue_many([app.by_name("tasks.add").job(n) for n in range(3)]) == 3
        record = Keys().job(job.id)
        assert server.owner.hget(record, "args")
        with pytest.raises(errors.ServerError):
            app.by_name("tasks.add", key="k", ordered=True).enqueue(1)
    for words in (("HGETALL", record), ("HGET", record, "args"), ("DUMP", record), ("KEYS", "*"), ("FLUSHALL",)):
        with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
            client.execute_command(*words)
    sha = client.execute_command("SCRIPT", "LOAD", "return redis.call('HMGET', KEYS[1], 'args')")
    with pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        client.execute_command("EVALSHA", sha, 1, record)
    server.owner.execute_command("ACL", "LOG", "RESET")


def test_confirmed_work_may_be_confirmed(server: Server) -> None:
    rules = access_rules("producer", Keys(), Durability(fsync=True, replicas=1))
    assert {"+waitaof", "+wait", "+set", "~{hr:0}:mark:*"} <= set(rules)
    assert not {"+waitaof", "+wait"} & set(access_rules("producer", Keys(), Durability()))


def test_a_worker_of_its_own_user_runs_jobs_workflows_and_the_cache(
    server: Server, user: Callable[..., redis.Redis], tmp_path: Path
) -> None:
    user("worker")
    user("relay")
    (tmp_path / "tasks.py").write_text(APP)
    program = Program(tmp_path, server.url_of("worker:pw"))
    with Headrace(server.url_of("relay:pw")) as app:
        app.by_name("tasks.add", key="k", ordered=True).enqueue(1)
        app.by_name("tasks.add", unique="name").enqueue(2)
    run = program("worker", "tasks:app", "--processes", "1", "--burst")
    assert "refuse" not in run.err
    states = redis_states(server.owner)
    assert states == {b"succeeded": 2}


APP = """
from headrace import Headrace
app = Headrace(result_ttl=60)

@app.task
def add(x: int) -> int:
    app.cache.set("last", x)
    return x
"""


def redis_states(client: redis.Redis) -> dict[bytes, int]:
    return {name: count for name in (b"succeeded", b"failed") if (count := client.zcard(Keys()(name.decode())))}
