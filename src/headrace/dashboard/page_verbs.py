"""Verbs of operators: each is one form, checked, done by the application's own verb, logged, and answered by a page.

A page says before what will happen, and after what the store replied: a verb that came too late names the state.
Forms of all visitors stand with them: the log-in, by a code or a token, and the theme.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.dashboard.dashboard_site import DashboardSite, to, visitor_of
from headrace.dashboard.values_shown import plural, quoted
from headrace.dashboard.visitors import THEME, Role
from headrace.errors import HeadraceError, NotFound, StoreUnavailable
from headrace.model.limit_rules import Concurrency, Rate
from headrace.model.stacks import RunnerStacks
from headrace.tasks.edited_job import JobMove

log = logging.getLogger("headrace.dashboard")

# A verb may be done whose answer was lost.
UNANSWERED = "The store did not answer. It may have done what you asked for: look before you ask again."
MOST = 64 * 1024  # bytes of a form
MOST_MARK = 300  # letters of what an acknowledgement names

_ACT = re.compile(r"/(?P<kind>[a-z]+)/(?P<name>.*)/act/(?P<verb>[a-z]+)", re.DOTALL)

# Acts whose path names neither verb nor job.
_UNNAMED = {"/bulk": ("bulk", "jobs", ""), "/jobs/new": ("enqueue", "jobs", "")}

Form = Mapping[str, str]
Act = Callable[[DashboardSite, str, Form], Awaitable[str]]


async def form_of(request: Request) -> dict[str, str]:
    return dict(await fields_of(request))


async def fields_of(request: Request) -> list[tuple[str, str]]:
    return parse_qsl((await body_of(request, MOST)).decode("utf-8", "replace"), keep_blank_values=True)


async def body_of(request: Request, most: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, "This form is too large.")
    return bytes(body)


def number_in(form: Form, field: str) -> float | None:
    text = form.get(field, "").strip()
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise HTTPException(400, f"{text[:40]!r} is not a number.")
    return number


def whole_in(form: Form, field: str) -> int | None:
    number = number_in(form, field)
    if number is not None and not number.is_integer():
        raise HTTPException(400, f"{number:g} is not a whole number.")
    return None if number is None else int(number)


async def _move_job(site: DashboardSite, id: str, form: Form) -> str:
    minutes = number_in(form, "minutes")
    changes: JobMove = {
        "queue": form.get("queue", "").strip() or None,
        "priority": whole_in(form, "priority"),
        "delay": None if minutes is None else minutes * 60,
    }
    state = await site.app.job(id).amove(**changes)
    words = {"scheduled": "The job is scheduled anew.", "ready": "The job is ready now."}
    return words.get(state, f"The job is {state}.")


async def _stop_bulk(site: DashboardSite, id: str, _form: Form) -> str:
    one = await site.app.bulk.astop(id)
    if one.running:
        return f"The operation is asked to stop: {one.words}."
    how = "is stopped" if one.state == "cancelled" else "had ended"
    return f"The operation {how}: {one.words}."


async def _cancel_job(site: DashboardSite, id: str, _form: Form) -> str:
    state = await (await site.app.jobs.aget(id)).acancel()
    words = {"cancelled": "The job is cancelled.", "running": "The job was asked to stop; it is killed if it does not."}
    return words.get(state, f"The job had ended before: it is {state}.")


async def _pause(site: DashboardSite, name: str, form: Form) -> str:
    minutes, note = number_in(form, "minutes"), form.get("note", "").strip()
    new = await site.app.queues[name].apause(None if minutes is None else minutes * 60, note)
    end = ("until it is resumed" if minutes is None else f"for {minutes:g} min") + (f": {note[:500]}" if note else "")
    return f"Queue {name} is paused {end}." if new else f"Queue {name} was paused already; now it is so {end}."


async def _resume(site: DashboardSite, name: str, _form: Form) -> str:
    found = await site.app.queues[name].aresume()
    return f"Queue {name} is resumed." if found else f"Queue {name} was not paused."


async def _purge(site: DashboardSite, name: str, form: Form) -> str:
    size = await site.app.queues[name].asize()
    if form.get("typed", "").strip() != name:
        raise HTTPException(
            400, f"Nothing was deleted: type the queue's name, {name}, to purge its {plural(size, 'job')}."
        )
    return f"{plural(await site.app.queues[name].apurge(), 'job')} of queue {name} deleted."


async def _scale(site: DashboardSite, name: str, form: Form) -> str:
    size = form.get("size", "")
    if not (size.isdecimal() and len(size) < 10):
        raise HTTPException(400, "Give a whole number of runners, of at most nine digits.")
    kind = form.get("kind") or None
    worker = await site.app.workers.ascale(name, int(size), kind)  # type: ignore[arg-type]
    return f"Worker {worker.place} was told to run {plural(int(size), 'job')} at once."


async def _pause_schedule(site: DashboardSite, name: str, form: Form) -> str:
    new = await site.app.schedules[name].apause(form.get("note", "").strip()[:500])
    return f"Schedule {name} is paused: its ticks make no jobs." if new else f"Schedule {name} was paused already."


async def _resume_schedule(site: DashboardSite, name: str, _form: Form) -> str:
    new = await site.app.schedules[name].aresume()
    return f"Schedule {name} ticks again, from its next tick on." if new else f"Schedule {name} was not paused."


async def _run_schedule(site: DashboardSite, name: str, form: Form) -> str:
    # The page gives its form a request id, so a form that is sent twice makes one job.
    job = await site.app.schedules[name].arun(request_id=form.get("request"))
    if job is None:
        return "Nothing was made: a job of this schedule is at work, and its overlap policy makes no other."
    return f"Job {job.id} was made."


async def _backfill(site: DashboardSite, name: str, form: Form) -> str:
    start, end = _time_in(form, "from"), _time_in(form, "to")
    made = await site.app.schedules[name].abackfill(start, end)
    return f"{plural(len(made), 'job')} made, for the ticks of this time that had not run."


def _time_in(form: Form, field: str) -> datetime:
    text = form.get(field, "").strip()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise HTTPException(400, f"{text[:40]!r} is not a time: write one such as 2026-11-21T22:30, in UTC.") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _limit_in(name: str, form: Form) -> tuple[str, str | None, float | None]:
    value, minutes = form.get("value"), number_in(form, "minutes")
    words = f"Limit {name}" if value is None else f"Value {value or '(none)'} of limit {name}"
    return words, value, None if minutes is None else minutes * 60


async def _pause_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, seconds = _limit_in(name, form)
    new = await site.app.limits[name].apause(value, seconds)
    end = "until it is resumed" if seconds is None else f"for {seconds / 60:g} min"
    return f"{what} is paused {end}." if new else f"{what} was paused already; now it is so {end}."


async def _resume_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, _ = _limit_in(name, form)
    return f"{what} goes on." if await site.app.limits[name].aresume(value) else f"{what} was not paused."


async def _set_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, seconds = _limit_in(name, form)
    starts, per, most = number_in(form, "starts"), number_in(form, "per"), whole_in(form, "most")
    given: list[Rate | Concurrency] = []
    if starts is not None:
        given.append(Rate(int(starts) if starts.is_integer() else starts, 1 if per is None else per))
    if most is not None:
        given.append(Concurrency(most))
    if not given:
        raise HTTPException(400, "Give a number of starts, or of jobs at once.")
    await site.app.limits[name].aset(*given, value=value, duration=seconds)
    end = "until it is unset" if seconds is None else f"for {seconds / 60:g} min"
    return f"{what} has other numbers than code declares, {end}."


async def _unset_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, _ = _limit_in(name, form)
    changed = await site.app.limits[name].aunset(value)
    return f"{what} is as code declares it." if changed else f"{what} was as code declares it."


async def _delete_value(site: DashboardSite, name: str, _form: Form) -> str:
    gone = await site.app.cache.adelete(name)
    return f"Cached value {name} is deleted." if gone else f"There was no cached value {name}."


async def _acknowledge(_site: DashboardSite, mark: str, _form: Form) -> str:
    """The record of this act is the acknowledgement."""
    if mark.count("~") < 2 or len(mark) > MOST_MARK:
        raise HTTPException(400, "This names nothing that needs a person.")
    return "Acknowledged. It comes back after a day, or when it grows."


async def _delete_tag(site: DashboardSite, tag: str, _form: Form) -> str:
    return f"{plural(await site.app.cache.adelete_tag(tag), 'cached value')} with tag {tag} deleted."


def _of(kind: str, verb: str, words: str) -> Act:
    """A verb of what ``app.<kind>.aget`` finds. ``words``: what was done; ``{state}`` is the verb's answer."""

    async def act(site: DashboardSite, id: str, _form: Form) -> str:
        state = await getattr(await getattr(site.app, kind).aget(id), f"a{verb}")()
        return words.format(state=state)

    return act


def _of_worker(verb: str, words: str) -> Act:
    async def act(site: DashboardSite, name: str, _form: Form) -> str:
        worker = await getattr(site.app.workers, f"a{verb}")(name)
        return f"Worker {worker.place} was told to {words}"

    return act


# Verbs by the kind of what they change; a log line names both.
ACTS: dict[str, Mapping[str, Act]] = {
    "jobs": {
        "retry": _of("jobs", "retry", "The job lines up again, with fresh budgets."),
        "cancel": _cancel_job,
        "delete": _of("jobs", "delete", "The job is deleted."),
        "move": _move_job,
    },
    "bulk": {"stop": _stop_bulk},
    "queues": {"pause": _pause, "resume": _resume, "purge": _purge},
    "cache": {"delete": _delete_value, "untag": _delete_tag},
    "limits": {"pause": _pause_limit, "resume": _resume_limit, "set": _set_limit, "unset": _unset_limit},
    "schedules": {"pause": _pause_schedule, "resume": _resume_schedule, "run": _run_schedule, "backfill": _backfill},
    "needs": {"acknowledge": _acknowledge},
    "workers": {
        "scale": _scale,
        "stop": _of_worker("stop", "stop: it claims no more, and ends when its jobs have ended."),
        "quiet": _of_worker("quiet", "claim no more. It stays until you stop it."),
    },
    "workflows": {
        "start": _of("workflows", "start", "The workflow is {state}."),
        "stop": _of("workflows", "stop", "The workflow is {state}: nothing of it starts until it is started again."),
        "cancel": _of("workflows", "cancel", "The workflow is {state}."),
        "retry": _of("workflows", "retry_failed", "Its failed jobs line up again; the workflow is {state}."),
        "delete": _of("workflows", "delete", "The workflow is deleted."),
    },
}


def failure_words(error: HeadraceError) -> str:
    return UNANSWERED if isinstance(error, StoreUnavailable) else f"Nothing was done: {error}"


async def note(
    site: DashboardSite, request: Request, what: tuple[str, str, str], reply: str, count: int = 1, scope: str = ""
) -> None:
    """Record an act of the visitor, and log it: verb, kind and name, and what came of it. The act is recorded after the
    store's reply to it, so that the record has that reply. A store that takes no record (it may be full) keeps no
    visitor from acting: the log has the act anyway.
    """
    visitor = visitor_of(request)
    who = visitor.name if visitor else "?"
    verb, kind, name = (site.redactor.text(text) for text in what)
    reply = site.redactor.text(reply)
    log.info("%s of %s %s by %s: %s", verb, kind.removesuffix("s"), name, who, reply)
    by = "api" if request.headers.get("authorization") else "dashboard"
    try:
        await site.app.acts.arecord(
            verb, kind, name, who=who, by=by, scope=site.redactor.text(scope), count=count, reply=reply
        )
    except HeadraceError as error:
        log.warning("an act is not in the record of acts: %s", error)


async def done(
    site: DashboardSite, request: Request, what: tuple[str, str, str], reply: str, path: str, count: int = 1,
    scope: str = "",
) -> Response:  # fmt: skip
    """Note an act, read anew what pages share, and show a page with the reply."""
    await asyncio.gather(note(site, request, what, reply, count, scope), site.refresh())
    return to(request, path, site.redactor.text(reply))


async def note_refused(site: DashboardSite, request: Request, path: str, why: str) -> None:
    found = _ACT.fullmatch(path)
    visitor = visitor_of(request)
    log.warning("refused %s %s by %s: %s", request.method, path, visitor.name if visitor else "?", why)
    what = _UNNAMED.get(path)
    if found is not None:
        what = (found["verb"], found["kind"], "" if found["name"] == "ticked" else found["name"])
    if what is not None and not site.read_only:
        await note(site, request, what, f"refused: {why}")


async def ask_first(
    site: DashboardSite, request: Request, verb: str, title: str, texts: Sequence[str], action: str, back: str,
    fields: Iterable[tuple[str, object]], **more: Any,
) -> Response:  # fmt: skip
    """The page that asks before a verb is done. Its form has ``fields``, and goes to ``action``."""
    shown: dict[str, Any] = {
        "rows": (), "flows": {}, "note": "", "rate": False, "typed_number": 0, "button": title.removesuffix("?"),
        "verb": verb, "title": title, "texts": texts, "action": action, "back": back, "fields": fields, **more,
    }  # fmt: skip
    return await site.page(request, "confirm.html", lambda: {"verb": verb, "ask": title}, status=200, **shown)


async def act(site: DashboardSite, request: Request) -> Response:
    kind, name, verb = (request.path_params[part] for part in ("kind", "name", "verb"))
    verbs = ACTS.get(kind, {})
    if verb not in verbs:
        raise HTTPException(404, "There is no such verb.")
    form = await form_of(request)
    # A cached value and a need have no page of their own.
    place = {"cache": "/cache", "needs": "/"}.get(kind, f"/{kind}/{quoted(name)}")
    if form.get("ask"):
        # Without script there was no dialog: a page asks.
        asked, fields = form.pop("ask"), form.items()
        action = f"/{kind}/{quoted(name)}/act/{verb}"
        return await ask_first(site, request, verb, f"{verb.capitalize()}?", [asked], action, place, fields)
    try:
        said = await verbs[verb](site, name, form)
    except HeadraceError as error:
        said = failure_words(error)
    gone = (kind, verb) in (("workflows", "delete"), ("jobs", "delete"), ("workers", "stop"))
    return await done(site, request, (verb, kind, name), said, f"/{kind}" if gone else place)


async def theme(_site: DashboardSite, request: Request) -> Response:
    form = await form_of(request)
    wanted = form.get("theme", "")
    place = form.get("back", "/")
    safe = place.startswith("/") and not place.startswith(("//", "/\\"))
    response = to(request, place if safe else "/")
    if wanted in ("light", "dark"):
        response.set_cookie(THEME, wanted, max_age=365 * 86400, path="/", httponly=True, samesite="lax")
    else:
        response.delete_cookie(THEME, path="/")
    return response


async def stacks(site: DashboardSite, request: Request) -> Response:
    ((part, name),) = request.path_params.items()
    kind = "jobs" if part == "id" else "workers"
    what, back = ("stacks", kind, name), f"/{kind}/{quoted(name)}"
    try:
        found = await (_stacks_of(site, name) if kind == "jobs" else site.app.workers.astacks(name))
    except HeadraceError as error:
        said = f"Nothing was done: {error}"
        await note(site, request, what, said)
        return to(request, back, site.redactor.text(said))
    await note(site, request, what, f"looked at {plural(len(found), 'runner')}")
    frame = await site.frames.get(fresh=True)
    return await site.page(request, "stacks.html", list, title="Stacks", frame=frame, found=found, back=back, kind=kind)


async def _stacks_of(site: DashboardSite, id: str) -> Sequence[RunnerStacks]:
    record = await site.app.job(id).arefresh()
    if record.state != "running":
        raise NotFound(f"the job is {record.state}")
    runners = await site.app.workers.astacks(record.owner)
    found = [one for one in runners if one.job == id]
    return found or [one for one in runners if one.kind in ("thread", "async") and one.job]


async def login(site: DashboardSite, request: Request) -> Response:
    """Show the form, or use what it holds. A code in the link is used by the button only: a preview must not use it."""
    assert site.login is not None
    if request.method != "POST":
        return site.bare(request, "login.html", code=request.query_params.get("code", ""), problem="")
    form, sender = await form_of(request), request.client.host if request.client else "?"
    role: Role | None = "operator" if site.login.use(form.get("code", "")) else None
    role = role or site.login.role_of(form.get("token", "").strip())
    if role is not None and role != "producer":
        response = to(request, "/")
        site.login.admit(request, response, role)
        log.info("%s came in from %s", role, sender)
        return response
    status, problem = 403, "This is not the token."
    if site.login.failed():
        status, problem = 429, "Too many failed. Wait a second."
    else:
        log.warning("a log-in from %s failed", sender)
        if role is not None:
            problem = "This token is for programs."
        elif form.get("code"):
            problem = "This link was used or is older than five minutes."
    return site.bare(request, "login.html", status=status, code="", problem=problem)


async def logout(site: DashboardSite, request: Request) -> Response:
    assert site.login is not None
    response = to(request, "/login")
    site.login.dismiss(request, response)
    return response
