"""Hypothesis strategies for tasks. Needs hypothesis, which Headrace does not install."""

from __future__ import annotations

import inspect
import types
import typing
from collections import abc
from typing import Any

from hypothesis import strategies as st

from headrace.errors import HeadraceError, OptionsError
from headrace.model.type_registry import Unresolved, hints
from headrace.tasks.task import Task
from headrace.testing.kit import bound

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_UNIONS: tuple[Any, ...] = (typing.Union, types.UnionType)
_HOLDING: tuple[Any, ...] = (list, dict, set, frozenset, tuple, abc.Sequence, abc.Mapping, abc.Iterable, *_UNIONS)
_KEY = st.text(max_size=8)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEY, inner, max_size=3),
    max_leaves=5,
)


class _Anything:
    """Stands for ``Any`` inside of an annotation, which hypothesis does not know."""


st.register_type_strategy(_Anything, _ANY)


def arguments(task: Task[..., Any, Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Arguments]:
    """Calls that the task accepts, by its signature: positions and keywords.

    Every one of them survives the way through the store: ``task.enqueue(*args, **kwargs)`` stores it, and the task gets
    equal values. Parameters with a default are left out now and then; ``*args`` and ``**kwargs`` always. ``given``:
    strategies of single parameters, instead of that of their annotation. Raises OptionsError: ``given`` names a
    parameter that the task does not have.
    """
    parameters = inspect.signature(task).parameters
    if unknown := given.keys() - parameters.keys():
        raise OptionsError(f"{task.name} has no parameter {min(unknown)!r}: it takes {', '.join(parameters)}")
    annotations = hints(task)
    positions: list[st.SearchStrategy[Any]] = []
    keywords: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for name, one in parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        strategy = given[name] if name in given else _of(annotations.get(name, Any))
        if one.kind is one.POSITIONAL_ONLY:
            positions.append(strategy)
        elif one.default is one.empty:
            keywords[name] = strategy
        else:
            optional[name] = strategy
    calls = st.tuples(st.tuples(*positions), st.fixed_dictionaries(keywords, optional=optional))
    return calls.filter(lambda call: _comes_back_equal(task, *call))


def _of(annotation: Any) -> st.SearchStrategy[Any]:
    if isinstance(annotation, Unresolved):
        return _ANY
    found: st.SearchStrategy[Any] = st.from_type(_filled(annotation))
    return found


def _filled(annotation: Any) -> Any:
    if annotation is Any or annotation is object:
        return _Anything
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin not in _HOLDING or (filled := tuple(map(_filled, inner))) == inner:
        return annotation
    return typing.Union[filled] if origin in _UNIONS else origin[filled]  # noqa: UP007 - of any number


def _comes_back_equal(task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        back = task.unpack(task.signature.pack(args, kwargs, task.context.client.settings.max_payload))
        # An enqueue may send by position what was given by name.
        return bound(task, *back) == bound(task, args, kwargs)
    except (HeadraceError, ArithmeticError):
        # The second: a decimal that signals when it is compared.
        return False
