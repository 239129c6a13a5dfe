"""Where a job that was claimed runs, or why it does not: each function decides on one reason. Pure."""

from __future__ import annotations

from headrace.protocol.overviews import RunnerFacts
from headrace.protocol.why import WhyFacts
from headrace.tasks.reasons_of_line import Evidence, Reason, lasting

# Kinds whose runners run one job at a time, so that what a runner says of its job tells which others it does not run.
_ONE_AT_A_TIME = ("process", "fork")


def owner_silent(facts: WhyFacts) -> Reason | None:
    """The lease of its worker is over."""
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
    """A caller cancelled it while it ran, or its soft limit is over."""
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
    """Its worker holds it, and no runner of the worker runs it."""
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
    step = (
        "a job with a key and the strategy hash waits for the runner of its key; others are taken back in milliseconds"
    )
    return Reason("sent_ahead", text, evidence, step)


def runs(facts: WhyFacts) -> Reason:
    """It has started."""
    token = facts.time("token")
    evidence: Evidence = {"worker": facts.record.get("owner", ""), "since_us": token}
    if (runner := _runner(facts)) is not None:
        evidence |= {"pid": runner.pid, "kind": runner.kind}
    text = f"it runs on {_place(facts)} since {lasting(facts.now - token)}"
    return Reason("runs", text, evidence, _profile(facts))


def _runner(facts: WhyFacts) -> RunnerFacts | None:
    """The runner that runs it, as of its worker's last heartbeat."""
    return next((one for worker in facts.workers for one in worker.runners if one.job == facts.id), None)


def _profile(facts: WhyFacts) -> str:
    return f"headrace profile --job {facts.id} shows what it does"


def _place(facts: WhyFacts) -> str:
    return next((worker.place for worker in facts.workers), facts.record.get("owner", "") or "a worker")
