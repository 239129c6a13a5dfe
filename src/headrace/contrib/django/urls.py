"""The dashboard in a Django site: ``path("admin/jobs/", include("headrace.contrib.django.urls"))``.

Django says who looks: a user with the permission ``headrace.view`` may look, one with ``headrace.operate`` may act, all
others are refused; Django's token stands in each form, and Django checks it. The pages run on an event loop in a thread
of the process, since Django calls a view in any thread.
"""

# Django has no types.
# pyright: basic
from __future__ import annotations

import asyncio
import os
import re
import threading
from functools import cache
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.csrf import get_token
from django.urls import NoReverseMatch, re_path, reverse
from django.views.decorators.csrf import csrf_protect

from headrace.contrib.django import app
from headrace.dashboard import Dashboard, Visitor

_FORM = re.compile(rb'<form\b[^>]*\bmethod="post"[^>]*>')
_VISITOR = "headrace.django_visitor"


@csrf_protect  # type: ignore[untyped-decorator]
def view(request: Any, path: str) -> HttpResponseBase:
    """A page or a verb of the dashboard. Raises PermissionDenied: the user has neither permission."""
    user = request.user
    if not user.is_authenticated:
        return redirect_to_login(request.get_full_path(), _login())
    if not user.has_perms(["headrace.operate"]) and not user.has_perm("headrace.view"):
        raise PermissionDenied
    visitor = Visitor(user.get_username(), "operator" if user.has_perm("headrace.operate") else "viewer")
    dashboard, loop = _served(os.getpid())
    scope = _scope(request, path) | {_VISITOR: visitor}
    messages = asyncio.run_coroutine_threadsafe(_answer(dashboard, scope, request.body), loop).result()
    return _response(request, messages)


urlpatterns = [re_path(r"^(?P<path>.*)$", view, name="headrace_dashboard")]


def _login() -> Any:
    """The log-in of Django's admin where the site has it; else that of its settings."""
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return None


@cache
def _served(_pid: int) -> tuple[Dashboard, asyncio.AbstractEventLoop]:
    """Of one process: a fork has no thread of its parent."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="headrace-dashboard", daemon=True).start()
    return Dashboard(app, authorize=lambda asked: asked.scope[_VISITOR]), loop


def _scope(request: Any, path: str) -> dict[str, Any]:
    raw = str(request.META.get("RAW_URI") or request.META.get("REQUEST_URI") or "").partition("?")[0]
    return {
        "type": "http",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": raw.encode("utf-8", "replace"),
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": [(k.lower().encode(), v.encode("latin-1", "replace")) for k, v in request.headers.items()],
        "client": (request.META.get("REMOTE_ADDR") or "?", 0),
    }


async def _answer(dashboard: Dashboard, scope: dict[str, Any], body: bytes) -> list[Any]:
    found: list[Any] = []
    coming = [{"type": "http.request", "body": body}]

    async def receive() -> dict[str, Any]:
        # An answer that is a file watches for a closed connection, which Django does not tell of.
        return coming.pop() if coming else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        found.append(message)

    await dashboard(scope, receive, send)
    return found


def _response(request: HttpRequest, messages: list[Any]) -> HttpResponse:
    body = b"".join(message.get("body", b"") for message in messages)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in messages[0]["headers"]]
    kind = dict(headers).get("content-type", "")
    if kind.startswith("text/html") and _FORM.search(body):
        # Texts of jobs are escaped in pages, so this is a form of the dashboard itself.
        field = f'<input type="hidden" name="csrfmiddlewaretoken" value="{get_token(request)}">'.encode()
        body = _FORM.sub(lambda found: found[0] + field, body)
    response = HttpResponse(body, status=messages[0]["status"])
    for name, value in headers:
        if name == "set-cookie":
            response.cookies.load(value)
        elif name != "content-length":
            response[name] = value
    return response
