from __future__ import annotations

from tests.scripts.stage import Stage


def test_workers_that_know_a_parked_task_and_serve_its_queue_hear_of_it_once(stage: Stage) -> None:
    stage.register("knows", queues="low,q", tasks={"new": "async"})
    stage.register("serves-another", queues="default,qq", tasks={"new": "async"})
    stage.register("knows-another", queues="q", tasks={"add": "process"})
    heard = {name: stage.subscribe(stage.keys.mail(name)) for name in ("knows", "serves-another", "knows-another")}
    stage.register("dead", lease=1, queues="q", tasks={"new": "async"})
    stage.put(3, task="new", queue="q")
    claims = stage.take(queues=["q"])
    stage.settle(*(stage.outcome(claim, "parked") for claim in claims))
    assert heard["knows"].get_message(timeout=20)["data"] == b"parked:new"
    stage.client.publish(stage.keys.mail("knows"), "the end")
    assert heard["knows"].get_message(timeout=20)["data"] == b"the end"
    for name in ("serves-another", "knows-another"):
        stage.client.publish(stage.keys.mail(name), "the end")
        assert heard[name].get_message(timeout=20)["data"] == b"the end"
