"""What needs a person, and why something waits. Decides; reads nothing.

1. :func:`needs`: grouped, ranked by harm, each with the page that answers.
2. :class:`WhyShown`: the sentence under the title of a page, and what helps as a link or a button.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from headrace.admin.alarms import AlarmRecord
from headrace.dashboard.figures import LiveFrame, TaskFigures
from headrace.dashboard.values_shown import count, cut, duration, jobs_wait, percent, plural, quoted
from headrace.model.activity import FEWEST, FULL, HIGH_SHARE, LONG_WAIT, Act, EventRecord
from headrace.model.environment import Sight, judged
from headrace.model.limit_rules import LimitState
from headrace.model.notation import size
from headrace.protocol.overviews import QueueFacts, WhyFacts, WorkerFacts
from headrace.tasks.reasons import reasons
from headrace.tasks.reasons_of_state import Reason

BUSY_WAIT = 2.0  # seconds that a job waits while all runners are busy, before that needs a person
ALMOST = 0.95  # the share of the store's memory limit from which on producers will soon be refused
LOOKED = 600_000_000  # microseconds after which an alarm that no worker looked at is not news
# Microseconds for which the death of a worker is news, and for which an acknowledgement holds.
NEWS = 3_600_000_000
HOLDS = 86_400_000_000
# Needs of one kind from this number on are one, and names that it lists.
GROUPED = 3
NAMED = 3
MOST_QUEUES = 50  # queues that are looked at, the longest first
ACKNOWLEDGED = ("acknowledge", "needs")  # by which verb, and on what, a person acknowledges a need

Level = Literal["bad", "warn"]


class Need(msgspec.Struct, frozen=True):
    """One thing to look at.

    Attributes:
        level: ``bad``: work stands still or is lost to its users; ``warn``: it may become so.
        title: what is the matter.
        detail: what follows from it, or what helps.
        link: the page that answers, below the dashboard's root.
        kind: what is the matter, for programs; ``subject``: the queue, task, limit or worker, empty for all.
        harm: how many jobs it is about.
        by: who has acknowledged it; empty: no person has.
    """

    level: Level
    title: str
    detail: str
    link: str
    kind: str
    subject: str = ""
    harm: int = 1
    by: str = ""

    @property
    def mark(self) -> str:
        """What an acknowledgement names: the need, its level and its harm at that time."""
        return f"{self.kind}:{self.subject}~{self.level}~{self.harm}"


# Kinds that can be many: the title of a group, and the page of all.
_GROUPS = {
    "unserved": ("No worker serves {} queues", "/queues"),
    "paused": ("{} queues are paused", "/queues"),
    "slow": ("Jobs wait for long in {} queues", "/queues"),
    "limit": ("{} limits are paused", "/limits"),
    "parked": ("No worker knows {} tasks", "/jobs?state=parked"),
    "failing": ("{} tasks fail", "/causes"),
    "silent": ("{} workers fell silent", "/workers"),
    "alarm": ("{} alarms are raised", "/activity?show=alarms"),
}
# What harms most comes first of each level: a store that takes nothing stops every producer.
_ORDER = ("full", "store", "workers", "limit", "paused", "unserved", "busy", "parked", "failing", "silent", "alarm")
# By the figure of an alarm, the kinds of needs that say the same.
_SAME = {
    "delay": ("workers", "unserved", "paused", "limit", "busy", "slow"),
    "ready": ("workers", "unserved", "paused", "limit", "busy", "slow"),
    "workers": ("workers", "unserved"),
    "failed": ("failing",),
}
_RULE = re.compile(r"(delay|ready|workers|failed)(?: of (\S+))? (?:above|below) ")


def needs(
    frame: LiveFrame,
    tasks: list[TaskFigures],
    server: Sight | None = None,
    lost: int = 0,
    alarms: Sequence[AlarmRecord] = (),
    died: Sequence[EventRecord] = (),
    acts: Iterable[Act] = (),
) -> list[Need]:
    """All of them: first those that no person has acknowledged, of these the bad ones, of these what harms most.

    Args:
        server: what the store's server says of itself; None: nothing.
        lost: batches of statistics that found no room.
        alarms: those that are raised.
        died: workers that were lost of late, the newest first.
        acts: the newest first; those that acknowledge a need count for a day, unless its level or its harm grows.
    """
    found = [
        *_of_store(server),
        *_of_workers(frame),
        *_of_queues(frame),
        *_of_limits(frame),
        *_of_tasks(frame, tasks),
        *_of_ends(frame),
        *_of_deaths(frame, died),
    ]
    if lost:
        words = "Figures of that time are too low: the line of statistics was full."
        title = f"{plural(lost, 'batch', 'batches')} of statistics lost"
        found.append(Need("warn", title, words, "/tasks", "statistics", harm=lost))
    told = _acknowledged(frame.now, acts)
    grouped = [_known(need, told) for need in _grouped(_with_alarms(frame, found, alarms))]
    places = {kind: place for place, kind in enumerate(_ORDER)}
    last = len(places)
    return sorted(grouped, key=lambda one: (bool(one.by), one.level != "bad", places.get(one.kind, last), -one.harm))


def _acknowledged(now: int, acts: Iterable[Act]) -> dict[str, tuple[str, int, str]]:
    """Level and harm of needs when a person acknowledged them last, and who that was, by kind and subject."""
    found: dict[str, tuple[str, int, str]] = {}
    for one in acts:
        if (one.verb, one.kind) == ACKNOWLEDGED and not one.refused and now - one.at_us < HOLDS:
            name, _, rest = one.name.rpartition("~")
            name, _, level = name.rpartition("~")
            found.setdefault(name, (level, int(rest) if rest.isdecimal() else 0, one.who))
    return found


def _known(need: Need, told: dict[str, tuple[str, int, str]]) -> Need:
    level, harm, who = told.get(f"{need.kind}:{need.subject}", ("", 0, ""))
    grown = need.harm >= 2 * max(1, harm) or (need.level == "bad" and level != "bad")
    return need if grown or not who else replace(need, by=who)


def _grouped(found: Sequence[Need]) -> Iterator[Need]:
    by_kind: dict[tuple[str, str], list[Need]] = {}
    for need in found:
        by_kind.setdefault((need.kind, need.level), []).append(need)
    for (kind, _), many in by_kind.items():
        if len(many) < GROUPED or kind not in _GROUPS:
            yield from many
            continue
        title, link = _GROUPS[kind]
        many.sort(key=lambda need: -need.harm)
        harm = sum(need.harm for need in many)
        names = ", ".join(cut(need.subject, 48) for need in many[:NAMED])
        more = f" and {len(many) - NAMED} more" if len(many) > NAMED else ""
        about = f": {jobs_wait(harm)}" if kind in ("unserved", "paused", "slow", "limit", "parked") else ""
        yield Need(many[0].level, title.format(len(many)), f"{names}{more}{about}.", link, kind, "", harm)


def _with_alarms(frame: LiveFrame, found: Sequence[Need], alarms: Sequence[AlarmRecord]) -> list[Need]:
    """The needs and the alarms. An alarm that says the same as a need is a part of it, and makes it bad."""
    all_ = list(found)
    for one in alarms:
        if frame.now - one.looked_us >= LOOKED:
            continue
        since = duration((frame.now - one.state.raised_us) / 1e6)
        rule = _RULE.match(one.state.words)
        kinds, subject = (_SAME[rule[1]], rule[2] or "") if rule else ((), "")
        same = [n for n, need in enumerate(all_) if need.kind in kinds and subject in ("", need.subject)]
        for n in same:
            words = f"{all_[n].detail} Alarm {cut(one.name, 60)} was raised {since} ago."
            all_[n] = replace(all_[n], level="bad", detail=words)
        if not same:
            words = f"{one.state.words}: it was {one.state.shown} when the alarm was raised, {since} ago."
            all_.append(Need("bad", f"Alarm: {cut(one.name, 60)}", words, "/activity?show=alarms", "alarm", one.name))
    return all_


def _of_workers(frame: LiveFrame) -> Iterator[Need]:
    waiting = frame.overview.states.get("ready", 0)
    held = sum(worker.running for worker in frame.overview.silent)
    if (waiting or held) and not frame.live:
        words = jobs_wait(waiting) if waiting else f"{plural(held, 'job')} of a silent worker wait to be taken over"
        words = f"{words}. Start one: headrace worker MODULE:APP"
        yield Need("bad", "No worker is running", words, "/workers", "workers", harm=waiting or held)
    for worker in frame.overview.silent:
        if worker.running and frame.live:
            words = f"It holds {plural(worker.running, 'job')}, which another worker takes over."
            link = f"/workers/{quoted(worker.owner)}"
            yield Need("bad", f"Worker {worker.place} fell silent", words, link, "silent", worker.place, worker.running)


def _of_deaths(frame: LiveFrame, died: Sequence[EventRecord]) -> Iterator[Need]:
    news = [one for one in died if frame.now - one.at_us < NEWS]
    if not news:
        return
    first = news[0]
    name, ago = cut(first.facts.get("place", "?"), 60), duration((frame.now - first.at_us) / 1e6)
    words = f"{first.facts.get('why', 'it is gone')}, {ago} ago. What it ran went back to its queues."
    title = f"Worker {name} died" if len(news) == 1 else f"{len(news)} workers died, the last one was {name}"
    words = f"{words[:1].upper()}{words[1:]}"
    yield Need("warn", title, words, "/activity?show=workers", "died", name, len(news))


def _of_queues(frame: LiveFrame) -> Iterator[Need]:
    served, live = frame.overview.served, bool(frame.live)
    full, rest = _busy(frame), list[QueueFacts]()
    for queue in sorted((one for one in frame.queues if one.size), key=lambda one: -one.size)[:MOST_QUEUES]:
        link, name = f"/queues/{quoted(queue.name)}", cut(queue.name, 48)
        if queue.paused:
            words = f"{jobs_wait(queue.size)} until it is resumed."
            yield Need("warn", f"Queue {name} is paused", words, link, "paused", queue.name, queue.size)
        elif live and not served[queue.name]:
            words = f"{jobs_wait(queue.size)}. Start one with --queues {name}"
            yield Need("bad", f"No worker serves queue {name}", words, link, "unserved", queue.name, queue.size)
        elif live:
            rest.append(queue)
    waits = max(rest, key=frame.waited, default=None)
    if full and waits is not None and frame.waited(waits) > BUSY_WAIT and waits.held < waits.size:
        title = f"All {full[1]:,} {full[0]} runners are busy" if full[1] > 1 else f"The one {full[0]} runner is busy"
        long = f"The next job of queue {cut(waits.name, 48)} has waited for {duration(frame.waited(waits))}"
        link, harm = f"/queues/{quoted(waits.name)}", sum(queue.size for queue in rest)
        yield Need("warn", title, f"{long}; {jobs_wait(harm)}.", link, "busy", full[0], harm)
        return
    for queue in rest:
        if frame.waited(queue) > LONG_WAIT:
            held = f", {count(queue.held)} of them behind closed limits" if queue.held else ""
            title = f"Jobs of queue {cut(queue.name, 48)} wait for {duration(frame.waited(queue))}"
            words, link = f"{jobs_wait(queue.size)}{held}.", f"/queues/{quoted(queue.name)}"
            yield Need("warn", title, words, link, "slow", queue.name, queue.size)


def _busy(frame: LiveFrame) -> tuple[str, int] | None:
    """The kind whose runners are all busy, with their number; of several the one with most runners."""
    full = [(size, kind) for kind, (busy, size) in frame.kinds.items() if size and busy >= size]
    return (max(full)[1], max(full)[0]) if full else None


def _of_limits(frame: LiveFrame) -> Iterator[Need]:
    ready = frame.overview.states.get("ready", 0)
    for one in [one for one in frame.limits if one.paused and one.waiting]:
        words, link = f"{jobs_wait(one.waiting)} until it is resumed.", f"/limits/{quoted(one.name)}"
        level: Level = "bad" if one.waiting >= ready else "warn"
        yield Need(level, f"Limit {cut(one.name, 48)} is paused", words, link, "limit", one.name, one.waiting)


def _of_tasks(frame: LiveFrame, tasks: list[TaskFigures]) -> Iterator[Need]:
    for name, number in frame.overview.parked.items():
        if number:
            words = f"{plural(number, 'job')} of it {'is' if number == 1 else 'are'} parked until one does."
            title = f"No worker knows the task {cut(name, 60)}"
            yield Need("bad", title, words, f"/tasks/{quoted(name)}", "parked", name, number)
    for one in tasks:
        if one.failed >= FEWEST and one.share > HIGH_SHARE:
            title, link = f"{percent(one.share)} of {one.name} fail", f"/causes?task={quoted(one.name)}"
            words = f"{plural(one.failed, 'start')} failed for good or crashed."
            yield Need("bad", title, words, link, "failing", one.name, one.failed)


def _of_ends(frame: LiveFrame) -> Iterator[Need]:
    lost = frame.overview.states.get("quarantined", 0)
    if lost:
        title = f"{plural(lost, 'job')} {'is' if lost == 1 else 'are'} quarantined"
        words = "A job that crashes too often, or that cannot be read, ends so."
        yield Need("bad", title, words, "/jobs?state=quarantined", "quarantined", harm=lost)
    flows = frame.flows.get("failed", 0)
    if flows:
        words, link = "Retry the failed jobs of one to go on from there.", "/workflows?state=failed"
        if flows == 1 and frame.failed_flow:
            words, link = "Its page shows what broke first.", f"/workflows/{frame.failed_flow}"
        yield Need("warn", f"{plural(flows, 'workflow')} failed", words, link, "flows", harm=flows)


def want_of_room(server: Sight | None) -> Need | None:
    """A server that is full, or almost; None where it has room, has no limit or says nothing.

    The two are one: a server that refused a call has often room for a smaller one a second later, and nothing in its
    facts tells whether the next call fits.
    """
    if server is None or server.full <= FULL:
        return None
    used, most = size(server.amount("used_memory")), size(server.amount("maxmemory"))
    words = f"{used} of {most}. When it is full, nothing can be enqueued."
    level: Level = "bad" if server.full > ALMOST else "warn"
    return Need(level, f"The store uses {percent(server.full)} of its memory", words, "/store", "full")


def _of_store(server: Sight | None) -> Iterator[Need]:
    if server is None:
        return
    if need := want_of_room(server):
        yield need
    # The rows of the doctor that a worker reports, too.
    for one in judged(server, worker=True):
        level: Level = "bad" if one.severity == "error" else "warn"
        title = f"{one.meaning[:1].upper()}{one.meaning[1:]}"
        yield Need(level, title, f"{', '.join(one.evidence)}: {one.command}", "/store", "store", one.id)


class Remedy(msgspec.Struct, frozen=True):
    """What helps.

    Attributes:
        words: of the link or button.
        path: below the dashboard's root.
        verb: whether it is a form to send, which operators may; else a page.
        fields: of the form.
    """

    words: str
    path: str
    verb: bool = False
    fields: Mapping[str, str] = {}


class WhyShown(msgspec.Struct, frozen=True):
    """One sentence of a page.

    Attributes:
        lead: what the sentence explains; ``about``: the page of that, empty for none.
        text: without a full stop.
        step: what helps, in words, for a visitor without a button.
    """

    lead: str
    text: str
    step: str = ""
    remedy: Remedy | None = None
    about: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.step}" if self.step else self.text


def why_of(facts: WhyFacts, name: str = "it", about: str = "") -> WhyShown:
    """Why a job waits, or where it runs; ``name`` is what the page calls it."""
    first = reasons(facts)[0]
    lead = f"Where {name} runs" if facts.state == "running" else f"Why {name} waits"
    return WhyShown(lead, first.text, first.next_step, _remedy(first, facts), about)


def _act(words: str, kind: str, name: object, verb: str, **fields: str) -> Remedy:
    return Remedy(words, f"/{kind}/{quoted(name)}/act/{verb}", True, fields)


# Where a reason leads, by its code: to a page, or to a verb. Names are those of its evidence, and of the job.
_REMEDIES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("no_worker_serves", "no_runner_of_its_kind", "runners_missing", "draining", "parked", "overdue"),
        ("Show the workers", "/workers"),
    ),
    **dict.fromkeys(("claims_stopped", "owner_silent", "sent_ahead"), ("Show the worker", "/workers/{worker}")),
    **dict.fromkeys(
        ("workflow_not_started", "workflow_stopped"), ("Start the workflow", "/workflows/{workflow}/act/start")
    ),
    "queue_paused": ("Resume the queue", "/queues/{queue}/act/resume"),
    "gate_closed": ("Show the limit", "/limits/{limit}"),
    "all_busy": ("Show the longest job", "/jobs/{longest}"),
    "other_queues_first": ("Show the queues", "/queues"),
    "jobs_ahead": ("Show the queue", "/queues/{queue}"),
    "waits_for_nodes": ("Show that job", "/jobs/{node}"),
    "waits_for_its_turn": ("Show that job", "/jobs/{holder}"),
    "store_refuses": ("Show the store", "/store"),
    "runs": ("Show its stack", "/jobs/{id}/act/stacks"),
}


def _remedy(one: Reason, facts: WhyFacts) -> Remedy | None:
    named = one.evidence
    if one.code == "gate_closed" and named["closed_by"] == "paused":
        value = str(named["value"])
        fields = {} if value in ("", "*") else {"value": value}
        return _act("Resume the limit", "limits", named["limit"], "resume", **fields)
    if one.code == "waits_for_nodes" and "retry" in one.next_step:
        return _act("Retry failed jobs", "workflows", named["workflow"], "retry")
    words, path = _REMEDIES.get(one.code, ("", ""))
    # A workflow that has ended is not started again, and a queue in which no job is ahead shows nothing.
    if not path or ("workflow" in path and not one.next_step) or (one.code == "jobs_ahead" and not named.get("ahead")):
        return None
    names = {name: quoted(value) for name, value in named.items() if value}
    try:
        return Remedy(words, path.format_map(names | {"queue": quoted(facts.queue), "id": facts.id}), "/act/" in path)
    except KeyError:
        # What would be shown is not known.
        return None


def why_limit(whole: LimitState, rows: Sequence[LimitState]) -> WhyShown | None:
    """Why jobs of a limit wait; None where none does. ``rows``: its values."""
    if not whole.waiting:
        return None
    remedy, text = None, "the limit is open: their queues and the workers of these decide when they start"
    closed = [row for row in rows if row.waiting and row.opens != 0]
    if whole.paused:
        text = "the limit is paused: resume it to let its jobs start"
        remedy = _act("Resume the limit", "limits", whole.name, "resume")
    elif whole.opens is None and whole.held is not None:
        text = f"as many of its jobs run as it lets run, {whole.held:,}: the next one starts when one of them ends"
    elif whole.opens:
        text = "its rate is used up: the next job starts when the rate allows it"
    elif closed:
        first = closed[0]
        ends = "a job of it must end" if first.opens is None else "its rate is used up"
        number = f"{plural(len(closed), 'value')} {'is' if len(closed) == 1 else 'are'} closed"
        value = cut(first.value or "", 40) or "(none)"
        text = f"{number}, the first of them is {value}: {'it is paused' if first.paused else ends}"
    return WhyShown("Why its jobs wait", text, remedy=remedy)


def why_worker(frame: LiveFrame, one: WorkerFacts) -> WhyShown:
    """What keeps a worker from starting jobs, or that nothing does."""
    lead, held = "How it stands", plural(one.running, "job")
    if one.lease <= frame.now:
        ago = duration((frame.now - one.lease) / 1e6)
        taken = "another worker takes over" if frame.live else "no worker lives to take over"
        return WhyShown(lead, f"it has not renewed its lease, which ended {ago} ago; {taken} the {held} that it held")
    if one.draining:
        how = "it is quiet, and stays until it is told to stop" if one.quiet else "it stops"
        return WhyShown(lead, f"{how}: it finishes {held} and takes no more")
    lines = [queue for queue in frame.queues if queue.name in one.queues and queue.size]
    full = [kind for kind, size in one.sizes.items() if size and one.busy[kind] >= size]
    at_work = [runner for runner in one.runners if runner.kind in full and runner.job and runner.since]
    if full and at_work:
        first = min(at_work, key=lambda runner: runner.since)
        since = duration((frame.now - first.since) / 1e6)
        text = f"all {' and '.join(full)} runners are busy; the longest runs {cut(first.task, 60)} for {since}"
        return WhyShown(lead, text, remedy=Remedy("Show the longest job", f"/jobs/{quoted(first.job)}"))
    if one.running:
        return WhyShown(lead, f"it runs {held} and has room for more")
    if lines and all(queue.paused for queue in lines):
        first_line = max(lines, key=lambda queue: queue.size)
        text = f"it is idle: {jobs_wait(first_line.size)} in queue {first_line.name}, which is paused"
        return WhyShown(lead, text, remedy=_act("Resume the queue", "queues", first_line.name, "resume"))
    return WhyShown(lead, "it is idle: its queues hold no job that may start now")


def why_task(name: str, total: TaskFigures, error: str, share: float) -> WhyShown | None:
    """Why jobs of a task fail, where more than ``share`` of them do."""
    if total.share <= share or not error:
        return None
    text = f"{percent(total.share)} of its starts fail, the last with {error}"
    return WhyShown("Why it fails", text, remedy=Remedy("Show the causes", f"/causes?task={quoted(name)}"))
