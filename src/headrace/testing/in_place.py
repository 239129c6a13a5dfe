"""A current job for tasks that a test calls like functions."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from headrace.context import CurrentJob
from headrace.errors import OptionsError
from headrace.model import codec
from headrace.model.job import Claim, Input
from headrace.protocol.consume import Note
from headrace.running_job import running
from headrace.tasks.bound_task import new_id

# Bytes of one payload.
MOST = 64 << 20


@contextmanager
def job_here(
    about: Claim, attempt: int, payloads: Mapping[str, Any], state: Any, notes: list[Note]
) -> Generator[CurrentJob, None, None]:
    """Make a job that is in no store the current one for the length of a block; see :meth:`headrace.testing.Kit.job`.

    Args:
        about: its task, queue, key and headers.
        notes: gets what the job says of itself.
    """
    if isinstance(attempt, bool) or attempt < 1:
        raise OptionsError(f"attempt counts starts from 1, so it is not {attempt!r}")
    inputs = tuple(
        Input(new_id(), name, name, "succeeded", codec.encode(value, MOST, f"the payload {name}"))
        for name, value in payloads.items()
    )
    now = time.time_ns() // 1000
    claim = replace(about, id=new_id(), token=now, ready=now, failures=attempt - 1, inputs=inputs)
    with running(CurrentJob(claim, notes.append, state=state)) as job:
        yield job
