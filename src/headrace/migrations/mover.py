"""The mover: copies a store to another server while its programs stand still, and leaves the new URL behind.

1. Marks the source (``move``) and ends the connections there: programs that come back are refused, with the new URL.
2. Copies keys by DUMP and RESTORE, a piece at a time; the mark in the target holds the place of the next piece.
3. Completes the source's mark, then removes the target's. No program may use a store that has one, so that a job can
   be claimed in one place at most, wherever this ends; the next run goes on.

The source keeps its keys: delete them when nothing needs them any more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from headrace.errors import MigrationRefused, SchemaMismatch, ServerError
from headrace.migrations.migrator import MigrationLink, run_id
from headrace.migrations.step import Command, walked
from headrace.protocol.keys import SCHEMA, keys_of
from headrace.settings import Settings
from headrace.store.url import Target

# Keys of one piece, and microseconds without a sign of life after which another program may go on.
PIECE = 200
LEASE = 10_000_000


class Moved(msgspec.Struct):
    """What this run has copied so far; ``share``: how much of the source it has read, 0 to 1."""

    keys: int = 0
    bytes: int = 0
    share: float = 0.0


class _Side(msgspec.Struct, frozen=True):
    """What one of the two stores says of itself."""

    schema: int
    mark: dict[str, str]
    now: int
    workers: list[str]
    server: str
    migrates: bool


class Mover:
    """Moves one store. A context manager; not for threads.

    Args:
        source, target: where the store is, and where it is to be: a server without one in this namespace.
    """

    def __init__(
        self, source: Target, target: Target, settings: Settings, *, piece: int = PIECE, lease: int = LEASE
    ) -> None:
        self._source, self._target = source, target
        self._here, self._there = MigrationLink(source, settings), MigrationLink(target, settings)
        self._keys = keys_of(settings.namespace)
        self._mark = self._keys("move")
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._piece, self._lease = piece, lease

    def run(self, heard: Callable[[Moved], object] = lambda _: None) -> Moved:
        """Move the store, or go on where a run before was ended.

        Raises:
            MigrationRefused: workers live, another program moves it, the target holds a store, or all is done already.
            SchemaMismatch: the store has another layout, or is being migrated.
            ServerError: the target cannot read the source's values, as an older server cannot.
            StoreUnavailable: a connection was lost; the next run goes on.

        Cost: four round trips for every 200 keys.
        """
        here, there = self._look(self._here), self._look(self._there)
        self._refuse(here, there)
        moved = Moved()
        if "done" not in here.mark:
            here, there = self._begin(here, there)
            cursor = there.mark.get("cursor", "") if there.mark.get("server") == here.server else ""
            self._hold(there, {"cursor": cursor, "server": here.server})
            while cursor := self._copy(cursor, moved):
                heard(moved)
            self._write(self._here, [("HSET", self._mark, "done", 1)])
        self._write(self._there, [("DEL", self._mark)])
        moved.share = 1.0
        heard(moved)
        return moved

    def close(self) -> None:
        self._here.close()
        self._there.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, link: MigrationLink) -> _Side:
        asked: list[Command] = [("GET", self._keys("schema")), ("HGETALL", self._mark), ("TIME",)]
        asked += [("ZRANGE", self._keys("owners"), -10, -1, "WITHSCORES"), ("INFO", "server")]
        schema, mark, clock, owners, info, migrates = self._ask(link, [*asked, ("EXISTS", self._keys("migration"))])
        now = int(clock[0]) * 1_000_000 + int(clock[1])
        workers = [owners[n].decode() for n in range(0, len(owners), 2) if float(owners[n + 1]) > now]
        facts = {mark[n].decode(): mark[n + 1].decode() for n in range(0, len(mark), 2)}
        return _Side(int(schema or 0), facts, now, workers, run_id(info), bool(migrates))

    def _refuse(self, here: _Side, there: _Side) -> None:
        source, target = self._source.shown, self._target.shown
        if "from" in here.mark or here.mark.get("to", target) != target:
            way = f"from {here.mark['from']}" if "from" in here.mark else f"to {here.mark['to']}"
            raise MigrationRefused(f"{source} is being moved {way}: run headrace migrate --to-url with these two again")
        if here.schema != SCHEMA or here.migrates:
            held = "is being migrated" if here.migrates else f"holds schema {here.schema}"
            raise SchemaMismatch(
                f"{source} {held if here.schema else 'holds no store'}: run headrace migrate there first"
            )
        if here.workers:
            raise MigrationRefused(
                f"workers use {source}: {', '.join(here.workers)}; stop them, and repeat this (a worker that was "
                f"killed counts until its lease ends)"
            )
        mine = there.mark.get("number") == here.mark.get("number", "-")
        if "done" in here.mark and not mine:
            raise MigrationRefused(f"{source} has moved to {target} already: give programs that URL")
        if not mine and (there.mark or self._holds_keys()):
            raise MigrationRefused(
                f"{target} holds a store in this namespace already: name a server, a database or a namespace without"
            )
        if mine and int(there.mark.get("until", 0)) > there.now and there.mark.get("owner") != self._owner:
            raise MigrationRefused(
                f"another program moves it ({there.mark.get('owner')}): wait for its end; if it has died, go on in "
                f"{(int(there.mark['until']) - there.now) / 1e6:.0f} s"
            )

    def _holds_keys(self) -> bool:
        """Whether the target has more in this namespace than a program leaves that only looked."""
        cursor = b"0"
        while True:
            ((cursor, keys),) = self._ask(
                self._there, [("SCAN", cursor, "MATCH", f"{self._keys.prefix}*", "COUNT", 50 * self._piece)]
            )
            if {*keys} - {self._keys("schema").encode()}:
                return True
            if cursor == b"0":
                return False

    def _begin(self, here: _Side, there: _Side) -> tuple[_Side, _Side]:
        """Mark the source, so that no program uses it; those that are connected come back, and are refused."""
        fields = {"to": self._target.shown, "number": os.urandom(8).hex()}
        self._write(self._here, [("HSETNX", self._mark, name, value) for name, value in fields.items()])
        before, here = here, self._look(self._here)
        try:
            self._refuse(here, there)
        except MigrationRefused:
            if not before.mark:
                self._write(self._here, [("DEL", self._mark)])
            raise
        (clients,) = self._ask(self._here, [("CLIENT", "LIST")])
        (mine,) = self._ask(self._here, [("CLIENT", "ID")])
        names = {"headrace", str(self._source.options.get("client_name", ""))} - {""}
        lines = [dict(word.partition("=")[::2] for word in line.split()) for line in clients.decode().splitlines()]
        ours = [line["id"] for line in lines if line.get("name") in names and int(line["id"]) != mine]
        # One may have gone by itself since.
        self._here.exchange([("CLIENT", "KILL", "ID", id) for id in ours])
        return here, there

    def _hold(self, there: _Side, place: dict[str, str]) -> None:
        """Take the lease of the target, which no other program may have taken since it was looked at."""
        (number,) = self._ask(self._here, [("HGET", self._mark, "number")])
        facts = {"from": self._source.shown, "number": number, "owner": self._owner, **place}
        facts["until"] = there.now + self._lease
        _, held = self._ask(self._there, [("WATCH", self._mark), ("HGET", self._mark, "owner")])
        if (held or b"").decode() != there.mark.get("owner", ""):
            raise self._lost()
        words = [word for pair in facts.items() for word in pair]
        self._write(self._there, [("HSET", self._mark, *words)])

    def _copy(self, cursor: str, moved: Moved) -> str:
        """Copy a piece; the cursor of the next, empty after the last."""
        ((after, keys),) = self._ask(
            self._here, [("SCAN", cursor or "0", "MATCH", f"{self._keys.prefix}*", "COUNT", self._piece)]
        )
        keys = [key for key in keys if key != self._mark.encode()]
        told = self._ask(self._here, [(verb, key) for key in keys for verb in ("DUMP", "PTTL")]) if keys else []
        found = [(key, told[2 * n], told[2 * n + 1]) for n, key in enumerate(keys) if told[2 * n] is not None]
        _, owner, clock = self._ask(self._there, [("WATCH", self._mark), ("HGET", self._mark, "owner"), ("TIME",)])
        if owner != self._owner.encode():
            raise self._lost()
        following = "" if after == b"0" else after.decode()
        until = int(clock[0]) * 1_000_000 + int(clock[1]) + self._lease
        writes: list[Command] = [("RESTORE", key, max(0, ttl), value, "REPLACE") for key, value, ttl in found if ttl]
        # After the last piece it is empty too: a run that ends between there and the next step copies all once more.
        self._write(self._there, [*writes, ("HSET", self._mark, "cursor", following, "until", until)])
        moved.keys += len(writes)
        moved.bytes += sum(len(value) for _, value, _ in found)
        moved.share = walked(self._keys, following) if following else 1.0
        return following

    def _write(self, link: MigrationLink, writes: Sequence[Command]) -> None:
        """Write all or none."""
        *_, done = replies = link.exchange([("MULTI",), *writes, ("EXEC",)])
        if done is None:
            raise self._lost()
        self._checked(link, replies if isinstance(done, Exception) else done)

    def _ask(self, link: MigrationLink, commands: Sequence[Command]) -> list[Any]:
        return self._checked(link, link.exchange(commands))

    def _checked(self, link: MigrationLink, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, Exception):
                if "DUMP payload" in str(reply):
                    raise ServerError(
                        f"{self._target.shown} cannot read values of {self._source.shown}, which is a newer server: "
                        f"move to one as new"
                    )
                raise link.fault(reply)
        return replies

    def _lost(self) -> MigrationRefused:
        return MigrationRefused(
            "another program goes on with this move, since this one was held up for longer than its lease"
        )
