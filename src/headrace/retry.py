"""When a failed job runs again: a policy and one pure decision. Time and dice are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import OptionsError
from headrace.settings import Duration, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a job that raised runs again.

    Attributes:
        max: further starts after an error, 0 to 1000.
        delay: seconds before the first of them.
        factor: each later delay is this many times the one before, at least 1.
        max_delay: no delay is longer, seconds.
        jitter: each delay is moved by up to this share of itself, 0 to 1, so that a herd spreads out.
        on: only these exceptions are retried.
        never: these are not, even when ``on`` names them.
    """

    max: int = 3
    delay: Duration = 1.0
    factor: float = 2.0
    max_delay: Duration = 3600.0
    jitter: float = 0.1
    on: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or not 0 <= self.max <= 1000:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"retries must be a whole number from 0 to 1000, not {self.max!r}")
        if not 1 <= self.factor <= 1000:
            raise OptionsError(f"the factor between retries must be from 1 to 1000, not {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise OptionsError(f"jitter is a share of the delay, from 0 to 1, not {self.jitter!r}")
        object.__setattr__(self, "delay", seconds(self.delay, "the delay before a retry"))
        object.__setattr__(self, "max_delay", seconds(self.max_delay, "the longest delay before a retry"))

    def wants(self, error: BaseException) -> bool:
        """Whether an error of this type may be retried at all."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def wait(self, failures: int, dice: float) -> float:
        """Seconds until the start after the ``failures``-th error (counted from 1).

        Args:
            dice: a random number from 0 to 1.
        """
        base = float(self.delay)  # type: ignore[arg-type]
        ceiling = float(self.max_delay)  # type: ignore[arg-type]
        # The exponent is capped: 1000 ** 1000 overflows a float long before max_delay is reached.
        spread = min(base * self.factor ** min(failures - 1, 60), ceiling)
        return min(spread * (1 + self.jitter * (2 * dice - 1)), ceiling)


def policy(value: Retry | int) -> Retry:
    """A number of retries as a policy with the default delays."""
    return value if isinstance(value, Retry) else Retry(max=value)
