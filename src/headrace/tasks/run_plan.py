"""How a worker runs one job: the options of the task, those of the job and the settings put together."""

from __future__ import annotations

import msgspec

from headrace.errors import CorruptOptions, OptionsError
from headrace.model.form import RETRY_PARTS, Options, Overrides
from headrace.model.option_checks import check_strategy
from headrace.model.retry import NO_RETRY, Retry, with_parts
from headrace.settings import Settings, microseconds

_overrides = msgspec.msgpack.Decoder(Overrides)


class RunPlan(msgspec.Struct, frozen=True):
    """How a worker runs one job: the task's options, the job's own and the settings put together.

    Attributes:
        retry: when it runs again after an error.
        timeout: soft limit, seconds; None: none.
        hard_timeout: from the start to the kill, seconds; None: none.
        result_ttl: microseconds that a success stays.
        failure_ttl: microseconds that any other end stays.
        strategy: which runner gets it; empty: as the worker says.
        secrets: which of its arguments are never shown.
    """

    retry: Retry
    timeout: float | None
    hard_timeout: float | None
    result_ttl: int
    failure_ttl: int
    strategy: str = ""
    secrets: str = ""


NO_PLAN = RunPlan(NO_RETRY, None, None, 0, 0)


def plan_of(name: str, task: Options, stored: bytes, settings: Settings, secrets: str) -> RunPlan:
    """How to run a job that was stored with these options.

    Raises:
        CorruptOptions: no enqueue wrote these bytes.
    """
    try:
        own = _overrides.decode(stored) if stored else Overrides()
        numbers = {part: getattr(own, name) for name, (part, _) in RETRY_PARTS.items()}
        retry = with_parts(task.retries, {part: n for part, n in numbers.items() if n is not None})
        strategy = check_strategy("strategy", own.strategy) if own.strategy else ""
    except (msgspec.MsgspecError, OptionsError, ValueError) as error:
        raise CorruptOptions(
            f"the stored options of a job of {name} cannot be read ({error}): another program wrote them"
        ) from None
    timeout = _first(own.timeout, task.timeout, 0.0)
    hard = _first(own.hard_timeout, task.hard_timeout, 0.0) or (timeout + settings.kill_timeout if timeout else 0.0)
    return RunPlan(
        retry,
        timeout or None,
        hard or None,
        microseconds(_first(own.result_ttl, task.result_ttl, settings.result_ttl)),
        microseconds(_first(own.failure_ttl, task.failure_ttl, settings.failure_ttl)),
        strategy or task.strategy,
        secrets,
    )


def _first(own: float | None, task: float | None, default: float) -> float:
    if own is not None:
        return own
    return default if task is None else task
