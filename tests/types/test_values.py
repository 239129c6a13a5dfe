"""What a task takes and returns arrives as it was sent: every listed type, by every way that a value can take."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from headrace import Flow, Headrace
from headrace.cli.arguments import parse_arguments
from headrace.cli.output import to_json
from headrace.model.codec import decode
from headrace.testing.kit import Kit


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    left: int
    right: str


class Shape(TypedDict):
    sides: int
    name: str


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


@dataclass
class Box:
    width: float
    tags: set[str]


class Line(BaseModel):
    id: uuid.UUID
    price: Decimal
    at: dt.datetime
    data: bytes
    kinds: frozenset[Colour] = frozenset()
    file: PurePosixPath | None = None


class Order(BaseModel):
    name: str = Field(alias="Name")
    lines: list[Line]
    by: dict[int, Line]


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


WHOLE = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
MOMENT = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001 - the bounds are naive
ZONES = st.sampled_from([dt.UTC, ZoneInfo("Europe/Berlin")])
SPAN = st.timedeltas(dt.timedelta(days=-10_000), dt.timedelta(days=10_000))
DECIMAL = st.decimals(allow_nan=False, allow_infinity=False)
PATH = st.lists(st.text("abc .", min_size=1), min_size=1, max_size=3).map("/".join)
# The JSON of a model has bytes as text, that of all else in base64: test_types.py has both.
LINE = st.builds(
    Line, id=st.uuids(), price=DECIMAL, at=MOMENT, data=st.just(b""),
    kinds=st.frozensets(st.sampled_from(Colour)), file=st.none() | PATH.map(PurePosixPath),
)  # fmt: skip
ORDER = st.builds(Order, Name=TEXT, lines=st.lists(LINE, max_size=2), by=st.dictionaries(WHOLE, LINE, max_size=2))
POINT = st.builds(Point, WHOLE, WHOLE)
NUMPY: dict[Any, st.SearchStrategy[Any]] = {
    np.float64: FINITE.map(np.float64),
    np.float32: st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32),
    np.int64: WHOLE.map(np.int64),
    np.uint8: st.integers(0, 255).map(np.uint8),
    np.bool_: st.booleans().map(np.bool_),
    np.str_: TEXT.map(np.str_),
    np.datetime64: st.integers(-(10**9), 10**9).map(lambda n: np.datetime64(n, "ms")),
    np.timedelta64: st.integers(-(10**9), 10**9).map(lambda n: np.timedelta64(n, "h")),
}

ARRAY = st.sampled_from([
    np.arange(6, dtype=np.int16).reshape(2, 3), np.array([0.5, np.nan]), np.array(["a", "bcd"]), np.array(7),
    np.array(["2030-01-02", "NaT"], dtype="M8[ns]"), np.asfortranarray(np.ones((2, 2))), np.zeros((0, 3)),
    np.array([(1, 2.5)], dtype=[("n", "i4"), ("x", "f8")]), np.array([True, False]), np.array([1 + 2j]),
])  # fmt: skip

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    None: st.none(),
    bool: st.booleans(),
    int: WHOLE,
    float: FINITE,
    str: TEXT,
    bytes: st.binary(max_size=20),
    list[int]: st.lists(WHOLE),
    list[Any]: st.lists(st.none() | st.booleans() | TEXT),
    tuple[int, str]: st.tuples(WHOLE, TEXT),
    tuple[bytes, ...]: st.lists(st.binary()).map(tuple),
    set[str]: st.sets(TEXT),
    frozenset[int]: st.frozensets(WHOLE),
    dict[str, bytes]: st.dictionaries(TEXT, st.binary()),
    dict[int, str]: st.dictionaries(WHOLE, TEXT),
    dict[uuid.UUID, Decimal]: st.dictionaries(st.uuids(), DECIMAL),
    int | None: st.none() | WHOLE,
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Pair: st.builds(Pair, WHOLE, TEXT),
    Shape: st.fixed_dictionaries({"sides": WHOLE, "name": TEXT}),
    Node: st.builds(Node, WHOLE, st.none() | st.builds(Node, WHOLE)),
    Box: st.builds(Box, FINITE, st.sets(TEXT)),
    dt.date: st.dates(),
    dt.time: st.times(),
    dt.timedelta: SPAN,
    dt.datetime: MOMENT
    | st.just(dt.datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")))
    | st.datetimes(dt.datetime(1970, 1, 3), dt.datetime(9999, 12, 29), timezones=ZONES),  # noqa: DTZ001
    uuid.UUID: st.uuids(),
    Decimal: DECIMAL,
    Order: ORDER,
    list[Order]: st.lists(ORDER, max_size=2),
    dict[str, Order]: st.dictionaries(TEXT, ORDER, max_size=2),
    Order | None: st.none() | ORDER,
    Holder: st.builds(Holder, ORDER, PATH.map(Path), WHOLE.map(np.int64)),
    Path: PATH.map(Path),
    PurePosixPath: PATH.map(PurePosixPath),
    ZoneInfo: st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"]).map(ZoneInfo),
    ipaddress.IPv4Address: st.ip_addresses(v=4),
    ipaddress.IPv6Address: st.ip_addresses(v=6),
    Point: POINT,
    list[Point]: st.lists(POINT),
    **NUMPY,
    np.ndarray: ARRAY,
    dict[str, np.ndarray]: st.dictionaries(TEXT, ARRAY, max_size=2),
    dict[str, np.float32]: st.dictionaries(TEXT, NUMPY[np.float32]),
}


@pytest.fixture
def kit(url: str) -> Iterator[Kit]:
    with Headrace(url) as app, Kit(app, url=url) as kit:
        app.types.add(Point, lambda point: (point.x, point.y), lambda plain: Point(*plain))
        yield kit


def ways(app: Headrace, annotation: Any) -> list[Callable[[Any], Callable[[], Any]]]:
    """Each sends a value, and gives what tells how it came back, once all jobs have run."""

    def same(x: Any) -> Any:
        return x

    same.__annotations__ = {"x": annotation, "return": annotation}
    task = app.task(name="same")(same)

    @app.task(name="plain", loose=True)
    def plain(x: Any) -> Any:
        return x

    calls: list[Any] = []

    def computed(x: Any, number: int) -> Any:
        calls.append(number)
        return x

    computed.__annotations__ = {"x": annotation, "return": annotation}
    cached = app.cached(computed)

    @app.workflow(name="flow")
    def flow(flow: Flow, x: Any) -> None:
        last = flow.run(task, flow.run(task, x, name="first"), name="second")
        flow.map(task, flow.run("listed", last), name="mapped")

    flow.definition.function.__annotations__["x"] = annotation
    app.task(name="listed", loose=True)(lambda x: [x])

    def enqueued(value: Any) -> Callable[[], Any]:
        job = task.enqueue(value)
        assert same_value(job.refresh().arguments["x"], value)
        return lambda: [job.result(0), job.refresh().result, app.job(job.id).result(0)]

    def as_json(value: Any) -> Callable[[], Any]:
        text = msgspec.json.encode([value], enc_hook=app.types.encode)
        job = task.enqueue_json(text)
        assert job.refresh().form == "json"
        assert same_value(job.refresh().args[0], value)
        return lambda: [job.result(0)]

    def typed_in_a_shell(value: Any) -> Callable[[], Any]:
        text = msgspec.json.encode(value, enc_hook=app.types.encode).decode()
        # What is no JSON is text: texts are typed as they are, where they look like no other JSON.
        job = app.by_name("same").enqueue_json(*parse_arguments([f"x={text}"]))
        read = msgspec.json.Decoder(task.signature.types["return"], dec_hook=app.types.decode)
        return lambda: [job.result(0), read.decode(to_json(decode(job.refresh().packed_result or b"\xc0")))]

    def through_a_workflow(value: Any) -> Callable[[], Any]:
        run = flow.create(value)
        run.start()
        assert same_value(run.refresh().arguments["x"], value)
        return lambda: [*run.outputs("first", "second").values(), *run.outputs("mapped")["mapped"]]

    def from_the_cache(value: Any) -> Callable[[], Any]:
        number = len(calls)
        return lambda: [cached(value, number), cached(value, number), calls.count(number) == 1 and value]

    return [enqueued, as_json, typed_in_a_shell, through_a_workflow, from_the_cache]


@pytest.mark.parametrize("annotation", VALUES, ids=str)
def test_a_value_arrives_as_it_was_sent_by_every_way(kit: Kit, annotation: Any) -> None:
    all_ways = ways(kit.app, annotation)

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(VALUES[annotation])
    def check(value: Any) -> None:
        told = [(way.__name__, way(value)) for way in all_ways]
        kit.drain()
        for name, tell in told:
            for found in tell():
                assert same_value(found, value), name

    check()


@cache
def utc(moment: dt.datetime) -> dt.datetime:
    """Datetimes with a time zone arrive in UTC; no other zone's equals one of the hour that a change of clocks skips."""
    return moment.astimezone(dt.UTC)


def same_value(found: Any, sent: Any) -> bool:
    if isinstance(sent, dt.datetime) and sent.tzinfo is not None:
        return bool(utc(found) == utc(sent))
    if isinstance(sent, np.ndarray):
        same = type(found) is np.ndarray and (found.dtype, found.shape) == (sent.dtype, sent.shape)
        return same and found.tobytes() == sent.tobytes()
    if isinstance(sent, dict):
        return found.keys() == sent.keys() and all(same_value(found[key], one) for key, one in sent.items())
    # Of the cache, lists and dictionaries that cannot be changed.
    return (type(found) is type(sent) or type(sent) in (list, dict)) and bool(found == sent)
