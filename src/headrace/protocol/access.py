"""What each kind of program may do on the server, as access rules made from the headers of the scripts that it calls.

A server checks each command of a script against the user who calls it, so a user who may run a script needs the
commands and keys that the script names, and no others.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from headrace.protocol.durability import Durability
from headrace.protocol.keys import Keys
from headrace.protocol.script import Script, load
from headrace.protocol.script_header import Key

Role = Literal["producer", "worker", "dashboard", "relay"]
ROLES: tuple[Role, ...] = get_args(Role)

_COMMAND = re.compile(r"redis\.p?call\('([A-Z]+)'")
# Each connection, before its first script.
_ALWAYS = (
    "auth", "hello", "client|setname", "select", "ping", "info", "evalsha", "script|load", "cluster|slots",
    "cluster|myid", "exists",
)  # fmt: skip
_LISTENS = ("subscribe", "unsubscribe")
_PLAIN: dict[Role, tuple[str, ...]] = {
    "producer": (),
    "relay": (),
    "dashboard": _LISTENS,
    # It sleeps on wake-up keys, and has the server tell it of cached values.
    "worker": (*_LISTENS, "bzpopmin", "client|id", "client|unblock", "client|tracking", "get"),
}
_SCRIPTS: dict[Role, str] = {
    "producer": "enqueue greet",
    "relay": "enqueue enqueue_ordered enqueue_unique broadcast flow_create flow_start greet",
    "dashboard": """
        greet server_info overview load page walk why told watches causes_read read watch logs paused pause resume purge
        command cancel rerun delete move tell own_store bulk_count
        enqueue enqueue_ordered enqueue_unique stacks_tell stacks_read limit_read limit_change limit_delete
        schedule_read schedule_counts schedule_walk schedule_pause schedule_resume schedule_run schedule_delete
        flow_read flow_page flow_count flow_watch flow_start flow_stop flow_cancel flow_retry flow_expire
        flow_delete stats_read stats_children stats_peek stats_look cache_list
    """,
    "worker": """
        greet register limit_declare renew reclaim retire promote sweep unpark note claim settle holds restore
        resume_due sample lapse tend reserve graft outputs refill fire schedule_declare schedule_read schedule_counts
        enqueue enqueue_ordered enqueue_unique broadcast cancel rerun read watch logs paused overview load server_info
        bulk_piece own_store own_calls alarm_note watches told tell stacks_read limit_read limit_hold limit_keep
        limit_release limit_take flow_create flow_start flow_stop flow_cancel flow_read flow_count flow_watch
        cache_get cache_set cache_lease cache_release cache_probe cache_delete cache_drop
        stats_add stats_send stats_peek stats_consume stats_take stats_read stats_children stats_event stats_look
    """,
}


def scripts_of(role: Role) -> list[str]:
    return sorted(set(_SCRIPTS[role].split()))


def commands_of(script: Script) -> set[str]:
    return {command.lower() for command in _COMMAND.findall(script.text)}


def patterns_of(script: Script, prefix: str) -> tuple[set[str], set[str]]:
    def pattern(key: Key) -> str:
        return prefix + key.constant + ("*" if key.hole else "")

    header = script.header
    return {pattern(key) for key in (*header.keys, *header.derives)}, {pattern(key) for key in header.channels}


def access_rules(role: Role, keys: Keys, wanted: Durability) -> list[str]:
    """The rules of a user who can do what a role does, and no more, as ACL SETUSER takes them.

    A producer writes records of jobs and reads none: it cannot see one argument. It can enqueue jobs without an order
    or a unique name only; those of a relay read the jobs that came before. Servers before Redis 7 know no such rule.
    """
    commands, patterns, channels = {*_ALWAYS, *_PLAIN[role]}, {keys("schema"), keys("void")}, set[str]()
    for script in map(load, scripts_of(role)):
        commands |= commands_of(script)
        touched, told = patterns_of(script, keys.prefix)
        patterns |= touched
        channels |= told
    if "subscribe" in commands:
        channels |= {keys.done("*"), keys.mail("*")}
    if wanted:
        commands |= {"set", *(["waitaof"] if wanted.fsync else []), *(["wait"] if wanted.replicas else [])}
        patterns.add(keys.mark("*"))
    job = keys.job("*")
    shown = [f"%W~{one}" if one == job and role == "producer" else f"~{one}" for one in sorted(patterns)]
    return [
        "resetkeys", "resetchannels", "-@all", *(f"+{command}" for command in sorted(commands)),
        *shown, *(f"&{channel}" for channel in sorted(channels)),
    ]  # fmt: skip
