"""Why a job has not ended yet, as a sentence for people. Decides what to say; reads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import State
from headrace.protocol.why import Candidate, Why

# Where every reason is explained.
PAGE = "see 'Why does my job not run?' in the documentation"

# Names that one sentence lists.
_MOST_NAMES = 5


def reason(why: Why) -> str:
    """What the job waits for, as far as one read of the store can tell, and what helps."""
    if why.state in (State.READY, State.PARKED):
        return _of_workers(why)
    said = {
        State.RUNNING: f"it runs on {why.place or 'a worker'} since {_seconds(why.now - why.token)}",
        State.SCHEDULED: f"it is due in {_seconds(why.due - why.now)}",
        State.BLOCKED: "it waits for nodes that it depends on, or for its turn among the jobs of its key",
        State.STOPPED: "its workflow is stopped: start it again",
        "": "no readable record of it is stored any more",
    }
    return said.get(why.state, "it has just ended: ask again")


def _of_workers(why: Why) -> str:
    """Why a job that may start has not started."""
    if why.paused:
        end = f" for another {_seconds(why.until - why.now)}" if why.until else ""
        return f"queue {why.queue} is paused{end}: headrace queues resume {why.queue} lets its jobs start"
    if not why.live:
        return f"no worker lives: start one with headrace worker APP --queues {why.queue}"
    serving = [worker for worker in why.workers if why.queue in worker.queues]
    if why.live > len(why.workers) and not serving:
        return f"none of the {len(why.workers)} workers that were looked at serves queue {why.queue}; {why.live} live"
    if not serving:
        served = [name for worker in why.workers for name in worker.queues]
        return f"no worker serves queue {why.queue}; workers serve {_names(served)}"
    able = [worker for worker in serving if worker.kind]
    if not able:
        places = _names([worker.place for worker in serving])
        return f"no live worker that serves queue {why.queue} knows the task {why.task}: {places} runs other code"
    return _of_runners(why, able)


def _of_runners(why: Why, able: Sequence[Candidate]) -> str:
    if why.state == State.PARKED:
        return f"a worker that knows its task has come ({_names([worker.place for worker in able])}) and will take it"
    ahead = f"{why.ahead:,} job{' is' if why.ahead == 1 else 's are'} ahead of it in queue {why.queue}"
    busy = [worker for worker in able if worker.busy]
    if len(busy) < len(able):
        return ahead if why.ahead else f"it is the next of queue {why.queue}, and a runner was free for it a moment ago"
    size = sum(worker.size for worker in able)
    runners = f"all {size} {_names([worker.kind for worker in able])} runners" if size > 1 else "the one runner"
    return f"{runners} for it {'are' if size > 1 else 'is'} busy, and {ahead}"


def _names(names: Sequence[str]) -> str:
    """The names, each once, in order; many are counted."""
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return (", ".join(found[:_MOST_NAMES]) or "none") + more


def _seconds(microseconds: int) -> str:
    return f"{max(0, microseconds) / 1e6:.1f} s"
