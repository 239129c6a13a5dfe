"""The names that the package itself gives."""

from __future__ import annotations

from typing import Any

import headrace


def test_a_star_import_gives_every_public_name() -> None:
    given: dict[str, Any] = {}
    exec("from headrace import *", given)
    assert set(headrace._HOMES) <= set(given)
    assert given["Headrace"] is headrace.Headrace
