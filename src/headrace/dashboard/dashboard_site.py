"""What all pages share: the application, who looks, the readings that tabs share, and how a page is made.

The pages that every page leads to, in order, each with an icon drawn in a square of 16.

Graphs of workflows, laid out in a process of their own: a large one must hold up no other page.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import jinja2
import msgspec
from markupsafe import Markup
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from headrace import __version__
from headrace.admin.documents import signal_name
from headrace.app import Headrace
from headrace.dashboard import figures, values_shown
from headrace.dashboard.figures import Course, LiveFrame, TaskFigures, TimeRange, read_frame
from headrace.dashboard.values_shown import Sight, document_answer, has_rows, quoted_base, quoted_path
from headrace.dashboard.visitors import SAFE, TokenLogin, Visitor, root_of, theme_of
from headrace.errors import OptionsError
from headrace.model.hidden_values import NAMES, Redactor
from headrace.model.ids import check_name, is_flow
from headrace.model.notation import size
from headrace.picture import View
from headrace.picture.svg import SECONDS
from headrace.protocol.script import Call
from headrace.store.client import Client, JointReads, Steps, adriven

DRAWING = 30.0  # seconds that a layout may take altogether, on a machine that has much else to do
# Seconds that the refresh of a page waits for its picture, and pictures that are kept.
WAITS = 2.0
KEPT = 32
# How long a picture stays while its graph changes: seconds at least, and as a multiple of what it took to draw.
STAYS = 10.0
TIMES = 10


class Drawing(msgspec.Struct, frozen=True):
    """A picture, or why there is none.

    Attributes:
        asked: what was to be drawn.
        picture: an SVG element whose colours are the stylesheet's; None: there is none.
        problem: why.
        until: monotonic seconds; until then it stays, whatever changed.
    """

    asked: bytes
    picture: Markup | None
    problem: str
    until: float


class Drawer:
    """Draws one graph at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Drawing] = OrderedDict()
        self._drawing: dict[str, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()

    async def draw(self, name: str, view: View, links: Mapping[int, str], *, waits: bool) -> Drawing | None:
        """The picture of a graph as it is, or was a short while ago; ``name`` tells it from others. None: not yet."""
        asked = msgspec.json.encode({"title": view.title, "nodes": view.nodes, "edges": view.edges, "links": links})
        kept = self._kept.get(name)
        if kept is None or (time.monotonic() > kept.until and (kept.asked != asked or kept.picture is None)):
            if name not in self._drawing:
                self._drawing[name] = asyncio.ensure_future(self._draw(name, asked))
            await asyncio.wait([self._drawing[name]], timeout=WAITS if waits else 0)
        return self._kept.get(name)

    async def _draw(self, name: str, asked: bytes) -> None:
        try:
            async with self._lock:
                self._kept[name] = await _drawn(asked)
                self._kept.move_to_end(name)
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        finally:
            del self._drawing[name]


async def _drawn(asked: bytes) -> Drawing:
    began, picture, problem = time.monotonic(), None, ""
    try:
        # In a thread: a child of asyncio's that is cancelled while it starts is waited for without an end.
        picture = await asyncio.to_thread(_elsewhere, asked)
    except (TimeoutError, subprocess.TimeoutExpired):
        problem = f"its layout took more than {SECONDS} s"
    except (OptionsError, OSError) as error:
        problem = str(error)
    now = time.monotonic()
    return Drawing(asked, picture, problem, now + max(STAYS, TIMES * (now - began)))


def _elsewhere(asked: bytes) -> Markup:
    order = [sys.executable, "-m", "headrace.picture"]
    done = subprocess.run(order, input=asked, capture_output=True, timeout=DRAWING, check=False)
    if done.returncode == -signal.SIGXCPU:
        raise TimeoutError
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise OptionsError(said.splitlines()[-1] if said else "it cannot be drawn")
    # Made of escaped texts by headrace.picture.
    return Markup(done.stdout.decode())  # noqa: S704


class NavigationEntry(msgspec.Struct, frozen=True):
    """A page of the navigation: its path, its word, the key after ``g`` that opens it, and its icon as an SVG path."""

    path: str
    word: str
    key: str
    icon: str


NAVIGATION = (
    NavigationEntry("/", "Overview", "o", "M2 9.5 8 3l6 6.5M4 8v5.5h8V8"),
    NavigationEntry("/jobs", "Jobs", "j", "M2.5 4h11M2.5 8h11M2.5 12h7"),
    NavigationEntry("/causes", "Causes", "c", "M8 2.5 14 13H2zM8 6.5v3M8 11.2v.1"),
    NavigationEntry("/queues", "Queues", "q", "M2 5h4v6H2zM8 5h2.5v6H8zM12.5 5h1.5v6h-1.5z"),
    NavigationEntry("/tasks", "Tasks", "t", "M3 3.5h10v9H3zM5.5 6.5 7.5 8l-2 1.5M8.5 10h2.5"),
    NavigationEntry("/workflows", "Workflows", "f", "M2 6h4v4H2zM10 2.5h4v4h-4zM10 9.5h4v4h-4zM6 8h2V4.5h2M8 8v3.5h2"),
    NavigationEntry("/schedules", "Schedules", "e", "M8 2.5a5.5 5.5 0 1 0 .01 0zM8 5v3l2 1.5"),
    NavigationEntry("/limits", "Limits", "l", "M2.5 13a5.5 5.5 0 1 1 11 0M8 13l2.5-4"),
    NavigationEntry("/workers", "Workers", "w", "M3 3h10v4H3zM3 9h10v4H3zM5 5h.1M5 11h.1"),
    NavigationEntry("/cache", "Cache", "a", "M8 2.5 14 6 8 9.5 2 6zM2 10l6 3.5 6-3.5"),
    NavigationEntry(
        "/store",
        "Store",
        "d",
        "M3 4.5c0-2.7 10-2.7 10 0v7c0 2.7-10 2.7-10 0zM3 4.5c0 2.7 10 2.7 10 0M3 8c0 2.7 10 2.7 10 0",
    ),
    NavigationEntry("/activity", "Activity", "y", "M1.5 8.5H5l1.5-5 3 9 1.5-4h3.5"),
)


T = TypeVar("T")

AGE = 2.0  # seconds that one read serves all who ask
READINGS = 256  # readings that are kept
PATIENCE = 5.0  # seconds that a page may take
# A request with this header refreshes a page that is shown.
POLL = "x-headrace-poll"
SAID = "headrace_said"

_FILTERS: tuple[Callable[..., Any], ...] = (
    values_shown.count, values_shown.short, values_shown.percent, values_shown.duration, values_shown.stamp,
    values_shown.minute, values_shown.cut, values_shown.breaks, values_shown.frames, size, is_flow, signal_name,
)  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("headrace.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {one.__name__: one for one in _FILTERS} | {"urlencode": values_shown.quoted}
    known: dict[str, Any] = {
        "navigation": NAVIGATION, "version": __version__, "state": values_shown.state, "plural": values_shown.plural,
        "dash": values_shown.NONE,
        "spans": figures.SPANS.values(),
    }  # fmt: skip
    made.globals.update(known)
    return made


class Shared(Generic[T]):
    """A reading that all who ask within its age share, and wait for while it is under way. ``last``: if any."""

    def __init__(self, read: Callable[[], Awaitable[T]], age: float = AGE) -> None:
        self.last: T | None = None
        self._read = read
        self._age = age
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def get(self, *, fresh: bool = False, age: float | None = None) -> T:
        """The reading. ``fresh``: read now, as after a verb whose effect is to be seen. ``age``: at most, seconds."""
        async with self._lock:
            if self.last is None or fresh or time.monotonic() - self._at > (self._age if age is None else age):
                self.last = await self._read()
                self._at = time.monotonic()
            return self.last


# Seconds after which a store that does not answer counts as away, and trips a second at most for all tabs: those of a
# search or of a bulk operation's count, and a few more.
SILENCE = 2.0
RATE = 20


class JointClient(Client):
    """An application's client, for reads on an event loop; all else is that of the client ``behind``."""

    def __init__(self, client: Client) -> None:
        self.behind = client
        self._reads = JointReads(self._aread, self._wait)
        self._departures: deque[float] = deque(maxlen=RATE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def arun(self, call: Call[T]) -> T:
        """Ask for one call. Raises as a store's :meth:`run`, and TimeoutError after ``SILENCE`` seconds."""
        return await self.aread(call)

    async def adrive(self, steps: Steps[T]) -> T:
        ask = self._reads.ask
        return await adriven(steps, lambda asked: ask(asked) if isinstance(asked, list) else self.arun(asked))

    def _wait(self, now: float) -> float:
        first = self._departures[0] + 1 if len(self._departures) == RATE else now
        self._departures.append(max(first, now))
        return first - now

    async def _aread(self, calls: list[Call[Any]]) -> list[Any]:
        before = self.left_out
        try:
            async with asyncio.timeout(SILENCE):
                return await super()._aread(calls)
        except TimeoutError:
            if self.left_out == before:
                raise
        # Lists do without the shard that was silent.
        async with asyncio.timeout(SILENCE):
            return await super()._aread(calls)


@dataclass(slots=True)
class DashboardSite:
    """One dashboard.

    Attributes:
        app: whose store is shown.
        login: how people come in where no application decides; None: it does.
        read_only: whether there are no verbs.
        redactor: what hides values.
        title: what stands beside the name, to tell one dashboard from another.
        withhold: whether viewers see no arguments, results and logs.
        trace_url: a link to a trace, with ``{trace_id}`` in it; empty: none.
        client: by which pages read: what one asks for together is one round trip.
        frames: the shared frame.
        drawer: pictures of workflows.
    """

    app: Headrace
    login: TokenLogin | None = None
    read_only: bool = False
    redactor: Redactor = field(default_factory=lambda: Redactor(NAMES))
    title: str = ""
    trace_url: str = ""
    withhold: bool = False
    client: JointClient = field(init=False)
    frames: Shared[LiveFrame] = field(init=False)
    drawer: Drawer = field(default_factory=Drawer)
    _counts: JointClient = field(init=False)
    _readings: OrderedDict[tuple[str, ...], Shared[Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.client = self._counts = JointClient(self.app.client)
        self.frames = Shared(lambda: self.client.adrive(read_frame(self.client.keys)))
        self._readings = OrderedDict()

    @property
    def counts(self) -> JointClient:
        way = self.app.stats.client
        if way is not self._counts.behind:
            self._counts = self.client if way is self.client.behind else JointClient(way)
        return self._counts

    async def read(self, asked: Awaitable[T]) -> T:
        found, _ = await asyncio.gather(asked, self.frames.get())
        return found

    async def course(self, span: TimeRange, kind: str = "tasks", name: str = "") -> Course:
        found = await self.reading(
            ("course", span.name, kind, name), lambda: figures.course(self.app, self.counts, span, kind, name)
        )
        # The page asks for it in the same trip.
        frame = await self.frames.get(age=PATIENCE)
        return replace(found, deploys=frame.overview.deploys)

    async def table(self, span: TimeRange, kind: str = "tasks") -> list[TaskFigures]:
        return await self.reading(("table", span.name, kind), lambda: figures.table(self.app, self.counts, span, kind))

    async def recent(self, key: str, call: Call[T], age: float = AGE) -> T:
        return await self.reading((key,), lambda: self.client.arun(call), age)

    async def refresh(self) -> None:
        self._readings.clear()
        await self.frames.get(fresh=True)

    async def reading(self, key: tuple[str, ...], read: Callable[[], Awaitable[T]], age: float = AGE) -> T:
        """What ``read`` gives, shared by those who ask for the same key within its age, in seconds."""
        found = self._readings.get(key)
        if found is None:
            found = self._readings[key] = Shared(read, age)
            if len(self._readings) > READINGS:
                self._readings.popitem(last=False)
        self._readings.move_to_end(key)
        value: T = await found.get()
        return value

    async def answer(self, handler: Handler, request: Request) -> Response:
        visitor = visitor_of(request)
        async with asyncio.timeout(PATIENCE):
            if POLL not in request.headers or form_wanted(request) or visitor is None:
                return await handler(self, request)
            request.scope["headrace.visitor"] = replace(visitor, name="")
            key = ("refresh", visitor.role, base_of(request), path_of(request), request.url.query)
            return await self.reading(key, lambda: handler(self, request), AGE)

    async def page(
        self, request: Request, template: str, document: Callable[[], Any], *, status: int = 200, **context: Any
    ) -> Response:
        """A page, with the frame that all of them show something of; or its document, where a program asks for that.
        ``document``: makes what ``.json`` of the page holds, and ``.csv`` the rows of. It is redacted here.
        """
        if form := form_wanted(request):
            return document_answer(form, path_of(request), self.redactor.value(document()), status)
        # What a page has read at its beginning is good to its end.
        frame = context.pop("frame", None) or await self.frames.get(age=PATIENCE)
        return self.bare(request, template, status=status, frame=frame, now=frame.now, **context)

    def bare(self, request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
        visitor = visitor_of(request)
        now = context.get("now", 0)
        # Not on a refresh, which shows no more than figures.
        said = "" if POLL in request.headers else unquote(request.cookies.get(SAID, ""))
        shown: dict[str, Any] = {
            "template": template,
            "title": _title_of_path(path_of(request)),
            "typed": "",
            "frame": None,
            "visitor": visitor,
            "operates": visitor is not None and visitor.operates and not self.read_only,
            "site": self,
            "base": base_of(request),
            "root": root_of(request.scope),
            "spaces": request.scope.get("headrace.spaces", {}),
            "path": path_of(request),
            "query": request.url.query,
            "answers_form": request.method not in SAFE,
            "as_json": _as_form(request, "json"),
            "as_csv": _as_form(request, "csv") if has_rows(path_of(request)) else "",
            "most_rows": 0,
            "theme": theme_of(request),
            "when": partial(values_shown.when, now=now),
            "sight": sight_of(self, request),
            "said": said,
            **context,
        }
        text = _environment().get_template("page.html").render(shown)
        # A job's text may hold half a surrogate pair.
        response = HTMLResponse(text.encode("utf-8", "replace"), status)
        if said:
            response.delete_cookie(SAID, path=base_of(request) or "/")
        return response


Handler: TypeAlias = Callable[[DashboardSite, Request], Awaitable[Response]]


def base_of(request: Request) -> str:
    return quoted_base(str(request.scope.get("root_path", "")))


def _title_of_path(path: str) -> str:
    kind, _, name = path.strip("/").partition("/")
    word = kind.capitalize() or "Overview"
    return f"{values_shown.cut(name, 60)} · {word}" if name else word


def path_of(request: Request) -> str:
    path, base = str(request.scope["path"]), str(request.scope.get("root_path", "")).rstrip("/")
    return (path[len(base) :] if base and path.startswith(base) else path) or "/"


def name_in(request: Request, kind: str) -> str:
    """The name in a path. Where nothing of this kind can be called so, there is no such page: HTTPException."""
    name: str = request.path_params["name"]
    try:
        return check_name(kind, name)
    except OptionsError:
        raise HTTPException(404, f"Nothing can be called {name[:100]!r}.") from None


def _as_form(request: Request, form: str) -> str:
    path = quoted_path(path_of(request).rstrip("/") or "/overview")
    return f"{base_of(request)}{path}.{form}" + (f"?{request.url.query}" if request.url.query else "")


def form_wanted(request: Request) -> str:
    """``json`` or ``csv``, where a page was asked for so, with that behind its path; else empty."""
    return str(request.scope.get("headrace.form", ""))


def visitor_of(request: Request) -> Visitor | None:
    """Who was let in; None on pages that need no visitor."""
    found = request.scope.get("headrace.visitor")
    return found if isinstance(found, Visitor) else None


def sight_of(site: DashboardSite, request: Request) -> Sight:
    visitor = visitor_of(request)
    return "all" if visitor is not None and visitor.operates else "none" if site.withhold else "named"


def to(request: Request, path: str, said: str = "") -> Response:
    response = RedirectResponse(base_of(request) + path, 303)
    if said:
        # Not in the URL: a link must not be able to put words on a page.
        response.set_cookie(
            SAID, quote(said[:500]), max_age=60, path=base_of(request) or "/", httponly=True, samesite="lax"
        )
    return response
