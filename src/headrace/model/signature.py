"""The signature of a task: arguments and result as bytes and back, and the names of unique jobs. Pure."""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias, TypedDict, cast

import msgspec

from headrace.errors import ArgumentError, OptionsError, PayloadTooLarge
from headrace.model import codec, job_record
from headrace.model.codec import NOTHING
from headrace.model.elsewhere import misplaced_option_hint
from headrace.model.hidden_values import Redactor, has_secret_mark, hides, with_all
from headrace.model.job_record import PlainReader
from headrace.model.type_changes import ResultType, changed, misfit, narrowed, refused
from headrace.model.type_registry import Types, has_records, hints, leaves_type_open, reason_unchecked, sorted_form
from headrace.model.unique_rules import UniqueRule

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
        """Arguments by position where they can be: one call has one form. Raises ArgumentError: they do not fit."""
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
                value = kwargs[name]
                value = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
                raise self._misfit(f"takes no argument {name!r}", misplaced_option_hint(self.task, name, value))
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


def named_by_number(args: Positions, kwargs: Keywords) -> Named:
    return [*((n, f"{n + 1}", value) for n, value in enumerate(args)), *((n, n, value) for n, value in kwargs.items())]


def places_of(parameters: Parameters, annotations: Mapping[str, Any]) -> str:
    """Where secret values stand: names, numbers from 1, ``*3`` for the third on, ``**`` for all names, ``return``."""
    return places_named(parameters, [name for name, annotation in annotations.items() if has_secret_mark(annotation)])


def places_named(parameters: Parameters, names: Iterable[str]) -> str:
    found: list[str] = []
    for name in names:
        found.append(name)
        if name in parameters.positions:
            found.append(str(parameters.positions.index(name) + 1))
        elif name == parameters.rest:
            found.append(f"*{len(parameters.positions) + 1}")
        elif name == parameters.others:
            found.append("**")
    return " ".join(found)


# Arguments, by position or name, that hold what is not known yet.
Unknown = frozenset[int | str]


class Unchecked(PlainReader):
    """The signature of a task whose code is elsewhere: everything that can be sent is, and is read plain."""

    def __init__(self, task: str, types: Types) -> None:
        super().__init__(task)
        self._further = types

    def pack(self, args: Positions, kwargs: Keywords, limit: int) -> bytes:
        try:
            return codec.encode((args, kwargs), limit, f"arguments of {self.task}", self._further.encoder)
        except (ArgumentError, PayloadTooLarge) as error:
            raise named_fault(error, self.task, named_by_number(args, kwargs), limit, self._further) from None

    def pack_open(self, args: Positions, kwargs: Keywords, limit: int, slotted: job_record.Slotted) -> bytes:
        return packed_open(self.task, named_by_number(args, kwargs), limit, slotted)[0]

    def pack_json(self, args: str | bytes, kwargs: str | bytes, limit: int) -> bytes:
        """See :meth:`headrace.model.signature.Signature.pack_json`; only the form is checked."""
        positions, keywords = codec.json_arguments(self.task, args, kwargs)
        return codec.pack_json(self.task, positions, keywords, limit) if positions or keywords else NOTHING

    def hidden(self, redact: str) -> str:  # noqa: ARG002 - the form of Signature
        """The names of its parameters are not known; what is stored by name is hidden by that."""
        return self.secrets

    def accepts(self, name: str, count: int) -> bool:  # noqa: ARG002 - the form of Signature
        return False


def packed_open(task: str, values: Named, limit: int, slotted: job_record.Slotted) -> tuple[bytes, Unknown]:
    raws, unknown = dict[int | str, msgspec.Raw](), set[int | str]()
    for place, name, value in values:
        met = slotted.met
        raws[place] = msgspec.Raw(slotted.encode(value, limit, f"argument {name!r} of {task}"))
        if slotted.met != met:
            unknown.add(place)
    positions = [raw for place, raw in raws.items() if isinstance(place, int)]
    keywords = {place: raw for place, raw in raws.items() if isinstance(place, str)}
    return codec.encode((positions, keywords), limit, f"arguments of {task}"), frozenset(unknown)


def named_fault(error: Exception, task: str, values: Named, limit: int, types: Types, secrets: str = "") -> Exception:
    """Why arguments cannot be sent, by the first that cannot alone. In a secret no place: keys are values, too."""
    for _, name, value in values:
        try:
            path = "" if hides(secrets, name.removeprefix("*")) else codec.culprit(name, value, types.encoder)
            codec.encode(value, limit, f"argument {name!r} of {task}{path}", types.encoder)
        except (ArgumentError, PayloadTooLarge) as named:
            return named
    return error


# Decoders kept, one per shape of a call (how many positions, which keywords): *args and **kwargs have no end of shapes.
SHAPES = 128

Decoder: TypeAlias = msgspec.msgpack.Decoder[tuple[Positions, Keywords]]


class Signature:
    """What one function takes and returns.

    Attributes:
        task: the task's name, for messages.
        parameters: what it takes.
        further: types that MessagePack has no form for.
        encrypted: arguments, result and error texts are encrypted.
    """

    def __init__(self, task: str, function: Callable[..., Any], types: Types, *, loose: bool = False) -> None:
        """Read a signature. ``loose``: values without an annotation may arrive as another type, a tuple as a list."""
        self.task = task
        self.parameters = Parameters(task, function)
        self.further = types
        self.encrypted = False
        self._loose = loose
        self._function = function
        # Looked at for every job.
        self._encoder = types.encoder
        self._bare, self._demanded = self.parameters.bare, self.parameters.demanded
        self._least, self._most = self.parameters.least, len(self.parameters.positions)
        self._decoders: dict[Any, Decoder] = {}
        self._hidden: dict[str, str] = {}

    def pack(self, args: Positions, kwargs: Keywords, limit: int) -> bytes:
        """Arguments as an enqueue sends them: what the worker would refuse is refused here. Raises ArgumentError: names
        the task, the argument and the path in it. Raises PayloadTooLarge: they take more than ``limit`` bytes.
        """
        if not args and not kwargs and self._bare:
            return NOTHING
        if kwargs or not self._least <= len(args) <= self._most or self._demanded:
            args, kwargs = self.parameters.bound(args, kwargs)
        try:
            data = codec.encode((args, kwargs), limit, f"arguments of {self.task}", self._encoder)
        except (ArgumentError, PayloadTooLarge) as error:
            values = self.parameters.named(args, kwargs)
            raise named_fault(error, self.task, values, limit, self.further, self.secrets) from None
        back = self._decode(data, len(args), kwargs)
        if self._compared:
            self._refuse_changed((args, kwargs), back)
        return data

    def pack_open(self, args: Positions, kwargs: Keywords, limit: int, slotted: job_record.Slotted) -> bytes:
        """As :meth:`pack`, where some values are to come: an argument that holds one is checked once it is filled."""
        args, kwargs = self.parameters.bound(args, kwargs)
        data, unknown = packed_open(self.task, self.parameters.named(args, kwargs), limit, slotted)
        back = self._decode(data, len(args), kwargs, unknown)
        if self._compared:
            self._refuse_changed((args, kwargs), back, unknown)
        return data

    def pack_json(self, args: str | bytes, kwargs: str | bytes, limit: int) -> bytes:
        """As :meth:`pack`, of a JSON array and a JSON object: they stay JSON, and are checked as JSON. Raises
        ArgumentError: they are something else, or do not fit. Raises PayloadTooLarge: they take more than ``limit``
        bytes.
        """
        positions, keywords = self.parameters.bound(*codec.json_arguments(self.task, args, kwargs))
        if not positions and not keywords:
            return NOTHING
        data = codec.pack_json(self.task, positions, keywords, limit)
        self._decode(data, len(positions), keywords, json=True)
        return data

    def prepare_decoders(self) -> None:
        for count in range(self._least, min(self._most, 15) + 1):
            # Annotations that nothing can be made of are told by the job that meets them.
            with contextlib.suppress(Exception):
                self._decoder(count, count, ())
        with contextlib.suppress(Exception):
            self.result.pack(None, 1)

    def accepts(self, name: str, count: int) -> bool:
        return self.parameters.accepts(name, count)

    def unpack(self, data: bytes) -> tuple[Positions, Keywords]:
        """Arguments as the annotations say. Raises ArgumentError: they do not fit. Raises CorruptRecord: unreadable."""
        if data == NOTHING and self._bare:
            return (), {}
        if (found := self._by_position(data)) is not None:
            return found
        data, signature = codec.signed_parts(data)
        if signature and (found := self._by_position(data)) is not None:
            return found
        args, kwargs = codec.stored_arguments(self.task, data)
        self.parameters.bound(tuple(args), kwargs)
        return self._decode(data, len(args), kwargs, json=codec.is_json(data))

    def by_name(self, args: Positions, kwargs: Keywords) -> dict[str, Any]:
        return self.parameters.by_name(args, kwargs)

    def unpack_result(self, data: bytes) -> Any:
        return self.result.unpack(data)

    @cached_property
    def types(self) -> dict[str, Any]:
        """Parameter (or ``return``) -> what its values are converted to; see ``unchecked`` for those that are not."""
        found = hints(self._function).items()
        return {name: Any if name in self.unchecked else annotation for name, annotation in found}

    @cached_property
    def unchecked(self) -> dict[str, str]:
        """Parameter (or ``return``) -> why its values are not converted to its annotation."""
        found = hints(self._function).items()
        reasons = {name: reason_unchecked(annotation, self.further) for name, annotation in found}
        return {name: reason for name, reason in reasons.items() if reason}

    @property
    def secrets(self) -> str:
        """Where values stand that are never shown, as :func:`places_of` says it."""
        return with_all(self._secrets) if self.encrypted else self._secrets

    @cached_property
    def _secrets(self) -> str:
        # Apart, since a type checker takes no cached property for what ValueReader wants.
        return places_of(self.parameters, hints(self._function))

    def hidden(self, redact: str) -> str:
        """Where values stand that pages hide: those of :attr:`secrets`, and of parameters that ``redact`` names. A job
        keeps its positions without their names, so a page without the code could not tell these. ``redact``: the
        setting of this name.
        """
        known = self._hidden.get(redact)
        if known is None:
            hides = Redactor(redact.split(",")).hides
            named = places_named(self.parameters, sorted(filter(hides, self.parameters.names)))
            known = " ".join(dict.fromkeys(f"{self._secrets} {named}".split()))
            self._hidden[redact] = known
        return with_all(known) if self.encrypted else known

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Parameter -> its default as it would arrive: of a ``float``, 1 is 1.0. What cannot be sent is left out."""
        found: dict[str, Any] = {}
        for one in inspect.signature(self._function).parameters.values():
            if one.default is inspect.Parameter.empty or not codec.is_sendable(one.default, self._encoder):
                continue
            found[one.name] = one.default
            with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError):
                form = msgspec.msgpack.Decoder(self.types.get(one.name, Any), dec_hook=self.further.decode)
                found[one.name] = form.decode(self._encoder.encode(one.default))
        return found

    @cached_property
    def result(self) -> ResultType:
        return ResultType(self.task, self.types.get("return", Any), self.further, loose=self._loose)

    @cached_property
    def _open_parameters(self) -> frozenset[str]:
        if self._loose:
            return frozenset()
        return frozenset(
            name for name in self.parameters.names if name not in self.types or leaves_type_open(self.types[name])
        )

    @cached_property
    def _holding(self) -> frozenset[str]:
        names = self.parameters.names if not self._loose else ()
        return frozenset(name for name in names if name in self.types and has_records(self.types[name], self.further))

    @cached_property
    def _compared(self) -> frozenset[str]:
        return self._open_parameters | self._holding

    def _refuse_changed(
        self, sent: tuple[Positions, Keywords], back: tuple[Positions, Keywords], unknown: Unknown = frozenset()
    ) -> None:
        places: list[tuple[int | str, Any, Any]] = [
            *((n, one, other) for n, (one, other) in enumerate(zip(sent[0], back[0], strict=True))),
            *((name, one, back[1][name]) for name, one in sent[1].items()),
        ]
        for place, one, other in places:
            name = self.parameters.name_at(place)
            if name not in self._compared or place in unknown:
                continue
            try:
                found = changed(one, other) if name in self._open_parameters else None
                found = found or (narrowed(one, other) if name in self._holding else None)
            except RecursionError:
                raise self._too_deep() from None
            if found is not None:
                raise refused(self.task, name, found, self.unchecked.get(name, ""), hides(self.secrets, name))

    def _by_position(self, data: bytes) -> tuple[Positions, Keywords] | None:
        """Arguments in one decode, where all are given by position; None where more must be looked at."""
        # A pair, then a short array whose second byte tells its length: see the MessagePack specification.
        count = data[1] - 0x90 if len(data) > 2 and data[0] == 0x92 else -1
        if self._demanded or not self._least <= count <= min(self._most, 15):
            return None
        try:
            found = (self._decoders.get(count) or self._decoder(count, count, ())).decode(data)
        except RecursionError:
            raise self._too_deep() from None
        except (msgspec.MsgspecError, TypeError, ValueError):
            return None
        return None if found[1] else found

    def _too_deep(self) -> ArgumentError:
        return ArgumentError(f"the arguments of {self.task} are {codec.TOO_DEEP}: send a flat list, or ids")

    def _decode(
        self, data: bytes, count: int, kwargs: Keywords, unknown: Unknown = frozenset(), *, json: bool = False
    ) -> tuple[Positions, Keywords]:
        shape: Any = (count, tuple(kwargs)) if kwargs else count
        if unknown or json:
            shape = (shape, unknown, json)
        try:
            decoder = self._decoders.get(shape) or self._decoder(shape, count, kwargs, unknown, json=json)
            return decoder.decode(data)
        except RecursionError:
            raise self._too_deep() from None
        except (msgspec.ValidationError, TypeError) as error:
            raise ArgumentError(self._explain(str(error), kwargs)) from None
        except msgspec.DecodeError:
            # What is unpacked was read before.
            raise ArgumentError(f"the arguments of {self.task} cannot be sent: {codec.RECORD_KEY}") from None

    def _decoder(
        self, shape: Any, count: int, names: Collection[str], unknown: Unknown = frozenset(), *, json: bool = False
    ) -> Decoder:
        types, known = self.types, self.parameters
        rest = types.get(known.rest or "", Any)
        positions = [types.get(name, Any) for name in known.positions[:count]]
        positions += [rest] * (count - len(positions))
        others = types.get(known.others or "", Any)
        keywords = {name: types.get(name, Any) if name in known.keywords else others for name in names}
        for place in unknown:
            if isinstance(place, int):
                positions[place] = Any
            else:
                keywords[place] = Any
        # To type checkers these are declarations, not values: hence the detour over Any.
        typed_dict, array = cast(Any, TypedDict), cast(Any, tuple)
        pair = array[array[tuple(positions)], typed_dict("Keywords", keywords) if keywords else dict[str, Any]]
        form: Any = msgspec.json if json else msgspec.msgpack
        if len(self._decoders) >= SHAPES:
            self._decoders.clear()
        decoder = self._decoders[shape] = form.Decoder(pair, dec_hook=self.further.decode)
        return cast(Decoder, decoder)

    def _explain(self, text: str, kwargs: Keywords) -> str:
        name, _ = self.parameters.culprit(misfit(text, secret=True)[2], kwargs)
        fault, keys, path = misfit(text, secret=hides(self.secrets, name.removeprefix("*")))
        inside = self.parameters.culprit(path, kwargs)[1]
        return f"argument {name!r} of {self.task}: {fault}" + (f" at {keys}{name}{inside}" if keys or inside else "")


# Of the form that is digested. Another one needs another number, and is another name.
VERSION = 1
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def check_by(rule: UniqueRule, signature: Signature | Unchecked) -> None:
    if isinstance(signature, Unchecked):
        if not rule.text and not rule.by:
            raise OptionsError(
                f"the code of {signature.task} is not here, so all its arguments are not known: give by= or text="
            )
        return
    known = signature.parameters.names
    for name in rule.by:
        if name not in known:
            raise OptionsError(
                f"unique goes by {name!r}, and {signature.task}{signature.parameters.text} has no such argument"
            )


def unique_name(rule: UniqueRule, signature: Signature | Unchecked, data: bytes, types: Types) -> str:
    """What the store calls a unique job: the text of its rule, or ``<task>:<digest of its named arguments>``.

    One call has one name, however it is written: by position or by name, with a default or without, as JSON or not.
    ``data``: the arguments, packed. Raises OptionsError: the code of the task is not here, and it cannot be told which
    arguments these are.
    """
    if rule.text:
        return rule.text
    values = _known(signature, data) if isinstance(signature, Signature) else _given(rule, signature, data)
    if rule.by:
        values = {name: values.get(name) for name in rule.by}
    return f"{signature.task}:{digest(values, types)}"


def digest(values: Mapping[str, Any], types: Types) -> str:
    """16 characters for these arguments: of their sorted MessagePack, after the version, 96 bits of SHA-256."""
    packed = sorted_form([VERSION, values], types)
    # Without the base64 module, whose calls cost more than the digest: every unique enqueue passes here.
    return binascii.b2a_base64(hashlib.sha256(packed).digest()[:12]).translate(_URL_SAFE)[:16].decode()


def _known(signature: Signature, data: bytes) -> dict[str, Any]:
    found = signature.parameters.by_name(*signature.unpack(data))
    return signature.defaults | found if signature.defaults else found


def _given(rule: UniqueRule, signature: Unchecked, data: bytes) -> dict[str, Any]:
    args, kwargs = signature.unpack(data)
    missing = [name for name in rule.by if name not in kwargs]
    if missing:
        where = "by position" if args else "here"
        raise OptionsError(
            f"unique goes by {missing[0]!r}, and the code of {signature.task} is not here to tell which argument that "
            f"is of those given {where}: give it by name, or give text="
        )
    return kwargs
