"""A limit of an application as an object. The scripts keep limits, see docs/design/limits.md."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from headrace.clock import monotonic
from headrace.errors import HeadraceError, NotFound, OptionsError, StateError, WaitTimeout
from headrace.model.ids import check_name
from headrace.model.limit_rules import ALL, Concurrency, LimitPage, LimitRule, LimitState, Part, Rate, name_of, part_of
from headrace.protocol.limit_verbs import (
    MOST_ROWS,
    Deleted,
    HoldAnswer,
    change_limit,
    delete_limit,
    hold_limit,
    keep_hold,
    read_limits,
    release_hold,
)
from headrace.protocol.script import Call
from headrace.settings import Duration, microseconds, seconds
from headrace.store.client import Steps, adriven, driven, then, twin, verb

if TYPE_CHECKING:
    import asyncio

    from headrace.store.client import Client

log = logging.getLogger("headrace")

# Seconds between two looks at a closed limit whose opening is not known: from the first to the longest.
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25


class LimitHold:
    """``with app.limits["api"].hold(wait=5):`` the block runs while the program holds the limit.

    Attributes:
        lost: the lease was over before the block ended, since the server could not be reached: others may hold it.
    """

    __slots__ = ("_client", "_holder", "_named", "_over", "_rule", "_task", "_wait", "lost")

    def __init__(self, client: Client, rule: LimitRule, named: str, wait: float | None) -> None:
        self.lost = False
        self._client = client
        self._rule = rule
        self._named = named
        self._wait = wait
        self._holder = ""
        self._over = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        driven(self._entering(), self._do)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._client.run(self._release())

    def _do(self, step: float | Call[Any] | None) -> Any:
        if isinstance(step, Call):
            return self._client.run(step)
        if step is not None:
            return self._over.wait(step)
        renewing = (self._renewing(), self._do)
        return threading.Thread(target=driven, args=renewing, name="headrace limit", daemon=True).start()

    async def __aenter__(self) -> Self:
        await adriven(self._entering(), self._ado)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            import asyncio

            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.arun(self._release())

    async def _ado(self, step: float | Call[Any] | None) -> Any:
        import asyncio  # only a program with an event loop pays for it

        if isinstance(step, Call):
            return await self._client.arun(step)
        if step is not None:
            return await asyncio.sleep(step)
        self._task = asyncio.create_task(adriven(self._renewing(), self._ado))
        return None

    def _entering(self) -> Generator[float | Call[Any] | None, Any, None]:
        """Calls that take the limit, pauses between them (seconds), and None: the lease is renewed from now on."""
        keys, name, attempt, begun = self._client.keys, self._rule.name, 0, monotonic()
        if self._holder:
            raise OptionsError(f"this hold of limit {name} was used already: make another with hold()")
        self._holder = f"{os.urandom(8).hex()}.{self._lease}"
        hold = hold_limit(keys, name, self._named, self._holder, self._lease, self._rule.fields)
        try:
            while (pause := self._pause((yield hold), begun, attempt)) is not None:
                attempt += 1
                yield pause
            yield None
        except HeadraceError:
            raise
        except BaseException:
            # The server may have given it just before the interrupt, and no code would leave this block. A cancellation
            # comes at any of these steps.
            with contextlib.suppress(HeadraceError):
                yield self._release()
            raise

    def _pause(self, answer: HoldAnswer, begun: float, attempt: int) -> float | None:
        """Seconds until the next look; None: it is held. Raises WaitTimeout, NotFound, OptionsError: it will not be."""
        name = self._rule.name
        match answer.word:
            case "held":
                return None
            case "unknown":
                raise NotFound(f"neither the store nor this program knows a limit {name}")
            case "shared":
                raise OptionsError(f"limit {name} goes by no value: hold it without one")
            case "values":
                raise OptionsError(f"limit {name} goes by a value: hold(value) says which")
            case _:
                pass
        left = float("inf") if self._wait is None else self._wait - (monotonic() - begun)
        if left <= 0:
            raise WaitTimeout(f"limit {name} did not open within {self._wait:g} s")
        # Others look at the same gate: dice keep them apart.
        pause = min(FIRST_PAUSE * 1.5 ** min(attempt, 20), LONGEST_PAUSE) * random.uniform(0.5, 1)
        if answer.opens:
            pause = max((answer.opens - answer.now) / 1e6, FIRST_PAUSE)
        return min(pause, left)

    @property
    def _lease(self) -> int:
        return microseconds(self._client.settings.lease)

    @property
    def _gate(self) -> str:
        return f"{self._rule.name}:{'' if self._named == ALL else self._named}"

    def _release(self) -> Call[bool]:
        return release_hold(self._client.keys, self._rule.name, self._gate, self._holder)

    def _renewing(self) -> Generator[float | Call[Any], Any, None]:
        """The calls that renew the lease, and the pauses before them; a pause that returns True ends them."""
        while not (yield self._client.settings.lease / 3):
            try:
                kept = yield keep_hold(self._client.keys, self._gate, self._holder, self._lease)
            except HeadraceError as error:
                log.warning("limit %s is held, and its lease could not be renewed: %s", self._rule.name, error)
                continue
            if not kept:
                if not self._over.is_set():
                    self.lost = True
                    text = "limit %s is not held any more: its lease was over before it was renewed"
                    log.warning(text, self._rule.name)
                return


_NUMBERS: tuple[Part, ...] = ("rate", "concurrency", "weight")


class Limit:
    """How often, or how many at once, jobs start that share something: all workers together.

    What an operator sets counts at once, also for jobs that wait, and stays when workers with other numbers in their
    code start: until it is unset, or its duration is over.

    Attributes:
        name: of the limit.
        rule: as this program's code declares it; without numbers where it does not.
    """

    __slots__ = ("_client", "name", "rule")

    def __init__(self, client: Client, name: str, rule: LimitRule | None = None) -> None:
        self.name, self.rule, self._client = check_name("limit", name), rule or LimitRule(name), client

    @verb
    def set(
        self,
        *numbers: Rate | Concurrency,
        value: object = None,
        weight: float | None = None,
        duration: Duration | None = None,
    ) -> Steps[None]:
        """Set numbers of the limit, or of one of its values, in place of those that code declares.

        What is not given stays as it is. Raises OptionsError: nothing is given, or it cannot be used; the limit has no
        values. Raises NotFound: no worker has declared it, nor does this program. Cost: one round trip.

        Args:
            numbers: a :class:`headrace.Rate`, a :class:`headrace.Concurrency`, or both.
            value: of the argument or key that the limit goes by; ``""``: of jobs without one. None: all values that
                have no numbers of their own.
            weight: this many turns the value has while one of weight 1 has one; needs ``value``. With several
                limits by value the weights of a job's values are multiplied.
            duration: after which what is given here ends by itself. None: it has no end.
        """
        if not all(isinstance(one, (Rate, Concurrency)) for one in numbers):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"limit {self.name}: give Rate(...) or Concurrency(...), and weight=...")
        if weight is not None and value is None:
            raise OptionsError(f"limit {self.name}: a weight is that of one value among others: give value=...")
        parts = [part_of(one) for one in (*numbers, *(() if weight is None else (weight,)))]
        if not parts or len({part for part, _ in parts}) < len(parts):
            raise OptionsError(f"limit {self.name}: give Rate(...), Concurrency(...), weight=..., one of each")
        length = _length(duration)
        self._done((yield self._change(value, [(part, length, fields) for part, fields in parts])), value)

    @verb
    def unset(self, value: object = None) -> Steps[bool]:
        """Let the numbers and the weight count that code declares. False: nothing was set. A pause stays. ``value``:
        None: what was set of all values; those of single values stay. Raises NotFound, OptionsError: see :meth:`set`.
        Cost: one round trip.
        """
        call = self._change(value, (), _NUMBERS)
        return then(call, lambda word: not self._done(word, value).isdisjoint(_NUMBERS))

    @verb
    def pause(self, value: object = None, duration: Duration | None = None) -> Steps[bool]:
        """Let no more jobs of the limit, or of one of its values, start; those that run go on. False: it was paused.

        ``value``: None: all jobs of the limit. ``duration``: after which it ends by itself; either replaces what an
        earlier pause said. None: until :meth:`resume`. Raises NotFound, OptionsError: see :meth:`set`. Cost: one round
        trip.
        """
        call = self._change(value, [("paused", _length(duration), ())])
        return then(call, lambda word: "paused" not in self._done(word, value))

    @verb
    def resume(self, value: object = None) -> Steps[bool]:
        """End a pause. False: there was none. A pause of the limit and one of a value end each on their own. Raises
        NotFound, OptionsError: see :meth:`set`. Cost: one round trip.
        """
        return then(self._change(value, (), ("paused",)), lambda found: "paused" in self._done(found, value))

    @verb
    def delete(self) -> Steps[int]:
        """Forget the limit, and what operators set of it. Jobs that wait for it start without it; returns how many.

        Workers tell the store of limits when they start, so stop the code that declares it first. Raises StateError: a
        worker runs whose code declares it, or jobs or programs hold it. Raises NotFound: the store does not know it.
        Cost: one round trip for each 500 values that an operator has set.
        """
        while True:
            answer: Deleted = yield delete_limit(self._client.keys, self.name)
            if answer.word == "unknown":
                raise self._unknown()
            if answer.in_use:
                raise StateError(f"limit {self.name} {answer.in_use}")
            if answer.word == "deleted":
                return answer.jobs

    @verb
    def state(self, value: object = None) -> Steps[LimitState]:
        """How it stands: what counts now, how many jobs run and wait, when the next may start. ``value``: None: the
        limit as a whole. Raises NotFound: no worker has declared it. Cost: one round trip.
        """
        named = ALL if value is None else name_of(value)
        return then(read_limits(self._client.keys, [self.name], value=named), lambda page: self._page(page).rows[0])

    @verb
    def values(self, most: int = 100) -> Steps[LimitPage]:
        """The limit, and after it those of its values that an operator has set or whose jobs wait. ``most``: values, at
        most 500. A limit may have more than can be listed. Raises NotFound: no worker has declared it. Cost: one round
        trip.
        """
        return then(read_limits(self._client.keys, [self.name], limit=min(most, MOST_ROWS), values=True), self._page)

    def hold(self, value: object = None, *, wait: Duration | None = None) -> LimitHold:
        """Hold the limit outside of jobs: ``with limit.hold(wait=5): ...``, or ``async with``.

        The block counts as a job that runs, for the rate and for the number at once. While it runs, a thread (or a task
        of the event loop) renews a lease, ``settings.lease``. A program that dies lets go when its lease is over. Jobs
        that wait are woken when the limit opens. A program looks again when the limit is due to open; where that is not
        known, four times a second at least. So while there is a backlog, jobs mostly come first.

        Args:
            value: of the argument or key that the limit goes by; needed where it goes by one.
            wait: seconds or a timedelta until :class:`headrace.errors.WaitTimeout`; 0: none. None: without end.

        Raises:
            WaitTimeout, NotFound, OptionsError: when the block is entered.

        Cost: one round trip for each look, one for each third of a lease, and one at the end.
        """
        named = ALL if value is None else name_of(value)
        return LimitHold(self._client, self.rule, named, None if wait is None else seconds(wait, "wait"))

    def _change(
        self, value: object, parts: Sequence[tuple[Part, int, Sequence[str]]] = (), gone: tuple[Part, ...] = ()
    ) -> Call[str | frozenset[str]]:
        named = ALL if value is None else name_of(value)
        return change_limit(self._client.keys, self.name, named, self.rule.fields, parts, gone)

    def _done(self, word: str | frozenset[str], value: object) -> frozenset[str]:
        if isinstance(word, frozenset):
            return word
        if word == "shared":
            raise OptionsError(f"limit {self.name} goes by no value, so it has none called {value!r:.80}")
        raise self._unknown()

    def _page(self, page: LimitPage) -> LimitPage:
        if not page.rows:
            raise self._unknown()
        return page

    def _unknown(self) -> NotFound:
        return NotFound(
            f"the store knows no limit {self.name}: workers tell it of theirs when they start; app.limits.page() has "
            f"those that it knows"
        )

    def __repr__(self) -> str:
        return f"<Limit {self.name}>"

    aset = twin(set)  # noqa: A003 - the verb above
    aunset = twin(unset)
    apause = twin(pause)
    adelete = twin(delete)
    aresume = twin(resume)
    astate = twin(state)
    avalues = twin(values)


def _length(duration: Duration | None) -> int:
    # Not even the shortest one may come out as 0, which has no end.
    return 0 if duration is None else max(1, microseconds(seconds(duration, "duration", zero=False)))


def check_cost(limits: Iterable[Limit], cost: int) -> None:
    """Refuse a job that could never start. Raises OptionsError: it costs more than a limit ever lets start together."""
    for limit in limits:
        most = limit.rule.most_cost
        if cost > most:
            raise OptionsError(
                f"cost={cost} can never start: limit {limit.name} has {most:g} in each of its windows; "
                f"give the job a cost of at most {most:g}, or the limit a larger number"
            )


def name_of_own(limits: Iterable[Limit], task: str, limit: object) -> str:
    """The name of one of a job's limits, given as a limit or by name. Raises NotFound: none of them has this name."""
    name, mine = getattr(limit, "name", limit), sorted({one.name for one in limits})
    if name not in mine:
        raise NotFound(f"jobs of {task} have no limit {name!r}: theirs are {', '.join(mine) or 'none'}")
    return str(name)
