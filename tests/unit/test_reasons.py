"""What a job waits for, in words: each sentence names the thing that is missing."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.job import State
from headrace.protocol.why import Candidate, Why
from headrace.tasks.reasons import reason

NOW = 1_000_000_000


def why(state: str = "ready", *workers: Candidate, **facts: Any) -> Why:
    given = {
        "now": NOW,
        "state": state,
        "queue": "mail",
        "task": "app.send",
        "place": "",
        "token": 0,
        "due": 0,
        "ahead": 0,
    }
    given |= {"paused": False, "until": 0, "live": len(workers), "workers": workers}
    return Why(**given | facts)  # type: ignore[arg-type]


OTHER = Candidate("a:1", ("default", "low"))
IGNORANT = Candidate("a:2", ("mail",))
FREE = Candidate("a:3", ("mail",), "process", 2, 1)
BUSY = Candidate("a:4", ("mail",), "process", 2, 2)
BUSY_TOO = Candidate("a:5", ("mail", "default"), "thread", 16, 20)
ONE = Candidate("a:6", ("mail",), "process", 1, 1)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (why(), "no worker lives: start one with headrace worker APP --queues mail"),
        (why("ready", OTHER), "no worker serves queue mail; workers serve default, low"),
        (
            why("ready", OTHER, IGNORANT),
            "no live worker that serves queue mail knows the task app.send: a:2 runs other code",
        ),
        (why("parked", OTHER), "no worker serves queue mail; workers serve default, low"),
        (why("parked", FREE), "a worker that knows its task has come (a:3) and will take it"),
        (why("ready", FREE, paused=True), "queue mail is paused: headrace queues resume mail lets its jobs start"),
        (
            why("ready", FREE, paused=True, until=NOW + 2_500_000),
            "queue mail is paused for another 2.5 s: headrace queues resume mail lets its jobs start",
        ),
        (
            why("ready", BUSY, BUSY_TOO, ahead=1200),
            "all 18 process, thread runners for it are busy, and 1,200 jobs are ahead of it in queue mail",
        ),
        (why("ready", ONE, OTHER, ahead=1), "the one runner for it is busy, and 1 job is ahead of it in queue mail"),
        (why("ready", BUSY, FREE, ahead=3), "3 jobs are ahead of it in queue mail"),
        (why("ready", BUSY, FREE), "it is the next of queue mail, and a runner was free for it a moment ago"),
        (why("ready", OTHER, live=500), "none of the 1 workers that were looked at serves queue mail; 500 live"),
        (why("running", place="a:7", token=NOW - 1_500_000), "it runs on a:7 since 1.5 s"),
        (why("scheduled", due=NOW + 90_000_000), "it is due in 90.0 s"),
        (why("succeeded"), "it has just ended: ask again"),
        (why(""), "no readable record of it is stored any more"),
    ],
)
def test_it_names_what_is_missing(facts: Why, said: str) -> None:
    assert reason(facts) == said


def test_it_lists_no_more_names_than_one_can_read() -> None:
    many = [Candidate("a:1", tuple(f"q{n}" for n in range(50)))]
    assert reason(why("ready", *many)).endswith("workers serve q0, q1, q2, q3, q4 and 45 more")


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_its_sentence(state: State) -> None:
    assert reason(why(state, FREE))
