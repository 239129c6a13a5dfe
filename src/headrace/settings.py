"""All settings: one object gives the default, the environment name, the flag, the check and the help text.

Pure: reads a mapping that it is given, never the process environment by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.errors import OptionsError, SettingsError

Duration = float | int | timedelta


def seconds(value: Duration, what: str, *, zero: bool = True) -> float:
    """A duration of the public API in seconds.

    Raises:
        OptionsError: not a number or timedelta, negative, not finite, over a century, or zero where ``zero`` is false.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if not 0 <= value <= 3_155_760_000 or (value == 0 and not zero):
        raise OptionsError(
            f"{what} must be {'at least' if zero else 'more than'} 0 and at most 100 years, not {value!r}"
        )
    return float(value)


def microseconds(value: float) -> int:
    return round(value * 1_000_000)


#: The word in the setting ``preload`` that stands for what the worker's audit finds.
AUTO = "auto"


def preload_names(text: str) -> tuple[str, ...]:
    """What the setting ``preload`` names: modules, ``module:function`` and :data:`AUTO`.

    Raises:
        ValueError: a name is neither.
    """
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        module, colon, function = name.partition(":")
        parts = [*module.split("."), *(function.split(".") if colon else ())]
        if not all(part.isidentifier() for part in parts):
            raise ValueError(
                f"{name!r} names neither a module (pandas, shop.models) nor a function (shop.models:configure)"
            )
    return names


#: Settings whose values may hold a password.
SECRET = ("url", "stats_url", "stats_broker")


def _hidden(url: str) -> str:
    """A URL without what is in front of its host and behind its path: a password may be there."""
    return re.sub(r"(?<=://).*@", "***@", url.partition("?")[0])


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one program uses Headrace. Durations in seconds, sizes in bytes.

    Each field is also the environment variable ``HEADRACE_<FIELD>``.
    """

    url: Annotated[
        str | None, Meta(description="server URL; without one, a private Valkey of this directory is started")
    ] = None
    dir: Annotated[str | None, Meta(description="directory of the private Valkey; default .headrace here")] = None
    namespace: Annotated[str, Meta(description="first part of every key", pattern=r"^[A-Za-z0-9_.:/@+-]{1,64}$")] = "hr"
    lease: Annotated[float, Meta(description="how long a silent worker keeps its jobs", ge=0.2, le=3600)] = 15.0
    grace: Annotated[float, Meta(description="how long a stopping worker lets jobs finish", ge=0)] = 25.0
    warm_limit: Annotated[
        float, Meta(description="how long new code may take until it claims, else the old stays", gt=0)
    ] = 300.0
    hard_grace: Annotated[float, Meta(description="from the soft limit or a cancellation to the kill", ge=0)] = 10.0
    crashes: Annotated[int, Meta(description="crashes before a job is quarantined", ge=1, le=1000)] = 3
    keep: Annotated[float, Meta(description="how long a succeeded job and its result stay", ge=0)] = 3600.0
    keep_failed: Annotated[float, Meta(description="how long a failed, cancelled or quarantined job stays", ge=0)] = (
        7 * 86400.0
    )
    keep_workflows: Annotated[float, Meta(description="how long a workflow stays after its end", ge=0)] = 7 * 86400.0
    unstarted_workflow_ttl: Annotated[
        float, Meta(description="how long a workflow waits for its start before it is removed", gt=0)
    ] = 30 * 86400.0
    max_kept: Annotated[int, Meta(description="finished jobs kept at most; the soonest to expire go first", ge=0)] = (
        100_000
    )
    max_kept_bytes: Annotated[int, Meta(description="bytes of kept results and errors at most", ge=0)] = 256 << 20
    max_payload: Annotated[int, Meta(description="bytes of one job's arguments at most", ge=1)] = 1 << 20
    max_result: Annotated[int, Meta(description="bytes of one job's result at most", ge=1)] = 4 << 20
    timeout: Annotated[float, Meta(description="how long a call may wait for an unreachable server", gt=0)] = 10.0
    dedupe: Annotated[float, Meta(description="how long a request id is remembered", gt=0)] = 86400.0
    allow_eviction: Annotated[bool, Meta(description="accept a server that may drop keys under memory pressure")] = (
        False
    )
    ahead: Annotated[
        float, Meta(description="work sent ahead to a runner, in seconds; 0 sends one job at a time", ge=0, le=1)
    ] = 0.005
    cache_entries: Annotated[int, Meta(description="cached values kept in one process at most", ge=1)] = 4096
    cache_bytes: Annotated[int, Meta(description="memory of cached values in one process at most", ge=4096)] = 32 << 20
    cache_eviction: Annotated[
        str, Meta(description="which cached value makes room in a process: fifo or sieve", pattern="^(fifo|sieve)$")
    ] = "fifo"
    cache_absent: Annotated[bool, Meta(description="remember in the process that there is no value")] = True
    cache_age: Annotated[float, Meta(description="how long a process keeps a value without reading it again", gt=0)] = (
        600.0
    )
    cache_ttl: Annotated[float, Meta(description="how long a cached value stays if not told", gt=0)] = 7 * 86400.0
    cache_silence: Annotated[
        float, Meta(description="silence of a server across a network after which cached values go", gt=0)
    ] = 5.0
    log: Annotated[str, Meta(description="log format: text or json", pattern="^(text|json)$")] = "text"
    log_jobs: Annotated[
        str,
        Meta(
            description="which starts a worker logs a line of: none, failures or all", pattern="^(none|failures|all)$"
        ),
    ] = "failures"
    metrics: Annotated[
        str | None,
        Meta(description="address where a worker answers Prometheus, such as 127.0.0.1:9464; default nowhere"),
    ] = None
    stats: Annotated[
        str,
        Meta(
            description="where counts go: direct, or stream or amqp (for stats consume)",
            pattern="^(direct|stream|amqp)$",
        ),
    ] = "direct"
    stats_broker: Annotated[
        str | None, Meta(description="URL of the RabbitMQ that counts go over, such as amqp://host; for stats=amqp")
    ] = None
    stats_jobs: Annotated[bool, Meta(description="workers count what becomes of their jobs")] = True
    stats_url: Annotated[str | None, Meta(description="server of the statistics; default the same one")] = None
    stats_keep: Annotated[str, Meta(description="how long each resolution of the statistics is kept")] = (
        "minute=2d hour=60d day=2y month=20y"
    )
    stats_buffer: Annotated[int, Meta(description="counts merged before they are sent; 0 sends each at once", ge=0)] = (
        10_000
    )
    stats_age: Annotated[float, Meta(description="how long a count waits to be sent at most", gt=0, le=3600)] = 1.0
    stats_line: Annotated[int, Meta(description="batches that wait for their consumer at most", ge=1)] = 10_000
    stats_overflow: Annotated[
        str,
        Meta(
            description="when too much waits: block, which merges on in programs and lets them wait, or drop_oldest",
            pattern="^(block|drop_oldest)$",
        ),
    ] = "block"
    stats_events: Annotated[float, Meta(description="how long an event of the statistics stays", ge=1)] = 7 * 86400.0
    preload: Annotated[
        str, Meta(description="modules to import and module:functions to call before workers fork, or auto")
    ] = ""
    audit: Annotated[bool, Meta(description="workers notice what is done again after each fork, and say so")] = True
    linger: Annotated[float, Meta(description="how long the private Valkey outlives its last user", ge=0)] = 3.0

    def __post_init__(self) -> None:
        preload_names(self.preload)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, _hidden(value) if name in SECRET and value else value) for name, value in values]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def environment_name(field: str) -> str:
    return f"HEADRACE_{field.upper()}"


def load(environ: Mapping[str, str], **given: Any) -> Settings:
    """Settings from the environment, overridden by what the caller gives (None counts as not given).

    Raises:
        SettingsError: names the setting, the value and what would be right.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    if isinstance(given.get("preload"), (list, tuple)):
        # In code a list reads better than the commas of an environment variable.
        given["preload"] = ",".join(map(str, given["preload"]))
    for field in Settings.__struct_fields__:
        name = environment_name(field)
        if given.get(field) is not None:
            values[field], names[field] = given.pop(field), field
        elif environ.get(name):
            values[field], names[field] = environ[name], name
        given.pop(field, None)
    if given:
        raise SettingsError(
            f"there is no setting {min(given)!r}; the settings are {', '.join(Settings.__struct_fields__)}"
        )
    for field, value in values.items():
        try:
            msgspec.convert({field: value}, Settings, strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).split(" - at")[0]
            shown = "***" if field in SECRET else repr(value)
            raise SettingsError(f"{names[field]}={shown} cannot be used: {reason[0].lower()}{reason[1:]}") from None
    return msgspec.convert(values, Settings, strict=False)
