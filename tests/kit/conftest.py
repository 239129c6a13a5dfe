"""The tests of the kit use it as its users do."""

from __future__ import annotations

import pytest

from headrace import Headrace
from tests.kit import shop


@pytest.fixture
def headrace_target() -> Headrace:
    shop.said.clear()
    shop.around.clear()
    return shop.app
