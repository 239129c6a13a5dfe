"""Who looks at the dashboard, and which requests are refused before any page is made. Pure decisions on headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

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

# The cookie of the theme that a visitor has chosen.
THEME = "headrace_theme"
# Methods that change nothing.
SAFE = ("GET", "HEAD")


def refusal(request: Request, hosts: Collection[str] | None) -> str:
    """Why a request is refused whoever sends it; empty when it is not.

    A browser says where a request comes from: ``Sec-Fetch-Site``, or ``Origin`` where it is older or the connection is
    not encrypted. A request that changes something must come from a page of this dashboard, or bear a token.
    """
    host = request.headers.get("host", "")
    if hosts is not None and _name_of(host) not in hosts:
        return f"This dashboard does not answer for the host {host!r}: name it with --host."
    if request.method in SAFE or request.headers.get("authorization", "").lower().startswith("bearer "):
        return ""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return "" if site == "same-origin" else "This request comes from a page of another site."
    origin = request.headers.get("origin")
    if origin is None or urlsplit(origin).netloc.lower() != host.lower():
        return "This request does not say that it comes from a page of this dashboard."
    return ""


def _name_of(host: str) -> str:
    """A host without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def theme_of(request: Request) -> str:
    """The theme that the visitor has chosen; empty: as the system says."""
    theme = request.cookies.get(THEME, "")
    return theme if theme in ("light", "dark") else ""
