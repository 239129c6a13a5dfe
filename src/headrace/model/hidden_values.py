"""Which values of arguments, results, errors and logs are hidden: on pages, by commands, in logs and traces. Pure.

1. ``Secret`` marks arguments and results that are never shown. Their places travel with each job, as a field of its
   record, so that a page without the task's code hides them too.
2. :class:`Redactor` hides by name (``password``, ``api_key``) at any depth, and the password of a URL in any text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, TypeAlias, TypeVar, cast, get_args

import msgspec

from headrace.model import codec
from headrace.settings import HIDDEN, Settings

T = TypeVar("T")


class SecretMark:
    """Marks what must not be shown, in an annotation."""

    def __repr__(self) -> str:
        return "Secret"


# The value of an argument or result that is never shown: ``def login(user: str, password: Secret[str])``. To type
# checkers, and to the code of the task, ``Secret[str]`` is ``str``.
Secret: TypeAlias = Annotated[T, SecretMark()]

# Shorter texts are not searched for in others: they would hide innocent words.
SHORTEST = 4
# Of the lines of a text, which a traceback shows one by one.
_SHORTEST_LINE = 8

# Stands among the places of secret values: all arguments, the result and the texts of errors are encrypted.
ALL = "!"


def encrypts(places: str) -> bool:
    return ALL in places.split()


def with_all(places: str) -> str:
    return places if encrypts(places) else f"{places} {ALL}".strip()


def has_secret_mark(annotation: Any) -> bool:
    return isinstance(annotation, SecretMark) or any(has_secret_mark(part) for part in get_args(annotation))


def hides(places: str, place: str) -> bool:
    parts = places.split()
    if place in parts:
        return True
    if place.isdecimal():
        return any(part[1:].isdecimal() and int(place) >= int(part[1:]) for part in parts if part[0] == "*")
    return "**" in parts


def named_shown(places: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: HIDDEN if places and hides(places, name) else value for name, value in arguments.items()}


def shown(places: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    numbered = named_shown(places, {str(n): value for n, value in enumerate(args, 1)})
    return list(numbered.values()), named_shown(places, kwargs)


def texts_of(places: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts by which secret arguments would show in a message, a traceback or a log; long ones first."""
    values = [value for n, value in enumerate(args, 1) if hides(places, str(n))]
    values += [value for name, value in kwargs.items() if hides(places, name)]
    found: set[str] = set()
    for text in _leaves(values):
        lines = text.splitlines()
        found.update((text, repr(text)[1:-1], json.dumps(text)[1:-1]))
        found.update(line for line in lines if len(lines) > 1 and len(line) >= _SHORTEST_LINE)
    return tuple(sorted((text for text in found if len(text) >= SHORTEST), key=lambda text: (-len(text), text)))


def hiding(places: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[str], str]:
    """What takes the secret arguments of a start out of a text; ``str`` where it has none."""
    if not places:
        return str
    if encrypts(places):
        return lambda text: codec.ENCRYPTED if text else ""
    found: list[tuple[str, ...]] = []

    def hide(text: str) -> str:
        # Looked at when the first text comes: most starts write none.
        if not found:
            found.append(texts_of(places, args, kwargs))
        return without(found[0], text)

    return hide


def hidden_in(places: str, data: bytes, text: str) -> str:
    """A text without the secret ones of these stored arguments; nothing of it where their values are encrypted."""
    if not places or not text:
        return text
    if encrypts(places) or codec.holds_sealed(codec.signed_parts(data)[0]):
        return codec.ENCRYPTED
    try:
        return without(texts_of(places, *codec.arguments(data)), text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


def without(texts: Iterable[str], text: str) -> str:
    for secret in texts:
        text = text.replace(secret, HIDDEN)
    return text


def map_texts(value: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {key: map_texts(one, hide) for key, one in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [map_texts(one, hide) for one in cast("Sequence[Any]", value)]
    return hide(value) if isinstance(value, str) else value


def _leaves(value: Any) -> Iterator[str]:
    try:
        left = [msgspec.to_builtins(value, enc_hook=str, builtin_types=(bytes,))]
    except Exception:  # noqa: BLE001 - a class of theirs raises while it is looked into
        left = [str(value)]
    while left:
        one: Any = left.pop()
        if isinstance(one, Mapping):
            left += one.values()  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += cast("Iterable[Any]", one)
        elif isinstance(one, (bytes, bytearray, memoryview)):
            yield bytes(cast("bytes", one)).decode("utf-8", "backslashreplace")
        elif one is not None and not isinstance(one, bool):
            yield str(one)


NAMES = tuple(Settings().redact.split(","))

_URL_PASSWORD = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}@")
# Values that are nested deeper are not shown.
DEEPEST = 40


class Redactor:
    """Hides values by the names that they stand under."""

    def __init__(self, names: Iterable[str] = NAMES) -> None:
        """Make one. ``names``: parts of names, in any case; ``-`` and ``_`` are the same."""
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
        return cls(settings.redact.split(","))

    def hides(self, name: str) -> bool:
        plain = _plain(name)
        return any(part in plain for part in self._parts)

    def value(self, value: Any, depth: int = 0) -> Any:
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
        text = _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)
        return text if self._named is None else self._named.sub(rf"\1{HIDDEN}", text)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
