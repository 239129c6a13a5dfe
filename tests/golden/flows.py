"""Workflows without index rows: in Headrace's own form, and in forms that lack fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from headrace.model.form import Form
from headrace.model.ids import flow_id
from headrace.model.workflow import Graph, NewNode
from headrace.protocol import graph
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call

MADE = 1_735_689_600_000_000
"""Microseconds: when the first of them was made."""


def run(client: Any, call: Call[Any]) -> Any:
    client.execute_command("SCRIPT", "LOAD", call.script.text)
    return call.parse(client.execute_command(*call.command()))


def make(client: Any, count: int, definition: str = "shop.order", ttl: int = -1, apart: int = 7) -> list[str]:
    """Pending workflows of two nodes, ``apart`` microseconds one after the other; their ids, whose dice run backwards.

    So order by id, or by the walk over the keyspace, is not order by creation.
    """
    keys, ids = Keys(), list[str]()
    node = NewNode(Form("tasks.add"), b"\x92\x91\x01\x80", children=((2, "stop"),))
    nodes = (node, NewNode(Form("tasks.add"), b"\x92\x91\x01\x80", parents=(1,)))
    for n in range(count):
        now = MADE + n * apart
        ids.append(flow_id(now // 1000, (1 << 35) - 1 - n * 997 - crc32(definition.encode())))
        call = graph.create(keys, ids[-1], Graph(definition, nodes, ttl=ttl)).at(now)
        assert run(client, call).word == "ok"
    return ids


def forget(client: Any, ids: Sequence[str] = (), fields: Sequence[str] = ()) -> None:
    """Take the indexes away, and fields of some records: a store of schema 1."""
    keys = Keys()
    for key in client.scan_iter(match=f"{keys.prefix}flows:*"):
        client.delete(key)
    for id in ids:
        client.hdel(keys.flow(id), *fields)
    client.set(keys("schema"), 1)


def views(client: Any) -> dict[str, list[tuple[str, int]]]:
    """Every index of workflows, in its order."""
    prefix = Keys().prefix
    return {
        key.decode().removeprefix(f"{prefix}flows:"): [
            (id.decode(), int(score)) for id, score in client.zrange(key, 0, -1, withscores=True)
        ]
        for key in client.scan_iter(match=f"{prefix}flows:*")
    }
