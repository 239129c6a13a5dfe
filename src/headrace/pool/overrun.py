"""When a call that runs long is reported, and when its member is killed for it. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.errors import OptionsError


class Overrun(msgspec.Struct, frozen=True):
    """Warn about calls that run long.

    Attributes:
        after: seconds that a call runs before the first alert.
        limit: with a limit, alerts come every ``after`` seconds, and at the last of them the member is killed: 1 s and
            5 kill at 5 s. Without one the time doubles, 1, 2, 4 s and so on, and nobody is killed.
    """

    after: float
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.after > 0:
            raise OptionsError(f"Overrun(after={self.after!r}): seconds before the first alert, more than 0")
        if self.limit is not None and self.limit < 1:
            raise OptionsError(
                f"Overrun(limit={self.limit!r}): the alert that kills, counted from 1; None kills nobody"
            )

    def due(self, number: int) -> float:
        """Seconds that a call has run when its alert ``number``, counted from 1, is due."""
        return self.after * (number if self.limit else 2 ** (number - 1))

    def last(self, number: int) -> bool:
        """Whether this alert kills."""
        return self.limit is not None and number >= self.limit


class Alert(msgspec.Struct, frozen=True):
    """A call that ran too long, as a handler gets it.

    Attributes:
        kind: ``overrun``, or ``limit`` when its member is being killed.
        pool: the pool's name.
        member: the member's id.
        call: the function's name.
        seconds: how long it had run.
        number: which alert about this call, counted from 1.
    """

    kind: Literal["overrun", "limit"]
    pool: str
    member: int
    call: str
    seconds: float
    number: int
