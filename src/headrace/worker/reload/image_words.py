"""The wire between two images of a worker: a socket with one line of JSON for each word."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

# Names the descriptor through which a new image speaks; taken out of the environment before any other code runs.
VARIABLE = "HEADRACE_LINEAGE"


Word = list[Any]
"""``["claims"]``, ``["failed", text]``, ``["modules", path, ...]`` or ``["roll"]``; both ways also
``["size", kind, number]`` and ``["grow", number]``."""


class Words:
    """Lines of JSON over a socket that does not block for reading.

    Attributes:
        begun: what has come of a line that is not there yet.
    """

    def __init__(self, sock: socket.socket, begun: bytes = b"") -> None:
        self.sock = sock
        self.begun = begun

    def fileno(self) -> int:
        return self.sock.fileno()

    def say(self, *word: Any) -> None:
        """Whoever is gone need not hear it."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(word).encode() + b"\n")

    def offer(self, *word: Any) -> None:
        """The same to somebody who may not listen for long: without waiting, so that it may be lost."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(word).encode() + b"\n", socket.MSG_DONTWAIT)

    def hear(self) -> tuple[list[Word], bool]:
        """The words that have arrived, and whether more may come."""
        try:
            data = self.sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return [], True
        except OSError:
            data = b""
        *lines, self.begun = (self.begun + data).split(b"\n")
        return [json.loads(line) for line in lines], bool(data)

    def close(self) -> None:
        self.sock.close()
