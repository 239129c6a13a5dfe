"""Which functions may be the set-up that a first start spent its time in. Looks at modules; calls nothing.

A candidate is a function of a module that can be called without arguments, and either was on the stack itself or names
one of its module that was: the public way into a set-up is rarely the way by which a job came into it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_CACHED: Any = type(functools.cache(int))
# More of one start are not told: such functions are rare.
MOST = 12


class Hot(NamedTuple):
    """A function that a first start spent time in: its module, qualified name, first line, and microseconds."""

    module: str
    name: str
    line: int
    cost: int


def candidates(hot: Sequence[Hot], never: Collection[object] = ()) -> list[tuple[str, int]]:
    """``module:function`` by the shortest module that has it, with the microseconds that were spent below it.

    In the order in which they are to be tried: those first that people are meant to call; of these the narrowest,
    which do least besides.

    Args:
        never: functions that are none, such as those of tasks.
    """
    by_module: dict[str, list[Hot]] = {}
    for one in hot:
        by_module.setdefault(one.module, []).append(one)
    found: dict[str, int] = {}
    for name, told in by_module.items():
        module = sys.modules.get(name)
        if module is None or name in ("__main__", "builtins"):
            continue
        for attribute, value in list(vars(module).items()):
            code = _code(value)
            if code is None or value.__module__ != name or value in never or _wrapped(value) in never:
                continue
            costs = [one.cost for one in told if _leads(code, one)]
            if costs:
                found[_shortest(name, attribute, value)] = max(costs)
    return sorted(found.items(), key=lambda one: (one[0].rpartition(":")[2].startswith("_"), one[1], one[0]))[:MOST]


def callable_alone(value: object) -> bool:
    """Whether it is a function of a module that needs no arguments, cached or not."""
    return _code(value) is not None


def _wrapped(value: Any) -> Any:
    return getattr(value, "__wrapped__", value)


def _code(value: Any) -> CodeType | None:
    function = value.__wrapped__ if isinstance(value, _CACHED) else value
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    needed = code.co_argcount - len(function.__defaults__ or ())
    needed += code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
    # Coroutines and generators do nothing when they are called.
    runs = not code.co_flags & (0x20 | 0x80 | 0x200)
    return code if needed == 0 and runs and code.co_qualname == code.co_name else None


def _leads(code: CodeType, hot: Hot) -> bool:
    if (code.co_qualname, code.co_firstlineno) == (hot.name, hot.line):
        return True
    # A function of the module itself, no method and nothing local: only those are found by their bare name.
    return "." not in hot.name and hot.name in code.co_names


def _shortest(module: str, attribute: str, value: object) -> str:
    """The name by which people import it: of the outermost package that has it."""
    parts = module.split(".")
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        outer = sys.modules.get(package)
        if isinstance(outer, ModuleType) and vars(outer).get(attribute) is value:
            return f"{package}:{attribute}"
    return f"{module}:{attribute}"
