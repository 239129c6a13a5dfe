"""The dashboard below Django's admin: Django's log-in, its permissions and its form tokens, by a real server."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from headrace import Headrace
from tests.databases.django_project import Project
from tests.processes import site

pytestmark = pytest.mark.system

URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/jobs/", include("headrace.contrib.django.urls")),
    path("admin/", admin.site.urls),
]
"""
USERS = """
from django.contrib.auth.models import Permission, User

for name, permission in (("ada", "operate"), ("bob", "view"), ("eve", "")):
    user = User.objects.create_user(name, password="test-" + name, is_staff=True)
    if permission:
        user.user_permissions.add(Permission.objects.get(codename=permission, content_type__app_label="headrace"))
"""
CONTRIB = ("admin", "contenttypes", "auth", "sessions", "messages")
MIDDLEWARE = ("sessions.middleware.SessionMiddleware", "auth.middleware.AuthenticationMiddleware",
              "messages.middleware.MessageMiddleware")  # fmt: skip


class Browser:
    """Keeps cookies, follows redirects and sends forms of the page that it shows."""

    def __init__(self, address: str) -> None:
        self.address, self.text, self.place = address, "", ""
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def open(self, path: str, form: dict[str, str] | None = None, site: str = "same-origin") -> int:
        body = urlencode(form).encode() if form is not None else None
        asked = Request(self.address + path, body, {"accept": "text/html", "sec-fetch-site": site})
        try:
            answer = self._opener.open(asked, timeout=60)
        except HTTPError as error:
            answer = error
        with answer:
            self.text, self.place = answer.read().decode(), answer.url.removeprefix(self.address)
            return answer.status or 0

    def send(self, action: str, **fields: str) -> int:
        found = re.search(
            rf'action="{re.escape(action)}".*?name="csrfmiddlewaretoken" value="(\w+)"', self.text, re.DOTALL
        )
        assert found is not None, "the page has this form, and Django's token in it"
        return self.open(action, {"csrfmiddlewaretoken": found[1], **fields})

    def log_in(self, name: str) -> None:
        assert self.open("/admin/jobs/queues/default") == 200
        assert self.place.startswith("/admin/login/"), "a stranger is sent to Django's log-in"
        (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', self.text)
        form = {"csrfmiddlewaretoken": token, "username": name, "password": f"test-{name}",
                "next": "/admin/jobs/queues/default"}  # fmt: skip
        self.open(self.place, form)


def shop_with_pages(directory: Path, url: str) -> Project:
    templates = {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": [f"django.{name}" for name in (
            "template.context_processors.request", "contrib.auth.context_processors.auth",
            "contrib.messages.context_processors.messages")]}}  # fmt: skip
    project = Project(
        directory, url, ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF="urls", TEMPLATES=[templates],
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in CONTRIB), "shop", "headrace.contrib.django"],
        MIDDLEWARE=[f"django.contrib.{name}" for name in MIDDLEWARE],
    )  # fmt: skip
    project.write("urls", URLS)
    project.write("asgi", "import django.core.asgi\napplication = django.core.asgi.get_asgi_application()\n")
    return project


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tables of the project and its users."""
    project = shop_with_pages(tmp_path_factory.mktemp("users"), "redis://127.0.0.1:1")
    project.tables()
    project.python(USERS)
    return project.directory / "db.sqlite3"


@pytest.fixture(params=["runserver", "uvicorn"])
def address(tmp_path: Path, url: str, users: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    project = shop_with_pages(tmp_path, url)
    shutil.copy(users, tmp_path)
    command = ["manage.py", "runserver", "127.0.0.1:0", "--noreload"]
    if request.param == "uvicorn":
        command = ["-m", "uvicorn", "asgi:application", "--port", "0"]
    environ = project.environment | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONUNBUFFERED": "1"}
    with site(tmp_path, *command, environ=environ) as found:
        yield found


def test_djangos_log_in_permissions_and_tokens_decide(address: str, url: str) -> None:
    app = Headrace(url, namespace="shop")
    pause = "/admin/jobs/queues/default/act/pause"
    ada = Browser(address)
    ada.log_in("ada")
    assert ada.place == "/admin/jobs/queues/default"
    style = re.findall(r'href="(/admin/jobs/static/style.css[^"]*)"', ada.text)
    assert ada.open(style[0]) == 200
    ada.open("/admin/jobs/queues/default")
    # Without the token of Django nothing is done, whatever the browser says of its origin.
    assert ada.open(pause, {"minutes": "5"}) == 403
    assert not app.queues["default"].paused
    ada.open("/admin/jobs/queues/default")
    assert ada.send(pause, minutes="5", note="the vendor is down") == 200
    assert (ada.place, "Queue default is paused" in ada.text) == ("/admin/jobs/queues/default", True)
    assert app.queues["default"].paused
    assert ("ada", "pause") in [(act.who, act.verb) for act in app.acts.page(limit=5)]
    bob = Browser(address)
    bob.log_in("bob")
    assert (bob.place, "/act/" in bob.text) == ("/admin/jobs/queues/default", False)
    (token,) = re.findall(r'action="/admin/jobs/theme".*?name="csrfmiddlewaretoken" value="(\w+)"', bob.text, re.DOTALL)
    assert bob.open("/admin/jobs/queues/default/act/resume", {"csrfmiddlewaretoken": token}) == 403
    assert app.queues["default"].paused
    eve = Browser(address)
    eve.log_in("eve")
    assert (eve.open("/admin/jobs/queues"), "Headrace" in eve.text) == (403, False)
    assert eve.open("/admin/jobs/static/style.css") == 403
    assert Browser(address).open(pause, {}) == 403
    assert ada.open("/admin/jobs/queues.json") == 200
    assert '"name":"default"' in ada.text.replace(" ", "")
