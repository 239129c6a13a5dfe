"""The included script ``ids``: it reads an id as model/ids.py does."""

from __future__ import annotations

import random

import redis

from headrace.model import ids
from tests.scripts.test_headers import SOURCES

LOOK = """
return {is_node(ARGV[1]) and 1 or 0, is_ordered(ARGV[1]) and 1 or 0, flow_of(ARGV[1]), node_of(ARGV[1], ARGV[2]),
  code_of(tonumber(ARGV[3])), number_of(ARGV[1])}
"""


def test_lua_and_python_read_ids_alike(client: redis.Redis) -> None:
    dice = random.Random(3)
    look = client.register_script(SOURCES["ids"] + LOOK)
    for _ in range(200):
        flow = ids.flow_id(dice.getrandbits(41), dice.getrandbits(35), dice.randrange(256))
        number, other = dice.randrange(1, ids.MOST_NODES), dice.randrange(ids.MOST_NODES)
        plain = ids.make_id(dice.getrandbits(41), dice.getrandbits(55), dice.randrange(256))
        for id in (flow, ids.node_id(flow, number), plain, ids.ordered_id(plain)):
            found = look(args=[id, ids.code_of(number), other])
            assert found[:2] == [ids.is_node(id), ids.is_ordered(id)], id
            assert found[4] == ids.code_of(other).encode()
            if ids.is_node(id):
                assert found[2:4] == [flow.encode(), ids.node_id(flow, number).encode()]
                assert found[5] == ids.number_of(id) == number
