"""Pages about jobs: lists by state with a bounded search, one job, and verbs on many of them, complete without script.

1. :class:`JobSearch`: words and the fields of a form, as filters, cursors and links.
2. :func:`jobs` and :func:`job`: a list, and one.
3. :func:`act`: a verb on the jobs that are ticked in a list; a page asks first.
4. :func:`confirm` to :func:`bulks`: a bulk operation: a page that counts, the job that does it, how far each has come.
5. :func:`causes`: failures with one fingerprint as one row. The store counts each when it is stored.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.admin.bulk_operations import BulkOperations, JobCount
from headrace.admin.documents import bulk_document, job_details, job_summary
from headrace.admin.job_paging import LookedJobs, cursor_of, page_of, position, query_of
from headrace.admin.jobs import JobReply
from headrace.dashboard.dashboard_site import POLL, DashboardSite, form_wanted, sight_of, to, visitor_of
from headrace.dashboard.needs import why_of
from headrace.dashboard.page_verbs import ask_first, done, failure_words, fields_of, form_of, note
from headrace.dashboard.values_shown import (
    WITHHELD,
    Sight,
    arguments,
    arguments_document,
    error_line,
    given,
    json_text,
    link,
    plural,
    preview,
    result,
    shared_values,
)
from headrace.errors import HeadraceError, JobNotFound, OptionsError
from headrace.model.codec import holds_sealed
from headrace.model.headers import TRACE
from headrace.model.ids import LENGTH, flow_of, is_flow, is_node
from headrace.model.job import State
from headrace.model.job_record import Page, Record, cause_id, has_slots
from headrace.model.notation import iso
from headrace.protocol import operations, produce
from headrace.protocol.index_pages import CauseFacts, read_causes
from headrace.protocol.operations import VERBS, JobFilter
from headrace.protocol.overviews import why
from headrace.tasks.bound_task import new_id
from headrace.tasks.edited_job import AGAIN, check_id, not_found

LISTED = (
    "running", "ready", "scheduled", "blocked", "parked", "failed", "quarantined", "cancelled", "succeeded",
)  # fmt: skip
FIELDS = ("state", "queue", "task", "key", "cause", "error", "since", "until", "args")

_WORD = re.compile(rf'({"|".join(FIELDS[:-1])}):("[^"]*"|\S+)')
_ARGUMENT = re.compile(r'([\w-]+):("[^"]*"|\S+)')
_TYPED = re.compile(rf"args\.({_ARGUMENT.pattern})")
_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# Jobs of these states are in one structure, so that a page can go back; of others, if one is named.
_IN_ONE = ("scheduled", "failed", "quarantined", "cancelled", "succeeded")
_LAST = "z" * LENGTH  # behind every id that a page may end with


class JobSearch(msgspec.Struct, frozen=True):
    """A list of jobs of one state.

    Attributes:
        queue, task, key: only theirs; empty: all.
        cause: only failures of this cause, by its 16 digits.
        error: only failures with this exception, by its name with or without its module.
        since, until: only jobs of this time, as it was typed.
        args: only jobs with these arguments, as ``name:value`` with spaces between.
        text: only jobs that have it in what a list shows of them.
        after, before: the cursor of an older, and of a newer page.
    """

    state: str
    queue: str = ""
    task: str = ""
    key: str = ""
    cause: str = ""
    error: str = ""
    since: str = ""
    until: str = ""
    args: str = ""
    text: str = ""
    after: str = ""
    before: str = ""

    def link(self, **changes: str) -> str:
        changed = replace(self, **{"after": "", "before": "", **changes})
        facts = {name: getattr(changed, name) for name in (*FIELDS, "after", "before")}
        return link("/jobs", facts | {"q": changed.text})

    @property
    def narrow(self) -> bool:
        return any(getattr(self, name) for name in FIELDS if name != "state") or self.looks

    @property
    def looks(self) -> bool:
        """Whether each job must be looked at here."""
        return bool(self.text or self.cause or self.error or self.args)

    @property
    def arguments(self) -> list[tuple[str, str]]:
        return [(name, value.strip('"')) for name, value in _ARGUMENT.findall(self.args)]

    @property
    def typed(self) -> str:
        """What a person types to ask for the same."""
        facts = [(name, getattr(self, name)) for name in FIELDS[:-1]]
        facts += [(f"args.{name}", value) for name, value in self.arguments]
        words = [f'{name}:"{value}"' if " " in value else f"{name}:{value}" for name, value in facts if value]
        return " ".join([*words, self.text]).strip()

    @property
    def newer(self) -> str:
        named = {"ready": self.queue, "parked": self.task, "blocked": self.key}.get(self.state)
        if not self.after or self.looks or not (self.state in _IN_ONE or named):
            return ""
        score, _, index = position(self.after, "after")
        return self.link(before=cursor_of(score - 1, _LAST, index))

    @property
    def older(self) -> str:
        score, id, index = position(self.before, "before")
        return self.link(after=cursor_of(score, id + "z", index))

    def failed_so(self, record: Record) -> bool:
        kind = record.error.type if record.error is not None else ""
        if self.error not in ("", kind, kind.rpartition(".")[2]):
            return False
        return self.cause in ("", cause_id(record.task, record.error))


def moment_of(text: str, now: int) -> datetime | None:
    """A time in UTC of ``2026-11-21T22:30``, or that long ago of ``2h``; None of nothing."""
    if not text:
        return None
    found = _AGO.fullmatch(text.strip())
    try:
        if found is not None:
            return datetime.fromtimestamp(now / 1e6, UTC) - timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
        at = datetime.fromisoformat(text.strip())
    except (OverflowError, ValueError):
        raise OptionsError(
            f"{text[:40]!r} is not a time: write 2026-11-21T22:30, in UTC, or 2h for two hours ago"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def search_of(params: Mapping[str, str], counts: Mapping[str, int]) -> JobSearch:
    """What fields and words ask for. ``counts``: by state; where none is asked for, the first that holds any counts."""
    found = {name: params.get(name, "").strip() for name in (*FIELDS, "after", "before")}
    typed = params.get("q", "")
    given = [one[0] for one in _TYPED.findall(typed)]
    found["args"] = " ".join(filter(None, [found["args"], *given]))
    typed = _TYPED.sub("", typed)
    for name, value in _WORD.findall(typed):
        found[name] = value.strip('"')
    text = " ".join(_WORD.sub("", typed).split())
    if found["state"] not in LISTED:
        first = ("failed", "running", "ready", "scheduled", "quarantined", "succeeded")
        found["state"] = next((state for state in first if counts.get(state)), "failed")
    return JobSearch(text=text, **found)


# A list looks for these words in what it writes itself, and not in what is stored.
_OURS = (
    "true false null bytes nested too deeply shown arguments that cannot be read the result of a parent which not there"
)

_SEARCHED = re.compile(r"[a-z]{3,}|[0-9]{3,}")


def words_of(text: str, names: Collection[str]) -> list[str]:
    """Words that each job which shows the text has stored. ``names``: of parameters, which lists alone show."""
    found = dict.fromkeys(_SEARCHED.findall(text.lower()))
    unsure = [*_OURS.split(), *(name.lower() for name in names)]
    return [word for word in found if not any(word in other for other in unsure)]


# Jobs of a page, and of one as CSV.
PAGE = 50
ROWS = 1000
LINES = 200  # lines of a job's log that its page shows

_ID = re.compile(rf"[0-9a-z]{{{LENGTH}}}")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.DOTALL)


async def jobs(site: DashboardSite, request: Request) -> Response:
    typed = request.query_params.get("q", "").strip()
    if is_flow(typed) or _ID.fullmatch(typed):
        return to(request, f"/{'workflows' if is_flow(typed) else 'jobs'}/{typed}")
    frame = await site.frames.get()
    search = search_of(request.query_params, frame.overview.states)
    first, sight = not (search.after or search.before), sight_of(site, request)
    # What a poll can tell of is how many jobs are newer: a search and an older page are not repeated for that.
    passes = POLL in request.headers and (search.looks or not first)
    key = ("jobs", repr(search), sight, form_wanted(request))
    limit = ROWS if form_wanted(request) == "csv" else PAGE
    looked = LookedJobs(Page([], 0, None), 0)
    if not passes:
        looked = await site.reading(key, lambda: _found(site, search, sight, limit), 2)
    found = looked.page
    older = search.older if search.before else search.link(after=found.next) if found.next else ""
    newer = search.link(before=found.next) if search.before and found.next else search.newer
    rows = [(one, preview(one, site.redactor, sight), error_line(one, site.redactor)) for one in found.rows]
    return await site.page(
        request, "jobs.html",
        lambda: {
            "jobs": [job_summary(one) for one in found.rows], "count": found.count, "next": found.next,
            "looked": looked.looked,
        },
        frame=frame, title=f"{search.state.capitalize()} jobs", typed=search.typed, search=search, rows=rows,
        page=found, listed=LISTED, looked=looked.looked, older=older,
        newer=newer, stands=first and not passes, bulk=_bulk(search),
        ticked=TICKED.get(search.state, ()), means=MEANS, most_rows=ROWS if found.next else 0,
    )  # fmt: skip


def _bulk(search: JobSearch) -> list[tuple[str, str]]:
    if search.text or search.error or search.since or search.until:
        return []
    facts = {name: getattr(search, name) for name in _FIELDS}
    found: list[tuple[str, str]] = []
    for verb in VERBS:
        with suppress(HeadraceError):  # it is not for jobs of this state
            JobFilter(**facts).check(verb)
            found.append((verb, link("/bulk/new", {"verb": verb, **facts})))
    return found


async def _found(site: DashboardSite, search: JobSearch, sight: Sight, limit: int) -> LookedJobs:
    frame = await site.frames.get()
    wanted = search.text.lower()

    def matches(record: Record) -> bool:
        return search.failed_so(record) and _takes(record, search, site, sight) and _holds(record, wanted, site, sight)

    # Lists show the names of parameters of tasks that are defined here.
    names = {name for task in site.app.tasks.values() for name in task.signature.parameters.names}
    asked = " ".join(value for _, value in search.arguments)
    words = words_of(f"{search.text} {asked} {search.error.rpartition('.')[2]}", names)
    query = query_of(
        search.state, search.queue or None, search.task or None, search.key or None, limit,
        search.before or search.after or None, "asc" if search.before else "desc",
        moment_of(search.since, frame.now), moment_of(search.until, frame.now), values=False,
    )  # fmt: skip
    reader, seen = site.app.jobs.reader, frame.overview
    found = await site.client.adrive(
        page_of(site.client, reader, query, seen, words, matches if search.looks else None)
    )
    return LookedJobs(Page(found.page.rows[::-1], found.page.count, found.page.next), 0) if search.before else found


def _takes(record: Record, search: JobSearch, site: DashboardSite, sight: Sight) -> bool:
    """Whether a job has the arguments that are asked for; what is hidden cannot be found by guessing."""
    wanted = search.arguments
    if not wanted:
        return True
    named = given(record)
    if sight == "none" or record.left_out or isinstance(named, str):
        return False
    found = site.redactor.value(named)
    return all(
        name in found and (sight == "all" or not name.isdecimal()) and value in (found[name], json_text(found[name]))
        for name, value in wanted
    )


def _holds(record: Record, wanted: str, site: DashboardSite, sight: Sight) -> bool:
    shown = (
        record.id, record.task, record.key, site.redactor.text(record.note),
        preview(record, site.redactor, sight), error_line(record, site.redactor),
    )  # fmt: skip
    return any(wanted in part.lower() for part in shown)


async def job(site: DashboardSite, request: Request) -> Response:
    id = check_id(request.path_params["id"])
    arun, keys = site.client.arun, site.client.keys
    found, told, lines = await site.read(
        asyncio.gather(
            arun(produce.read(keys, [id], finder=site.app.jobs.reader)),
            arun(why(keys, id)),
            arun(operations.logs(keys, id, LINES)),
        )
    )
    record = found[0]
    if record is None:
        raise not_found(id)
    sight = sight_of(site, request)
    waits = None if record.state.final else why_of(told)
    log = [site.redactor.text(line) for line in lines] if sight != "none" else [WITHHELD] if lines else []
    returned, traced = result(record, site.redactor, sight), _TRACE.fullmatch(record.headers.get(TRACE, ""))
    return await site.page(
        request, "job.html",
        lambda: {
            **job_details(record, log), **arguments_document(record, site.redactor, sight),
            **({"result": WITHHELD} if returned and sight == "none" else {}), "waits": str(waits) if waits else None,
        },
        title=f"{record.task} · Jobs",
        job=record, waits=waits, log=log, arguments=arguments(record, site.redactor, sight), result=returned,
        retryable=record.state.final and record.state is not State.SKIPPED and not is_node(record.id), again_of=AGAIN,
        again=not (has_slots(record.packed_args) or holds_sealed(record.packed_args)),
        movable=record.state in ("scheduled", "ready", "parked"),
        deletable=record.state != "running" and not is_node(record.id),
        flow=flow_of(record.id) if is_node(record.id) else "", trace=traced[1] if traced else "",
        cause=cause_id(record.task, record.error) if record.state in ("failed", "quarantined") else "",
    )  # fmt: skip


_ENDED = ("retry", "delete")
_WAITING = ("cancel", "delete")
# Verbs that a list of jobs of a state offers for those that are ticked.
TICKED: Mapping[str, Sequence[str]] = {
    "failed": _ENDED, "quarantined": _ENDED, "cancelled": _ENDED, "succeeded": _ENDED, "scheduled": _WAITING,
    "ready": _WAITING, "parked": _WAITING, "blocked": ("cancel",), "running": ("cancel",),
}  # fmt: skip
# What each does, before it is done.
NEVER = " This cannot be undone."
MEANS: Mapping[str, str] = {
    "retry": "They run again, with the same arguments and fresh budgets.",
    "cancel": "Those that wait end as cancelled; those that run are asked to stop, and killed if they do not.",
    "delete": f"They leave with their arguments, results and logs.{NEVER}",
}


async def act(site: DashboardSite, request: Request) -> Response:
    """Do a verb on ticked jobs, and show their list again; unless it is sure, ask with a page that names them."""
    verb = request.path_params["verb"]
    if verb not in MEANS:
        raise HTTPException(404, "There is no such verb.")
    fields = await fields_of(request)
    form = dict(fields)
    ids = list(dict.fromkeys(value for name, value in fields if name == "id"))
    # To nothing but a list of jobs.
    back = f"/jobs?{form['list']}" if form.get("list") else "/jobs"
    if not 0 < len(ids) <= PAGE:
        raise HTTPException(400, f"Nothing was done: tick between one and {PAGE} jobs.")
    # Nodes refuse: the page that asks has a button for their workflows.
    if form.get("sure") != "1" or (verb != "cancel" and any(map(is_node, ids))):
        return await _ask(site, request, verb, ids, back)
    try:
        said = said_of(await site.app.jobs.aapply(verb, ids))
    except HeadraceError as error:
        said = failure_words(error)
    what = (verb, "jobs", ids[0] if len(ids) == 1 else "")
    return await done(site, request, what, said, back, len(ids), f"ticked: {' '.join(ids)}")


def said_of(replies: Sequence[JobReply]) -> str:
    parts = [_many(number, words) for words, number in Counter(one.words for one in replies if one.done).items()]
    refused = [one for one in replies if not one.done]
    if refused:
        first = refused[0]
        why = first.words if first.error is not None else f"job {first.id} {first.words}"
        parts.append(f"{len(refused):,} refused ({why})")
    return f"{', '.join(parts)}."


def _many(number: int, words: str) -> str:
    if number == 1:
        return f"1 job {words}"
    return f"{number:,} jobs " + words.replace("is ", "are ").replace("was ", "were ")


async def _ask(site: DashboardSite, request: Request, verb: str, ids: list[str], back: str) -> Response:
    for id in ids:
        try:
            check_id(id)
        except JobNotFound as error:
            raise HTTPException(400, f"Nothing was done: {error}") from None
    found: list[Record | None] = await site.app.client.arun(produce.read(site.app.client.keys, ids, lean=True))
    rows = list(zip(ids, found, strict=True))
    nodes = [] if verb == "cancel" else [id for id in ids if is_node(id)]
    left = [row for row in rows if row[0] not in nodes]
    goes = "which go on from what failed" if verb == "retry" else "which are deleted as a whole"
    return await ask_first(
        site, request, verb, f"{verb.capitalize()} {plural(len(left), 'job')}?", [MEANS[verb]] if left else [],
        f"/jobs/ticked/act/{verb}", back,
        [*(("id", id) for id, _ in left), ("list", back.partition("?")[2]), ("sure", 1)], rows=left,
        flows=Counter(map(flow_of, nodes)), note=f"{_nodes(len(nodes), 'ticked')}, {goes}." if nodes else "",
        **({} if left else {"button": ""}),
    )  # fmt: skip


def _nodes(number: int, which: str) -> str:
    return f"{plural(number, f'{which} job')} {'is a node' if number == 1 else 'are nodes'} of workflows"


MANY = 100  # above this many jobs their number must be typed

_FIELDS = ("state", "queue", "task", "key", "cause")


async def bulks(site: DashboardSite, request: Request) -> Response:
    found = await site.read(BulkOperations(site.client).apage())
    return await site.page(
        request, "bulks.html", lambda: {"operations": [bulk_document(one) for one in found]},
        title="Bulk operations", operations=found,
    )  # fmt: skip


async def bulk(site: DashboardSite, request: Request) -> Response:
    one, frame = await asyncio.gather(BulkOperations(site.client).aget(request.path_params["id"]), site.frames.get())
    return await site.page(
        request, "bulk.html", lambda: bulk_document(one), frame=frame, title=f"{one.request.verb} many", one=one,
        tended=bool(frame.live),
    )  # fmt: skip


def _asked(fields: Any) -> tuple[str, JobFilter]:
    which = JobFilter(*(str(fields.get(name, "")).strip() for name in _FIELDS))
    return str(fields.get("verb", "")), which


async def confirm(site: DashboardSite, request: Request) -> Response:
    """What a verb on many jobs would do, before it does it. Cost: that of a count."""
    verb, which = _asked(request.query_params)
    counted = await site.read(BulkOperations(site.client).acount(verb, which))
    facts = {name: value for name in _FIELDS if (value := getattr(which, name))}
    about = "" if counted.exact else "at least "
    looked = "" if counted.exact else f": {counted.matched:,} of the {counted.looked:,} that were looked at"
    means = MEANS[verb].removesuffix(NEVER)
    title = f"{verb.capitalize()} {about}{plural(counted.matched, 'job')}?"
    texts = [
        f"Jobs that match {site.redactor.text(which.words)}{looked}.",
        f"{means} Jobs that come later are left alone.{NEVER}",
    ]
    if not counted.matched:
        title, texts = f"No job to {verb}", [f"No job matches {site.redactor.text(which.words)}{looked}."]
    note = f"{_nodes(counted.nodes, 'further')}, which this verb leaves alone." if counted.nodes else ""
    sent = {
        **facts, "operation": new_id(site.client.keys.shard), "verb": verb, "count": counted.matched,
        "exact": 1 if counted.exact else 0,
    }  # fmt: skip
    return await ask_first(
        site, request, verb, title, texts, "/bulk",
        link("/jobs", facts), sent.items(), note=note, rate=verb == "retry",
        typed_number=counted.matched if _must_type(verb, counted) else 0, **({} if counted.matched else {"button": ""}),
    )  # fmt: skip


def _must_type(verb: str, counted: JobCount) -> bool:
    return counted.matched > MANY or not counted.exact or (verb == "delete" and counted.matched > 1)


async def begin(site: DashboardSite, request: Request) -> Response:
    form = await form_of(request)
    verb, which = _asked(form)
    count, rate = form.get("count", ""), form.get("rate", "").strip() or "0"
    if not (count.isdecimal() and rate.isdecimal() and len(count) < 15 and len(rate) < 9):
        raise HTTPException(400, "Nothing was done: the number of jobs and the rate must be whole numbers.")
    counted = JobCount(int(count), int(count), form.get("exact") == "1")
    if _must_type(verb, counted) and form.get("typed", "").strip().replace(",", "") != count:
        raise HTTPException(
            400, f"Nothing was done: type the number, {count}, to {verb} {plural(counted.matched, 'job')}."
        )
    visitor = visitor_of(request)
    try:
        # The id is of the question: a form that is sent twice starts one.
        one = await site.app.bulk.astart(
            verb, which, who=visitor.name if visitor else "?", by="dashboard", rate=int(rate), total=counted,
            id=form.get("operation"),
        )  # fmt: skip
    except HeadraceError as error:
        await note(site, request, (verb, "jobs", ""), failure_words(error), scope=which.words)
        raise
    await note(
        site, request, (verb, "jobs", ""), f"bulk operation {one.id} began", count=counted.matched, scope=which.words
    )
    return to(request, f"/bulk/{one.id}", "Begun: a worker does it.")


# Shown at most, and from how many failures on what they share tells something.
MOST_CAUSES = 100
FEW = 3


class Cause(msgspec.Struct, frozen=True):
    """Failures that have one fingerprint, as a page shows them.

    Attributes:
        facts: what the store counts.
        line: the error of the newest, or of the first where none is kept.
        example: the newest of them that is kept; None: all that the store remembers were retried or deleted.
        shared: arguments and headers that the newest of them have in common; compared: this many.
    """

    facts: CauseFacts
    line: str
    example: Record | None
    shared: Sequence[tuple[str, str]]
    compared: int


def _cause(site: DashboardSite, facts: CauseFacts) -> Cause:
    newest = facts.newest
    example = newest[0] if newest else None
    line = error_line(example, site.redactor) if example is not None else site.redactor.text(facts.line)
    shared = shared_values(newest, site.redactor) if len(newest) >= FEW else []
    return Cause(facts, line, example, shared, len(newest))


async def newest_causes(
    site: DashboardSite, task: str = "", by: str = "last", limit: int = MOST_CAUSES, each: int = 20
) -> tuple[list[Cause], int]:
    call = read_causes(site.client.keys, task, by=by, limit=limit, each=each, finder=site.app.jobs.reader)
    found = await site.reading(("causes", task, by, str(limit), str(each)), lambda: site.client.arun(call))
    return [_cause(site, facts) for facts in found.causes], found.count


def cause_document(cause: Cause) -> dict[str, Any]:
    facts = cause.facts
    return {
        "id": facts.id,
        "task": facts.task,
        "type": facts.kind,
        "where": facts.where,
        "error": cause.line,
        "number": facts.number,
        "first": iso(facts.first),
        "last": iso(facts.last),
        "quarantined": facts.lost,
        "example": cause.example.id if cause.example is not None else None,
    }


async def causes(site: DashboardSite, request: Request) -> Response:
    task = request.query_params.get("task", "").strip()
    order = request.query_params.get("order", "")
    found, count = await site.read(newest_causes(site, task, "number" if order == "number" else "last"))
    return await site.page(
        request, "causes.html", lambda: {"count": count, "causes": [cause_document(cause) for cause in found]},
        causes=found, task=task, order=order, most=max((one.facts.number for one in found), default=1), count=count,
    )  # fmt: skip
