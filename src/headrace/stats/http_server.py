"""A small HTTP server for programs that look at a worker: Prometheus, and the probes of an orchestrator.

Owns one listening socket, and a thread for each request; knows pages by path, and nothing of what they tell.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from headrace.errors import HeadraceError, OptionsError

log = logging.getLogger("headrace.stats")

LOCAL, PORT = "127.0.0.1", 9464


class Answer(NamedTuple):
    """What a page says."""

    status: int
    body: str
    type: str = "text/plain; charset=utf-8"


#: A page: what was asked behind the ``?``, by name; and what it says to that.
Page = Callable[[Mapping[str, str]], Answer]


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9464``, ``[::1]:9464`` or ``9464``, which is this machine's own.

    Raises:
        OptionsError: it names no address.
    """
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535 or (":" in host and host[:1] != "["):
        raise OptionsError(f"metrics={text!r} is no address: write 127.0.0.1:9464, [::1]:9464 or a port alone")
    return host.strip("[]") or LOCAL, int(port)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        HeadraceError: the address cannot be used.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(16)
        except BaseException:
            sock.close()
            raise
    except (OSError, OverflowError) as error:
        raise HeadraceError(f"cannot listen on {host}:{port}: {error}; take another port or address") from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a listening socket is asked."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


class _Quiet(WSGIRequestHandler):
    # Who connects and says nothing holds a thread for so long, seconds.
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        log.debug(format, *args)


class _Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def serve(sock: socket.socket, metrics: Callable[[Any, Any], Iterable[bytes]], pages: Mapping[str, Page]) -> NoReturn:
    """Answer whoever asks at a listening socket, in a thread each, until an exception ends it.

    Args:
        metrics: the WSGI application for every path that is no page.
        pages: by path, such as ``/healthz``.
    """
    server = _Threaded(sock.getsockname()[:2], _Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = sock
    # What binding would have done, but for the look-up of our own name, which may take seconds.
    server.server_name, server.server_port = sock.getsockname()[:2]
    server.setup_environ()
    server.set_app(_routed(metrics, pages))
    server.serve_forever()
    raise AssertionError


def _routed(
    metrics: Callable[[Any, Any], Iterable[bytes]], pages: Mapping[str, Page]
) -> Callable[[Any, Any], Iterable[bytes]]:
    """Pages by their path, metrics elsewhere. A store that does not answer is told, and no fault of this program."""

    def answered(environ: Any, start: Any) -> Iterable[bytes]:
        page = pages.get(environ.get("PATH_INFO", ""))
        try:
            if page is None:
                return metrics(environ, start)
            status, body, type_ = page(dict(parse_qsl(environ.get("QUERY_STRING", ""))))
        except OptionsError as error:
            status, body, type_ = Answer(400, f"{error}\n")
        except HeadraceError as error:
            if page is None:
                log.warning("Prometheus got an error instead of metrics: %s", error)
            status, body, type_ = Answer(503, f"{error}\n")
        data = body.encode()
        phrase = f"{status} {HTTPStatus(status).phrase}"
        start(phrase, [("Content-Type", type_), ("Content-Length", str(len(data))), ("Cache-Control", "no-store")])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [data]

    return answered
