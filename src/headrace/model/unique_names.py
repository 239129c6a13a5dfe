"""The name of a unique job, made of its task and its arguments. Pure.

The form is versioned, since a form that changes with a release would let two jobs of one name live beside each other.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionsError
from headrace.model.signature import Signature, Unchecked
from headrace.model.type_registry import Types, sorted_form
from headrace.model.unique_rules import UniqueRule

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
