"""``bite`` has no call of its own: ``test_errand_bite`` plays it. Here: who includes it."""

from __future__ import annotations

from headrace.protocol.script import load


def test_it_is_a_part_of_what_uses_it() -> None:
    assert "bite" in {file for file, _ in load("errand_bite").places}
