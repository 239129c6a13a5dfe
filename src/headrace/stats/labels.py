"""Labels and fields: what may be one, and the groups that each belongs to.

Pure. A label is normalised once, here, for writing and for reading alike, so that what was stored as ``/about`` is
found as ``about``. ``/`` groups: what is added to ``views/product/44`` is also added to ``views/product`` and
``views``, and a field ``count/chrome/11`` to ``count/chrome`` and ``count``.
"""

from __future__ import annotations

from functools import lru_cache

from headrace.errors import OptionsError

LONGEST = 512
# Between a field and the number of a histogram's bucket.
MARK = "~"


@lru_cache(4096)
def label_of(text: str) -> str:
    """The label that a text names: its parts without the empty ones; empty for the root.

    Raises:
        OptionsError: it is no text, too long, or holds control characters.
    """
    return _clean(text, "label")


@lru_cache(4096)
def field_of(text: str) -> str:
    """The field that a text names.

    Raises:
        OptionsError: as for a label, and when nothing is left of it, or it holds a ``~``.
    """
    field = _clean(text, "field")
    if not field or MARK in field:
        raise OptionsError(f"field {text!r} cannot be used: it must have a part at least, and no {MARK}")
    return field


def _clean(text: str, what: str) -> str:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"a {what} must be a text, not {type(text).__name__}")
    if len(text) > LONGEST:
        raise OptionsError(f"{what} {text[:40]!r}... cannot be used: it has more than {LONGEST} characters")
    if any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise OptionsError(f"{what} {text!r} cannot be used: it holds control characters or half a surrogate pair")
    return "/".join(part for part in text.split("/") if part)


@lru_cache(4096)
def levels(label: str) -> tuple[str, ...]:
    """A normalised label and all that it is part of: ``a/b/c``, ``a/b``, ``a``. The root is part of nothing."""
    parts = label.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts), 0, -1))


@lru_cache(4096)
def groups(field: str) -> tuple[str, ...]:
    """A field as it was given, or a histogram's bucket of one, and all that it counts towards."""
    name, mark, bucket = field.partition(MARK)
    return tuple(level + mark + bucket for level in levels(field_of(name)))
