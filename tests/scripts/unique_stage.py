"""Short names for what tests of unique jobs set up and look at."""

from __future__ import annotations

from typing import Any

from headrace.model.form import NewJob
from headrace.model.ids import LENGTH
from headrace.model.job import Claim
from headrace.model.unique_rules import UniqueRule
from headrace.protocol.produce import Accepted
from tests.scripts.stage import SECOND, Stage

NAMED = UniqueRule("n")
RAISING = UniqueRule("n", clash="raise")
WITHIN = UniqueRule("n", "within", span=3600 * SECOND)


def holder(stage: Stage, name: str = "n") -> str | None:
    found: Any = stage.client.get(stage.keys(f"unique:{name}"))
    return found.decode()[:LENGTH] if found else None


def put(stage: Stage, rule: UniqueRule = NAMED, **facts: Any) -> tuple[NewJob, Accepted]:
    job = stage.job(unique=rule, **facts)
    return job, stage.enqueue(job)


def one(stage: Stage, rule: UniqueRule = NAMED, **facts: Any) -> str:
    job, answer = put(stage, rule, **facts)
    assert answer == Accepted("ok")
    return job.id


def only(stage: Stage) -> Claim:
    """The one job that is there to claim."""
    (claim,) = stage.take()
    return claim
