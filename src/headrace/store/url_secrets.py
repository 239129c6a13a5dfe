"""What of a server's URL must not be told, and the URL without it. Imports no driver: a worker's command asks here."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from headrace.settings import HIDDEN

_SECRETS = ("password", "ssl_password")


def shown(url: str) -> str:
    """The URL without its password, and without its query, which may hold one too.

    Raises:
        ValueError: it cannot be read.
    """
    url = url.partition("?")[0]
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user = parts.username or ""
    return urlunsplit(parts._replace(netloc=f"{user}:{HIDDEN}@{parts.netloc.rpartition('@')[2]}"))


def passwords(url: str | None) -> set[str]:
    """What of a URL must not be told, as it is written there and as it is meant. Empty for one that cannot be read."""
    try:
        parts = urlsplit(url or "")
        given = [parts.password or ""]
    except ValueError:
        return set()
    query = parse_qs(parts.query)
    given += [value for name in _SECRETS for value in query.get(name, [])]
    return {text for secret in given if secret for text in (secret, unquote(secret))}
