"""Why a job does not run: each function decides on one reason. Pure."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from headrace.model.ids import LENGTH, flow_of, is_flow, is_node, milliseconds_of, shard_of
from headrace.model.job import HEAD_START, State, parse_error, priority_of, type_and_first_line
from headrace.model.options import SIZE_FLAGS
from headrace.protocol.overviews import GateSeen, OtherJob, RunnerFacts, WhyFacts, WorkerSeen

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


def listed_names(names: Iterable[str]) -> str:
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
    start = f"start one with headrace worker MODULE:APP --queues {queue}"
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
    text = f"no worker serves queue {queue}; workers serve {listed_names(served)}{_near(queue, served)}{gone}"
    return Reason("no_worker_serves", text, evidence | {"served": listed_names(served)}, start)


def parked(facts: WhyFacts) -> Reason | None:
    here, task = facts.here, facts.task
    able = [worker for worker in here if worker.kind]
    evidence: Evidence = {"task": task, "queue": facts.queue}
    if able and facts.state == State.PARKED:
        text = (
            f"a worker that knows its task has come ({listed_names(worker.place for worker in able)}) and will take it"
        )
        return Reason("parked", text, evidence)
    if able or not here:
        return None
    places = listed_names(worker.place for worker in here)
    near = _near(task, [name for worker in here for name in worker.tasks])
    text = f"no live worker that serves queue {facts.queue} knows the task {task}: {places} runs other code{near}"
    if elsewhere := [worker for worker in facts.alive if worker.kind]:
        queues = listed_names(name for worker in elsewhere for name in worker.queues)
        text += f"; {listed_names(worker.place for worker in elsewhere)} knows it and serves {queues}"
    return Reason("parked", text, evidence | {"workers": places}, "deploy its code to a worker that serves its queue")


def no_runner_of_its_kind(facts: WhyFacts) -> Reason | None:
    able = [worker for worker in facts.here if worker.kind]
    if not able or any(worker.able for worker in able):
        return None
    kind = able[0].kind
    text = f"its task wants a runner of the kind {kind}, and {listed_names(worker.place for worker in able)} has none"
    step = f"start a worker with {SIZE_FLAGS.get(kind, '--processes')} 1 or more"
    return Reason("no_runner_of_its_kind", text, {"kind": kind, "queue": facts.queue}, step)


def draining(facts: WhyFacts) -> Reason | None:
    able = [worker for worker in facts.here if worker.able]
    if not able or _able(facts):
        return None
    places = listed_names(worker.place for worker in able)
    text = f"{places} claims no more, since it stops or is quiet, and no other worker has come"
    step = f"start another one with headrace worker MODULE:APP --queues {facts.queue}"
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
    places, kinds = listed_names(worker.place for worker in able), listed_names(worker.kind for worker in able)
    text = f"{places} has no runner of the kind {kinds}: the system does not let it fork one, or each one ends at once"
    step = "raise its limits of open files (ulimit -n 1024), processes and memory; its log says which"
    return Reason("runners_missing", text, {"workers": places, "kind": kinds}, step)


def all_busy(facts: WhyFacts) -> Reason | None:
    able = _able(facts)
    if not able or not all(worker.busy for worker in able):
        return None
    size, ahead = sum(worker.size for worker in able), facts.where("ahead")
    kinds = listed_names(worker.kind for worker in able)
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
    told = listed_names(f"{name} ({size:,} ready)" for name, size in sizes.items())
    places = listed_names(worker.place for worker in able)
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
    crashes = facts.time("crashes")
    if not crashes or not _able(facts):
        return None
    text = f"it crashed {crashes} times before" if crashes > 1 else "it crashed once before"
    return Reason("suspect", f"{text}, so that it runs alone, and waits for an idle runner", {"crashes": crashes})


def next_in_line(facts: WhyFacts) -> Reason | None:
    text = f"it is the next of queue {facts.queue}, and a runner was free for it a moment ago"
    return Reason("jobs_ahead", text, {"ahead": 0}) if _able(facts) else None


# Microseconds after which a due job that was not promoted is late, though workers live.
_LATE = 2_000_000


def unknown(facts: WhyFacts) -> Reason:
    if made := facts.place.get("request"):
        text = f"this is not a job but a request id, which made job {made}"
        return Reason("unknown", text, {"job": made}, f"headrace jobs why {made}")
    if is_flow(facts.id):
        text = "this is not a job but the id of a workflow"
        return Reason("unknown", text, {}, f"headrace workflows show {facts.id}")
    made_us = milliseconds_of(facts.id) * 1000 if len(facts.id) == LENGTH else 0
    text = (
        "no job of this id is stored: it never existed here, it ended and its retention is over, or the server lost it"
    )
    if is_node(facts.id):
        there = "is stored" if facts.flow else "is not stored either"
        text = f"no node of this id is stored; its workflow {flow_of(facts.id)} {there}"
    age = facts.now - made_us if 0 < made_us < facts.now else 0
    evidence: Evidence = {"made_us": made_us, "namespace": facts.namespace, "schema": facts.place.get("schema", "none")}
    if age:
        text += f"; the id was made {lasting(age)} ago"
        over = [f"{name} ({lasting(kept * 1e6)})" for name, kept in facts.kept.items() if kept * 1e6 < age]
        text += f", longer than {' and '.join(over)}" if over else ""
    if "schema" not in facts.place:
        text += f"; nothing was ever stored under the namespace {facts.namespace}"
    step = "compare server, database and namespace with those of the worker"
    return Reason("unknown", text, evidence | dict(facts.kept), step)


def not_consistent(facts: WhyFacts) -> Reason | None:
    state = facts.state
    if facts.kind != "hash":
        text = f"the key of its record holds another type ({facts.kind})"
    elif state not in list(State):
        text = f"its record says that it is {state!r}, which is not a state"
    elif state in ("scheduled", "ready", "running", "parked", "stopped") and "score" not in facts.place:
        text = f"its record says that it is {state}, and it is not where {state} jobs are"
    elif state == "blocked" and not is_node(facts.id) and facts.place.keys().isdisjoint(("score", "follows", "behind")):
        text = "its record says that it waits for its turn or for other jobs, and it is not where such jobs are"
    elif is_node(facts.id) and "st" not in facts.flow:
        text = f"its workflow {flow_of(facts.id)} is not stored"
    else:
        return None
    return Reason("not_consistent", text, {"state": state, "type": facts.kind}, "headrace jobs cancel ends it")


def store_refuses(facts: WhyFacts) -> Reason | None:
    server = facts.server
    if server.get("role") == "slave" and server.get("slave_read_only") == "1":
        link = server.get("master_link_status", "")
        text = f"the server is a replica, which accepts no writes (its link to the primary is {link or 'unknown'})"
        evidence: Evidence = {"role": "replica", "link": link}
        return Reason("store_refuses", text, evidence, "give the URL of the primary, or promote this server")
    if server.get("aof_last_write_status") == "err":
        text = "the server could not write its append-only file, and accepts no writes until it can"
        return Reason("store_refuses", text, {"aof_last_write_status": "err"}, _DISK)
    return None


_DISK = "look at the server's log and at its disk"


def disk_failed(facts: WhyFacts) -> Reason | None:
    """The last snapshot failed. Whether the server accepts writes then is a setting, which scripts cannot read."""
    if facts.server.get("rdb_last_bgsave_status") != "err":
        return None
    text = "the server's last snapshot failed, after which it accepts no writes (stop-writes-on-bgsave-error)"
    return Reason("store_refuses", text, {"rdb_last_bgsave_status": "err"}, _DISK)


def memory_full(facts: WhyFacts) -> Reason | None:
    most, used = int(facts.server.get("maxmemory") or 0), int(facts.server.get("used_memory") or 0)
    if not most or used < most:
        return None
    policy = facts.server.get("maxmemory_policy", "")
    keeps = policy == "noeviction"
    text = "the server's memory is full: jobs that are stored go on, and new ones are refused"
    if not keeps:
        text = f"the server's memory is full, and it removes keys (maxmemory-policy {policy}), those of jobs too"
    step = "raise maxmemory or shorten retentions" + ("" if keeps else ", and set maxmemory-policy noeviction")
    return Reason("store_refuses", text, {"used_memory": used, "maxmemory": most, "policy": policy}, step)


def ended(facts: WhyFacts) -> Reason | None:
    state = facts.state
    error = parse_error(facts.record.get("error", "").encode())
    at = facts.time("finished")
    evidence: Evidence = {"state": state, "finished_us": at}
    ago = f" {lasting(facts.now - at)} ago" if at else ""
    text, step = f"it has ended: {state}{ago}", ""
    if state == State.SKIPPED:
        why = "since its condition did not hold"
        if "skip" in facts.record:
            parent = next(iter(facts.others), None)
            why = f"since {_named(parent)} is {parent.state}" if parent else "since a node before it was"
        return Reason("ended", f"{text}, {why}", evidence)
    if error is not None and state != State.SUCCEEDED:
        text += f", {type_and_first_line(error)}"
        facts_of_end = {"error": error.type, "attempt": error.attempt, "signal": error.signal, "worker": error.worker}
        evidence |= {name: value for name, value in facts_of_end.items() if value}
    if state != State.SUCCEEDED:
        again = f"workflows retry {flow_of(facts.id)}" if is_node(facts.id) else f"jobs retry {facts.id}"
        step = f"headrace {again} runs it again"
    return Reason("ended", text, evidence, step)


def overdue(facts: WhyFacts) -> Reason | None:
    late = facts.now - facts.where("score")
    if late <= (_LATE if facts.live else 0):
        return None
    why = "no worker lives that would make it ready"
    step = f"start one with headrace worker MODULE:APP --queues {facts.queue}"
    if facts.live:
        why, step = "no live worker has made it ready", "look at the logs of the workers"
    evidence: Evidence = {"due_us": facts.where("score"), "workers": facts.live}
    return Reason("overdue", f"it was due {lasting(late)} ago, and {why}", evidence, step)


def scheduled(facts: WhyFacts) -> Reason:
    due, failures, snoozes = facts.where("score"), facts.time("failures"), facts.time("snoozes")
    text, step = f"it is due in {lasting(due - facts.now)}", ""
    error = parse_error(facts.record.get("error", "").encode())
    if failures and error is not None:
        text += f": retry {failures}, after {type_and_first_line(error)}"
    elif snoozes:
        text += ": it was snoozed" + (f" {snoozes} times" if snoozes > 1 else "")
        if shard_of(facts.id):
            text += ", by its task or since a limit was full on the first shard"
            step = "headrace limits list says which are"
    return Reason("scheduled", text, {"due_us": due, "failures": failures, "snoozes": snoozes}, step)


def workflow_not_started(facts: WhyFacts) -> Reason | None:
    if facts.flow.get("st") != "pending":
        return None
    flow = flow_of(facts.id)
    evidence: Evidence = {"workflow": flow, "created_us": int(facts.flow.get("created", 0))}
    step = f"headrace workflows start {flow}"
    return Reason("workflow_not_started", f"its workflow {flow} is not started", evidence, step)


def workflow_stopped(facts: WhyFacts) -> Reason | None:
    state, flow = facts.flow.get("st", ""), flow_of(facts.id)
    evidence: Evidence = {"workflow": flow, "state": state}
    if state == "stopped" or facts.state == State.STOPPED:
        start = f"headrace workflows start {flow} lets it go on"
        return Reason("workflow_stopped", f"its workflow {flow} is stopped", evidence, start)
    if state in ("cancelled", "succeeded"):
        return Reason("workflow_stopped", f"its workflow {flow} is {state}: it does not start any more", evidence)
    return None


def waits_for_nodes(facts: WhyFacts) -> Reason | None:
    if facts.state != State.BLOCKED or not is_node(facts.id):
        return None
    pending, flow = facts.time("pending"), flow_of(facts.id)
    evidence: Evidence = {"workflow": flow, "pending": pending, "parents": len(facts.record.get("parents", "")) // 4}
    failed = next((one for one in facts.others if one.state in _BROKEN and one.policy in ("", "s")), None)
    if failed is not None:
        text = f"node {_named(failed)}, which it depends on, is {failed.state}"
        step = f"headrace workflows retry {flow} goes on from there"
        return Reason("waits_for_nodes", text, evidence | {"node": failed.id}, step)
    waits = [one for one in facts.others if one.state not in _BROKEN and one.state != State.SKIPPED]
    text = f"it waits for {pending} of its {evidence['parents']} parents"
    if waits:
        text += f"; {_with_reason(facts, waits[0], 'node ' + _named(waits[0]))}"
        evidence["node"] = waits[0].id
    return Reason("waits_for_nodes", text, evidence, f"headrace workflows show {flow}")


_BROKEN = (State.FAILED, State.CANCELLED, State.QUARANTINED)


def waits_for_jobs(facts: WhyFacts) -> Reason | None:
    if facts.state != State.BLOCKED or not facts.others or "behind" not in facts.place:
        return None
    first = facts.others[0]
    evidence: Evidence = {"pending": facts.time("pending"), "job": first.id, "job_state": first.state}
    text = f"it follows {_with_reason(facts, first, 'job ' + first.id)}"
    if facts.time("pending") > 1:
        text += f"; it waits for {facts.time('pending'):,} jobs in all"
    return Reason("waits_for_jobs", text, evidence)


def waits_for_its_turn(facts: WhyFacts) -> Reason | None:
    if facts.state != State.BLOCKED or is_node(facts.id) or "behind" in facts.place:
        return None
    key, ahead, name = facts.record.get("key", ""), facts.where("ahead"), facts.place.get("follows")
    evidence: Evidence = {"name": name} if name else {"key": key, "ahead": ahead}
    if name:
        text, step = f"it is unique, and waits until the job that has its name {name} has ended", ""
    else:
        text, step = f"it waits for its turn among the jobs of key {key}", f"headrace jobs list --key {key}"
    if facts.others:
        holder = facts.others[0]
        evidence |= {"holder": holder.id, "holder_state": holder.state}
        text += f"; {_with_reason(facts, holder, 'job ' + holder.id)}"
    if ahead:
        text += f"; {several(ahead, 'job')} before it"
    return Reason("waits_for_its_turn", text, evidence, step)


def _named(other: OtherJob) -> str:
    return other.name or other.task or other.id


def _with_reason(facts: WhyFacts, other: OtherJob, name: str) -> str:
    why = facts.told.get(other.id)
    return f"{name} is {other.state or 'not stored'}" + (f": {why}" if why else "")


# Kinds whose runners run one job at a time, so that what a runner says of its job tells which others it does not run.
_ONE_AT_A_TIME = ("process", "fork")


def owner_silent(facts: WhyFacts) -> Reason | None:
    owner = facts.record.get("owner", "")
    worker = next((one for one in facts.workers if one.owner == owner), None)
    if not owner or (worker is not None and worker.lease > facts.now):
        return None
    over = facts.now - worker.lease if worker and worker.lease else 0
    since = f"ended {lasting(over)} ago" if over else "was given up"
    text = f"its worker {worker.place if worker else owner} is silent: the lease {since}"
    evidence: Evidence = {"worker": owner, "lease_us": worker.lease if worker else 0, "workers": facts.live}
    if facts.live:
        return Reason("owner_silent", f"{text}; another worker takes the job back at its next renewal", evidence)
    return Reason("owner_silent", f"{text}, and no worker lives to take the job back", evidence, "start a worker")


def asked_to_stop(facts: WhyFacts) -> Reason | None:
    cancelled, runner = "cancel" in facts.record, _runner(facts)
    soft, kill = (runner.soft, runner.kill) if runner else (0, 0)
    if not cancelled and not soft:
        return None
    why = "and was asked to stop" if cancelled else f"and its soft limit was over {lasting(facts.now - soft)} ago"
    end = f"in {lasting(kill - facts.now)}" if kill else "after kill_timeout"
    text = f"it runs on {_place(facts)}, {why}: it is interrupted, and killed {end}"
    evidence: Evidence = {"worker": facts.record.get("owner", ""), "told": bool(soft or facts.where("asked"))}
    evidence |= {name: at for name, at in (("soft_us", soft), ("kill_us", kill)) if at}
    return Reason("asked_to_stop", text, evidence, "" if cancelled else _profile(facts))


def sent_ahead(facts: WhyFacts) -> Reason | None:
    worker = next(iter(facts.workers), None)
    if worker is None or worker.kind not in _ONE_AT_A_TIME or worker.heard < facts.time("token"):
        return None
    runners = [one for one in worker.runners if one.kind == worker.kind]
    if not runners or len(worker.runners) >= 64 or any(one.job == facts.id for one in runners):
        return None
    busy = max(runners, key=lambda one: one.holds + one.waiting)
    text = f"{worker.place} has claimed it, and {lasting(facts.now - worker.heard)} ago none of its runners ran it"
    evidence: Evidence = {"worker": worker.owner, "heard_us": worker.heard, "job": busy.job, "since_us": busy.since}
    if busy.job:
        text += f"; one of them runs {busy.task} ({busy.job}) since {lasting(facts.now - busy.since)}"
    step = "a job with a key waits for the runner of its key; others are taken back in milliseconds"
    return Reason("sent_ahead", text, evidence, step)


def runs(facts: WhyFacts) -> Reason:
    token = facts.time("token")
    evidence: Evidence = {"worker": facts.record.get("owner", ""), "since_us": token}
    if (runner := _runner(facts)) is not None:
        evidence |= {"pid": runner.pid, "kind": runner.kind}
    text = f"it runs on {_place(facts)} since {lasting(facts.now - token)}"
    return Reason("runs", text, evidence, _profile(facts))


def _runner(facts: WhyFacts) -> RunnerFacts | None:
    return next((one for worker in facts.workers for one in worker.runners if one.job == facts.id), None)


def _profile(facts: WhyFacts) -> str:
    return f"headrace profile --job {facts.id} shows what it does"


def _place(facts: WhyFacts) -> str:
    return next((worker.place for worker in facts.workers), facts.record.get("owner", "") or "a worker")
