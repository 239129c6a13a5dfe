"""Names and identifiers: what may be a name, how ids are made, and what an id says of its job. Pure."""

from __future__ import annotations

import hashlib
import itertools
import re
from binascii import crc32, crc_hqx
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache

from headrace.errors import OptionsError
from headrace.model.notation import utc

# The states in which a job or workflow has ended.
FINAL = ("succeeded", "failed", "cancelled", "quarantined")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,127}")

# The queue of Headrace's own jobs, which every worker serves; and how the names of their tasks begin.
OWN_QUEUE = "_own"
OWN_TASKS = "headrace."


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it may name a queue, task or key prefix. Raises OptionsError: it is not a text, empty, longer
    than 128 characters, has others than ``A-Za-z0-9_.:/@+-``, or is of Headrace's own jobs.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(
            f"{kind} name {name!r:.200} cannot be used: take 1 to 128 of the characters A-Z a-z 0-9 _ . : / @ + - "
            f"and start with a letter, a digit or _"
        )
    if (kind == "queue" and name == OWN_QUEUE) or (kind == "task" and name.startswith(OWN_TASKS)):
        raise OptionsError(f"{kind} name {name!r} is reserved for Headrace's own jobs: take another name")
    return name


_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_OF_PAIR = {pair: number for number, pair in enumerate(_PAIRS)}
LENGTH = 21
_ID = re.compile(rf"[{_DIGITS}]{{{LENGTH}}}")
# Milliseconds that one step of an id's time takes: eight digits last until 2144. A ninth digit would cost the server 16
# bytes a job, since a member of 22 characters takes the next size of memory.
STEP = 5


def _base32(number: int, width: int) -> str:
    digits: list[str] = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_DIGITS[rest])
    return "".join(reversed(digits))


def make_id(milliseconds: int, random_bits: int, shard: int = 0) -> str:
    """A job's id: 21 characters that sort by time: 8 of steps of 5 ms, 11 random, 2 for the shard. ``milliseconds``:
    since 1970, below 5 * 2**40. ``random_bits``: below 2**55; consecutive ids of one process count up from it.
    """
    return id_at(milliseconds, make_tail(random_bits, shard))


def make_tail(random_bits: int, shard: int = 0) -> str:
    # By pairs of digits: a program that enqueues one job at a time makes one for each.
    high, middle = random_bits >> 35, random_bits >> 15
    return (
        f"{_PAIRS[high >> 10]}{_PAIRS[high & 1023]}{_PAIRS[middle >> 10 & 1023]}{_PAIRS[middle & 1023]}"
        f"{_PAIRS[random_bits >> 5 & 1023]}{_DIGITS[random_bits & 31]}{_PAIRS[shard]}"
    )


def id_at(milliseconds: int, tail: str) -> str:
    """The id of this time, made for every single enqueue: from little memory, since an idle process has none cached."""
    return _time(milliseconds) + tail


def shard_for(name: str, count: int) -> int:
    """The shard, of ``count``, of a new job or workflow, decided before its id is drawn. ``name``: the first that a job
    has of its key, its unique name and its request id, or the key of a workflow.
    """
    return crc32(name.encode()) % count if count > 1 else 0


def tag_for(namespace: str, shard: int, parts: Sequence[int]) -> str:
    """The hash tag of a shard on a cluster. Of N shards that came together, number k is in the middle of cell (c + k)
    mod N of N equal cells of slots, c that of the first one's fixed tag. So 12 are even on 2, 3, 4, 6 and 12 nodes.
    ``parts``: how many came first, and how many were added each time. A first one alone counts with the next part.
    """
    home = f"{namespace}:0"
    if shard == 0:
        return home
    number, rest = shard, [*parts]
    if rest[0] == 1:
        rest[:2] = [sum(rest[:2])]
    while number >= rest[0]:
        number -= rest.pop(0)
    cells = rest[0]
    first = ((_slot(home) * cells // _SLOTS + number) % cells * 4 + 1) * _SLOTS // (4 * cells)
    middle = range(first, first + _SLOTS // (2 * cells))
    return next(tag for n in itertools.count() if _slot(tag := f"{namespace}:{shard}.{n}") in middle)


_SLOTS = 16384


def _slot(tag: str) -> int:
    return crc_hqx(tag.encode(), 0) % _SLOTS


def _time(milliseconds: int) -> str:
    steps = milliseconds // STEP
    return f"{_high(steps >> 10)}{_PAIRS[steps & 1023]}"


@lru_cache(4)
def _high(number: int) -> str:
    return _base32(number, 6)


def on_shard(id: str, shard: int) -> str:
    return id[:-2] + _PAIRS[shard]


def make_ids(milliseconds: int, random_bits: int, count: int, shard: int = 0) -> list[str]:
    """``count`` consecutive ids, at a fraction of the cost of making each alone."""
    head, tail = _time(milliseconds), _base32(shard, 2)
    low = random_bits & 0x3FF
    if low + count <= 1024:
        high = _base32(random_bits >> 10, 9)
        return [f"{head}{high}{_DIGITS[n >> 5]}{_DIGITS[n & 31]}{tail}" for n in range(low, low + count)]
    return [head + _base32((random_bits + n) % (1 << 55), 11) + tail for n in range(count)]


# The highest bit of the shard's digits: this id belongs to a workflow. No plain job's has it, so that a script sees
# from an id alone what it is.
_OF_FLOW = 512
_FLOW_DIGITS = _DIGITS[16:]
# Most nodes of one workflow, as far as ids go.
MOST_NODES = 32**4 - 1


def flow_id(milliseconds: int, random_bits: int, shard: int = 0) -> str:
    """A workflow's id: 8 characters of time, 7 random ones, ``0000``, 2 for the shard. ``random_bits``: below 2**35."""
    return f"{_time(milliseconds)}{_base32(random_bits, 7)}0000{_base32(shard | _OF_FLOW, 2)}"


def code_of(number: int) -> str:
    return _PAIRS[number >> 10] + _PAIRS[number & 1023]


def node_id(flow: str, number: int) -> str:
    return flow[:15] + code_of(number) + flow[19:]


def siblings_of(id: str, codes: str) -> list[str]:
    head, tail = id[:15], id[19:]
    return [head + codes[n : n + 4] + tail for n in range(0, len(codes), 4)]


def code_in(id: str) -> str:
    return id[15:19]


def number_of(id: str) -> int:
    """Which node of its workflow an id names; 0 for the workflow itself."""
    return number_of_code(code_in(id))


def number_of_code(code: str) -> int:
    """See :func:`code_of`. Raises ValueError where it is not a code."""
    try:
        return _OF_PAIR[code[:2]] << 10 | _OF_PAIR[code[2:]]
    except KeyError:
        raise ValueError(f"{code!r} is not the number of a node") from None


def flow_of(id: str) -> str:
    return f"{id[:15]}0000{id[19:]}"


def is_flow(id: str) -> bool:
    return _ID.fullmatch(id) is not None and id[19] in _FLOW_DIGITS and id[15:19] == "0000"


def is_node(id: str) -> bool:
    # Not by the expression: every job's end asks.
    return len(id) == LENGTH and id[19] in _FLOW_DIGITS and id[15:19] != "0000"


# The next bit: this job is one of an order.
_ORDERED = 256
_ORDERED_DIGITS = _DIGITS[8:16]


def ordered_id(id: str) -> str:
    return f"{id[:19]}{_DIGITS[_DIGITS.index(id[19]) | _ORDERED >> 5]}{id[20]}"


# The next bit: this job is unique.
_UNIQUE = 128
_UNIQUE_DIGITS = _DIGITS[4:8] + _DIGITS[12:16]
_AS_UNIQUE = {digit: _DIGITS[n | _UNIQUE >> 5] for n, digit in enumerate(_DIGITS)}


def unique_id(id: str) -> str:
    return f"{id[:19]}{_AS_UNIQUE[id[19]]}{id[20]}"


def is_unique(id: str) -> bool:
    return len(id) == LENGTH and id[19] in _UNIQUE_DIGITS


def digits_of(name: str) -> str:
    """Ten digits of a schedule's name, 50 bits: all ids of its jobs have them."""
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).digest()
    return "".join(_DIGITS[byte % 32] for byte in digest[:10])


def tick_of(id: str, name: str) -> int:
    """The tick, in microseconds, for which the schedule of this name made the job; 0: it did not make this one."""
    return milliseconds_of(id) * 1000 if id[8:18] == digits_of(name) else 0


def ticked_at(id: str, name: str) -> datetime | None:
    return utc(tick_of(id, name)) if name else None


def run_id_of(id: str) -> str:
    shard = _DIGITS.index(id[19]) * 32 + _DIGITS.index(id[20])
    return f"{id[:14]}{id[18]}0000{_base32(shard % _UNIQUE | _OF_FLOW, 2)}"


def is_ordered(id: str) -> bool:
    return len(id) == LENGTH and id[19] in _ORDERED_DIGITS


def is_plain(id: str) -> bool:
    return _ID.fullmatch(id) is not None and id[19] not in _FLOW_DIGITS


def shard_of(id: str) -> int:
    """The shard that an id names. Raises ValueError: ``id`` does not have the form of a job's id."""
    if _ID.fullmatch(id) is None:
        raise ValueError(f"{id!r} is not the id of a job")
    return drawn_for(id)


def drawn_for(id: str) -> int:
    """As :func:`shard_of`, of what is known to be an id. It checks nothing, since each enqueue calls it."""
    return (_DIGITS.index(id[19]) * 32 + _DIGITS.index(id[20])) % _UNIQUE


def rows_by_shard(shards: Iterable[int]) -> dict[int, list[int]]:
    """The numbers of the rows of each shard; ``shards``: that of each row."""
    rows: dict[int, list[int]] = {}
    for n, shard in enumerate(shards):
        rows.setdefault(shard, []).append(n)
    return rows


def milliseconds_of(id: str) -> int:
    """When the id was made, in milliseconds since 1970 by the producer's clock, and at most 4 earlier."""
    value = 0
    for digit in id[:8]:
        value = value * 32 + _DIGITS.index(digit)
    return value * STEP
