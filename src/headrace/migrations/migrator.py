"""The migrator: leads a store from one layout to another, a piece at a time, and can be ended anywhere.

A lease lets one migration at it, and none while workers live. Each piece is applied together with the place of the next
one, in a transaction that fails when the lease was lost; a step's last piece moves the schema number.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Self

from redis import exceptions as driver

from headrace.errors import HeadraceError, MigrationRefused, SchemaMismatch, ServerError, StoreUnavailable
from headrace.migrations.step import Command, Leg, Piece, Progress, Step, StoreState, in_order, plan, raw, state_of
from headrace.protocol.keys import Keys, keys_of
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
        self,
        target: Target,
        settings: Settings,
        steps: Sequence[Step],
        keys: Keys | None = None,
        *,
        piece: int = PIECE,
        lease: int = LEASE,
    ) -> None:
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
        """What :meth:`run` would do, found by reading alone. A leg after the first sees the store as it is now. Raises:
        as :meth:`run`, but for workers and leases.
        """
        done: list[Progress] = []
        for leg in self._legs(self.look(), to):
            progress, cursor = Progress(leg), leg.cursor
            while True:
                piece = self._piece(leg, cursor)
                progress = _further(progress, piece)
                heard(progress)
                if not (cursor := piece.cursor):
                    break
            done.append(progress)
        return done

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- a journey ------------------------------------------------------------------------------------------------

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
            writes = [*piece.writes, *([place] if piece.cursor else self._completed(leg, then, sight))]
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
        return driven(reads, lambda wanted: self._exchange(wanted) if wanted else [])

    def _taken(self, leg: Leg, sight: StoreState) -> list[Command]:
        facts: dict[str, str | int] = {"owner": self.owner, "until": sight.now + self._lease, "server": sight.server}
        facts |= {"version": leg.step.version, "direction": leg.direction, "cursor": leg.cursor}
        return [("HSET", self._mark, *(word for pair in facts.items() for word in pair))]

    def _completed(self, leg: Leg, then: Sequence[Leg], sight: StoreState) -> list[Command]:
        follow = self._taken(then[0], sight) if then else []
        return [("SET", self.keys("schema"), leg.leads_to), ("DEL", self._mark), *follow]

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
                self._exchange([("MULTI",), left, ("EXEC",)])
        self.close()

    # -- the server ------------------------------------------------------------------------------------------------

    def _look(self, before: Sequence[Command]) -> StoreState:
        schema, mark = self.keys("schema"), self._mark
        asked: list[Command] = [("GET", schema), ("HGETALL", mark), ("TIME",)]
        asked += [("ZRANGE", self.keys("owners"), -10, -1, "WITHSCORES"), ("INFO", "server")]
        replies = self._exchange([*before, *asked])[len(before) :]
        if wrong := next((reply for reply in replies if isinstance(reply, Exception)), None):
            raise self._link.fault(wrong)
        found, facts, clock, owners, info = replies
        try:
            return state_of(found, facts, clock, owners, run_id(info))
        except (ValueError, KeyError):
            raise ServerError(
                f"{self.target.shown} has something in {schema} or {mark} that no Headrace wrote: the first holds the "
                f"number of the layout, the second is there only while a migration is under way"
            ) from None

    def _apply(self, writes: Sequence[Command], leg: Leg) -> None:
        """Write all or none. Raises MigrationRefused: none, since another migration has the lease."""
        replies = self._exchange([("MULTI",), *writes, ("EXEC",)])
        done: Any = replies[-1]
        if done is None:
            raise self._lost(leg)
        # One that was refused when it was queued is told before the reply of EXEC, which then is an error itself.
        said: list[Any] = replies if isinstance(done, Exception) else done
        if wrong := next((reply for reply in said if isinstance(reply, Exception)), None):
            raise self._link.fault(wrong)

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        return self._link.exchange(commands)


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
