"""``headrace.Pool``: an executor over threads or processes. The face; the scheduler and the members do the work."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import count, islice
from typing import Any, Generic, NamedTuple, TypeVar, Unpack

from headrace.clock import monotonic
from headrace.dispatch import Key, Snapshot, Strategy, hash, named, slot  # noqa: A004 - the strategy
from headrace.errors import ArgumentError, CancelRequested, HeadraceError, JobInterrupted, SoftTimeLimit, WaitTimeout
from headrace.pool.child import run_chunk
from headrace.pool.events import Handler, Keywords, PoolOptions, PoolStats, census, members
from headrace.pool.members import Leased, Members
from headrace.pool.scheduler import lease_call
from headrace.pool.state import Call, Lease, Member, MemberBackend
from headrace.pool.threads import ThreadBody

T = TypeVar("T")
_numbers = count(1)
# What ends the program or the job that uses a pool, and so what runs for it. (A job that snoozes leaves by itself.)
_STOPS = (KeyboardInterrupt, SoftTimeLimit, JobInterrupted, CancelRequested)


class Replies(NamedTuple, Generic[T]):
    """What the members answered to :meth:`Pool.broadcall`, by member id."""

    values: dict[int, T]
    errors: dict[int, BaseException]


class Pool(Executor):
    """``n`` threads or processes that run calls, with a strategy that chooses which.

    An accepted call is run once, or its future says why not: it was cancelled, it timed out before a member began it,
    or its member died, which its caller learns at once. All methods may be called from any thread.
    """

    def __init__(self, n: int, **options: Unpack[Keywords]) -> None:
        """Start ``n`` members in the background; calls may be submitted at once. ``options``: see
        :class:`headrace.pool.PoolOptions`. Raises OptionsError: one is out of range. Raises ArgumentError: the
        initializer cannot be sent to a process.
        """
        members(n)
        self.options = PoolOptions(**options)
        self.name = self.options.name or f"pool-{next(_numbers)}"
        self._choose: Strategy[Member] = named(self.options.strategy)
        self._pack: Callable[..., bytes] | None = None
        body: Callable[[Members, Member], MemberBackend] = ThreadBody
        if self.options.kind == "process":
            # Only here, since it takes the interpreter's multiprocessing along.
            from headrace.pool.processes import ProcessBody, packed

            body, self._pack = ProcessBody, packed
        self._crew = Members(self.options, self.name, body)
        self._scheduler = self._crew.scheduler
        self._withdraw = self._scheduler.withdraw
        # A pool that is forgotten ends as an executor does: what it accepted still runs. This may run while threads are
        # listed: it waits for no lock and starts no thread.
        weakref.finalize(self, self._scheduler.bell.put, None).atexit = False
        self._crew.resize(n)

    # -- calls -------------------------------------------------------------------------------------------------------

    def submit(  # type: ignore[override]  # the options stand beside the function's own keywords
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        strategy: str | Strategy[Any] | None = None,
        key: Key | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Call[T]:
        """Run ``fn(*args, **kwargs)`` on a member and return its future.

        For keywords of ``fn`` that are called like ours, use :func:`functools.partial`.

        Args:
            strategy: who gets it; the pool's own by default, or ``hash`` when a key is given.
            key: calls of one key run on one member in the order of their submission.
            timeout: seconds in which a member must begin it; then it fails with ``WaitTimeout`` and never runs.

        Raises:
            ClosedError, PoolBroken, PoolFull: it was not accepted.
            ArgumentError: it cannot be called, or not be sent to a process.
            OptionsError: there is no such strategy, or it needs a key.
        """
        call: Call[T] = self._make(fn, args, kwargs)
        if strategy is None and key is None:
            self._scheduler.place(call, self._choose, None)
        else:
            self._place(call, strategy, key)
        if timeout is not None:
            self._crew.watch.expire(call, timeout)
        return call

    def call(
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        strategy: str | Strategy[Any] | None = None,
        key: Key | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> T:
        """The result of ``fn(*args, **kwargs)`` on a member, or its error. Raises WaitTimeout: it did not end within
        ``timeout`` seconds, waiting included; if it had not begun, it never runs, else it goes on and its result is
        lost. Raises as :meth:`submit`.
        """
        call: Call[T] = self._make(fn, args, kwargs)
        if timeout is not None and timeout <= 0:
            raise WaitTimeout(f"{call.title} was given no time; it never runs")
        self._place(call, strategy, key)
        return self._await(call, timeout)

    def cast(
        self,
        fn: Callable[..., object],
        /,
        *args: Any,
        strategy: str | Strategy[Any] | None = None,
        key: Key | None = None,
        **kwargs: Any,
    ) -> None:
        """Run a function on a member; no caller waits for it, and its errors are logged. Raises as :meth:`submit`."""
        call = self._make(fn, args, kwargs)
        call.silent = True
        self._place(call, strategy, key)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """The results of ``fn`` for each set of arguments, in order.

        Args:
            timeout: seconds from this call on until each result must be there.
            chunksize: this many sets travel to a member at once; worth it for tiny calls to processes.
            buffersize: submit this many calls ahead of what was taken; without it, all at once, or as many as may wait.

        Raises:
            WaitTimeout: from the iterator; what has not begun then is cancelled.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize={chunksize!r}: 1 or more")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize={buffersize!r}: 1 or more, or None")
        sets = zip(*iterables, strict=False)
        if chunksize > 1:
            chunks = iter(lambda: list(islice(sets, chunksize)), [])
            rows = self._stream(run_chunk, ((fn, chunk) for chunk in chunks), timeout, buffersize)
            return (value for row in rows for value in row)
        return self._stream(fn, sets, timeout, buffersize)

    def broadcast(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> int:
        """Run a function on every member, before all that waits; errors are logged. Returns how many were asked."""
        return len(self._to_all(fn, args, kwargs, silent=True))

    def broadcall(self, fn: Callable[..., T], /, *args: Any, timeout: float | None = None, **kwargs: Any) -> Replies[T]:
        """Run a function on every member, before all that waits, and wait for all of them. Raises WaitTimeout: one did
        not answer in time; where it had not begun, it never runs.
        """
        calls = self._to_all(fn, args, kwargs, silent=False)
        end = None if timeout is None else monotonic() + timeout
        values: dict[int, T] = {}
        errors: dict[int, BaseException] = {}
        try:
            for member, call in calls.items():
                try:
                    values[member] = self._await(call, None if end is None else end - monotonic())
                except WaitTimeout:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever the function raised there
                    errors[member] = error
        finally:
            for call in calls.values():
                call.cancel()
        return Replies(values, errors)

    # -- members -----------------------------------------------------------------------------------------------------

    def reserve(
        self, *, strategy: str | Strategy[Any] | None = None, key: Key | None = None, timeout: float | None = None
    ) -> Leased:
        """Wait for a member and have it alone until the block ends.

        For calls that share what a member holds::

            with pool.reserve(timeout=1) as member:
                member.call(open_session)
                member.call(use_session)

        Raises WaitTimeout: none was to be had within ``timeout`` seconds. Raises as :meth:`submit`.
        """
        lease = Lease()
        try:
            call = lease_call(self._scheduler, lease)
            self._place(call, strategy, key)
            member = self._await(call, timeout)
            self._crew.watch.mind_leases()
            return Leased(self._scheduler, lease, member, self._make)
        except BaseException:
            # Granted just as the waiting ended: given back at once, or the pool would shrink.
            self._scheduler.release(lease)
            raise

    def run(
        self,
        fn: Callable[[Leased, float | None], T],
        *,
        strategy: str | Strategy[Any] | None = None,
        key: Key | None = None,
        timeout: float | None = None,
    ) -> T:
        """Call ``fn(member, seconds left)`` here, with a member to itself, which is given back whatever happens."""
        began = monotonic()
        with self.reserve(strategy=strategy, key=key, timeout=timeout) as member:
            return fn(member, None if timeout is None else max(0.0, timeout - (monotonic() - began)))

    @property
    def snapshot(self) -> Snapshot[Member]:
        """The members now: what a strategy gets. Never changes; :meth:`resize` publishes another."""
        return self._scheduler.snapshot

    def resize(self, n: int) -> None:
        """Have ``n`` members; returns at once. Members are added in the background. Those removed finish what they run;
        what waited for them waits elsewhere, each key's calls still in their order.
        """
        members(n)
        if self._scheduler.closed:
            raise self._scheduler.refusal()
        self._crew.resize(n)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every member is there: calls need not, but what measures or must not fail later may. Raises
        WaitTimeout: a member was not there within ``timeout`` seconds. Raises PoolBroken, ClosedError: the members
        cannot start, or the pool was shut down.
        """
        if not self._scheduler.wait_ready(timeout):
            away = [member.id for member in self._scheduler.snapshot.members if member.away]
            raise WaitTimeout(f"{self.name}: members {away} were not ready within {timeout:g} s; they go on starting")

    def stats(self) -> PoolStats:
        """What the pool and each member does at this moment. Members that just died are away, not missing."""
        return census(self.name, self.options, self._scheduler)

    def add_callbacks(self, callbacks: object) -> None:
        """Tell one more object of the pool's life. Raises OptionsError: it has no method of ``Callbacks``."""
        self._crew.events.add(callbacks)

    def remove_callbacks(self, callbacks: object) -> None:
        """Tell an object no longer."""
        self._crew.events.remove(callbacks)

    def on_overrun(self, handler: Handler) -> None:
        """Call one more handler with each :class:`headrace.pool.Alert`; its errors are logged."""
        self._crew.events.add_handler(handler)

    # -- the end -----------------------------------------------------------------------------------------------------

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept nothing more, run what was accepted, then end; the end of a ``with`` block does this. ``wait``: return
        when the last member has ended. ``cancel_futures``: cancel what has not begun. Again is fine.
        """
        self._crew.shut(cancel=cancel_futures)
        if wait:
            self._crew.wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Shut down, and wait. After a Ctrl-C, or in a job that is stopped: interrupt what runs, and :meth:`stop`."""
        if kind is not None and issubclass(kind, _STOPS):
            self._crew.interrupt()
        else:
            self.shutdown()

    def stop(self, shutdown_timeout: float | None = None) -> None:
        """End now: cancel what waits, let what runs go on for ``shutdown_timeout`` seconds (0: not at all), then kill.

        A process is killed with all that it started. A thread cannot be: its call fails, and it is left behind.
        """
        self._crew.stop(self.options.shutdown_timeout if shutdown_timeout is None else shutdown_timeout)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _make(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[T]:
        if not callable(fn):
            raise ArgumentError(f"{fn!r} cannot be called: pass a function and its arguments")
        call: Call[T] = Call(self._withdraw, fn, args, kwargs)
        if self._pack is not None:
            call.data = self._pack(call.title, fn, args, kwargs)
            # Only its name is of use here; the arguments travel as they are now.
            call.args = call.kwargs = None
        return call

    def _place(self, call: Call[Any], strategy: str | Strategy[Any] | None, key: Key | None) -> None:
        own = self._choose if key is None else hash
        choose = own if strategy is None else named(strategy)
        if key is not None:
            slot(key)
        self._scheduler.place(call, choose, key)

    def _await(self, call: Call[T], timeout: float | None) -> T:
        try:
            return call.result(timeout)
        except TimeoutError as error:
            # It ended just now, or the function raised a time-out of its own.
            if call.done() and not call.cancelled():
                return call.result(0)
            begun = not call.cancel()
            state = "it runs on, and its result is lost" if begun else "it had not begun, and never runs"
            raise WaitTimeout(f"{call.title} did not end within {timeout:g} s: {state}") from error
        except BaseException as error:
            # Who waited is gone: nothing must begin for him, and a Ctrl-C is for what runs for him, too.
            if not call.cancel() and isinstance(error, _STOPS):
                self._scheduler.interrupt(call)
            raise

    def _to_all(
        self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], *, silent: bool
    ) -> dict[int, Call[T]]:
        calls: dict[int, Call[T]] = {}
        if self._scheduler.closed or self._scheduler.broken:
            raise self._scheduler.refusal()
        for member in self._scheduler.snapshot.members:
            call = self._make(fn, args, kwargs)
            call.silent = silent
            try:
                self._scheduler.place_on(member, call)
            except HeadraceError:
                continue  # it left meanwhile
            calls[member.id] = call
        return calls

    def _stream(
        self, fn: Callable[..., T], sets: Iterator[Any], timeout: float | None, buffersize: int | None
    ) -> Iterator[T]:
        end = None if timeout is None else monotonic() + timeout
        room = buffersize if buffersize is not None else self.options.backlog
        # Submitted here, not at the first result: a map that is not iterated still runs, as with other executors.
        most = None if room is None else max(room, 1)
        calls = deque(self.submit(fn, *each) for each in islice(sets, most))
        return self._results(fn, sets, calls, end)

    def _results(
        self, fn: Callable[..., T], source: Iterator[Any], calls: deque[Call[T]], end: float | None
    ) -> Iterator[T]:
        try:
            while calls:
                call = calls.popleft()
                try:
                    result = self._await(call, None if end is None else max(0.0, end - monotonic()))
                finally:
                    for each in islice(source, 1):
                        calls.append(self.submit(fn, *each))
                del call
                yield result
        finally:
            for call in calls:
                call.cancel()
