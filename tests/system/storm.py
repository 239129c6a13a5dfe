"""What programs and people do in a storm: every feature at once, by the dice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError
from headrace.protocol.operations import JobFilter
from tests.system import storm_app
from tests.system.storm_app import app

QUEUES = ("default", "low")
WHO = "abcde"


class Producer:
    """One act after another; several producers run at once.

    Attributes:
        jobs: those that the store acknowledged, by their tasks' names.
        runs: of workflows.
        places: of each ordered job: whose line, and its number there.
        refused: typed errors, which are answers.
    """

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._numbers = Counter[str]()
        self.jobs: dict[str, list[Any]] = defaultdict(list)
        self.runs: list[Any] = []
        self.places: dict[str, tuple[str, int]] = {}
        self.refused = Counter[str]()
        self._acts: tuple[Callable[[], None], ...] = (
            *[self._one] * 12, *[self._about_somebody] * 5, self._in_order, self._in_order, self._once, self._many,
            self._workflow, self._change_a_job, self._change_a_job, self._change_a_workflow, self._many_at_once,
            self._pause, self._scale, self._look,
        )  # fmt: skip

    def run(self, over: threading.Event) -> None:
        while not over.wait(self._dice.random() * 0.02):
            try:
                self._dice.choice(self._acts)()
            except HeadraceError as error:
                self.refused[type(error).__name__] += 1

    def _keep(self, task: Any, job: Any) -> None:
        self.jobs[task.name.rpartition(".")[2]].append(job)

    def _options(self) -> dict[str, Any]:
        dice = self._dice
        options: dict[str, Any] = {"queue": dice.choice(QUEUES), "priority": dice.choice([0, 0, 5, -5])}
        if dice.random() < 0.1:
            options["delay"] = dice.random() * 2
        if dice.random() < 0.05:
            options["expires"] = 0.01 + dice.random() * 3
        if dice.random() < 0.2:
            options |= {"key": dice.choice(WHO)}
        return options

    def _one(self) -> None:
        task = self._dice.choice([
            storm_app.plain, storm_app.thready, storm_app.forky, storm_app.coroutine, storm_app.snoozing,
            storm_app.stubborn,
        ])  # fmt: skip
        self._keep(task, task.options(**self._options()).enqueue(self._dice.randrange(1000)))

    def _about_somebody(self) -> None:
        task = self._dice.choice([
            storm_app.limited, storm_app.paced, storm_app.preview, storm_app.sole, storm_app.debounced,
            storm_app.latest,
        ])  # fmt: skip
        options = self._options()
        if task is storm_app.debounced:
            options = {"queue": options["queue"]}
        self._keep(task, task.options(**options).enqueue(self._dice.choice(WHO), self._dice.randrange(1000)))

    def _in_order(self) -> None:
        who, queue = self._dice.choice(WHO), self._dice.choice(QUEUES)
        for _ in range(self._dice.randrange(1, 5)):
            task = self._dice.choice([storm_app.ordered, storm_app.ordered_coroutine])
            job = task.options(key=who, queue=queue).job(self._numbers[who])
            # Before it is stored: one whose reply is lost may run, too.
            self.places[job.id] = (f"{id(self)}-{who}", self._numbers[who])
            self._numbers[who] += 1
            app.enqueue_many([job])
            self._keep(task, job.handle)

    def _once(self) -> None:
        task = self._dice.choice([storm_app.once, storm_app.once_in_a_fork])
        self._keep(task, task.options(**self._options()).enqueue(1))

    def _many(self) -> None:
        dice = self._dice
        jobs = {
            "plain": [storm_app.plain.job(n) for n in range(dice.randrange(1, 40))],
            "limited": [storm_app.limited.job(dice.choice(WHO), n) for n in range(20)],
            "coroutine": [storm_app.coroutine.options(queue="low").job(n) for n in range(10)],
            "sole": [storm_app.sole.job(dice.choice(WHO), n) for n in range(5)],
        }
        together = [job for some in jobs.values() for job in some]
        dice.shuffle(together)
        app.enqueue_many(together)
        for name in ("plain", "limited", "coroutine"):
            self.jobs[name] += [job.handle for job in jobs[name]]

    def _workflow(self) -> None:
        run = self._dice.choice([storm_app.squares, storm_app.undone]).create(self._dice.randrange(1, 12))
        run.start()
        self.runs.append(run)

    def _change_a_job(self) -> None:
        if pool := [(name, job) for name, jobs in self.jobs.items() for job in jobs[-10:]]:
            name, job = self._dice.choice(pool)
            # Who asks for another start, or another place, has given up the promise.
            others = [] if "ordered" in name else [lambda: job.move(queue=self._dice.choice(QUEUES))]
            others += [] if "ordered" in name or "once" in name else [job.retry]
            self._dice.choice([job.cancel, *others])()

    def _change_a_workflow(self) -> None:
        if self.runs:
            run = self._dice.choice(self.runs[-20:])
            self._dice.choice([run.stop, run.start, run.cancel, run.retry_failed, run.delete])()

    def _many_at_once(self) -> None:
        verb, which = self._dice.choice([
            ("cancel", JobFilter("scheduled")),
            ("cancel", JobFilter("ready", queue="low")),
            ("retry", JobFilter("failed", task=storm_app.limited.name)),
            ("retry", JobFilter("failed", task=storm_app.sole.name)),
        ])  # fmt: skip
        app.bulk.start(verb, which, who="storm")

    def _pause(self) -> None:
        queue = app.queues["low"]
        if self._dice.random() < 0.5:
            queue.pause(0.1 + self._dice.random())
        else:
            queue.resume()

    def _scale(self) -> None:
        if workers := app.overview().workers:
            app.workers.scale(self._dice.choice(workers).metadata["place"], self._dice.randrange(1, 4), "process")

    def _look(self) -> None:
        app.overview()
        app.jobs.page(state="failed", limit=5)
        app.stats.find("storm", time.time() - 60)
        app.cache.delete("storm")
