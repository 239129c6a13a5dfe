"""Hooks: functions of an application that are called with events. Declares them; the watcher of a worker calls them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from headrace.admin.event_log import check_kinds
from headrace.errors import OptionsError
from headrace.model.activity import EventRecord

#: What a hook is: ordinary or a coroutine function.
HookFunction = Callable[[list[EventRecord]], object | Coroutine[Any, Any, object]]
F = TypeVar("F", bound=HookFunction)

# Hooks of one application.
MOST = 50


class EventHook(msgspec.Struct, frozen=True):
    """A function, and which events it is called with.

    Attributes:
        name: ``module.function``: under it the store knows how far the hook is.
        kinds: of the events; none: all.
        task, queue: patterns, such as ``tasks.*``; empty: any.
    """

    name: str
    function: HookFunction
    kinds: tuple[str, ...]
    task: str
    queue: str

    def wants(self, event: EventRecord) -> bool:
        """Whether the hook is called with an event of its kinds."""
        patterns = (("task", self.task), ("queue", self.queue))
        return all(not like or fnmatchcase(event.facts.get(name, ""), like) for name, like in patterns)


class EventHooks:
    """``app.hooks``: those that the code declares.

    Attributes:
        declared: by name.
    """

    def __init__(self) -> None:
        self.declared: dict[str, EventHook] = {}

    def on(self, *kinds: str, task: str = "", queue: str = "") -> Callable[[F], F]:
        """Call a function with what failed or changed: ``@app.on("failed", "quarantined", task="tasks.*")``.

        The function, ordinary or a coroutine function, gets a list of :class:`headrace.EventRecord`, oldest first:
        what happened since its last call, at most 100 events. One worker of all that know the hook calls it, in a
        process of its own beside the jobs, about a second after the first of the events. Each event is given at least
        once: a list is given again if the hook raised, took more than 30 seconds, or if its process or machine died.
        After three tries in all, the worker logs which events it goes past. A hook that was not known before begins
        with what happens from then on. The newest 10,000 events are kept, a week: a hook that falls behind these
        misses some.

        Args:
            kinds: of events, see :data:`headrace.model.activity.KINDS`; none: all.
            task, queue: only events about those that match, such as ``tasks.*``; events of other kinds than failures
                and ``parked`` name no task.

        Raises:
            OptionsError: there is no such kind; the function cannot be called with one argument, or has no name of its
                own; another hook has its name; there are more than 50.

        Cost: none; the watcher asks once a second.
        """
        checked = tuple(check_kinds(kinds))

        def decorate(function: F) -> F:
            name = _name_of(function)
            if name in self.declared:
                raise OptionsError(f"there is a hook {name} already: give it all of its kinds, or another name")
            if len(self.declared) >= MOST:
                raise OptionsError(f"an application has at most {MOST} hooks: let one function take several kinds")
            self.declared[name] = EventHook(name, function, checked, task, queue)
            return function

        return decorate


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", "")
    if not callable(function) or not name or "<lambda>" in name:
        raise OptionsError(f"a hook must be a function with a name, not {function!r:.80}")
    try:
        inspect.signature(function).bind([])
    except TypeError:
        raise OptionsError(f"the hook {name} must take one argument, the list of events") from None
    return f"{function.__module__}.{name}"
