"""The work of a worker before it forks: the preload, and making its memory fit to be shared.

:func:`warm_up`, in the supervisor, in its one thread:

1. imports and calls the names in ``preload``, and calls the functions of ``@app.on_preload``;
2. refuses a step that left a thread or a socket behind, and says which one;
3. compacts the memory and freezes it;
4. leaves nothing in a buffer that each child would write once more.

See docs/design/warmth.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import logging
import mmap
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from headrace.app import Headrace
from headrace.errors import HeadraceError, PreloadError
from headrace.settings import preload_names
from headrace.worker import lifecycle_hooks, standard_streams
from headrace.worker.lifecycle_hooks import name_of

_ADVICE = {
    "thread": "runners will not have it, and may hang on locks that it held",
    "socket": "every runner would use the same one, and read the answers of others",
}
# Exactly these keep nothing back: a class made from one may do otherwise.
_QUIET = frozenset((logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort)))


def warm_up(app: Headrace) -> None:
    """Take every step of the application's preload, once, in the process that forks. Raises PreloadError: a step
    raised, or left a thread or a socket behind; the text names the step and the culprit.
    """
    for name in preload_names(app.settings.preload):
        _take(app, f"the preload of {name}", partial(preload, name))
    for hook in app.preload_hooks:
        _take(app, f"the on_preload hook {name_of(hook)}", hook)


def preload(name: str) -> None:
    """Import ``module``, or call ``module:function`` without arguments."""
    find(name)() if ":" in name else import_module(name)


def find(name: str) -> Callable[[], object]:
    module, _, path = name.partition(":")
    value: Any = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]


def _take(app: Headrace, step: str, action: Callable[[], object]) -> None:
    before = lifecycle_hooks.read_state()
    try:
        action()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        theirs = error.with_traceback(_beyond(error))
        # Without a line of theirs it is the name that is wrong, which the error itself says.
        trace = "\n\n" + "".join(traceback.format_exception(theirs)).rstrip() if theirs.__traceback__ else ""
        advice = "" if trace else "; correct the name, or install what it names here"
        raise PreloadError(f"{step} failed: {error!r}{advice}{trace}") from error
    # The application's own clients may be used in a step; what they opened ends here.
    app.disconnect()
    for complaint in complaints(step, before):
        raise PreloadError(complaint)


def _beyond(error: BaseException) -> Any:
    """The traceback from their first line on, without those of this file and of the import system."""
    trace = error.__traceback__
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def complaints(step: str, before: lifecycle_hooks.Seen) -> Iterator[str]:
    found = (("thread", lifecycle_hooks.threads_since(before)), ("socket", lifecycle_hooks.sockets_since(before)))
    for kind, culprits in found:
        if culprits:
            does, end = ("started", "start") if kind == "thread" else ("left open", "open")
            yield (
                f"{step} {does} {' and '.join(culprits)}: {_ADVICE[kind]}; {end} it in @app.after_fork_child, which "
                f"runs in each runner, or end it before the step does"
            )


def compact() -> None:
    """Collect garbage, give free memory back, and freeze what is left: its pages stay shared with every child."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # Only the GNU C library has it: free pages at the top of the heap would be copied at each child's first use.
        ctypes.CDLL(None).malloc_trim(0)
    gc.freeze()
    lifecycle_hooks.join()


class StoreUse:
    """Whether a job of a small image has used the store: then what is forked later has it before the fork."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def learn(self, app: Headrace) -> None:
        self._page[0] = 1
        self.prepare(app)

    def prepare(self, app: Headrace) -> None:
        """Before a fork: have the store in memory, without a connection, if a job used it."""
        if self._page[0] and not store_is_loaded():
            # A job that needs it gets the error, if there is one.
            with contextlib.suppress(HeadraceError, OSError):
                _ = app.store
            compact()


def store_is_loaded() -> bool:
    return "headrace.store.store" in sys.modules


def write_out() -> None:
    """Flush streams and log handlers before a fork: each child would write once more what is still in a buffer."""
    for handler in _handlers():
        # A handler that cannot write has its own way to say so; the fork goes on.
        with contextlib.suppress(Exception):
            handler.flush()
    standard_streams.flush()


def _handlers() -> Iterable[logging.Handler]:
    found = {id(handler): handler for handler in logging.root.handlers}
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            found.update((id(handler), handler) for handler in logger.handlers)
    return found.values()


def quiet_handlers() -> object:
    """All handlers of logging that there are, if none of them keeps back what it was given; else None. To write them
    out and close them is a tenth of what a child of one job costs.
    """
    handlers = all_handlers()
    return handlers[:] if handlers is not None and all(type(one()) in _QUIET for one in handlers) else None


def all_handlers() -> list[weakref.ref[logging.Handler]] | None:
    """Those that logging would shut down. It does not tell them in public: None where it keeps them otherwise."""
    return vars(logging).get("_handlerList")


def reseed() -> None:
    """Give this child random numbers of its own in ``numpy.random``, where that was imported, as ``random`` does."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
