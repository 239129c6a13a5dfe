"""Values to bytes and back: MessagePack through msgspec, capped in size, never pickle.

Pure. Knows nothing of tasks or jobs; turns msgspec's errors into ours, with the path of the culprit.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.errors import ArgumentError, CorruptRecord, HeadraceError, PayloadTooLarge


class ParentOutput(msgspec.Struct, frozen=True):
    """Stands in the stored arguments of a workflow's node for what one of its parents returns.

    Attributes:
        position: of the parent among those of the node, from 0.
    """

    position: int


# MessagePack extension that stands where the output of a node's parent goes; its payload is the parent's position.
SLOT = 7
NONE = b"\xc0"
# The arguments of a call without any, [[], {}]; a job that has them is stored without.
NOTHING = b"\x92\x90\x80"
# Bytes of a signature, and what stands in front of it behind arguments: an extension of MessagePack. Lua, which reads
# one value, passes over it; JSON has it as a third element, in hexadecimal digits.
SIGNATURE = 16
_MARK = b"\xd8\x0a"
# How deep Python reads depends on how deep the reader's own calls are; about 900 levels are safe.
TOO_DEEP = "nested too deeply to be read here"
# It would arrive as a dictionary, which can be no key.
RECORD_KEY = "a record cannot be the key of a dictionary: send a list of pairs, or a text or number as the key"
# How the decoder says so.
_UNHASHABLE = "keys must be hashable"
# What to do with a value that is often sent by mistake, by its class.
_INSTEAD = {
    "builtins.coroutine": "await it, in an `async def`, and send what that gives",
    "builtins.generator": "send a list, such as list(...) makes of it",
    "headrace.tasks.job_handle.Job": "send its id; app.job(id) is a handle again",
}
# Levels into which an error follows a value that cannot be sent.
_LEVELS = 20

Position = Callable[[object], int | None]


def refuse(value: object) -> Any:
    kind = type(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__}")


PLAIN = msgspec.msgpack.Encoder(enc_hook=refuse)
# The code of the extension that holds an encrypted value, and the text that readers see instead.
SEALED = 9
ENCRYPTED = "encrypted"


def _shown(code: int, payload: memoryview) -> Any:
    return ENCRYPTED if code == SEALED else msgspec.msgpack.Ext(code, bytes(payload))


_decoder = msgspec.msgpack.Decoder(ext_hook=_shown)


def encode(value: object, limit: int, what: str, encoder: msgspec.msgpack.Encoder = PLAIN) -> bytes:
    """MessagePack of ``value``; ``what`` names it in errors, such as ``arguments of fetch``. ``encoder``: of the
    application's ``Types``; without one, further types are refused. Raises ArgumentError: a value in it cannot be sent,
    is cyclic or nested too deeply, or an integer beyond 64 bits. Raises PayloadTooLarge: more than ``limit`` bytes.
    """
    try:
        data = encoder.encode(value)
    except HeadraceError:
        raise
    except RecursionError:
        fault = f"{_fault_of(value)}; send a flat list, or ids instead of linked objects"
        raise ArgumentError(f"{what} cannot be sent: {fault}") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        instead = _INSTEAD.get(str(error)) or (
            "use JSON-like values, dataclasses, pydantic models, msgspec Structs, enums, dates, decimals, UUIDs, paths "
            "or bytes, or app.types.add(...); integers of at most 64 bits"
        )
        raise ArgumentError(f"{what} cannot be sent ({error}): {instead}") from None
    # Every job passes here: no call more than it takes.
    return data if len(data) <= limit else capped(data, limit, what)


def _fault_of(value: object) -> str:
    above, done, fault = set[int](), set[int](), TOO_DEEP
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        one, left = stack.pop()
        if left:
            above.discard(id(one))
            done.add(id(one))
        elif id(one) in above:
            return "it contains itself"
        elif type(one) in (list, tuple, dict):
            if id(one) not in done:
                above.add(id(one))
                stack += [(one, True), *((part, False) for _, part in _parts(one))]
        elif not isinstance(one, (str, int, float, bytes, type(None))):
            fault = "nested too deeply, or it contains itself"
    return fault


def capped(data: bytes, limit: int, what: str) -> bytes:
    if len(data) > limit:
        raise PayloadTooLarge(
            f"{what} takes {len(data):,} bytes, more than the cap of {limit:,}: store it elsewhere and send a "
            f"reference, or raise the cap in the settings"
        )
    return data


def culprit(name: str, value: object, encoder: msgspec.msgpack.Encoder) -> str:
    """`` at name[2]['when']``: where the innermost part is that cannot be sent; empty: the value is one itself."""
    path = ""
    for _ in range(_LEVELS):
        found = next(((key, part) for key, part in _parts(value) if not is_sendable(part, encoder)), None)
        if found is None:
            break
        path, value = f"{path}[{found[0]!r:.40}]", found[1]
    return f" at {name}{path}" if path else ""


def _parts(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, dict):
        return cast("Mapping[object, object]", value).items()
    if isinstance(value, (list, tuple)):
        return enumerate(cast("Sequence[object]", value))
    return ()


def is_sendable(value: object, encoder: msgspec.msgpack.Encoder) -> bool:
    try:
        encoder.encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return False
    except RecursionError:
        # No reader could follow a path to where it is too deep.
        return True
    return True


# Whatever it gives for an extension cannot be hashed, so that one in the place of a key is found.
STRICT = msgspec.msgpack.Decoder(ext_hook=lambda code, data: [])  # noqa: ARG005

_Sent = tuple[list[Any], dict[str, Any]]
_packed_arguments: msgspec.msgpack.Decoder[_Sent] = msgspec.msgpack.Decoder(
    _Sent,
    ext_hook=lambda code, payload: (
        ParentOutput(int.from_bytes(payload, "big")) if code == SLOT else ENCRYPTED if code == SEALED else None
    ),
)
_json_arguments: msgspec.json.Decoder[_Sent] = msgspec.json.Decoder(_Sent)
_whole = msgspec.msgpack.Decoder(msgspec.Raw)
_HEX = re.compile(rb"[0-9a-f]{32}")


def is_json(arguments: bytes) -> bool:
    """Whether stored arguments are JSON: they begin with a bracket, as no MessagePack of a pair does."""
    return arguments[:1] == b"["


def with_signature(data: bytes, signature: bytes) -> bytes:
    return data[:-1] + b',"' + signature.hex().encode() + b'"]' if is_json(data) else data + _MARK + signature


def signed_parts(data: bytes) -> tuple[bytes, bytes]:
    """Stored arguments and their signature, which is empty where they have none."""
    if is_json(data):
        # Without a signature they end with the brackets of an object and of an array.
        if data[-2:] != b'"]' or not _HEX.fullmatch(data[-34:-2]):
            return data, b""
        return data[:-36] + b"]", bytes.fromhex(data[-34:-2].decode())
    if data[-18:-16] != _MARK or not _is_whole(data[:-18]):
        return data, b""
    return data[:-18], data[-16:]


def _is_whole(data: bytes) -> bool:
    # No value of MessagePack is the beginning of another one.
    try:
        _whole.decode(data)
    except msgspec.MsgspecError:
        return False
    return True


def sealed(payload: bytes) -> bytes:
    return PLAIN.encode(msgspec.msgpack.Ext(SEALED, payload))


def sealed_part(data: bytes) -> bytes | None:
    """The encrypted bytes that are the whole of a value; None: it is plain, or only parts of it are encrypted."""
    # 0xc7 to 0xc9 are extensions with 1, 2 or 4 bytes for their length, and then the code.
    width = {0xC7: 1, 0xC8: 2, 0xC9: 4}.get(data[0] if data else 0, 0)
    return data[width + 2 :] if width and data[width + 1 : width + 2] == bytes((SEALED,)) else None


def holds_sealed(data: bytes) -> bool:
    met: list[int] = []
    if SEALED in data:
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            msgspec.msgpack.Decoder(ext_hook=lambda code, _: met.append(code)).decode(data)
    return SEALED in met


def arguments(data: bytes) -> _Sent:
    """Stored arguments as plain values, by position and by name; their signature is passed over. Raises
    msgspec.MsgspecError, ValueError: no enqueue wrote these bytes. Raises RecursionError: they are nested too deeply to
    be read here.
    """
    data = signed_parts(data)[0]
    if sealed_part(data) is not None:
        return [ENCRYPTED], {}
    return _json_arguments.decode(data) if is_json(data) else _packed_arguments.decode(data)


def stored_arguments(task: str, data: bytes) -> _Sent:
    """As :func:`arguments`. Raises CorruptRecord: no enqueue wrote these bytes. Raises ArgumentError: too deep."""
    try:
        return arguments(data)
    except RecursionError:
        raise ArgumentError(f"the arguments of {task} are {TOO_DEEP}: send a flat list, or ids") from None
    except (msgspec.MsgspecError, ValueError) as error:
        cause = RECORD_KEY if _UNHASHABLE in str(error) else "another program wrote or cut them"
        raise CorruptRecord(f"the stored arguments of {task} cannot be read ({error}): {cause}") from None


def json_arguments(
    task: str, args: str | bytes, kwargs: str | bytes
) -> tuple[tuple[msgspec.Raw, ...], dict[str, msgspec.Raw]]:
    """Arguments of a JSON array and a JSON object; the parts stay as they are. Raises ArgumentError: they are none."""
    try:
        # The whole first: the parts are passed over, not read.
        msgspec.json.decode(args)
        msgspec.json.decode(kwargs)
        positions = msgspec.json.decode(args, type=tuple[msgspec.Raw, ...])
        return positions, msgspec.json.decode(kwargs, type=dict[str, msgspec.Raw])
    except RecursionError:
        raise ArgumentError(f"the arguments of {task} are {TOO_DEEP}: send a flat list, or ids") from None
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise ArgumentError(f"the arguments of {task} are no JSON array and JSON object: {error}") from None


def pack_json(task: str, positions: Sequence[Any], keywords: Mapping[str, Any], limit: int) -> bytes:
    return capped(msgspec.json.encode((positions, keywords)), limit, f"arguments of {task}")


def for_json(value: object, hook: Callable[[Any], Any]) -> Any:
    """A value as JSON has it; numbers that it lacks (NaN) are texts, not null. Raises as ``msgspec.to_builtins``."""
    return _numbered(msgspec.to_builtins(value, str_keys=True, enc_hook=hook))


def _numbered(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _numbered(one) for key, one in cast(Any, value).items()}
    return [_numbered(one) for one in cast("list[Any]", value)] if isinstance(value, (list, tuple)) else value


def decode(data: bytes) -> Any:
    """The plain value of a MessagePack. Raises msgspec.DecodeError: bytes that are unreadable or nested too deeply."""
    try:
        return _decoder.decode(data)
    except RecursionError:
        raise msgspec.DecodeError(TOO_DEEP) from None


def as_read(data: bytes, what: str) -> Any:
    """The plain value that readers will make of what is sent. Raises ArgumentError: they could not."""
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        cause = RECORD_KEY if _UNHASHABLE in str(error) else error
        raise ArgumentError(f"{what} cannot be sent: {cause}") from None


def readable(data: bytes) -> str:
    try:
        return msgspec.json.encode(_decoder.decode(data)).decode()
    except RecursionError:
        return f"<{len(data)} bytes, {TOO_DEEP}>"
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(data)} bytes that are not MessagePack>"
