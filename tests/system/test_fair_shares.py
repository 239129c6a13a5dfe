"""Values of a limit with weights get their shares, as ``python -m bench fairness`` counts them."""

from __future__ import annotations

import pytest

from bench.context import Context
from bench.fairness import share_error

pytestmark = pytest.mark.system


def test_the_shares_of_values_are_within_five_percent_of_their_weights() -> None:
    assert share_error(Context(peers=False, quick=True, say=print)) <= 5
