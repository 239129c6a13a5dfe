"""``headrace dashboard``: the pages about jobs as a server of its own, for people who have the token."""

from __future__ import annotations

import gc
import importlib.util
import ipaddress
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headrace.cli.arguments import option
from headrace.cli.session import OperationFault, Session, UsageFault

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.app import Headrace

PORT = 8355
TOKEN = "HEADRACE_DASHBOARD_TOKEN"  # noqa: S105 (the name of a variable)
VIEWER = "HEADRACE_DASHBOARD_VIEWER_TOKEN"
PRODUCER = "HEADRACE_DASHBOARD_PRODUCER_TOKEN"
SHORTEST = 16  # characters that a token of a person's own has at least


def dashboard(
    session: Session,
    target: Annotated[
        str | None, option("--app MODULE:APP", "Your application; with it arguments have names.", envvar="HEADRACE_APP")
    ] = None,
    listen: Annotated[
        str, option("--listen [ADDRESS:]PORT", "Where to listen. Without ADDRESS: this machine only.")
    ] = str(PORT),
    prefix: Annotated[str, option("--prefix /PATH", "Path under which a proxy passes requests on.")] = "",
    host: Annotated[
        list[str] | None, option("--host NAME", "Name under which browsers reach it, if it is not the address.")
    ] = None,
    also: Annotated[
        list[str] | None, option("--also NAMESPACE", "Another namespace of this server; pages offer it in their head.")
    ] = None,
    read_only: Annotated[bool, option("--read-only", "Only look: there are no verbs.")] = False,
    withhold: Annotated[bool, option("--withhold", "Viewers see no arguments, results and logs.")] = False,
    trace_url: Annotated[str, option("--trace-url URL", "Where a trace is shown: a URL with {trace_id} in it.")] = "",
    browse: Annotated[bool, option("--open", "Open a browser, signed in.")] = False,
) -> None:
    """Serve pages about jobs, queues, tasks, workflows and workers until Ctrl-C.

    It prints a link that lets one browser in, within five minutes. HEADRACE_DASHBOARD_TOKEN is the token of operators,
    HEADRACE_DASHBOARD_VIEWER_TOKEN that of people who may only look, HEADRACE_DASHBOARD_PRODUCER_TOKEN that of programs
    which may only send jobs (POST /v1/jobs). Without the first, each start makes a new one. To listen on an address
    that other machines reach you must set it.
    """
    missing = [name for name in ("starlette", "uvicorn", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageFault(f"this needs {missing[0]}: pip install 'headrace[dashboard]'")
    from headrace.app import Headrace
    from headrace.dashboard import Dashboard
    from headrace.dashboard.values_shown import quoted_base
    from headrace.dashboard.visitors import TokenLogin

    address, port = _address(listen)
    root = _prefix(prefix)
    operator, viewer, producer = _tokens(address)
    login = TokenLogin(operator or secrets.token_urlsafe(32), viewer, producer)
    app = session.code(target) if target else session.app()
    names = {"127.0.0.1", "localhost", "::1", address.lower(), *(name.lower() for name in host or ())}
    others = [Headrace(settings=app.settings, namespace=name) for name in also or ()]
    made = Dashboard(
        app, login=login, read_only=read_only, withhold=withhold, hosts=names, trace_url=trace_url,
        title=app.settings.namespace.removeprefix("hr"), others=others,
    )  # fmt: skip
    with _bound(address, port) as sock:
        port = sock.getsockname()[1]
        # A browser cannot open the address of all interfaces.
        shown = _bracketed({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address))  # noqa: S104
        url = f"http://{shown}:{port}{quoted_base(root)}/"
        link = f"{url}login?code={login.code()}"
        session.output.done(f"dashboard {url}\nopen {link}", {"url": url, "link": link, "port": port})
        if not operator:
            _tell_token(session, app, login.tokens["operator"])
        sys.stdout.flush()
        if browse:
            import webbrowser

            webbrowser.open(link)
        _serve(_below(made, root), sock)
        for one in (app, *others):
            one.close()


def _serve(app: ASGIApp, sock: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app, lifespan="off", log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=2, proxy_headers=False, h11_max_incomplete_event_size=64 * 1024,
    )  # fmt: skip
    gc.freeze()  # the collector passes over what was imported: no page waits for that
    uvicorn.Server(config).run(sockets=[sock])


def _below(made: ASGIApp, root: str) -> ASGIApp:
    async def below(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not f"{scope['path']}/".startswith(f"{root}/"):
            raw = scope.get("raw_path") or b""
            scope = {**scope, "path": root + scope["path"], "raw_path": raw and root.encode() + raw}
        await made({**scope, "root_path": root}, receive, send)

    return below if root else made


def _address(listen: str) -> tuple[str, int]:
    address, _, port = listen.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageFault(f"--listen {listen!r} cannot be used: write a port, or ADDRESS:PORT, such as 0.0.0.0:8355")
    return address.strip("[]") or "127.0.0.1", int(port)


def _prefix(prefix: str) -> str:
    root = "/" + prefix.strip("/") if prefix.strip("/") else ""
    if any(not (letter.isalnum() or letter in "/-_.~") for letter in root):
        raise UsageFault(f"--prefix {prefix!r} cannot be used: write a path, such as /jobs")
    return root


def _tokens(address: str) -> list[str]:
    """The tokens of operators, viewers and producers. Refuses what would let strangers in."""
    tokens = {name: os.environ.get(name, "") for name in (TOKEN, VIEWER, PRODUCER)}
    for name, token in tokens.items():
        if token and len(token) < SHORTEST:
            raise UsageFault(f"{name} is too short: it needs {SHORTEST} characters, better 32 random ones")
    try:
        near = ipaddress.ip_address(address).is_loopback
    except ValueError:
        near = address == "localhost"
    if not near and not tokens[TOKEN]:
        raise UsageFault(f"{address} can be reached from other machines: set {TOKEN} to a secret of your own first")
    return list(tokens.values())


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise OperationFault(f"cannot listen on {_bracketed(address)}:{port}: {error.strerror or error}") from error


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _tell_token(session: Session, app: Headrace, token: str) -> None:
    if sys.stdout.isatty():
        session.output.remark(f"token {token}\n{TOKEN} sets one of your own, which stays the same at the next start")
        return
    from headrace import embedded

    directory = Path(embedded.path(app.settings.dir))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "dashboard-token"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    session.output.remark(f"the token is in {path}")
