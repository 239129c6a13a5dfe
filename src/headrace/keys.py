"""Every key that Headrace stores: the one place where keys are built.

All keys of a shard share its hash tag, so one script may touch them in a cluster. Documented per key: type, owner
(whose life it shares) and end.

=====================  ======  ==================================================================================
key                    type    meaning, owner and end
=====================  ======  ==================================================================================
``job:<id>``           hash    A job's record. Lives until the job is done and not kept, or its retention ends.
``log:<id>``           list    Lines that the job logged, newest last, capped. Ends with its job.
``ready:<queue>``      zset    Ids ready to start, scored by server time less priority. Empty means absent.
``wake:<queue>``       list    At most one token: "this queue has work". Owned by the queue; pushed when work comes.
``queues``             set     Names of queues that ever held work; purge removes a name.
``paused``             set     Names of paused queues; resume removes.
``scheduled``          zset    Ids that wait for their time (delays, retries, snoozes), scored by due time.
``parking``            set     Names of tasks that have parked jobs.
``parked:<task>``      zset    Ids whose task no worker here knew, scored by the time of parking.
``owners``             zset    Dispatcher incarnations, scored by the end of their lease.
``owner:<owner>``      hash    What an incarnation says of itself, and its last request. Ends with the incarnation.
``claims:<owner>``     zset    Ids that an incarnation runs, scored by token. Ends with the incarnation.
``cancels:<owner>``    set     Running ids that were asked to stop. Ends with the incarnation.
``token``              string  The last fencing token: server microseconds, strictly increasing. One per shard.
``succeeded`` ...      zset    Finished and kept ids, by the time they finished; one per final state.
``expires``            zset    Finished and kept ids, by the end of their retention.
``totals``             hash    ``bytes`` that kept results and errors take. One per shard.
``waited``             zset    Ids that somebody waits for, scored by when the wait ends; swept.
``sender:<sender>``    string  Number of a producer's last applied request (makes repeats safe). Expires by itself.
``request:<request>``  string  The job that a request id made. Expires after the dedupe window.
``schema``             string  Version of this layout. One per shard.
=====================  ======  ==================================================================================

Channels (no key): ``mail:<owner>`` carries cancel requests, ``done:<id>`` announces a finished job to its waiters.
"""

from __future__ import annotations

import re
from functools import lru_cache

from headrace.errors import OptionsError

SCHEMA = 1

FINAL = ("succeeded", "failed", "cancelled", "quarantined")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,127}")


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it may name a queue, task or key prefix.

    Raises:
        OptionsError: it is empty, longer than 128 characters, or has characters outside ``A-Za-z0-9_.:/@+-``.
    """
    if _NAME.fullmatch(name) is None:
        raise OptionsError(
            f"{kind} name {name!r} cannot be used: take 1 to 128 of the characters A-Z a-z 0-9 _ . : / @ + - "
            f"and start with a letter, a digit or _"
        )
    return name


class Keys:
    """Builds the keys of one shard.

    Attributes:
        prefix: ``{namespace:shard}:``, the hash tag that every key of the shard starts with.
    """

    __slots__ = ("prefix", "shard")

    def __init__(self, namespace: str = "hr", shard: int = 0) -> None:
        self.shard = shard
        self.prefix = f"{{{check_name('namespace', namespace)}:{shard}}}:"

    def __call__(self, name: str) -> str:
        return self.prefix + name

    def job(self, id: str) -> str:
        return f"{self.prefix}job:{id}"

    def log(self, id: str) -> str:
        return f"{self.prefix}log:{id}"

    def ready(self, queue: str) -> str:
        return f"{self.prefix}ready:{queue}"

    def wake(self, queue: str) -> str:
        return f"{self.prefix}wake:{queue}"

    def parked(self, task: str) -> str:
        return f"{self.prefix}parked:{task}"

    def owner(self, owner: str) -> str:
        return f"{self.prefix}owner:{owner}"

    def claims(self, owner: str) -> str:
        return f"{self.prefix}claims:{owner}"

    def cancels(self, owner: str) -> str:
        return f"{self.prefix}cancels:{owner}"

    def sender(self, sender: str) -> str:
        return f"{self.prefix}sender:{sender}"

    def request(self, request: str) -> str:
        return f"{self.prefix}request:{request}"

    def mail(self, owner: str) -> str:
        """The channel on which an incarnation hears of cancellations."""
        return f"{self.prefix}mail:{owner}"

    def done(self, id: str) -> str:
        """The channel that announces the end of a job to its waiters."""
        return f"{self.prefix}done:{id}"


@lru_cache(maxsize=64)
def keys_of(namespace: str, shard: int = 0) -> Keys:
    """The key builder of a shard, the same object for the same shard."""
    return Keys(namespace, shard)


_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_ID = re.compile(rf"[{_DIGITS}]{{22}}")


def _base32(number: int, width: int) -> str:
    digits: list[str] = []
    for _ in range(width):
        number, rest = divmod(number, 32)
        digits.append(_DIGITS[rest])
    return "".join(reversed(digits))


def make_id(milliseconds: int, random_bits: int, shard: int = 0) -> str:
    """A job's id: 22 characters that sort by time: 9 of milliseconds, 11 random, 2 for the shard.

    Args:
        milliseconds: since 1970, below 2**45.
        random_bits: below 2**55; consecutive ids of one process count up from it.
    """
    # Two digits a look-up: every single enqueue makes an id.
    a = (milliseconds << 5) | (random_bits >> 50)
    b = ((random_bits & 0x3FFFFFFFFFFFF) << 10) | shard
    p = _PAIRS
    return (
        f"{p[a >> 40]}{p[a >> 30 & 1023]}{p[a >> 20 & 1023]}{p[a >> 10 & 1023]}{p[a & 1023]}"
        f"{p[b >> 50]}{p[b >> 40 & 1023]}{p[b >> 30 & 1023]}{p[b >> 20 & 1023]}{p[b >> 10 & 1023]}{p[b & 1023]}"
    )


def make_ids(milliseconds: int, random_bits: int, count: int, shard: int = 0) -> list[str]:
    """``count`` consecutive ids, at a fraction of the cost of making each alone."""
    head, tail = _base32(milliseconds, 9), _base32(shard, 2)
    low = random_bits & 0x3FF
    if low + count <= 1024:
        high = _base32(random_bits >> 10, 9)
        return [f"{head}{high}{_DIGITS[n >> 5]}{_DIGITS[n & 31]}{tail}" for n in range(low, low + count)]
    return [head + _base32((random_bits + n) % (1 << 55), 11) + tail for n in range(count)]


def shard_of(id: str) -> int:
    """The shard that an id names.

    Raises:
        ValueError: ``id`` does not have the form of a job's id.
    """
    if _ID.fullmatch(id) is None:
        raise ValueError(f"{id!r} is not the id of a job")
    return _DIGITS.index(id[20]) * 32 + _DIGITS.index(id[21])


def milliseconds_of(id: str) -> int:
    """When the id was made, in milliseconds since 1970 by the producer's clock."""
    value = 0
    for digit in id[:9]:
        value = value * 32 + _DIGITS.index(digit)
    return value
