"""A Django project has Headrace by three lines: settings, tasks and the command line are found; connections are kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.databases.django_project import TASKS, Project
from tests.databases.sql_servers import SqlServer, mariadb, postgresql

pytestmark = pytest.mark.system

KINDS = ("note", "note_thread", "note_fork", "note_async")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tables of the project and no row."""
    directory = tmp_path_factory.mktemp("tables")
    Project(directory, "redis://127.0.0.1:1").tables()
    return directory / "db.sqlite3"


@pytest.fixture
def project(tmp_path: Path, url: str, tables: Path) -> Project:
    made = Project(tmp_path, url)
    shutil.copy(tables, tmp_path)
    return made


def test_jobs_run_by_three_lines_and_manage_py_of_any_directory(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Jobs of each kind. The worker sets Django up once, in its supervisor."""
    project.write(
        "shop/apps",
        "import os\nfrom django.apps import AppConfig\n"
        "class ShopConfig(AppConfig):\n    name = 'shop'\n"
        f"    def ready(self):\n        print(os.getpid(), file=open({str(project.directory / 'ready')!r}, 'a'))\n",
    )
    project.python(f"from shop.tasks import *\nfor task in ({', '.join(KINDS)}): task.enqueue('a')")
    before = (project.directory / "ready").read_text().split()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    project.manage("headrace", "worker", "--burst", "--processes", "2", cwd=elsewhere)
    after = (project.directory / "ready").read_text().split()[len(before) :]
    pids = project.python(
        "import json; from shop.models import Order; print(json.dumps([o.pid for o in Order.objects.all()]))"
    )
    assert len(pids) == len(KINDS)
    # manage.py itself, which becomes the worker: one process.
    assert len(set(after)) == 1
    assert len(after) == 2
    assert set(pids).isdisjoint(map(int, after))


def test_settings_are_below_the_environment_and_flags(project: Project) -> None:
    code = "import json; from headrace.contrib.django import app; print(json.dumps([app.settings.namespace, app.sources['namespace']]))"
    assert project.python(code) == ["shop", "Headrace(defaults={'namespace': ...})"]
    project.environment["HEADRACE_NAMESPACE"] = "env"
    assert project.python(code) == ["env", "HEADRACE_NAMESPACE"]
    project.python("from shop.tasks import note; note.enqueue('a')")
    assert json.loads(project.manage("headrace", "queues", "list", "--json"))["ready"] == 1
    assert "Usage: headrace" in project.manage("headrace", "--help")
    assert "no queue has held work" in project.manage("headrace", "queues", "list", "--namespace", "shop").lower()
    del project.environment["HEADRACE_NAMESPACE"]
    project.python("from shop.tasks import note; note.enqueue('a'); note.enqueue('b')")
    assert json.loads(project.manage("headrace", "queues", "list", "--json"))["ready"] == 2
    project.write("settings", (project.directory / "settings.py").read_text() + '\nHEADRACE["QUEUE"] = "x"\n')
    assert "there is no setting 'queue' in defaults" in project.python("pass", failing=True)


def test_wrong_settings_are_named(project: Project) -> None:
    project.write("wrong", "from settings import *\nHEADRACE = 5")
    said = project.manage("check", code=1, DJANGO_SETTINGS_MODULE="wrong")
    assert "SettingsError: HEADRACE=5 cannot be used: write a dictionary, such as" in said


def test_errors_of_a_module_of_tasks_are_loud(project: Project) -> None:
    project.write("shop/tasks", "import nothing_of_this_name\n")
    told = project.python("pass", failing=True)
    assert "No module named 'nothing_of_this_name'" in told
    assert "headrace.contrib.django imports shop.tasks to find its tasks" in told
    assert "nothing_of_this_name" in project.manage("headrace", "worker", "--burst", code=None)


def test_a_module_of_tasks_may_set_django_up_itself(project: Project) -> None:
    """As one does that began as a program of its own."""
    project.write("shop/tasks", "import django; django.setup()\n" + TASKS)
    assert (
        project.python("import json; from headrace.contrib.django import app; print(json.dumps(len(app.tasks)))") == 4
    )


def test_a_program_that_names_the_module_needs_no_manage_py(project: Project) -> None:
    project.python("from shop.tasks import note; note.enqueue('a')")
    words = [sys.executable, "-m", "headrace", "worker", "headrace.contrib.django:app", "--burst", "--processes", "1"]
    environ = project.environment | {"DJANGO_SETTINGS_MODULE": "settings"}
    subprocess.run(words, cwd=project.directory, env=environ, check=True, timeout=120, capture_output=True)
    assert project.python("import json; from shop.models import Order; print(json.dumps(Order.objects.count()))") == 1


@pytest.fixture(scope="module")
def postgres() -> Iterator[SqlServer]:
    with postgresql() as server:
        yield server


def test_no_job_is_lost_to_a_connection_that_died(
    tmp_path: Path, url: str, postgres: SqlServer, eventually: Callable[..., Any]
) -> None:
    """PostgreSQL over TLS, all four kinds, with each backend killed between jobs; and none is left at the end."""
    import sqlalchemy

    site = Project(tmp_path, url, {**postgres.django, "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True})
    site.tables()
    engine = sqlalchemy.create_engine(postgres.url)
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    words = [sys.executable, "manage.py", "headrace", "worker", "--processes", "1", "--threads", "2", "--forks", "1"]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(words, cwd=tmp_path, env=site.environment, stdout=log, stderr=log)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

            def scalar(statement: str) -> int:
                return int(connection.execute(sqlalchemy.text(statement)).scalar() or 0)

            for number in range(1, 9):
                site.python(f"from shop.tasks import *\nfor task in ({', '.join(KINDS)}): task.enqueue('{number}')")
                eventually(lambda n=number: scalar("select count(*) from shop_order") == 4 * n)
                scalar(f"select count(pg_terminate_backend(pid)) {others}")
            assert scalar(f"select count(*) {others}") <= 8
            worker.terminate()
            assert worker.wait(60) == 0
            eventually(lambda: scalar(f"select count(*) {others}") == 0)
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
        engine.dispose()
    failed = [line for line in (tmp_path / "log").read_text().splitlines() if "failed" in line]
    assert failed == []


@pytest.mark.parametrize("sql", [postgresql, mariadb])
def test_djangos_outbox_keeps_jobs_of_a_commit_while_the_server_is_away(tmp_path: Path, url: str, sql: Any) -> None:
    with sql() as server:
        site = Project(tmp_path, url, server.django)
        site.write(
            "settings", "import pymysql\npymysql.install_as_MySQLdb()\n" + (tmp_path / "settings.py").read_text()
        )
        site.tables()
        enqueue = "from django.db import transaction\nfrom shop.tasks import note\nwith transaction.atomic():\n"
        enqueue += "    for n in range(3): note.options(after_commit='outbox').enqueue(str(n))\n"
        here, site.environment = site.environment, {
            **site.environment, "HEADRACE_URL": "redis://127.0.0.1:1", "HEADRACE_TIMEOUT": "0.1",
        }  # fmt: skip
        site.python(enqueue)
        site.environment = here
        site.python(enqueue)
        waiting = site.manage("headrace", "outbox", "list", "--json")
        assert json.loads(waiting.splitlines()[-1])["waiting"] == 3
        site.manage("headrace", "outbox", "relay", "--once")
        site.manage("headrace", "worker", "--burst", "--processes", "1")
        count = "import json; from shop.models import Order; print(json.dumps(Order.objects.count()))"
        assert site.python(count) == 6


def test_a_start_that_was_stopped_closes_its_connections(django_site: Any) -> None:
    """Cut by a time limit, a query leaves a connection that Django takes for usable."""
    from django.db import connection, transaction

    from headrace.contrib.django import JobConnections
    from headrace.errors import SoftTimeLimit

    connection.ensure_connection()
    with JobConnections():
        pass
    connection.settings_dict["CONN_MAX_AGE"] = None
    connection.close()
    try:
        connection.ensure_connection()
        held = connection.connection
        with pytest.raises(ZeroDivisionError), JobConnections():
            raise ZeroDivisionError
        assert connection.connection is held
        with pytest.raises(BaseExceptionGroup), JobConnections():
            raise BaseExceptionGroup("tasks", [SoftTimeLimit()])
        assert connection.connection is None
        with transaction.atomic():
            held = connection.connection
            with pytest.raises(SoftTimeLimit), JobConnections():
                raise SoftTimeLimit
            assert connection.connection is held
            held.execute("select 1")  # it is open: the block of a test goes on
    finally:
        connection.settings_dict["CONN_MAX_AGE"] = 0
        connection.close()


def test_no_connection_crosses_a_fork(shop: Any, django_site: Any) -> None:
    from django.db import connections

    for connection in connections.all():
        connection.ensure_connection()
    for hook in shop.before_fork_hooks:
        hook()
    assert [connection.connection for connection in connections.all()] == [None, None]
    assert os.getpid() == django_site.pid
