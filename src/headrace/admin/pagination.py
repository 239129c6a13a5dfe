"""What all lists have in common: how many rows, in which order, between which times, and where the last page ended.

Decides what may be asked; asks the store nothing.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from headrace.errors import OptionsError
from headrace.model.option_checks import moment

Order = Literal["asc", "desc"]

# Rows of one page at most: what a page costs must be bounded, whoever asks.
MOST = 1000


def check_limit(limit: int) -> int:
    """``limit``, if a page may have so many rows.

    Raises:
        OptionsError: it is not a whole number from 1 to 1000.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"limit must be a whole number from 1 to {MOST}, not {limit!r}")
    return limit


def descending(order: str) -> bool:
    """Whether the newest come first.

    Raises:
        OptionsError: there is no such order.
    """
    if order not in ("asc", "desc"):
        raise OptionsError(f"order must be asc or desc, not {order!r}")
    return order == "desc"


def window(since: datetime | None, until: datetime | None) -> tuple[int | None, int | None]:
    """Both bounds in microseconds since 1970, the earlier one first whatever the order of the page.

    Raises:
        OptionsError: one has no time zone, or the window ends before it begins.
    """
    low = None if since is None else moment("since", since)
    high = None if until is None else moment("until", until)
    if since is not None and until is not None and since > until:
        raise OptionsError(
            f"since={since} is later than until={until}: since is the earlier one in both orders, so swap the two"
        )
    return low, high


def cursor_of(score: int, id: str, index: str) -> str:
    """Where a page ended, as the text that ``next`` is; ``index`` names the structure that it was read from."""
    return f"{score}~{id}~{index}"


def position(text: str, name: str) -> tuple[int, str, str]:
    """Score, id and index of a cursor that was given as the argument ``name``.

    Raises:
        OptionsError: no page gave this text.
    """
    try:
        score, id, index = text.split("~", 2)
        return int(score), id, index
    except (ValueError, AttributeError):
        raise OptionsError(f"{name}={text!r} is not the `next` of a page") from None


_STREAM_ID = re.compile(r"[0-9]{1,15}(-[0-9]{1,15})?", re.ASCII)


def stream_position(after: str | None) -> str:
    """The id of an entry of a stream behind which a page begins; empty for none.

    Raises:
        OptionsError: no entry has such an id.
    """
    if after is None:
        return ""
    if not isinstance(after, str) or not _STREAM_ID.fullmatch(after):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"after={after!r:.80} is not the id of an act or event, nor the `next` of a page")
    return after
