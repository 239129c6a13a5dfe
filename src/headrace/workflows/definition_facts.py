"""A definition as its graphs see it, and what messages call its nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import msgspec

from headrace.errors import ArgumentError
from headrace.model.headers import Given
from headrace.model.signature import Signature
from headrace.tasks.app_context import AppContext
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.task import Task

# Names that an error tells.
TOLD = 12


class Definition(msgspec.Struct, frozen=True):
    """A function that defines a workflow, and what it gives to all its nodes.

    Attributes:
        signature: of the function, without the flow.
        task: runs it as a node, where its arguments are known at run time only.
        queue: of nodes for which neither they nor their task name one.
        globals: arguments by name, for each node whose function takes them.
        headers: for each node, besides those that it inherits.
    """

    name: str
    function: Callable[..., object]
    signature: Signature
    task: Task[..., Any, Any]
    queue: str = ""
    globals: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    headers: Given = ()


class Defined(Protocol):
    """What has a definition, and can be run within a workflow besides tasks: a workflow."""

    @property
    def definition(self) -> Definition: ...


class Lookup(Protocol):
    """What is registered in an application, for definitions that name it."""

    @property
    def context(self) -> AppContext: ...
    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]: ...
    @property
    def definitions(self) -> Mapping[str, Defined]: ...


def name_of(task: Any, what: str = "flow.run") -> str:
    """The name of a task, however it is given."""
    if isinstance(task, str):
        return task
    if isinstance(task, BoundTask):
        return cast("BoundTask[..., Any]", task).task
    definition = getattr(task, "definition", None)
    if isinstance(definition, Definition):
        return definition.name
    raise ArgumentError(f"{what} takes a task, the name of one, or a workflow, not {task!r:.80}: is it decorated?")


def stem(name: str) -> str:
    """The last part of a task's name: what its nodes are called after."""
    return name.rpartition(".")[2].rpartition(":")[2]


def some(names: Iterable[str]) -> str:
    """Names for an error, not all of them when they are many."""
    known = list(names)
    return ", ".join(known[:TOLD]) + (f" and {len(known) - TOLD:,} more" if len(known) > TOLD else "")
