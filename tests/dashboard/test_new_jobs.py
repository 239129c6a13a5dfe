"""A new job from a page: a form that is typed from the task's signature."""

from __future__ import annotations

from headrace.dashboard import Dashboard
from tests.dashboard.asking import ask, fields, operator, viewer
from tests.dashboard.conftest import Shop


async def test_a_form_is_typed_from_the_signature_and_makes_one_job(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, operator)
    page = await ask(dashboard, "/jobs/new?task=shop.add")
    assert "a: int (required)" in page.text
    assert "b: int" in page.text
    form = {**fields(page), "argument a": "1", "queue": "mail", "minutes": "5"}
    made = [await ask(dashboard, "/jobs/new", form=form) for _ in range(2)]
    assert len({one.headers["location"] for one in made}) == 1
    (job,) = empty.app.jobs.page("scheduled")
    assert (job.task, job.queue, job.arguments) == ("shop.add", "mail", {"a": 1})
    (act, _) = empty.app.acts.page()
    assert (act.who, act.verb, act.kind, act.name) == ("ada", "enqueue", "tasks", "shop.add")


async def test_the_server_checks_what_was_typed(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, operator)
    asked = fields(await ask(dashboard, "/jobs/new?task=shop.add"))
    for typed, words in (({"argument a": '"<b>no</b>"'}, "a"), ({"argument a": "{"}, "a is not JSON"), ({}, "missing")):
        page = await ask(dashboard, "/jobs/new", form=asked | typed)
        assert (page.status, words in page.text, "<b>no" in page.text) == (400, True, False)
    wrong = await ask(dashboard, "/jobs/new", form=asked | {"argument a": "1", "queue": "_own"})
    assert wrong.status == 400
    assert empty.app.jobs.count("ready") == 0
    assert all(act.reply.startswith("Nothing was done") for act in empty.app.acts.page())


async def test_a_text_is_typed_as_it_is_and_a_task_elsewhere_takes_json(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, operator)
    asked = fields(await ask(dashboard, "/jobs/new?task=shop.show"))
    await ask(dashboard, "/jobs/new", form=asked | {"argument text": "plain [words]"})
    asked = fields(await ask(dashboard, "/jobs/new?task=far.away"))
    await ask(dashboard, "/jobs/new", form=asked | {"json": '{"n": 1}'})
    found = {job.task: job.arguments for job in empty.app.jobs.page("ready")}
    assert found == {"shop.show": {"text": "plain [words]"}, "far.away": {"n": 1}}


async def test_only_operators_make_jobs(empty: Shop) -> None:
    form = {"task": "shop.add", "argument a": "1"}
    page = await ask(Dashboard(empty.app, viewer), "/jobs/new?task=shop.add")
    assert (page.status, "Make the job" in page.text) == (200, False)
    for dashboard in (Dashboard(empty.app, viewer), Dashboard(empty.app, operator, read_only=True)):
        assert (await ask(dashboard, "/jobs/new", form=form)).status in (403, 404, 405)
    assert empty.app.jobs.count("ready") == 0
