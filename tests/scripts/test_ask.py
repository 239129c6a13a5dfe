from __future__ import annotations

from headrace.protocol import admin
from tests.scripts.stage import Stage


def test_the_question_is_mailed(stage: Stage) -> None:
    owner = stage.register()
    mail = stage.subscribe(stage.keys.mail(owner))
    assert stage.run(admin.ask(stage.keys, owner, "who"))
    assert mail.get_message(timeout=20)["data"] == b"roster who"
    mail.close()


def test_nobody_is_asked_who_is_gone(stage: Stage) -> None:
    assert not stage.run(admin.ask(stage.keys, "nobody", "who"))
