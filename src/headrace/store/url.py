"""URLs of servers: parsed and checked without connecting. Imports no driver: a worker's command asks here.

1. :func:`shown` and :func:`passwords`: the secrets of a URL, and the URL without them.
2. :class:`Target` and :func:`parse`: the forms of a URL and the options in its query.
3. :class:`Credentials`: user and password that change while a program runs, asked for anew by each connection.
   They come from the settings ``credentials`` and ``password_file``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit, urlunsplit

from headrace.clock import monotonic
from headrace.errors import SettingsError, UrlError
from headrace.protocol.keys import keys_of
from headrace.settings import HIDDEN, Settings, environment_name

if TYPE_CHECKING:
    from headrace.store.slot_map import SlotMap

_USED = 0.8  # share of the time that credentials are valid for after which a connection is replaced


class Login(NamedTuple):
    """What one connection says of itself.

    Attributes:
        options: keyword arguments of redis-py's connection.
        end: when a new connection must take the place of this one (monotonic seconds); infinite: never.
    """

    options: dict[str, str]
    end: float


class Credentials:
    """Where each connection gets its user and its password. ``source``: its name, for messages."""

    def __init__(self, source: str, ask: Callable[[], Any]) -> None:
        self.source = source
        self._ask = ask

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Those that the settings name; None: the URL has them. Raises SettingsError: there is no such function."""
        if (file := settings.password_file) is not None:
            return cls(f"{environment_name('password_file')}={file}", lambda: Path(file).read_text().rstrip("\r\n"))
        if (given := settings.credentials) is None:
            return None
        if not isinstance(given, str):
            return cls(type(given).__name__, getattr(given, "get_credentials", given))
        module, _, name = given.partition(":")
        try:
            found: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SettingsError(f"credentials={given!r} cannot be used: {error}") from error
        return cls(given, getattr(found, "get_credentials", found))

    def login(self) -> Login:
        """User and password of a new connection; may block. Raises redis.exceptions.ConnectionError: none for now."""
        try:
            given = self._ask()
        except Exception as error:
            from redis.exceptions import ConnectionError as NoConnection

            raise NoConnection(f"no credentials came from {self.source}: {error}") from error
        parts: tuple[Any, ...] = (given,) if isinstance(given, str) else cast("tuple[Any, ...]", given)
        match parts:
            case (str(password),):
                return Login({"password": password}, math.inf)
            case (str(user), str(password)):
                return Login({"username": user, "password": password}, math.inf)
            case (str(user), str(password), int() | float() as seconds):
                return Login({"username": user, "password": password}, monotonic() + _USED * seconds)
            case _:
                raise SettingsError(
                    f"{self.source} must give a password, (user, password) or (user, password, seconds), "
                    f"not a {type(given).__name__}"
                )


_SECRETS = ("password", "ssl_password")
SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel", "sentinels", "cluster", "clusters")
TLS = ("rediss", "valkeys", "sentinels", "clusters")
SENTINEL = ("sentinel", "sentinels")
CLUSTER = ("cluster", "clusters")


def _split(url: str) -> SplitResult:
    """As urlsplit, whose newer versions refuse an IPv6 address behind another host."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in SENTINEL + CLUSTER:
        return urlsplit(url)
    hosts = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}://host{rest.removeprefix(hosts)}")._replace(netloc=hosts)


def shown(url: str) -> str:
    """The URL without its password and its query, which may hold one too. Raises ValueError: it cannot be read."""
    url = url.partition("?")[0]
    parts = _split(url)
    if parts.password is None:
        return url
    user = parts.username or ""
    return urlunsplit(parts._replace(netloc=f"{user}:{HIDDEN}@{parts.netloc.rpartition('@')[2]}"))


def passwords(url: str | None) -> set[str]:
    """What of a URL must not be told, as it is written there and as it is meant. Empty for one that cannot be read."""
    try:
        parts = _split(url or "")
        given = [parts.password or ""]
    except ValueError:
        return set()
    query = parse_qs(parts.query)
    given += [value for name in _SECRETS for value in query.get(name, [])]
    return {text for secret in given if secret for text in (secret, unquote(secret))}


OPTIONS = ("db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout", "socket_keepalive")
"""What may stand behind the ``?`` of any URL but a Sentinel's."""

TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
TLS_OPTIONS = (*TLS_FILES, "ssl_cert_reqs", "ssl_check_hostname", "ssl_password")
"""What may stand there, too, where TLS is spoken."""

_REQUIREMENTS = ("required", "optional", "none")


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL: where to connect, without having done so.

    Attributes:
        shown: the URL without its password, for messages.
        options: keyword arguments of redis-py's connection.
        tls: it is to be spoken to over TLS, and so are the Sentinels.
        sentinels: host and port of each Sentinel, and ``service`` the name that they know the master by.
        credentials: where each connection gets user and password, unless ``options`` has them.
        seeds: host and port of nodes of a cluster, as written; ``tag`` begins the keys by which it has the right node.
    """

    shown: str
    options: Mapping[str, Any] = field(repr=False)  # with the password
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    tls: bool = False
    credentials: Credentials | None = field(default=None, repr=False)
    seeds: tuple[tuple[str, int], ...] = ()
    tag: str = ""

    @property
    def others(self) -> Target | None:
        """The same behind the Sentinels after the first: that one may have missed a failover."""
        return replace(self, sentinels=self.sentinels[1:]) if self.sentinels[1:] else None

    @property
    def most_pause(self) -> float:
        return 1.0 if self.seeds else 2.0

    @property
    def slots(self) -> SlotMap | None:
        if not self.seeds:
            return None
        from headrace.store.slot_map import slot_map

        return slot_map(self.seeds, tls=self.tls)

    def learn(self, error: Exception) -> bool:
        slots = self.slots
        return slots is not None and slots.learn(error, self.tag)

    @property
    def sentinel_options(self) -> dict[str, Any]:
        return {name: self.options[name] for name in TLS_OPTIONS if name in self.options} | {"ssl": self.tls}


_HOW = (
    "use redis://host:6379/0 or unix:///path/to/socket; in a user name or password, write % as %25, / as %2F, "
    "@ as %40, : as %3A, # as %23, ? as %3F and [ as %5B"
)


def _sentinel(url: str, visible: str) -> Target:
    parts = _split(url)
    _check_options(parts.scheme, parts.query, visible)
    credentials, _, hosts = parts.netloc.rpartition("@")
    found = _hosts(hosts, 26379, f"{visible} names no Sentinel host: use sentinel://host:26379,host:26379/service/0")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or (database and not database.isdecimal()):
        raise UrlError(f"{visible} names no service: use sentinel://host:26379,host:26379/service/0")
    options: dict[str, Any] = {"db": int(database or 0)} | _credentials(credentials)
    tls = parts.scheme in TLS
    if tls:
        options |= parse(f"rediss://sentinel?{parts.query}").options
        del options["host"]
    return Target(visible, options, found, service, tls)


def _cluster(url: str, visible: str, tag: str) -> Target:
    parts = _split(url)
    _check_options(parts.scheme, parts.query, visible)
    credentials, _, hosts = parts.netloc.rpartition("@")
    seeds = _hosts(hosts, 6379, f"{visible} names no node: use {parts.scheme}://host:6379,host:6379")
    if parts.path.strip("/") not in ("", "0"):
        raise UrlError(f"{visible} names the database {parts.path.strip('/')!r}: on a cluster Headrace uses 0 alone")
    tls = parts.scheme in TLS
    options = _driver_options(f"{'rediss' if tls else 'redis'}://node/0?{parts.query}") | _credentials(credentials)
    del options["host"]
    return Target(visible, options, tls=tls, seeds=seeds, tag=tag)


def _hosts(text: str, port: int, wrong: str) -> tuple[tuple[str, int], ...]:
    """Hosts with their ports, or with ``port``. Raises UrlError: ``wrong``."""
    found: list[tuple[str, int]] = []
    for host in text.split(","):
        place = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", host)
        if place is None:
            raise UrlError(wrong)
        found.append((place[1] or place[2], int(place[3] or port)))
    return tuple(found)


def _credentials(text: str) -> dict[str, Any]:
    user, _, password = text.partition(":")
    return {"username": unquote(user) or None, "password": unquote(password) or None} if text else {}


# A host or an address, perhaps a port, perhaps a database.
_PLACE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?(?:/\d*)?", re.ASCII)


def _meant(text: str) -> str:
    if text.startswith("/") and not text.startswith("//"):
        return f"unix://{text}"
    place = text.removeprefix("//")
    return f"redis://{place}" if _PLACE.fullmatch(place) else ""


def parse(url: str, tag: str = "{hr:0}:") -> Target:
    """Where ``url`` points; on a cluster, at the node of the keys with ``tag``. Raises UrlError: says what is right."""
    try:
        visible, parts = shown(url), _split(url)
        port = parts.port if parts.scheme not in SENTINEL + CLUSTER else None
    except ValueError:
        # The error's text may hold part of a password, and so may what follows a password's own / or @.
        raise UrlError(f"the URL's host or port cannot be read: {_HOW}") from None
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise UrlError(f"the URL has an @ after its host: {_HOW}")
    if "://" not in url and (meant := _meant(url)):
        raise UrlError(f"{visible} has no scheme, such as redis://: did you mean {meant}?")
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UrlError(f"{visible or 'the empty URL'} has the scheme {parts.scheme!r}: use one of {known}")
    if parts.scheme in SENTINEL:
        return _sentinel(url, visible)
    if parts.scheme in CLUSTER:
        return _cluster(url, visible, tag)
    if parts.scheme == "unix" and not parts.path.strip("/"):
        raise UrlError(f"{visible} names no socket: use unix:///path/to/socket")
    if parts.scheme != "unix" and not parts.hostname:
        raise UrlError(f"{visible} names no host: use {parts.scheme}://host:6379/0")
    if port == 0:
        raise UrlError(f"{visible} has port 0: use the server's port, usually 6379")
    if parts.scheme != "unix" and parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        raise UrlError(f"{visible} names the database {parts.path.strip('/')!r}: it is a number, such as /0")
    _check_options(parts.scheme, parts.query, visible)
    driver_url = url.replace("valkeys://", "rediss://", 1).replace("valkey://", "redis://", 1)
    try:
        options = _driver_options(driver_url)
    except ValueError as error:
        raise UrlError(f"{visible} cannot be used: {error}") from None
    return Target(visible, options, tls=parts.scheme in TLS)


def located(url: str, settings: Settings, tag: str = "") -> Target:
    """Where ``url`` points, with the credentials that the settings name. Raises UrlError: as :func:`parse`, or the URL
    has a password, too. Raises SettingsError: the settings name no such function.
    """
    target = parse(url, tag or keys_of(settings.namespace).prefix)
    # The private server, which has no URL in the settings, has its own password, which no person knows or set.
    if settings.url is None:
        return replace(target, shown=target.shown.replace(f"unix://:{HIDDEN}@", "unix://", 1))
    if (credentials := Credentials.of(settings)) is None:
        return target
    if target.options.get("password"):
        raise UrlError(f"{target.shown} has a password, and {credentials.source} gives one: leave out one of them")
    return replace(target, credentials=credentials)


def _flag(text: str) -> bool:
    return text.upper() not in ("0", "F", "FALSE", "N", "NO")


# Options that are no text.
_READERS: dict[str, Callable[[str], Any]] = {
    "db": int,
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "socket_keepalive": _flag,
    "ssl_check_hostname": _flag,
}


def _driver_options(url: str) -> dict[str, Any]:
    """What the driver's own parser makes of it, without the driver. Raises ValueError: an option cannot be read."""
    parts = urlsplit(url)
    options: dict[str, Any] = {}
    for name, (text, *_) in parse_qs(parts.query).items():
        try:
            options[name] = _READERS.get(name, str)(text)
        except ValueError:
            raise ValueError(f"Invalid value for {name!r} in connection URL.") from None
    for name, given in (("username", parts.username), ("password", parts.password)):
        if given:
            options[name] = unquote(given)
    if parts.scheme == "unix":
        # Bytes that are no UTF-8 stay as they are, else no such socket is found.
        return options | {"path": unquote(parts.path, errors="surrogateescape")}
    options["host"] = unquote(parts.hostname or "")
    if parts.port:
        options["port"] = parts.port
    if parts.path.strip("/"):
        options.setdefault("db", int(parts.path.strip("/")))
    if url.startswith("rediss:") and options.get("ssl_cert_reqs") != "none":
        # Drivers before version 6 accept a certificate for any host otherwise.
        options.setdefault("ssl_check_hostname", True)
    if "ssl_certfile" in options:
        # Without any password, OpenSSL asks for one on the terminal, and waits: also for a file that comes later.
        options.setdefault("ssl_password", "")
    return options


def _check_options(scheme: str, query: str, visible: str) -> None:
    """Refuse what the driver refuses later, or misunderstands. Raises UrlError: an option or its file is wrong."""
    given = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    known = (OPTIONS if scheme not in SENTINEL else ()) + (TLS_OPTIONS if scheme in TLS else ())
    if scheme in CLUSTER:
        known = known[1:]  # a cluster's keys are in database 0
    for name in given:
        if name in TLS_OPTIONS and scheme not in TLS:
            secure = f"{scheme}s" if scheme in ("sentinel", "cluster") else "rediss"
            raise UrlError(f"{visible} has {name}, which is for TLS: write {secure}:// instead of {scheme}://")
        if name not in known:
            some = f"use some of {', '.join(known)}" if known else f"{scheme}:// has none"
            raise UrlError(f"{visible} has the option {name!r}, which is unknown: {some}")
    required = given.get("ssl_cert_reqs", "required")
    if required not in _REQUIREMENTS:
        raise UrlError(f"{visible} has ssl_cert_reqs={required}: use one of {', '.join(_REQUIREMENTS)}")
    # The driver unquotes it twice, too.
    check_files(given | {"ssl_password": unquote(given.get("ssl_password", ""))}, visible)


def check_files(given: Mapping[str, Any], visible: str) -> None:
    """Load the files of TLS: the driver takes a wrong one for a server that is away. Raises UrlError: one is wrong."""
    if not given.keys() & set(TLS_FILES):
        return
    for name in TLS_FILES:
        if name in given and not os.access(given[name], os.R_OK):
            raise UrlError(f"{visible} has {name}={given[name]}, which is not there or cannot be read")
    import ssl  # Most URLs need none of it.

    authorities, certificate = given.get("ssl_ca_certs"), given.get("ssl_certfile")
    if "ssl_keyfile" in given and not certificate:
        raise UrlError(f"{visible} has ssl_keyfile and no ssl_certfile: name the file of the certificate too")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authorities:
            context.load_verify_locations(authorities)
    except OSError as error:
        raise UrlError(f"{visible} has ssl_ca_certs={authorities}, which holds no certificates ({error})") from None
    try:
        if certificate:
            # Without any password, OpenSSL asks for one on the terminal, and waits.
            context.load_cert_chain(certificate, given.get("ssl_keyfile"), given["ssl_password"])
    except OSError as error:
        raise UrlError(
            f"{visible} has ssl_certfile={certificate}, which cannot be used with its key ({error}): name the key with "
            f"&ssl_keyfile=/path, both as PEM, and the password of an encrypted key with &ssl_password="
        ) from None
