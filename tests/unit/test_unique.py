"""Names of unique jobs: one call has one name, in this release and in the next."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from typing import Any

import msgspec
import pytest

from headrace import Debounce, Headrace, Latest, Throttle, Unique
from headrace.errors import ArgumentError, OptionsError
from headrace.tasks.bound_task import BoundTask


@pytest.fixture
def app() -> Headrace:
    # Port 1: a test that connects fails.
    return Headrace("redis://localhost:1/0")


def fetch(url: str, n: float = 1, *, tags: set[str] = frozenset(), when: datetime | None = None) -> None:  # type: ignore[assignment]
    del url, n, tags, when


def name(bound: BoundTask[..., Any], *args: Any, **kwargs: Any) -> str:
    return bound.job(*args, **kwargs).name


def test_the_form_of_names_stays(app: Headrace) -> None:
    """A change of these would let two jobs of one name live beside each other while a release goes out."""
    task = app.task(name="fetch", unique=Unique())(fetch)
    some = task.options(unique=Unique(by=("n", "url")))
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert {
        "least": name(task.options(), "https://example.org"),
        "all": name(task.options(), "https://example.org", 2.5, tags={"b", "a"}, when=moment),
        "some": name(some, "https://example.org"),
        "text": name(task.options(unique="nightly"), "https://example.org"),
    } == GOLDEN


GOLDEN = {
    "least": "fetch:3grT7Pq5ttG_9GIT",
    "all": "fetch:6IUC0V0nmKtRoN3S",
    "some": "fetch:8p1NEr3kv3fmdP-j",
    "text": "nightly",
}


def test_one_call_has_one_name_however_it_is_written(app: Headrace) -> None:
    bound = app.task(name="fetch", unique=Unique())(fetch).options()
    one = name(bound, "u")
    assert (
        one
        == name(bound, url="u")
        == name(bound, "u", 1.0)
        == name(bound, n=1, url="u")
        == name(bound, "u", tags=set())
    )
    assert len({one, name(bound, "v"), name(bound, "u", 2), name(bound, "u", tags={"a"})}) == 4
    assert name(bound, "u", tags={"a", "b", "c"}) == name(bound, "u", tags={"c", "b", "a"})


def test_json_and_values_have_one_name(app: Headrace) -> None:
    def store(id: uuid.UUID, when: datetime, more: dict[str, int]) -> None:
        del id, when, more

    bound = app.task(name="store", unique=Unique())(store).options()
    id, when = uuid.UUID(int=7), datetime(2030, 1, 2, tzinfo=UTC)
    new = bound._new_json(  # pyright: ignore[reportPrivateUsage]
        f'["{id}", "2030-01-02T00:00:00Z", {{"b": 1, "a": 2}}]', "{}"
    )
    assert new.name == name(bound, id, when, {"a": 2, "b": 1})


def test_arguments_that_do_not_count_do_not_change_the_name(app: Headrace) -> None:
    bound = app.task(name="fetch", unique=Unique(by="url"))(fetch).options()
    assert name(bound, "u", 1) == name(bound, "u", 2, tags={"x"})
    assert name(bound, "u") != name(bound, "v")


def test_tasks_do_not_share_a_name_and_a_text_is_shared(app: Headrace) -> None:
    one = app.task(name="one", unique=Unique())(fetch)
    two = app.task(name="two", unique=Unique())(fetch)
    assert name(one.options(), "u") != name(two.options(), "u")
    assert name(one.options(unique="x"), "u") == name(two.options(unique=Unique(text="x")), "v") == "x"


def test_a_task_whose_code_is_elsewhere_goes_by_named_arguments(app: Headrace) -> None:
    here = app.task(name="fetch", unique=Unique(by="url"))(fetch).options()
    there = Headrace("redis://localhost:1/0").by_name("fetch", unique=Unique(by="url"))
    assert name(there, url="u", other=7) == name(here, "u")
    with pytest.raises(OptionsError, match=r"'url', and the code of fetch is not here .* by position: give it by name"):
        there.job("u")
    with pytest.raises(OptionsError, match="give it by name, or give text="):
        there.job(n=1)
    with pytest.raises(OptionsError, match="all its arguments are not known: give by= or text="):
        app.by_name("elsewhere", unique=Unique())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"by": "url", "text": "x"}, "by and text contradict each other"),
        ({"text": ""}, "text must be a text of 1 to 256 characters"),
        ({"text": "x" * 257}, "text must be a text of 1 to 256 characters"),
        ({"text": "\udcff"}, "text must be a text of 1 to 256 characters"),
        ({"text": 7}, "text must be a text of 1 to 256 characters"),
        ({"by": ()}, "by must be names of arguments"),
        ({"by": 7}, "by must be names of arguments"),
        ({"by": ["a b"]}, "by must be names of arguments: 'a b' is none"),
        ({"until": "never"}, "until must be 'done' or 'start'"),
        ({"until": "done", "within": 5}, "until and within contradict each other"),
        ({"within": 0}, "within"),
        ({"within": timedelta(days=800)}, "from a millisecond to a year"),
        ({"clash": "ignore"}, "clash must be one of existing, raise, replace, cancel"),
        ({"clash": "cancel", "within": 5}, "clash='cancel' waits for the end"),
        ({"clash": "cancel", "until": "start"}, "clash='cancel' waits for the end"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        Unique(**given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Latest(by="a", text="b"), "by and text contradict each other"),
        (lambda: Debounce(0), "Debounce: wait"),
        (lambda: Debounce(5, most=4), "most must be at least wait"),
        (lambda: Throttle(0), "Throttle: per"),
        (lambda: Throttle(5, trailing=1), "trailing must be True or False"),  # type: ignore[arg-type]
    ],
)
def test_what_the_others_cannot_be_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        make()


@pytest.mark.parametrize(
    "given", [Latest(), Debounce(5), Throttle(5, trailing=True), Unique(clash="cancel")], ids=lambda one: one.rule.clash
)
def test_what_says_itself_when_a_job_is_ready_takes_no_time(app: Headrace, given: Any) -> None:
    task = app.task(name="fetch", unique=given)(fetch)
    with pytest.raises(OptionsError, match=r"says when the job becomes ready: give no delay= and no at="):
        task.options(delay=5)
    assert task.options(delay=5, unique=Unique()).job("u").form.delay == 5_000_000


def test_a_debounced_job_must_not_expire_before_it_is_ready(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="expires must be more than Debounce waits"):
        app.task(name="fetch", unique=Debounce(5), expires=5)(fetch)


def test_what_the_task_cannot_keep_is_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match=r"unique goes by 'uri', and fetch\(url, n=.* has no such argument"):
        app.task(name="fetch", unique=Unique(by="uri"))(fetch)
    with pytest.raises(OptionsError, match="unique must be Unique"):
        app.task(name="again", unique=7)(fetch)  # type: ignore[call-overload]
    task = app.task(name="fetch", unique=Unique())(fetch)
    with pytest.raises(OptionsError, match="it takes no unique="):
        task.broadcast("u")
    with pytest.raises(ArgumentError):
        task.options().job(7)  # type: ignore[arg-type]
    assert task.options(unique=False).job("u").name == ""


class Size(enum.Enum):
    S = 1
    L = 9


@dataclasses.dataclass(frozen=True)
class Spot:
    """All have one hash, so that a set has them in the order in which they came."""

    x: int | str

    def __hash__(self) -> int:
        return 0


# Two of which a set has that first which came first.
FIRST, SECOND = next(
    (one, other)
    for one, other in combinations([frozenset({n}) for n in range(100)], 2)
    if [*{one, other}] != [*{other, one}]
)
# Each is a member of its own.
NANS = [float("nan"), float("nan")]


class Tags(msgspec.Struct, tag=True):
    of: dict[int, set[Spot]]


UNORDERED = [
    (dict[int, str], {1: "a", 2: "b"}, {2: "b", 1: "a"}, {1: "b", 2: "a"}),
    (dict[Size, int], {Size.S: 1, Size.L: 2}, {Size.L: 2, Size.S: 1}, {Size.S: 2, Size.L: 1}),
    (dict[date, int], {date(2030, 1, 1): 1}, {date(2030, 1, 1): 1}, {date(2030, 1, 2): 1}),
    (set[int], {0, 8}, {8, 0}, {0, 16}),
    (set[Size], {Size.S, Size.L}, {Size.L, Size.S}, {Size.S}),
    (set[int | None], {0, None}, {None, 0}, {1, None}),
    (set[Spot], {Spot(1), Spot("a")}, {Spot("a"), Spot(1)}, {Spot("1"), Spot("a")}),
    (Tags, Tags({1: {Spot(1), Spot(2)}}), Tags({1: {Spot(2), Spot(1)}}), Tags({2: {Spot(1), Spot(2)}})),
    (set[frozenset[int]], {FIRST, SECOND}, {SECOND, FIRST}, {FIRST}),
    (set[tuple[frozenset[int], int]], {(FIRST, 1), (SECOND, 1)}, {(SECOND, 1), (FIRST, 1)}, {(FIRST, 1), (SECOND, 2)}),
    (set[float], {1.0, 2.0, *NANS}, {*NANS, 2.0, 1.0}, {1.0, *NANS}),
    (list[dict[int, Size]], [{1: Size.S}], [{1: Size.S}], [{1: Size.L}]),
]


@pytest.mark.parametrize(("annotation", "one", "same", "other"), UNORDERED, ids=[str(row[0]) for row in UNORDERED])
def test_equal_values_have_one_name_whatever_their_order(
    app: Headrace, annotation: Any, one: Any, same: Any, other: Any
) -> None:
    def shelve(value: Any) -> None: ...

    shelve.__annotations__["value"] = annotation
    bound = app.task(name="shelve", unique=Unique())(shelve).options()
    assert name(bound, one) == name(bound, same) != name(bound, other)

    cached = app.cached()(shelve)
    assert cached.name_of(one) != cached.name_of(other)
    if not isinstance(one, dict):
        assert cached.name_of(one) == cached.name_of(same)


ABSENT = object()


def test_a_default_that_cannot_be_sent_is_part_of_no_name(app: Headrace) -> None:
    """Such as one that stands for an argument that is not given."""

    @app.task(name="find", unique=Unique())
    def find(x: int, y: Any = ABSENT, z: int = 3) -> None: ...

    bound = find.options()
    assert name(bound, 1) == name(bound, 1, z=3) != name(bound, 1, 2)

    @app.cached
    def found(x: int, y: Any = ABSENT, z: int = 3) -> int:
        return x

    assert found.name_of(1) == found.name_of(1, z=3) == found.name_of(1, ABSENT)
    assert (
        len({found.name_of(1), found.name_of(2), found.name_of(1, z=4), found.name_of(1, 2), found.name_of(1, 3)}) == 5
    )
