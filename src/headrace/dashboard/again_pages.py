"""A job again with other arguments, or a new one: a form with a field for each, and the job that is made of it.

``POST /v1/jobs``: programs without a driver of the store send jobs, one a request, as JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace import errors
from headrace.dashboard.dashboard_site import DashboardSite
from headrace.dashboard.page_verbs import body_of, done, failure_words, form_of, note, number_in
from headrace.dashboard.values_shown import json_text
from headrace.model.hidden_values import Redactor, named_shown
from headrace.model.job_record import Record
from headrace.model.notation import size
from headrace.model.options import CallOptions
from headrace.settings import HIDDEN
from headrace.tasks.bound_task import new_id
from headrace.tasks.edited_job import arguments_of

# Characters of all texts that a form shows: the form that comes back has a bound.
MOST = 12_000
_FIELD = "argument "


class ArgumentField(msgspec.Struct, frozen=True):
    """One argument in a form.

    Attributes:
        name: its name; a number where the task is not known here. label: what the form calls it.
        text: JSON, as it is shown or was typed; None: it is too large, and stays as it is.
        hint: what stands in an empty field.
        large: how large it is, if it is too large.
        problem: what is wrong with what was typed.
        hidden: whether a part of it is hidden.
        plain: whether a text without quotes is a value: its annotation is ``str``.
    """

    name: str
    label: str
    text: str | None
    hint: str = ""
    large: str = ""
    problem: str = ""
    hidden: bool = False
    plain: bool = False

    @property
    def rows(self) -> int:
        return min(16, sum(1 + len(line) // 60 for line in (self.text or "").split("\n")))


def shown_arguments(found: Mapping[str, Any], redactor: Redactor, secrets: str = "") -> list[ArgumentField]:
    shown: list[ArgumentField] = []
    left = MOST
    for name, value in found.items():
        text = json_text(redactor.value(named_shown(secrets, {name: value}))[name])
        if len(text) > left:
            shown.append(ArgumentField(name, name, None, large=size(len(text))))
            continue
        left -= len(text)
        shown.append(ArgumentField(name, name, text, hidden=HIDDEN in text))
    return shown


def restored(typed: Any, shown: Any, stored: Any) -> Any:
    """What was typed, and what is stored where it is as shown. Raises ValueError: a hidden value where none was."""
    if _same(typed, shown):
        return stored
    kinds: set[type[Any]] = {type(typed), type(shown), type(stored)}
    if kinds == {dict}:
        # JSON has texts for keys that are none; two of these may be one text.
        pairs = zip(shown, stored, strict=True) if len(shown) == len(stored) else ((key, key) for key in stored)
        keys: dict[Any, Any] = {text: key for text, key in pairs if text in shown}
        return {
            keys.get(key, key): restored(value, shown[key], stored[keys[key]]) if key in keys else _new(value)
            for key, value in typed.items()
        }
    if kinds == {list}:
        known = min(len(shown), len(stored))
        return [restored(value, shown[n], stored[n]) if n < known else _new(value) for n, value in enumerate(typed)]
    return _new(typed)


def _same(one: Any, other: Any) -> bool:
    # As JSON: 1, 1.0 and true are equal to Python.
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def _new(value: Any) -> Any:
    if HIDDEN in json_text(value):
        raise ValueError(f"{HIDDEN} stands for a hidden value only where it was: write a value")
    return value


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except ValueError:
        return text


def changes_of(
    found: Mapping[str, Any], form: Mapping[str, str], redactor: Redactor, secrets: str = ""
) -> tuple[dict[str, Any], list[ArgumentField]]:
    changes: dict[str, Any] = {}
    typed: list[ArgumentField] = []
    for one in shown_arguments(found, redactor, secrets):
        text = form.get(_FIELD + one.name)
        if one.text is None or text is None or text.replace("\r\n", "\n") == one.text:
            typed.append(one)
            continue
        problem = ""
        try:
            value, shown = msgspec.json.decode(text), _decoded(one.text)
            if not _same(value, shown):
                changes[one.name] = restored(value, shown, found[one.name])
        except RecursionError:
            problem = "This is nested too deeply."
        except ValueError as error:
            problem = f"{error}."
        typed.append(replace(one, text=text, problem=problem))
    return changes, typed


async def edit(site: DashboardSite, request: Request) -> Response:
    record, found = await _stored(site, request.path_params["id"])
    fields = shown_arguments(found, site.redactor, record.secrets)
    return await _job_form(site, request, record.task, fields, {}, record=record)


async def begin(site: DashboardSite, request: Request) -> Response:
    id = request.path_params["id"]
    form = await form_of(request)
    record, found = await _stored(site, id)
    changes, typed = changes_of(found, form, site.redactor, record.secrets)
    if any(one.problem for one in typed):
        problem = "Nothing was done: an argument cannot be read."
        return await _job_form(site, request, record.task, typed, form, problem, record)
    try:
        # The form has a request id, so one that is sent twice makes one job.
        job = await site.app.jobs.aagain(id, changes, request_id=form.get("request"))
    except errors.HeadraceError as error:
        said = failure_words(error)
        await note(site, request, ("again", "jobs", id), said)
        return await _job_form(site, request, record.task, typed, form, site.redactor.text(said), record)
    said = f"Job {job.id} is {id} again" + (f", with another {', '.join(changes)}." if changes else ".")
    if not job.fresh:
        said = f"Job {job.id} was made before: this makes no other."
    return await done(site, request, ("again", "jobs", id), said, f"/jobs/{job.id}")


async def _stored(site: DashboardSite, id: str) -> tuple[Record, dict[str, Any]]:
    record = await site.app.job(id).arefresh()
    return record, arguments_of(record, site.app.jobs.reader(record.task)).by_name


async def _job_form(
    site: DashboardSite, request: Request, task: str, arguments: list[ArgumentField] | None, form: Mapping[str, str],
    problem: str = "", record: Record | None = None,
) -> Response:  # fmt: skip
    title, back = f"New job of {task}" if task else "New job", "/jobs"
    if record is not None:
        title, back = f"Run {task or 'it'} again", f"/jobs/{record.id}"
    return await site.page(
        request, "arguments.html",
        lambda: {"task": task, "parameters": arguments} if record is None else {"id": record.id, "task": task},
        status=400 if problem else 200, title=title, job=record, task=task, arguments=arguments, problem=problem,
        field=_FIELD, asked=form.get("request") or new_id(site.client.keys.shard), known=task in site.app.tasks,
        action=f"{back}/new" if record is None else f"{back}/act/again", back=back, form=form,
    )  # fmt: skip


def parameters_of(site: DashboardSite, task: str, form: Mapping[str, str]) -> list[ArgumentField] | None:
    """What a task takes by name; None: its code is not known here."""
    known = site.app.tasks.get(task)
    if known is None:
        return None
    signature, shown = known.signature, list[ArgumentField]()
    names = [*signature.parameters.positions, *sorted(signature.parameters.keywords)]
    for name in dict.fromkeys(names):
        type_ = signature.types.get(name, Any)
        label, hint = f"{name}: {inspect.formatannotation(type_)}", "text" if type_ is str else "JSON"
        if name in signature.defaults:
            hint = json_text(site.redactor.value({name: signature.defaults[name]})[name])[:200]
        else:
            label += " (required)"
        shown.append(ArgumentField(name, label, form.get(_FIELD + name, ""), hint, plain=type_ is str))
    return shown


def _typed(parameters: Sequence[ArgumentField]) -> bytes:
    """The arguments as a JSON object; what was left empty is left out. Raises ValueError: a text is not JSON."""
    values: dict[str, Any] = {}
    for one in parameters:
        text = one.text or ""
        if not text.strip():
            continue
        try:
            plain = one.plain and not text.startswith('"')
            values[one.name] = text if plain else msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{one.name} is not JSON: {error}") from None
    return msgspec.json.encode(values)


async def new(site: DashboardSite, request: Request) -> Response:
    """The form of a new job, typed from the signature of its task."""
    task = request.query_params.get("task", "").strip()
    return await _job_form(site, request, task, parameters_of(site, task, {}), {})


async def make(site: DashboardSite, request: Request) -> Response:
    """Store the job of a form. The task's code checks its arguments if the dashboard has it. Cost: one round trip."""
    form = await form_of(request)
    task = form.get("task", "").strip()
    parameters = parameters_of(site, task, form)
    minutes = number_in(form, "minutes")
    options: CallOptions = {"request_id": form.get("request") or None}
    if queue := form.get("queue", "").strip():
        options["queue"] = queue
    if minutes:
        options["delay"] = minutes * 60
    try:
        kwargs = (form.get("json", "").strip() or "{}").encode() if parameters is None else _typed(parameters)
        job = await site.app.by_name(task, **options).aenqueue_json(b"[]", kwargs)
    except (errors.HeadraceError, ValueError) as error:
        said = failure_words(error) if isinstance(error, errors.HeadraceError) else f"Nothing was done: {error}"
        await note(site, request, ("enqueue", "tasks", task[:200]), said)
        return await _job_form(site, request, task, parameters, form, site.redactor.text(said))
    said = f"Job {job.id} was made." if job.fresh else f"Job {job.id} was made before: this makes no other."
    return await done(site, request, ("enqueue", "tasks", task), said, f"/jobs/{job.id}")


PATH = "/v1/jobs"
_MORE = 16_384  # bytes of a request besides its arguments
# What a refusal is to a program that speaks HTTP; all others are errors of the request.
_STATUS: tuple[tuple[type[errors.HeadraceError], int], ...] = (
    (errors.PayloadTooLarge, 413), (errors.DuplicateJob, 409), (errors.LaneFull, 429), (errors.StoreFull, 507),
    # The job is good: a program may send it again.
    (errors.ServerError, 503), (errors.SettingsError, 503),
)  # fmt: skip


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """One job to store.

    Attributes:
        task: its name.
        args, kwargs: its arguments, by position and by name; they stay JSON.
        options: those of ``app.by_name(...)``: times in seconds, ``at`` as ISO 8601 with a zone.
    """

    task: str
    args: msgspec.Raw = msgspec.Raw(b"[]")
    kwargs: msgspec.Raw = msgspec.Raw(b"{}")
    options: dict[str, Any] = {}


async def take(site: DashboardSite, request: Request) -> Response:
    """Store one job: 201, or 200 where its ``request_id`` or name had made one before. Cost: one round trip."""
    body = await body_of(request, site.app.settings.max_payload + _MORE)
    try:
        asked = msgspec.json.decode(body, type=JobRequest)
        if isinstance(at := asked.options.get("at"), str):
            asked.options["at"] = datetime.fromisoformat(at)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return JSONResponse({"error": f"this is not a job: {error}"}, 400)
    try:
        job = await site.app.by_name(asked.task, **asked.options).aenqueue_json(bytes(asked.args), bytes(asked.kwargs))
    except errors.StoreUnavailable:
        raise
    except errors.HeadraceError as error:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
        return JSONResponse({"error": str(error), "type": type(error).__name__}, status)
    return JSONResponse({"id": job.id, "task": job.task, "fresh": job.fresh}, 201 if job.fresh else 200)
