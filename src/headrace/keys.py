"""Every key that Headrace stores: the one place where keys are built.

All keys of a shard share its hash tag, so one script may touch them in a cluster. Documented per key: type, owner
(whose life it shares) and end.

=====================  ======  ==================================================================================
key                    type    meaning, owner and end
=====================  ======  ==================================================================================
``job:<id>``           hash    A job's record. Lives until the job is done and not kept, or its retention ends. Its
                               field ``journal`` has the starts that ended (see journal.lua), at most ten.
``log:<id>``           list    Lines that the job logged, newest last, capped. Ends with its job.
``ready:<queue>``      zset    Ids ready to start, scored by server time less priority. Empty means absent. Queue
                               ``@<owner>``: what was broadcast to an incarnation; ends with that.
``wake:<queue>``       zset    At most one token: "this queue has work". Owned by the queue; set when work comes.
                               ``wake:<queue>|<kind>``: a worker without room for this kind passed over jobs of it.
``queues``             set     Names of queues that held work. Purge and the overview remove names of idle queues.
``paused``             set     Names of paused queues; resume removes.
``resumes``            zset    Those whose pause has an end of its own, scored by it. Ends with the pause.
``scheduled``          zset    Ids that wait for their time (delays, retries, snoozes), scored by due time.
``parking``            set     Names of tasks that have parked jobs.
``parked:<task>``      zset    Ids whose task a worker that claimed them did not know, scored as in their queues.
``owners``             zset    Dispatcher incarnations, scored by the end of their lease.
``owner:<owner>``      hash    What an incarnation says of itself, its declared lease, its last request. Ends with it.
``tasks:<owner>``      hash    Tasks that an incarnation knows, each with its kind. Ends with the incarnation.
``claims:<owner>``     zset    Ids that an incarnation runs, scored by token. Ends with the incarnation.
``cancels:<owner>``    set     Running ids that were asked to stop. Ends with the incarnation.
``token``              string  The last fencing token: server microseconds, strictly increasing. One per shard.
``succeeded`` ...      zset    Finished and kept ids, by the time they finished; one per final state.
``expires``            zset    Finished and kept ids, by the end of their retention.
``totals``             hash    ``bytes`` that kept results take, ``blocked`` jobs that wait in chains. One per shard.
``turn:<key>``         string  The ordered job of this key whose turn it is. Ends with the last of the key.
``chain:<key>``        zset    Ordered jobs of this key that wait for their turn, first come first. Empty means absent.
``waited``             zset    Ids that somebody waits for, scored by when the wait ends; swept.
``flow:<flow>``        hash    A workflow's record. Lives until the end of its retention; unsealed ones for an hour.
``flows:<view>``       zset    Workflows by creation; a view is ``definition|state``, where either part may be empty.
``lapses``             zset    Workflows that have ended or wait for their start, by when they are to be removed.
``broken:<flow>``      zset    Its nodes that failed, were cancelled or quarantined, by time. Ends with the workflow.
``held:<flow>``        zset    Its nodes that were to start while it was stopped. Ends with the workflow.
``undo:<flow>``        zset    Its nodes that can be undone, by the time they succeeded. Ends with the workflow.
``live:<live>``        string  The live workflow of a ``definition:key``. Ends when that workflow has ended.
``chores``             zset    What scripts left to do (see tend.lua), by the time from which it may be done.
``sender:<sender>``    string  Number of a producer's last applied request (makes repeats safe). Expires by itself.
``request:<request>``  string  The job that a request id made. Expires after the request_id_ttl window.
``cache:<name>``       string  A cached value: its tags, a line feed, MessagePack. Ends at its ttl.
``cached``             zset    Names of cached values, scored by their end. Ends with the last.
``tagged:<tag>``       zset    Names of cached values with this tag, scored by their end. Ends with the last.
``filling:<name>``     string  Lease of those who compute this absent value: its number, since when. A write ends it.
``dropped:<tag>``      string  Number of a tag's (``*``: the cache's) last deletion; outlives the leases before it.
``leases``             string  Numbers leases and deletions by tag, strictly increasing. One per shard.
``probe:<link>``       string  A cache's test that it hears of changes. Deleted at once, else expires.
``stat:<bucket>``      hash    Counts by field of ``<date>:<label>``. Ends its resolution's retention after the bucket.
``stat-sub:<label>``   zset    Labels below ``/<label>``, by the end of what was counted in them. Ends with the last.
``stat-event:<id>``    string  Something that happened, as MessagePack. Ends its retention after it was told.
``stat-events``        zset    Ids of events, by the time that they happened. Ends with the last.
``stat-stream``        stream  Batches of counts that wait to be added, bounded. Ends when it was not used for a week.
``stat-flow``          hash    ``lost`` batches, and when one was ``taken`` from the stream. Ends a week after that.
``schema``             string  Version of this layout. One per shard.
``migration``          hash    A migration that is under way or was interrupted. Ends with its last step.
=====================  ======  ==================================================================================

Channels (no key): ``mail:<owner>`` carries cancellations, questions, commands; ``done:<id>`` announces a finished job
to its waiters.
"""

from __future__ import annotations

import re
from functools import lru_cache

from headrace.errors import OptionsError

# What this version writes, and the oldest that it can work on: see headrace.migrations.
SCHEMA = 2
OLDEST = 2

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

    def turn(self, key: str) -> str:
        return f"{self.prefix}turn:{key}"

    def chain(self, key: str) -> str:
        return f"{self.prefix}chain:{key}"

    def parked(self, task: str) -> str:
        return f"{self.prefix}parked:{task}"

    def owner(self, owner: str) -> str:
        return f"{self.prefix}owner:{owner}"

    def tasks(self, owner: str) -> str:
        return f"{self.prefix}tasks:{owner}"

    def claims(self, owner: str) -> str:
        return f"{self.prefix}claims:{owner}"

    def flow(self, flow: str) -> str:
        return f"{self.prefix}flow:{flow}"

    def flows(self, view: str) -> str:
        return f"{self.prefix}flows:{view}"

    def cancels(self, owner: str) -> str:
        return f"{self.prefix}cancels:{owner}"

    def sender(self, sender: str) -> str:
        return f"{self.prefix}sender:{sender}"

    def request(self, request: str) -> str:
        return f"{self.prefix}request:{request}"

    def cache(self, name: str) -> str:
        return f"{self.prefix}cache:{name}"

    def tagged(self, tag: str) -> str:
        return f"{self.prefix}tagged:{tag}"

    def filling(self, name: str) -> str:
        return f"{self.prefix}filling:{name}"

    def dropped(self, tag: str) -> str:
        return f"{self.prefix}dropped:{tag}"

    def stat(self, bucket: str) -> str:
        return f"{self.prefix}stat:{bucket}"

    def stat_sub(self, label: str) -> str:
        return f"{self.prefix}stat-sub:{label}"

    def stat_event(self, id: str) -> str:
        return f"{self.prefix}stat-event:{id}"

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
    return id_at(milliseconds, make_tail(random_bits, shard))


def make_tail(random_bits: int, shard: int = 0) -> str:
    """An id without its time, which may be made ahead."""
    return _base32(random_bits, 11) + _base32(shard, 2)


def id_at(milliseconds: int, tail: str) -> str:
    """The id of this time, made for every single enqueue: from little memory, since an idle process has none cached."""
    return f"{_second(milliseconds >> 10)}{_PAIRS[milliseconds & 1023]}{tail}"


@lru_cache(4)
def _second(number: int) -> str:
    return _base32(number, 7)


def make_ids(milliseconds: int, random_bits: int, count: int, shard: int = 0) -> list[str]:
    """``count`` consecutive ids, at a fraction of the cost of making each alone."""
    head, tail = _base32(milliseconds, 9), _base32(shard, 2)
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
    """A workflow's id: 9 characters of milliseconds, 7 random ones, ``0000``, 2 for the shard.

    Args:
        random_bits: below 2**35.
    """
    return f"{_base32(milliseconds, 9)}{_base32(random_bits, 7)}0000{_base32(shard | _OF_FLOW, 2)}"


def code_of(number: int) -> str:
    """A node's number as the four digits that stand for it in ids and edges."""
    return _PAIRS[number >> 10] + _PAIRS[number & 1023]


def node_id(flow: str, number: int) -> str:
    """The id of a workflow's node, which is also the id of its job."""
    return flow[:16] + code_of(number) + flow[20:]


def number_of(id: str) -> int:
    """Which node of its workflow an id names; 0 for the workflow itself."""
    return number_of_code(id[16:20])


def number_of_code(code: str) -> int:
    """See :func:`code_of`."""
    number = 0
    for digit in code:
        number = number * 32 + _DIGITS.index(digit)
    return number


def flow_of(id: str) -> str:
    """The id of a node's workflow."""
    return f"{id[:16]}0000{id[20:]}"


def is_flow(id: str) -> bool:
    """Whether this is the id of a workflow."""
    return _ID.fullmatch(id) is not None and id[20] in _FLOW_DIGITS and id[16:20] == "0000"


def is_node(id: str) -> bool:
    """Whether this is the id of a workflow's node."""
    # Not by the expression: every job's end asks.
    return len(id) == 22 and id[20] in _FLOW_DIGITS and id[16:20] != "0000"


# The next bit: this job is one of an order.
_ORDERED = 256
_ORDERED_DIGITS = _DIGITS[8:16]


def ordered_id(id: str) -> str:
    """The id of an ordered job, made of one that was drawn for it."""
    return f"{id[:20]}{_DIGITS[_DIGITS.index(id[20]) | _ORDERED >> 5]}{id[21]}"


def is_ordered(id: str) -> bool:
    """Whether this is the id of an ordered job."""
    return len(id) == 22 and id[20] in _ORDERED_DIGITS


def is_plain(id: str) -> bool:
    """Whether this is the id of a job that is not a workflow's node."""
    return _ID.fullmatch(id) is not None and id[20] not in _FLOW_DIGITS


def shard_of(id: str) -> int:
    """The shard that an id names.

    Raises:
        ValueError: ``id`` does not have the form of a job's id.
    """
    if _ID.fullmatch(id) is None:
        raise ValueError(f"{id!r} is not the id of a job")
    return (_DIGITS.index(id[20]) * 32 + _DIGITS.index(id[21])) % _ORDERED


def milliseconds_of(id: str) -> int:
    """When the id was made, in milliseconds since 1970 by the producer's clock."""
    value = 0
    for digit in id[:9]:
        value = value * 32 + _DIGITS.index(digit)
    return value
