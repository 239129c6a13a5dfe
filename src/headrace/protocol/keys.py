"""Every key that Headrace stores, and builders of those that Python sends: scripts build theirs, see script_header.

All keys of a shard share its hash tag, so one script may touch them in a cluster. Documented per key: type, owner
(whose life it shares) and end.

Channels (no key): ``mail:<owner>`` carries cancellations, questions, commands; ``done:<id>`` announces a finished job
to its waiters, and by the word ``~`` a change of it to those who read its changes.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from headrace.errors import SettingsError
from headrace.model.ids import FINAL, check_name, tag_for
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.model.sealing import Seal

CHANNELS = {"mail:<owner>": "channel", "done:<id>": "channel"}
TABLE = """
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
``pauses``             hash    Why queues are paused, as the person said who paused them, and for how long, as
                               ``~<queue>``. A field ends with the pause.
``resumes``            zset    Those whose pause has an end of its own, scored by it. Ends with the pause.
``sampled``            string  The minute whose ready jobs were counted last, by queue. Expires after two minutes.
``scheduled``          zset    Ids that wait for their time (delays, retries, snoozes), scored by due time.
``parking``            set     Names of tasks that have parked jobs.
``parked:<task>``      zset    Ids whose task a worker that claimed them did not know, scored as in their queues.
``owners``             zset    Dispatcher incarnations, scored by the end of their lease.
``owner:<owner>``      hash    What an incarnation says of itself, its declared lease, its last request. Ends with it.
``tasks:<owner>``      hash    Tasks that an incarnation knows, each with its kind; schedules that its code declares,
                               as ``~<name>``, each with its fingerprint; what its code says of limits, as
                               ``%limit:<limit>``, ``%task:<task>`` and ``%queue:<queue>``, each with a mark (see
                               declare.lua). Ends with the incarnation.
``replaced:<owner>``   set     ``limits``, ``schedules``: other code changed some after this incarnation declared its
                               own. Ends when it declares them anew, or with the incarnation.
``claims:<owner>``     zset    Ids that an incarnation runs, scored by token. Ends with the incarnation.
``cancels:<owner>``    set     Running ids that were asked to stop. Ends with the incarnation.
``token``              string  The last fencing token: server microseconds, strictly increasing. One per shard.
``succeeded`` ...      zset    Finished and kept ids, by the time they finished; one per final state. Of the nodes of
                               workflows those that failed or are quarantined; they stay as long as their workflow.
``expires``            zset    Finished and kept ids, by the end of their retention; no nodes.
``totals``             hash    ``bytes`` that kept results take, ``blocked`` jobs that wait for others outside
                               of workflows. One per shard.
``turn:<key>``         string  The ordered job of this key whose turn it is. Ends with the last of the key.
``chain:<key>``        zset    Ordered jobs of this key that wait for their turn, first come first. Empty means absent.
``after:<id>``         zset    Jobs that follow this one, in the order in which they are freed; also some that were
                               cancelled since. The chore that its end leaves removes it.
``schedules``          zset    Names of schedules, all with the score 0. A deletion, or the end of the last, ends it.
``schedule:<name>``    hash    A schedule: its times, its jobs' form, its next ticks. Deleted by hand, 7 days after its
                               last tick, or when no worker declares it any more.
``ticks:<name>``       list    What became of the last 100 ticks of a schedule, as MessagePack. Ends with it.
``ticking``            zset    Schedules that have a next tick, scored by when it is due; and ended and orphaned ones,
                               by when they are looked at. Empty means absent.
``limits``             zset    Names of limits, all with the score 0. Until they are deleted.
``limit:<limit>``      hash    Numbers of a limit, as the newest code declares them; how many ``overrides`` it has.
                               Until it is deleted.
``overrides:<limit>``  hash    What operators put over these: by value (``*``: of all), as MessagePack, parts with an
                               end each (look_anew.lua). A field ends with its last part.
``limited``            hash    Limits of tasks (``task:<task>``) and of queues (``queue:<queue>``). Workers that know
                               the task, or the limit, change them.
``rewound``            string  The last token when the clock was set back under a limit. Expires after a day.
``superseded``         hash    What was said before of limits, and of tasks and queues that have limits: by
                               ``limit:<limit>``, ``task:<task>`` and ``queue:<queue>`` the last ten marks.
``lane:<lane>``        zset    Ids of one queue that pass the same gates, scored as in their queue. Empty means absent.
``class:<class>``      zset    Lanes with the same limits that hold any, scored by their turn: behind a gate, above
                               2**50. Their class is ``~<limits>`` in ``ready:<queue>``. Empty means absent.
``classes:<queue>``    hash    Jobs that wait in each class; with ``|`` behind its name, the turn of the last start.
``waiting:<limit>``    set     Classes with this limit in which jobs wait. Empty means absent.
``gate:<gate>``        string  A limit for one value, ``<limit>:<value>``: when the next may start, how many run, and
                               whether anything waits behind it. Ends when it says nothing more; see gates.lua.
``behind:<gate>``      set     Lanes and classes that wait until the gate opens. Ends when it does.
``slots:<owner>``      hash    Of limited ids that an incarnation claims: lane, cost, when that was charged. Ends with
                               the incarnation.
``timers``             zset    When closed gates open (``gate:<gate>``), overrides end (``limit:<gate>``), leases of
                               programs that hold a gate (``hold:<gate>|<holder>.<lease>``), and what else is due;
                               the first of the times is the score of ``~`` in ``scheduled``.
``unique:<name>``      string  The unique job that has this name, and the one that waits for its end. Ends with what
                               the job's ``hold`` says: its end, its first start, or a time, then it expires.
``waited``             zset    Ids that a caller waits for, scored by when the wait ends; swept. Those that other jobs
                               follow have a score beyond all times.
``flow:<flow>``        hash    A workflow's record. Lives until the end of its retention; unsealed ones for an hour.
``flows:<view>``       zset    Workflows by creation; a view is ``definition|state``, where either part may be empty.
``lapses``             zset    Workflows that have ended or wait for their start, by when they are to be removed.
``broken:<flow>``      zset    Its nodes that failed, were cancelled or quarantined, by time. Ends with the workflow.
``held:<flow>``        zset    Its nodes that were to start while it was stopped. Ends with the workflow.
``undo:<flow>``        zset    Its nodes that can be undone, by the time they succeeded. Ends with the workflow.
``live:<live>``        string  The live workflow of a ``definition:key``. Ends when that workflow has ended.
``chores``             zset    What scripts left to do (see tend.lua), by the time from which it may be done.
``sender:<sender>``    string  Number of a producer's last applied request (makes repeats safe). Expires by itself.
``mark:<sender>``      string  What a producer wrote last behind work that it has confirmed. Expires after a minute.
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
``acts``               stream  Acts of people, the newest 10,000. Ends a year after the last one.
``events``             stream  What failed or changed, the newest 10,000. Ends a week after the last one.
``deaths``             stream  Workers that died, the newest 20, as their events. Ends an hour after the last one.
``deploys``            zset    Versions of code that workers run, the newest 20, by their first start. Ends a year after
                               a worker with a version started.
``causes``             zset    Causes of failures, by when they were last seen, 1,000. Ends 30 days after the last.
``cause:<cause>``      hash    Of a cause: task, kind, place, how many failures, the newest. Ends 30 days after it.
``floods``             hash    Failures of a cause in a minute: which minute, how many. Ends two minutes after it began.
``own``                zset    Ids of built-in jobs, by when they were stored, 1,000 at most. Some may have left. Ends a
                               month after the last was stored.
``watches``            zset    Hooks and alarms (``hook:<name>``, ``alarm:<name>``), by when a worker knew them last;
                               ``alarms``, the look at all of them. Ends a week after the last.
``watch:<watch>``      hash    The cursor of a hook, the job of its last call, and when that was stored; or since when
                               an alarm is raised. Ends a week after a worker knew it last.
``stacks:<owner>``     string  What an incarnation's runners were doing at the last request. Ends a minute after that.
``schema``             string  Version of this layout. One per shard.
``shard``              string  Which shard this is: ``1 of 3 of <store>``, or ``1 of 3+2 of <store>`` where two were
                               added. Absent where there is one.
``void``               -       Never exists: see ``Keys.guards``.
``copy``               hash    The store is an old copy: microseconds that were ``lost``. Ends by ``headrace restored``.
``move``               hash    It is being moved ``to`` or ``from`` a server, or has moved (``done``). At the target
                               it ends with the move, at the source when its keys are deleted.
``migration``          hash    A migration that is under way or was interrupted. Ends with its last step.
=====================  ======  ==================================================================================
"""

_ROW = re.compile(r"^``([^`]+)``( \.\.\.)?\s+(hash|zset|set|list|string|stream)\s+(\S.*)$", re.MULTILINE)

# What this version writes, and the oldest that it can work on: see headrace.migrations.
SCHEMA = 2
OLDEST = 2


class Keys:
    """Builds the keys of one shard.

    Attributes:
        shard, count: which of how many it is; ``number``: how many, as the URL says it, such as ``12+4``.
        seal: signs and encrypts the jobs that verbs store; None: the application has no keys.
        prefix: the hash tag that every key of the shard starts with: ``{namespace:shard}:``, and on a cluster what
            :func:`headrace.model.ids.tag_for` gives.
        guards: keys that each call on a cluster sends besides its own, which no script reads: one that exists and one
            that never does. While a slot moves key by key, its keys are on two nodes, and a node refuses a script
            before it begins if some of the keys that were sent are there and some are not.
    """

    __slots__ = ("count", "guards", "number", "prefix", "seal", "shard")

    def __init__(
        self,
        namespace: str = "hr",
        shard: int = 0,
        number: str = "1",
        *,
        guarded: bool = False,
        seal: Seal | None = None,
    ) -> None:
        parts = [*map(int, number.split("+"))]
        self.shard, self.number, self.count = shard, number, sum(parts)
        self.seal = seal
        check_name("namespace", namespace)
        self.prefix = f"{{{tag_for(namespace, shard, parts) if guarded else f'{namespace}:{shard}'}}}:"
        self.guards: tuple[str, ...] = ("schema", "void") if guarded else ()

    def __call__(self, name: str) -> str:
        return self.prefix + name

    def job(self, id: str) -> str:
        return f"{self.prefix}job:{id}"

    def wake(self, queue: str) -> str:
        return f"{self.prefix}wake:{queue}"

    def flow(self, flow: str) -> str:
        return f"{self.prefix}flow:{flow}"

    def flows(self, view: str) -> str:
        return f"{self.prefix}flows:{view}"

    def mark(self, sender: str) -> str:
        return f"{self.prefix}mark:{sender}"

    def cache(self, name: str) -> str:
        return f"{self.prefix}cache:{name}"

    def mail(self, owner: str) -> str:
        return f"{self.prefix}mail:{owner}"

    def done(self, id: str) -> str:
        return f"{self.prefix}done:{id}"


@lru_cache(maxsize=256)
def keys_of(
    namespace: str, shard: int = 0, number: str = "1", *, guarded: bool = False, seal: Seal | None = None
) -> Keys:
    return Keys(namespace, shard, number, guarded=guarded, seal=seal)


def keys_at(settings: Settings, url: str | None, shard: int = 0, number: str = "1") -> Keys:
    guarded = (url or "").startswith(("cluster://", "clusters://"))
    return keys_of(settings.namespace, shard, number, guarded=guarded, seal=seal_of(settings))


def seal_of(settings: Settings) -> Seal | None:
    """What seals the jobs of an application. Raises SettingsError, MissingExtra: it has no keys, or lacks a package."""
    if settings.require_signature and not settings.signing_keys:
        raise SettingsError("require_signature needs signing_keys: give workers the keys that producers sign with")
    if settings.encrypt and not settings.encryption_keys:
        raise SettingsError("encrypt needs encryption_keys: give producers and workers a key")
    if not settings.signing_keys and not settings.encryption_keys:
        return None
    # Loaded at first use: a program without keys must not pay for it.
    from headrace.model.sealing import Seal

    return Seal(
        settings.namespace, settings.signing_keys, settings.encryption_keys, required=settings.require_signature
    )


@cache
def documented() -> dict[str, str]:
    """Pattern and type of every key. A pattern is a name, or a name and what follows: ``scheduled``, ``job:<id>``."""
    found: dict[str, str] = {}
    for pattern, more, kind, _ in _ROW.findall(TABLE):
        for name in FINAL if more else (pattern,):
            found[name] = kind
    return found
