"""Find the application that a command line names, and say readably why it cannot be found."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

from headrace.app import Headrace
from headrace.errors import AppImportError
from headrace.running_job import importing


def load(target: str) -> Headrace:
    """The application of ``module:attribute``, or the only one of ``module``; imported from here first.

    ``module:create_app()`` calls a function without arguments. A site with ``extensions["headrace"]``, as Flask's have
    after ``init_app``, stands for its application. ``target``: such as ``tasks:app``; the attribute may be dotted.
    Raises AppImportError: there is no such module or application; or the module itself raised, in which case the text
    ends with the traceback of its own code, and ``__cause__`` is what it raised.
    """
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        hint = " (a path to a file is not)" if "/" in target or name.endswith(".py") else ""
        raise AppImportError(f"{target!r} names no application{hint}: write module:attribute, such as tasks:app")
    module = _module(name)
    return _only(module) if not attribute else _attribute(module, attribute)


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    # What lies here goes before what is installed, as with `python -m`.
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        with importing(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            part = f" (there is no {error.name!r})" if error.name != name else ""
            raise AppImportError(
                f"there is no module {name!r}{part} in {here} or among the installed ones: change to the directory "
                f"that holds it, or set PYTHONPATH"
            ) from None
        raise _raised(name, error) from _theirs(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - theirs may raise anything, as what skips a test does
        raise _raised(name, error) from _theirs(error)


def _raised(name: str, error: BaseException) -> AppImportError:
    said = traceback.format_exception_only(error)[-1].strip()
    advice = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        advice = f"; is {error.name.partition('.')[0]!r} installed here ({sys.executable})?"
    if isinstance(error, SystemExit):
        advice = "; keep what a program does under `if __name__ == '__main__':`"
    own = "".join(traceback.format_exception(_theirs(error))).rstrip()
    return AppImportError(f"the module {name!r} raised while it was imported: {said}{advice}\n\n{own}")


def _theirs(error: BaseException) -> BaseException:
    """The exception without the frames of this file and of the import system, whose lines help no reader."""
    trace, kept = error.__traceback__, list[TracebackType]()
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            kept.append(trace)
        trace = trace.tb_next
    chain: TracebackType | None = None
    for part in reversed(kept):
        chain = TracebackType(chain, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return error.with_traceback(chain)


def _application_names(module: ModuleType) -> list[str]:
    found: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Headrace):
            found.setdefault(id(value), name)
    return list(found.values())


def _only(module: ModuleType) -> Headrace:
    names = _application_names(module)
    if len(names) == 1:
        found: Headrace = getattr(module, names[0])
        return found
    if not names:
        raise AppImportError(
            f"the module {module.__name__!r} holds no application: it needs one, such as app = Headrace()"
        )
    choices = ", ".join(f"{module.__name__}:{name}" for name in names)
    raise AppImportError(f"the module {module.__name__!r} holds {len(names)} applications: name one of {choices}")


def _attribute(module: ModuleType, attribute: str) -> Headrace:
    called, attribute = attribute.endswith("()"), attribute.removesuffix("()")
    value: object = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            hint = _meant(module) or "it holds no application"
            raise AppImportError(f"{module.__name__}:{attribute} does not exist: {hint}") from None
    if called:
        value = _made(module, attribute, value)
    extensions: Any = getattr(value, "extensions", None)
    if not isinstance(value, Headrace) and isinstance(extensions, dict):
        value = cast("dict[str, object]", extensions).get("headrace", value)
    if not isinstance(value, Headrace):
        fault = f"{module.__name__}:{attribute} is a {type(value).__name__}, not a Headrace application"
        raise AppImportError("; ".join(filter(None, (fault, _meant(module)))))
    return value


def _made(module: ModuleType, name: str, factory: object) -> object:
    if not callable(factory):
        raise AppImportError(f"{module.__name__}:{name} is a {type(factory).__name__}: leave out the parentheses")
    try:
        with importing(module.__name__):
            return factory()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        said = traceback.format_exception_only(error)[-1].strip()
        own = "".join(traceback.format_exception(_theirs(error))).rstrip()
        raise AppImportError(f"{module.__name__}:{name}() raised: {said}\n\n{own}") from _theirs(error)


def _meant(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name in _application_names(module)]
    return f"did you mean {', '.join(names)}?" if names else ""
