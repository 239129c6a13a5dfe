"""A small model of one shard: what the scripts promise, in plain Python, without any thought of how.

It knows states, times, budgets and orders. It does not know keys, types or texts; those are the invariants' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.model.ids import FINAL
from tests.scripts.stage import LEVEL, SECOND

LEASE = 15 * SECOND
GRACE = 5 * SECOND
SPARED_MOST = 10
WEEK = 7 * 86400 * SECOND
MINUTE = 60 * SECOND


@dataclass
class Job:
    id: str
    task: str
    queue: str
    priority: int
    once: bool
    budget: int
    expires: int
    state: str = "ready"
    place: int = 0
    """Its score in its structure: line, due time, token, or time of finishing."""
    owner: str = ""
    token: int = 0
    asked: bool = False
    ends: int = 0
    """End of its retention, once finished."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    key: str = ""
    """Of an ordered job."""

    def count(self, name: str) -> int:
        self.counts[name] = self.counts.get(name, 0) + 1
        return self.counts[name]


@dataclass
class Owner:
    lease: int
    claimed: tuple[int, int] = (0, 0)
    """Number and first token of its last claim."""
    spared: tuple[int, int] = (0, 0)
    """The end that it was given when all were silent, and how often that was in a row."""


class Model:
    """One shard.

    Attributes:
        jobs: every stored job.
        tokens: queues with a wake-up token.
        turns: which ordered job of each key is past its chain.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.owners: dict[str, Owner] = {}
        self.paused: set[str] = set()
        self.resumes: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        self.tokens: set[str] = set()
        self.waited: dict[str, int] = {}
        self.turns: dict[str, str] = {}
        self.last = 0

    # Looks.

    def where(self, state: str, **facts: str) -> list[Job]:
        """Jobs of one structure, in its order."""
        found = [
            job
            for job in self.jobs.values()
            if job.state == state and all(getattr(job, name) == value for name, value in facts.items())
        ]
        return sorted(found, key=lambda job: (job.place, job.id))

    def kept(self) -> list[Job]:
        """Finished jobs, soonest to expire first."""
        return sorted((job for job in self.jobs.values() if job.state in FINAL), key=lambda job: (job.ends, job.id))

    # Steps that verbs share.

    def line_up(self, job: Job, now: int, score: int = 0) -> None:
        if job.key and self.turns.setdefault(job.key, job.id) != job.id:
            chain = self.where("blocked", key=job.key)
            job.state, job.owner = "blocked", ""
            job.place = max(now, chain[-1].place + 1 if chain else 0)
            return
        job.state, job.owner = "ready", ""
        job.place = score or now - job.priority * LEVEL
        self.tokens.add(job.queue)

    def finish(self, job: Job, state: str, now: int, keep: int) -> None:
        if job.key and self.turns.get(job.key) == job.id:
            del self.turns[job.key]
            if chain := self.where("blocked", key=job.key):
                self.line_up(chain[0], now)
        if self.waited.pop(job.id, None) is not None:
            keep = max(keep, MINUTE)
        if keep <= 0:
            del self.jobs[job.id]
            return
        job.state, job.place, job.ends, job.owner, job.asked = state, now, now + keep, "", False

    def crash(self, job: Job, now: int, keep: int, score: int = 0) -> None:
        crashes = job.count("crashes")
        if job.once:
            self.finish(job, "failed", now, keep)
        elif job.asked:
            self.finish(job, "cancelled", now, keep)
        elif crashes >= job.budget:
            self.finish(job, "quarantined", now, keep)
        else:
            self.line_up(job, now, score)

    def back(self, job: Job, now: int, score: int) -> None:
        if job.asked:
            self.finish(job, "cancelled", now, WEEK)
        else:
            self.line_up(job, now, score)

    # Verbs.

    def enqueue(self, job: Job, now: int, delay: int) -> None:
        self.jobs[job.id] = job
        if delay > 0:
            job.state, job.place = "scheduled", now + delay
        else:
            self.line_up(job, now)

    def mend(self, now: int) -> None:
        """Who lost a lease while nobody renewed gets time to come back; ends that cannot be are cut."""
        silent: list[Owner] = []
        for _, owner in sorted(self.owners.items(), key=lambda row: (row[1].lease, row[0]), reverse=True):
            if owner.lease > now + LEASE:
                owner.lease = now + LEASE
            elif owner.lease - LEASE > now - LEASE / 2:
                return
            silent.append(owner)
        for owner in silent:
            times = owner.spared[1] if owner.spared[0] == owner.lease else 0
            if 0 < owner.lease < now + GRACE and times < SPARED_MOST:
                owner.lease, owner.spared = now + GRACE, (now + GRACE, times + 1)

    def rewind(self, now: int) -> None:
        """The clock was set back: a pause ends when its length is over."""
        self.resumes = {queue: min(end, now + self.lengths[queue]) for queue, end in self.resumes.items()}

    def register(self, name: str, now: int) -> None:
        self.mend(now)
        if self.last > now + 1_000_000:
            self.rewind(now)
        self.owners.setdefault(name, Owner(0)).lease = now + LEASE

    def renew(self, name: str, now: int) -> bool:
        owner = self.owners.get(name)
        over = min((other.lease for other in self.owners.values()), default=now) < now
        if owner and owner.lease > 0 and (over or not now + LEASE / 2 <= owner.lease <= now + LEASE):
            ahead = owner.lease > now + LEASE
            self.mend(now)
            if ahead:
                self.rewind(now)
        if owner is None or owner.lease <= now:
            return False
        owner.lease = now + LEASE
        return True

    def _lives(self, owner: Owner | None, now: int) -> bool:
        if owner and 0 < owner.lease <= now:
            self.mend(now)
        return owner is not None and owner.lease > now

    def claim(self, name: str, number: int, limit: int, queues: Sequence[str], now: int) -> list[Job] | None:
        owner = self.owners.get(name)
        if owner is None or not self._lives(owner, now):
            return None
        if owner.claimed[0] == number:
            return [job for job in self.where("running", owner=name) if job.token >= owner.claimed[1]]
        token = first = max(now, self.last + 1)
        taken: list[Job] = []
        left = limit
        for queue in queues:
            if left <= 0 or queue in self.paused:
                continue
            popped = self.where("ready", queue=queue)[:left]
            for job in popped:
                job.state, job.owner, job.token, job.place = "running", name, token, token
                self.last, token = token, token + 1
                taken.append(job)
            left -= len(popped)
        if left <= 0:
            self.tokens |= {q for q in queues if q not in self.paused and self.where("ready", queue=q)}
        owner.claimed = (number, first)
        return taken

    def pause(self, queue: str, length: int, now: int) -> None:
        self.paused.add(queue)
        self.resumes.pop(queue, None)
        if length:
            self.resumes[queue], self.lengths[queue] = now + length, length

    def resume(self, queue: str) -> None:
        self.paused.discard(queue)
        self.resumes.pop(queue, None)
        if self.where("ready", queue=queue):
            self.tokens.add(queue)

    def settle(self, name: str, job: Job, kind: str, amount: int, now: int, score: int) -> None:
        if kind in ("succeeded", "cancelled"):
            self.finish(job, kind, now, amount)
        elif kind == "failed":
            job.count("failures")
            self.finish(job, "failed", now, amount)
        elif kind == "corrupt":
            self.finish(job, "quarantined", now, amount)
        elif kind == "crashed":
            self.crash(job, now, amount, score)
        elif kind in ("retry", "snoozed"):
            job.count("failures" if kind == "retry" else "snoozes")
            if job.asked:
                self.finish(job, "cancelled", now, WEEK)
            elif amount <= 0:
                self.line_up(job, now)
            else:
                job.state, job.place, job.owner = "scheduled", now + amount, ""
        elif kind == "released":
            self.back(job, now, score)
        elif kind == "interrupted":
            job.count("interruptions")
            if job.once or job.asked:
                self.finish(job, "failed" if job.once else "cancelled", now, amount)
            else:
                self.back(job, now, score)
        elif job.asked:  # parked
            self.finish(job, "cancelled", now, WEEK)
        else:
            job.state, job.place, job.owner = "parked", score or now, ""

    def cancel(self, id: str, keep: int, now: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "missing"
        if job.state == "running":
            job.asked = True
            return "asked"
        if job.state in FINAL:
            return job.state
        self.finish(job, "cancelled", now, keep)
        return "cancelled"

    def rerun(self, id: str, now: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "missing"
        if job.state not in FINAL:
            return job.state
        job.counts, job.expires, job.ends = {}, 0, 0
        self.line_up(job, now)
        return "retried"

    def promote(self, limit: int, now: int) -> int:
        due = [job for job in self.where("scheduled") if job.place <= now][:limit]
        for job in due:
            self.line_up(job, now)
        return len(due)

    def unpark(self, task: str, limit: int, names: Sequence[str], now: int) -> int:
        parked = [job for job in self.where("parked", task=task) if job.queue in names][:limit]
        for job in parked:
            self.line_up(job, now, job.place)
        return len(parked)

    def reclaim(self, name: str, known: bool, limit: int, keep: int, now: int) -> tuple[str, int]:
        owner = self.owners.get(name)
        if not known and self._lives(owner, now):
            return "alive", 0
        held = self.where("running", owner=name)[:limit]
        for job in held:
            self.crash(job, now, keep)
        if self.where("running", owner=name):
            self.owners[name].lease = 0
            return "some", len(held)
        self.owners.pop(name, None)
        return "done", len(held)

    def purge(self, queue: str, limit: int, now: int) -> tuple[int, int]:
        removed = 0
        while popped := self.where("ready", queue=queue)[: limit - removed]:
            for job in popped:
                self.finish(job, "cancelled", now, 0)
            removed += len(popped)
        left = len(self.where("ready", queue=queue))
        if not left:
            self.tokens.discard(queue)
        return removed, left

    def sweep(self, limit: int, most: int, now: int) -> int:
        self.waited = {id: end for id, end in self.waited.items() if end > now}
        kept = self.kept()
        gone = 0
        for job in kept[:limit]:
            if job.ends > now and len(kept) - gone <= most:
                break
            del self.jobs[job.id]
            gone += 1
        return gone
