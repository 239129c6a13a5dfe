from __future__ import annotations

from headrace.protocol.consume import Held, holds
from tests.scripts.stage import Stage


def test_numbers_and_claims_are_told(stage: Stage) -> None:
    stage.put(3)
    stage.register()
    claims = stage.claim(limit=2, request=7).jobs
    stage.settle(stage.outcome(claims[0]), request=8)
    (last,) = stage.claim(request=9).jobs
    held = [(claim.id, claim.token) for claim in (claims[1], last)]
    assert stage.run(holds(stage.keys, "w1", 0, 500)) == Held(9, last.token, 8, held)


def test_claims_are_told_page_by_page(stage: Stage) -> None:
    stage.put(250)
    claims = stage.take()
    found: list[tuple[str, int]] = []
    while True:
        page = stage.run(holds(stage.keys, "w1", found[-1][1] if found else 0, 100))
        assert page is not None
        found += page.starts
        if len(page.starts) < 100:
            break
    assert found == [(claim.id, claim.token) for claim in claims]


def test_an_incarnation_that_is_not_known_has_nothing(stage: Stage) -> None:
    assert stage.run(holds(stage.keys, "w1", 0, 500)) is None


def test_one_that_has_just_begun_has_done_nothing(stage: Stage) -> None:
    stage.register()
    assert stage.run(holds(stage.keys, "w1", 0, 500)) == Held(0, 0, 0, [])
