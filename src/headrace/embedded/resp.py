"""One question to a server over its Unix socket, then the socket is closed: attaching must leave nothing open, so that
a caller may fork at once. Knows INFO and SHUTDOWN only.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Health = Literal["ready", "loading", "absent", "stranger", "silent"]
"""ready: serves; loading: reads its data; absent: no server listens; stranger: refuses the password; silent: no answer
in time."""


class ReplyError(Exception):
    """The server answered with an error; the text is its own."""


def health(path: Path | None, password: str | None) -> Health:
    return probe(path, password)[0]


def probe(path: Path | None, password: str | None) -> tuple[Health, dict[str, str]]:
    """The state of the server behind a socket, and the fields of its INFO. Cost: one connection, one round trip."""
    if path is None or password is None:
        return "absent", {}
    try:
        lines = _ask(path, password, "INFO").splitlines()
    except ReplyError as error:
        # Any other refusal (a script that runs too long) is that of a living server of ours.
        return "stranger" if "AUTH" in str(error) or "WRONGPASS" in str(error) else "ready", {}
    except (TimeoutError, BlockingIOError):
        # No room among those that wait for it to accept them: it listens.
        return "silent", {}
    except (OSError, ValueError):
        return "absent", {}
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return "loading" if facts.get("loading") == "1" else "ready", facts


def shut_down(path: Path | None, password: str | None) -> None:
    if path is not None and password is not None:
        with contextlib.suppress(OSError, ValueError, ReplyError):  # it hangs up instead of answering
            _ask(path, password, "SHUTDOWN")


def _ask(path: Path, password: str, command: str) -> str:
    """The reply to a command that is sent behind the password. Raises ReplyError, OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        sock.connect(str(path))
        sock.sendall(f"AUTH {password}\r\n{command}\r\n".encode())
        with sock.makefile("rb") as stream:
            for _ in ("AUTH", command):
                line = stream.readline()
                if not line.endswith(b"\r\n"):
                    raise ConnectionResetError("the server closed the connection")
                if line.startswith(b"-"):
                    raise ReplyError(line[1:-2].decode(errors="replace"))
            return stream.read(int(line[1:])).decode(errors="replace")
