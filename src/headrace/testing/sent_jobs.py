"""What the calls of an application say that it enqueues."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.protocol.script import Call


def made(call: Call[Any], answer: Any) -> dict[str, int]:
    """Ids of the jobs that an answered call has stored, each with its delay (microseconds); none of any other call."""
    if call.script.name == "broadcast":
        return dict.fromkeys(answer, 0)
    if call.script.name not in ("enqueue", "enqueue_ordered", "enqueue_unique"):
        return {}
    names = [arg.name for arg in call.script.header.args]
    packed = call.args[names.index("batches") - len(names)]
    assert isinstance(packed, bytes)
    found = {_unpacked(id): _delay(head[2]) for head, rows in _sent(packed) for id in rows[::2]}
    stored = answer.word in ("ok", "repeated")
    return {id: delay for id, delay in found.items() if stored and id not in answer.duplicates}


# Arguments are no text, though they travel as one: see script.blob.
_sent = msgspec.msgpack.Decoder(list[tuple[list[msgspec.Raw], list[msgspec.Raw]]]).decode
_delay = msgspec.msgpack.Decoder(int).decode
_unpacked = msgspec.msgpack.Decoder(str).decode
