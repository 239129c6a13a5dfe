"""Values of a context that travel with jobs (``app.propagate``): one header, filled by what stores work and applied in
each start.

Made of the two kinds of middleware; sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeAlias, cast, overload

from headrace.errors import OptionsError
from headrace.model.headers import check
from headrace.running_job import RunningJob, inherited
from headrace.tasks.middleware import Manager, Middleware
from headrace.tasks.submission import Submission

Get: TypeAlias = Callable[[], str | None]
Apply: TypeAlias = Callable[[str], Manager]


class Propagation:
    """``app.propagate``."""

    def __init__(self, around_acts: list[Middleware], around_starts: list[Middleware]) -> None:
        """Use ``app.propagate``."""
        self._around_acts = around_acts
        self._around_starts = around_starts

    @overload
    def __call__(self, name: str, value: ContextVar[str] | ContextVar[str | None], /) -> None: ...
    @overload
    def __call__(self, name: str, get: Get, apply: Apply, /) -> None: ...
    def __call__(self, name: str, get: object, apply: Apply | None = None, /) -> None:
        """Have a value of the context travel with jobs, as a header: ``app.propagate("tenant", tenant)``.

        What is set where a job is stored is set in each of its starts, around middleware that is registered later, and
        is as before when the start has ended. A header that the call, or an earlier middleware, gives itself stays.
        Nothing travels where the value is not set, or None.

        Args:
            name: of the header.
            get: the context variable, of texts; or a function that gives the text where work is stored.
            apply: with a function: called with the text in a start, returns a context manager to be in.

        Raises:
            OptionsError: the name cannot be that of a header, or ``get`` is neither.

        Cost: one more step around each act that stores work and around each start.
        """
        check("headers", {name: ""})
        if isinstance(get, ContextVar):
            found = cast("ContextVar[str | None]", get)
            self._register(name, lambda: found.get(None), lambda text: _set(found, text))
        elif callable(get) and callable(apply):
            self._register(name, cast("Get", get), apply)
        else:
            raise OptionsError(
                f"app.propagate({name!r}, ...) takes a ContextVar, or a function that gives a text and one that makes "
                f"a context manager of it, not {get!r:.80}"
            )

    def _register(self, name: str, get: Get, apply: Apply) -> None:
        @contextmanager
        def send(act: Submission) -> Generator[None]:
            if act.jobs:
                text, above = get(), inherited().get(name)
                for job in act.jobs:
                    # What the job that runs here was given, unless its code has changed it since.
                    if job.headers.get(name) == above and text != above:
                        if text is None:
                            del job.headers[name]
                        else:
                            job.headers[name] = text
            yield

        def use(job: RunningJob) -> Manager:
            text = job.headers.get(name)
            return nullcontext() if text is None else apply(text)

        self._around_acts.append(send)
        self._around_starts.append(use)


@contextmanager
def _set(variable: ContextVar[str | None], text: str) -> Generator[None]:
    token = variable.set(text)
    try:
        yield
    finally:
        variable.reset(token)
