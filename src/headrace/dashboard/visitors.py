"""Who looks at the dashboard, and which requests are refused before any page is made. Decides on headers; does no I/O.

1. :class:`Visitor` and :func:`refusal`: the name and role of a visitor, and the reason to refuse a request.
2. :class:`TokenLogin`: the login where no application decides: a token on the command line, a login code, a signed
   cookie. It keeps unused codes and ended sessions while this process lives. A new token ends all sessions, since the
   token signs the cookies.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.values_shown import quoted_base
from headrace.errors import OptionsError

Role = Literal["producer", "viewer", "operator"]
ROLES: tuple[Role, ...] = ("producer", "viewer", "operator")


class Visitor(msgspec.Struct, frozen=True):
    """A person or program that was let in.

    Attributes:
        name: stands in the log beside what they did.
        role: ``viewer`` looks; ``operator`` may retry, cancel, pause and delete, too, and send jobs; ``producer``, a
            program, may do nothing but send jobs.
    """

    name: str
    role: Role = "viewer"

    @property
    def operates(self) -> bool:
        """Whether the visitor may change anything."""
        return self.role == "operator"

    @property
    def looks(self) -> bool:
        """Whether the visitor may see pages."""
        return self.role in ("viewer", "operator")

    @property
    def produces(self) -> bool:
        """Whether the visitor may send jobs."""
        return self.role in ("producer", "operator")


Authorize: TypeAlias = Callable[[Request], "Visitor | Awaitable[Visitor | None] | None"]

THEME = "headrace_theme"  # the cookie of the theme that a visitor has chosen
SAFE = ("GET", "HEAD")  # methods that change nothing


def refusal(request: Request, hosts: Collection[str] | None) -> str:
    """Why a request is refused for every sender; empty when it is not. A browser says where a request comes from:
    ``Sec-Fetch-Site``, or ``Origin`` where it is older or the connection is not encrypted. A request that changes
    something must come from a page of this dashboard, or bear a token.
    """
    host = request.headers.get("host", "")
    if hosts is not None and _name_of(host) not in hosts:
        return f"This dashboard does not answer for the host {host!r}: name it with --host."
    if request.method in SAFE or request.headers.get("authorization", "").lower().startswith("bearer "):
        return ""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return "" if site == "same-origin" else "This request comes from a page of another site."
    # The browser writes it: a scheme and a host, or ``null``.
    if not host or request.headers.get("origin", "").partition("://")[2].lower() != host.lower():
        return "This request does not say that it comes from a page of this dashboard."
    return ""


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def root_of(scope: Mapping[str, Any]) -> str:
    """Where the dashboard is, with the pages of all its namespaces below: one login holds for all of them."""
    return quoted_base(str(scope.get("headrace.root", scope.get("root_path", ""))))


def theme_of(request: Request) -> str:
    theme = request.cookies.get(THEME, "")
    return theme if theme in ("light", "dark") else ""


COOKIE = "headrace_session"
# Seconds that a session, and that a login code, is good for.
SESSION = 12 * 3600
CODE = 300
MOST_FAILURES = 5  # log-ins that fail, in one second, before further wrong ones are turned away


class TokenLogin:
    """Tokens by role, and who has shown one. A role without a token cannot come in."""

    def __init__(
        self, operator: str, viewer: str = "", producer: str = "", *, clock: Callable[[], float] = time.time
    ) -> None:
        """Take a token a role; empty: no visitor has it. Raises OptionsError: two roles have the same token."""
        self.tokens: dict[Role, str] = {"operator": operator, "viewer": viewer, "producer": producer}
        given = [token for token in self.tokens.values() if token]
        if len(set(given)) < len(given):
            raise OptionsError("two roles of the dashboard have the same token: give each role a token of its own")
        self._key = hashlib.sha256(
            b"headrace dashboard session\0" + operator.encode() + b"\0" + viewer.encode()
        ).digest()
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._failures: list[float] = []
        # Signed out sessions, and when they end by themselves.
        self._dismissed: dict[str, float] = {}

    def code(self) -> str:
        """A code that lets one browser in, once, within five minutes."""
        now = self._clock()
        self._codes = {code: end for code, end in self._codes.items() if end > now}
        code = secrets.token_urlsafe(16)
        self._codes[code] = now + CODE
        return code

    def use(self, code: str) -> bool:
        """Whether a code is good; it is not a second time."""
        return self._codes.pop(code, 0.0) > self._clock()

    def role_of(self, token: str) -> Role | None:
        # Each is compared, so that the time tells nothing.
        found: list[Role] = [role for role in ROLES if self.tokens[role] and _same(self.tokens[role], token)]
        return found[0] if found else None

    def failed(self) -> bool:
        """Count a log-in that failed; whether this many did in this second that it is turned away unsaid.

        The right token comes in anyway: a stranger who guesses must not lock out the people who have it.
        """
        now = self._clock()
        self._failures = [*(at for at in self._failures[-MOST_FAILURES:] if at > now - 1), now]
        return len(self._failures) > MOST_FAILURES

    def visitor(self, request: Request) -> Visitor | None:
        """Who sends a request: its cookie, or its ``Authorization: Bearer``, says so."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            role = self.role_of(token.strip())
            return Visitor(f"{role} token", role) if role else None
        return self.session(request.cookies.get(COOKIE, ""))

    def session(self, cookie: str) -> Visitor | None:
        """The visitor that a cookie names, if we signed it and it has not ended."""
        text, _, signature = cookie.rpartition(".")
        role, _, rest = text.partition(".")
        end = rest.partition(".")[0]
        if not text or not _same(self._sign(text), signature) or not end.isdecimal():
            return None
        if int(end) <= self._clock() or role not in ROLES or text in self._dismissed:
            return None
        return Visitor(role, role)

    def admit(self, request: Request, response: Response, role: Role) -> None:
        text = f"{role}.{int(self._clock()) + SESSION}.{secrets.token_hex(8)}"
        response.set_cookie(
            COOKIE,
            f"{text}.{self._sign(text)}",
            max_age=SESSION,
            path=root_of(request.scope) or "/",
            # Behind a proxy that ends the encryption only the browser knows of it.
            secure="https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0]),
            httponly=True,
            # Strict would log out a visitor who follows a link from a chat.
            samesite="lax",
        )

    def dismiss(self, request: Request, response: Response) -> None:
        cookie, now = request.cookies.get(COOKIE, ""), self._clock()
        if self.session(cookie) is not None:
            self._dismissed = {one: end for one, end in self._dismissed.items() if end > now}
            self._dismissed[cookie.rpartition(".")[0]] = now + SESSION
        response.delete_cookie(COOKIE, path=root_of(request.scope) or "/")

    def _sign(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode("utf-8", "replace"), given.encode("utf-8", "replace"))
