"""Verbs on many jobs from the shell, with and without a worker that does the rest."""

from __future__ import annotations

from headrace import Headrace
from tests.commands import Commands
from tests.deadline import eventually


def fill(url: str, count: int) -> Headrace:
    app = Headrace(url)
    add = app.by_name("tasks.add", delay=3600)
    app.enqueue_many(add.job(n) for n in range(count))
    return app


def test_all_that_a_filter_means(headrace: Commands, url: str) -> None:
    with fill(url, 700) as app:
        asked = headrace("jobs", "cancel", "--all", "--state", "scheduled", code=2).err
        assert "this would cancel 700 jobs (state:scheduled): add --yes" in asked
        assert app.jobs.count("scheduled") == 700
        done = headrace("jobs", "cancel", "--all", "--state", "scheduled", "--yes")
        assert "cancel state:scheduled: 700 done" in done.out
        assert app.jobs.count("cancelled") == 700
        headrace("jobs", "rm", "--all", "--state", "cancelled", "--task", "tasks.add", "--yes", "--json")
        assert app.jobs.count("cancelled") == 0
    (act, first) = headrace("acts", "--json").lines
    assert (act["verb"], act["scope"], act["count"]) == ("delete", "state:cancelled task:tasks.add", 700)
    assert (first["verb"], first["scope"], first["by"]) == ("cancel", "state:scheduled", "cli")
    assert headrace("bulk", "list", "--json").lines == []


def test_a_worker_does_what_is_left_to_it(headrace: Commands, url: str) -> None:
    with fill(url, 700) as app:
        begun = headrace("jobs", "cancel", "--all", "--state", "scheduled", "--yes", "--detach", "--json")
        id = begun.json["id"]
        assert (begun.json["state"], begun.json["done"]) == ("ready", 0)
        assert "cancel state:scheduled: ready" in headrace("bulk", "show", id).out
        with headrace.start("worker", "tasks:app") as worker:
            eventually(lambda: app.bulk.get(id).state == "succeeded", 60)
            worker.terminate()
            worker.wait(60)
        assert app.jobs.count("cancelled") == 700
        assert "700 done; looked at 700" in headrace("bulk", "show", id).out
        assert "700 done" in headrace("jobs", "show", id).out
        (own,) = headrace("jobs", "list", "--own", "--json").lines
        assert (own["id"], own["task"]) == (id, "headrace.bulk")
        assert all(one["id"] != id for one in headrace("jobs", "list", "--json").lines if "id" in one)


def test_a_filter_that_means_no_job_asks_for_no_yes(headrace: Commands) -> None:
    assert "0 done" in headrace("jobs", "cancel", "--all", "--state", "scheduled").out


def test_a_secret_in_a_filter_is_shown_to_nobody(headrace: Commands) -> None:
    key = "redis://u:hunter2@host"
    begun = headrace("jobs", "cancel", "--all", "--state", "scheduled", "--key", key, "--yes", "--detach")
    assert "no worker lives: start one" in begun.err
    (one,) = headrace("bulk", "list", "--json").lines
    told = [headrace("bulk", *words, *how).out for words in (["list"], ["show", one["id"]]) for how in ([], ["--json"])]
    assert all("redis://u:***@host" in text and "hunter2" not in text for text in told), told


def test_ids_and_all_do_not_go_together(headrace: Commands) -> None:
    assert "give ids, or --all" in headrace("jobs", "cancel", code=2).err
    assert "headrace jobs rm --help" in headrace("jobs", "rm", code=2).err
    assert "give ids, or --all" in headrace("jobs", "retry", "0" * 21, "--all", code=2).err
    assert "--all" in headrace("jobs", "retry", "0" * 21, "--task", "x", code=2).err
    assert "no bulk operation" in headrace("bulk", "stop", "0" * 21, code=1).err
    assert "leave the filters out" in headrace("jobs", "list", "--own", "--queue", "x", code=2).err
