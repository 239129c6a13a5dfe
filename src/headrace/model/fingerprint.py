"""What failures have in common that are one fault: its cause. Pure; the script ``telling`` computes the same name."""

from __future__ import annotations

import hashlib
import re

from headrace.model.job import JobError

# Bytes of a message that tell one cause from another where no line of the user's code is known. Headrace's own errors
# name ids behind these, since each id would be a cause.
HEAD = 80

_LINE = re.compile(rb":[0-9]+ in ")
_ADDRESS, _NUMBER = re.compile(rb"0x[0-9a-f]+"), re.compile(rb"[0-9]+")


def fingerprint(error: JobError | None) -> tuple[str, str]:
    """What kind of error it is, and where: numbers of lines and numbers in messages do not count."""
    if error is None:
        return "", ""
    if error.signal is not None:
        return f"signal {error.signal}", ""
    where = _LINE.sub(b" in ", _bytes(error.where))
    where = where or _NUMBER.sub(b"#", _ADDRESS.sub(b"#", _bytes(error.message)[:HEAD]))
    return error.type, where.decode("utf-8", "surrogateescape")


def cause_id(task: str, error: JobError | None) -> str:
    """The name of a failure's cause: 16 hexadecimal digits."""
    text = b"\n".join(map(_bytes, (task, *fingerprint(error))))
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
