"""A tap on the way to the server: passes bytes on until a script's call, chosen by name, then holds them.

Owns a Unix socket, and a thread for each direction of each connection. It knows the protocol just well enough to see
where a request ends and which script it calls. What it holds is let go or dropped, as if the client had died with it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from headrace.protocol.script import load
from headrace.worker.dispatcher.store_session import SCRIPTS


class Trap:
    """Springs at the ``nth`` call of a script: before the server hears of it, or before its reply is heard.

    Attributes:
        sprung: set when the call is held, and, for a reply, when the server has answered.
    """

    def __init__(self, script: str, side: str, nth: int) -> None:
        self.script = script
        self.side = side
        self.left = nth
        self.sprung = threading.Event()
        self.opened = threading.Event()
        self.dropped = False

    def release(self) -> None:
        """Let everything go on."""
        self.opened.set()

    def drop(self) -> None:
        """What is held is lost, and its connection with it."""
        self.dropped = True
        self.opened.set()


class Tap:
    """Listens at ``url`` and passes on to the server's socket."""

    def __init__(self, upstream: Path, directory: Path) -> None:
        self.path = directory / "tap.sock"
        self.url = f"unix://{self.path}"
        self._upstream = str(upstream)
        self._names = {load(name).sha.encode(): name for name in SCRIPTS}
        self._traps: list[Trap] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._spawn(self._accept)

    def trap(self, script: str, side: str, nth: int = 1) -> Trap:
        """Hold the ``nth`` call of ``script`` from now on; ``side`` is ``request`` or ``reply``."""
        self._traps.append(Trap(script, side, nth))
        return self._traps[-1]

    def cut(self) -> None:
        """Close every connection that passes here; new ones are accepted."""
        for one in list(self._sockets):
            _close(one)

    def close(self) -> None:
        for trap in self._traps:
            trap.drop()
        _close(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._upstream)
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                held: list[Trap] = []
                self._spawn(self._requests, client, server, held)
                self._spawn(self._replies, client, server, held)

    def _requests(self, client: socket.socket, server: socket.socket, held: list[Trap]) -> None:
        buffer = b""
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                buffer += data
                ready = 0
                while (found := _command(buffer, ready)) is not None:
                    words, end = found
                    trap = self._matching(words)
                    if trap is not None and trap.side == "request":
                        server.sendall(buffer[:ready])
                        buffer, end, ready = buffer[ready:], end - ready, 0
                        trap.sprung.set()
                        trap.opened.wait()
                        if trap.dropped:
                            raise OSError
                    elif trap is not None:
                        held.append(trap)
                    ready = end
                server.sendall(buffer[:ready])
                buffer = buffer[ready:]
        _close(client)
        _close(server)

    def _replies(self, client: socket.socket, server: socket.socket, held: list[Trap]) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if held:
                    trap = held.pop()
                    trap.sprung.set()
                    trap.opened.wait()
                    if trap.dropped:
                        break
                client.sendall(data)
        _close(client)
        _close(server)

    def _matching(self, words: list[bytes]) -> Trap | None:
        if words[0].upper() != b"EVALSHA":
            return None
        name = self._names.get(words[1])
        for trap in self._traps:
            if trap.script == name and not trap.sprung.is_set():
                trap.left -= 1
                if trap.left == 0:
                    return trap
        return None


def _command(buffer: bytes, start: int) -> tuple[list[bytes], int] | None:
    """The first two words of the request that begins at ``start``, and where it ends; None when it is not all there."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return None
    count, at, words = int(buffer[start + 1 : line]), line + 2, list[bytes]()
    for _ in range(count):
        line = buffer.find(b"\r\n", at)
        if line < 0:
            return None
        size = int(buffer[at + 1 : line])
        at = line + 2 + size + 2
        if at > len(buffer):
            return None
        if len(words) < 2:
            words.append(buffer[line + 2 : at - 2])
    return words, at


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
