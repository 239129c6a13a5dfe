"""Dictionaries whose keys are records: what reads without annotations cannot read them, so that none is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace import Flow, Headrace
from headrace.errors import ArgumentError, CorruptRecord

REFUSED = "a record cannot be the key of a dictionary: send a list of pairs"
app = Headrace("redis://localhost:1/0")


class Place(msgspec.Struct, frozen=True):
    x: int


class Pair(msgspec.Struct, frozen=True, array_like=True):
    x: int


@dataclass(frozen=True)
class Spot:
    x: int


@app.task(name="tasks.typed")
def typed(n: int = 0, by: dict[Place, int] | None = None, deep: list[dict[Spot, int]] | None = None) -> None: ...


@app.task(name="tasks.untyped")
def untyped(by: dict) -> None: ...  # type: ignore[type-arg]  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]


@app.task(name="tasks.array")
def array(*, by: dict[Pair, int]) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"by": {Place(1): 2}}, "argument 'by' of tasks.typed: "),
        ({"n": 1, "by": {Place(1): 2}}, "argument 'by' of tasks.typed: "),
        ({"deep": [{}, {Spot(1): 2}]}, r"argument 'deep' of tasks.typed at deep\[1\]: "),
    ],
)
def test_a_record_as_a_key_is_refused_at_the_call(arguments: dict[str, Any], where: str) -> None:
    """By name a worker could not read it, and quarantined the job."""
    with pytest.raises(ArgumentError, match=f"^{where}{REFUSED}"):
        typed.job(**arguments)


@pytest.mark.parametrize("record", [Place(1), Spot(1)])
def test_where_no_annotation_tells_of_it_too(record: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^the arguments of tasks.untyped cannot be sent: {REFUSED}"):
        untyped.job({record: 2})


def test_a_node_that_has_one_is_refused_where_it_is_defined() -> None:
    @app.workflow
    def flow_of_places(flow: Flow) -> None:
        flow.run(typed, flow.run(untyped, {}), {Place(1): 2})

    with pytest.raises(ArgumentError, match=REFUSED):
        flow_of_places.graph()


def test_a_record_that_travels_as_an_array_may_be_a_key() -> None:
    assert array.unpack(array.job(by={Pair(1): 2}).args) == ((), {"by": {Pair(1): 2}})


def test_one_that_another_program_stored_is_told_as_what_it_is() -> None:
    data = app.by_name("tasks.elsewhere").job({Place(1): 2}).args
    with pytest.raises(CorruptRecord, match=REFUSED):
        untyped.unpack(data)
