"""What server-assisted invalidation costs the server: tracking per read, and broadcast of a prefix.

Fifty connections listen; each keeps a few names of its own, and a writer changes names at random. Per read, the server
remembers who read what and tells those; with broadcast it remembers nothing and tells all. Each announcement makes
those who kept the name read it again. Memory is that of one more connection that keeps 20,000 names.
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass
from typing import Any

import hiredis
import redis

from bench.context import Context
from bench.figure import Figure
from bench.servers import Server, server

LISTENERS, NAMES, EACH, MANY = 50, 1000, 20, 20_000
_MORE: Any = object()


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way: server time and announcements a write, bytes of the server a kept name."""

    cpu: float
    announced: float
    memory: float


class Listener:
    """One process's connection, and the names that it keeps."""

    def __init__(self, target: Server, tracking: tuple[str, ...], names: list[str]) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(target.url.removeprefix("unix://"))
        self.reader: Any = hiredis.Reader(notEnoughData=_MORE)
        self.names = set(names)
        self.announced = 0
        self.send(("HELLO", "3"), *([("CLIENT", "TRACKING", "ON", *tracking)] if tracking else []))
        self.send(*(("GET", name) for name in names))

    def send(self, *commands: tuple[str, ...]) -> None:
        pack: Any = hiredis.pack_command
        self.sock.sendall(b"".join(pack(command) for command in commands))

    def hear(self) -> None:
        self.reader.feed(self.sock.recv(1 << 16))
        again: list[tuple[str, ...]] = []
        while (message := self.reader.gets()) is not _MORE:
            if isinstance(message, hiredis.PushNotification):
                self.announced += 1
                again += [("GET", key.decode()) for key in message[1] or [] if key.decode() in self.names]
        if again:
            self.send(*again)


def _cost(context: Context, tracking: tuple[str, ...]) -> Cost:
    with server() as target, redis.Redis.from_url(target.url, protocol=2) as writer:
        for n in range(NAMES):
            writer.set(f"cache:{n}", "x" * 100)
        crowd = [
            Listener(target, tracking, [f"cache:{(n * EACH + m) % NAMES}" for m in range(EACH)])
            for n in range(LISTENERS)
        ]
        _settle(crowd)
        started, writes = target.work(), context.scaled(5000)
        for n in range(writes):
            writer.set(f"cache:{n * 7919 % NAMES}", "y" * 100)
            if n % 10 == 9:
                _settle(crowd, 0)
        _settle(crowd)
        spent = target.work() - started
        announced = sum(one.announced for one in crowd)
        for one in crowd:
            one.sock.close()
        for n in range(MANY):
            writer.set(f"cache:many-{n}", "")
        last = Listener(target, tracking, ["cache:0"])
        _settle([last])
        before = target.work().memory
        for first in range(0, MANY, 100):
            last.send(*(("GET", f"cache:many-{n}") for n in range(first, first + 100)))
            _settle([last], 0.01)
        memory = target.work().memory - before
        last.sock.close()
    return Cost(spent.cpu / writes, announced / writes, memory / MANY)


def _settle(crowd: list[Listener], seconds: float = 0.05) -> None:
    """Hear all until nobody has anything to say."""
    sockets = {one.sock: one for one in crowd}
    while ready := select.select([*sockets], [], [], seconds)[0]:
        for sock in ready:
            sockets[sock].hear()


def run(context: Context) -> list[Figure]:
    """Both ways, beside a server that announces nothing."""
    context.say("tracking: per read and by prefix")
    none, reads = _cost(context, ()), _cost(context, ("NOLOOP",))
    prefix = _cost(context, ("BCAST", "PREFIX", "cache:"))
    figures: list[Figure] = []
    for way, cost in (("per read", reads), ("by prefix", prefix)):
        figures += [
            Figure(f"server time a write, {LISTENERS} listeners, {way}", cost.cpu, "us", "no tracking", none.cpu),
            Figure(f"announcements a write, {LISTENERS} listeners, {way}", cost.announced, "messages"),
            Figure(f"server memory a kept name, {way}", cost.memory, "bytes", "no tracking", none.memory),
        ]
    return figures
