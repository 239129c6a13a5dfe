"""What the strategies generate survives the way through the store, and reaches the task as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OptionsError
from headrace.testing import Kit, strategies
from headrace.testing.expectations import bound
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


def test_single_parameters_may_be_given(headrace_app: Kit) -> None:
    @settings(max_examples=5)
    @given(strategies.arguments(shop.send, user=st.just(7)))
    def check(call: Arguments) -> None:
        assert call[1]["user"] == 7

    check()
    with pytest.raises(OptionsError, match="no parameter 'nobody'"):
        strategies.arguments(shop.send, nobody=st.just(7))
