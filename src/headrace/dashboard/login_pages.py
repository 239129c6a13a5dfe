"""Where people come in with a code or a token, and leave."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite, to
from headrace.dashboard.page_verbs import form_of
from headrace.dashboard.visitors import Role

log = logging.getLogger("headrace.dashboard")


async def login(site: DashboardSite, request: Request) -> Response:
    """Show the form, or use what it holds. A code in the link is used by the button only: a preview must not use it."""
    assert site.login is not None
    if request.method != "POST":
        return site.bare(request, "login.html", code=request.query_params.get("code", ""), problem="")
    form = await form_of(request)
    role: Role | None = "operator" if site.login.use(form.get("code", "")) else None
    role = role or site.login.role_of(form.get("token", "").strip())
    if role is None or role == "producer":
        if site.login.failed():
            return site.bare(request, "login.html", status=429, code="", problem="Too many failed. Wait a second.")
        log.warning("a log-in from %s failed", request.client.host if request.client else "?")
        if role is not None:
            return site.bare(request, "login.html", status=403, code="", problem="This token is for programs.")
        text = "This link was used or is older than five minutes." if form.get("code") else "This is not the token."
        return site.bare(request, "login.html", status=403, code="", problem=text)
    response = to(request, "/")
    site.login.admit(request, response, role)
    log.info("%s came in from %s", role, request.client.host if request.client else "?")
    return response


async def logout(site: DashboardSite, request: Request) -> Response:
    assert site.login is not None
    response = to(request, "/login")
    site.login.dismiss(request, response)
    return response
