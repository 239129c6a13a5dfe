"""What may be a cached value's name, tags and function, and the marks of what is absent or being computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from headrace.errors import OptionsError
from headrace.model.ids import check_name

MAX_NAME = 512
MAX_TAGS = 8


class Absent:
    def __repr__(self) -> str:
        return "<absent>"


class Filling(NamedTuple):
    """How an absent value is made: the function, the value's seconds, its tags, seconds to wait for other processes."""

    make: Callable[[], Any]
    ttl: float
    tags: list[str]
    wait: float


def check_computing(make: Any) -> Callable[[], Any]:
    if not callable(make):
        if inspect.iscoroutine(make):
            make.close()
        raise OptionsError(f"make is a function without arguments, not {make!r}: leave out the () behind its name")
    return cast("Callable[[], Any]", make)


def checked(name: Any) -> str:
    """A name that may be cached under. Raises OptionsError."""
    if not isinstance(name, str) or not name:
        raise OptionsError(f"a cached value's name is a text that is not empty, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionsError(f"the name {name!r} is no valid Unicode: give another") from None
    if size > MAX_NAME:
        raise OptionsError(
            f"a cached value's name takes at most {MAX_NAME} bytes, {name[:40]!r}… takes {size}: hash what is long in "
            f"it"
        )
    return name


def check_tags(tags: Sequence[str]) -> list[str]:
    if isinstance(tags, str) or len(tags) > MAX_TAGS:
        raise OptionsError(f"tags is a list of at most {MAX_TAGS} names, not {tags!r}")
    return [check_name("tag", tag) for tag in dict.fromkeys(tags)]
