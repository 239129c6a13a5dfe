from __future__ import annotations

import asyncio
import copy
import math
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace, Retry, Settings, Task, Throttle, WorkflowRun, current_job
from headrace.errors import ArgumentError, CorruptRecord, NoCurrentJob, OptionsError, SettingsError
from headrace.model import elsewhere
from headrace.model.form import Form
from headrace.model.ids import is_ordered, ordered_id
from headrace.model.options import CallOptions, JobOptions, TaskOptions
from headrace.settings import ELSEWHERE, patience
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.task import budgets


@pytest.fixture
def app() -> Headrace:
    # Port 1: whatever connects fails the test.
    return Headrace("redis://localhost:1/0")


def row(bound: BoundTask[..., Any], *args: Any) -> Form:
    return bound.job(*args).take("0" * 21).form


def plain(x: int = 0) -> int:
    return x + 1


shop = Headrace("redis://localhost:1/0")


@shop.task
def sell(x: int) -> int:
    return x


@shop.cached
def price(x: int) -> int:
    return x


def test_a_decorated_function_travels_between_processes_by_its_name() -> None:
    for function in (sell, price):
        assert pickle.loads(pickle.dumps(function)) is copy.deepcopy(function) is function


def test_what_stays_in_its_process_says_so_where_it_is_pickled() -> None:
    for handle in (
        shop,
        shop.job("0" * 21),
        sell.options(delay=1),
        sell.options(delay=1).job(1),
        shop.stats,
        shop.cache,
    ):
        with pytest.raises(TypeError, match=r"pass job\.id, and ask"):
            pickle.dumps(handle)


def test_a_task_called_like_a_function_runs_in_place_without_a_server(app: Headrace) -> None:
    task = app.task(plain)
    assert task(2) == 3
    assert "store" not in app.client._made


def test_a_handle_says_that_its_task_was_not_read_yet(app: Headrace) -> None:
    assert repr(app.job("0" * 21)) == f"<Job {'0' * 21} (task not read)>"


async def test_a_coroutine_task_called_in_place_is_a_coroutine(app: Headrace) -> None:
    @app.task(name="double")
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    assert await double(4) == 8
    assert (double.kind, double.is_async) == ("async", True)


def test_a_task_keeps_what_python_knows_of_its_function(app: Headrace) -> None:
    @app.task(name="documented")
    def documented() -> None:
        """Say why."""

    assert (documented.__name__, documented.__doc__) == ("documented", "Say why.")


def test_no_job_runs_in_place(app: Headrace) -> None:
    task = app.task(name="asks")(current_job)
    with pytest.raises(NoCurrentJob, match="no job runs here"):
        task()


def test_names_come_from_module_and_function(app: Headrace) -> None:
    task = app.task(plain)
    assert task.name.endswith("test_task.plain")
    assert app.tasks == {task.name: task}


def test_a_function_that_no_worker_would_find_needs_a_name(app: Headrace) -> None:
    def inner() -> None: ...

    with pytest.raises(
        OptionsError, match=r"needs_a_name\.inner is defined inside of another function, where a worker"
    ):
        app.task(inner)
    for function in (Shop.sell, Shop().sell, Shop.static):
        with pytest.raises(OptionsError, match=r"Shop\.\w+ is a method, and a job has no object to call it on"):
            app.task(function)
    for options in ({}, {"name": "length"}):
        with pytest.raises(OptionsError, match="len is a builtin: write a function of yours that calls it"):
            app.task(**options)(len)
    assert app.tasks == {}
    assert app.task(name="inner")(inner).name == "inner"
    assert app.task(name="static")(Shop.static).name == "static"


class Shop:
    def sell(self) -> None: ...

    @staticmethod
    def static() -> None: ...


def test_the_same_name_twice_is_refused_and_both_places_are_told(app: Headrace) -> None:
    app.task(name="x")(plain)
    with pytest.raises(OptionsError, match=r"a task x already \(.*test_task.py:\d+\): give the one at .*test_task.py"):
        app.task(name="x")(lambda: None)


def test_the_script_that_is_run_and_the_module_that_is_imported_agree_on_names(tmp_path: Path) -> None:
    code = (
        "from headrace import Headrace\napp = Headrace('redis://localhost:1')\n"
        "@app.task\ndef fetch() -> None: ...\n"
        "if __name__ == '__main__': print(fetch.name)\n"
    )
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(code)
    (tmp_path / "jobs.py").write_text(code)

    def printed(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert printed("jobs.py") == "jobs.fetch"
    assert printed("-m", "jobs") == "jobs.fetch"
    assert printed("-m", "shop.jobs") == "shop.jobs.fetch"
    assert printed("shop/jobs.py") == "shop.jobs.fetch"
    assert printed("-c", "import shop.jobs; print(shop.jobs.fetch.name)") == "shop.jobs.fetch"


async def agen() -> Any:
    yield 1


def gen() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (plain, {"kind": "async"}, "runs coroutines: write `async def`"),
        (agen, {}, "yields, but a job has one result"),
        (gen, {}, "yields, but a job has one result"),
        (dict, {}, "takes a function"),
        (3, {}, "takes a function"),
        (lambda: None, {}, "no name of its own"),
        (plain, {"name": "a b"}, "task name 'a b' cannot be used"),
        (plain, {"name": ""}, "cannot be used"),
        (plain, {"name": 7}, "must be a text"),
        (plain, {"kind": "rocket"}, "kind must be one of process, fork, thread, async"),
        (plain, {"request_id": "x"}, "request_id names one job"),
        (plain, {"prio": 1}, "there is no option 'prio': did you mean 'priority'"),
        (plain, {"zzz": 1}, "there is no option 'zzz': the options are queue, "),
        (plain, {"limit": []}, "there is no option 'limit': did you mean 'limits'?"),
        (plain, {"kin": "thread"}, "there is no option 'kin': did you mean 'kind'?"),
        (plain, {"bind": True}, "there is no option 'bind': a job asks for itself: current_job"),
        (plain, {"countdown": 5}, "there is no option 'countdown': write delay="),
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_defined(
    app: Headrace, function: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionsError, match=text):
        app.task(**options)(function)
    assert app.tasks == {}


def test_a_coroutine_of_another_kind_is_refused(app: Headrace) -> None:
    async def waits() -> None: ...

    with pytest.raises(OptionsError, match="runs on an event loop, so kind='thread' cannot be"):
        app.task(name="waits", kind="thread")(waits)


def test_wrong_options_are_refused_before_the_function_is_seen(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="priority"):
        app.task(priority=101)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"queue": "sp ace"}, "queue name 'sp ace' cannot be used"),
    ({"queue": ""}, "queue name '' cannot be used"),
    ({"queue": 7}, "queue must be the name of a queue"),
    ({"queue": "q" * 129}, "cannot be used: take 1 to 128"),
    ({"priority": 101}, "priority must be a whole number from -100 to 100, not 101"),
    ({"priority": 1.5}, "priority must be a whole number"),
    ({"priority": True}, "priority must be a whole number"),
    ({"delay": -1}, "delay must be at least 0 and at most 100 years, not -1"),
    ({"delay": timedelta(seconds=-1)}, "delay must be at least 0"),
    ({"delay": float("nan")}, "delay must be at least 0"),
    ({"delay": "1"}, "delay must be seconds or a timedelta, not str"),
    ({"at": datetime(2030, 1, 1)}, "at=2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001 - the fault
    ({"at": 17}, "at must be a datetime with a time zone, not 17: of seconds since 1970 datetime.fromtimestamp"),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}, "delay and at contradict each other"),
    ({"expires": 0}, "expires must be more than 0"),
    ({"expires": 5, "delay": 5}, "expires must be more than delay"),
    ({"retries": -1}, "retries must be a whole number from 0 to 1000, not -1"),
    ({"retries": "3"}, "retries must be a whole number"),
    ({"timeout": -1}, "timeout must be more than 0"),
    ({"timeout": 0}, "timeout=0 would leave a job no time: for no limit give math.inf, or leave timeout out"),
    ({"hard_timeout": 0}, "hard_timeout=0 would leave a job no time"),
    ({"timeout": False}, "timeout must be seconds or a timedelta, not bool"),
    ({"timeout": 5, "hard_timeout": 5}, "hard_timeout=5 must be more than timeout=5"),
    ({"max_crashes": 0}, "max_crashes must be a whole number from 1 to 1000"),
    ({"result_ttl": -1}, "result_ttl must be at least 0"),
    ({"failure_ttl": "a day"}, "failure_ttl must be seconds or a timedelta, not str"),
    ({"at_most_once": 1}, "at_most_once must be True or False"),
    ({"at_most_once": True, "max_crashes": 2}, "at_most_once and max_crashes contradict each other"),
    ({"unique": Throttle(10, trailing=True), "expires": 10}, "expires must be more than per of Throttle"),
    ({"at_most_once": True, "retries": 1}, "at_most_once and retries contradict each other"),
    ({"key": ""}, "key must be a text of 1 to 256 characters"),
    ({"key": 7}, "key must be a text"),
    ({"key": "\udcff"}, "key must be a text"),
    ({"note": "\ud800"}, "note must be a text"),
]


@pytest.mark.parametrize(("options", "text"), BAD, ids=[str(options) for options, _ in BAD])
def test_each_option_is_checked_at_the_task_and_at_the_call(app: Headrace, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        app.task(**options)
    task = app.task(plain)
    with pytest.raises(OptionsError, match=text):
        task.options(**options)
    with pytest.raises(OptionsError, match=text):
        app.by_name("elsewhere", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "fork"}, "kind belongs to the task"),
        ({"name": "x"}, "name belongs to the task"),
        ({"request_id": ""}, "request_id must be a text"),
        ({"retries": Retry(on=(ValueError,))}, "which exceptions are retried is the task's to say"),
    ],
)
def test_what_only_the_task_may_say_is_refused_at_the_call(app: Headrace, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        app.task(plain).options(**options)


def test_a_job_that_would_expire_before_its_time_is_refused(app: Headrace) -> None:
    task = app.task(plain, expires=60)
    with pytest.raises(OptionsError, match="expires must be more than the time until at"):
        task.options(at=datetime(2100, 1, 1, tzinfo=UTC))
    task.options(at=datetime.now(UTC))


def test_contradictions_between_task_and_call_are_found(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="at_most_once"):
        app.task(name="a", retries=3)(plain).options(at_most_once=True)
    with pytest.raises(OptionsError, match="hard_timeout=60 must be more than timeout=100"):
        app.task(name="b", timeout=30, hard_timeout=60)(plain).options(timeout=100)
    assert app.tasks["a"].options(at_most_once=True, retries=0)


def test_options_reach_the_row(app: Headrace) -> None:
    task = app.task(queue="low", priority=5, max_crashes=7, delay=60)(plain)
    bound = task.options(priority=-3, key="customer-7", expires=timedelta(minutes=2), at_most_once=True)
    new = row(bound)
    assert (new.queue, new.priority, new.max_crashes, new.delay) == ("low", -3, 7, 60_000_000)
    assert (new.key, new.expires, new.at_most_once, new.options) == ("customer-7", 120_000_000, True, b"")


def test_an_ordered_job_has_a_key_and_an_id_that_says_so(app: Headrace) -> None:
    task = app.task(ordered=True)(plain)
    new = task.options(key="customer-7").job().take("0" * 21)
    assert (new.form.ordered, new.form.key, is_ordered(new.id)) == (True, "customer-7", True)
    assert not is_ordered(task.options(key="customer-7", ordered=False).job().take("0" * 21).id)
    with pytest.raises(OptionsError, match=r"plain is ordered by key, so each job needs one: .*options\(key="):
        row(task.options(priority=1))
    job = task.options(key="k").job()
    assert job.take("0" * 21).id == job.id == ordered_id("0" * 21)
    assert is_ordered(task.options(key="k").job().id)


def test_a_call_replaces_delay_by_at_and_the_reverse(app: Headrace) -> None:
    task = app.task(delay=60)(plain)
    when = datetime(2030, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
    new = row(task.options(at=when))
    assert (new.delay, new.at) == (0, 1_893_456_000_000_007)
    new = row(task.options(at=when).options(delay=5))
    assert (new.delay, new.at) == (5_000_000, 0)
    assert row(task.options(at=datetime(1960, 1, 1, tzinfo=UTC))).at == 1


def test_options_of_options_add_up(app: Headrace) -> None:
    new = row(app.task(plain).options(queue="low", timeout=3).options(priority=2, result_ttl=0))
    plan = app.tasks[new.task].plan(new.options)
    assert (new.queue, new.priority, plan.timeout, plan.result_ttl) == ("low", 2, 3.0, 0)


def test_a_budget_that_was_asked_for_travels_with_the_job() -> None:
    assert row(Headrace("redis://x").task(plain).options()).max_crashes == 0
    assert row(Headrace("redis://x", max_crashes=5).task(plain).options()).max_crashes == 0, (
        "the worker's settings count"
    )
    assert row(Headrace("redis://x", max_crashes=5).task(max_crashes=3)(plain).options()).max_crashes == 3
    assert row(Headrace("redis://x").task(max_crashes=9)(plain).options(max_crashes=3)).max_crashes == 3


def test_a_worker_says_which_budgets_its_tasks_have() -> None:
    app = Headrace("redis://x")
    app.task(name="usual")(plain)
    app.task(name="frail", max_crashes=1)(plain)
    assert budgets(app.tasks, 3) == ["budget:frail", 1]
    assert budgets(app.tasks, 5) == ["budget:", 5, "budget:frail", 1]


def test_a_plan_puts_settings_task_and_call_together() -> None:
    app = Headrace("redis://x", kill_timeout=4, result_ttl=50, failure_ttl=60)
    task = app.task(retries=Retry(max=2, delay=9, never=(KeyError,)), timeout=30)(plain)
    plan = task.plan(b"")
    assert (plan.timeout, plan.hard_timeout, plan.result_ttl, plan.failure_ttl) == (30.0, 34.0, 50_000_000, 60_000_000)
    assert plan is task.plan(b"")
    options = row(task.options(retries=5, timeout=1, result_ttl=0)).options
    plan = task.plan(options)
    assert plan.retry == Retry(max=5, delay=9, never=(KeyError,))
    assert (plan.timeout, plan.hard_timeout, plan.result_ttl) == (1.0, 5.0, 0)
    assert task.plan(row(task.options(timeout=math.inf)).options).hard_timeout is None
    assert task.plan(row(task.options(hard_timeout=99)).options).hard_timeout == 99.0
    plan = task.plan(row(task.options(retries=Retry(max=1, delay=2, factor=1, jitter=0))).options)
    assert plan.retry == Retry(max=1, delay=2, factor=1, jitter=0, never=(KeyError,))


def test_plans_are_not_kept_without_end(app: Headrace) -> None:
    task = app.task(plain)
    for n in range(1000):
        task.plan(row(task.options(timeout=n + 1)).options)
    assert len(task._plans) < 500


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x81", b"\x93\x01\x02\x03", b"\x81\xa7retries\xcd\xff\xff"])
def test_alien_options_are_named(app: Headrace, data: bytes) -> None:
    with pytest.raises(CorruptRecord, match=r"the stored options of a job of .*plain cannot be read"):
        app.task(plain).plan(data)


def test_an_unsent_job_has_its_id_and_its_handle_from_the_beginning(app: Headrace) -> None:
    job = app.task(plain).job()
    id = job.id
    assert (len(id), job.handle.id, job.id) == (21, id, id)
    assert job.take("0" * 21).id == id
    with pytest.raises(OptionsError, match=f"was stored already, as {id}"):
        job.take("1" * 21)


def test_each_option_is_documented() -> None:
    documented = "".join(kind.__doc__ or "" for kind in (JobOptions, CallOptions, TaskOptions))
    names = {*CallOptions.__annotations__, *TaskOptions.__annotations__, *JobOptions.__annotations__}
    assert [name for name in names if f"        {name}: " not in documented] == []


def test_settings_are_taken_and_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NAMESPACE", "shop")
    monkeypatch.setenv("HEADRACE_URL", "redis://env")
    assert Headrace().settings.namespace == "shop"
    assert Headrace("redis://mine").settings.url == "redis://mine"
    given = Settings(url="redis://given", lease=3)
    assert Headrace(settings=given).settings is given
    mixed = Headrace("redis://mine", settings=given, shutdown_timeout=1).settings
    assert (mixed.url, mixed.lease, mixed.shutdown_timeout, mixed.namespace) == ("redis://mine", 3, 1, "hr")
    with pytest.raises(SettingsError, match="there is no setting 'leese'"):
        Headrace(leese=3)
    with pytest.raises(SettingsError, match="lease=-1 cannot be used"):
        Headrace(lease=-1)


def test_a_task_can_be_subscripted_at_run_time() -> None:
    assert "Task" in repr(Task[[str], int])


def test_none_stands_for_an_option_that_is_not_given(app: Headrace) -> None:
    task = app.task(**dict.fromkeys(CallOptions.__annotations__), kind=None)(plain)
    assert task.defaults == app.task(name="bare")(plain).defaults
    limited = app.task(name="limited", timeout=5, delay=60, retries=3)(plain)
    assert row(limited.options(**dict.fromkeys(CallOptions.__annotations__))) == row(limited)
    assert row(app.task(name="later", at=datetime(2030, 1, 1, tzinfo=UTC))(plain).options(delay=None, at=None)).at


@pytest.mark.parametrize("name", sorted(elsewhere._OF_TASK))
def test_a_task_says_what_the_verb_of_another_queue_is_called_here(app: Headrace, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"a task has no '{name}': write tests\S+\.plain\.\w+\("):
        getattr(app.task(plain), name)
    assert not hasattr(app.task(name="other")(plain), "zzz")


@pytest.mark.parametrize("name", sorted(elsewhere._OF_APP))
def test_an_application_says_what_the_verb_of_another_queue_is_called_here(app: Headrace, name: str) -> None:
    with pytest.raises(AttributeError, match=f"a Headrace application has no '{name}': "):
        getattr(app, name)


def test_a_worker_is_found_by_a_verb(app: Headrace) -> None:
    workers: Any = app.workers
    for guess in (lambda: workers["x"], lambda: list(workers), lambda: "x" in workers):
        with pytest.raises(OptionsError, match=r"write app\.workers\.get\("):
            guess()


@pytest.mark.parametrize("name", sorted(elsewhere.OPTIONS))
def test_each_option_of_another_queue_has_its_hint(app: Headrace, name: str) -> None:
    with pytest.raises(OptionsError, match=f"there is no option '{name}': ") as raised:
        app.task(**{name: 1})
    assert elsewhere.OPTIONS[name] in str(raised.value)


def test_every_option_of_a_job_is_told_from_its_arguments(app: Headrace) -> None:
    task = app.task(name="plain")(plain)
    for name in CallOptions.__annotations__:
        with pytest.raises(ArgumentError, match=rf"as an option of the job: plain\.options\({name}=5\)\.enqueue"):
            task.job(**{name: 5})
    with pytest.raises(ArgumentError, match="as an option, write delay=, in seconds"):
        task.job(countdown=5)


def test_a_wait_without_end_may_be_asked_for_as_infinity() -> None:
    assert [patience(one) for one in (None, math.inf, 2, timedelta(minutes=1))] == [None, None, 2, 60]
    for wrong in (-math.inf, math.nan, "1", True):
        with pytest.raises(OptionsError, match="timeout must be"):
            patience(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(elsewhere._OF_JOB))
def test_the_verb_of_a_job_elsewhere_names_the_one_here(app: Headrace, name: str) -> None:
    with pytest.raises(AttributeError, match=f"a job has no '{name}': write job") as raised:
        getattr(app.job("0" * 21), name)
    assert elsewhere._OF_JOB[name] in str(raised.value)
    assert not hasattr(app.job("0" * 21), "colour")


@pytest.mark.parametrize("name", sorted(elsewhere._OF_RUN))
def test_the_verb_of_a_run_elsewhere_names_the_one_here(app: Headrace, name: str) -> None:
    with pytest.raises(AttributeError, match=f"a workflow run has no '{name}': write run"):
        getattr(WorkflowRun(app.client, "0" * 21, "w"), name)


@pytest.mark.parametrize("name", sorted(elsewhere.OF_PACKAGE))
def test_the_import_from_elsewhere_names_what_is_here(name: str) -> None:
    with pytest.raises(ImportError, match=f"headrace has no '{name}': write "):
        exec(f"from headrace import {name}")


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_the_setting_of_elsewhere_names_the_one_here(name: str) -> None:
    with pytest.raises(SettingsError, match=f"there is no setting '{name}': write "):
        Headrace(**{name: "redis://localhost"})
