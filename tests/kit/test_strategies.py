"""What the strategies generate survives the way through the store, and reaches the task as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Dict, List  # noqa: UP035 - people have them

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Headrace
from headrace.errors import OptionsError
from headrace.testing import Kit, strategies
from headrace.testing.kit import bound
from headrace.testing.strategies import Arguments
from tests.kit import shop


@pytest.mark.parametrize("task", [shop.order, shop.anything, shop.send], ids=lambda task: task.name)
def test_what_is_generated_reaches_the_task(headrace_app: Kit, task: Any) -> None:
    headrace_app.mode = "inline"

    @settings(max_examples=10)
    @given(strategies.arguments(task))
    def check(call: Arguments) -> None:
        args, kwargs = call
        stub = headrace_app.stub(task, returns="")
        task.enqueue(*args, **kwargs)
        stub.remove()
        (found,) = stub.calls
        assert bound(task, *found) == bound(task, args, kwargs)

    check()


def test_anything_may_stand_inside_of_an_annotation() -> None:
    """``dict[str, Any]`` is a frequent annotation, and hypothesis makes nothing of it."""
    app, seen = Headrace("redis://localhost:1/0"), set[type]()

    @app.task(name="take")
    def take(
        by: dict[str, Any],
        rows: Sequence[object],
        pair: tuple[int, Any],
        maybe: list[Any] | None = None,
        *,
        old: Dict[str, List[Any]],  # noqa: UP006 - people have it
    ) -> None: ...

    @settings(max_examples=100, deadline=None)
    @given(strategies.arguments(take))
    def check(call: Arguments) -> None:
        assert set(call[1]) - {"maybe"} == {"by", "rows", "pair", "old"}
        assert all(isinstance(key, str) for key in call[1]["by"])
        seen.update(map(type, call[1]["by"].values()))

    check()
    assert len(seen) > 2


def test_single_parameters_may_be_given(headrace_app: Kit) -> None:
    @settings(max_examples=5)
    @given(strategies.arguments(shop.send, user=st.just(7)))
    def check(call: Arguments) -> None:
        assert call[1]["user"] == 7

    check()
    with pytest.raises(OptionsError, match="no parameter 'nobody'"):
        strategies.arguments(shop.send, nobody=st.just(7))
