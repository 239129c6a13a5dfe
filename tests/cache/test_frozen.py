"""What the cache hands out is shared: nobody can change it, and everybody can use it and copy it."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.cache.values import freeze
from headrace.errors import FrozenValue

PLAIN: dict[Any, Any] = {"a": [1, {"b": [2]}], 3: None, "c": b"x"}
DICT: list[Callable[[Any], Any]] = [
    lambda d: d.__setitem__("a", 1),
    lambda d: d.__delitem__("a"),
    lambda d: d.clear(),
    lambda d: d.pop("a"),
    lambda d: d.popitem(),
    lambda d: d.setdefault("z", 1),
    lambda d: d.update(z=1),
    lambda d: d.__ior__({"z": 1}),
    lambda d: d["a"].append(1),
    lambda d: d["a"][1]["b"].append(1),
]
LIST: list[Callable[[Any], Any]] = [
    lambda v: v.__setitem__(0, 1),
    lambda v: v.__setitem__(slice(0, 1), []),
    lambda v: v.__delitem__(0),
    lambda v: v.__iadd__([1]),
    lambda v: v.__imul__(2),
    lambda v: v.append(1),
    lambda v: v.clear(),
    lambda v: v.extend([1]),
    lambda v: v.insert(0, 1),
    lambda v: v.pop(),
    lambda v: v.remove(1),
    lambda v: v.reverse(),
    lambda v: v.sort(key=str),
]


@pytest.mark.parametrize("change", DICT)
def test_a_dict_refuses_each_change(change: Callable[[Any], Any]) -> None:
    value, _ = freeze(copy.deepcopy(PLAIN))
    with pytest.raises(FrozenValue, match="copy"):
        change(value)
    assert value == PLAIN


@pytest.mark.parametrize("change", LIST)
def test_a_list_refuses_each_change(change: Callable[[Any], Any]) -> None:
    value, _ = freeze([1, [2]])
    with pytest.raises(FrozenValue, match="copy"):
        change(value)
    assert value == [1, [2]]


def test_every_way_of_a_dict_or_list_to_change_is_refused() -> None:
    """A new Python version may bring another one."""
    reading = {"copy", "fromkeys", "get", "items", "keys", "values", "count", "index"}
    for value in freeze([{}])[0], freeze([{}])[0][0]:
        plain = {name for name in dir(type(value).__mro__[1]) if not name.startswith("_")} - reading
        assert plain <= {name for name in vars(type(value)) if not name.startswith("_")}


def test_it_is_a_dict_for_everybody_who_reads() -> None:
    value, _ = freeze(copy.deepcopy(PLAIN))
    assert isinstance(value, dict)
    assert isinstance(value["a"], list)
    assert {**value} == dict(value) == value | {} == PLAIN
    assert [*value["a"]] == value["a"] + [] == value["a"][:]
    text, _ = freeze({"a": [1]})
    assert json.dumps(text) == '{"a": [1]}'
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=dict[Any, Any], strict=False) == PLAIN


@pytest.mark.parametrize("how", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_a_deep_copy_is_plain_all_the_way_down(how: Callable[[Any], Any]) -> None:
    mine = how(freeze(copy.deepcopy(PLAIN))[0])
    assert type(mine) is dict
    mine["a"][1]["b"].append(3)
    mine["z"] = 1
    assert mine["a"] == [1, {"b": [2, 3]}]


@pytest.mark.parametrize("how", [copy.copy, dict, lambda v: v.copy()])
def test_a_shallow_copy_may_change_itself(how: Callable[[Any], Any]) -> None:
    value, _ = freeze({"a": 1})
    mine = how(value)
    mine["a"] = 2
    assert value == {"a": 1}
    mine = copy.copy(freeze([1])[0])
    mine.append(2)


def test_the_size_is_that_of_what_is_inside() -> None:
    for value in ([[1.5] * 100] * 10, {str(n): {"a": [1.5, 2.5]} for n in range(100)}, 1, "x" * 1000, {}, [""] * 50):
        data = msgspec.msgpack.encode(value)
        frozen, size = freeze(msgspec.msgpack.decode(data))
        assert 0.7 < (size + len(data)) / weight(frozen) < 3


def weight(value: Any) -> int:
    """Bytes of a value, each part on its own."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(map(weight, parts))
