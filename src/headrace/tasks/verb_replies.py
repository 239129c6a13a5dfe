"""What the store replies to a verb on one job, as a value or an error that says what to do next. Pure."""

from __future__ import annotations

from headrace.errors import JobNotFound, JobStateError
from headrace.model.ids import flow_of, is_flow, shard_of
from headrace.model.job import State
from headrace.protocol import produce


def check_id(id: str) -> str:
    """``id``, if it has the form of one.

    Raises:
        JobNotFound: it has not, so there is no such job.
    """
    try:
        shard_of(id)
    except (ValueError, TypeError):
        raise JobNotFound(f"{id!r} is not the id of a job: ids have 21 digits and lower-case letters") from None
    return id


def not_found(id: str) -> JobNotFound:
    """What to raise where nothing is stored."""
    if is_flow(id):
        return JobNotFound(f"{id} is the id of a workflow, not of a job: headrace workflows show {id}")
    return JobNotFound(
        f"no job {id} is stored: it never existed, it ended and its retention (result_ttl, failure_ttl) is over, or "
        "the server lost it"
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


def moved(id: str, word: str) -> State:
    """The state of a job that was to be moved, or why it was not."""
    if word == "missing":
        raise not_found(id)
    if word == "broadcast":
        raise JobStateError(f"job {id} waits for one worker alone: cancel it")
    if word == "late":
        raise JobStateError(f"job {id} would have expired by then: choose an earlier time, or enqueue it anew")
    if not word.startswith("moved "):
        why = (
            "it waits for other jobs"
            if word == "blocked"
            else "only one that waits for a time or a worker can be moved"
        )
        raise JobStateError(f"job {id} is {word}: {why}")
    return produce.state_of(word[6:])
