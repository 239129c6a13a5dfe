"""Encrypted jobs: their values are in plain in the code of jobs and in their results, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headrace import Flow, Headrace, Job, Retry, Secret, Tasks, current_job
from headrace.errors import (
    JobFailed,
    JobQuarantined,
    MissingExtra,
    NotDecrypted,
    OptionsError,
    SettingsError,
    StateError,
)
from headrace.testing import Kit
from tests.servers import connect

pytest.importorskip("cryptography", reason="the extra encryption is not installed")

OLD, NEW = "old-" * 8, "new-" * 8
CANARY = "canary-0831"


def application(**settings: Any) -> Headrace:
    app = Headrace("redis://127.0.0.1:1/0", **settings)
    encrypt = not settings.get("encrypt")

    @app.task(name="greet", encrypt=encrypt)
    def greet(name: str, *, twice: bool = False) -> str:
        current_job().log(f"greets {name}")
        current_job().progress(0.5, f"half of {name}")
        return f"hello {name}" * (2 if twice else 1)

    @app.task(name="fail", encrypt=encrypt, retries=Retry(max=1, delay=0))
    def fail(name: str) -> None:
        raise ValueError(f"{name} is wrong")

    @app.task(name="login")
    def login(user: str, pin: Secret[str]) -> str:
        return f"{user} with {len(pin)}"

    @app.task(name="draw")
    def draw() -> Secret[str]:
        return CANARY

    @app.task(name="names", encrypt=encrypt)
    def names(name: str) -> list[str]:
        return [name, f"{name}!"]

    @app.task(name="join")
    def join(names: list[str]) -> int:
        return sum(map(len, names))

    @app.task(name="plain")
    def plain(name: str) -> int:
        return len(name)

    @app.workflow(name="letters")
    def letters(flow: Flow, name: str) -> None:
        first = flow.run(names, name)
        flow.run(join, flow.map(greet, first))
        flow.map(plain, first)
        for _ in range(2):
            flow.run(greet, name + "x" * 2000)

    return app


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit(application(encryption_keys=f"{NEW} {OLD}")) as kit:
        yield kit


def stored(kit: Kit) -> bytes:
    """All bytes of the test in the server."""
    client: Any
    found: list[Any] = []
    with connect(kit.url) as client:
        read = {b"hash": client.hgetall, b"string": client.get, b"list": lambda key: client.lrange(key, 0, -1)}
        for key in client.scan_iter(f"{{{kit.namespace}:0}}:*"):
            kind = client.type(key)
            found += [key, read[kind](key) if kind in read else client.xrange(key) if kind == b"stream" else ""]
    return repr(found).encode()


def other(kit: Kit, **settings: Any) -> Headrace:
    return Headrace(kit.url, namespace=settings.pop("namespace", kit.namespace), **settings)


def test_values_are_plain_for_code_and_results_alone(kit: Kit) -> None:
    greet = kit.app.tasks["greet"]
    jobs: list[Job[Any]] = [greet.enqueue(CANARY), greet.enqueue_json(f'["{CANARY}"]', '{"twice": true}')]
    jobs += [greet.options(unique="one").enqueue(CANARY)]
    kit.app.enqueue_packed([packed := (unsent := greet.job(CANARY)).pack()])
    jobs.append(unsent.handle)
    assert CANARY.encode() not in packed + stored(kit)
    assert kit.drain().ends == {"succeeded": 4}
    hello = f"hello {CANARY}"
    assert [job.result(0) for job in jobs] == [hello, hello * 2, hello, hello]
    assert CANARY.encode() not in stored(kit)
    record = jobs[0].refresh()
    assert (record.args, record.result) == (("encrypted",), "encrypted")
    assert record.progress_text == "encrypted"
    assert record.arguments == {"name": "encrypted"}
    assert jobs[0].logs() == ["encrypted"]
    assert CANARY not in repr(record)


def test_what_an_outbox_and_a_bridge_bring_is_encrypted(kit: Kit) -> None:
    id = kit.app.tasks["greet"].job("").id
    kit.app.enqueue_packed([msgspec.msgpack.encode({"v": 1, "id": id, "task": "greet", "args": [CANARY]})])
    with other(kit) as relay:
        unsent = kit.app.tasks["login"].job("ada", CANARY)
        relay.enqueue_packed([unsent.pack()])
    assert CANARY.encode() not in stored(kit)
    kit.drain()
    assert [kit.app.jobs.get(one).result(0) for one in (id, unsent.id)] == [f"hello {CANARY}", "ada with 11"]


def test_error_texts_are_encrypted(kit: Kit) -> None:
    job = kit.app.tasks["fail"].enqueue(CANARY)
    assert kit.drain(raises=False).ends == {"retry": 1, "failed": 1}
    assert CANARY.encode() not in stored(kit)
    error = job.refresh().error
    assert error is not None
    assert (error.type, error.message, error.traceback) == ("ValueError", "encrypted", "encrypted")
    with pytest.raises(JobFailed, match=f"{CANARY} is wrong"):
        job.result(0)
    with other(kit) as reader, pytest.raises(JobFailed, match="ValueError: encrypted"):
        reader.jobs.get(job.id).result(0)


def test_a_secret_argument_is_encrypted_and_its_neighbours_are_not(kit: Kit) -> None:
    login = kit.app.tasks["login"]
    jobs = [login.enqueue("ada", CANARY), login.enqueue("ada", pin=CANARY), kit.app.tasks["draw"].enqueue()]
    kit.drain()
    assert [job.result(0) for job in jobs] == ["ada with 11", "ada with 11", CANARY]
    assert CANARY.encode() not in stored(kit)
    assert jobs[0].refresh().arguments == {"user": "ada", "pin": "encrypted"}


def test_workflows_pass_encrypted_results_on(kit: Kit) -> None:
    run = kit.app.workflow_definitions["letters"].create(CANARY)
    run.start()
    assert CANARY.encode() not in stored(kit)
    assert "failed" not in kit.drain().ends
    assert CANARY.encode() not in stored(kit)
    greeted = [f"hello {CANARY}", f"hello {CANARY}!"]
    found = run.outputs()
    assert found["join"] == sum(map(len, greeted))
    assert found["plain"] == [11, 12]
    assert run.refresh().args == ("encrypted",)


def test_all_tasks_of_an_application_are_encrypted() -> None:
    app = application(encryption_keys=NEW, signing_keys=NEW, require_signature=True, encrypt=True)
    with Kit(app) as kit:
        jobs = [app.tasks["plain"].enqueue(CANARY), app.by_name("plain").enqueue(CANARY)]
        with kit.assert_enqueued("plain", CANARY):
            jobs.append(app.tasks["plain"].enqueue(CANARY))
        assert CANARY.encode() not in stored(kit)
        kit.drain()
        assert [job.result(0) for job in jobs] == [11] * 3
        assert jobs[0].refresh().result == "encrypted"


def test_each_key_of_the_ring_reads(kit: Kit) -> None:
    with other(kit, encryption_keys=OLD, encrypt=True) as last_release:
        job = last_release.by_name("greet").enqueue("ada")
        kit.drain()
        assert kit.app.jobs.get(job.id).result(0) == "hello ada"
        with pytest.raises(NotDecrypted, match="encryption_keys lacks"):
            job.result(0)
    with other(kit) as without, pytest.raises(NotDecrypted, match="encryption_keys"):
        without.jobs.get(job.id).result(0)


def test_a_job_whose_key_is_missing_is_quarantined_and_can_be_retried(kit: Kit) -> None:
    with other(kit, encryption_keys="third-" * 6, encrypt=True) as elsewhere:
        job = elsewhere.by_name("greet").enqueue("ada")
    assert kit.drain(raises=False).ends == {"corrupt": 1}
    with pytest.raises(JobQuarantined, match=r"NotDecrypted.*encryption_keys lacks"):
        kit.app.jobs.get(job.id).result(0)


@pytest.mark.parametrize("change", ["namespace", "task", "id", "cut", "changed"])
def test_a_copied_or_changed_value_does_not_run(kit: Kit, client: Any, change: str) -> None:
    key = kit.app.client.keys.job
    job = kit.app.tasks["greet"].enqueue("ada")
    args = client.hget(key(job.id), "args")
    if change == "namespace":
        with other(kit, namespace="elsewhere", encryption_keys=NEW, encrypt=True) as there:
            unsent = there.by_name("greet").job("ada")
            assert there.client.keys.seal is not None
            args = there.client.keys.seal.arguments(unsent.form, job.id, unsent.args)
    elif change == "task":
        client.hset(key(job.id), "task", "plain")
    elif change == "id":
        args = client.hget(key(kit.app.tasks["greet"].options(queue="other").enqueue("bob").id), "args")
    else:
        args = args[:-3] if change == "cut" else args[:-1] + bytes([args[-1] ^ 1])
    client.hset(key(job.id), "args", args)
    assert kit.drain(queue="default", raises=False).ends == {"corrupt": 1}
    with pytest.raises(JobQuarantined):
        job.result(0)


def test_encrypted_arguments_cannot_be_edited(kit: Kit) -> None:
    job = kit.app.tasks["greet"].enqueue("ada")
    with pytest.raises(StateError, match="encrypted"):
        kit.app.jobs.again(job.id)


def test_what_is_missing_is_said_where_it_is_declared() -> None:
    app, tasks = Headrace("redis://127.0.0.1:1/0"), Tasks()
    with pytest.raises(OptionsError, match="needs the setting encryption_keys"):
        app.task(name="x", encrypt=True)(lambda: None)
    tasks.task(name="x", encrypt=True)(lambda: None)
    with pytest.raises(OptionsError, match="needs the setting encryption_keys"):
        app.include(tasks)
    with pytest.raises(SettingsError, match="encrypt needs encryption_keys"):
        Headrace(encrypt=True)


def test_a_missing_package_is_said_when_the_application_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=r"headrace\[encryption\]"):
        Headrace(encryption_keys=NEW)


def test_nothing_is_imported_without_keys() -> None:
    code = (
        "import sys; from headrace import Headrace; Headrace('redis://h', signing_keys='0' * 32);"
        "print([m for m in sys.modules if 'cryptography' in m]); "
        "del sys.modules['headrace.model.sealing']; Headrace('redis://h'); print('headrace.model.sealing' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["[]", "False"]
