from __future__ import annotations

from headrace.model.ids import is_ordered, shard_of
from tests.scripts.stage import SECOND, Stage


def test_ordered_and_plain_jobs_of_several_keys_come_in_one_batch(stage: Stage) -> None:
    jobs = [
        stage.job(key=f"k{n % 3}", ordered=n % 4 != 3, queue="ab"[n % 2], delay=SECOND if n == 8 else 0)
        for n in range(12)
    ]
    stage.enqueue(*jobs)
    turns: set[str] = set()
    for n, job in enumerate(jobs):
        waits = job.form.ordered and job.form.key in turns
        wanted = "scheduled" if n == 8 else "blocked" if waits else "ready"
        assert stage.state(job.id) == wanted
        assert is_ordered(job.id) == job.form.ordered
        assert shard_of(job.id) == 0
        if job.form.ordered and n != 8:
            turns.add(job.form.key)


def test_a_queue_is_woken_only_for_what_is_ready(stage: Stage) -> None:
    stage.put(key="k", ordered=True)
    stage.doze()
    stage.put(5, key="k", ordered=True)
    assert stage.tokens() == 0
    stage.put(2, key="other", ordered=True)
    assert stage.tokens() == 1
