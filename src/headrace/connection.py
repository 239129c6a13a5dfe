"""Where the server is and how a connection to it is made; and what an error of the driver means for us.

Owns URLs, Sentinel look-ups, time-outs and the checks of a server. Everything protocol-like is pinned here on purpose:
redis-py's defaults (RESP version, 5 s socket time-out, its own retries) change between releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit, urlunsplit

import hiredis
import redis.connection as synchronous
from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.retry import Retry as DriverRetry
from redis.sentinel import Sentinel

from headrace.errors import (
    EvictingServer,
    HeadraceError,
    ServerError,
    ServerTooOld,
    StoreFull,
    UrlError,
)

# The driver types neither of these.
_parse_url = cast(Any, synchronous.parse_url)  # pyright: ignore[reportUnknownMemberType]
_sentinels = cast(Any, Sentinel)
_pack_command = cast(Any, hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]

CONNECT_TIMEOUT = 5.0
SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel")


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL: where to connect, without having done so.

    Attributes:
        shown: the URL without its password, for messages.
        options: keyword arguments of redis-py's connection.
        sentinels: host and port of each Sentinel, and ``service`` the name that they know the master by.
    """

    shown: str
    options: Mapping[str, Any]
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""


_HOW = (
    "use redis://host:6379/0 or unix:///path/to/socket; in a user name or password, write / as %2F, @ as %40, "
    ": as %3A, # as %23 and ? as %3F"
)


def _shown(url: str) -> str:
    # Without its query, which may hold a password too.
    url = url.partition("?")[0]
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = parts.username or ""
    return urlunsplit(parts._replace(netloc=f"{user}:***@{parts.netloc.rpartition('@')[2]}"))


def _sentinel(url: str, shown: str) -> Target:
    """A target behind Sentinels: ``sentinel://user:password@host:26379,host:26379/service/database``."""
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    found: list[tuple[str, int]] = []
    for host in hosts.split(","):
        name, _, port = host.partition(":")
        if not name or (port and not port.isdigit()):
            raise UrlError(f"{shown} names no Sentinel host: use sentinel://host:26379,host:26379/service/0")
        found.append((name, int(port or 26379)))
    service, _, database = parts.path.strip("/").partition("/")
    if not service or (database and not database.isdigit()):
        raise UrlError(f"{shown} names no service: use sentinel://host:26379,host:26379/service/0")
    options: dict[str, Any] = {"db": int(database or 0)}
    if credentials:
        user, _, password = credentials.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    return Target(shown, options, tuple(found), service)


def parse(url: str) -> Target:
    """Where ``url`` points.

    Raises:
        UrlError: the scheme, host, port or database cannot be used; the text says what would be right.
    """
    try:
        shown, parts = _shown(url), urlsplit(url)
        port = parts.port if parts.scheme != "sentinel" else None
    except ValueError:
        # The error's text may hold part of a password, and so may what follows a password's own / or @.
        raise UrlError(f"the URL's host or port cannot be read: {_HOW}") from None
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise UrlError(f"the URL has an @ after its host: {_HOW}")
    if parts.scheme not in SCHEMES:
        raise UrlError(f"{shown} has the scheme {parts.scheme!r}: use one of {', '.join(f'{s}://' for s in SCHEMES)}")
    if parts.scheme == "sentinel":
        return _sentinel(url, shown)
    if parts.scheme == "unix" and not parts.path.strip("/"):
        raise UrlError(f"{shown} names no socket: use unix:///path/to/socket")
    if parts.scheme != "unix" and not parts.hostname:
        raise UrlError(f"{shown} names no host: use {parts.scheme}://host:6379/0")
    if port == 0:
        raise UrlError(f"{shown} has port 0: use the server's port, usually 6379")
    if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise UrlError(f"{shown} names the database {parts.path.strip('/')!r}: it is a number, such as /0")
    driver_url = url.replace("valkeys://", "rediss://", 1).replace("valkey://", "redis://", 1)
    try:
        options: dict[str, Any] = _parse_url(driver_url)
    except ValueError as error:
        raise UrlError(f"{shown} cannot be used: {error}") from None
    return Target(shown, options)


def _common(target: Target, timeout: float) -> dict[str, Any]:
    # A waiter may be silent for minutes: a network that forgets it must be noticed.
    keepalive = {} if "path" in target.options else {"socket_keepalive": True}
    return {
        **keepalive,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, CONNECT_TIMEOUT),
        "health_check_interval": 0,
        "client_name": "headrace",
        # Retries are ours: redis-py's would repeat a script without our request numbers' knowledge.
        **{name: value for name, value in target.options.items() if name != "connection_class"},
        # Last, so that no query in a URL changes what replies look like.
        "protocol": 2,
        "decode_responses": False,
    }


def packed(commands: Sequence[Sequence[Any]]) -> list[bytes]:
    """Commands as what is sent. redis-py's own way to hiredis takes longer than all else that an idle enqueue does."""
    return [_pack_command(tuple(command)) for command in commands]


def connect(target: Target, timeout: float) -> Any:
    """A new connected connection; each read ends after ``timeout`` seconds unless told otherwise.

    Raises:
        redis.exceptions.RedisError: see :func:`verdict`.
    """
    options = _common(target, timeout)
    options["retry"] = DriverRetry(NoBackoff(), 0)
    kind: Any = target.options.get("connection_class", synchronous.Connection)
    if target.sentinels:
        sentinel = _sentinels(list(target.sentinels), socket_timeout=min(timeout, CONNECT_TIMEOUT))
        try:
            options["host"], options["port"] = sentinel.discover_master(target.service)
        finally:
            for client in sentinel.sentinels:
                client.close()
    connection = kind(**options)
    connection.connect()
    return connection


async def aconnect(target: Target, timeout: float) -> Any:
    """The same for asyncio."""
    # Not at the top: who never awaits does not pay for loading asyncio.
    import redis.asyncio.connection as asynchronous
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.asyncio.sentinel import Sentinel as AsyncSentinel

    options = _common(target, timeout)
    options["retry"] = AsyncRetry(NoBackoff(), 0)
    kinds: dict[Any, Any] = {
        synchronous.UnixDomainSocketConnection: asynchronous.UnixDomainSocketConnection,
        synchronous.SSLConnection: asynchronous.SSLConnection,
    }
    kind: Any = kinds.get(target.options.get("connection_class"), asynchronous.Connection)
    if target.sentinels:
        sentinel: Any = cast(Any, AsyncSentinel)(list(target.sentinels), socket_timeout=min(timeout, CONNECT_TIMEOUT))
        try:
            options["host"], options["port"] = await sentinel.discover_master(target.service)
        finally:
            for client in sentinel.sentinels:
                await client.aclose()
    connection = kind(**options)
    await connection.connect()
    return connection


# Redis before 7 wraps what a command inside a script answered into an error of the script.
_WRAPPED = re.compile(r"Error running script .*?: -?([A-Z]{3,} .*)", re.DOTALL)
# What servers say when a user may run a script, but not a command, key or channel inside it.
_FORBIDDEN = ("NOPERM", "ACL failure in script", "The user executing the script can't")
_AGAIN = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY ", "UNBLOCKED")

Verdict = Literal["again", "load"] | HeadraceError


def verdict(error: Exception, target: Target, doing: str) -> Verdict:
    """What a failed command means.

    Returns:
        ``again``: drop the connection, resolve anew and repeat (after a failover the old node says READONLY for
        ever); ``load``: the server does not know the script; or the error to raise.
    """
    if isinstance(error.__cause__, (driver.AuthenticationError, driver.ResponseError)):
        # The asynchronous driver makes a lost connection of a refused password or database.
        error = error.__cause__
    text = _WRAPPED.sub(r"\1", str(error))
    if isinstance(error, driver.NoScriptError):
        return "load"
    if isinstance(error, (driver.AuthenticationError, driver.AuthorizationError)) or text.startswith(
        ("NOAUTH", "WRONGPASS")
    ):
        return UrlError(f"{target.shown} refused the credentials: check user and password in the URL")
    if isinstance(error, driver.NoPermissionError) or any(sign in text for sign in _FORBIDDEN):
        return ServerError(
            f"{target.shown} does not permit {doing}: give its user the namespace's keys and scripts ({text})"
        )
    if isinstance(error, driver.OutOfMemoryError) or text.startswith(("OOM", "MISCONF")):
        return StoreFull(f"{target.shown} refused to store: its memory or disk is full ({text})")
    # By class too: the driver takes the code that it knows off the text.
    again = (
        driver.ConnectionError,
        driver.TimeoutError,
        driver.ReadOnlyError,
        driver.ClusterDownError,
        driver.MasterDownError,
        driver.TryAgainError,
        OSError,
    )
    if isinstance(error, again) or text.startswith(_AGAIN):
        return "again"
    return ServerError(f"{target.shown} answered to {doing}: {text}")


def pause_before(attempt: int, dice: float) -> float:
    """Seconds to wait before the ``attempt``-th repetition (from 1): doubling, at most 2, with half of it random."""
    return min(0.02 * 2.0 ** min(attempt, 10), 2.0) * (0.5 + 0.5 * dice)


def check_server(info: str, target: Target, allow_eviction: bool) -> None:
    """Whether the server may hold jobs, by its INFO text.

    Raises:
        ServerTooOld: below Redis 6.2 or Valkey 7.2.
        EvictingServer: its policy may drop keys, and with them jobs.
    """
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    name, least, version = "Redis", (6, 2), facts.get("redis_version", "")
    if "valkey_version" in facts:
        name, least, version = "Valkey", (7, 2), facts["valkey_version"]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < least:
        raise ServerTooOld(
            f"{target.shown} is {name} {version}: Headrace needs Redis 6.2 or Valkey 7.2 at least; upgrade the server"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not allow_eviction:
        raise EvictingServer(
            f"{target.shown} has maxmemory-policy {policy} and would drop jobs when memory is short: set it to "
            f"noeviction (CONFIG SET maxmemory-policy noeviction), or accept the risk with HEADRACE_ALLOW_EVICTION=1"
        )
