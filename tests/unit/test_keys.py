"""Keys and ids: what may be named, and that the builders, the table and the scripts speak of the same keys."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot  # type: ignore[attr-defined]

from headrace.admin.keyspace import kind_of
from headrace.errors import OptionsError
from headrace.model import ids
from headrace.model.ids import (
    check_name,
    flow_id,
    is_flow,
    is_node,
    is_ordered,
    make_id,
    make_ids,
    milliseconds_of,
    node_id,
    ordered_id,
    shard_of,
)
from headrace.protocol.keys import Keys, documented, keys_of
from headrace.protocol.script_header import parse_header

CHANNELS = {"mail", "done"}


def builders() -> dict[str, str]:
    """What each builder of Keys makes, its argument in place."""
    made: dict[str, str] = {}
    for name, function in inspect.getmembers(Keys, inspect.isfunction):
        if not name.startswith("_"):
            (_, argument) = inspect.signature(function).parameters
            made[name] = getattr(Keys(), name)(f"<{argument}>").removeprefix(Keys().prefix)
    return made


def test_every_builder_is_in_the_table_or_a_channel() -> None:
    for name, pattern in builders().items():
        assert pattern in documented() or name in CHANNELS, name


def test_every_pattern_with_a_hole_has_a_builder_or_a_script_that_builds_it() -> None:
    derived: set[str] = set()
    for file in files("headrace").joinpath("scripts").iterdir():
        header = parse_header(file.read_text())
        derived |= {key.pattern for key in (*header.keys, *header.derives)}
    assert {pattern for pattern in documented() if "<" in pattern} <= set(builders().values()) | derived


def test_the_table_names_each_final_state() -> None:
    assert {name: documented()[name] for name in ids.FINAL} == dict.fromkeys(ids.FINAL, "zset")


def test_a_key_is_told_by_its_form() -> None:
    documents = documented()
    assert kind_of("scheduled", documents) == ("scheduled", "")
    assert kind_of("ready:a:b", documents) == ("ready", "a:b")
    assert kind_of("owners", documents) == ("owners", "")
    for alien in ("job:", "job", "nothing", "nothing:1", "owners:1", ""):
        assert kind_of(alien, documents) is None


def test_every_key_of_a_shard_shares_its_hash_tag() -> None:
    for key in (*(Keys("app", 7).prefix + p for p in documented()), Keys("app", 7).job("x")):
        assert key.startswith("{app:7}:")
    assert keys_of("app", 7) is keys_of("app", 7)


@pytest.mark.parametrize("name", ["a", "0", "_", "a" * 128, "mod.fn", "a/b:c@d+e-f", "Ünicode"[1:]])
def test_good_names(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    "name", ["", "a" * 129, "-a", ".a", ":a", "a b", "a\n", "ä", "a{b}", "a*", "a\x00", "a?", "[a]"]
)
def test_bad_names_are_told_what_would_be_good(name: str) -> None:
    with pytest.raises(OptionsError, match="1 to 128"):
        check_name("queue", name)


def test_a_namespace_is_checked() -> None:
    with pytest.raises(OptionsError, match="namespace"):
        Keys("a{b")


@given(milliseconds=st.integers(0, 5 * 2**40 - 1), bits=st.integers(0, 2**55 - 1), shard=st.integers(0, 127))
def test_an_id_tells_its_time_and_its_shard(milliseconds: int, bits: int, shard: int) -> None:
    id = make_id(milliseconds, bits, shard)
    assert len(id) == 21
    assert (milliseconds_of(id), shard_of(id)) == (milliseconds // 5 * 5, shard)


@given(shard=st.integers(0, 127), bits=st.integers(0, 2**55 - 1))
def test_an_id_says_that_its_job_is_ordered(shard: int, bits: int) -> None:
    plain = make_id(1_700_000_000_000, bits, shard)
    ordered = ordered_id(plain)
    assert (is_ordered(plain), is_ordered(ordered), ordered_id(ordered)) == (False, True, ordered)
    assert (shard_of(ordered), milliseconds_of(ordered)) == (shard, milliseconds_of(plain))
    assert not is_node(ordered)
    assert not is_flow(ordered)
    flow = flow_id(1_700_000_000_000, bits >> 20, shard)
    assert shard_of(flow) == shard_of(node_id(flow, 7)) == shard
    assert not is_ordered(flow)


@given(st.integers(0, 5 * 2**40 - 6), st.integers(0, 2**55 - 1), st.integers(0, 2**55 - 1))
def test_ids_sort_by_time(milliseconds: int, one: int, other: int) -> None:
    assert make_id(milliseconds, one) < make_id(milliseconds + 5, other)


@given(
    bits=st.one_of(st.integers(0, 2**55 - 1), st.integers(2**55 - 2000, 2**55 - 1)),
    count=st.integers(0, 1100),
    shard=st.integers(0, 511),
)
def test_many_ids_are_as_if_made_one_by_one(bits: int, count: int, shard: int) -> None:
    wanted = [make_id(1_700_000_000_000, (bits + n) % 2**55, shard) for n in range(count)]
    assert make_ids(1_700_000_000_000, bits, count, shard) == wanted
    assert len(set(wanted)) == count


@pytest.mark.parametrize("id", ["", "0" * 20, "0" * 22, "I" * 21, "0" * 20 + "\n", "0" * 20 + "u"])
def test_what_is_no_id_is_said_to_be_none(id: str) -> None:
    with pytest.raises(ValueError, match="not the id of a job"):
        shard_of(id)


def _on(keys: Sequence[Keys], nodes: int) -> Counter[int]:
    """How many of the shards each node has, of a cluster that shares its slots evenly."""
    return Counter(key_slot(one.prefix.encode()) * nodes >> 14 for one in keys)


@given(count=st.integers(1, 128), namespace=st.from_regex(r"[a-z][a-z0-9_.:/@+-]{0,20}", fullmatch=True))
def test_shards_of_a_cluster_are_even_on_each_number_of_nodes_that_divides_theirs(count: int, namespace: str) -> None:
    for number in {str(count), f"1+{count - 1}" if count > 1 else "1"}:
        keys = [Keys(namespace, shard, number, guarded=True) for shard in range(count)]
        assert keys[0].prefix == f"{{{namespace}:0}}:"
        assert len({one.prefix for one in keys}) == count
        for nodes in (n for n in range(1, count + 1) if count % n == 0):
            assert _on(keys, nodes) == dict.fromkeys(range(nodes), count // nodes)


@given(first=st.integers(2, 64), added=st.lists(st.integers(1, 16), min_size=1, max_size=4))
def test_shards_that_are_added_leave_the_first_and_are_even_by_themselves(first: int, added: list[int]) -> None:
    number, have = str(first), first
    old = [Keys(shard=shard, number=number, guarded=True).prefix for shard in range(first)]
    for more in added:
        number, have = f"{number}+{more}", have + more
        keys = [Keys(shard=shard, number=number, guarded=True) for shard in range(have)]
        assert [one.prefix for one in keys[:-more]] == old
        for nodes in (n for n in range(1, more + 1) if more % n == 0):
            assert _on(keys[-more:], nodes) == dict.fromkeys(range(nodes), more // nodes)
        old = [one.prefix for one in keys]


def test_shards_of_plain_servers_have_their_number_alone() -> None:
    assert [Keys(shard=shard, number="2+1").prefix for shard in range(3)] == ["{hr:0}:", "{hr:1}:", "{hr:2}:"]
