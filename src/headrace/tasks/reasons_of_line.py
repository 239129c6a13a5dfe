"""Why a job that is ready, or parked, does not start: each function decides on one reason. Pure.

:class:`Reason` is the record of each reason, here and in ``reasons_of_state.py``; the functions beside it word reasons.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from headrace.model.job import HEAD_START, State, priority_of
from headrace.model.options import SIZE_FLAGS
from headrace.protocol.why import GateSeen, WhyFacts, WorkerSeen

Evidence: TypeAlias = dict[str, str | int | float | bool]

# Names that one sentence lists.
_MOST_NAMES = 5


class Reason(msgspec.Struct, frozen=True):
    """One reason why a job does not run.

    Attributes:
        code: a word that programs compare; ``headrace.tasks.reasons.CODES`` has all.
        text: a sentence without a full stop.
        evidence: what was found, by name; names that end in ``_us`` are microseconds of server time.
        next_step: what helps, such as a command; empty: nothing need be done, or the text says it.
    """

    code: str
    text: str
    evidence: Evidence
    next_step: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.text}: {self.next_step}" if self.next_step else self.text


def names_of(names: Iterable[str]) -> str:
    """The names, each once, in order; many are counted."""
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return (", ".join(found[:_MOST_NAMES]) or "none") + more


def lasting(microseconds: int | float) -> str:
    seconds = max(0.0, microseconds / 1e6)
    for unit, size, least in (("days", 86_400, 172_800), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def several(count: int, noun: str) -> str:
    return f"{count:,} {noun} is" if count == 1 else f"{count:,} {noun}s are"


# A worker with room that has not claimed for so long (microseconds), though a job was ready, has stopped to.
STALE = 10_000_000


def _able(facts: WhyFacts) -> list[WorkerSeen]:
    return [worker for worker in facts.here if worker.able and not worker.draining]


def _waited(facts: WhyFacts) -> int:
    score = facts.where("score")
    return facts.now - (score + priority_of(facts.record.get("priority")) * HEAD_START) if score else 0


def _near(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(set(names)), 1)
    return f"; the nearest name is {found[0]}" if found else ""


def broadcast(facts: WhyFacts) -> Reason | None:
    if not facts.queue.startswith("@"):
        return None
    owner = facts.queue[1:]
    worker = next((one for one in facts.alive if one.owner == owner), None)
    if worker is None:
        text = f"it was broadcast to worker {owner}, which is gone: it ends as cancelled when another worker notices"
        return Reason("broadcast", text, {"worker": owner, "alive": False})
    text = f"it was broadcast to worker {worker.place}, which has not taken it yet"
    return Reason("broadcast", text, {"worker": owner, "alive": True, "holds": worker.held})


def queue_paused(facts: WhyFacts) -> Reason | None:
    if not facts.where("paused"):
        return None
    until = facts.where("until")
    end = f" for another {lasting(until - facts.now)}" if until else ""
    note = facts.place.get("note", "")
    text = f"queue {facts.queue} is paused{end}" + (f" ({note})" if note else "")
    step = f"headrace queues resume {facts.queue} lets its jobs start"
    evidence: Evidence = {"queue": facts.queue, "until_us": until}
    return Reason("queue_paused", text, evidence | ({"note": note} if note else {}), step)


def no_worker_serves(facts: WhyFacts) -> Reason | None:
    queue = facts.queue
    if facts.here or queue.startswith("@"):
        return None
    start = f"start one with headrace worker APP --queues {queue}"
    left = max((worker.lease for worker in facts.workers if 0 < worker.lease <= facts.now), default=0)
    gone = f"; the lease of the last one that did ended {lasting(facts.now - left)} ago" if left else ""
    evidence: Evidence = {"queue": queue, "workers": facts.live, "last_lease_us": left}
    if not facts.live:
        return Reason("no_worker_serves", f"no worker lives{gone}", evidence, start)
    alive = facts.alive
    if facts.live > len(alive):
        text = f"none of the {len(alive)} workers that were looked at serves queue {queue}; {facts.live} live"
        return Reason("no_worker_serves", text, evidence)
    served = [name for worker in alive for name in worker.queues]
    text = f"no worker serves queue {queue}; workers serve {names_of(served)}{_near(queue, served)}{gone}"
    return Reason("no_worker_serves", text, evidence | {"served": names_of(served)}, start)


def parked(facts: WhyFacts) -> Reason | None:
    here, task = facts.here, facts.task
    able = [worker for worker in here if worker.kind]
    evidence: Evidence = {"task": task, "queue": facts.queue}
    if able and facts.state == State.PARKED:
        text = f"a worker that knows its task has come ({names_of(worker.place for worker in able)}) and will take it"
        return Reason("parked", text, evidence)
    if able or not here:
        return None
    places = names_of(worker.place for worker in here)
    near = _near(task, [name for worker in here for name in worker.tasks])
    text = f"no live worker that serves queue {facts.queue} knows the task {task}: {places} runs other code{near}"
    if elsewhere := [worker for worker in facts.alive if worker.kind]:
        queues = names_of(name for worker in elsewhere for name in worker.queues)
        text += f"; {names_of(worker.place for worker in elsewhere)} knows it and serves {queues}"
    return Reason("parked", text, evidence | {"workers": places}, "deploy its code to a worker that serves its queue")


def no_runner_of_its_kind(facts: WhyFacts) -> Reason | None:
    able = [worker for worker in facts.here if worker.kind]
    if not able or any(worker.able for worker in able):
        return None
    kind = able[0].kind
    text = f"its task wants a runner of the kind {kind}, and {names_of(worker.place for worker in able)} has none"
    step = f"start a worker with {SIZE_FLAGS.get(kind, '--processes')} 1 or more"
    return Reason("no_runner_of_its_kind", text, {"kind": kind, "queue": facts.queue}, step)


def draining(facts: WhyFacts) -> Reason | None:
    able = [worker for worker in facts.here if worker.able]
    if not able or _able(facts):
        return None
    places = names_of(worker.place for worker in able)
    text = f"{places} is stopping and claims no more, and no other worker has come"
    step = f"start another one with headrace worker APP --queues {facts.queue}"
    return Reason("draining", text, {"workers": places}, step)


def gate_closed(facts: WhyFacts) -> Reason | None:
    shut = [gate for gate in facts.gates if gate.opens]
    if not shut:
        return None
    # A pause holds also where jobs end and permits come back.
    gate, ahead = min(shut, key=lambda one: one.why != "paused"), facts.where("ahead")
    evidence: Evidence = {"limit": gate.limit, "value": gate.value, "running": gate.held, "closed_by": gate.why}
    evidence |= {"opens_us": max(0, gate.opens), "ahead": ahead}
    before = f", and {several(ahead, 'job')} ahead of it there" if ahead else ""
    text, step = _shut(facts, gate)
    return Reason("gate_closed", f"{text}{before}", evidence, step)


def _shut(facts: WhyFacts, gate: GateSeen) -> tuple[str, str]:
    one = gate.value not in ("", "*")
    name, value = f"limit {gate.limit}" + f" of {gate.value}" * one, f" --value {shlex.quote(gate.value)}" * one
    lasts = lasting(gate.opens - facts.now)
    if gate.why == "paused":
        end = f" for another {lasts}" if gate.opens > 0 else ""
        return f"{name} is paused{end}", f"headrace limits resume {gate.limit}{value} lets its jobs start"
    if gate.opens > 0:
        text = f"{name} is closed, and lets the next job start in {lasts}"
        if gate.why == "refused":
            return f"{text}, since a call of its jobs was refused (RateLimited)", "wait"
        return text, f"wait, or give it a higher rate: headrace limits set {gate.limit}{value} --rate N/TIME"
    text = f"{name} is closed until one of its jobs ends: {several(gate.held, 'job')} running"
    return text, f"wait, or let more run at once: headrace limits set {gate.limit}{value} --concurrency N"


def runners_missing(facts: WhyFacts) -> Reason | None:
    able = [worker for worker in _able(facts) if worker.bare and worker.claimed < facts.now - STALE]
    if not able or len(able) < len(_able(facts)):
        return None
    places, kinds = names_of(worker.place for worker in able), names_of(worker.kind for worker in able)
    text = f"{places} has no runner of the kind {kinds}: the system does not let it fork one, or each one ends at once"
    step = "raise its limits of open files (ulimit -n 1024), processes and memory; its log says which"
    return Reason("runners_missing", text, {"workers": places, "kind": kinds}, step)


def all_busy(facts: WhyFacts) -> Reason | None:
    able = _able(facts)
    if not able or not all(worker.busy for worker in able):
        return None
    size, ahead = sum(worker.size for worker in able), facts.where("ahead")
    kinds = names_of(worker.kind for worker in able)
    runners = f"all {size} {kinds} runners for it are" if size > 1 else "the one runner for it is"
    before = f"{several(ahead, 'job')} ahead of it in queue {facts.queue}" if ahead else "it is the next"
    text = f"{runners} busy, and {before}"
    evidence: Evidence = {"size": size, "kinds": kinds, "ahead": ahead}
    at_work = [one for worker in able for one in worker.runners if one.kind == worker.kind and one.job and one.since]
    if at_work:
        first = min(at_work, key=lambda one: one.since)
        text += f"; the longest runs {first.task} since {lasting(facts.now - first.since)}"
        evidence |= {"longest": first.job, "longest_task": first.task, "longest_since_us": first.since}
    step = f"wait, or give the workers more ({SIZE_FLAGS.get(able[0].kind, '--processes')}), or start another one"
    return Reason("all_busy", text, evidence, step)


def other_queues_first(facts: WhyFacts) -> Reason | None:
    able = _able(facts)
    if not able or not all(worker.preferred for worker in able):
        return None
    sizes = {name: size for worker in able for name, size in worker.preferred.items()}
    told = names_of(f"{name} ({size:,} ready)" for name, size in sizes.items())
    places = names_of(worker.place for worker in able)
    evidence: Evidence = {"queue": facts.queue, **sizes}
    if all(worker.weighted for worker in able):
        return Reason("other_queues_first", f"{places} draw by weight, and often take {told}", evidence)
    step = "give the queues weights (--queues high:3,low:1), or a worker of their own"
    return Reason("other_queues_first", f"{places} serves other queues first: {told}", evidence, step)


def claims_stopped(facts: WhyFacts) -> Reason | None:
    silent = [one for one in _able(facts) if not one.busy and not one.preferred and one.claimed < facts.now - STALE]
    if not silent or _waited(facts) < STALE or any(gate.opens for gate in facts.gates):
        return None
    worker = min(silent, key=lambda one: one.claimed)
    ago = lasting(facts.now - worker.claimed)
    text = f"{worker.place} has a free runner and a lease, and claimed last {ago} ago, which is a fault"
    evidence: Evidence = {"worker": worker.owner, "claimed_us": worker.claimed}
    evidence |= {"heard_us": worker.heard, "held": worker.held, "size": worker.size}
    step = f"keep its log and headrace profile {worker.place} --dispatcher, then restart it"
    return Reason("claims_stopped", text, evidence, step)


def jobs_ahead(facts: WhyFacts) -> Reason | None:
    ahead = facts.where("ahead")
    if not ahead or not _able(facts):
        return None
    text = f"{several(ahead, 'job')} ahead of it in queue {facts.queue}"
    if facts.rate:
        text += f"; at the rate of the last ten minutes these take {lasting(ahead / facts.rate * 1e6)}"
    evidence: Evidence = {"ahead": ahead, "rate": round(facts.rate, 3)}
    evidence["head_start"] = priority_of(facts.record.get("priority")) * HEAD_START // 1_000_000
    return Reason("jobs_ahead", text, evidence)


def suspect(facts: WhyFacts) -> Reason | None:
    """It crashed before, so that it travels alone."""
    crashes = facts.time("crashes")
    if not crashes or not _able(facts):
        return None
    text = f"it crashed {crashes} times before" if crashes > 1 else "it crashed once before"
    return Reason("suspect", f"{text}, so that it runs alone, and waits for an idle runner", {"crashes": crashes})


def next_in_line(facts: WhyFacts) -> Reason | None:
    text = f"it is the next of queue {facts.queue}, and a runner was free for it a moment ago"
    return Reason("jobs_ahead", text, {"ahead": 0}) if _able(facts) else None
