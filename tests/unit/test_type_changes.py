from __future__ import annotations

import collections
import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field, PrivateAttr

from headrace import Flow, Headrace, Task
from headrace.errors import ArgumentError, ResultMismatch

app = Headrace("redis://localhost:1/0")


@dataclass
class Box:
    width: int


@dataclass
class Crate(Box):
    lid: bool = True


class Note(msgspec.Struct):
    text: str


class Letter(Note):
    to: str = ""


class Model(BaseModel):
    box: Box
    next: Model | None = None


class Further(Model):
    more: int = 0


@dataclass
class Chain:
    box: Box
    next: Chain | None = None


@app.task(name="tasks.bare")
def bare() -> None: ...


def sent(task: Task[..., Any, Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return task.unpack(task.job(*args, **kwargs).args)


def test_a_result_that_breaks_its_annotation_is_refused_where_it_is_made() -> None:
    for value in ("x", {"a": {"width": "w"}}, None, [Box(1)]):
        with pytest.raises(ResultMismatch, match=r"what tasks.mine returned does not fit .*annotation: expected "):
            mine.pack_result(value)
    with pytest.raises(ResultMismatch, match=r"expected int, got str at result\[...\].width"):
        mine.pack_result({"a": {"width": "w"}})
    with pytest.raises(ResultMismatch, match="expected null, got int"):
        bare.pack_result(1)
    assert msgspec.msgpack.decode(loose_result.pack_result((1, 2))) == [1, 2]


@pytest.mark.parametrize("value", [(1, 2), [date(2030, 1, 1)], {"a": {1}}, UUID(int=1), Box(1)])
def test_a_result_without_an_annotation_keeps_its_type_or_is_refused(value: Any) -> None:
    with pytest.raises(ResultMismatch, match=r"what tasks.unannotated returned.* would come back as .*; annotate what"):
        unannotated.pack_result(value)
    loose_result.pack_result(value)
    unannotated.pack_result([1, {"a": 2.5}, None, "x", b"y", True])


class Kept(BaseModel):
    name: str
    hidden: int = Field(default=0, exclude=True)
    inner: list[Kept] = []


class Counted(BaseModel):
    name: float
    _count: int = PrivateAttr(default=0)


@app.task(name="tasks.models")
def models(kept: Kept | None = None, counted: Counted | None = None) -> None: ...


def test_a_model_that_does_not_arrive_equal_is_refused_with_the_reason() -> None:
    with pytest.raises(ArgumentError, match=r"'kept' of tasks.models: Kept would not arrive equal at kept.hidden: the"):
        models.job(Kept(name="a", hidden=3))
    with pytest.raises(ArgumentError, match=r"Kept would not arrive equal at kept.*inner"):
        models.job(Kept(name="a", inner=[Kept(name="b", hidden=3)]))
    counted = Counted(name=1)
    models.job(Kept(name="a"), counted)
    models.job(counted=Counted(name=float("nan")))
    counted._count = 2
    with pytest.raises(ArgumentError, match=r"Counted would not arrive equal at counted._count"):
        models.job(counted=counted)


@app.task(name="tasks.mine")
def mine() -> dict[str, Box]: ...


@app.task(name="tasks.unannotated")
def unannotated(
    x: Any,
    *rest: Any,
    y: object = None,
    z: list[Any] | None = None,
    typed: tuple[UUID, ...] = (),
    **more: Any,
) -> Any: ...


@app.task(name="tasks.loose_result", loose=True)
def loose_result() -> Any: ...


@app.task(name="tasks.loose", loose=True)
def loose(x: Any) -> None: ...


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int


CHANGING: list[tuple[object, str, str]] = [
    (UUID(int=1), "UUID would arrive as str", "UUID"),
    (Decimal("1.5"), "Decimal would arrive as str", "Decimal"),
    (datetime(2030, 1, 1), "datetime would arrive as str", "datetime"),  # noqa: DTZ001 - it is what is refused
    (date(2030, 1, 1), "date would arrive as str", "date"),
    (timedelta(seconds=1), "timedelta would arrive as str", "timedelta"),
    (Colour.RED, "Colour would arrive as str", "Colour"),
    (Level.LOW, "Level would arrive as int", "Level"),
    ((1, 2), "tuple would arrive as list", r"tuple\[...\]"),
    ({1}, "set would arrive as list", r"set\[...\]"),
    (frozenset({1}), "frozenset would arrive as list", r"frozenset\[...\]"),
    (bytearray(b"x"), "bytearray would arrive as bytes", "bytearray"),
    (Point(1), "Point would arrive as list", "Point"),
    (Box(1), "Box would arrive as dict", "Box"),
]


@pytest.mark.parametrize(("value", "fault", "annotation"), CHANGING, ids=[type(one[0]).__name__ for one in CHANGING])
def test_an_argument_without_an_annotation_keeps_its_type_or_is_refused(
    value: Any, fault: str, annotation: str
) -> None:
    advice = rf"; annotate it in the task, {{}}: {annotation}, or let it with @app.task\(loose=True\)"
    for name, call in (("x", ((value,), {})), ("rest", ((1, value), {})), ("y", ((1,), {"y": value}))):
        with pytest.raises(
            ArgumentError, match=f"argument '{name}' of tasks.unannotated: {fault}{advice.format(name)}"
        ):
            unannotated.job(*call[0], **call[1])
    with pytest.raises(ArgumentError, match=f"argument 'more' of tasks.unannotated: {fault}"):
        unannotated.job(1, other=value)
    inside = rf"{fault} at x\[1\]\['a'\]; annotate it in the task, x: list\[dict\[str, {annotation}\]\], or"
    with pytest.raises(ArgumentError, match=inside):
        unannotated.job([1, {"b": 2, "a": value}])
    with pytest.raises(ArgumentError, match=rf"argument 'z' of tasks.unannotated: {fault} at z\[0\]"):
        unannotated.job(1, z=[value])
    assert loose.job(value).args


@app.task(name="tasks.inner")
def inner(pair: tuple = (), some: set = frozenset(), mixed: tuple[UUID, Any] | None = None) -> None: ...  # type: ignore[type-arg, assignment]


def test_what_a_bare_tuple_or_set_holds_keeps_its_type_or_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'pair' of tasks.inner: UUID would arrive as str at pair\[1\]; "):
        inner.job((1, UUID(int=1)))
    with pytest.raises(
        ArgumentError, match=r"tuple would arrive as list at pair\[0\]; .* tuple\[tuple\[...\], ...\], or"
    ):
        inner.job(((),))
    with pytest.raises(ArgumentError, match=r"UUID would arrive as str at some in it; .* some: set\[UUID\], or"):
        inner.job((), {1, UUID(int=1)})
    with pytest.raises(ArgumentError, match=r"Level would arrive as int at some in it"):
        inner.job((), {Level.LOW})
    with pytest.raises(ArgumentError, match=r"Box would arrive as dict at mixed\[1\]"):
        inner.job((), mixed=(UUID(int=1), Box(1)))
    values = ((1, "a", b"b", [2], {"c": 3}, None), {1, "a", (1, 2)}, (UUID(int=1), [1]))
    assert sent(inner, *values) == (values, {})
    # A list is what a stored tuple or set is, where it is sent again.
    listed: Any = ([1, "a"], [1, "a"], [str(UUID(int=1)), {"a": 1}])
    assert sent(inner, *listed) == (((1, "a"), {1, "a"}, (UUID(int=1), {"a": 1})), {})


@app.task(name="tasks.records")
def records(
    box: Box | None = None,
    boxes: tuple[dict[str, Box], ...] = (),
    note: Note | None = None,
    model: Model | None = None,
    *chains: Chain,
    **more: list[Box],
) -> None: ...


@app.task(name="tasks.lets", loose=True)
def lets(box: Box) -> None: ...


def test_a_record_of_a_class_that_extends_the_annotated_one_is_refused() -> None:
    """It would arrive without what it adds, and nothing would tell."""
    crate, fault = Crate(1), "Crate would arrive as Box{}, without what it adds; annotate it as Crate, or let it with"
    deep = Model(box=Box(1), next=Model(box=crate))
    for call, path in (
        ({"box": crate}, ""),
        ({"boxes": ({"a": Box(1)}, {"b": Box(1), "c": crate})}, r" at boxes\[1\]\['c'\]"),
        ({"model": deep}, " at model.next.box"),
        ({"other": [Box(1), crate]}, r" at more\[1\]"),
    ):
        with pytest.raises(ArgumentError, match=fault.format(path)):
            records.job(**call)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=fault.format(" at chains.next.box")):
        records.job(None, (), None, None, Chain(Box(1), Chain(crate)))
    with pytest.raises(ArgumentError, match="Letter would arrive as Note, without what it adds"):
        records.job(note=Letter("a", "b"))
    with pytest.raises(ArgumentError, match="Further would arrive as Model, without what it adds"):
        records.job(model=Further(box=Box(1)))
    assert sent(lets, crate) == ((Box(1),), {})


def test_what_becomes_of_a_class_that_was_added_says_the_application() -> None:
    own = Headrace("redis://localhost:1/0")
    own.types.add(Model, lambda model: model.box.width, lambda width: Model(box=Box(width)))

    @own.task(name="tasks.added")
    def added(model: Model, models: list[Model]) -> None: ...

    further = Further(box=Box(1))
    assert sent(added, further, [further]) == ((Model(box=Box(1)), [Model(box=Box(1))]), {})


def test_records_of_the_annotated_classes_arrive_however_deep_they_are() -> None:
    model, chain = Model(box=Box(1), next=Model(box=Box(2))), Chain(Box(0))
    for n in range(200):
        chain = Chain(Box(n), chain)
    values = (Box(1), ({"a": Box(1)},), Note("n"), model, chain, Chain(Box(3)))
    assert sent(records, *values, other=[Box(4)]) == (values, {"other": [Box(4)]})
    plain: Any = {"width": 3, "lid": False}
    assert sent(records, plain) == ((Box(3),), {})


def test_what_keeps_its_type_needs_no_annotation() -> None:
    values = [None, True, 1, 1.5, "s", b"b", [1, [2]], {"a": {1: "x"}}, datetime(2030, 1, 1, tzinfo=UTC)]
    assert sent(unannotated, values, *values, y=values, typed=(UUID(int=1),), more=values)
    kinds = (collections.OrderedDict(a=1), collections.defaultdict(int, a=1), collections.Counter("a"))
    assert sent(unannotated, *kinds) == (({"a": 1}, {"a": 1}, {"a": 1}), {})


def test_a_key_that_changes_its_type_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"UUID would arrive as str at x as a key; .* x: dict\[UUID, ...\]"):
        unannotated.job({UUID(int=1): 2})


def test_a_workflows_arguments_keep_their_types_too() -> None:
    @app.workflow(name="keeps")
    def keeps(flow: Flow, x: Any) -> None:
        flow.run(bare)

    @app.workflow(name="lets", loose=True)
    def lets(flow: Flow, x: Any) -> None:
        flow.run(bare)

    with pytest.raises(ArgumentError, match="argument 'x' of keeps: tuple would arrive as list"):
        keeps.graph((1,))
    assert lets.graph((1,)).nodes


class Adder:
    n: str = "of the object, not of its call"

    def __call__(self, n: int, some: set[int]) -> int:
        return n + len(some)


def test_an_object_that_is_called_has_the_annotations_of_its_call() -> None:
    adder: Task[..., Any, Any] = app.task(name="tasks.adder")(Adder())
    assert sent(adder, 1, {2}) == ((1, {2}), {})
    with pytest.raises(ArgumentError, match=r"argument 'n' of tasks.adder: expected int, got str"):
        adder.job("1", {2})
    with pytest.raises(ResultMismatch):
        adder.pack_result("three")
