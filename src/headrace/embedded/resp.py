"""One question to a server over its Unix socket, then the socket is closed.

Owns no connection: attaching must leave nothing open, so that a caller may fork at once. Not a client; the
store has one. Understands just the replies to PING, INFO and SHUTDOWN.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Health = Literal["ready", "loading", "absent", "stranger", "silent"]
"""ready: serves; loading: reads its data; absent: nobody listens; stranger: refuses the password; silent: no
answer in time."""


class ReplyError(Exception):
    """The server answered with an error; the text is its own."""


def ask(path: Path, password: str, *command: str, timeout: float = 1.0) -> str:
    """The server's reply to one command.

    Args:
        path: the server's socket.
        password: sent first.
        command: the command and its arguments.
        timeout: seconds for each step of the conversation.

    Raises:
        ReplyError: the server refused the password or the command.
        OSError: nobody listens, or the answer did not come in time.

    Cost: one connection, one round trip.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout)
        sock.connect(str(path))
        sock.sendall(_encode("AUTH", password) + _encode(*command))
        with sock.makefile("rb") as stream:
            _reply(stream.readline(), stream.read)
            return _reply(stream.readline(), stream.read)


def health(path: Path | None, password: str | None, *, timeout: float = 1.0) -> Health:
    """How the server behind a socket is. Cost: one connection, one round trip."""
    if path is None or password is None:
        return "absent"
    try:
        ask(path, password, "PING", timeout=timeout)
    except ReplyError as error:
        word = str(error).split(" ", 1)[0]
        if word == "LOADING":
            return "loading"
        # Any other refusal (a full disk, a script that runs too long) is that of a living server of ours.
        return "stranger" if word in {"WRONGPASS", "NOAUTH"} or "AUTH" in str(error) else "ready"
    except (TimeoutError, BlockingIOError):
        # No room among those that wait for it to accept them: it listens.
        return "silent"
    except (OSError, ValueError):
        return "absent"
    return "ready"


def info(path: Path, password: str) -> dict[str, str]:
    """The fields of INFO. Raises as `ask`."""
    lines = ask(path, password, "INFO").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _encode(*words: str) -> bytes:
    parts = [w.encode() for w in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _reply(line: bytes, read: Callable[[int], bytes]) -> str:
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    kind, rest = line[:1], line[1:-2].decode(errors="replace")
    if kind == b"-":
        raise ReplyError(rest)
    if kind == b"$":
        return read(int(rest) + 2)[:-2].decode(errors="replace")
    return rest
