"""What every way to one server shares: where it is, whether it may be used, when a failed call is repeated; no socket.

Also how the replies of several calls become values, with the scripts loaded that the server does not know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

from redis import exceptions as driver

from headrace.clock import monotonic
from headrace.errors import EvictingServer, SchemaMismatch, ServerError, ShardAway, StoreUnavailable
from headrace.protocol.keys import OLDEST, SCHEMA, Keys, keys_at
from headrace.protocol.operations import Greeting, greet
from headrace.protocol.script import Call, Command
from headrace.settings import Settings
from headrace.store.connection import AllInUse, pause_before
from headrace.store.raw_connection import RawConnection
from headrace.store.url import Target, located
from headrace.store.verdict import advice, node_of_a_cluster, not_applied, verdict

log = logging.getLogger("headrace.store")

SILENCE = 1.0  # a caller that has waited for so long (seconds) is told what for
REVIVE_AT = 2  # a private server is started again, where need be, from this many failures in a row on


class Reach:
    """One server, as the stores and the listener for ends know it before they connect.

    Attributes:
        url: of the server; a private one may come back under another.
        target: where that is.
        keys: of its shard.
        sent: requests sent so far to this server.
        parts: of several shards, one for each; else itself alone.
        attempt_time: seconds that a reply, or a step of a connection, may take. Behind Sentinels and on a cluster it
            leaves time to look for the server again: one whose machine is gone says nothing more.
        store_id: of a store of several shards; empty: not known. ``elsewhere``: prefixes of those on other servers.
        confirms: verbs may wait for the copies of what they store; a test kit's server has none.
        confirm_time: milliseconds that a confirmation may take: its answer comes before ``attempt_time`` is over.
        revive: starts a private server again that has ended, or joins the one that is there, and returns its URL; None
            where Headrace does not run the server.
    """

    def __init__(self, url: str, settings: Settings, shard: int = 0, number: str = "1") -> None:
        self.url = url
        self.keys: Keys = keys_at(settings, url, shard, number)
        self.target = located(url, settings, self.keys.prefix)
        self.settings = settings
        self.sent: int = 0
        self.attempt_time = settings.timeout / (2 if self.target.sentinels or self.target.seeds else 1)
        # Of several shards: as home says, which keeps the first that is proposed.
        self.store_id = "" if number == "1" or shard else os.urandom(8).hex()
        self.elsewhere: list[str] = []
        self.parts: list[Any] = [self]
        self.confirms = True
        self.confirm_time = int(self.attempt_time * 750)
        self._checked = self._greeted = False
        self._told = False
        self._stored = ""
        self._why: Exception | None = None
        self.revive: Callable[[], str] | None = None

    @property
    def shards(self) -> list[tuple[Target, Keys]]:
        return [(part.target, part.keys) for part in self.parts]

    @property
    def round_trips(self) -> int:
        """Requests sent so far, to all shards."""
        return sum(part.sent for part in self.parts)

    @property
    def server(self) -> object:
        """Which server has this shard, as far as is known."""
        slots = self.target.slots
        return self.target.shown if slots is None else slots.known(self.keys.prefix) or self

    @property
    def kept_store_id(self) -> str:
        return self.store_id if self._greeted else ""

    def greeting(self) -> Call[Greeting]:
        return greet(self.keys, SCHEMA, self.store_id, self.elsewhere)

    def check_server(self, info: Sequence[bytes]) -> None:
        """Whether the server may hold jobs, by its INFO, before a first write. Raises ServerError, EvictingServer."""
        check_server(b"\n".join(info).decode("utf-8", "replace"), self.target, self.settings.allow_eviction)

    def check_schema(self, found: Greeting) -> None:
        """Whether this Headrace can read what is stored, by the greeting's answer. Raises SchemaMismatch: it cannot."""
        shown, version = self.target.shown, found.version
        if version > SCHEMA:
            raise SchemaMismatch(
                f"{shown} holds schema {version}, written by a newer Headrace; this one knows {SCHEMA}: upgrade "
                f"headrace here"
            )
        if found.moving:
            raise SchemaMismatch(
                f"{shown} is being migrated, or was until that was interrupted: wait for its end, or run headrace "
                f"migrate, which goes on where it was"
            )
        if found.moved:
            raise SchemaMismatch(f"{shown} has moved to {found.to}: give this program that URL (HEADRACE_URL)")
        if found.to or found.source:
            between = f"{shown} to {found.to}" if found.to else f"{found.source} to {shown}"
            raise SchemaMismatch(
                f"the store is being moved from {between}, or was until that was interrupted: wait for its end, or run "
                f"headrace migrate --to-url again, which goes on where it was"
            )
        store = self._check_shard(*found.place.split(" of "))
        if version < 1:
            raise SchemaMismatch(
                f"{shown} has something in {self.keys('schema')} that no Headrace wrote: its layout is unknown"
            )
        if version < OLDEST:
            raise SchemaMismatch(
                f"{shown} holds schema {version}, written by an older Headrace; this one needs {OLDEST}: stop the "
                f"programs that use it and run headrace migrate"
            )
        self.store_id = store
        self._checked = True
        # Home names the store, and may be away.
        self._greeted = self.keys.count == 1 or store != ""

    def _check_shard(self, shard: str, number: str, store: str = "") -> str:
        shown, mine = self.target.shown, self.keys.number
        if not f"{number}+".startswith(f"{mine}+"):
            raise SchemaMismatch(
                f"{shown} has a store of {number} shards, and this program takes it for one of {mine}: write "
                f"?shards={number} in the URL or HEADRACE_SHARDS={number}, or name {number} URLs; ?shards={number}+4 "
                f"adds four"
            )
        if number not in (mine, self._stored) and self.keys.shard == 0:
            text = "%s has %s shards, and this program uses the first %s: give it the same number"
            log.warning(text, shown, number, mine, extra={"code": "store.fewer_shards"})
        self._stored = number
        if int(shard) != self.keys.shard:
            raise SchemaMismatch(
                f"{shown} is shard {shard} of its store, and this program's URLs make it shard {self.keys.shard}: give "
                f"the URLs in the order in which the store was made"
            )
        if self.keys.shard and self.store_id not in ("", store):
            home = keys_at(self.settings, self.url, 0, mine)
            raise SchemaMismatch(
                f"{shown} is shard {shard} of store {store}, and the first URL leads to store {self.store_id}: give "
                f"the URLs of one store, in the order in which it was made. If the server of the first one has lost "
                f"its data, name its store there again: SET '{home('shard')}' '0 of {number} of {store}'"
            )
        return store

    def try_to_revive(self, attempt: int) -> None:
        # Not at the first failure, which may be that of one connection. Then each time: the server may end again.
        if attempt >= REVIVE_AT and self.revive is not None and (url := self.revive()) != self.url:
            self.url, self.target, self._checked = url, located(url, self.settings, self.keys.prefix), False
            self._greeted = False

    def give_up_or_wait(self, error: Exception, attempt: int, deadline: float, doing: str, hasty: int = 0) -> float:
        """Seconds to wait before the next attempt; 0 to repeat at once. Raises HeadraceError: there is no point in
        repeating. Raises ShardAway: one of the first ``hasty`` attempts was refused, and so nothing was done.
        """
        # A server that has no room for a connection says so and closes it: a write may fail before that is read.
        cause = error.__cause__ or error.__context__
        if attempt == 1 or not isinstance(cause, (BrokenPipeError, ConnectionResetError)):
            self._why = error
        word = verdict(error, self.target, doing, private=self.revive is not None and attempt <= REVIVE_AT)
        if isinstance(word, Exception):
            raise word from None
        if isinstance(error, AllInUse):
            raise self._not_sent(error, attempt, doing) from None
        if attempt <= hasty and not_applied(error):
            self.target.learn(error)
            raise ShardAway(*self._unavailable(error).args) from None
        if monotonic() >= deadline:
            raise self._unavailable(self._why or error) from None
        if monotonic() >= deadline - self.settings.timeout + SILENCE:
            self.tell_waiting(error)
        if word == "load":
            return 0.0
        # What answers next may be another store, or one that has moved away.
        self._greeted = False
        if self.target.learn(error):
            return 0.0
        return pause_before(attempt, random.random(), self.target.most_pause)

    def tell_waiting(self, error: Exception | None = None) -> None:
        """Say once what is waited for, until a connection is made: people must not sit before a silent program."""
        if not self._told:
            self._told = True
            why = "" if error is None else f" ({error}): {advice(error, self.target)}"
            log.warning("waiting for %s%s", self.place, why, extra={"code": "store.waiting"})

    @contextlib.contextmanager
    def patience(self) -> Generator[None]:
        """Around making a connection in a thread: a network may keep silent for as long as that may take."""
        # Told by a thread of its own, for the first connection of a program over a network only.
        near = self._checked or self._told or "path" in self.target.options
        timer = None if near else threading.Timer(SILENCE, self.tell_waiting)
        if timer is not None:
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:
                timer = None  # no room for a thread, or the interpreter is about to end: go on without a word
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
        self._told = False

    @property
    def place(self) -> str:
        shown = self.target.shown
        return shown if self.keys.count == 1 else f"shard {self.keys.shard} ({shown})"

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.place} did not answer within {self.settings.timeout:g} s ({error}): "
            f"{advice(error, self.target)} The call may be repeated"
        )

    def _not_sent(self, error: AllInUse, attempt: int, doing: str) -> StoreUnavailable:
        # A verb of several calls may have stored something by an earlier one.
        sent = "" if attempt > 1 else f"{doing} was not sent, so it stored nothing. "
        return StoreUnavailable(
            f"{self.target.shown} was not asked within {self.settings.timeout:g} s, since {error}: raise "
            f"max_connections, or make fewer calls at once. {sent}The call may be repeated"
        )


def names(calls: Sequence[Call[Any]]) -> str:
    return "+".join(dict.fromkeys(call.script.name for call in calls))


def missing(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[int]:
    for reply in replies:
        # Every enqueue passes here, and a comprehension is one more function to call.
        if isinstance(reply, driver.NoScriptError):
            absent = [isinstance(reply, driver.NoScriptError) for reply in replies]
            first = absent.index(True)
            return [n for n, call in enumerate(calls) if absent[n] or (n > first and isinstance(call, Command))]
    return []


def loads(calls: Sequence[Call[Any]]) -> list[tuple[str, str, str]]:
    texts = dict.fromkeys(text for call in calls if not isinstance(call, Command) for text in call.script.texts)
    return [("SCRIPT", "LOAD", text) for text in texts]


def fill(replies: list[Any], absent: Sequence[int], loaded: Sequence[Any], answers: Sequence[Any]) -> None:
    """Put answers in their places; where a script could not be loaded, that says more than that it is missing."""
    refused = next((reply for reply in loaded if isinstance(reply, driver.ResponseError)), None)
    for n, answer in zip(absent, answers, strict=True):
        replies[n] = refused if refused is not None and isinstance(answer, driver.NoScriptError) else answer


def values(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
    """Replies as values. All were read before an error is raised: one left unread would answer the next caller."""
    for reply in replies:
        if isinstance(reply, driver.RedisError):
            n = replies.index(reply)
            calls[n].script.locate(reply)
            if n and not_applied(reply):
                # The calls before it were: none of them may go to another shard.
                raise driver.ConnectionError(str(reply))
            raise reply
    return [call.parse(reply) for call, reply in zip(calls, replies, strict=True)]


def check_server(info: str, target: Target, allow_eviction: bool) -> None:
    """Whether the server may hold jobs, by its INFO text. Raises UrlError: it is a node of a cluster, and the URL does
    not say so. Raises ServerError: below Redis 6.2 or Valkey 7.2. Raises EvictingServer: its policy may
    drop keys, and with them jobs.
    """
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    mode = facts.get("redis_mode") or facts.get("server_mode") or ""
    if mode == "cluster" and not target.seeds:
        raise node_of_a_cluster(target)
    name, least, version = "Redis", (6, 2), facts.get("redis_version", "")
    if "valkey_version" in facts:
        name, least, version = "Valkey", (7, 2), facts["valkey_version"]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < least:
        raise ServerError(
            f"{target.shown} is {name} {version}: Headrace needs Redis 6.2 or Valkey 7.2 at least; upgrade the server"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise EvictingServer(
            f"{target.shown} has maxmemory-policy {policy} and would drop jobs when memory is short: set it to "
            f"noeviction (CONFIG SET maxmemory-policy noeviction), or accept the risk with HEADRACE_ALLOW_EVICTION=1"
        )


def examined(connection: RawConnection, target: Target, allow_eviction: bool) -> str:
    """What the server says of itself, if it may be used. Raises what ``check_server`` raises. Cost: one round trip."""
    told = accepted(connection.ask(("INFO", "server"), ("INFO", "memory")))
    facts = b"\n".join(told).decode("utf-8", "replace")
    check_server(facts, target, allow_eviction)
    return facts


def accepted(replies: list[Any]) -> list[Any]:
    """The replies. Raises the first that is an error."""
    for reply in replies:
        if isinstance(reply, driver.RedisError):
            raise reply
    return replies
