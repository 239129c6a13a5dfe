"""The dashboard as an ASGI application: one gate before all routes, strict headers on every answer."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from headrace.app import Headrace
from headrace.dashboard import again_pages, flow_pages, job_pages, page_verbs, status_pages
from headrace.dashboard.dashboard_site import DashboardSite, Handler, base_of, form_wanted, path_of
from headrace.dashboard.values_shown import quoted_path
from headrace.dashboard.visitors import SAFE, Authorize, TokenLogin, Visitor, refusal
from headrace.errors import HeadraceError, MissingExtra, OptionsError, ServerError, SettingsError, StoreUnavailable
from headrace.model.hidden_values import Redactor

log = logging.getLogger("headrace.dashboard")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors {frames}"
)
_STATIC = Path(__file__).parent / "static"

PAGES: dict[str, Handler] = {
    "/": status_pages.overview,
    "/queues": status_pages.queues,
    "/queues/{name:path}": status_pages.queue,
    "/tasks": status_pages.tasks,
    "/tasks/{name:path}": status_pages.task,
    "/workers": status_pages.workers,
    "/workers/{name:path}": status_pages.worker,
    "/store": status_pages.store,
    "/cache": status_pages.cache,
    "/jobs": job_pages.jobs,
    "/jobs/new": again_pages.new,
    "/jobs/{id}": job_pages.job,
    "/jobs/{id}/again": again_pages.edit,
    "/causes": job_pages.causes,
    "/workflows": flow_pages.flows,
    "/workflows/bulk/{verb}": flow_pages.confirm,
    "/workflows/{id}": flow_pages.flow,
    "/limits": status_pages.limits,
    "/limits/{name:path}": status_pages.limit,
    "/activity": status_pages.activity,
    "/bulk": job_pages.bulks,
    "/bulk/new": job_pages.confirm,
    "/bulk/{id}": job_pages.bulk,
    "/schedules": status_pages.schedules,
    "/schedules/{name:path}": status_pages.schedule,
}

# What takes a form, unless the dashboard is read only. The first path that fits counts.
FORMS: dict[str, Handler] = {
    again_pages.PATH: again_pages.take,
    "/jobs/new": again_pages.make,
    "/jobs/ticked/act/{verb}": job_pages.act,
    "/workflows/ticked/act/{verb}": flow_pages.act,
    "/jobs/{id}/act/again": again_pages.begin,
    "/jobs/{id}/act/stacks": page_verbs.stacks,
    "/workers/{name:path}/act/stacks": page_verbs.stacks,
    "/{kind}/{name:path}/act/{verb}": page_verbs.act,
    "/bulk": job_pages.begin,
}

REFUSED = (
    "This dashboard lets no visitor in, since it has no authorize. Say who may look, in the program that mounts it: "
    "Dashboard(app, authorize=lambda request: Visitor(name, role) or None)"
)

AWAY = "The store does not answer. This page tries again by itself."


class Dashboard:
    """Pages about an application's jobs, to mount in a program that speaks ASGI.

    Every request is refused unless ``authorize`` lets it in. Verbs are for operators, and only from pages of this
    dashboard. Reads are bounded whatever is stored; all tabs share one read of the store in two seconds.
    """

    def __init__(
        self,
        app: Headrace,
        authorize: Authorize | None = None,
        *,
        read_only: bool = False,
        withhold: bool = False,
        redact: Iterable[str] | None = None,
        title: str = "",
        trace_url: str = "",
        frame_ancestors: str = "'none'",
        hosts: Collection[str] | None = None,
        login: TokenLogin | None = None,
        others: Sequence[Headrace] = (),
    ) -> None:
        """Make it; nothing connects yet.

        Args:
            app: whose store is shown. It is used on the event loop that serves the requests.
            authorize: gets the request, and returns or awaits who it is from, or None to refuse it. None: all are
                refused.
            read_only: leave the verbs out.
            withhold: show viewers no arguments, results and logs, and let no search of theirs find them. Messages of
                errors stay: hide what is in them with ``redact``.
            redact: parts of names whose values are hidden, at any depth; without it, those of the setting ``redact``.
            title: tells this dashboard from another.
            trace_url: where a trace is shown, with ``{trace_id}`` in it: the page of a job that was enqueued in a trace
                leads there.
            frame_ancestors: which pages may show this one in a frame, as the header of that name says it.
            hosts: names under which it answers; None: any, which is for programs that check the host themselves.
            login: log-ins by token; ``headrace dashboard`` has them.
            others: applications of other namespaces, which the head of each page offers. Their pages stand below
                ``/in/NAMESPACE``, for the same visitors.

        Raises:
            OptionsError: ``trace_url`` is not an address of the web, or has no ``{trace_id}``; or two applications have
                the same namespace.
            MissingExtra: Headrace was imported from a zip file.
        """
        if not _STATIC.is_dir():
            raise MissingExtra(
                f"the dashboard needs its files in a folder, not {_STATIC}: pip install 'headrace[dashboard]'"
            )
        if trace_url and not (trace_url.startswith(("https://", "http://")) and "{trace_id}" in trace_url):
            raise OptionsError(f"trace_url must be such as https://traces.example/{{trace_id}}, not {trace_url!r:.80}")
        redactor = Redactor.of(app.settings) if redact is None else Redactor(redact)
        self._site = DashboardSite(app, login, read_only, redactor, title, trace_url, withhold)
        self._authorize = authorize if login is None else login.visitor
        self._hosts = hosts
        self._headers = _headers(frame_ancestors)
        self._router = Router(_routes(self._site), default=_not_found, redirect_slashes=False)
        self._spaces = {app.settings.namespace: ""} | {
            (name := one.settings.namespace): f"/in/{name}" for one in others
        }
        if len(self._spaces) <= len(others):
            raise OptionsError(f"two applications of this dashboard have the same namespace: {', '.join(self._spaces)}")
        # The longest first: a namespace may be called as another one and a page of it.
        self._others = {
            f"/in/{one.settings.namespace}": Dashboard(
                one, authorize, read_only=read_only, withhold=withhold, redact=redact, trace_url=trace_url,
                frame_ancestors=frame_ancestors, hosts=hosts, login=login,
            )
            for one in sorted(others, key=lambda one: -len(one.settings.namespace))
        }  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _close(scope, receive, send)
            return
        if self._others:
            scope = {
                **scope,
                "headrace.root": str(scope.get("root_path", "")).rstrip("/"),
                "headrace.spaces": self._spaces,
            }
        path = path_of(Request(scope))
        for place, other in self._others.items():
            if f"{path}/".startswith(f"{place}/"):
                root = scope["headrace.root"]
                await other({**scope, "path": root + path, "root_path": root + place}, receive, send)
                return
        await self._answer(Request(_page_of(scope), receive), receive, send)

    async def _answer(self, request: Request, receive: Receive, send: Send) -> None:
        keeping = b"no-cache" if path_of(request).startswith("/static/") else b"no-store"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers, (b"cache-control", keeping)]
            await send(message)

        response = await self._refused(request)
        if response is None:
            try:
                # A copy: a mount changes what it is given, and the page of an error needs it as it was.
                await self._router(dict(request.scope), receive, with_headers)
                return
            except (HTTPException, HeadraceError, TimeoutError, OSError) as error:
                response = self._page_of_error(request, error)
        await response(request.scope, receive, with_headers)

    def _page_of_error(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            other = _by_the_slash(request) if error.status_code == 404 else None
            return other or self._problem(request, error.status_code, error.detail)
        if isinstance(error, (StoreUnavailable, TimeoutError, OSError)):
            # A wait of our own ends without words.
            log.warning("the store does not answer the dashboard: %s", str(error) or "it is silent")
            return self._problem(request, 503, AWAY if request.method in SAFE else page_verbs.UNANSWERED)
        if isinstance(error, (ServerError, SettingsError)):
            log.error("the dashboard cannot use the store: %s", error)
            return self._problem(request, 503, self._site.redactor.text(str(error)))
        # The request cannot be made, or its object is not there.
        return self._problem(request, 400 if isinstance(error, OptionsError) else 404, str(error))

    async def _refused(self, request: Request) -> Response | None:
        reason = refusal(request, self._hosts)
        if reason:
            log.warning("refused %s %s: %s", request.method, path_of(request), reason)
            return self._problem(request, 403, reason)
        path = path_of(request)
        if path.startswith("/static/") or (self._site.login is not None and path == "/login"):
            return None
        if self._authorize is None:
            return self._problem(request, 403, REFUSED)
        found = self._authorize(request)
        visitor = await found if inspect.isawaitable(found) else found
        if not isinstance(visitor, Visitor):
            if self._site.login is not None and request.method in SAFE and not _is_program(request):
                return RedirectResponse(f"{base_of(request)}/login", 303)
            return self._problem(request, 401 if self._site.login else 403, "You are not let in here.")
        request.scope["headrace.visitor"] = visitor
        why = self._reason_to_deny(request, path, visitor)
        if why and request.method not in SAFE:
            await page_verbs.note_refused(self._site, request, path, why)
        return self._problem(request, 403, why) if why else None

    def _reason_to_deny(self, request: Request, path: str, visitor: Visitor) -> str:
        sends = path == again_pages.PATH
        if not sends and not visitor.looks:
            return f"A producer may only send jobs: POST {again_pages.PATH}."
        if not sends and (request.method in SAFE or path in ("/theme", "/logout")):
            return ""
        if self._site.read_only:
            return "This dashboard is read only."
        if sends:
            return "" if visitor.produces else "Only producers and operators may send jobs."
        return "" if visitor.operates else "Only operators may do this."

    def _problem(self, request: Request, status: int, text: str) -> Response:
        if _is_program(request):
            return JSONResponse({"error": text}, status)
        return self._site.bare(request, "problem.html", status=status, title=str(status), text=text, code=status)


def _page_of(scope: Scope) -> Scope:
    path, raw = str(scope["path"]), scope.get("raw_path") or b""
    _, dot, form = path.rpartition(".")
    # A queue may be named so; links to it have an escape there.
    asked = dot and form in ("json", "csv") and (not raw or raw.endswith(f".{form}".encode()))
    if not asked or scope["method"] not in SAFE:
        return scope
    path, root = path.removesuffix(f".{form}"), str(scope.get("root_path", "")).rstrip("/") + "/"
    return {**scope, "path": root if path == f"{root}overview" else path, "headrace.form": form}


def _is_program(request: Request) -> bool:
    asked = request.headers.get("accept", "text/html")
    return path_of(request) == again_pages.PATH or bool(form_wanted(request)) or "text/html" not in asked


def _headers(frames: str) -> list[tuple[bytes, bytes]]:
    # A form says no origin where no referrer may be told and the connection is not encrypted, so it would be refused.
    return [
        (b"content-security-policy", POLICY.format(frames=frames).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
    ]


async def _not_found(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise HTTPException(404, "There is no such page.")


def _by_the_slash(request: Request) -> Response | None:
    """Lead to a page without the slash at its end, and from the bare mount to the root, which has one. The redirect
    names the path alone, since a proxy may have changed scheme and host.
    """
    path = path_of(request)
    # A site or a proxy may hand on the bare mount.
    bare = str(request.scope["path"]) == str(request.scope.get("root_path", "")).rstrip("/")
    if request.method not in SAFE or (not bare and (path == "/" or not path.endswith("/"))):
        return None
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{base_of(request)}/{quoted_path(path.strip('/'))}{query}", 303)


def _routes(site: DashboardSite) -> list[Any]:
    def route(path: str, handler: Handler, *methods: str) -> Route:
        answer = partial(handler, site) if methods else partial(site.answer, handler)
        return Route(path, answer, methods=list(methods or ("GET",)), name=path)

    routes: list[Any] = [route(path, handler) for path, handler in PAGES.items() if "{" not in path]
    routes.append(route("/theme", page_verbs.theme, "POST"))
    if site.login is not None:
        routes += [
            route("/login", page_verbs.login, "GET", "POST"),
            route("/logout", page_verbs.logout, "POST"),
        ]
    if not site.read_only:
        routes += [route(path, handler, "POST") for path, handler in FORMS.items()]
    routes.append(Mount("/static", StaticFiles(directory=_STATIC)))
    return routes + [route(path, handler) for path, handler in PAGES.items() if "{" in path]


async def _close(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await send({"type": "websocket.close", "code": 1000})
