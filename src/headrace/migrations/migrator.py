"""The migrator: leads a store from one layout to another, a piece at a time, and can be ended anywhere.

A lease lets one migration at it, and none while workers live. Each piece is applied together with the place of the next
one, in a transaction that fails when the lease was lost; a step's last piece moves the schema number.

The mover copies a store to another server while its programs stand still, and leaves the new URL behind:

1. Marks the source (``move``) and ends the connections there: programs that come back are refused, with the new URL.
2. Copies keys by DUMP and RESTORE, a piece at a time; the mark in the target holds the place of the next piece.
3. Completes the source's mark, then removes the target's. No program may use a store that has one, so that a job can
   be claimed in one place at most, wherever this ends; the next run goes on.

The source keeps its keys: delete them when nothing needs them any more.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec
from redis import exceptions as driver

from headrace.errors import HeadraceError, MigrationRefused, SchemaMismatch, ServerError, StoreUnavailable
from headrace.migrations.step import (
    Command,
    Leg,
    Piece,
    Progress,
    Step,
    StoreState,
    in_order,
    plan,
    raw,
    state_of,
    walked,
)
from headrace.protocol.keys import SCHEMA, Keys, keys_of
from headrace.settings import Settings
from headrace.store.client import driven
from headrace.store.raw_connection import RawConnection
from headrace.store.reach import examined
from headrace.store.url import Target
from headrace.store.verdict import verdict

# Keys of one piece. The server does nothing else while it applies one: with 500, that took up to 10 ms.
PIECE = 200
# Microseconds for which no other migration may go on after the last sign of life; a piece takes milliseconds.
LEASE = 10_000_000

Heard = Callable[[Progress], object]


class Migrator:
    """Migrates one shard. A context manager; not for threads.

    Args:
        target, settings: where the store is, and how long to wait for it.
        steps: all that there are.
        keys: of the shard; None: there is one.
        piece: keys of one piece, roughly.
        lease: microseconds.
    """

    def __init__(
        self, target: Target, settings: Settings, steps: Sequence[Step], keys: Keys | None = None, *,
        piece: int = PIECE, lease: int = LEASE,
    ) -> None:  # fmt: skip
        self.target = target
        self.keys: Keys = keys or keys_of(settings.namespace)
        self.steps = in_order(steps)
        self.newest = self.steps[-1].version if self.steps else 1
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._settings = settings
        self._size = piece
        self._lease = lease
        self._mark = self.keys("migration")
        self._begun = False  # The store may be between two layouts.
        self._link = MigrationLink(target, settings)

    def look(self) -> StoreState:
        return self._look([])

    def run(self, to: int | None = None, heard: Heard = lambda _: None) -> list[Progress]:
        """Migrate to a layout (None: this Headrace's own); what each leg came to. None are needed in an empty store.

        Raises:
            MigrationRefused: workers live, another migration holds the lease, or a step cannot go there now.
            SchemaMismatch: the store is newer than this Headrace.
            OptionsError: there is no such layout.
            StoreUnavailable: the connection was lost; the next run goes on where this one was.

        Cost: about four round trips for every 200 keys of the database.
        """
        sight, done = self._look([("WATCH", self._mark, self.keys("schema"))]), list[Progress]()
        self._begun = sight.unfinished is not None
        try:
            legs = self._legs(sight, to)
            if legs:
                self._refuse(sight)
                self._apply(self._taken(legs[0], sight), legs[0])
            for n, leg in enumerate(legs):
                done.append(self._walk(leg, legs[n + 1 : n + 2], heard))
        except BaseException:
            self._release()
            raise
        return done

    def rehearse(self, to: int | None = None, heard: Heard = lambda _: None) -> list[Progress]:
        """What :meth:`run` would do, by reading alone; a later leg sees the store as it is. Raises: as :meth:`run`."""
        done: list[Progress] = []
        for leg in self._legs(self.look(), to):
            progress, piece = Progress(leg), self._piece(leg, leg.cursor)
            heard(progress := _further(progress, piece))
            while piece.cursor:
                piece = self._piece(leg, piece.cursor)
                heard(progress := _further(progress, piece))
            done.append(progress)
        return done

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _legs(self, sight: StoreState, to: int | None) -> list[Leg]:
        highest = max(sight.schema, sight.unfinished.version if sight.unfinished is not None else 0)
        if highest > self.newest:
            place = "holds" if highest == sight.schema else "is on its way to"
            raise SchemaMismatch(
                f"{self.target.shown} {place} schema {highest}, written by a newer Headrace; this one knows "
                f"{self.newest}: upgrade headrace here"
            )
        target = self.newest if to is None else to
        if not sight.schema:
            plan(self.steps, self.newest, target)
            return []
        return plan(self.steps, sight.schema, target, sight.unfinished)

    def _refuse(self, sight: StoreState) -> None:
        if sight.until > sight.now and sight.owner != self.owner:
            raise MigrationRefused(
                f"another migration is at it ({sight.owner}): wait for its end; should it have died, its lease ends in "
                f"{(sight.until - sight.now) / 1e6:.0f} s, and then this command goes on where it was"
            )
        if sight.workers:
            raise MigrationRefused(
                f"workers use {self.target.shown}: {', '.join(sight.workers)}; stop them and all programs that "
                f"enqueue, and repeat this (a worker that was killed counts until its lease ends)"
            )

    def _walk(self, leg: Leg, then: Sequence[Leg], heard: Heard) -> Progress:
        progress, cursor = Progress(leg), leg.cursor
        heard(progress)
        while True:
            sight = self._look([("WATCH", self._mark)])
            if sight.owner != self.owner:
                raise self._lost(leg)
            self._refuse(sight)
            piece = self._piece(leg, cursor)
            self._begun = self._begun or bool(piece.writes)
            place: Command = ("HSET", self._mark, "cursor", piece.cursor, "until", sight.now + self._lease)
            follow = self._taken(then[0], sight) if then else []
            end: list[Command] = [("SET", self.keys("schema"), leg.leads_to), ("DEL", self._mark), *follow]
            writes = [*piece.writes, *([place] if piece.cursor else end)]
            if piece.writes or not piece.cursor:
                # No ended lease can be renewed then: a worker that was only suspended must register, and is refused.
                writes.insert(0, ("ZUNIONSTORE", self.keys("owners"), 1, self.keys("owners"), "WEIGHTS", 0))
            self._apply(writes, leg)
            progress = _further(progress, piece)
            self._begun = self._begun and bool(piece.cursor)
            heard(progress)
            if not (cursor := piece.cursor):
                return progress

    def _piece(self, leg: Leg, cursor: str) -> Piece:
        reads = leg.move(self.keys, cursor, self._size)
        return driven(reads, lambda wanted: self._link.exchange(wanted) if wanted else [])

    def _taken(self, leg: Leg, sight: StoreState) -> list[Command]:
        facts: dict[str, str | int] = {"owner": self.owner, "until": sight.now + self._lease, "server": sight.server}
        facts |= {"version": leg.step.version, "direction": leg.direction, "cursor": leg.cursor}
        return [("HSET", self._mark, *(word for pair in facts.items() for word in pair))]

    def _lost(self, leg: Leg) -> MigrationRefused:
        return MigrationRefused(
            f"the lease was lost on the way to schema {leg.leads_to}, since this program was held up for longer than "
            f"{self._lease / 1e6:.0f} s: another one goes on"
        )

    def _release(self) -> None:
        # On a new connection: on this one, replies may be on their way.
        self.close()
        left: Command = ("HSET", self._mark, "until", 0) if self._begun else ("DEL", self._mark)
        with contextlib.suppress(HeadraceError):
            if self._look([("WATCH", self._mark)]).owner == self.owner:
                self._link.exchange([("MULTI",), left, ("EXEC",)])
        self.close()

    def _look(self, before: Sequence[Command]) -> StoreState:
        schema, mark = self.keys("schema"), self._mark
        asked: list[Command] = [("GET", schema), ("HGETALL", mark), ("TIME",)]
        asked += [("ZRANGE", self.keys("owners"), -10, -1, "WITHSCORES"), ("INFO", "server")]
        found, facts, clock, owners, info = self._link.ask([*before, *asked])[len(before) :]
        try:
            return state_of(found, facts, clock, owners, run_id(info))
        except (ValueError, KeyError):
            raise ServerError(
                f"{self.target.shown} has something in {schema} or {mark} that no Headrace wrote: the first holds the "
                f"number of the layout, the second is there only while a migration is under way"
            ) from None

    def _apply(self, writes: Sequence[Command], leg: Leg) -> None:
        """Write all or none. Raises MigrationRefused: none, since another migration has the lease."""
        if not self._link.write(writes):
            raise self._lost(leg)


def _further(progress: Progress, piece: Piece) -> Progress:
    return Progress(progress.leg, progress.read + piece.read, progress.changed + piece.changed, piece.share)


class MigrationLink:
    """Connects at its first use, and anew after an error."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._connection: RawConnection | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands; their replies, errors among them as values. Cost: one round trip."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.ask(*raw(commands))
        except (driver.RedisError, OSError) as error:
            self.close()
            raise self.fault(error) from error

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """As :meth:`exchange`; raises the first error among the replies."""
        return self._checked(self.exchange(commands))

    def write(self, writes: Sequence[Command]) -> bool:
        """Write all or none; False: a key that is watched has changed."""
        *_, done = replies = self.exchange([("MULTI",), *writes, ("EXEC",)])
        # One that was refused when it was queued is told before the reply of EXEC, which then is an error itself.
        if done is not None:
            self._checked(replies if isinstance(done, Exception) else done)
        return done is not None

    def _checked(self, replies: list[Any]) -> list[Any]:
        if wrong := next((reply for reply in replies if isinstance(reply, Exception)), None):
            raise self.fault(wrong)
        return replies

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> RawConnection:
        connection = RawConnection(self._target, self._settings.timeout)
        try:
            examined(connection, self._target, self._settings.allow_eviction)
        except BaseException:
            connection.close()
            raise
        return connection

    def fault(self, error: Exception) -> HeadraceError:
        if "DUMP payload" in str(error):
            text = f"{self._target.shown} cannot read the values of a newer server: move the store to one as new"
            return ServerError(text)
        word = verdict(error, self._target, "migrate")
        if isinstance(word, HeadraceError):
            return word
        if word == "load":
            return ServerError(f"{self._target.shown} answered: {error}")
        return StoreUnavailable(
            f"{self._target.shown} does not answer ({error}): run headrace migrate again when it does, it goes on "
            f"where it was"
        )


def run_id(info: bytes) -> str:
    lines = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
    return lines.get("run_id", "")


class Moved(msgspec.Struct):
    """What this run has copied so far; ``share``: how much of the source it has read, 0 to 1."""

    keys: int = 0
    bytes: int = 0
    share: float = 0.0


class _Side(msgspec.Struct, frozen=True):
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
            self._take_target_lease(there, {"cursor": cursor, "server": here.server})
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
        schema, mark, clock, owners, info, migrates = link.ask([*asked, ("EXISTS", self._keys("migration"))])
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
            held = held if here.schema else "holds no store"
            raise SchemaMismatch(f"{source} {held}: run headrace migrate there first")
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
            ((cursor, keys),) = self._there.ask(
                [("SCAN", cursor, "MATCH", f"{self._keys.prefix}*", "COUNT", 50 * self._piece)]
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
        (clients,) = self._here.ask([("CLIENT", "LIST")])
        (mine,) = self._here.ask([("CLIENT", "ID")])
        names = {"headrace", str(self._source.options.get("client_name", ""))} - {""}
        lines = [dict(word.partition("=")[::2] for word in line.split()) for line in clients.decode().splitlines()]
        ours = [line["id"] for line in lines if line.get("name") in names and int(line["id"]) != mine]
        # One may have gone by itself since.
        self._here.exchange([("CLIENT", "KILL", "ID", id) for id in ours])
        return here, there

    def _take_target_lease(self, there: _Side, place: dict[str, str]) -> None:
        (number,) = self._here.ask([("HGET", self._mark, "number")])
        facts = {"from": self._source.shown, "number": number, "owner": self._owner, **place}
        facts["until"] = there.now + self._lease
        _, held = self._there.ask([("WATCH", self._mark), ("HGET", self._mark, "owner")])
        if (held or b"").decode() != there.mark.get("owner", ""):
            raise self._lost()
        words = [word for pair in facts.items() for word in pair]
        self._write(self._there, [("HSET", self._mark, *words)])

    def _copy(self, cursor: str, moved: Moved) -> str:
        """Copy a piece; the cursor of the next, empty after the last."""
        ((after, keys),) = self._here.ask(
            [("SCAN", cursor or "0", "MATCH", f"{self._keys.prefix}*", "COUNT", self._piece)]
        )
        keys = [key for key in keys if key != self._mark.encode()]
        told = self._here.ask([(verb, key) for key in keys for verb in ("DUMP", "PTTL")]) if keys else []
        found = [(key, told[2 * n], told[2 * n + 1]) for n, key in enumerate(keys) if told[2 * n] is not None]
        _, owner, clock = self._there.ask([("WATCH", self._mark), ("HGET", self._mark, "owner"), ("TIME",)])
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
        if not link.write(writes):
            raise self._lost()

    def _lost(self) -> MigrationRefused:
        return MigrationRefused(
            "another program goes on with this move, since this one was held up for longer than its lease"
        )
