"""Types that MessagePack has no form for: pydantic, paths, time zones, numpy, and what the program adds."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    RootModel,
    SecretStr,
    StrictInt,
    computed_field,
    field_validator,
)

from headrace import Flow, Headrace, Task, Tasks
from headrace.errors import ArgumentError, CorruptRecord, OptionsError, ResultMismatch
from headrace.model import job_record
from headrace.model.type_registry import Types

T = TypeVar("T")

app = Headrace("redis://localhost:1/0")


class Line(BaseModel):
    id: uuid.UUID
    price: Decimal = Decimal("1.10")
    at: datetime = datetime(2030, 1, 2, tzinfo=UTC)
    data: bytes = b"\xff"
    tags: set[str] = {"a"}
    file: Path = Path("a/b")
    site: HttpUrl = HttpUrl("https://example.org/x")
    host: ipaddress.IPv4Address = ipaddress.IPv4Address("10.0.0.1")
    zone: ZoneInfo | None = ZoneInfo("Europe/Berlin")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    id: uuid.UUID
    pair: tuple[int, str] = (1, "x")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def short(self) -> str:
        return str(self.id)[:4]


class Order(BaseModel):
    name: str = Field(alias="Name", min_length=2)
    code: str = Field(default="", validation_alias="codeIn", serialization_alias="codeOut")
    lines: list[Line] = []
    by: dict[int, Strict] = {}


class Names(RootModel[list[str]]): ...


class Box(BaseModel, Generic[T]):
    value: T


class Careful(BaseModel):
    age: int

    @field_validator("age")
    @classmethod
    def check(cls, age: int) -> int:
        if age == 13:
            raise KeyError(f"secret {age}")
        if age < 0:
            raise ValueError(f"secret {age}")
        return age


class Hidden(BaseModel):
    password: SecretStr


@dataclass
class Holder:
    order: Order
    file: Path
    count: np.int64


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    __hash__ = None  # type: ignore[assignment]


class Special(Point): ...


class Loud:
    """Its functions raise what holds the value."""


def loud(value: Any) -> Any:
    raise RuntimeError(f"secret {value}")


class Wrong:
    """Its functions give something else."""


app.types.add(Point, lambda point: (point.x, point.y), lambda plain: Point(*plain))
app.types.add(Loud, loud, loud)
app.types.add(Wrong, lambda _wrong: object(), str)

ID = uuid.UUID(int=7)
ORDER = Order(Name="abc", codeIn="c", lines=[Line(id=ID)], by={1: Strict(id=ID)})


@app.task(name="take")
def take(
    orders: list[Order] | None = None,
    holder: Holder | None = None,
    file: Path | None = None,
    pure: PurePosixPath | None = None,
    zone: ZoneInfo | None = None,
    single: np.float32 | None = None,
    whole: int = 0,
    real: float = 0,
    point: Point | None = None,
    by: dict[str, Order] | None = None,
    names: Names | None = None,
    box: Box[int] | None = None,
    day: np.datetime64 | None = None,
    span: np.timedelta64 | None = None,
    tiny: np.int8 | None = None,
    flag: np.bool_ | None = None,
    text: np.str_ | None = None,
    strict: StrictInt = 0,
    careful: Careful | None = None,
    hidden: Hidden | None = None,
    loud: Loud | None = None,
    wrong: Wrong | None = None,
    untyped: Any = None,
    either: Order | int | None = None,
    data: bytes = b"",
) -> dict[str, list[Order]]: ...


def sent(task: Task[..., Any, Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return task.unpack(task.job(*args, **kwargs).args)


VALUES: dict[str, Any] = {
    "orders": [ORDER, ORDER],
    "holder": Holder(ORDER, Path("/x"), np.int64(-5)),
    "file": Path("/tmp/a b"),
    "pure": PurePosixPath("a"),
    "zone": ZoneInfo("Europe/Berlin"),
    "single": np.float32(0.1),
    "point": Point(1, 2),
    "by": {"a": ORDER},
    "names": Names(["a"]),
    "box": Box[int](value=3),
    "day": np.datetime64("2030-01-01T00:00:00.000000001"),
    "span": np.timedelta64(3, "D"),
    "tiny": np.int8(-128),
    "flag": np.bool_(True),
    "text": np.str_("x"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_further_type_arrives_as_it_was_sent(name: str) -> None:
    args, kwargs = sent(take, **{name: VALUES[name]})
    found = kwargs[name] if kwargs else args[0]
    assert found == VALUES[name]
    assert type(found) is type(VALUES[name])


def test_numpy_scalars_are_numbers_where_the_annotation_says_so() -> None:
    _, kwargs = sent(take, whole=np.int64(7), real=np.float32(0.5), single=2, file="x")
    assert {name: (type(value), value) for name, value in kwargs.items()} == {
        "whole": (int, 7), "real": (float, 0.5), "single": (np.float32, 2), "file": (type(Path()), Path("x")),
    }  # fmt: skip


def test_units_of_numpy_times_and_what_is_no_time_arrive() -> None:
    for name, value in {"day": np.datetime64("2030-01", "M"), "span": np.timedelta64(72, "h")}.items():
        found = sent(take, **{name: value})[1][name]
        assert np.datetime_data(found.dtype) == np.datetime_data(value.dtype)
    assert np.isnat(sent(take, day=np.datetime64("NaT", "s"))[1]["day"])
    assert sent(take, day="2030-01-02")[1]["day"] == np.datetime64("2030-01-02")


def test_results_are_converted_and_checked_too() -> None:
    result = {"a": [ORDER]}
    assert take.signature.unpack_result(take.pack_result(result)) == result
    with pytest.raises(ResultMismatch, match=r"annotation: not a valid Order \(Name: missing\) at result\[...\]\[0\]"):
        take.pack_result({"a": [{}]})


def test_a_subclass_of_an_added_class_arrives_as_that_class() -> None:
    found = sent(take, point=Special(1, 2))[1]["point"]
    assert (type(found), found) == (Point, Point(1, 2))


def test_nodes_of_workflows_take_them() -> None:
    @app.task(name="make")
    def make() -> Order: ...

    @app.task(name="use")
    def use(order: Order, point: Point, file: Path) -> None: ...

    @app.workflow(name="flow", globals={"file": Path("g")})
    def flow(flow: Flow, point: Point) -> None:
        assert isinstance(point, Point)
        flow.run(use, flow.run(make), point)
        flow.map(use, [ORDER], point)

    graph = flow.graph(Point(1, 2))
    assert flow.definition.signature.unpack(graph.args) == ((Point(1, 2),), {})

    found = use.unpack(job_record.fill(graph.nodes[1].args, [make.pack_result(ORDER)]))
    assert found == ((ORDER, Point(1, 2), Path("g")), {})


class Cyclic(BaseModel):
    next: Any = None


def cyclic() -> Cyclic:
    found = Cyclic()
    found.next = found
    return found


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: take.job([{"Name": "a", "lines": [{"id": "secret"}]}]),
     "argument 'orders' of take: not a valid Order (Name: string too short, got str; lines[0].id: uuid parsing, got str) at orders[0]"),
    (lambda: take.job(by={"secret": {"Name": 1}}), "argument 'by' of take: not a valid Order (Name: string type, got int) at by[...]"),
    (lambda: take.job(careful={"age": -1}), "not a valid Careful (age: value error, got int)"),
    (lambda: take.job(careful={"age": 13}), "not a valid Careful (KeyError at test_types.py:"),
    (lambda: take.job(hidden=Hidden(password=SecretStr("secret"))), "argument 'hidden' of take cannot be sent (pydantic.types.SecretStr)"),
    (lambda: take.job(untyped=ORDER), "Order would arrive as dict; annotate it in the task, untyped: Order"),
    (lambda: take.job(untyped=np.int64(1)), "int64 would arrive as int; annotate it in the task, untyped: int64"),
    (lambda: take.job(either=ORDER), "Order would arrive as dict; its annotation does not help: Type unions containing a custom type"),
    (lambda: take.job(untyped=cyclic()), "argument 'untyped' of take cannot be sent: nested too deeply, or it contains itself"),
    (lambda: take.job(zone="secret/place"), "argument 'zone' of take: not a valid ZoneInfo (ZoneInfoNotFoundError at "),
    (lambda: take.job(file=7), "argument 'file' of take: not a valid Path (expected str, got int)"),
    (lambda: take.job(file=Path("\udcff")), "argument 'file' of take cannot be sent ('utf-8' codec"),
    (lambda: take.job(tiny=300), "argument 'tiny' of take: not a valid int8 ("),
    (lambda: take.job(tiny=1.5), "argument 'tiny' of take: not a valid int8 (got float)"),
    (lambda: take.job(flag=1), "argument 'flag' of take: not a valid bool"),
    (lambda: take.job(untyped=np.longdouble(1)), "cannot be sent (numpy.longdouble: it is not a number of 64 bits, a text or a time)"),
    (lambda: take.job(untyped=np.zeros(3)), "ndarray would arrive as bytes; annotate it in the task, untyped: ndarray"),
    (lambda: take.job(untyped=np.array([object()])), "cannot be sent (numpy.ndarray: it is not a plain array of numbers, texts or times)"),
    (lambda: take.job(untyped=np.ma.array([1])), "cannot be sent (numpy.ma.MaskedArray: it is not a plain array"),
    (lambda: take.job(loud=Loud()), "cannot be sent (tests.unit.test_types.Loud: RuntimeError at test_types.py:"),
    (lambda: take.job(loud=1), "argument 'loud' of take: not a valid Loud (RuntimeError at test_types.py:"),
    (lambda: take.job(wrong=Wrong()), "cannot be sent (builtins.object)"),
    (lambda: take.job(wrong=1), "argument 'wrong' of take: expected Wrong, got str"),
    (lambda: take.signature.pack_json("{}", "{}", 100), "the arguments of take are no JSON array and JSON object"),
    (lambda: take.signature.pack_json("[", "{}", 100), "the arguments of take are no JSON array and JSON object"),
    (lambda: take.signature.pack_json("[]", '{"a": 1}', 100), "take takes no argument 'a'"),
    (lambda: take.signature.pack_json("[]", '{"delay": 5}', 100), "take takes no argument 'delay': it is "),
    (lambda: take.signature.pack_json("[]", '{"data": "?"}', 100), "argument 'data' of take: invalid base64 encoded string"),
    (lambda: take.signature.pack_json("[]", '{"whole": "1"}', 100), "argument 'whole' of take: expected int, got str"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WRONG, ids=[text[:60] for _, text in WRONG])
def test_what_does_not_fit_is_refused_at_the_call_and_no_error_tells_a_value(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)
    # Nor does the traceback that a worker would store.
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_what_does_not_fit_is_refused_on_the_worker_too() -> None:
    stored = app.by_name("elsewhere").job(careful={"age": -1}).args
    with pytest.raises(ArgumentError, match=r"argument 'careful' of take: not a valid Careful \(age: value error"):
        take.unpack(stored)
    with pytest.raises(CorruptRecord):
        take.unpack(b"[1")


class Late: ...


@app.task(name="late")
def late(x: Late) -> None: ...


def use_late() -> None:
    late.job(1)
    app.types.add(Late, str, str)


async def coroutine(value: Any) -> Any: ...


ADDED: list[tuple[Callable[[], object], str]] = [
    (lambda: app.types.add("Point", str, str), "app.types.add takes a class, not 'Point'"),
    (lambda: app.types.add(list[Point], str, str), "app.types.add takes a class"),
    (lambda: app.types.add(Holder, str, str), "test_types.Holder is sent as it is: nothing can be added for it"),
    (lambda: app.types.add(int, str, int), "builtins.int is sent as it is"),
    (lambda: app.types.add(object, str, str), "builtins.object is sent as it is"),
    (lambda: app.types.add(Point, str, str), "test_types.Point was added before, with other functions: add it once"),
    (lambda: app.types.add(Special, 7, str), "encode of tests.unit.test_types.Special must be an ordinary function, not 7"),
    (lambda: app.types.add(Special, str, coroutine), "decode of tests.unit.test_types.Special must be an ordinary function"),
    (use_late, "test_types.Late was used before it was added: call app.types.add where the application is made"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), ADDED, ids=[text[:60] for _, text in ADDED])
def test_what_cannot_be_added_is_named(call: Callable[[], object], text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        call()
    assert text in str(caught.value)


def test_a_class_may_be_added_twice_alike_and_an_added_one_comes_before_a_known_one() -> None:
    types = Types()
    for _ in range(2):
        types.add(Path, loud, loud)
    with pytest.raises(TypeError, match="RuntimeError"):
        types.encode(Path("x"))


def test_types_of_tasks_that_are_included_are_those_of_the_application() -> None:
    tasks, own = Tasks(), Headrace("redis://localhost:1/0")

    @tasks.task(name="t")
    def take(point: Point, special: Special | None = None) -> None: ...

    tasks.types.add(Point, lambda point: [point.x, point.y], lambda plain: Point(*plain))
    own.include(tasks)
    own.types.add(Special, lambda point: [point.x, point.y], lambda plain: Special(*plain))
    args, _ = sent(take, Point(1, 2), Special(3, 4))
    assert args == (Point(1, 2), Special(3, 4))
    assert type(args[1]) is Special
    other = Tasks()
    other.types.add(Point, str, loud)
    with pytest.raises(OptionsError, match="Point was added before, with other functions"):
        own.include(Tasks(), other)
    assert not other.context.included


def test_json_arguments_stay_json_and_are_read_by_the_annotations() -> None:
    text = '{"data": "/w==", "by": {"a": {"Name": "abc", "by": {"1": {"id": "' + str(ID) + '"}}}}, "day": "2030-01-02"}'
    data = take.signature.pack_json("[[]]", text, 1000)
    assert data.startswith(b"[[[]]")
    args, kwargs = take.unpack(data)
    assert args == ([],)
    assert kwargs["data"] == b"\xff"
    assert kwargs["by"]["a"].by == {1: Strict(id=ID)}
    assert app.by_name("elsewhere")._signature.pack_json("[1]", "{}", 10) == b"[[1],{}]"
    assert take.signature.pack_json("[]", "{}", 10) == take.job().args


def test_nothing_is_imported_for_types_that_are_not_used() -> None:
    code = (
        "import sys; from headrace import Headrace; app = Headrace('redis://localhost:1/0'); "
        "task = app.task(name='t')(lambda x: None); task.unpack(task.job(1).args); "
        "print(*{'pydantic', 'numpy', 'pandas', 'pyarrow', 'zoneinfo'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
