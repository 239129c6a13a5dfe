"""``bulk`` has no call of its own: ``test_bulk_count`` plays it. Here: which script includes it."""

from __future__ import annotations

from headrace.protocol.script import load


def test_it_is_a_part_of_what_uses_it() -> None:
    assert "bulk" in {file for file, _ in load("bulk_count").places}
