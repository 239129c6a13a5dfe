"""What a task is called: the same in the script that defines it and in the worker that imports it.

Reads the import system, changes nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import OptionsError
from headrace.model.ids import check_name


def name_of(function: Any, given: Any) -> str:
    """The given name, or ``module.function``. Raises OptionsError: it cannot be named, or is nothing that can be a
    task.
    """
    if inspect.isclass(function) or not callable(function):
        raise OptionsError(f"@app.task takes a function or coroutine function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionsError(
            f"{function.__qualname__} yields, but a job has one result: return a list, or enqueue one job per item"
        )
    try:
        inspect.signature(function)
    except (ValueError, TypeError):
        raise OptionsError(f"{function!r} has no signature that can be read: wrap it in a function") from None
    if given is not None:
        return check(given)
    qualified = getattr(function, "__qualname__", None)
    if qualified is None or "<lambda>" in qualified:
        raise OptionsError(
            f"{function!r} has no name of its own: define it with def, or name a task with @app.task(name=...)"
        )
    return check(f"{module_name(function.__module__)}.{qualified.replace('<locals>.', '')}")


def check_found(function: Any) -> None:
    """Refuse as a task what a worker would not find where it imports the module. A task that is given a name is not
    checked: a factory, say, defines its tasks in a function that each worker calls. Raises OptionsError: it is a
    builtin, a method, or defined inside of another function.
    """
    qualified = getattr(function, "__qualname__", "")
    if inspect.isbuiltin(function):
        raise OptionsError(f"{qualified} is a builtin: write a function of yours that calls it, with annotations")
    if "<locals>" in qualified:
        raise OptionsError(
            f"{qualified.replace('<locals>.', '')} is defined inside of another function, where a worker that imports "
            f"the module does not find it: move it to the module; or, where each worker calls that function too, "
            f"name it with @app.task(name=...)"
        )
    if "." in qualified:
        raise OptionsError(
            f"{qualified} is a method, and a job has no object to call it on: make it a function of the module; a "
            f"static one may be named with @app.task(name=...)"
        )


def check(name: Any) -> str:
    """``name`` if a task may have it. Raises OptionsError: it may not."""
    if not isinstance(name, str):
        raise OptionsError(f"the name of a task must be a text, not {name!r}")
    try:
        return check_name("task", name)
    except OptionsError as error:
        raise OptionsError(f"{error}; @app.task(name=...) gives another") from None


def module_name(name: str) -> str:
    """The name by which others import a module: a program that is run is called ``__main__``, and only there."""
    if name not in ("__main__", "__mp_main__"):
        return name
    main = sys.modules[name]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        return name
    path = Path(file).resolve()
    parts = [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").exists():
            break
        parts.append(folder.name)
    return ".".join(reversed(parts))


def place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
