"""Types of the standard library, pydantic and numpy that MessagePack has no form for, and how each is sent.

Pure. Imports none of these packages: a value of such a type, or an annotation with it, has loaded its package already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple


class Unfit(ValueError):
    """A value does not fit, or cannot be sent; the text says types, no values."""


class Family(NamedTuple):
    """A class and those that extend it.

    Attributes:
        module, base: where the class is found, once its package is loaded.
        encode: gives what stands for a value.
        decode: makes a value of a class of the family again.
    """

    module: str
    base: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any, Any], Any]


def family_of(kind: type) -> Family | None:
    """The family that a class belongs to."""
    classes = kind.__mro__
    for family in FAMILIES:
        if getattr(sys.modules.get(family.module), family.base, object) in classes[:-1]:
            return family
    return None


def _of_text(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, str):
        raise Unfit(f"expected str, got {_kind(plain)}")
    return kind(plain)


# -- numpy ------------------------------------------------------------------------------------------------------------


def _from_scalar(value: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, (numpy.datetime64, numpy.timedelta64)):
        # A number and its unit, which is part of the type: 3 days and 72 hours are two values.
        unit, count = numpy.datetime_data(value.dtype)
        return [None if numpy.isnat(value) else int(value.view("int64")), unit, count]
    plain = value.item()
    if type(plain) not in (bool, int, float, str, bytes):
        raise Unfit("it is no number of 64 bits, no text and no time")
    return plain


def _to_scalar(kind: Any, plain: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    if issubclass(kind, (numpy.datetime64, numpy.timedelta64)):
        if isinstance(plain, str):
            return kind(plain)
        number, unit, count = plain
        return kind("NaT" if number is None else number, (unit, count))
    fits = {numpy.bool_: bool, numpy.integer: int, numpy.floating: (int, float), numpy.str_: str, numpy.bytes_: bytes}
    wanted: Any = next((fit for base, fit in fits.items() if issubclass(kind, base)), ())
    if not isinstance(plain, wanted) or (type(plain) is bool and wanted is not bool):
        raise Unfit(f"got {_kind(plain)}")
    made = kind(plain)
    if wanted is int and int(made) != plain:
        raise Unfit("out of its range")
    return made


# -- pydantic ---------------------------------------------------------------------------------------------------------


def _from_model(value: Any) -> Any:
    # Python's own types stay, since MessagePack has more of them than JSON. By name, whatever the aliases: they may
    # differ for reading and writing. What a model computes is left out, since it is no input.
    try:
        return value.model_dump(mode="python", round_trip=True, by_alias=not _by_name(), warnings=False)
    except ValueError as error:
        if str(error).startswith("Circular reference"):
            raise Unfit("it contains itself") from None
        raise


def _to_model(kind: Any, plain: Any) -> Any:
    names = {"by_alias": True, "by_name": True} if _by_name() else {}
    try:
        # Not strict: what arrives for a UUID is a text, for a set a list.
        return kind.model_validate(plain, strict=False, **names)
    except sys.modules["pydantic_core"].ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        declared = set(_declared(kind))
        text = "; ".join(_of_error(one, declared) for one in found[:3])
        raise Unfit(text + (f"; and {len(found) - 3} more" if len(found) > 3 else "")) from None


@cache
def _by_name() -> bool:
    """Whether this pydantic can be told to read fields by their names, whatever their aliases: 2.11 can."""
    major, minor = map(int, sys.modules["pydantic"].VERSION.split(".")[:2])
    return (major, minor) >= (2, 11)


def _of_error(error: Any, declared: set[str]) -> str:
    """Where a model does not fit, and how: types and names, no values. A key of a dictionary is a value."""
    place = ""
    for part in error["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if part in declared else "[...]"
    what: str = error["type"].replace("_", " ")
    return f"{place.removeprefix('.') or 'it'}: {what}" + (
        "" if what == "missing" else f", got {_kind(error['input'])}"
    )


def _declared(kind: Any) -> Iterator[str]:
    """Names and aliases of the fields of a model, and of those within it."""
    seen, stack = set[Any](), [kind]
    while stack:
        one = stack.pop()
        stack += getattr(one, "__args__", ())
        fields: dict[str, Any] = getattr(one, "model_fields", {})
        if one not in seen and fields:
            seen.add(one)
            for name, field in fields.items():
                yield from (one for one in (name, field.alias, field.validation_alias) if isinstance(one, str))
                stack.append(field.annotation)


def _kind(value: object) -> str:
    return type(value).__name__


FAMILIES = (
    Family("pydantic.main", "BaseModel", _from_model, _to_model),
    Family("pathlib", "PurePath", str, _of_text),
    Family("zoneinfo", "ZoneInfo", str, _of_text),
    Family("numpy", "generic", _from_scalar, _to_scalar),
    Family("ipaddress", "_IPAddressBase", str, _of_text),
    # Fields of models have them.
    Family("pydantic.networks", "_BaseUrl", str, _of_text),
    Family("pydantic.networks", "_BaseMultiHostUrl", str, _of_text),
)
