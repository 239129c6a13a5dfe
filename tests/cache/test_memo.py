"""``@app.cached``: what a call is named, what comes back, and who computes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest

from headrace import Headrace
from headrace.cache.app_cache import NAMES, is_plain
from headrace.errors import ArgumentError, FrozenValue, OptionsError, ResultMismatch


@dataclass
class Point:
    x: int
    labels: list[str]


@dataclass(frozen=True)
class Spot:
    x: int


class Half(enum.Enum):
    ONE = 0.5


@dataclass
class Mark(Point):
    colour: str = "red"


def test_a_function_is_computed_once(app: Headrace) -> None:
    calls: list[Any] = []

    @app.cached(ttl=60)
    def double(n: int, factor: int = 2) -> int:
        """Twice."""
        calls.append(n)
        return n * factor

    assert [double(2) for _ in range(3)] == [4, 4, 4]
    assert double(3) == 6
    assert calls == [2, 3]
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert double.function(2) == 4
    assert calls == [2, 3, 2]


def test_the_same_call_has_one_name_however_it_is_written(app: Headrace) -> None:
    @app.cached
    def add(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> int:
        return a + b + c

    same = [add.name_of(1), add.name_of(1, 2), add.name_of(a=1), add.name_of(b=2, a=1), add.name_of(1, c=3)]
    assert len(set(same)) == 1
    others = [add.name_of(1, 2, 3), add.name_of(2), add.name_of(1, 3), add.name_of(1, c=4), add.name_of(1, d=3)]
    assert len({*others, same[0]}) == 6
    assert add.name_of(1, d=1, e=2) == add.name_of(1, e=2, d=1)


def test_equal_arguments_of_other_types_are_other_calls(app: Headrace) -> None:
    @app.cached
    def show(value: Any) -> str:
        return repr(value)

    for value in (
        1,
        True,
        1.0,
        "1",
        b"1",
        None,
        0,
        False,
        0.0,
        -0.0,
        [1],
        [True],
        (1,),
        [(1,)],
        Decimal(1),
        {1: (2,)},
        {1: [2]},
    ):
        assert show(value) == show(value) == repr(value)


def test_names_that_a_function_remembers_are_bounded(app: Headrace) -> None:
    @app.cached
    def same(n: int) -> int:
        return n

    names = {same.name_of(n) for n in range(3 * NAMES)}
    assert len(names) == 3 * NAMES
    assert len(same._names) <= NAMES


def test_another_process_finds_it(app: Headrace, new_app: Callable[..., Headrace], url: str) -> None:
    calls: list[int] = []

    def work(n: int) -> list[int]:
        calls.append(n)
        return [n]

    here, there = app.cached(work), new_app(url).cached(work)
    assert here(1) == there(1) == [1]
    assert calls == [1]
    with pytest.raises(FrozenValue):
        there(1).append(2)


def test_a_result_is_forgotten_alone_or_with_all_others(app: Headrace) -> None:
    calls: list[int] = []

    @app.cached(tags=["rows"])
    def row(n: int) -> int:
        calls.append(n)
        return n

    for n in (1, 2):
        row(n)
    assert row.forget(1)
    assert not row.forget(1)
    row(1), row(2)
    assert calls == [1, 2, 1]
    assert row.clear() == 2
    row(1), row(2)
    assert app.cache.delete_tag("rows") == 2
    row(1)
    assert calls == [1, 2, 1, 1, 2, 1]


def test_a_key_may_name_the_result(app: Headrace) -> None:
    calls: list[Any] = []

    @app.cached(key=lambda user, _: str(user["id"]))
    def page(user: dict[str, Any], request: object) -> str:
        calls.append(user)
        return f"page of {user['id']}"

    assert page({"id": 7}, object()) == page({"id": 7, "seen": 1}, object()) == "page of 7"
    assert len(calls) == 1
    assert page.name_of({"id": 7}, object()).endswith(".page:7")

    @app.cached(key=lambda n: n)  # type: ignore[arg-type, return-value]
    def wrong(n: int) -> int:
        return n

    with pytest.raises(OptionsError, match="text"):
        wrong(1)


def test_arguments_that_have_no_name_are_refused_with_a_hint(app: Headrace) -> None:
    @app.cached
    def page(request: object) -> str:
        return ""

    with pytest.raises(ArgumentError, match=r"arguments of .*page"):
        page(object())
    with pytest.raises(TypeError):
        page()  # type: ignore[call-arg]


def test_results_of_other_types_are_built_anew(app: Headrace) -> None:
    @app.cached
    def point(n: int) -> Point:
        return Point(n, ["a"])

    @app.cached
    def price() -> dict[str, Decimal]:
        return {"net": Decimal("1.10")}

    @app.cached
    def pair() -> tuple[int, str]:
        return 1, "a"

    first = point(1)
    first.labels.append("mine alone")
    assert point(1) == Point(1, ["a"])
    assert price() == price() == {"net": Decimal("1.10")}
    assert pair() == pair() == (1, "a")


def test_a_result_that_would_come_back_as_another_type_is_refused_where_it_is_made(app: Headrace) -> None:
    @app.cached
    def bare(kind: str) -> Any:
        return {"pair": {"n": (1, 2)}, "price": [Decimal("1.10")], "fine": {"n": [1, 2]}}[kind]

    with pytest.raises(ArgumentError, match=r"bare at \['n'\]: tuple would come back as list; annotate"):
        bare("pair")
    with pytest.raises(ArgumentError, match=r"Decimal would come back as str"):
        bare("price")
    assert bare("fine") == {"n": [1, 2]}

    @app.cached
    def wrong() -> Point:
        return {"x": "no number"}  # type: ignore[return-value]

    with pytest.raises(ResultMismatch, match=r"wrong returned does not fit its return annotation"):
        wrong()
    assert app.cache.get(wrong.name_of()) is None

    @app.cached
    def count(found: Any) -> int | None:
        return found  # type: ignore[no-any-return]

    assert (count(None), count(7)) == (None, 7)
    with pytest.raises(
        ResultMismatch, match=r"count returned does not fit its return annotation: expected int \| null"
    ):
        count("seven")
    assert app.cache.get(count.name_of("seven")) is None

    @app.cached
    def base() -> list[Point]:
        return [Mark(1, [])]

    with pytest.raises(ArgumentError, match=r"base at \[0\]: Mark would come back as Point; annotate .* -> Mark"):
        base()

    @app.cached
    def half() -> dict[Half, int]:
        return {Half.ONE: 1}

    with pytest.raises(
        ArgumentError, match=r"half as a key: Half would come back as float; its annotation does not help: Enums"
    ):
        half()

    @app.cached
    def hush(text: str) -> tuple[Literal["a"]]:
        return (text,)  # type: ignore[return-value]

    # Errors end up in logs.
    with pytest.raises(ResultMismatch, match=r"annotation: invalid enum value at result\[0\]$"):
        hush("geheim")
    app.cache.set(hush.name_of("a"), ["geheim"])
    with pytest.raises(ResultMismatch, match=r"\(invalid enum value at result\[0\]\)"):
        hush("a")


async def test_a_coroutines_result_is_checked_as_well(app: Headrace) -> None:
    @app.cached
    async def pair() -> tuple[int, str]:
        return 1, "a"

    @app.cached
    async def bare() -> Any:
        return 1, "a"

    assert await pair() == await pair() == (1, "a")
    with pytest.raises(ArgumentError, match="tuple would come back as list"):
        await bare()
    await app.aclose()


def test_a_record_as_the_key_of_a_dictionary_is_refused_wherever_it_is(app: Headrace) -> None:
    @app.cached
    def takes(by: dict[Spot, int]) -> int:
        return len(by)

    @app.cached
    def makes() -> dict[Spot, int]:
        return {Spot(1): 2}

    for call in (lambda: takes({Spot(1): 2}), makes, lambda: app.cache.set("a", {Spot(1): 2})):
        with pytest.raises(ArgumentError, match=r"cannot be sent: a record cannot be the key of a dictionary"):
            call()


def test_a_result_that_fits_no_more_says_so(app: Headrace) -> None:
    @app.cached
    def point() -> Point:
        return Point(1, [])

    app.cache.set(point.name_of(), {"x": "no number"})
    with pytest.raises(ResultMismatch, match=r"\.clear\(\)"):
        point()


async def test_a_coroutine_function_is_awaited_once(app: Headrace) -> None:
    calls: list[int] = []

    @app.cached(ttl=60)
    async def double(n: int) -> Point:
        calls.append(n)
        return Point(2 * n, [])

    assert await double(2) == await double(n=2) == Point(4, [])
    assert calls == [2]
    assert await double.aforget(2)
    await double(2)
    assert await double.aclear() == 1
    assert calls == [2, 2]
    await app.aclose()


def test_what_cannot_be_cached_is_refused_at_once(app: Headrace) -> None:
    with pytest.raises(OptionsError):
        app.cached(lambda: 1)
    with pytest.raises(OptionsError):

        @app.cached
        def numbers() -> Any:
            yield 1


def test_a_method_is_refused_with_what_to_do_instead(app: Headrace) -> None:
    with pytest.raises(OptionsError, match=r"Shop\.price is a method.*a function of what they depend on"):

        class Shop:
            @app.cached
            def price(self) -> int:
                return 1

    class Other:
        @staticmethod
        @app.cached
        def price(article: int) -> int:
            return article

    assert Other.price(3) == Other().price(3) == 3


@pytest.mark.parametrize(
    "annotation", [int, None, Any, list, dict[str, int | None], list[dict[str, Any]], Literal["a"], bytes | None]
)
def test_plain_annotations(annotation: Any) -> None:
    assert is_plain(annotation)


@pytest.mark.parametrize(
    "annotation", [Point, list[Point], tuple[int, ...], set[int], Decimal, dict[str, Decimal], msgspec.Struct]
)
def test_annotations_that_need_a_conversion(annotation: Any) -> None:
    assert not is_plain(annotation)


def test_what_is_nested_too_deeply_is_named(app: Headrace) -> None:
    def deep() -> Any:
        found: list[Any] = []
        for _ in range(600):
            found = [found]
        return found

    @app.cached
    def tree() -> list[Any]:
        return deep()  # type: ignore[no-any-return]

    @app.cached
    def size(of: Any) -> int:
        return len(of)

    for act in (
        lambda: app.cache.set("deep", deep()), lambda: app.cache.get("deep", make=deep), tree, lambda: size(deep()),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="nested too deeply"):
            act()
