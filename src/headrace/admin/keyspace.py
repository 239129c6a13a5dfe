"""The keys of a namespace as they are stored, read in bounded pages. Reads only.

1. :func:`kind_of`: which key of the table in :mod:`headrace.protocol.keys` a name is.
2. :class:`Keyspace` and :func:`pages`: keys and values, sorted by that table, a page at a time; :func:`read` puts the
   pages together, for small stores. ``keyspace_rules.py`` has what must be true of them.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.ids import check_name
from headrace.protocol.keys import documented

if TYPE_CHECKING:
    import redis

# Keys of one page, and members of one reply.
PAGE = 1000

Values = Mapping[str, dict[str, Any]]

READ: dict[str, Callable[[Any, str], object]] = {
    "hash": lambda pipe, key: pipe.hgetall(key),
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    "set": lambda pipe, key: pipe.smembers(key),
    "list": lambda pipe, key: pipe.lrange(key, 0, -1),
    "string": lambda pipe, key: pipe.get(key),
    "stream": lambda pipe, key: pipe.xrange(key, count=PAGE),
}
# A collection that is longer than a page, in pieces.
_SCAN: dict[str, Callable[[Any, str], Any]] = {
    "hash": lambda client, key: dict(client.hscan_iter(key, count=PAGE)),
    "zset": lambda client, key: list(client.zscan_iter(key, count=PAGE)),
    "set": lambda client, key: set(client.sscan_iter(key, count=PAGE)),
    "list": lambda client, key: [
        item for at in range(0, client.llen(key), PAGE) for item in client.lrange(key, at, at + PAGE - 1)
    ],
}
# The driver takes longer to read the replies of a pipeline of such calls than the server to give them.
_LOOK = """
local SIZE, found = {hash = 'HLEN', zset = 'ZCARD', set = 'SCARD', list = 'LLEN'}, {}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  found[#found + 1] = kind
  found[#found + 1] = redis.call('PTTL', key)
  found[#found + 1] = SIZE[kind] and redis.call(SIZE[kind], key) or 1
end
return found
"""
_EXPIRING = (
    *("sender", "request", "mark", "cache", "cached", "tagged", "filling", "dropped", "probe", "rewound", "sampled"),
    *("acts", "events", "deaths", "deploys", "causes", "cause", "floods", "own", "watches", "watch", "stacks"),
    *("stat", "stat-sub", "stat-event", "stat-events", "stat-stream", "stat-flow"),
)


def kind_of(key: str, documents: dict[str, str]) -> tuple[str, str] | None:
    """Which documented key a name (without its prefix) is, and what its hole holds; None if none."""
    if key in documents:
        return key, ""
    head, colon, rest = key.partition(":")
    for pattern in documents:
        if colon and rest and pattern.startswith(f"{head}:<"):
            return head, rest
    return None


@functools.cache
def kinds() -> dict[str, str]:
    """The type of each documented key, by its name without a hole."""
    return {pattern.partition(":")[0]: kind for pattern, kind in documented().items()}


class Keyspace(msgspec.Struct):
    """One shard's keys at one moment, sorted by what they are.

    Attributes:
        values: per documented key and hole, the value: ``values["ready"]["default"]`` maps ids to scores.
        timed: names of unique jobs that end with a time.
        violations: what the reading itself found wrong.
    """

    shard: str
    values: dict[str, dict[str, Any]] = msgspec.field(default_factory=lambda: defaultdict[str, dict[str, Any]](dict))
    timed: set[str] = msgspec.field(default_factory=set[str])
    violations: set[str] = msgspec.field(default_factory=set[str])

    def one(self, name: str) -> Any:
        """The value of a key without a hole; empty when it is absent."""
        return self.values[name].get("", {})


def text_of(value: Any) -> str:
    """A stored value as text, whatever its bytes; empty for None."""
    return (
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else "" if value is None else str(value)
    )


def value_of(kind: str, reply: Any) -> Any:
    if kind == "hash":
        return {text_of(name): value for name, value in reply.items()}
    if kind == "zset":
        return {text_of(member): int(float(score)) for member, score in reply}
    if kind == "set":
        return {text_of(member) for member in reply}
    if kind == "raw":
        return reply
    return [text_of(item) for item in reply] if kind == "list" else text_of(reply)


def _names(client: Any, namespace: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    form = re.compile(rf"\{{{re.escape(namespace)}:(\d+)(?:\.\d+)?\}}:(.*)", re.DOTALL)
    literal = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix or f"{{{namespace}:")
    for raw in client.scan_iter(match=f"{literal}*", count=1000):
        whole = text_of(raw)
        match = form.fullmatch(whole)
        yield (match[1], match[2], whole) if match else ("0", whole, whole)


def _filed(space: Keyspace, whole: str, name: str, kind: str, ttl: int) -> tuple[str, str] | None:
    """What a key is; None, with the violation noted, when it may not be read as that."""
    documents = documented()
    known = kind_of(name, documents)
    if known is None:
        space.violations.add(f"{whole}: no key of this form is documented in keys.py")
        return None
    wanted = kinds()[known[0]]
    if kind != wanted:
        space.violations.add(f"{whole}: is a {kind}, documented as {wanted}")
        return None
    # -1: it has no end; 0: it has less than a millisecond left; -2: it ended since its type was read.
    if known[0] == "unique" and ttl != -1:
        space.timed.add(known[1])
    if known[0] not in ("gate", "unique") and (known[0] in _EXPIRING) != (ttl != -1):
        space.violations.add(f"{whole}: " + ("never expires" if ttl == -1 else "expires, which nothing says"))
    return known


def pages(
    client: redis.Redis, namespace: str = "hr", *, size: int | None = None, unread: Container[str] = (),
    prefix: str = "",
) -> Iterator[list[Keyspace]]:  # fmt: skip
    """The keys of a namespace, at most ``PAGE`` at a time, sorted into their shards.

    Keys that nothing documents are named among the violations. The values of a page are read at one moment, but those
    of collections longer than a page.

    Args:
        client: one that answers in bytes (no ``decode_responses``), since records hold MessagePack.
        size: keys of a page; None: ``PAGE``.
        unread: names of documented keys, such as ``job``, whose values are None: their type alone is read.
        prefix: of the keys of one shard, which alone are read; empty: all that the server has of the namespace.

    Cost: SCAN over the whole database; two round trips a page, and one for each page of a long collection.
    """
    check_name("namespace", namespace)
    names = _names(client, namespace, prefix)
    while page := list(islice(names, size or PAGE)):
        # A cluster takes the keys of one shard at a time.
        for _, some in groupby(sorted(page), key=itemgetter(0)):
            yield _page(client, list(some), unread)


def _page(client: Any, page: list[tuple[str, str, str]], unread: Container[str]) -> list[Keyspace]:
    spaces: dict[str, Keyspace] = {}
    plan: list[tuple[Keyspace, str, str, str]] = []
    facts: list[Any] = client.eval(_LOOK, len(page), *(whole for _, _, whole in page))
    pipe = client.pipeline(transaction=True)
    for (shard, name, whole), raw, ttl, size in zip(page, facts[::3], facts[1::3], facts[2::3], strict=True):
        space, kind = spaces.setdefault(shard, Keyspace(shard)), text_of(raw)
        known = _filed(space, whole, name, kind, ttl) if kind != "none" else None
        if known is None:
            continue
        if known[0] in unread:
            space.values[known[0]][known[1]] = None
        elif size > PAGE:
            space.values[known[0]][known[1]] = value_of(kind, _SCAN[kind](client, whole))
        else:
            READ[kind](pipe, whole)
            plan.append((space, *known, kind))
    values: list[Any] = pipe.execute()
    for (space, name, hole, kind), value in zip(plan, values, strict=True):
        if value is not None:
            space.values[name][hole] = value_of("raw" if name == "gate" else kind, value)
    return list(spaces.values())


def read(client: redis.Redis, namespace: str = "hr") -> list[Keyspace]:
    """Every shard of a namespace, whole; for small stores. See :func:`pages`."""
    whole: dict[str, Keyspace] = {}
    for page in pages(client, namespace):
        for part in page:
            space = whole.setdefault(part.shard, Keyspace(part.shard))
            space.timed |= part.timed
            space.violations |= part.violations
            for name, values in part.values.items():
                space.values[name].update(values)
    return [whole[shard] for shard in sorted(whole)]
