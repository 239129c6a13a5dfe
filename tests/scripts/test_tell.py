from __future__ import annotations

from headrace.protocol import admin
from tests.scripts.stage import Stage


def test_what_it_tells_stands_beside_its_facts_and_ends_with_it(stage: Stage) -> None:
    owner = stage.register()
    for text in ("first", "second"):
        assert stage.run(admin.tell(stage.keys, owner, text))
        (worker,) = stage.run(admin.overview(stage.keys)).workers
        assert worker.facts["roster"] == text


def test_nothing_is_left_of_one_that_is_gone(stage: Stage) -> None:
    assert not stage.run(admin.tell(stage.keys, "nobody", "text"))
    assert stage.client.exists(stage.keys.owner("nobody")) == 0
