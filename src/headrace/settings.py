"""All settings: one object gives the default, the environment name, the check and the help text.

Pure: :func:`load` reads the mapping that its caller gives, never the process environment by itself.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.errors import OptionsError

Duration = float | int | timedelta

#: Seconds of 100 years, the longest duration: microseconds of longer ones do not fit the server's numbers.
CENTURY = 3_155_760_000


def seconds(value: Duration, what: str, *, zero: bool = True) -> float:
    """A duration of the public API in seconds. Raises OptionsError: not a number or timedelta, negative, not finite,
    over a century, or zero where ``zero`` is false.
    """
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


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one program uses Headrace. Durations in seconds, sizes in bytes.

    Each field is also the environment variable ``HEADRACE_<FIELD>``.
    """

    url: Annotated[
        str | None, Meta(description="Server URL. Without one, Headrace starts a private Valkey for this project.")
    ] = None
    dir: Annotated[
        str | None,
        Meta(description="Directory of the private Valkey. Default: .headrace in the directory of the project."),
    ] = None
    namespace: Annotated[
        str, Meta(description="First part of every key in the server.", pattern=r"^[A-Za-z0-9_.:/@+-]{1,64}$")
    ] = "hr"
    shards: Annotated[
        int,
        Meta(
            description="Shards of the store, on one server or a cluster; fixed for its life. Several URLs with spaces "
            "between them are a shard each.",
            ge=1,
            le=128,
        ),
    ] = 1
    lease: Annotated[
        float,
        Meta(
            description="Time without a heartbeat after which other workers take over a worker's jobs.", ge=0.2, le=3600
        ),
    ] = 15.0
    shutdown_timeout: Annotated[
        float, Meta(description="Time that running jobs get to finish when a worker stops.", ge=0)
    ] = 25.0
    reload_timeout: Annotated[
        float,
        Meta(description="Maximum time for reloaded code to become ready; otherwise the old code keeps running.", gt=0),
    ] = 300.0
    kill_timeout: Annotated[
        float, Meta(description="Time from the soft limit or a cancellation until the runner is killed.", ge=0)
    ] = 10.0
    max_crashes: Annotated[
        int, Meta(description="Number of crashes after which a job is quarantined.", ge=1, le=1000)
    ] = 3
    result_ttl: Annotated[
        float, Meta(description="Time that a succeeded job and its result stay on the server.", ge=0)
    ] = 3600.0
    failure_ttl: Annotated[
        float, Meta(description="Time that a failed, cancelled or quarantined job stays on the server.", ge=0)
    ] = 7 * 86400.0
    workflow_ttl: Annotated[
        float, Meta(description="Time that a workflow stays on the server after its end.", ge=0)
    ] = 7 * 86400.0
    unstarted_workflow_ttl: Annotated[
        float, Meta(description="Time after which a workflow that was never started is removed.", gt=0)
    ] = 30 * 86400.0
    max_finished: Annotated[
        int,
        Meta(description="Maximum number of finished jobs; above it, those that expire soonest are removed.", ge=0),
    ] = 100_000
    max_finished_bytes: Annotated[
        int,
        Meta(
            description="Maximum size of all results and errors; above it, the jobs that expire soonest are removed.",
            ge=0,
        ),
    ] = 256 << 20
    max_payload: Annotated[int, Meta(description="Maximum size of one job's arguments.", ge=1)] = 1 << 20
    max_result: Annotated[int, Meta(description="Maximum size of one job's result.", ge=1)] = 4 << 20
    signing_keys: Annotated[
        str,
        Meta(description="Keys that sign jobs, with spaces between them: the first signs, each of them verifies."),
    ] = ""
    require_signature: Annotated[
        bool, Meta(description="Workers quarantine jobs that none of the signing keys has signed.")
    ] = False
    encryption_keys: Annotated[
        str,
        Meta(description="Keys that encrypt values, with spaces between them: the first encrypts, each of them reads."),
    ] = ""
    encrypt: Annotated[bool, Meta(description="Encrypt arguments, results and error texts of all tasks.")] = False
    timeout: Annotated[float, Meta(description="Time that a call keeps trying to reach the server.", gt=0)] = 10.0
    password_file: Annotated[
        str | None, Meta(description="File that holds the server's password; each connection reads it anew.")
    ] = None
    credentials: Annotated[
        Any,
        Meta(
            description="module:function that gives user and password to each connection, or a credentials provider of "
            "redis-py."
        ),
    ] = None
    max_connections: Annotated[
        int,
        Meta(
            description="Maximum number of connections that the threads of a process, or one event loop, open for "
            "calls; further calls wait, at most for the timeout.",
            ge=1,
        ),
    ] = 32
    durability: Annotated[
        str,
        Meta(
            description="What has new work before a call returns: memory (the server's), fsync (its disk too) or "
            "replicated.",
            pattern="^(memory|fsync|replicated)$",
        ),
    ] = "memory"
    replicas: Annotated[
        int, Meta(description="Number of replicas that have new work with durability=replicated.", ge=1, le=100)
    ] = 1
    request_id_ttl: Annotated[float, Meta(description="Time during which a request id makes only one job.", gt=0)] = (
        86400.0
    )
    allow_eviction: Annotated[bool, Meta(description="Accept a server that may drop keys under memory pressure.")] = (
        False
    )
    prefetch_seconds: Annotated[
        float,
        Meta(
            description="Seconds of work that a worker sends to a busy runner in advance; 0 sends one job at a time.",
            ge=0,
            le=1,
        ),
    ] = 0.005
    cache_entries: Annotated[int, Meta(description="Maximum number of cached values in one process.", ge=1)] = 4096
    cache_bytes: Annotated[int, Meta(description="Maximum memory of cached values in one process.", ge=4096)] = 32 << 20
    cache_eviction: Annotated[
        str, Meta(description="How a full cache chooses the value to remove: fifo or sieve.", pattern="^(fifo|sieve)$")
    ] = "fifo"
    cache_absent: Annotated[bool, Meta(description="Cache in the process that a name has no value.")] = True
    cache_max_age: Annotated[
        float, Meta(description="Time after which a process reads a cached value again from the server.", gt=0)
    ] = 600.0
    cache_ttl: Annotated[
        float, Meta(description="Time that a cached value stays on the server, unless set gives one.", gt=0)
    ] = 7 * 86400.0
    cache_heartbeat_timeout: Annotated[
        float,
        Meta(
            description="Time without an answer from a remote server after which a process drops its cached values.",
            gt=0,
        ),
    ] = 5.0
    log: Annotated[str, Meta(description="Log format: text or json.", pattern="^(text|json)$")] = "text"
    log_jobs: Annotated[
        str,
        Meta(description="Which starts a worker logs: none, failures or all.", pattern="^(none|failures|all)$"),
    ] = "failures"
    redact: Annotated[
        str,
        Meta(description='Parts of names whose values are hidden in logs, by commands and on pages; "" hides none.'),
    ] = (
        "password,passwd,passphrase,secret,token,api_key,apikey,authorization,credential,cookie,private_key,"
        "session_key,access_key,ssn,card_number,cvv"
    )
    traces: Annotated[
        str,
        Meta(
            description="Traces of OpenTelemetry: off, auto, parent (jobs are children of their senders) or link.",
            pattern="^(off|auto|parent|link)$",
        ),
    ] = "off"
    metrics: Annotated[
        str | None,
        Meta(description="Address where a worker serves metrics and probes, such as 127.0.0.1:9464. Default: nowhere."),
    ] = None
    stats: Annotated[
        str,
        Meta(
            description="Where counts are sent: direct to the server, or to stream or amqp for headrace stats consume.",
            pattern="^(direct|stream|amqp)$",
        ),
    ] = "direct"
    stats_broker: Annotated[
        str | None, Meta(description="URL of the RabbitMQ broker for stats=amqp, such as amqp://host.")
    ] = None
    stats_jobs: Annotated[bool, Meta(description="Workers count the outcomes of their jobs.")] = True
    stats_url: Annotated[str | None, Meta(description="Server of the statistics. Default: the same server.")] = None
    stats_keep: Annotated[str, Meta(description="Time that each resolution of the statistics is kept.")] = (
        "minute=2d hour=60d day=2y month=20y"
    )
    stats_buffer: Annotated[
        int,
        Meta(
            description="Number of counts that a process merges before it sends them; 0 sends each count at once.", ge=0
        ),
    ] = 10_000
    stats_flush_interval: Annotated[
        float, Meta(description="Maximum time that a count waits in the process before it is sent.", gt=0, le=3600)
    ] = 1.0
    stats_stream_max: Annotated[int, Meta(description="Maximum number of batches that wait for a consumer.", ge=1)] = (
        10_000
    )
    stats_overflow: Annotated[
        str,
        Meta(
            description="What a process does when the stream is full: block (merge on, then wait) or drop_oldest.",
            pattern="^(block|drop_oldest)$",
        ),
    ] = "block"
    stats_events: Annotated[float, Meta(description="Time that an event of the statistics is kept.", ge=1)] = (
        7 * 86400.0
    )
    preload: Annotated[str, Meta(description="Modules to import and module:functions to call before workers fork.")] = (
        ""
    )
    startup_profiling: Annotated[
        bool, Meta(description="Workers measure which set-up every runner repeats after its fork, and report it.")
    ] = True
    embedded: Annotated[
        str,
        Meta(
            description="Whether a program without a server URL uses a private Valkey (yes), or refuses (no), which is "
            "right in production.",
            pattern="^(yes|no)$",
        ),
    ] = "yes"
    embedded_idle_timeout: Annotated[
        float, Meta(description="Time that the private Valkey keeps running after its last user has left.", ge=0)
    ] = 3.0

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
