"""The envelope: one unsent job as bytes, which other programs may keep, carry and write. Pure."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from headrace.errors import EnvelopeError, OptionsError
from headrace.model import codec
from headrace.model.form import RETRY_PARTS, Form, Options, form_of, of_call, of_task, overrides_of
from headrace.model.headers import packed as packed_headers
from headrace.model.headers import shown
from headrace.model.ids import check_name, is_ordered, is_plain, is_unique, shard_of
from headrace.model.option_checks import OptionRow
from headrace.model.options import ROWS
from headrace.model.retry import Retry
from headrace.model.unique_rules import UniqueRule
from headrace.settings import CENTURY, microseconds


class OptionField(msgspec.Struct, frozen=True):
    """How an option stands in an envelope.

    Attributes:
        kind: its type.
        default: what stands for an option that is not given.
        meaning: for the reference.
        override: it is one of those that a record keeps in ``options``.
        seconds: there in seconds, here in microseconds.
        given: makes what the caller of ``task.options(...)`` would have given.
    """

    kind: Any
    default: Any
    meaning: str
    override: bool
    seconds: bool
    given: Callable[[Any], Any]


def _limit(microseconds: int) -> float:
    return math.inf if microseconds == 0 else microseconds / 1e6


def _option_field(name: str, row: OptionRow) -> OptionField:
    if name == "headers":
        return OptionField(dict[str, str], {}, row.envelope, False, False, dict)
    if name == "unique":
        return OptionField(UniqueRule | None, None, row.envelope, False, False, _same)
    override, timed = row.travels == "override", row.unit in ("time", "limit")
    kind = int if timed else row.kind
    default = None if override and kind is not str else row.default
    back = _limit if row.unit == "limit" else _seconds if row.unit in ("wait", "time") else _same
    return OptionField(kind if default is not None else kind | None, default, row.envelope, override, timed, back)


def _part_field(name: str, meaning: str) -> OptionField:
    timed = name in ("retry_delay", "retry_max_delay")
    kind: Any = int if timed else float
    if name == "retry_delay":
        kind = int | tuple[int, ...]
    return OptionField(kind | None, None, meaning, True, timed, _seconds if timed else _same)


def _seconds(microseconds: Any) -> Any:
    if isinstance(microseconds, tuple):
        return tuple(_seconds(one) for one in cast("tuple[int, ...]", microseconds))
    return microseconds / 1e6


def _same(value: Any) -> Any:
    return value


def _option_fields() -> Iterator[tuple[str, OptionField]]:
    for name, row in ROWS.items():
        if row.envelope:
            yield name, _option_field(name, row)
        if name == "retries":
            yield from ((part, _part_field(part, meaning)) for part, meaning in _RETRIES.items())


_RETRIES = {
    "retry_delay": "microseconds before the first of them, or an array: before each of them",
    "retry_factor": "each later delay is this many times the one before, 1 to 1000",
    "retry_max_delay": "no delay is longer, microseconds",
    "retry_jitter": "each delay moves by up to this share of itself, 0 to 1",
}
# Options as fields, by name, in the order of the table.
OPTION_FIELDS = dict(_option_fields())

if TYPE_CHECKING:
    from headrace.model.sealing import Seal

    class Envelope(msgspec.Struct, frozen=True):
        """The fields of an envelope. Durations and times are integers, in microseconds; None means not given.

        A field for each option that envelopes have, besides these.
        """

        v: int
        id: str
        task: str
        args: list[msgspec.Raw] = []
        kwargs: dict[str, msgspec.Raw] = {}
        form: Literal["msgpack", "json"] = "msgpack"
        sealed: bytes = b""

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    _own = [
        ("v", int), ("id", str), ("task", str), ("args", list[msgspec.Raw], []), ("kwargs", dict[str, msgspec.Raw], {}),
        ("form", Literal["msgpack", "json"], "msgpack"), ("sealed", bytes, b""),
    ]  # fmt: skip
    Envelope = msgspec.defstruct(
        "Envelope", [*_own, *((name, field.kind, field.default) for name, field in OPTION_FIELDS.items())],
        frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, module=__name__,
    )  # fmt: skip


VERSION = 1
# Bytes that an envelope may take besides its arguments.
MOST_BYTES = 16_384
# The largest integer that every language reads exactly.
MOST_INTEGER = 2**53 - 1


class Letter(msgspec.Struct, frozen=True):
    """An envelope that was read and checked.

    Attributes:
        id: of the job.
        args: ``[args, kwargs]`` as they are stored: MessagePack or JSON.
        options: what it asks for; ``headers`` among them.
        form: everything that is stored of it but id and arguments.
    """

    id: str
    args: bytes
    options: Options
    form: Form


class _Version(msgspec.Struct):
    v: Any = None


_encode = msgspec.msgpack.Encoder().encode
_halves = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw]])
_envelope = msgspec.msgpack.Decoder(Envelope)
_asked = operator.attrgetter("task", *(name for name in OPTION_FIELDS if name != "headers"))
_version = msgspec.msgpack.Decoder(_Version)


def packed(id: str, args: bytes, form: Form, request_id: str, name: str = "", seal: Seal | None = None) -> bytes:
    """A job as an envelope. ``args``: ``[args, kwargs]`` as they are stored: MessagePack or JSON. ``name``: of a unique
    job; it travels, since its reader may not have the code that makes it. ``seal``: of the application, if it has one.
    """
    if form.after:
        raise OptionsError("no envelope has a job that follows others: leave after= out, or enqueue it directly")
    if seal is not None:
        args = seal.arguments(form, id, args)
    if form.unique:
        form = msgspec.structs.replace(form, unique=msgspec.structs.replace(form.unique, text=name, by=()))
    if codec.signed_parts(args)[1] or codec.sealed_part(args) is not None:
        return _encode(Envelope(v=VERSION, id=id, task=form.task, sealed=args, **_fields(form, request_id)))
    is_json = codec.is_json(args)
    positions, named = _halves.decode(_encode(codec.arguments(args)) if is_json else args)
    return _encode(
        Envelope(
            v=VERSION, id=id, task=form.task, args=positions, kwargs=named, form="json" if is_json else "msgpack",
            **_fields(form, request_id),
        )
    )  # fmt: skip


def _fields(form: Form, request_id: str) -> dict[str, Any]:
    own = overrides_of(form)
    found: dict[str, Any] = {"request_id": request_id, "headers": dict(shown(form.headers))}
    for name, field in OPTION_FIELDS.items():
        if name not in found:
            value = getattr(own if field.override else form, name)
            found[name] = _duration(value) if field.seconds else field.default if value is None else value
    return found


def _duration(seconds: Any) -> Any:
    if isinstance(seconds, tuple):
        return tuple(_duration(one) for one in cast("tuple[float, ...]", seconds))
    # 0 says that there is no limit: the shortest one is a microsecond.
    return None if seconds is None else max(1, microseconds(seconds)) if seconds else 0


class EnvelopeReader:
    """Reads envelopes; options that repeat are checked once.

    Attributes:
        most: bytes of arguments that are let pass.
        shards: of the store that they are for.
    """

    def __init__(self, most: int, shards: int) -> None:
        self.most = most
        self.shards = shards
        self._known: dict[tuple[Any, ...], tuple[Options, Form]] = {}

    def read(self, data: object, row: int) -> Letter:
        """One envelope. ``row``: its place, for errors. Raises EnvelopeError: what is wrong, in which row and field."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise EnvelopeError(f"envelope {row} is of type {type(data).__name__}: give the bytes of job.pack()", row)
        data = bytes(cast(Any, data))
        if len(data) > self.most + MOST_BYTES:
            raise _refused(row, "", f"it takes {len(data):,} bytes, and {self.most + MOST_BYTES:,} are the most")
        found = _decoded(data, row)
        try:
            check_name("task", found.task)
            self._check_id(found)
            options, form = self._options(found)
            args = self._arguments(found)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            raise _refused(row, found.id, str(error)) from None
        return Letter(found.id, args, options, form)

    def _arguments(self, found: Envelope) -> bytes:
        what = f"arguments of {found.task}"
        if found.sealed:
            if found.args or found.kwargs:
                raise OptionsError("its fields sealed and args contradict each other: sealed has all arguments")
            codec.arguments(found.sealed)
            return codec.capped(found.sealed, self.most, what)
        args = codec.encode((found.args, found.kwargs), self.most, what)
        values = codec.decode(args)
        return codec.pack_json(found.task, values[0], values[1], self.most) if found.form == "json" else args

    def _check_id(self, found: Envelope) -> None:
        if shard_of(found.id) >= self.shards or not is_plain(found.id):
            raise OptionsError("its id is not that of a job of this store: docs/envelope.md says how to make one")
        if is_ordered(found.id) != found.ordered:
            raise OptionsError("its id and its field ordered contradict each other: the id of an ordered job says so")
        if is_unique(found.id) != bool(found.unique):
            raise OptionsError("its id and its field unique contradict each other: the id of a unique job says so")

    def _options(self, found: Envelope) -> tuple[Options, Form]:
        headers = packed_headers(found.headers)
        asked = (*_asked(found), headers)
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= 256:
                self._known.clear()
            options = _checked(found)
            known = self._known[asked] = (options, form_of(found.task, options))
        return known


def _decoded(data: Any, row: int) -> Envelope:
    try:
        found = _envelope.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        version = None
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            version = _version.decode(data).v
        if version not in (None, VERSION):
            raise _unknown(row, "", version) from None
        raise _refused(row, "", str(error) if not isinstance(error, RecursionError) else codec.TOO_DEEP) from None
    if found.v != VERSION:
        raise _unknown(row, found.id, found.v)
    return found


def _unknown(row: int, id: str, version: Any) -> EnvelopeError:
    return _refused(
        row, id, f"it has version {version!r:.20}, and this Headrace knows {VERSION}: upgrade headrace here"
    )


def _refused(row: int, id: str, why: str) -> EnvelopeError:
    return EnvelopeError(f"envelope {row}{f' (job {id:.40})' if id else ''} cannot be stored: {why}", row)


def _checked(found: Envelope) -> Options:
    given = {
        name: field.given(value)
        for name, field in OPTION_FIELDS.items()
        if name in ROWS and name != "at" and (value := getattr(found, name)) != field.default
    }
    if found.at and found.delay:
        raise OptionsError("delay and at contradict each other: give the one or the other")
    if not 0 <= found.at <= MOST_INTEGER:
        raise OptionsError(f"at must be microseconds since 1970, below 2**53, not {found.at}")
    options = of_call(of_task({}), given)
    if options.ordered and not options.key:
        raise OptionsError("it is ordered by key, and has no key")
    overrides = msgspec.structs.replace(options.overrides, **_retries(found))
    return msgspec.structs.replace(options, delay=found.delay, at=found.at, expires=found.expires, overrides=overrides)


def _retries(found: Envelope) -> dict[str, Any]:
    parts = {name: getattr(found, name) for name in RETRY_PARTS if name != "retries"}
    given = {name: OPTION_FIELDS[name].given(value) for name, value in parts.items() if value is not None}
    # What the task says of the longest delay is not known here.
    numbers: dict[str, Any] = {"max_delay": CENTURY}
    Retry(**numbers | {RETRY_PARTS[name][0]: value for name, value in given.items()})
    return given
