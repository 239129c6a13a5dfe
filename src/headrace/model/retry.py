"""When a failed job runs again: a policy and one pure decision. Time and dice are arguments."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from headrace.errors import CancelRequested, Interrupt, JobInterrupted, OptionsError, RetryAfter, Snooze, SoftTimeLimit
from headrace.settings import Duration, seconds

# Arguments of a retry policy elsewhere -> the one here. Not in ``elsewhere.py``: that imports the options, which import
# this module.
_ELSEWHERE = {
    "backoff": "factor=",
    "backoff_factor": "factor=",
    "exponential_backoff": "factor=",
    "count": "max=",
    "max_retries": "max=",
    "attempts": "max=, which does not count the first start",
    "max_attempts": "max=, which does not count the first start",
    "interval": "delay=",
    "wait": "delay=",
    "min_backoff": "delay=",
    "max_backoff": "max_delay=",
    "exceptions": "on=(...)",
    "retry_for": "on=(...)",
    "autoretry_for": "on=(...)",
    "throws": "never=(...)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a job that raised runs again.

    Attributes:
        max: further starts after an error, 0 to 1000. Without it 3, or as many as ``delay`` lists.
        delay: seconds before the first of them. Or a list: seconds before each of them, the last for all that follow;
            then ``factor`` and ``max_delay`` do not count.
        factor: each later delay is this many times the one before, at least 1.
        max_delay: no delay is longer, seconds; at least ``delay``.
        jitter: each delay is moved by up to this share of itself, 0 to 1, so that a herd spreads out.
        on: only these exceptions are retried; a list or tuple of classes.
        never: these are not, even when ``on`` names them; likewise.
    """

    max: int = cast("int", None)
    delay: Duration | Sequence[Duration] = 1.0
    factor: float = 2.0
    max_delay: Duration = 3600.0
    jitter: float = 0.1
    on: Sequence[type[BaseException]] = (Exception,)
    never: Sequence[type[BaseException]] = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if args:
                raise OptionsError(f"Retry takes named arguments only: write Retry(max={args[0]!r:.80})")
            for name in given:
                if name not in cls.__slots__:
                    near = difflib.get_close_matches(name, cls.__slots__, 1) or cls.__slots__
                    instead = _ELSEWHERE.get(name) or " or ".join(f"{one}=" for one in near)
                    raise OptionsError(f"Retry has no argument {name!r}: write {instead}")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        listed = isinstance(self.delay, list | tuple)
        given = cast("int | None", self.max)
        if given is None:
            object.__setattr__(self, "max", len(cast("Sequence[Any]", self.delay)) if listed else 3)
        if isinstance(self.max, bool) or not isinstance(self.max, int) or not 0 <= self.max <= 1000:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"retries must be a whole number from 0 to 1000, not {self.max!r}")
        if not _is_number(self.factor) or not 1 <= self.factor <= 1000:
            raise OptionsError(f"the factor between retries must be from 1 to 1000, not {self.factor!r}")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise OptionsError(f"jitter is a share of the delay, from 0 to 1, not {self.jitter!r}")
        object.__setattr__(self, "delay", _delay(self.delay))
        object.__setattr__(self, "max_delay", seconds(self.max_delay, "the longest delay before a retry"))
        if not listed and self.delay > self.max_delay:  # type: ignore[operator] # pyright: ignore[reportOperatorIssue]
            raise OptionsError(
                f"delay={self.delay:g} and max_delay={self.max_delay:g} contradict each other: no delay is longer than "
                f"max_delay; give max_delay={self.delay:g} or more"
            )
        object.__setattr__(self, "on", _classes("on", self.on))
        object.__setattr__(self, "never", _classes("never", self.never))

    def wants(self, error: BaseException) -> bool:
        """Whether an error of this type may be retried at all."""
        return isinstance(error, tuple(self.on)) and not isinstance(error, tuple(self.never))

    def wait(self, failures: int, dice: float) -> float:
        """Seconds until the start after the ``failures``-th error, from 1. ``dice``: a random number from 0 to 1."""
        shift = 1 + self.jitter * (2 * dice - 1)
        if isinstance(self.delay, tuple):
            delays = cast("tuple[float, ...]", self.delay)
            return delays[min(failures, len(delays)) - 1] * shift
        base = float(self.delay)  # type: ignore[arg-type]
        ceiling = float(self.max_delay)  # type: ignore[arg-type]
        # The exponent is capped: 1000 ** 1000 overflows a float long before max_delay is reached.
        spread = min(base * self.factor ** min(failures - 1, 60), ceiling)
        return min(spread * shift, ceiling)


def with_parts(known: Retry, parts: Mapping[str, Any]) -> Retry:
    delay, longest = (parts.get(part, getattr(known, part)) for part in ("delay", "max_delay"))
    return replace(known, **{**parts, "max_delay": longest if isinstance(delay, tuple) else max(delay, longest)})


def _delay(value: Any) -> float | tuple[float, ...]:
    if not isinstance(value, list | tuple):
        return seconds(value, "the delay before a retry")
    if not value:
        raise OptionsError("delay=[] lists no delay: give one number of seconds, or one before each retry")
    return tuple(seconds(one, "each delay before a retry") for one in cast("Sequence[Any]", value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _classes(name: str, value: Any) -> tuple[type[BaseException], ...]:
    """Exception classes as ``isinstance`` takes them. Raises OptionsError: it is not a list or tuple of these."""
    one = value.__name__ if isinstance(value, type) else "TimeoutError"
    hint = f"give {name} a tuple of exception classes: Retry({name}=({one},))"
    if not isinstance(value, list | tuple):
        raise OptionsError(f"{hint}, not {value!r:.80}")
    classes: tuple[Any, ...] = tuple(cast("Sequence[Any]", value))
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise OptionsError(f"{hint}; {item!r:.80} is not an exception class")
    return classes


def policy(value: Retry | int) -> Retry:
    return value if isinstance(value, Retry) else Retry(max=value)


NO_RETRY = Retry(max=0)

# How a start ends whose code raised: it goes back without using up a retry, was cancelled, runs again, or failed.
Fate = Literal["interrupted", "cancelled", "retried", "failed"]


def fate(retry: Retry, failures: int, error: BaseException, stopped_by: str) -> Fate:
    """The one place that decides whether a job runs again after an error. ``failures``: how many earlier starts raised.
    ``error``: the exception, or the signal that a group of exceptions carries. ``stopped_by``: what was stopping the
    start; see :attr:`headrace.CurrentJob.stopped_by`.
    """
    # Whatever the code raised while it cleaned up: the shutdown ended it. A job may raise the signal itself when it
    # learns of a shutdown; at any other time that would be a start for nothing, again and again.
    if stopped_by == "interrupt" or (stopped_by == "shutdown" and isinstance(error, JobInterrupted)):
        return "interrupted"
    if isinstance(error, CancelRequested) or (stopped_by == "cancel" and isinstance(error, JobInterrupted)):
        return "cancelled"
    # These are not Exceptions, so the default ``on`` does not name them; only ``never`` can rule them out.
    limit = isinstance(error, SoftTimeLimit | JobInterrupted | RetryAfter)
    again = not isinstance(error, tuple(retry.never)) if limit else retry.wants(error)
    return "retried" if again and failures < retry.max else "failed"


def signal_in(error: BaseException) -> BaseException:
    """The error itself, or the signal (a limit, a cancellation, a snooze) that a group of exceptions carries. A task
    group wraps whatever passes through it, and a limit that a group carries is still a limit.
    """
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, Interrupt):
            return one
        left.extend(group_members(one))
    return error


def group_members(error: BaseException) -> tuple[BaseException, ...]:
    members: tuple[BaseException, ...] = ()
    if isinstance(error, BaseExceptionGroup):
        members = error.exceptions  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return members


def runs_again(retry: Retry, failures: int, error: BaseException, stopped_by: str) -> bool:
    signal = signal_in(error)
    again = ("retried", "interrupted")
    return isinstance(signal, Snooze) or fate(retry, failures, signal, stopped_by) in again
