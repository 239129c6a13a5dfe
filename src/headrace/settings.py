"""All settings: default, check and text of each, and which of several layers gives it its value.

Pure: takes the environment, never the process environment by itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from headrace.errors import OptionsError, SettingsError

Duration = float | int | timedelta

#: Seconds of 100 years, the longest duration: microseconds of longer ones do not fit the server's numbers.
CENTURY = 3_155_760_000


def seconds(value: Duration, what: str, *, zero: bool = True) -> float:
    """A duration in seconds. Raises OptionsError: no number or timedelta, below 0, over a century, or a barred 0."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if not 0 <= value <= CENTURY or (value == 0 and not zero):
        raise OptionsError(
            f"{what} must be {'at least' if zero else 'more than'} 0 and at most 100 years, not {value!r}"
        )
    return float(value)


def patience(timeout: Duration | None) -> float | None:
    """How long a wait lasts at most, in seconds; None, or infinity: for ever. Raises as :func:`seconds`."""
    return None if timeout is None or timeout == math.inf else seconds(timeout, "timeout")


def microseconds(value: float) -> int:
    return round(value * 1_000_000)


def preload_names(text: str) -> tuple[str, ...]:
    """What the setting ``preload`` names: modules and ``module:function``. Raises ValueError: a name is neither."""
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        module, colon, function = name.partition(":")
        parts = [*module.split("."), *(function.split(".") if colon else ())]
        if not all(part.isidentifier() for part in parts):
            raise ValueError(
                f"{name!r} names neither a module (pandas, shop.models) nor a function (shop.models:configure)"
            )
    return names


def _check_credentials(value: Any) -> None:
    if isinstance(value, str):
        module, _, function = value.partition(":")
        right = all(part.isidentifier() for part in (*module.split("."), function))
    else:
        right = value is None or callable(getattr(value, "get_credentials", value))
    if not right:
        raise ValueError(
            "it names no function (shop.login:token), and is not a function or object with get_credentials either"
        )


def _check_keys(name: str, keys: str) -> None:
    if any(len(key) < SHORTEST_KEY for key in keys.split()):
        raise ValueError(
            f"{name} has a key of fewer than {SHORTEST_KEY} characters: make one with "
            f"python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )


#: Characters of a key, at least: 256 random bits have 43 of base 64.
SHORTEST_KEY = 32

#: Stands for what is not shown. ASCII, since a command line and any terminal can have it.
HIDDEN = "***"

#: Settings whose values may hold a password.
SECRET = ("url", "stats_url", "stats_broker")

#: Settings that are keys: nothing of them is shown.
KEYS = ("signing_keys", "encryption_keys")


def hidden_url(url: str) -> str:
    """A URL without what is in front of its host and behind its path: a password may be there."""
    return re.sub(r"(?<=://).*@", f"{HIDDEN}@", url.partition("?")[0])


Seconds = Annotated[float, Meta(ge=0)]
PositiveSeconds = Annotated[float, Meta(gt=0)]
Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one program uses Headrace. Durations in seconds, sizes in bytes.

    Each field is also the environment variable ``HEADRACE_<FIELD>``. The reference page of settings is printed from
    this text.

    Attributes:
        url: Server URL. Without one, Headrace starts a private Valkey for this project.
        dir: Directory of the private Valkey. Default: .headrace in the directory of the project.
        namespace: First part of every key in the server.
        shards: Number of shards of the store, on one server or a cluster; it can only grow, by shards that are added,
            as in 12+4. Several URLs with spaces between them are a shard each.
        code_version: Version of your code, such as a commit. Workers show it, and plots mark its first start.
        lease: Time without a heartbeat after which other workers take over a worker's jobs.
        shutdown_timeout: Time that running jobs get to finish when a worker stops.
        reload_timeout: Maximum time for reloaded code to become ready; otherwise the old code keeps running.
        kill_timeout: Time from the soft limit or a cancellation until the runner is killed.
        max_crashes: Number of crashes after which a job is quarantined.
        result_ttl: Time that a succeeded job and its result stay on the server.
        failure_ttl: Time that a failed, cancelled or quarantined job stays on the server.
        workflow_ttl: Time that a workflow stays on the server after its end.
        unstarted_workflow_ttl: Time after which a workflow that was never started is removed.
        max_finished: Maximum number of finished jobs; above it, those that expire soonest are removed.
        max_finished_bytes: Maximum size of all results and errors; above it, the jobs that expire soonest are removed.
        max_payload: Maximum size of one job's arguments.
        max_result: Maximum size of one job's result.
        signing_keys: Keys that sign jobs, with spaces between them: the first signs, each of them verifies.
        require_signature: Workers quarantine jobs that none of the signing keys has signed.
        encryption_keys: Keys that encrypt values, with spaces between them: the first encrypts, each of them reads.
        encrypt: Encrypt arguments, results and error texts of all tasks.
        timeout: Time that a call keeps trying to reach the server.
        password_file: File that holds the server's password; each connection reads it anew.
        credentials: module:function that gives user and password to each connection, or a credentials provider of
            redis-py.
        max_connections: Maximum number of connections that the threads of a process, or one event loop, open for calls;
            further calls wait, at most for the timeout.
        durability: What has new work before a call returns: memory (the server's), fsync (its disk too) or replicated.
        replicas: Number of replicas that have new work with durability=replicated.
        request_id_ttl: Time during which a request id makes only one job.
        allow_eviction: Accept a server that may drop keys under memory pressure.
        prefetch_seconds: Seconds of work that a worker sends to a busy runner in advance; 0 sends one job at a time.
        cache_entries: Maximum number of cached values in one process.
        cache_bytes: Maximum memory of cached values in one process.
        cache_eviction: How a full cache chooses the value to remove: fifo or second_chance.
        cache_absent: Cache in the process that a name has no value.
        cache_max_age: Time after which a process reads a cached value again from the server.
        cache_ttl: Time that a cached value stays on the server, unless set gives one.
        cache_heartbeat_timeout: Time without an answer from a remote server after which a process drops its cached
            values.
        log: Log format: text or json.
        log_jobs: Which starts a worker logs: none, failures or all.
        redact: Parts of names whose values are hidden in logs, by commands and on pages; "" hides none.
        traces: Traces of OpenTelemetry: off, auto, parent (jobs are children of their senders) or link.
        metrics: Address where a worker serves metrics and probes, such as 127.0.0.1:9464. Default: nowhere.
        stats: Where counts are sent: direct to the server, or to stream or amqp for headrace stats consume.
        stats_broker: URL of the RabbitMQ broker for stats=amqp, such as amqp://host.
        stats_jobs: Workers count the outcomes of their jobs.
        stats_url: Server of the statistics. Default: the same server.
        stats_keep: Time that each resolution of the statistics is kept.
        stats_buffer: Number of counts that a process merges before it sends them; 0 sends each count at once.
        stats_flush_interval: Maximum time that a count waits in the process before it is sent.
        stats_stream_max: Maximum number of batches that wait for a consumer.
        stats_overflow: What a process does when the stream is full: block (merge on, then wait) or drop_oldest.
        stats_events: Time that an event of the statistics is kept.
        preload: Modules to import and module:functions to call before workers fork.
        startup_profiling: Workers measure which set-up every runner repeats after its fork, and report it.
        embedded: Whether a program without a server URL uses a private Valkey (yes), or refuses (no), which is right in
            production.
        embedded_idle_timeout: Time that the private Valkey keeps running after its last user has left.
    """

    url: str | None = None
    dir: str | None = None
    namespace: Annotated[str, Meta(pattern="^[A-Za-z0-9_.:/@+-]{1,64}$")] = "hr"
    shards: int | str = 1
    code_version: Annotated[str, Meta(max_length=64)] = ""
    lease: Annotated[float, Meta(ge=0.2, le=3600)] = 15.0
    shutdown_timeout: Seconds = 25.0
    reload_timeout: PositiveSeconds = 300.0
    kill_timeout: Seconds = 10.0
    max_crashes: Annotated[int, Meta(ge=1, le=1000)] = 3
    result_ttl: Seconds = 3600.0
    failure_ttl: Seconds = 7 * 86400.0
    workflow_ttl: Seconds = 7 * 86400.0
    unstarted_workflow_ttl: PositiveSeconds = 30 * 86400.0
    max_finished: Natural = 100_000
    max_finished_bytes: Natural = 256 << 20
    max_payload: Positive = 1 << 20
    max_result: Positive = 4 << 20
    signing_keys: str = ""
    require_signature: bool = False
    encryption_keys: str = ""
    encrypt: bool = False
    timeout: PositiveSeconds = 10.0
    password_file: str | None = None
    credentials: Any = None
    max_connections: Positive = 32
    durability: Annotated[str, Meta(pattern="^(memory|fsync|replicated)$")] = "memory"
    replicas: Annotated[int, Meta(ge=1, le=100)] = 1
    request_id_ttl: PositiveSeconds = 86400.0
    allow_eviction: bool = False
    prefetch_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.005
    cache_entries: Positive = 4096
    cache_bytes: Annotated[int, Meta(ge=4096)] = 32 << 20
    cache_eviction: Annotated[str, Meta(pattern="^(fifo|second_chance)$")] = "fifo"
    cache_absent: bool = True
    cache_max_age: PositiveSeconds = 600.0
    cache_ttl: PositiveSeconds = 7 * 86400.0
    cache_heartbeat_timeout: PositiveSeconds = 5.0
    log: Annotated[str, Meta(pattern="^(text|json)$")] = "text"
    log_jobs: Annotated[str, Meta(pattern="^(none|failures|all)$")] = "failures"
    redact: str = (
        "password,passwd,passphrase,secret,token,api_key,apikey,authorization,credential,cookie,private_key,"
        "session_key,access_key,ssn,card_number,cvv"
    )
    traces: Annotated[str, Meta(pattern="^(off|auto|parent|link)$")] = "off"
    metrics: str | None = None
    stats: Annotated[str, Meta(pattern="^(direct|stream|amqp)$")] = "direct"
    stats_broker: str | None = None
    stats_jobs: bool = True
    stats_url: str | None = None
    stats_keep: str = "minute=2d hour=60d day=2y month=20y"
    stats_buffer: Natural = 10_000
    stats_flush_interval: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    stats_stream_max: Positive = 10_000
    stats_overflow: Annotated[str, Meta(pattern="^(block|drop_oldest)$")] = "block"
    stats_events: Annotated[float, Meta(ge=1)] = 7 * 86400.0
    preload: str = ""
    startup_profiling: bool = True
    embedded: Annotated[str, Meta(pattern="^(yes|no)$")] = "yes"
    embedded_idle_timeout: Seconds = 3.0

    def __post_init__(self) -> None:
        _check_keys("signing_keys", self.signing_keys)
        _check_keys("encryption_keys", self.encryption_keys)
        preload_names(self.preload)
        _check_credentials(self.credentials)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values: list[tuple[str, Any]] = [(name, getattr(self, name)) for name in self.__struct_fields__]
        # The text of a provider may hold the password.
        plain = (str, int, float, None.__class__)
        values = [(name, value if isinstance(value, plain) else type(value).__name__) for name, value in values]
        values = [(name, HIDDEN if name in KEYS and value else value) for name, value in values]
        return [(name, hidden_url(value) if name in SECRET and value else value) for name, value in values]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def environment_name(field: str) -> str:
    return f"HEADRACE_{field.upper()}"


# Settings elsewhere -> what to write here.
ELSEWHERE = {
    "broker": "url=",
    "broker_url": "url=",
    "redis_url": "url=",
    "backend": "nothing: results are kept on the same server, for result_ttl= seconds",
    "retries": '@app.task(retries=...) for a task, or task_defaults={"retries": ...} for all',
}


def load(environ: Mapping[str, str], **given: Any) -> Settings:
    """Settings of the environment, below what is given and not None. Raises SettingsError, which says what is right."""
    return resolve(environ, given, {})[0]


def chosen_settings(
    environ: Mapping[str, str], settings: Settings | None, given: Mapping[str, Any], defaults: Mapping[str, Any] | None
) -> tuple[Settings, dict[str, str]]:
    if settings is None:
        return resolve(environ, given, defaults or {})
    if defaults is not None:
        raise SettingsError("settings= has a value for each setting, so defaults= mean nothing: give one of them")
    if not isinstance(settings, Settings):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingsError(f"settings= takes Settings(...), not {type(settings).__name__}")
    whole = dict.fromkeys(Settings.__struct_fields__, "Headrace(settings=...)")
    changed, sources = settings_over(_usable(settings), given)
    return changed, whole | sources


def _usable(settings: Settings) -> Settings:
    given = {field: value for field, value in msgspec.structs.asdict(settings).items() if value is not None}
    for field, value in given.items():
        _checked(field, value, f"Settings({field}=...): {field}")
    read = msgspec.convert(given, Settings, strict=False)
    return settings if read == settings else read


def settings_over(settings: Settings, given: Mapping[str, Any]) -> tuple[Settings, dict[str, str]]:
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
            known = ELSEWHERE.get(unknown[0])
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


MOST_SHARDS = 128  # the digits of an id that name its shard hold no greater number


def shard_urls(url: str | None, settings: Settings) -> tuple[list[str | None], str]:
    """The URL of each shard: several are separated by spaces; one serves as many as ``?shards=`` or the setting says.
    And their number as it is written, such as ``12+4``. Raises SettingsError: it cannot be, or two are not the same.
    """
    urls: list[str | None] = list((url or "").split()) or [url]
    numbers = {str(settings.shards)} - {"1"}
    if len(urls) == 1:
        base, _, query = (url or "").partition("?")
        words = [word for word in query.split("&") if word]
        numbers |= {word[7:] for word in words if word.startswith("shards=")}
        rest = "&".join(word for word in words if not word.startswith("shards="))
        urls = [url and base + ("?" + rest if rest else "")]
    number = max(numbers, default=str(len(urls)))
    count = sum(map(int, number.split("+"))) if re.fullmatch(r"[1-9]\d{0,2}(\+[1-9]\d{0,2})*", number) else 0
    if len(numbers) > 1 or not 0 < count <= MOST_SHARDS or (len(urls) > 1 and len(urls) != count):
        numbers |= {str(len(urls))} if len(urls) > 1 else set()
        raise SettingsError(
            f"shards must be one number of 1 to {MOST_SHARDS}, or those at first and those added, as 12+4, in the "
            f"setting shards, behind ?shards= or as a URL for each; not {' and '.join(sorted(numbers))}"
        )
    return urls if len(urls) > 1 else urls * count, number


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
