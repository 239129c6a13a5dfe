"""Which functions may be the set-up that first starts spent their time in. Looks at modules; calls nothing.

A suspect is a function of a module that can be called without arguments, and either was on the stack itself or names
one of its module that was: the public way into a set-up is rarely the way by which a job came into it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from headrace.worker.messages import Function

_CACHED: Any = type(functools.cache(int))


@dataclass(frozen=True, slots=True)
class Suspect:
    """A function that a rehearsal may try.

    Attributes:
        name: ``module:function``, by the shortest module that has it.
        call: the function.
        cost: microseconds that a first start spent below it, or below what it calls.
        seen: which of the functions that were told it stands for, by their place.
    """

    name: str
    call: Callable[[], object]
    cost: int
    seen: tuple[int, ...]


def suspects(told: Sequence[Function], never: Collection[object] = ()) -> list[Suspect]:
    """Every suspect for what runners told, in the order in which they are to be tried.

    Args:
        never: functions that are none, such as those of tasks.
    """
    by_module: dict[str, list[int]] = {}
    for place, function in enumerate(told):
        by_module.setdefault(function.module, []).append(place)
    found: dict[str, Suspect] = {}
    for name, places in by_module.items():
        module = sys.modules.get(name)
        if module is None or name in ("__main__", "builtins"):
            continue
        for attribute, value in list(vars(module).items()):
            code = _plain(value, name)
            if code is None or value in never or getattr(value, "__wrapped__", None) in never:
                continue
            seen = tuple(place for place in places if _leads(code, told[place]))
            if seen:
                public = _shortest(name, attribute, value)
                found[public] = Suspect(public, value, max(told[place].cost for place in seen), seen)
    # Those first that people are meant to call; of these the narrowest, which do least besides.
    return sorted(found.values(), key=lambda one: (one.name.rpartition(":")[2].startswith("_"), one.cost, one.name))


def _plain(value: Any, module: str) -> CodeType | None:
    """The code of a function that this module defines and that needs no arguments."""
    function = value.__wrapped__ if isinstance(value, _CACHED) else value
    if not isinstance(function, FunctionType) or function.__module__ != module:
        return None
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    needed += code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
    # Coroutines and generators do nothing when they are called.
    runs = not code.co_flags & (0x20 | 0x80 | 0x200)
    return code if needed == 0 and runs and code.co_qualname == code.co_name else None


def _leads(code: CodeType, told: Function) -> bool:
    if (code.co_qualname, code.co_firstlineno) == (told.name, told.line):
        return True
    # A function of the module itself, no method and nothing local: only those are found by their bare name.
    return "." not in told.name and told.name in code.co_names


def _shortest(module: str, attribute: str, value: object) -> str:
    """The name by which people import it: of the outermost package that has it."""
    parts = module.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        outer = sys.modules.get(package)
        if isinstance(outer, ModuleType) and vars(outer).get(attribute) is value:
            return f"{package}:{attribute}"
    return f"{module}:{attribute}"
