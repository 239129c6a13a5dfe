"""Why a job that is not in a line does not run: each function decides on one reason. Pure.

Where a job that was claimed runs, or why it does not: each function decides on one reason. Pure.
"""

from __future__ import annotations

from headrace.model.ids import LENGTH, flow_of, is_flow, is_node, milliseconds_of
from headrace.model.job import State, first_line, parse_error
from headrace.protocol.overviews import RunnerFacts
from headrace.protocol.why import OtherJob, WhyFacts
from headrace.tasks.reasons_of_line import Evidence, Reason, lasting, several

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
    elif state == "blocked" and not is_node(facts.id) and facts.place.keys().isdisjoint(("score", "follows")):
        text = "its record says that it waits for its turn, and it is not in the chain of its key"
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
        return Reason("ended", f"{text}, {_skipped(facts)}", evidence)
    if error is not None and state != State.SUCCEEDED:
        text += f", {first_line(error)}"
        facts_of_end = {"error": error.type, "attempt": error.attempt, "signal": error.signal, "worker": error.worker}
        evidence |= {name: value for name, value in facts_of_end.items() if value}
    if state != State.SUCCEEDED:
        step = f"headrace jobs retry {facts.id} runs it again"
        if is_node(facts.id):
            step = f"headrace workflows retry {flow_of(facts.id)} runs it again"
    return Reason("ended", text, evidence, step)


def _skipped(facts: WhyFacts) -> str:
    if "skip" not in facts.record:
        return "since its condition did not hold"
    return (
        f"since {_named(facts.others[0])} is {facts.others[0].state}" if facts.others else "since a node before it was"
    )


# -- it waits for a time ----------------------------------------------------------------------------------------------


def overdue(facts: WhyFacts) -> Reason | None:
    late = facts.now - facts.where("score")
    if late <= (_LATE if facts.live else 0):
        return None
    text = f"it was due {lasting(late)} ago, and "
    text += "no live worker has made it ready" if facts.live else "no worker lives that would make it ready"
    step = (
        "look at the logs of the workers"
        if facts.live
        else f"start one with headrace worker APP --queues {facts.queue}"
    )
    return Reason("overdue", text, {"due_us": facts.where("score"), "workers": facts.live}, step)


def scheduled(facts: WhyFacts) -> Reason:
    due, failures, snoozes = facts.where("score"), facts.time("failures"), facts.time("snoozes")
    text = f"it is due in {lasting(due - facts.now)}"
    error = parse_error(facts.record.get("error", "").encode())
    if failures and error is not None:
        text += f": retry {failures}, after {first_line(error)}"
    elif snoozes:
        text += ": it was snoozed" + (f" {snoozes} times" if snoozes > 1 else "")
    return Reason("scheduled", text, {"due_us": due, "failures": failures, "snoozes": snoozes})


# -- it waits for others ----------------------------------------------------------------------------------------------


def workflow_not_started(facts: WhyFacts) -> Reason | None:
    if facts.flow.get("st") != "pending":
        return None
    flow = flow_of(facts.id)
    evidence: Evidence = {"workflow": flow, "created_us": int(facts.flow.get("created", 0))}
    return Reason(
        "workflow_not_started", f"its workflow {flow} is not started", evidence, f"headrace workflows start {flow}"
    )


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
        return Reason(
            "waits_for_nodes",
            text,
            evidence | {"node": failed.id},
            f"headrace workflows retry {flow} goes on from there",
        )
    waits = [one for one in facts.others if one.state not in _BROKEN and one.state != State.SKIPPED]
    text = f"it waits for {pending} of its {evidence['parents']} parents"
    if waits:
        text += f"; {_with_reason(facts, waits[0], 'node ' + _named(waits[0]))}"
        evidence["node"] = waits[0].id
    return Reason("waits_for_nodes", text, evidence, f"headrace workflows show {flow}")


_BROKEN = (State.FAILED, State.CANCELLED, State.QUARANTINED)


def waits_for_its_turn(facts: WhyFacts) -> Reason | None:
    if facts.state != State.BLOCKED or is_node(facts.id):
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
