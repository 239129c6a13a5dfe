"""What the store replies to a verb on one job, as a value or an error that says what to do next. Pure."""

from __future__ import annotations

from headrace.errors import JobNotFound, JobStateError
from headrace.model.ids import flow_of
from headrace.model.job import State
from headrace.protocol import produce


def not_found(id: str) -> JobNotFound:
    """What to raise where nothing is stored."""
    return JobNotFound(
        f"no job {id} is stored: it never existed, or it ended and its retention (result_ttl, failure_ttl) is over"
    )


def cancelled(id: str, word: str) -> State:
    """The state of a job that was to be cancelled."""
    if word == "missing":
        raise not_found(id)
    return State.RUNNING if word == "asked" else produce.state_of(word)


def retried(id: str, word: str) -> None:
    """Raise why a job was not retried, if it was not."""
    if word == "missing":
        raise not_found(id)
    if word == "broadcast":
        raise JobStateError(f"job {id} was for one worker alone, which may be gone: broadcast it anew")
    if word == "node":
        raise JobStateError(
            f"job {id} is a node of workflow {flow_of(id)}, which goes on from it: "
            f"app.workflows.get({flow_of(id)!r}).retry_failed()"
        )
    if word.startswith("taken "):
        raise JobStateError(f"job {id} is unique, and {word[6:]} has its name: retry it when that has ended")
    if word != "retried":
        raise JobStateError(f"job {id} is {word}: only a job that has ended can be retried")


def deleted(id: str, word: str) -> None:
    """Raise why a job was not deleted, if it was not."""
    if word == "missing":
        raise not_found(id)
    if word == "node":
        raise JobStateError(
            f"job {id} is a node of workflow {flow_of(id)}, which is deleted as a whole: "
            f"app.workflows.get({flow_of(id)!r}).delete()"
        )
    if word == "broadcast":
        raise JobStateError(f"job {id} waits for one worker alone: cancel it")
    if word != "deleted":
        raise JobStateError(f"job {id} is {word}: cancel it first, and delete it when it has ended")
