"""``Secret``: which arguments it marks, where they stand, and by which texts they are found again."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Headrace, Secret
from headrace.errors import ArgumentError, OptionsError
from headrace.model.hidden_values import (
    has_secret_mark,
    hidden_in,
    hides,
    named_shown,
    shown,
    texts_of,
    without,
)
from headrace.model.signature import Parameters, places_of
from headrace.settings import HIDDEN


def login(user: str, pin: Secret[str], *more: Secret[int], note: str = "", key: Secret[str] | None = None) -> None: ...
def opened(url: str, **tokens: Secret[str]) -> Secret[bytes]: ...
def listed(all_of: list[Secret[str]], by: dict[str, Secret[int]]) -> None: ...
def plain(user: str, pin: str) -> None: ...


def places(function: Any) -> set[str]:
    hints = get_type_hints(function, include_extras=True)
    return set(places_of(Parameters("t", function), hints).split())


def test_the_places_of_secret_arguments() -> None:
    assert places(login) == {"pin", "2", "more", "*3", "key"}
    assert places(opened) == {"tokens", "**", "return"}
    assert places(listed) == {"all_of", "1", "by", "2"}
    assert places(plain) == set()
    assert has_secret_mark(Secret[str])
    assert not has_secret_mark(list[str])


def test_a_secret_parameter_is_what_it_says_to_the_codec() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode("a"), type=Secret[str]) == "a"
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(1), type=Secret[str])


def test_arguments_are_hidden_by_number_and_by_name() -> None:
    where = "pin 2 *3 key"
    assert shown(where, ["ada", "0831", 7, 8], {"key": "k", "note": "n"}) == (
        ["ada", HIDDEN, HIDDEN, HIDDEN],
        {"key": HIDDEN, "note": "n"},
    )
    assert named_shown("**", {"1": "url", "a": 1}) == {"1": "url", "a": HIDDEN}
    assert named_shown("", {"pin": "0831"}) == {"pin": "0831"}
    assert not hides("2", "12")


def test_the_texts_of_a_value_are_found_however_it_is_written() -> None:
    value = {"deep": ["hunter2\nsecond line", b"bytes-42", 123456], "short": "abc", "true": True}
    texts = texts_of("1", [value], {})
    for text in ("hunter2\nsecond line", repr("hunter2\nsecond line"), '"hunter2\\nsecond line"', "x bytes-42 x"):
        assert "hunter2" not in without(texts, text)
        assert "bytes-42" not in without(texts, text)
    assert without(texts, "second line; 123456; abc; true") == f"{HIDDEN}; {HIDDEN}; abc; true"


@given(st.text(min_size=4), st.text(), st.text())
def test_no_secret_text_is_left(secret: str, before: str, after: str) -> None:
    texts = texts_of("1", [secret], {})
    for text in (f"{before}{secret}{after}", f"{before}{secret!r}{after}"):
        found = without(texts, text)
        assert secret not in found or secret in HIDDEN or secret in before + HIDDEN + after


def test_a_text_is_shown_without_what_its_arguments_hide() -> None:
    args = b"\x92\x91\xa6hunter\x80"
    assert hidden_in("1", b"\xc1", "a hunter") == "a hunter"
    assert hidden_in("", args, "a hunter") == "a hunter"
    assert hidden_in("1", args, "a hunter") == "a ***"
    assert hidden_in("1 !", args, "a hunter") == "encrypted"
    assert hidden_in("1", b"\x92\x91\xc7\x01\x09x\x80", "a hunter") == "encrypted"


def test_a_refused_secret_is_not_told() -> None:
    app = Headrace("redis://127.0.0.1:1")

    @app.task(name="t.open")
    def task(way: Secret[list[int]], other: list[int]) -> None: ...

    for arguments, name in (((["hunter2"], [1]), "way"), (([1], ["hunter2"]), "other")):
        with pytest.raises(ArgumentError) as told:
            task.job(*arguments)  # type: ignore[arg-type]
        assert repr(name) in str(told.value)
        assert "hunter2" not in str(told.value)
    assert "it is secret" not in str(told.value)


def test_keys_of_a_refused_secret_are_not_told() -> None:
    app = Headrace("redis://127.0.0.1:1")

    @app.task(name="keep")
    def keep(safe: Secret[dict[str, Any]], **more: Secret[Any]) -> None: ...

    for value, fault in (((1,), "tuple would arrive as list"), (object(), "cannot be sent")):
        for call in ({"safe": {"pin-4711": [value]}}, {"safe": {}, "other": {"pin-4711": value}}):
            with pytest.raises(ArgumentError, match=fault) as refused:
                keep.job(**call)
            assert "4711" not in str(refused.value)


def test_a_limit_by_a_secret_argument_is_refused() -> None:
    app = Headrace("redis://127.0.0.1:1")
    app.limit("pins", by="pin")

    @app.task(name="t.login", limits=["pins"])
    def task(user: str, pin: Secret[str]) -> None: ...

    with pytest.raises(OptionsError, match="secret"):
        app.limits.declared()
