"""What may be asked for a task or one job: every option checked, contradictions named. Pure.

The one list of options: the decorator, ``task.options(...)`` and ``app.by_name(...)`` all take theirs from here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, get_args

import msgspec

from headrace.errors import OptionsError
from headrace.model import elsewhere
from headrace.model.headers import Given, merged
from headrace.model.headers import check as check_headers
from headrace.model.ids import check_name
from headrace.model.job import MOST_PRIORITY, Overrides
from headrace.model.retry import Retry, policy
from headrace.settings import Duration, microseconds, seconds

Kind = Literal["process", "fork", "thread", "async"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Strategy = Literal["available", "least_loaded", "round_robin", "random", "hash"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

# The budget that the store assumes when a record names none (reclaim.lua, crash.lua).
DEFAULT_CRASHES = 3


class JobOptions(TypedDict, total=False):
    """What one job may ask for; a task gives the defaults. None stands for an option that is not given.

    Attributes:
        queue: the line that it waits in; ``default``.
        priority: -100 to 100, higher starts sooner; one level is worth ten minutes of waiting.
        delay: how long it waits before it becomes ready. Not with ``at``.
        at: when it becomes ready: a datetime with a time zone.
        expires: it must start within this, or ends as cancelled.
        retries: further starts after an error: a number, or a :class:`Retry`.
        timeout: soft limit: raises ``SoftTimeLimit`` in the job. ``math.inf``: none, though the task has one.
        hard_timeout: the runner is killed. ``math.inf``: as if not given, ``timeout`` plus the settings'
            ``kill_timeout``, if there is a ``timeout``.
        max_crashes: how often it may take its runner down before it is quarantined, 1 to 1000.
        result_ttl: how long a success and its result stay; 0 removes it at once.
        failure_ttl: how long it stays when it failed, was cancelled or quarantined.
        at_most_once: never start it twice: a start that is lost fails it.
        key: the customer, the account, ...: a worker starts jobs of one key in order (``hash``, where no strategy is
            given), and ``current_job().key`` has it.
        ordered: jobs of one ``key`` run one at a time, in the order in which they became ready, whichever workers run
            them; the next one waits until the one before has ended, retries included.
        strategy: which runner of a worker gets it: ``available`` (whoever is free, the default), ``least_loaded``,
            ``round_robin``, ``random`` or ``hash`` (by ``key``).
        headers: texts by name that travel beside the arguments: at most 16, and 4,096 bytes in all. A job that is made
            in a job inherits that one's; a text of None drops an inherited header. Given in several places they
            add up.
    """

    queue: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    expires: Duration | None
    retries: int | Retry | None
    timeout: Duration | None
    hard_timeout: Duration | None
    max_crashes: int | None
    result_ttl: Duration | None
    failure_ttl: Duration | None
    at_most_once: bool | None
    key: str | None
    ordered: bool | None
    strategy: Strategy | None
    headers: Mapping[str, str | None] | None


class CallOptions(JobOptions, total=False):
    """What ``task.options(...)`` takes.

    Attributes:
        request_id: within the settings' ``request_id_ttl`` time, enqueues with the same id make one job.
    """

    request_id: str | None


class TaskOptions(JobOptions, total=False):
    """What ``@app.task(...)`` takes.

    Attributes:
        name: instead of ``module.function``.
        kind: who runs it: ``process`` (default), ``fork`` (a child per job) or ``thread``; ``async`` for coroutines.
        loose: arguments without an annotation may arrive as another type: a tuple as a list, a UUID as a text.
    """

    name: str | None
    kind: Kind | None
    loose: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options: microseconds where the store counts (delay, at, expires), seconds where the worker does.

    Attributes:
        timeout, hard_timeout: None: not given; 0: no limit.
        result_ttl, failure_ttl: None: as the settings say.
        max_crashes: 0: as the task says where it runs, else the settings there.
        strategy: empty: as the worker says.
        overrides: what was asked for a job rather than by its task: only that travels with the job.
    """

    queue: str = "default"
    priority: int = 0
    delay: int = 0
    at: int = 0
    expires: int = 0
    retries: Retry = Retry(max=0)  # noqa: RUF009 - frozen
    timeout: float | None = None
    hard_timeout: float | None = None
    max_crashes: int = 0
    result_ttl: float | None = None
    failure_ttl: float | None = None
    at_most_once: bool = False
    key: str = ""
    ordered: bool = False
    strategy: str = ""
    headers: Given = ()
    request_id: str = ""
    overrides: Overrides = Overrides()  # noqa: RUF009 - frozen


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionsError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise OptionsError(f"{name} must be a text of 1 to 256 characters, not {value!r:.80}")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionsError(f"{name} must be True or False, not {value!r}")
    return value


def _at(name: str, value: Any) -> int:
    if not isinstance(value, datetime):
        raise OptionsError(f"{name} must be a datetime with a time zone, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise OptionsError(
            f"{name}={value.isoformat()} has no time zone, so nobody knows when that is: give one, such as "
            f"datetime(..., tzinfo=UTC) or ZoneInfo('Europe/Berlin')"
        )
    return max(1, (value - _EPOCH) // timedelta(microseconds=1))


def _limit(name: str, value: Any) -> float:
    if value == math.inf:
        return 0.0
    if value == 0 and type(value) is not bool:
        raise OptionsError(f"{name}=0 would leave a job no time: for no limit give math.inf, or leave {name} out")
    return seconds(value, name, zero=False)


def _queue(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OptionsError(f"{name} must be the name of a queue, not {value!r}")
    return check_name("queue", value)


def check_strategy(name: str, value: Any) -> str:
    """A strategy's name.

    Raises:
        OptionsError: it is none, or none for jobs.
    """
    if value in STRATEGIES:
        return str(value)
    known = f"{name} must be one of {', '.join(STRATEGIES)}"
    if callable(value):
        raise OptionsError(f"{known}: a function can choose in headrace.Pool, but a dispatcher runs no code of yours")
    if value == "next_available":
        raise OptionsError(f"{known}: next_available answers a caller at once, and a job has none; take available")
    raise OptionsError(f"{known}, not {value!r:.80}")


def _retries(name: str, value: Any) -> Retry:  # noqa: ARG001 - one shape for all checks
    return policy(value)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": _queue,
    "priority": lambda name, value: _whole(name, value, -MOST_PRIORITY, MOST_PRIORITY),
    "delay": lambda name, value: microseconds(seconds(value, name)),
    "at": _at,
    "expires": lambda name, value: microseconds(seconds(value, name, zero=False)),
    "retries": _retries,
    "timeout": _limit,
    "hard_timeout": _limit,
    "max_crashes": lambda name, value: _whole(name, value, 1, 1000),
    "result_ttl": lambda name, value: seconds(value, name),
    "failure_ttl": lambda name, value: seconds(value, name),
    "at_most_once": flag,
    "key": _text,
    "ordered": flag,
    "strategy": check_strategy,
    "headers": check_headers,
    "request_id": _text,
}


def of_task(given: Mapping[str, Any]) -> Options:
    """The options of a task.

    Raises:
        OptionsError: names the option and what would be right.
    """
    if given.get("request_id") is not None:
        raise OptionsError("request_id names one job: give it to task.options(request_id=...), not to the task")
    return _consistent(replace(Options(), **_checked(given)))


def of_call(task: Options, given: Mapping[str, Any]) -> Options:
    """A task's options, overridden for one or more jobs.

    Raises:
        OptionsError: names the option and what would be right.
    """
    for name in ("kind", "name", "loose"):
        if given.get(name) is not None:
            raise OptionsError(f"{name} belongs to the task, not to a job: give it to @app.task({name}=...)")
    checked = _checked(given)
    if "delay" in checked:
        checked["at"] = 0
    elif "at" in checked:
        checked["delay"] = 0
    if "headers" in checked:
        checked["headers"] = merged(task.headers, checked["headers"])
    retries = given.get("retries")
    if isinstance(retries, Retry):
        if (retries.on, retries.never) != (Retry().on, Retry().never):
            raise OptionsError(
                "which exceptions are retried is the task's to say: give on and never to @app.task(retries=...)"
            )
    elif retries is not None:
        checked["retries"] = replace(task.retries, max=checked["retries"].max)
    travels: dict[str, Any] = {
        name: checked[name]
        for name in ("timeout", "hard_timeout", "result_ttl", "failure_ttl", "strategy")
        if name in checked
    }
    if retries is not None:
        travels |= _numbers(checked["retries"], task.retries)
    checked["overrides"] = msgspec.structs.replace(task.overrides, **travels)
    options = _consistent(replace(task, **checked))
    if given.get("strategy") == "hash" and not options.key:
        raise OptionsError('strategy="hash" needs key=: jobs of one key run on one runner of a worker, in order')
    return options


def _numbers(wanted: Retry, known: Retry) -> dict[str, float]:
    """What differs from the retries that the worker knows from the task."""
    names = {"max": "retries", "delay": "retry_delay", "factor": "retry_factor", "max_delay": "retry_max_delay"}
    names["jitter"] = "retry_jitter"
    return {
        field: getattr(wanted, name)
        for name, field in names.items()
        if name == "max" or getattr(wanted, name) != getattr(known, name)
    }


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("at") is not None and given.get("delay") is not None:
        raise OptionsError("delay and at contradict each other: give the one or the other")
    checked: dict[str, Any] = {}
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None:
            raise OptionsError(f"there is no option {name!r}: {_instead(name)}")
        if value is not None:
            checked[name] = check(name, value)
    return checked


def misplaced(task: str, name: str, value: object) -> str:
    """What an error adds where an option was given to ``enqueue`` as an argument; empty where it is none."""
    if name in _CHECKS:
        return f"; as an option of the job: {task}.options({name}={value!r:.40}).enqueue(...)"
    return f"; as an option, {elsewhere.OPTIONS[name]}" if name in elsewhere.OPTIONS else ""


def _instead(name: str) -> str:
    """What to write for an option that does not exist."""
    if name in elsewhere.OPTIONS:
        return elsewhere.OPTIONS[name]
    close = difflib.get_close_matches(name, _CHECKS, 1)
    return f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(_CHECKS)}"


def _consistent(options: Options) -> Options:
    if options.at_most_once and options.retries.max:
        raise OptionsError(
            "at_most_once and retries contradict each other: what may start once cannot be retried; give retries=0"
        )
    if options.timeout and options.hard_timeout and options.hard_timeout <= options.timeout:
        raise OptionsError(
            f"hard_timeout={options.hard_timeout:g} must be more than timeout={options.timeout:g}: the job needs "
            f"time to end by itself after the soft limit"
        )
    if options.expires and options.delay >= options.expires:
        raise OptionsError("expires must be more than delay: the job would expire before it becomes ready")
    return options
