"""Arguments in which some values are to come: encoded with slots, checked as far as known, filled later."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ArgumentError, CorruptRecord, PayloadTooLarge, WorkflowError
from headrace.model import codec
from headrace.model.job_record import Slotted, fill
from headrace.model.signature import Signature, Unchecked
from headrace.model.type_registry import Types

LIMIT = 1 << 20


class Later:
    """Stands for the output of parent ``n``."""

    def __init__(self, n: int) -> None:
        self.n = n


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    id: object
    lines: list[object]


class Parcel(msgspec.Struct):
    content: object


@pytest.fixture
def slots() -> Slotted:
    return Slotted(lambda value: value.n if isinstance(value, Later) else None)


def outputs(*values: object) -> list[bytes]:
    return [codec.encode(value, LIMIT, "output") for value in values]


def test_what_is_to_come_is_found_at_any_depth(slots: Slotted) -> None:
    value = [Later(0), {"a": (1, Later(1))}, Order(Later(2), [Later(0)]), Parcel({"x": [Later(1)]}), Colour.RED]
    data = slots.encode([value, {}], LIMIT, "arguments")
    assert slots.met == 5
    filled = codec.decode(fill(data, outputs("zero", [1], None)))
    assert filled == [
        ["zero", {"a": [1, [1]]}, {"id": None, "lines": ["zero"]}, {"content": {"x": [[1]]}}, "red"],
        {},
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.lists(values, min_size=1, max_size=5), st.data())
def test_a_filled_argument_is_what_its_parent_returned(returned: list[Any], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(returned) - 1), max_size=8))
    slots = Slotted(lambda value: value.n if isinstance(value, Later) else None)
    packed = slots.encode([[Later(n) for n in order], {"plain": returned}], LIMIT, "arguments")
    positions, keywords = codec.decode(fill(packed, outputs(*returned)))
    assert positions == [returned[n] for n in order]
    assert keywords == {"plain": returned}


@pytest.mark.parametrize("position", [0, 1, 255, 256, 65_535, 65_536, 99_999])
def test_a_position_takes_one_to_four_bytes(slots: Slotted, position: int) -> None:
    data = slots.encode([[Later(position)], {}], LIMIT, "arguments")
    assert len(data) <= 3 + 6
    filled = fill(data, [b"\xc0"] * position + outputs("me"))
    assert codec.decode(filled) == [["me"], {}]


def test_a_parent_without_an_output_gives_none(slots: Slotted) -> None:
    assert codec.decode(fill(slots.encode([[Later(0)], {}], LIMIT, "arguments"), [b""])) == [[None], {}]


def test_what_is_known_passes_unchanged(slots: Slotted) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    data = slots.encode([[moment, 2**64 - 1, -(2**63), 0.1, b"\x00", Later(0)], {}], LIMIT, "arguments")
    plain = codec.encode([[moment, 2**64 - 1, -(2**63), 0.1, b"\x00", "x"], {}], LIMIT, "arguments")
    assert fill(data, outputs("x")) == plain


def test_a_key_of_a_dictionary_cannot_be_filled(slots: Slotted) -> None:
    with pytest.raises(ArgumentError, match="arguments: a node cannot be the key of a dictionary"):
        slots.encode([{Later(0): 1}], LIMIT, "arguments")


def test_what_cannot_be_sent_or_is_too_large_is_refused_as_ever(slots: Slotted) -> None:
    with pytest.raises(ArgumentError, match=r"cannot be sent \(builtins.object\)"):
        slots.encode([Later(0), object()], LIMIT, "arguments")
    with pytest.raises(PayloadTooLarge):
        slots.encode(["x" * 100, Later(0)], 50, "arguments")


def test_an_error_about_a_node_is_told_as_it_is() -> None:
    def refuse(value: object) -> int | None:
        raise WorkflowError("of another")

    with pytest.raises(WorkflowError):
        Slotted(refuse).encode([Later(0)], LIMIT, "arguments")


@pytest.mark.parametrize(
    ("data", "given"),
    [(b"\x92\x90", []), (b"\x91\xc1", []), (b"\x92\x91\xd4\x07\x01\x80", [b"\x01"])],
    ids=["cut", "alien", "fewer parents than slots"],
)
def test_what_no_definition_wrote_is_told_from_an_argument_that_does_not_fit(data: bytes, given: list[bytes]) -> None:
    with pytest.raises(CorruptRecord):
        fill(data, given)


def resize(image: bytes, sizes: list[int], *, quality: int = 3) -> None: ...


def test_an_argument_with_a_slot_is_checked_once_it_is_filled_and_the_others_at_once(slots: Slotted) -> None:
    signature = Signature("resize", resize, Types())
    assert signature.pack_open((Later(0), [1]), {"quality": Later(1)}, LIMIT, slots)
    assert signature.pack_open((b"x", [1, Later(0)]), {}, LIMIT, slots)
    for args, kwargs, message in [
        ((Later(0), ["a"]), {}, r"argument 'sizes' of resize: expected int, got str at sizes\[0\]"),
        ((Later(0), [1]), {"quality": "high"}, "argument 'quality' of resize: expected int, got str"),
        ((Later(0),), {}, "resize is missing its argument 'sizes'"),
        ((Later(0), [], 3), {}, "takes at most 2 arguments by position"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            signature.pack_open(args, kwargs, LIMIT, slots)
    data = signature.pack_open((Later(0), [1]), {}, LIMIT, slots)
    with pytest.raises(ArgumentError, match="argument 'image' of resize: expected bytes, got int"):
        signature.unpack(fill(data, outputs(7)))


def test_by_keyword_and_by_position_are_one_call(slots: Slotted) -> None:
    signature = Signature("resize", resize, Types())
    by_name = signature.pack_open((), {"sizes": [1], "image": Later(0)}, LIMIT, slots)
    assert by_name == signature.pack_open((Later(0), [1]), {}, LIMIT, slots)


def test_the_arguments_of_an_unknown_task_have_slots_too(slots: Slotted) -> None:
    data = Unchecked("elsewhere", Types()).pack_open((Later(0),), {"x": [Later(0)]}, LIMIT, slots)
    assert codec.decode(fill(data, outputs(5))) == [[5], {"x": [5]}]


@pytest.mark.parametrize(
    ("name", "count", "accepted"),
    [("quality", 0, True), ("image", 0, True), ("image", 1, False), ("sizes", 1, True), ("other", 0, False)],
)
def test_what_is_shared_goes_to_those_who_take_it(name: str, count: int, accepted: bool) -> None:
    assert Signature("resize", resize, Types()).accepts(name, count) is accepted
    assert not Unchecked("elsewhere", Types()).accepts(name, count)


def test_a_function_of_any_keywords_takes_all_that_is_shared() -> None:
    def anything(first: int, /, **more: int) -> None: ...

    signature = Signature("anything", anything, Types())
    assert signature.accepts("quality", 1)
    assert not signature.accepts("first", 0), "it can only be given by position"
