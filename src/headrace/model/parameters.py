"""The parameters of one function: how a call binds to them, and what messages call its arguments. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.errors import ArgumentError
from headrace.model.elsewhere import misplaced

_empty = inspect.Parameter.empty

Positions = tuple[Any, ...]
Keywords = dict[str, Any]
# Arguments: position or keyword, what messages call it, and its value.
Named = list[tuple[int | str, str, Any]]


class Parameters:
    """What one function takes.

    Attributes:
        task: the task's name, for messages.
        text: the signature for messages, such as ``(url, sizes=...)``.
        positions: names of those that may be given by position, in order.
        least: how many of them must be given.
        keywords: names of those that may be given by name.
        demanded: of those that may be given by name only, which must be.
        rest, others: names of ``*args`` and ``**kwargs``; None: there is none.
        bare: whether a call without arguments fits.
    """

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        parameters = list(inspect.signature(function).parameters.values())
        by_kind = {kind: [p.name for p in parameters if p.kind is kind] for kind in {p.kind for p in parameters}}
        either = by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
        only_keyword = by_kind.get(inspect.Parameter.KEYWORD_ONLY, [])
        demanded = {p.name for p in parameters if p.default is _empty}
        self.positions = by_kind.get(inspect.Parameter.POSITIONAL_ONLY, []) + either
        self.least = len([name for name in self.positions if name in demanded])
        self.keywords = {*either, *only_keyword}
        self.demanded = [name for name in only_keyword if name in demanded]
        self.rest = next(iter(by_kind.get(inspect.Parameter.VAR_POSITIONAL, [])), None)
        self.others = next(iter(by_kind.get(inspect.Parameter.VAR_KEYWORD, [])), None)
        self.bare = not self.least and not self.demanded
        shown = [p.replace(annotation=_empty, default=_empty if p.default is _empty else ...) for p in parameters]
        self.text = str(inspect.Signature(shown)).replace("=Ellipsis", "=...")

    @property
    def names(self) -> set[str]:
        return {*self.positions, *self.keywords, *filter(None, (self.rest, self.others))}

    def accepts(self, name: str, count: int) -> bool:
        if name in self.keywords:
            return name not in self.positions[:count]
        return self.others is not None and name not in self.positions

    def bound(self, args: Positions, kwargs: Keywords) -> tuple[Positions, Keywords]:
        """Arguments that fit, each by position where it can be; one call has one form. Raises ArgumentError: one is
        missing, unexpected, or given twice.
        """
        names = self.positions
        if len(args) > len(names) and self.rest is None:
            raise self._misfit(f"takes at most {len(names)} arguments by position, got {len(args)}")
        kwargs, more = dict(kwargs), list(args)
        for name in names[len(args) :]:
            if name not in kwargs or name not in self.keywords:
                break
            more.append(kwargs.pop(name))
        for name in kwargs:
            if name in names[: len(more)] and (name in self.keywords or self.others is None):
                raise self._misfit(f"got its argument {name!r} twice, by position and by name")
            if name not in self.keywords and self.others is None:
                raise self._misfit(f"takes no argument {name!r}", misplaced(self.task, name, _shown(kwargs[name])))
        for name in (*names[len(more) : self.least], *self.demanded):
            if name not in kwargs or name not in self.keywords:
                raise self._misfit(f"is missing its argument {name!r}")
        return tuple(more), kwargs

    def name_at(self, place: int | str) -> str:
        if isinstance(place, str):
            return place if place in self.keywords else self.others or place
        return self.positions[place] if place < len(self.positions) else self.rest or ""

    def named(self, args: Positions, kwargs: Keywords) -> Named:
        found = [
            (place, self.positions[place] if place < len(self.positions) else f"*{self.rest}", value)
            for place, value in enumerate(args)
        ]
        return [*found, *((name, name, value) for name, value in kwargs.items())]

    def by_name(self, args: Positions, kwargs: Keywords) -> dict[str, Any]:
        found: dict[str, Any] = dict(zip(self.positions, args, strict=False))
        if self.rest and len(args) > len(self.positions):
            found[self.rest] = args[len(self.positions) :]
        if not kwargs:
            return found
        found |= {name: value for name, value in kwargs.items() if name in self.keywords}
        if self.others and (more := {name: value for name, value in kwargs.items() if name not in self.keywords}):
            found[self.others] = more
        return found

    def culprit(self, path: str, kwargs: Keywords) -> tuple[str, str]:
        if path.startswith("[0]["):
            number, _, inside = path[4:].partition("]")
            position = int(number)
            if position < len(self.positions):
                return self.positions[position], inside
            return f"*{self.rest}", f"[{position - len(self.positions)}]{inside}"
        named = path.removeprefix("[1].")
        name = max((key for key in kwargs if named.startswith(key)), key=len, default=named)
        return name, named[len(name) :]

    def _misfit(self, text: str, hint: str = "") -> ArgumentError:
        return ArgumentError(f"{self.task} {text}: it is {self.task}{self.text}{hint}")


def unnamed(args: Positions, kwargs: Keywords) -> Named:
    """Arguments of a function that is not known: those by position are called by their number."""
    return [*((n, f"{n + 1}", value) for n, value in enumerate(args)), *((n, n, value) for n, value in kwargs.items())]


def _shown(value: object) -> object:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
