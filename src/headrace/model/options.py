"""The one table of what may be asked for a task or one job: an option is one row, a type and an ``OptionRow``. Pure.

The rows stand in annotations, so that type checkers read the same table; all else follows from it
(docs/design/tasks.md).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, get_args

from headrace.model import option_checks as check
from headrace.model.headers import check as check_headers
from headrace.model.limit_rules import GivenLimits, limit_names
from headrace.model.option_checks import Flag, OptionRow, rows_of
from headrace.model.retry import Retry, policy
from headrace.model.unique_rules import UNIQUE, GivenUnique
from headrace.settings import Duration, microseconds, seconds

#: Kinds of runners that a task may choose.
TaskKind = Literal["process", "fork", "thread", "async"]
# The kind ``own`` runs Headrace's own jobs, as a fork server runs jobs; no task of an application can choose it.
Kind = Literal[TaskKind, "own"]
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
OWN: Kind = "own"
# Kinds whose runners give each job a process of its own.
FORKING: tuple[Kind, ...] = ("fork", OWN)
# Own jobs that one worker runs at once.
OWN_AT_ONCE = 2
# The option of a worker that says how many runners of a kind it has.
SIZE_FLAGS = {"process": "--processes", "fork": "--forks", "thread": "--threads", "async": "--concurrency"}


# fmt: off
class JobOptions(TypedDict, total=False):
    """What one job may ask for; a task gives the defaults. None stands for an option that is not given."""

    queue: Annotated[str | None, OptionRow(
        check=check.queue, travels="field", default="default",
        doc="the queue in which it waits; ``default``.",
        envelope="the queue; a name like a task's",
        flag=Flag(value="NAME", text="The queue."),
    )]
    priority: Annotated[int | None, OptionRow(
        check=check.priority, travels="field", kind=int, default=0, claimed=True,
        doc="-100 to 100, higher starts sooner; one level is worth ten minutes of waiting.",
        envelope="-100 to 100, higher starts sooner",
        flag=Flag(value="N", text="-100 to 100; higher starts sooner."),
    )]
    delay: Annotated[Duration | None, OptionRow(
        check=lambda name, value: microseconds(seconds(value, name)), travels="enqueue", kind=int, default=0,
        unit="wait",
        doc="how long it waits before it becomes ready. Not with ``at``.",
        envelope="microseconds until it becomes ready, from the moment that it is stored",
        flag=Flag(value="TIME", text="Start it after TIME, such as 5m."),
    )]
    at: Annotated[datetime | None, OptionRow(
        check=check.moment, travels="enqueue", kind=int, default=0, unit="moment",
        doc="when it becomes ready: a datetime with a time zone.",
        envelope="when it becomes ready, microseconds since 1970 (UTC); not with `delay`",
    )]
    expires: Annotated[Duration | None, OptionRow(
        check=lambda name, value: microseconds(seconds(value, name, zero=False)), travels="enqueue", kind=int,
        default=0, claimed=True, unit="wait",
        doc="it must start within this, or ends as cancelled.",
        envelope="microseconds within which it must start, from the moment that it is stored",
        flag=Flag(value="TIME", text="Start it within TIME, or cancel it."),
    )]
    retries: Annotated[int | Retry | None, OptionRow(
        check=lambda _, value: policy(value), travels="override", kind=int, default=Retry(max=0),
        doc="further starts after an error: a number, or a :class:`Retry`.",
        envelope="further starts after an error, 0 to 1000",
    )]
    timeout: Annotated[Duration | None, OptionRow(
        check=check.limit, travels="override", kind=float, unit="limit",
        doc="soft limit: raises ``SoftTimeLimit`` in the job. ``math.inf``: none, though the task has one.",
        envelope="soft limit of a start, microseconds; 0: none",
    )]
    hard_timeout: Annotated[Duration | None, OptionRow(
        check=check.limit, travels="override", kind=float, unit="limit",
        doc="the runner is killed. ``math.inf``: as if not given, ``timeout`` plus ``kill_timeout``, if any.",
        envelope="hard limit of a start, microseconds; 0: none",
    )]
    max_crashes: Annotated[int | None, OptionRow(
        check=check.whole(1, 1000), travels="field", kind=int, default=0, stored="budget",
        doc="how often it may take its runner down before it is quarantined, 1 to 1000.",
        envelope="crashes after which it is quarantined, 1 to 1000; 0: as the worker says",
    )]
    result_ttl: Annotated[Duration | None, OptionRow(
        check=lambda name, value: seconds(value, name), travels="override", kind=float, stored="keep", unit="time",
        doc="how long a success and its result stay; 0 removes it at once.",
        envelope="microseconds that a success stays",
    )]
    failure_ttl: Annotated[Duration | None, OptionRow(
        check=lambda name, value: seconds(value, name), travels="override", kind=float, stored="keep_failed",
        unit="time",
        doc="how long it stays when it failed, was cancelled or quarantined.",
        envelope="microseconds that any other end stays",
    )]
    at_most_once: Annotated[bool | None, OptionRow(
        check=check.flag, travels="field", kind=bool, default=False, stored="once", claimed=True,
        doc="never start it twice: a start that is lost fails it.",
        envelope="at most one start",
    )]
    key: Annotated[str | None, OptionRow(
        check=check.text, travels="field", default="", claimed=True,
        doc="the customer, the account, ...: a worker starts jobs of one key in order.",
        envelope="for order and affinity, 1 to 256 characters",
        flag=Flag(value="TEXT", text="A worker starts jobs of one key in order."),
    )]
    ordered: Annotated[bool | None, OptionRow(
        check=check.flag, travels="enqueue", kind=bool, default=False,
        doc="jobs of one ``key`` run one at a time, in the order in which they became ready, whichever workers run "
            "them; the next one waits until the one before has ended, retries included.",
        envelope="jobs of one `key` run one at a time; the id must say so, too",
        flag=Flag(text="With --key: run one job of the key at a time, in order, on any worker."),
    )]
    cost: Annotated[int | None, OptionRow(
        check=check.whole(1, 1_000_000_000), travels="field", kind=int, default=0, claimed=True,
        doc="of how many starts it uses up the rates of its limits, a whole number; 1.",
        envelope="of how many starts it uses up the rates of its limits; 0: of one",
        flag=Flag(value="N", text="Use up the rates of its limits as N starts do."),
    )]
    headers: Annotated[Mapping[str, str | None] | None, OptionRow(
        check=check_headers, travels="field", kind=bytes, default=(), claimed=True,
        doc="texts by name that travel beside the arguments: at most 16, and 4,096 bytes in all. A job that is "
            "made in a job inherits that one's; a text of None drops an inherited header. Given in several places they "
            "add up.",
        envelope="[headers](envelope.md#headers): at most 16, and 4,096 bytes in all",
    )]
    note: Annotated[str | None, OptionRow(
        check=check.text, travels="field", default="", stored="label",
        doc="a text for people, 1 to 256 characters, which lists of jobs show.",
        envelope="a text for people, 1 to 256 characters",
        flag=Flag(value="TEXT", text="A text that lists of jobs show."),
    )]
    unique: Annotated[GivenUnique, UNIQUE]
    # The verb that stores a job knows these three, and nothing else: no record and no envelope has them.
    durability: Annotated[Literal["memory", "fsync", "replicated"] | None, OptionRow(
        check=check.durability, travels="request", default="",
        doc="what has the job when the call that stores it returns: the server's ``memory``, its disk too "
            "(``fsync``), or ``replicas`` (``replicated``); the setting ``durability``.",
        flag=Flag(value="NAME", text="Return when it is as safe: memory, fsync or replicated."),
    )]
    replicas: Annotated[int | None, OptionRow(
        check=check.whole(1, 100), travels="request", kind=int, default=0,
        doc='how many replicas have it, with ``durability="replicated"``; the setting ``replicas``.',
        flag=Flag(value="N", text="With --durability replicated: on N replicas."),
    )]

    after_commit: Annotated[Any, OptionRow(
        check=check.transaction, travels="request",
        doc="whether it waits for the commit of an open transaction: True, False, the alias of a database, a "
            "session, or ``outbox``; as the tie to the database says (docs/django.md, docs/sqlalchemy.md).",
    )]


class CallOptions(JobOptions, total=False):
    """What ``task.options(...)`` takes."""

    after: Annotated[Any, OptionRow(
        check=check.predecessors, travels="enqueue", default="",
        doc="a stored job, or a list of at most 1,000 (handles or ids), which it follows: it waits, ``blocked``, "
            "until all have succeeded, and is cancelled when one has ended otherwise. Not with ``delay``, ``at``, "
            "``ordered`` or ``unique``.",
        flag=Flag(value="ID", text="Start it when the job ID has succeeded; cancel it when that ended otherwise."),
    )]
    after_failure: Annotated[bool | None, OptionRow(
        check=check.flag, travels="enqueue", kind=bool, default=False,
        doc="with ``after``: it starts when these jobs have ended, however.",
        flag=Flag(text="With --after: start it after any end of that job."),
    )]

    request_id: Annotated[str | None, OptionRow(
        check=check.text, travels="request", default="",
        doc="within the settings' ``request_id_ttl`` time, enqueues with the same id make one job.",
        envelope="one id makes one job, 1 to 256 characters",
        flag=Flag(value="TEXT", text="Enqueues with the same text make one job."),
    )]


class TaskOptions(JobOptions, total=False):
    """What ``@app.task(...)`` takes."""

    name: Annotated[str | None, OptionRow(check=check.text, doc="instead of ``module.function``.", travels="task")]
    kind: Annotated[TaskKind | None, OptionRow(
        check=check.text, travels="task",
        doc="who runs it: ``process`` (default), ``fork`` (a child per job) or ``thread``; ``async``: coroutines.",
    )]
    loose: Annotated[bool | None, OptionRow(
        check=check.flag, travels="task",
        doc="arguments without an annotation may arrive as another type: a tuple as a list, a UUID as a text.",
    )]
    trace: Annotated[Literal["parent", "link"] | None, OptionRow(
        check=check.trace, travels="task",
        doc="its first starts belong to the trace of their sender (``parent``), or begin one that links to it "
            "(``link``), whatever the setting ``traces`` says of the others.",
    )]
    encrypt: Annotated[bool | None, OptionRow(
        check=check.flag, travels="task",
        doc="its arguments, results and error texts are encrypted; the setting ``encryption_keys`` has the keys.",
    )]
    limits: Annotated[GivenLimits, OptionRow(check=limit_names, doc="at most 4, of ``app.limit``.", travels="task")]


# fmt: on
# No caller gives it: the signature of a task does, see hidden_values.py.
_SECRETS = OptionRow(
    check=check.places,
    doc="where the values of arguments stand that are not shown.",
    travels="field",
    default="",
    envelope="arguments that are never shown: their names, and their numbers from 1, with a space between two",
)
# The options of a job in the order of the table, and what its task's signature says of it.
ROWS = rows_of(CallOptions) | {"secrets": _SECRETS}
TASK_ONLY = frozenset(TaskOptions.__annotations__) - frozenset(JobOptions.__annotations__)


def _document(kind: Any, rows: Mapping[str, OptionRow]) -> None:
    lines = "".join(f"        {name}: {row.doc}\n" for name, row in rows.items())
    # With -OO there are no docstrings.
    kind.__doc__ = f"{kind.__doc__ or ''}\n\n    Attributes:\n{lines}"


_document(JobOptions, rows_of(JobOptions))
_document(CallOptions, {name: ROWS[name] for name in ("after", "after_failure", "request_id")})
_document(TaskOptions, {name: row for name, row in rows_of(TaskOptions).items() if name in TASK_ONLY})
