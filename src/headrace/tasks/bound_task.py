"""A task with options: the verbs that store jobs of it, and the ids of new jobs, which are drawn ahead."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from headrace.errors import OptionsError
from headrace.model.form import Form, NewJob, Options, form_of, of_call
from headrace.model.headers import added, packed
from headrace.model.hidden_values import with_all
from headrace.model.ids import id_at, make_tail, on_shard, ordered_id, shard_of, unique_id
from headrace.model.options import CallOptions
from headrace.model.signature import Signature, Unchecked, check_by, unique_name
from headrace.protocol import overviews, produce
from headrace.protocol.durability import Confirmer, Wishes
from headrace.protocol.produce import Accepted
from headrace.running_job import inherited_headers
from headrace.store.client import Client, Steps
from headrace.tasks.app_context import AppContext
from headrace.tasks.job_handle import Job
from headrace.tasks.limit import check_cost
from headrace.tasks.submission import WAITING, Submission, UnsentJob, around, asubmit, of_rows, postponed, submit

# Drawn ahead, since asking the kernel for each id is a third of what an id costs. A child draws its own.
_drawn: dict[int, list[str]] = {}
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_drawn.clear)


def new_id(shard: int) -> str:
    """An id that no other process draws. Cost: none."""
    try:
        tail = _drawn[shard].pop()
    except (KeyError, IndexError):
        # Not the random module: a program that seeds it, as simulations do, would make the same ids twice.
        drawn = os.urandom(7 * 64)
        tails = [make_tail(int.from_bytes(drawn[n : n + 7]) >> 1, shard) for n in range(0, 7 * 64, 7)]
        tail = tails.pop()
        _drawn.setdefault(shard, []).extend(tails)
    return id_at(time.time_ns() // 1_000_000, tail)


if TYPE_CHECKING:
    from headrace.model.sealing import Seal

P = ParamSpec("P")
R = TypeVar("R")

# Workers that a broadcast goes to.
MOST_WORKERS = 1000


class BoundTask(Generic[P, R]):
    """A task with the options of the next jobs, and the verbs that store these.

    Attributes:
        task: its name in the store.
        context: the application that it belongs to, if there is one already.
        asked: how safe its jobs are to be when they are stored; None: as the application says.
        wish: the option ``after_commit``; None: as the application says.
    """

    __slots__ = (
        *("_heir", "_options", "_place", "_requests", "_shared", "_signature"),
        *("asked", "context", "task", "wish"),
    )

    def __init__(self, context: AppContext, signature: Signature | Unchecked, options: Options) -> None:
        self.task = signature.task
        self.context = context
        self._signature = signature
        self._options = options
        if options.unique:
            check_by(options.unique, signature)
        # Made at first use: annotations may name what the module defines further below.
        self._shared: Form | None = None
        if options.cost:
            check_cost(context.limits_of(self._limits(), options.queue), options.cost)
        # The form with the headers of a job that makes jobs here, and those headers.
        self._heir: tuple[Mapping[str, str], Form] | None = None
        self._requests = (options.request_id,) if options.request_id else ()
        # The name by which the next jobs are placed among several shards, where they have no unique one.
        self._place = options.key or options.request_id
        asks = options.durability or options.replicas
        self.asked: Wishes = ((options.durability, options.replicas),) if asks else None
        self.wish: object = options.after_commit

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job that runs this task: once this returns, no fault of a worker loses it.

        The arguments are checked as the worker will see them.

        Raises:
            ArgumentError: an argument is missing, unexpected, of the wrong type, or cannot be sent; names it.
            PayloadTooLarge: the arguments exceed the settings' ``max_payload``.
            DuplicateJob: it is unique with ``clash="raise"``, and another job has its name.
            StoreUnavailable: no answer within the settings' ``timeout``; the job may or may not be stored.
            StoreFull: the server refused to store it.
            JobNotFound: a job of its option ``after`` is not stored.
            NotConfirmed: it is stored, and not as safe as its ``durability`` asks for.

        Cost: one round trip.
        """
        client = self.context.client
        new = self._new(client, args, kwargs)
        confirmer = Confirmer(self.asked) if self.asked else None
        return self._stored(new, submit(client, "enqueue", [new], self._requests, confirmer, self.wish))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """See :meth:`enqueue`."""
        client = self.context.client
        new = self._new(client, args, kwargs)
        confirmer = Confirmer(self.asked) if self.asked else None
        return self._stored(new, await asubmit(client, "enqueue", [new], self._requests, confirmer, self.wish))

    def enqueue_json(self, args: str | bytes = "[]", kwargs: str | bytes = "{}") -> Job[R]:
        """As :meth:`enqueue`, with arguments that are JSON already.

        ``fetch.enqueue_json('["https://…"]', '{"sizes": [64]}')``: they are stored as they are, and read as JSON by the
        annotations: bytes from base64, datetimes and decimals from texts, integers as keys of dictionaries. ``args``:
        an array, the arguments by position. ``kwargs``: an object, those by name. Raises ArgumentError,
        PayloadTooLarge, StoreUnavailable, StoreFull: as :meth:`enqueue`. Cost: one round trip.
        """
        new = self._new_json(args, kwargs)
        client, confirmer = self.context.client, Confirmer(self.asked) if self.asked else None
        return self._stored(new, submit(client, "enqueue", [new], self._requests, confirmer, self.wish))

    async def aenqueue_json(self, args: str | bytes = "[]", kwargs: str | bytes = "{}") -> Job[R]:
        """See :meth:`enqueue_json`."""
        new = self._new_json(args, kwargs)
        client, confirmer = self.context.client, Confirmer(self.asked) if self.asked else None
        return self._stored(new, await asubmit(client, "enqueue", [new], self._requests, confirmer, self.wish))

    def broadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """Have each worker that lives now run this once, before what waits in its queues; a job for each.

        Each runs at most once: what fails, or what its worker leaves behind when it ends, has ended. A worker that does
        not know the task cancels it. No worker, no job: the list is empty. It is empty, too, where the broadcast waits
        for the commit of a transaction. Raises ArgumentError, PayloadTooLarge, StoreUnavailable, StoreFull: as
        :meth:`enqueue`. Raises OptionsError: an option cannot be kept: a delay, an order, a request id; or more than
        1,000 workers live. Cost: two round trips.
        """
        client = self.context.client
        data, act = self._broadcasting(args, kwargs)
        with around(client, act):
            steps = self._kept(self._broadcast(data, act))
            later = postponed(client, self.wish, f"a broadcast of {self.task}", steps)
            return [] if later else client.drive(steps)

    async def abroadcast(self, /, *args: P.args, **kwargs: P.kwargs) -> list[Job[R]]:
        """See :meth:`broadcast`."""
        client = self.context.client
        data, act = self._broadcasting(args, kwargs)
        async with around(client, act):
            steps = self._kept(self._broadcast(data, act))
            later = postponed(client, self.wish, f"a broadcast of {self.task}", steps)
            return [] if later else await client.adrive(steps)

    def _kept(self, broadcast: Steps[list[Job[R]]]) -> Steps[list[Job[R]]]:
        return self.context.client.kept(broadcast, f"a broadcast of {self.task}", self.asked)

    def _broadcasting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, Submission]:
        options = self._options
        for name in ("delay", "at", "ordered", "unique", "request_id", "after"):
            if getattr(options, name):
                raise OptionsError(f"a broadcast goes to each worker that lives now: it takes no {name}=")
        data = self._signature.pack(args, kwargs, self.context.client.settings.max_payload)
        return data, of_rows("broadcast", [NewJob("", data, self.form())])

    def _broadcast(self, data: bytes, act: Submission) -> Steps[list[Job[R]]]:
        seen: overviews.Overview = yield overviews.overview(self.context.client.keys)
        rows = [(worker.owner, new_id(self.context.client.keys.shard)) for worker in seen.live]
        if len(rows) > MOST_WORKERS:
            raise OptionsError(f"{len(rows):,} workers live, and a broadcast goes to {MOST_WORKERS:,} at most")
        if not rows:
            return []
        stored: list[str] = yield produce.broadcast(self.context.client.keys, act.jobs[0].form(), data, rows)
        return [self.handle(id, fresh=True) for id in stored]

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> UnsentJob[R]:
        """A job that is not stored yet, for ``app.enqueue_many``, or to be packed for another sender. Raises
        ArgumentError, PayloadTooLarge: as :meth:`enqueue`. Raises OptionsError: it is ordered, and has no key. Cost:
        none.
        """
        data = self._signature.pack(args, kwargs, self.context.client.settings.max_payload)
        self.check_key()
        return UnsentJob(self, data, self.form(), self._options.request_id, name=self._name(data))

    def options(self, /, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """The same task with other options, for one or more jobs; see :class:`headrace.model.options.CallOptions`.
        Raises OptionsError: names the option that is out of range, or the two that contradict each other.
        """
        found = of_call(self._options, options)
        if found.at and 0 < found.expires <= found.at - time.time_ns() // 1000:
            raise OptionsError("expires must be more than the time until at: the job would expire before it is ready")
        return BoundTask(self.context, self._signature, found)

    def _new(self, client: Client, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        data = self._signature.pack(args, kwargs, client.settings.max_payload)
        form = self.form()
        if form.ordered or form.unique:
            name = self._name(data)
            return NewJob(self.draw(name), data, form, name)
        return NewJob(new_id(0 if client.count == 1 else self._shard()), data, form)

    def _new_json(self, args: str | bytes, kwargs: str | bytes) -> NewJob:
        data = self._signature.pack_json(args, kwargs, self.context.client.settings.max_payload)
        name = self._name(data)
        return NewJob(self.draw(name), data, self.form(), name)

    def _name(self, data: bytes) -> str:
        rule = self._options.unique
        return unique_name(rule, self._signature, data, self.context.types) if rule else ""

    @property
    def hidden_places(self) -> str:
        return self.places(self._signature.hidden(self.context.client.settings.redact))

    def places(self, secrets: str) -> str:
        """Where values stand that are hidden: also what the application says of all tasks but its built-in ones."""
        if self.context.client.settings.encrypt and not self.task.startswith("headrace."):
            return with_all(secrets)
        return secrets

    @property
    def seal(self) -> Seal | None:
        return self.context.client.keys.seal

    def fitting(self, id: str) -> str:
        """An id as these options want it: that of an ordered or unique job says so. Raises OptionsError: no key."""
        if self._options.ordered:
            self.check_key()
            id = ordered_id(id)
        return unique_id(id) if self._options.unique else id

    def check_key(self) -> None:
        """Refuse a job that is ordered, where nothing says by which key. Raises OptionsError: it is so."""
        if self._options.ordered and not self._options.key:
            raise OptionsError(f"{self.task} is ordered by key, so each job needs one: {self.task}.options(key=...)")

    def draw(self, name: str) -> str:
        """An id for a job of these options, which no other process draws; ``name``: of a unique job."""
        return self.fitting(new_id(0 if self.context.client.count == 1 else self._shard(name)))

    def _shard(self, name: str = "") -> int:
        """Where a job lives, of several shards: with its key, its name or its request id; a limited one at home."""
        context, options = self.context, self._options
        if options.after:
            return self._shard_of_others()
        if options.unique and options.key:
            raise OptionsError(f"{self.task} is unique and has a key, which may live on two shards: use one of the two")
        # Most programs have no limits, and each enqueue passes here.
        if not (name or self._place) and context.limits and context.limits_of(self._limits(), options.queue):
            return context.client.keys.shard
        return context.client.shard_for(name or self._place)

    def _shard_of_others(self) -> int:
        """The shard of the jobs that it follows: their end and its start are one step there."""
        context, options = self.context, self._options
        shards = {shard_of(id) for id in options.after.split()}
        if len(shards) > 1:
            raise OptionsError(
                "the jobs of after= are on several shards, whose ends no script sees together: use a workflow, or give "
                "these jobs one key="
            )
        (shard,) = shards
        home = context.limits_of(self._limits(), options.queue) and context.client.keys.shard != shard
        wrong = "limits" if home else next((name for name in ("key", "request_id") if getattr(options, name)), "")
        if wrong:
            raise OptionsError(f"of several shards, after= chooses one, and {wrong} another: use one of the two")
        return shard

    def placed(self, id: str, name: str) -> str:
        """An id that was drawn for a job that may live anywhere, or another where it may not."""
        fixed = name or self._place or self._options.after or self._limits()
        # Of one chunk, ids follow each other, as their jobs shall start.
        return on_shard(id, self._shard(name)) if fixed else id

    def _limits(self) -> Any:
        known = self.context.tasks.get(self.task)
        return known.limits if known else ()

    def form(self, above: Mapping[str, str] | None = None) -> Form:
        """What the next jobs share. ``above``: the headers that they inherit; None: those of the job that this runs in.
        Raises OptionsError: with those that they inherit they have too many headers, or too large ones.
        """
        if above is None:
            above = inherited_headers()
        own = self._shared or self._own_form()
        if not above:
            return own
        heir = self._heir
        if heir is None or heir[0] is not above:
            form = msgspec.structs.replace(own, headers=packed(added(self._options.headers, above)))
            heir = self._heir = (above, form)
        return heir[1]

    def _own_form(self) -> Form:
        if self.task.startswith("__main__."):
            raise OptionsError(
                f"{self.task} is defined in a notebook or on a command line, which no worker can import: move it into "
                f"a module"
            )
        options, secrets = self._options, self.hidden_places
        own = msgspec.structs.replace(options, secrets=secrets) if secrets else options
        self._shared = form_of(self.task, own)
        return self._shared

    def handle(self, id: str, *, fresh: bool = False) -> Job[R]:
        """A handle on a job of this task. Cost: none."""
        return Job(self.context.client, id, self.task, self._signature, self._options.failure_ttl, fresh=fresh)

    def _stored(self, new: NewJob, accepted: Accepted) -> Job[R]:
        own = accepted.moved.get(new.id, new.id)
        id = accepted.duplicates.get(own, own)
        return self.handle(id, fresh=id == own and accepted is not WAITING)

    def __repr__(self) -> str:
        return f"<Task {self.task} with options>"
