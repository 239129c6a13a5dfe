"""The workers that live now, for programs and the command line: what they do, and how many runners they have.

Owns the way from a name that people give to an incarnation.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.clock import monotonic
from headrace.errors import NotFound, OptionsError
from headrace.model.limit_rules import is_whole
from headrace.model.options import KINDS, TaskKind
from headrace.model.stacks import RunnerStacks, WorkerStacks
from headrace.protocol import operations, overviews
from headrace.protocol.overviews import WorkerFacts
from headrace.settings import Duration, seconds
from headrace.store.client import Client, Steps, twin, verb

POLL = 0.1  # seconds between looks for an answer
# At most this many at once, as for the options of a worker.
MOST = {"process": 1024, "fork": 1024, "thread": 1024, "async": 100_000}


class Workers:
    """``app.workers``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    if not TYPE_CHECKING:

        def __getitem__(self, name: Any) -> Any:
            """Say which verb finds a worker: several names lead to one, and a look asks the server."""
            raise OptionsError(f"workers have no index: write app.workers.get({name!r:.80})")

    @verb
    def get(self, name: str) -> Steps[WorkerFacts]:
        """A live worker by its name, its ``host:pid``, its process id, or any beginning of its name that no other has.

        A worker with ``--reload`` is known by the ``host:pid`` and the process id of its parent, too. Cost: one round
        trip. Raises NotFound: no worker has this name, or several begin so.
        """
        return _get(self._client, name)

    @verb
    def scale(self, name: str, size: int, kind: TaskKind | None = None) -> Steps[WorkerFacts]:
        """Have a worker run this many jobs at once, while it works; what it removes finishes what runs.

        Nothing is lost, none runs twice, no attempt is counted: what a removed runner had not begun goes to the others.
        It lasts until the worker ends. Returns when the worker has been told; it obeys at once.

        Args:
            name: see :meth:`get`.
            size: at least 1; runners of the kinds ``process`` and ``fork``, threads, or coroutines.
            kind: the first of process, fork, thread, async that the worker has, if not given.

        Raises:
            NotFound: no live worker has this name, or this kind of runners, or it does not listen just now.
            OptionsError: the size is out of range, or there is no such kind.

        Cost: two round trips.
        """
        if kind is not None and kind not in KINDS:
            raise OptionsError(f"there is no kind {kind!r}: the kinds are {', '.join(KINDS)}")
        if not is_whole(size) or not 1 <= size <= MOST[kind or "process"]:
            raise OptionsError(
                f"a worker has 1 to {MOST[kind or 'process']:,} runners, not {size!r}: start another worker"
            )
        worker = yield from _get(self._client, name)
        kinds = [kind for kind in KINDS if kind in worker.sizes]
        wanted = kind or (kinds[0] if kinds else "process")
        if wanted not in kinds:
            raise NotFound(f"{worker.owner} has no {wanted} runners: it has {', '.join(kinds) or 'none'}")
        yield from _told(self._client, worker, f"scale:{wanted}:{size}")
        return worker

    @verb
    def stop(self, name: str) -> Steps[WorkerFacts]:
        """Have a worker claim no more and end, as at a first TERM: what runs may finish within its shutdown timeout.

        Returns when the worker has been told. A service manager may start another in its place. Cost: two round trips.
        Raises NotFound: no live worker has this name, see :meth:`get`, or it does not listen just now.
        """
        return _ask(self._client, name, "stop")

    @verb
    def quiet(self, name: str) -> Steps[WorkerFacts]:
        """Have a worker claim no more, finish its jobs, and stay until it is told to stop, so that you can look at it.

        Its lease and its duties for the store go on. If its dispatcher crashes, the next one claims again. Cost: two
        round trips. Raises NotFound: no live worker has this name, see :meth:`get`, or it does not listen just now.
        """
        return _ask(self._client, name, "quiet")

    def stacks(self, name: str, timeout: Duration = 5) -> list[RunnerStacks]:
        """What each runner of a worker does at this moment: the Python stacks of its threads.

        The interpreter of a runner writes them on a signal, also while C code holds its lock, and runs no Python code
        for it: nothing is interrupted, and a job notices nothing. Of coroutines only the one that runs has a stack.
        Cost: two round trips, and one for each tenth of a second until the answer. Raises NotFound: no live worker has
        this name, or it does not answer.

        Args:
            name: see :meth:`get`.
            timeout: the longest wait for the answer, which takes about a third of a second.
        """
        wait = seconds(timeout, "timeout")
        worker, request = self._client.drive(_asking(self._client, name))
        end = monotonic() + wait
        while True:
            text = self._client.run(operations.read_stacks(self._client.keys, worker.owner))
            found = _stacks(worker, text, request, end - monotonic())
            if found is not None:
                return found
            time.sleep(POLL)

    async def astacks(self, name: str, timeout: Duration = 5) -> list[RunnerStacks]:
        """See :meth:`stacks`."""
        import asyncio  # only a program with an event loop pays for it

        wait = seconds(timeout, "timeout")
        worker, request = await self._client.adrive(_asking(self._client, name))
        end = monotonic() + wait
        while True:
            text = await self._client.arun(operations.read_stacks(self._client.keys, worker.owner))
            found = _stacks(worker, text, request, end - monotonic())
            if found is not None:
                return found
            await asyncio.sleep(POLL)

    aget = twin(get)
    ascale = twin(scale)
    astop = twin(stop)
    aquiet = twin(quiet)


def _asking(client: Client, name: str) -> Steps[tuple[WorkerFacts, str]]:
    request = os.urandom(8).hex()
    return (yield from _ask(client, name, f"stacks:{request}")), request


def _stacks(worker: WorkerFacts, text: bytes, request: str, left: float) -> list[RunnerStacks] | None:
    """The answer; None: not yet. NotFound when the time is over."""
    if text:
        found = msgspec.json.decode(text, type=WorkerStacks)
        if request in found.requests:
            return found.runners
    if left <= 0:
        raise NotFound(f"{worker.owner} did not answer: it may be leaving, or be older than this program")
    return None


def _get(client: Client, name: str) -> Steps[WorkerFacts]:
    seen: overviews.Overview = yield overviews.overview(client.keys)
    return named(seen.live, name)


def last_known(seen: overviews.Overview, name: str) -> WorkerFacts:
    """The live worker that a name means, else one whose lease is over: it may hang. Raises NotFound: not just one."""
    try:
        return named(seen.live, name)
    except NotFound:
        return named(seen.workers, name)


def named(workers: Sequence[WorkerFacts], name: str) -> WorkerFacts:
    """The worker that a name means. Raises NotFound: none does, or several do."""
    exact = [worker for worker in workers if name in _own_names(worker)]
    if not exact:
        exact = [worker for worker in workers if name in _parent_names(worker)]
        # During a reload it has two.
        exact = [worker for worker in exact if not worker.draining] or exact
    found = exact or [worker for worker in workers if name and worker.owner.startswith(name)]
    if len(found) == 1:
        return found[0]
    names = sorted(worker.owner for worker in found or workers)
    if found:
        raise NotFound(f"{name!r} may be any of {', '.join(names[:10])}: give more of the name")
    close = difflib.get_close_matches(name, names, 1, 0.5)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:10])}" if names else "none lives now"
    raise NotFound(f"no worker is named {name!r}: {hint}")


def _own_names(worker: WorkerFacts) -> tuple[str, str, str]:
    place = worker.metadata.get("place", "")
    return worker.owner, place, place.rpartition(":")[2]


def _parent_names(worker: WorkerFacts) -> tuple[str, str]:
    parent = worker.metadata.get("parent", "")
    return f"{worker.metadata.get('place', '').rpartition(':')[0]}:{parent}", parent


def _ask(client: Client, name: str, text: str) -> Steps[WorkerFacts]:
    worker = yield from _get(client, name)
    yield from _told(client, worker, text)
    return worker


def _told(client: Client, worker: WorkerFacts, text: str) -> Steps[None]:
    word: str = yield operations.command(client.keys, worker.owner, text)
    if word != "told":
        why = "is gone" if word == "gone" else "does not listen just now, since it lost its connection: try again"
        raise NotFound(f"{worker.owner} {why}")
