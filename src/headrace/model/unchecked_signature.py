"""The signature of a task whose code is elsewhere, and how arguments are packed where some are to come. Pure."""

from __future__ import annotations

import msgspec

from headrace.errors import ArgumentError, PayloadTooLarge
from headrace.model import codec, slots
from headrace.model.codec import NOTHING
from headrace.model.hidden_values import hides
from headrace.model.job_record import PlainReader
from headrace.model.parameters import Keywords, Named, Positions, unnamed
from headrace.model.type_registry import Types

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
            raise named_fault(error, self.task, unnamed(args, kwargs), limit, self._further) from None

    def pack_open(self, args: Positions, kwargs: Keywords, limit: int, slotted: slots.Slotted) -> bytes:
        """See :meth:`headrace.model.signature.Signature.pack_open`; nothing is checked."""
        return packed_open(self.task, unnamed(args, kwargs), limit, slotted)[0]

    def pack_json(self, args: str | bytes, kwargs: str | bytes, limit: int) -> bytes:
        """See :meth:`headrace.model.signature.Signature.pack_json`; only the form is checked."""
        positions, keywords = codec.json_arguments(self.task, args, kwargs)
        return codec.pack_json(self.task, positions, keywords, limit) if positions or keywords else NOTHING

    def hidden(self, redact: str) -> str:  # noqa: ARG002 - the form of Signature
        """The names of its parameters are not known; what is stored by name is hidden by that."""
        return self.secrets

    def accepts(self, name: str, count: int) -> bool:  # noqa: ARG002 - the form of Signature
        """Nobody knows what it takes, so it is given no more than was meant for it."""
        return False


def packed_open(task: str, values: Named, limit: int, slotted: slots.Slotted) -> tuple[bytes, Unknown]:
    """Arguments with slots, and which of them have any."""
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
    """Why arguments cannot be sent, with the name of the first one that cannot even be sent alone.

    Args:
        secrets: where secret values stand: of these no place is named, since keys are values.
    """
    for _, name, value in values:
        try:
            path = "" if hides(secrets, name.removeprefix("*")) else codec.culprit(name, value, types.encoder)
            codec.encode(value, limit, f"argument {name!r} of {task}{path}", types.encoder)
        except (ArgumentError, PayloadTooLarge) as named:
            return named
    return error
