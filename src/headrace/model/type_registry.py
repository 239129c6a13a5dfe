"""Types that MessagePack has no form for, and how each is sent. Only :class:`Types` keeps state."""

from __future__ import annotations

import binascii
import contextlib
import enum
import importlib
import inspect
import io
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from inspect import Parameter, get_annotations, isroutine, unwrap
from pathlib import Path
from typing import Any, NamedTuple, Never, TypeVar, cast

import msgspec
from msgspec import inspect as kinds

from headrace.errors import OptionsError


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
    classes = kind.__mro__
    for family in FAMILIES:
        if getattr(sys.modules.get(family.module), family.base, object) in classes[:-1]:
            return family
    return None


def _of_text(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, str):
        raise Unfit(f"expected str, got {_kind(plain)}")
    return kind(plain)


def _from_scalar(value: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, (numpy.datetime64, numpy.timedelta64)):
        # A number and its unit, which is part of the type: 3 days and 72 hours are two values.
        unit, count = numpy.datetime_data(value.dtype)
        return [None if numpy.isnat(value) else int(value.view("int64")), unit, count]
    plain = value.item()
    if type(plain) not in (bool, int, float, str, bytes):
        raise Unfit("it is not a number of 64 bits, a text or a time")
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


def _from_array(value: Any) -> bytes:
    # numpy's own format says type, shape and order; what extends an array has more than that.
    numpy: Any = sys.modules["numpy"]
    if type(value) is not numpy.ndarray or value.dtype.hasobject:
        raise Unfit("it is not a plain array of numbers, texts or times")
    file = io.BytesIO()
    numpy.lib.format.write_array(file, value, allow_pickle=False)
    return file.getvalue()


def _to_array(_: Any, plain: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    if isinstance(plain, list):
        return numpy.array(plain)
    return numpy.lib.format.read_array(io.BytesIO(_bytes(plain)), allow_pickle=False)


def _from_frame(value: Any) -> bytes:
    if type(value) is not sys.modules["pandas"].DataFrame or len(set(map(type, value.columns))) > 1:
        raise Unfit("it is not a plain DataFrame whose columns have names of one type")
    arrow, file = _arrow(), io.BytesIO()
    table = arrow.Table.from_pandas(value, nthreads=1)
    with arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()


def _to_frame(kind: Any, plain: Any) -> Any:
    if isinstance(plain, list):
        return kind(plain)
    return _arrow().ipc.open_stream(_bytes(plain)).read_pandas(use_threads=False)


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise Unfit("it travels as Arrow does: pip install pyarrow") from None


def _bytes(plain: Any) -> bytes:
    if isinstance(plain, str):
        return binascii.a2b_base64(plain)  # as JSON has bytes
    if not isinstance(plain, bytes):
        raise Unfit(f"expected bytes, got {_kind(plain)}")
    return plain


def _from_model(value: Any) -> Any:
    # Python's own types stay, since MessagePack has more of them than JSON. By name, whatever the aliases: they may
    # differ for reading and writing. What a model computes is left out, since it is not an input.
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
    major, minor = map(int, sys.modules["pydantic"].VERSION.split(".")[:2])
    return (major, minor) >= (2, 11)


def _of_error(error: Any, declared: set[str]) -> str:
    place = ""
    for part in error["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if part in declared else "[...]"
    what: str = error["type"].replace("_", " ")
    return f"{place.removeprefix('.') or 'it'}: {what}" + (
        "" if what == "missing" else f", got {_kind(error['input'])}"
    )


def _declared(kind: Any) -> Iterator[str]:
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
    Family("numpy", "ndarray", _from_array, _to_array),
    Family("pandas", "DataFrame", _from_frame, _to_frame),
    Family("ipaddress", "_IPAddressBase", str, _of_text),
    # Fields of models have them.
    Family("pydantic.networks", "_BaseUrl", str, _of_text),
    Family("pydantic.networks", "_BaseMultiHostUrl", str, _of_text),
)


T = TypeVar("T")

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class Types:
    """How values are sent that MessagePack has no form for: ``app.types``.

    Known without being added: pydantic models, ``pathlib`` paths, ``ZoneInfo``, IP addresses, numpy scalars and arrays,
    pandas DataFrames.
    """

    def __init__(self) -> None:
        self._added: dict[type, tuple[Encode, Decode]] = {}
        # Classes that an annotation asked for in vain: what is built of it is kept, so they can be added no more.
        self._missed: set[type] = set()
        self.encoder = msgspec.msgpack.Encoder(enc_hook=self.encode)
        # Of equal values the bytes are equal, too.
        self.sorting_encoder = msgspec.msgpack.Encoder(enc_hook=self.encode, order="sorted")

    def __reduce__(self) -> Never:
        # All that an application gives leads here, and its own refusal would name a class that no program knows.
        raise TypeError(
            "an application and its handles stay in their process, and can be neither pickled nor copied deeply: "
            "pass job.id, and ask the other process's application for app.job(id)"
        )

    def add(self, cls: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
        """Let values of a class be arguments, results and cached values, at any depth.

        Values of classes that extend it are sent too, and arrive as this class. Call it where the application is made,
        in programs and workers alike: before the first job that uses the class. Raises OptionsError: it is not a class,
        has a form already, was added or used before, or a function is none, or is a coroutine function.

        Args:
            cls: the class. What MessagePack has a form for (numbers, texts, dataclasses, ...) cannot be added.
            encode: gives what stands for a value: numbers, texts, bytes, lists or others that can be sent.
            decode: makes the value again of what arrives, which is plain: what an argument without an annotation
                would be, a list for a tuple. Where it raises, the argument does not fit; it is also called at the
                enqueue.
        """
        if not isinstance(cls, type) or typing.get_origin(cls) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"app.types.add takes a class, not {cls!r:.80}")
        for name, function in (("encode", encode), ("decode", decode)):
            if not callable(function) or inspect.iscoroutinefunction(function):
                raise OptionsError(f"{name} of {full_name(cls)} must be an ordinary function, not {function!r:.80}")
        if cls is object or not isinstance(kinds.type_info(cls), kinds.CustomType):
            raise OptionsError(f"{full_name(cls)} is sent as it is: nothing can be added for it")
        if self._added.get(cls, (encode, decode)) != (encode, decode):
            raise OptionsError(f"{full_name(cls)} was added before, with other functions: add it once")
        if cls in self._missed:
            raise OptionsError(
                f"{full_name(cls)} was used before it was added: call app.types.add where the application is made"
            )
        self._added[cls] = (encode, decode)

    def joined(self, other: Types) -> Types:
        """What both know, without a change of either. Raises OptionsError: one class, added with two functions."""
        made = Types()
        for cls, functions in (*self._added.items(), *other._added.items()):
            made.add(cls, *functions)
        return made

    def join(self, other: Types) -> None:
        """Know what the other one knows, and have it know what this one knows, from now on; see :meth:`joined`."""
        other._added.update(self._added)
        self._added, self._missed = other._added, other._missed

    def knows(self, kind: Any) -> bool:
        """Whether there is a way back to this class, for an annotation that is about to be used."""
        cls = typing.get_origin(kind) or kind
        if cls is object or cls in self._added or family_of(cls) is not None:
            return True
        self._missed.add(cls)
        return False

    def has_added(self, kind: Any) -> bool:
        return (typing.get_origin(kind) or kind) in self._added

    def encode(self, value: Any) -> Any:
        """What stands for a value that MessagePack has no form for. Raises TypeError: nothing, or its encode raised."""
        kind = cast(Any, type(value))
        encode = next((self._added[base][0] for base in kind.__mro__ if base in self._added), None)
        if encode is None:
            if (family := family_of(kind)) is None:
                raise TypeError(full_name(kind))
            encode = family.encode
        try:
            made = encode(value)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the user's code
            raise TypeError(f"{full_name(kind)}: {_fault(error)}") from None
        if type(made) is kind:
            raise TypeError(f"the encode of {full_name(kind)} gives such a value again")
        return made

    def decode(self, kind: Any, plain: Any) -> Any:
        """The value of what arrived, for a class that msgspec does not know. Raises ValueError: it does not fit."""
        if kind is object:
            return plain
        kind = typing.get_origin(kind) or kind
        pair = self._added.get(kind)
        family = family_of(kind) if pair is None else None
        try:
            if pair is not None:
                return pair[1](plain)
            if family is not None:
                return family.decode(kind, plain)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the user's code
            raise ValueError(f"not a valid {kind.__name__} ({_fault(error)})") from None
        raise ValueError(f"nothing says how {full_name(kind)} is read: app.types.add(...) does")


def full_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _fault(error: Exception) -> str:
    """What is told of an error: its type and place, since its text may hold the value."""
    if isinstance(error, Unfit):
        return str(error)
    line = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(line.filename)
    return type(error).__name__ + (f" at {file.name}:{line.lineno}" if file.parent != Path(__file__).parent else "")


class Unresolved:
    """An annotation whose names are not known at run time, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    inner: Any = unwrap(function.func if isinstance(function, partial) else function)
    if not isroutine(inner) and not isinstance(inner, type):
        # The annotations of an object are those of its fields.
        inner = type(inner).__call__
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation is any expression of the user's
        return {name: _alone(inner, name, value) for name, value in get_annotations(inner).items()}


def _alone(function: Any, name: str, annotation: Any) -> Any:
    holder = type("holder", (), {"__annotations__": {name: annotation}})
    try:
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)[name]
    except Exception as error:  # noqa: BLE001
        return Unresolved(f"{annotation!r} cannot be resolved: {error}")


def reason_unchecked(annotation: Any, types: Types) -> str:
    if isinstance(annotation, Unresolved):
        return annotation.reason
    try:
        msgspec.msgpack.Decoder(annotation)
        inner = (one.cls for one in _within(kinds.type_info(annotation)) if isinstance(one, kinds.CustomType))
        unknown = next((cls for cls in inner if not types.knows(cls)), None)
    except Exception as error:  # noqa: BLE001 - msgspec raises what it meets
        return str(error)
    return f"MessagePack has no {full_name(unknown)}: app.types.add(...) says how one is sent" if unknown else ""


def returned(function: Callable[..., Any], types: Types) -> Any:
    """The annotation of what a function returns; ``Parameter.empty`` where there is none to convert values to."""
    annotation = hints(function).get("return", Parameter.empty)
    return Parameter.empty if annotation is Parameter.empty or reason_unchecked(annotation, types) else annotation


def leaves_type_open(annotation: Any) -> bool:
    return any(
        isinstance(kind, kinds.AnyType) or (isinstance(kind, kinds.CustomType) and kind.cls is object)
        for kind in _within(kinds.type_info(annotation))
    )


def has_records(annotation: Any, types: Types | None = None) -> bool:
    """Whether values of an annotation hold records whose classes may be extended; not those that ``types`` added."""
    kinds_of_records = (kinds.StructType, kinds.DataclassType, kinds.NamedTupleType, kinds.TypedDictType)
    return any(
        isinstance(kind, kinds_of_records)
        or (
            isinstance(kind, kinds.CustomType)
            and hasattr(kind.cls, "model_fields")
            and not (types is not None and types.has_added(kind.cls))
        )
        for kind in _within(kinds.type_info(annotation))
    )


def _within(kind: Any) -> Iterator[kinds.Type]:
    yield kind
    for name in ("item_type", "key_type", "value_type", "type"):
        inner = getattr(kind, name, None)
        if isinstance(inner, kinds.Type):
            yield from _within(inner)
    for name in ("item_types", "types"):
        for inner in getattr(kind, name, ()):
            yield from _within(inner)


_SIMPLE = frozenset({int, bool, str, bytes, type(None)})


def sorted_form(value: object, types: Types) -> bytes:
    """The bytes of a value that can be sent: of equal values the same, in each process."""
    if _is_sortable(value, types):
        with contextlib.suppress(TypeError):
            # msgspec sorts no keys but texts, and no members of a set that cannot be compared: enumerations, 1 and "a".
            return types.sorting_encoder.encode(value)
    return _form(value, types)


def _is_sortable(value: object, types: Types) -> bool:
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        one, is_member = stack.pop()
        if type(one) in _SIMPLE:
            continue
        if is_member and (isinstance(one, frozenset) or one != one):  # noqa: PLR0124 - so NaN is told
            return False
        if isinstance(one, (set, frozenset)):
            stack += [(member, True) for member in cast("set[Any]", one)]
        elif isinstance(one, (list, tuple)):
            stack += [(item, is_member) for item in cast("list[Any]", one) if type(item) not in _SIMPLE]
        elif isinstance(one, Mapping):
            mapping: Mapping[Any, Any] = one  # pyright: ignore[reportUnknownVariableType]
            stack += [(item, is_member) for item in mapping.values()]
        elif fields := list(_fields(one)):
            stack += [(getattr(one, name), is_member) for name in fields]
        else:
            with contextlib.suppress(TypeError):
                stack.append((types.encode(one), is_member))
    return True


def orders(plain: object) -> list[list[Any]]:
    found, left = list[list[Any]](), [plain]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            entries: dict[Any, Any] = one  # pyright: ignore[reportUnknownVariableType]
            if (keys := [*entries]) != sorted(keys, key=repr):
                found.append(keys)
            left += entries.values()
        elif isinstance(one, list):
            left += one  # pyright: ignore[reportUnknownVariableType]
    return sorted(found, key=repr)


def _form(value: Any, types: Types) -> bytes:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        parts: Any = ["dict", sorted((_form(key, types), _form(one, types)) for key, one in mapping.items())]
    elif isinstance(value, (set, frozenset)):
        parts = ["set", sorted(_form(one, types) for one in cast("set[Any]", value))]
    elif isinstance(value, (list, tuple)):
        parts = ["list", [_form(one, types) for one in cast("list[Any]", value)]]
    elif fields := list(_fields(value)):
        parts = ["record", [(name, _form(getattr(value, name), types)) for name in fields]]
        if isinstance(value, msgspec.Struct):
            parts.append(value.__struct_config__.tag)
    else:
        try:
            return _form(types.encode(value), types)
        except TypeError:
            # It is not one of theirs: MessagePack has a form for it.
            return types.encoder.encode(value)
    return types.encoder.encode(parts)


def _fields(value: Any) -> Iterator[str]:
    kind = cast(Any, type(value))
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    names = names or [one.name for one in getattr(kind, "__attrs_attrs__", ())]
    return (name for name in names if hasattr(value, name))
