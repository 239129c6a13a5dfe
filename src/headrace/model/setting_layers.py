"""Which of several layers gives a setting its value, and what is wrong with one; which variables are no settings.

Pure: takes the environment, never the process environment by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.errors import SettingsError
from headrace.settings import CENTURY, HIDDEN, KEYS, SECRET, Settings, environment_name


def load(environ: Mapping[str, str], **given: Any) -> Settings:
    """Settings from the environment, overridden by what the caller gives (None counts as not given). Raises
    SettingsError: names the setting, the value and what would be right.
    """
    return resolve(environ, given, {})[0]


def chosen(
    environ: Mapping[str, str], settings: Settings | None, given: Mapping[str, Any], defaults: Mapping[str, Any] | None
) -> tuple[Settings, dict[str, str]]:
    if settings is None:
        return resolve(environ, given, defaults or {})
    if defaults is not None:
        raise SettingsError("settings= has a value for each setting, so defaults= mean nothing: give one of them")
    if not isinstance(settings, Settings):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingsError(f"settings= takes Settings(...), not {type(settings).__name__}")
    whole = dict.fromkeys(Settings.__struct_fields__, "Headrace(settings=...)")
    changed, sources = over(_usable(settings), given)
    return changed, whole | sources


def _usable(settings: Settings) -> Settings:
    given = {field: value for field, value in msgspec.structs.asdict(settings).items() if value is not None}
    for field, value in given.items():
        _checked(field, value, f"Settings({field}=...): {field}")
    read = msgspec.convert(given, Settings, strict=False)
    return settings if read == settings else read


def over(settings: Settings, given: Mapping[str, Any]) -> tuple[Settings, dict[str, str]]:
    """Settings with those that are given above them, and where these came from. Raises: as :func:`resolve`. A directory
    without a URL means the private server there, whatever URL was in the settings below.
    """
    changes, sources = resolve({}, given, {})
    if not sources:
        return settings, sources
    names = {*sources, *(("url",) if "dir" in sources else ())}
    return msgspec.structs.replace(settings, **{name: getattr(changes, name) for name in names}), sources


def resolve(
    environ: Mapping[str, str], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[Settings, dict[str, str]]:
    """Settings by layers: what the caller gives, then the environment, then the caller's defaults, then ours.

    A value that does not count, since a layer above it has one, is not looked at. None counts as not given. Returns
    them, and where each that is not our default came from. Raises SettingsError: names the setting, the value and what
    would be right.
    """
    for layer, where in ((given, ""), (defaults, " in defaults")):
        if unknown := sorted(map(str, set(layer) - set(Settings.__struct_fields__))):
            from headrace.model.elsewhere import of_settings

            known = of_settings(unknown[0])
            nearest = f": write {known}" if known else _nearest(unknown[0], Settings.__struct_fields__)
            raise SettingsError(
                f"there is no setting {unknown[0]!r}{where}{nearest}; the "
                f"settings are {', '.join(Settings.__struct_fields__)}"
            )
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field in Settings.__struct_fields__:
        name = environment_name(field)
        for value, source, label in (
            (given.get(field), f"Headrace({field}=...)", field),
            (environ.get(name) or None, name, name),
            (defaults.get(field), f"Headrace(defaults={{{field!r}: ...}})", f"defaults[{field!r}]"),
        ):
            if value is not None:
                values[field], sources[field] = _checked(field, value, label), source
                break
    if {"password_file", "credentials"} <= values.keys():
        raise SettingsError("password_file and credentials both give a password: leave out one of them")
    return msgspec.convert(values, Settings, strict=False), sources


def _checked(field: str, value: Any, label: str) -> Any:
    if field == "preload" and isinstance(value, (list, tuple)):
        # In code a list reads better than the commas of an environment variable.
        value = ",".join(map(str, cast("list[object]", value)))
    try:
        read = getattr(msgspec.convert({field: value}, Settings, strict=False), field)
    except msgspec.ValidationError as error:
        reason = _in_words(str(error).split(" - at")[0])
    except UnicodeEncodeError:
        reason = "bytes that are no UTF-8"
    else:
        if not isinstance(read, float) or read <= CENTURY:
            return value
        reason = f"a time is at most 100 years, which is {CENTURY} s"
    shown = HIDDEN if field in SECRET + KEYS else repr(value)
    raise SettingsError(f"{label}={shown} cannot be used: {reason[0].lower()}{reason[1:]}")


#: Options of ``headrace worker``.
WORKER_VARIABLES = (
    "HEADRACE_CONCURRENCY", "HEADRACE_FORKS", "HEADRACE_MAX_IDLE", "HEADRACE_MAX_JOBS", "HEADRACE_PROCESSES",
    "HEADRACE_QUEUES", "HEADRACE_RECYCLE_JOBS", "HEADRACE_RECYCLE_MEMORY", "HEADRACE_THREADS",
)  # fmt: skip
#: Variables of Headrace that are no settings; the last two are between a worker's own processes.
NO_SETTINGS = (
    *WORKER_VARIABLES,
    "HEADRACE_APP", "HEADRACE_DASHBOARD_PRODUCER_TOKEN", "HEADRACE_DASHBOARD_TOKEN", "HEADRACE_DASHBOARD_VIEWER_TOKEN",
    "HEADRACE_SERVER_BINARY",
    "HEADRACE_PARENT", "HEADRACE_ORDER",
)  # fmt: skip

_KINDS = {"float": "a number", "int": "a whole number", "bool": "1 or 0", "str": "a text"}


def _in_words(text: str) -> str:
    if (pattern := re.search(r"matching regex '\^(.*)\$'", text)) is not None:
        words = pattern[1].strip("()").split("|")
        # That of the namespace is the only one that is not a list of words.
        return f"use one of {', '.join(words)}" if len(words) > 1 else "use 1 to 64 letters, digits and _.:/@+-"
    text = re.sub(r"`([a-z]+)`", lambda kind: _KINDS.get(kind[1], kind[0]), text)
    return text.removesuffix(", got a text")


_warned: set[str] = set()


def warn_of_unknown(environ: Mapping[str, str], warn: Callable[[str], object]) -> None:
    known = (*map(environment_name, Settings.__struct_fields__), *NO_SETTINGS)
    for name in sorted(name for name in environ if name.startswith("HEADRACE_")):
        if name not in known and name not in _warned:
            _warned.add(name)
            warn(f"{name} is set, but there is no such setting{_nearest(name, known)}: it has no effect")


def _nearest(name: str, known: Sequence[str]) -> str:
    # Loaded for mistakes only.
    import difflib

    start = "HEADRACE_" if name.startswith("HEADRACE_") else ""
    found = difflib.get_close_matches(name.removeprefix(start), [one.removeprefix(start) for one in known], 1)
    return f" (did you mean {start}{found[0]}?)" if found else ""
