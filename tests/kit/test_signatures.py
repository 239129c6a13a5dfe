"""Signed jobs: a worker with ``require_signature`` runs what its producers signed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Concurrency, Every, Flow, Headrace, Job, Unique
from headrace.errors import BadSignature, JobQuarantined, SettingsError
from headrace.testing import Kit

OLD, NEW, OTHER = "old-" * 8, "new-" * 8, "other-" * 6


def application(**settings: Any) -> Headrace:
    app = Headrace("redis://127.0.0.1:1/0", **settings)

    @app.task(name="pay", retries=0)
    def pay(amount: int, *, to: str = "ada") -> str:
        return f"{amount} to {to}"

    @app.task(name="free", retries=0)
    def free(amount: int, *, to: str = "ada") -> str:
        return f"free {amount}"

    @app.task(name="none")
    def none() -> str:
        return "nothing"

    @app.task(name="numbers")
    def numbers() -> list[int]:
        return [1, 2]

    @app.workflow(name="bills")
    def bills(flow: Flow, amount: int) -> None:
        first = flow.run(pay, amount)
        flow.run(pay, 2, params={"to": first})
        flow.map(pay, flow.run(numbers))

    return app


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit(application(signing_keys=f"{NEW} {OLD}", require_signature=True)) as kit:
        yield kit


def other(kit: Kit, **settings: Any) -> Headrace:
    """A program that can write to the server of the test."""
    return Headrace(kit.url, namespace=settings.pop("namespace", kit.namespace), **settings)


def refused(kit: Kit, id: str) -> str:
    """Why a job was not run; it ended at once."""
    drained = kit.drain(raises=False)
    assert drained.ends == {"corrupt": 1}
    with pytest.raises(JobQuarantined) as found:
        kit.app.jobs.get(id).result(0)
    assert BadSignature.__name__ in str(found.value)
    return str(found.value)


def test_what_is_signed_runs(kit: Kit) -> None:
    pay = kit.app.tasks["pay"]
    jobs: list[Job[Any]] = [pay.enqueue(1), pay.enqueue(2, to="bob"), pay.enqueue_json("[3]", '{"to": "bob"}')]
    jobs += [pay.options(retries=2, headers={"tenant": "a"}, key="k", ordered=True).enqueue(4)]
    jobs += [kit.app.by_name("none").enqueue(), kit.app.by_name("pay").enqueue(5)]
    kit.app.enqueue_many(made := [pay.job(6), pay.options(unique="six").job(7)])
    kit.app.enqueue_packed([pay.options(headers={"tenant": "b"}).job(8).pack()])
    kit.app.enqueue_packed([pay.options(headers={"tenant": "b"}).job(8).pack()])
    jobs += [one.handle for one in made]
    assert kit.drain().ends == {"succeeded": 10}
    assert [job.result(0) for job in jobs] == [
        "1 to ada", "2 to bob", "3 to bob", "4 to ada", "nothing", "5 to ada", "6 to ada", "7 to ada",
    ]  # fmt: skip
    assert [(*record.args, record.kwargs) for record in map(Job[Any].refresh, jobs[:3])] == [
        (1, {}), (2, {"to": "bob"}), (3, {"to": "bob"}),
    ]  # fmt: skip


def test_nodes_and_what_they_add_are_signed(kit: Kit) -> None:
    run = kit.app.workflow_definitions["bills"].create(1)
    run.start()
    assert kit.drain(raises=False).ends == {"succeeded": 5, "grown": 1}
    assert list(run.outputs().values()) == ["2 to 1 to ada", ["1 to ada", "2 to ada"]]


def test_jobs_of_schedules_are_signed(kit: Kit) -> None:
    job = kit.app.schedules.put("rent", Every(3600), kit.app.tasks["pay"], 1).run()
    assert kit.drain().ends == {"succeeded": 1}
    assert job.result(0) == "1 to ada"


def test_unique_jobs_may_get_later_arguments(kit: Kit) -> None:
    pay = kit.app.tasks["pay"].options(unique=Unique(text="rent", clash="replace"))
    job = pay.enqueue(1)
    assert pay.enqueue(2).id == job.id
    kit.drain()
    assert job.result(0) == "2 to ada"


def test_an_unsigned_job_is_quarantined_with_what_to_do(kit: Kit) -> None:
    with other(kit) as attacker:
        id = attacker.by_name("pay").enqueue(1_000_000).id
    text = refused(kit, id)
    assert "has no signature" in text
    assert "signing_keys" in text
    assert "Traceback" not in text


def test_a_retry_by_hand_does_not_help_it(kit: Kit) -> None:
    with other(kit) as attacker:
        id = attacker.by_name("pay").enqueue(1).id
    refused(kit, id)
    kit.app.jobs.get(id).retry()
    assert "has no signature" in refused(kit, id)


def test_a_key_that_is_not_in_the_ring_signs_nothing(kit: Kit) -> None:
    with other(kit, signing_keys=OTHER) as attacker:
        id = attacker.by_name("pay").enqueue(1).id
    assert "not one of this job" in refused(kit, id)


def test_the_old_key_of_the_ring_still_verifies(kit: Kit) -> None:
    with other(kit, signing_keys=OLD) as last_release:
        job = last_release.by_name("pay").enqueue(1)
        assert kit.drain().ends == {"succeeded": 1}
        assert job.result(0) == "1 to ada"


@pytest.mark.parametrize("change", ["task", "id", "args", "options", "headers", "namespace"])
def test_a_copied_or_changed_job_does_not_run(kit: Kit, client: Any, change: str) -> None:
    keys = kit.app.client.keys
    job = kit.app.tasks["pay"].options(headers={"tenant": "a"}, retries=1).enqueue(1)
    if change == "namespace":
        with other(kit, namespace="elsewhere", signing_keys=NEW) as there:
            foreign = there.by_name("pay").options(headers={"tenant": "a"}, retries=1).job(1)
            client.hset(keys.job(job.id), "args", _stored(there, foreign))
    elif change == "id":
        client.hset(keys.job(job.id), "args", _stored(kit.app, kit.app.tasks["pay"].job(1)))
    elif change == "args":
        args = client.hget(keys.job(job.id), "args")
        client.hset(keys.job(job.id), "args", args.replace(b"\x91\x01", b"\x91\x09"))
    else:
        value = {"task": "free", "options": b"\x81\xa7retries\x09", "headers": b"tenant\0b"}[change]
        client.hset(keys.job(job.id), change, value)
    assert "not one of this job" in refused(kit, job.id)


def _stored(app: Headrace, job: Any) -> bytes:
    assert app.client.keys.seal is not None
    return app.client.keys.seal.arguments(job.form, job.id, job.args)


def test_workers_without_keys_run_signed_jobs() -> None:
    with Kit(application()) as kit, other(kit, signing_keys=NEW) as producer:
        jobs = [producer.by_name("pay").enqueue(1), producer.by_name("pay").enqueue_json("[2]")]
        kit.drain()
        assert [job.result(0) for job in jobs] == ["1 to ada", "2 to ada"]


def test_lists_and_limits_read_signed_arguments() -> None:
    app = application(signing_keys=NEW)
    app.limit("each", Concurrency(1), by="to")

    @app.task(name="limited", limits=["each"])
    def limited(to: str) -> None: ...

    with Kit(app) as kit:
        jobs = [limited.enqueue("ada"), limited.enqueue_json('["bob"]')]
        kit.drain()
        assert [job.refresh().arguments for job in jobs] == [{"to": "ada"}, {"to": "bob"}]


def test_keys_are_checked_and_never_shown() -> None:
    with pytest.raises(SettingsError, match="fewer than 32 characters"):
        Headrace(signing_keys="short")
    with pytest.raises(SettingsError, match="needs signing_keys"):
        Headrace(require_signature=True)
    app = Headrace(signing_keys=f"{NEW} {OLD}")
    assert NEW not in repr(app.settings)
    assert OLD not in repr(app.settings)
