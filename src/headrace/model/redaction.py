"""Which values of arguments, results, errors and logs are hidden: on pages, by commands, in logs and traces. Pure.

A name decides (``password``, ``api_key``) at any depth, and so does the password of a URL in any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

import msgspec

from headrace.settings import HIDDEN, Settings

NAMES = tuple(Settings().redact.split(","))

_URL_PASSWORD = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}@")
# Values that are nested deeper are not shown.
DEEPEST = 40


class Redactor:
    """Hides values by the names that they stand under."""

    def __init__(self, names: Iterable[str] = NAMES) -> None:
        """Make one.

        Args:
            names: parts of names, in any case; ``-`` and ``_`` are the same.
        """
        parts = sorted({_plain(name) for name in names if name.strip()})
        one = "|".join(re.escape(part).replace("_", "[-_ ]?") for part in parts)
        self._parts = parts
        # What follows such a name in a text: ``password=hunter2``, ``'token': 'abc'``, ``Authorization: Bearer abc``.
        value = r"""(?:"[^"\n]{0,500}"?|'[^'\n]{0,500}'?|(?:bearer|basic)\s[^\s,;)}\]]{1,500}|[^\s,;)}\]]{1,500})"""
        # Nothing in it may repeat without a bound: a megabyte of one letter must not hold the page up.
        named = rf"((?:{one})[\w-]{{0,40}}[\"']?\s{{0,4}}[=:]\s{{0,4}}){value}"
        self._named = re.compile(named, re.IGNORECASE) if parts else None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The one that the setting ``redact`` describes."""
        return cls(settings.redact.split(","))

    def hides(self, name: str) -> bool:
        """Whether what stands under this name is hidden."""
        plain = _plain(name)
        return any(part in plain for part in self._parts)

    def value(self, value: Any, depth: int = 0) -> Any:
        """The value with what is to be hidden replaced, at any depth; a record becomes a mapping."""
        if depth > DEEPEST:
            return "…"
        if isinstance(value, msgspec.Struct):
            value = msgspec.to_builtins(value, enc_hook=str)
        if isinstance(value, Mapping):
            mapping: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
            items = mapping.items()
            return {
                key: HIDDEN if isinstance(key, str) and self.hides(key) else self.value(one, depth + 1)
                for key, one in items
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.value(one, depth + 1) for one in cast("Iterable[Any]", value)]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """The text without passwords in URLs and without what follows such a name."""
        text = _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)
        return text if self._named is None else self._named.sub(rf"\1{HIDDEN}", text)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
