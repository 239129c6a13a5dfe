from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Flow, Headrace, Secret, Task
from headrace.errors import ArgumentError, CorruptRecord, PayloadTooLarge, ResultMismatch
from headrace.model.signature import NOTHING, SHAPES, Signature, Unchecked
from headrace.model.type_registry import Types

if TYPE_CHECKING:
    from nowhere import Ghost

app = Headrace("redis://localhost:1/0", max_payload=10_000, max_result=10_000)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Box:
    width: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: int
    next: Point | None = None


class Looks(Protocol):
    def look(self) -> None: ...


@app.task(name="tasks.thumb")
def thumb(url: str, sizes: list[int], *, box: Box | None = None) -> int:
    return len(sizes)


@app.task(name="tasks.free")
def free(first: int, /, second: str = "", *rest: float, third: bool = False, **others: int) -> None: ...


@app.task(name="tasks.all")
def everything(
    box: Box, point: Point, colour: Colour, day: dt.date, at: dt.datetime, span: dt.timedelta, price: decimal.Decimal,
    id: uuid.UUID, data: bytes, pair: tuple[int, str], names: set[str], size: Literal["s", "l"], maybe: int | None,
) -> None: ...  # fmt: skip


@app.task(name="tasks.bare")
def bare() -> None: ...


def sent(task: Task[..., Any, Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return task.unpack(task.job(*args, **kwargs).args)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: thumb.job("u", [1, 2, "x"]), "argument 'sizes' of tasks.thumb: expected int, got str at sizes[2]"),
    (lambda: thumb.job(7, []), "argument 'url' of tasks.thumb: expected str, got int"),
    (lambda: thumb.job("u", [], box={"width": "w"}), "of tasks.thumb: expected int, got str at box.width"),
    (lambda: thumb.job("u", [], box=Box(1, ["a", 2])), "of tasks.thumb: expected str, got int at box.tags[1]"),
    (lambda: thumb.job("u", [], box={}), "argument 'box' of tasks.thumb: object missing required field width"),
    (lambda: thumb.job("u"), "tasks.thumb is missing its argument 'sizes': it is tasks.thumb(url, sizes, *, box=...)"),
    (lambda: thumb.job(sizes=[]), "tasks.thumb is missing its argument 'url'"),
    (lambda: thumb.job("u", [], 3), "tasks.thumb takes at most 2 arguments by position, got 3"),
    (lambda: thumb.job("u", [], size=3), "tasks.thumb takes no argument 'size'"),
    (lambda: thumb.job("u", [], url="v"), "tasks.thumb got its argument 'url' twice"),
    (partial(bare.job, 1), "tasks.bare takes at most 0 arguments by position, got 1: it is tasks.bare()"),
    (free.job, "tasks.free is missing its argument 'first'"),
    (lambda: free.job(1, "s", 1.0, "x"), "argument '*rest' of tasks.free: expected float, got str at *rest[1]"),
    (lambda: free.job(1, zoo="x"), "argument 'zoo' of tasks.free: expected int, got str"),
    (lambda: free.job(1, third="x"), "argument 'third' of tasks.free: expected bool, got str"),
    (lambda: thumb.job("u", [1, 1 << 70]), "argument 'sizes' of tasks.thumb at sizes[1] cannot be sent"),
    (lambda: thumb.job("u", object()), "argument 'sizes' of tasks.thumb cannot be sent (builtins.object)"),
    (lambda: thumb.job("u", {"a": [object()]}), "argument 'sizes' of tasks.thumb at sizes['a'][0] cannot be sent"),
    (lambda: thumb.job("u", [(n for n in ())]), "sizes[0] cannot be sent (builtins.generator): send a list"),
    (lambda: thumb.job("u", [app.job("0" * 21)]), "sizes[0] cannot be sent (headrace.tasks.job_handle.Job): send its id"),
    (lambda: thumb.job("\ud800", []), "argument 'url' of tasks.thumb cannot be sent"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WRONG, ids=[text[:60] for _, text in WRONG])
def test_wrong_arguments_are_named_at_the_call(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert text in str(caught.value)


def test_a_wrong_key_of_a_dictionary_is_named_as_any_other_place() -> None:
    @app.task(name="tasks.keyed")
    def keyed(counts: dict[int, str], *rest: dict[tuple[int, int], str], **deep: list[dict[int, str]]) -> None: ...

    keys: list[tuple[Callable[[], object], str]] = [
        (lambda: keyed.job({"1": "a"}), "argument 'counts' of tasks.keyed: expected int, got str at key in counts"),  # type: ignore[dict-item]
        (lambda: keyed.job({}, {}, {(1, "b"): "a"}), "'*rest' of tasks.keyed: expected int, got str at key[1] in *rest[1]"),  # type: ignore[dict-item]
        (lambda: keyed.job({}, zoo=[{}, {"1": "a"}]), "'zoo' of tasks.keyed: expected int, got str at key in zoo[1]"),  # type: ignore[list-item]
    ]  # fmt: skip
    for call, text in keys:
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value).endswith(text)


class Left(msgspec.Struct, tag=True):
    number: int


class Right(msgspec.Struct, tag=True):
    number: int


class Pin:
    pass


def hush(
    colour: Colour, size: Literal["s", "l"], tagged: Left | Right, keyed: Secret[dict[Colour, int]], *pins: Secret[Pin]
) -> Secret[dict[Pin, int]]:
    raise AssertionError


def picky(plain: str) -> Pin:
    raise ValueError(f"{plain} is no pin")


def test_no_error_shows_a_value_that_does_not_fit() -> None:
    types = Types()
    types.add(Pin, lambda pin: "hush", picky)
    signature = Signature("tasks.hush", hush, types)
    fitting: list[Any] = [Colour.RED, "s", Left(1), {}]
    for place, wrong in enumerate(["hush", "hush", {"type": "hush", "number": 1}, {"hush": 1}, Pin()]):
        with pytest.raises(ArgumentError) as caught:
            signature.pack((*fitting[:place], wrong, *fitting[place + 1 :]), {}, 1000)
        assert "hush" not in str(caught.value).replace("tasks.hush", "")
    with pytest.raises(ResultMismatch, match=r"annotation: it is secret, and does not fit at key in result$"):
        signature.result.pack({"hush": 1}, 1000)


@app.task(name="tasks.bound")
def bound(self: int, cls: str = "") -> tuple[int, str]:
    return self, cls


def test_a_parameter_named_self_is_one_like_any_other() -> None:
    @app.workflow
    def flow_of_one(flow: Flow, self: int) -> None:
        flow.run(bound, self)

    assert bound(self=1) == (1, "")
    assert bound.unpack(bound.job(self=1, cls="x").args) == ((1, "x"), {})
    assert bound.unpack(bound.options(priority=1).job(self=1).args) == ((1,), {})
    assert flow_of_one.graph(self=1).nodes
    assert app.cached(bound.function).name_of(self=1).startswith("tests.unit.test_task_arguments.bound:")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="it contains itself"):
        thumb.job("u", loop)


def test_arguments_over_the_cap_are_refused() -> None:
    with pytest.raises(
        PayloadTooLarge, match=r"argument 'url' of tasks.thumb takes 1\d,\d{3} bytes, more than the cap of 10,000"
    ):
        thumb.job("u" * 12_000, [])


def test_the_worker_gets_the_annotated_types() -> None:
    values = (
        Box(1, ["a"]), Point(1, Point(2)), Colour.RED, dt.date(2030, 1, 2), dt.datetime(2030, 1, 2, tzinfo=dt.UTC),
        dt.timedelta(seconds=1.5), decimal.Decimal("1.10"), uuid.uuid4(), bytes(range(256)), (1, "a"),
        {"x", "y"}, "s", None,
    )  # fmt: skip
    args, kwargs = sent(everything, *values)
    assert args == values
    assert kwargs == {}


def test_one_call_has_one_form() -> None:
    assert thumb.job("u", [1]).args == thumb.job(sizes=[1], url="u").args == thumb.job("u", sizes=[1]).args
    assert sent(thumb, "u", sizes=(1, 2)) == (("u", [1, 2]), {})
    assert sent(thumb, "u", [], box=Box(3)) == (("u", []), {"box": Box(3)})


def test_defaults_are_not_sent() -> None:
    assert msgspec.msgpack.decode(free.job(1).args) == [[1], {}]
    assert bare.job().args == NOTHING
    assert bare.unpack(NOTHING) == ((), {})


def test_stars_take_and_convert_what_is_left() -> None:
    assert sent(free, 1, "s", 1, 2, third=True, more=3) == ((1, "s", 1.0, 2.0), {"third": True, "more": 3})
    assert sent(free, 1, first=2) == ((1,), {"first": 2})
    many = tuple(float(n) for n in range(1000))
    task = app.task(name="many")(Sum.of)
    assert sent(task, *many) == (many, {})


class Sum:
    @staticmethod
    def of(*numbers: float) -> float:
        return sum(numbers)


def test_decoders_are_not_kept_without_end() -> None:
    for n in range(3 * SHAPES):
        sent(free, 1, **{f"k{n}": 1})
    assert len(free.signature._decoders) <= SHAPES


def strange(
    ghost: Ghost, log: logging.Logger, call: Callable[[], int], looks: Looks, both: Box | Point | None,
    items: Iterable[int], numbers: Sequence[int],
) -> Ghost: ...  # fmt: skip


def test_what_cannot_be_converted_is_passed_as_it_is_and_says_why() -> None:
    task = app.task(name="tasks.strange")(strange)
    values = (1, 2, [3], {"a": 4}, {"width": 5}, [6], [7])
    assert sent(task, *values) == (values, {})
    reasons = task.signature.unchecked
    assert set(reasons) == {"ghost", "log", "call", "looks", "both", "items", "return"}
    assert "name 'Ghost' is not defined" in reasons["ghost"]
    assert reasons["log"] == "MessagePack has no logging.Logger: app.types.add(...) says how one is sent"
    with pytest.raises(
        ArgumentError, match=r"argument 'numbers' of tasks.strange: expected int, got str at numbers\[0\]"
    ):
        task.job(*values[:-1], ["x"])


def test_code_that_changed_since_the_enqueue_is_an_argument_error_on_the_worker() -> None:
    other = Signature("tasks.thumb", lambda url, *, wait: None, Types())
    data = thumb.job("u", [1]).args
    with pytest.raises(ArgumentError, match="takes at most 1 arguments by position, got 2"):
        other.unpack(data)
    with pytest.raises(ArgumentError, match=r"expected list, got|expected array, got int"):
        thumb.unpack(msgspec.msgpack.encode((("u", 3), {})))
    with pytest.raises(ArgumentError, match="is missing its argument 'url'"):
        thumb.unpack(NOTHING)


@pytest.mark.parametrize(
    "data", [b"", b"\x92", b"\xff\x00", b"\x92\x90", b"\x81\xa1a\x01", b"\x92\x91\xa1\xff\x80", b"nonsense"]
)
def test_alien_bytes_are_told_from_wrong_arguments(data: bytes) -> None:
    for task in (thumb, bare):
        with pytest.raises(CorruptRecord, match=rf"the stored arguments of {task.name} cannot be read"):
            task.unpack(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_type(data: bytes) -> None:
    try:
        args, kwargs = free.unpack(data)
    except (ArgumentError, CorruptRecord):
        return
    assert isinstance(args, tuple)
    assert isinstance(kwargs, dict)


@given(st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.lists(st.floats(allow_nan=False)), st.booleans())
def test_what_is_packed_is_unpacked(first: int, second: str, rest: list[float], third: bool) -> None:
    assert sent(free, first, second, *rest, third=third) == ((first, second, *rest), {"third": third})


def test_a_task_elsewhere_takes_whatever_can_be_sent() -> None:
    remote = Unchecked("elsewhere", Types())
    assert msgspec.msgpack.decode(remote.pack((1, [2]), {"x": b"3"}, 100)) == [[1, [2]], {"x": b"3"}]
    with pytest.raises(ArgumentError, match="argument '1' of elsewhere cannot be sent"):
        remote.pack((object(),), {}, 100)
    assert remote.unpack_result(b"") is None
    with pytest.raises(ResultMismatch, match="elsewhere is not MessagePack"):
        remote.unpack_result(b"\xc1")


def test_results_are_packed_and_converted_to_the_return_annotation() -> None:
    @app.task(name="tasks.boxes")
    def boxes() -> dict[str, Box]: ...

    data = boxes.pack_result({"a": Box(1)})
    assert boxes.signature.unpack_result(data) == {"a": Box(1)}
    assert bare.pack_result(None) == b"\xc0"
    assert bare.signature.unpack_result(b"") is None
    with pytest.raises(
        ResultMismatch, match=r"does not fit its return annotation: expected int, got str at result\[...\].width"
    ):
        boxes.signature.unpack_result(msgspec.msgpack.encode({"a": {"width": "w"}}))
    with pytest.raises(ArgumentError, match=r"result of tasks.boxes cannot be sent \(.*logging.Logger\)"):
        boxes.pack_result(logging.getLogger("x"))
    with pytest.raises(PayloadTooLarge, match="boxes takes"):
        boxes.pack_result("x" * 20_000)
