"""What earlier runs of an application's jobs learned is done before the first fork: ``preload=auto``.

Owns the form in which the store keeps what was learned: a line ``TASK NAME`` for what a task's starts repeated, and
``TASK NAME WHY`` for what must not be done before the fork.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable

from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.model.notation import duration
from headrace.protocol import operations
from headrace.settings import AUTO, preload_names
from headrace.worker.forking import leak_check
from headrace.worker.preload import trial, warmup
from headrace.worker.preload.advice import NOTHING, Learned

log = logging.getLogger("headrace.worker")


def apply_learned(app: Headrace) -> Learned:
    """With ``preload=auto``: try in a child what earlier runs learned, and do here what stands the trial.

    Call it in the process that forks, after its warm-up and before it forks. Its store connection is closed again.

    Cost: one round trip; another one if something was refused.
    """
    if AUTO not in preload_names(app.settings.preload):
        return NOTHING
    keys = app.client.keys
    try:
        lines = app.client.run(operations.learned(keys))
        wanted, refused = _sorted_out(lines, app.tasks.keys())
        app.disconnect()
        verdicts = _tried(app, wanted)
        news = {name: word for name, word in verdicts.items() if word != trial.WARM}
        if news:
            app.client.run(operations.learn(keys, [f"{wanted[name]} {name} {word}" for name, word in news.items()]))
            app.disconnect()
    except HeadraceError as error:
        log.warning("what earlier runs learned is not known: %s", error)
        return NOTHING
    done = {name: cost for name, word in verdicts.items() if word == trial.WARM and (cost := _do(name)) is not None}
    if done:
        shown = ", ".join(f"{name} ({duration(cost)})" for name, cost in done.items())
        log.info("done before the fork, since earlier runs did it in each runner: %s", shown)
    return Learned(done, refused | news)


def _sorted_out(lines: Iterable[str], tasks: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What to try, with a task that needs it, in the order of trial; and what was refused before, with the reason."""
    # The empty name: what runners did outside of jobs.
    known = {"", *tasks}
    rows = [row for line in lines if len(row := line.split(" ", 2)) > 1 and row[0] in known]
    refused = {row[1]: row[2] for row in rows if len(row) == 3}
    wanted = {row[1]: row[0] for row in rows if row[1] not in refused and row[1] not in sys.modules}
    # Modules before functions, and packages before what is in them.
    order = sorted(wanted, key=lambda name: (":" in name, 0 if ":" in name else name.count(".")))
    return {name: wanted[name] for name in order}, refused


def _tried(app: Headrace, names: Iterable[str]) -> trial.Verdicts:
    """The verdicts on all; after an import that left something behind, the rest is tried in another child."""
    verdicts: trial.Verdicts = {}
    never = {task.function for task in app.tasks.values()}
    left = list(names)
    warmup.write_out()
    while left:
        try:
            found = trial.attempt(left, never)
        except OSError as error:
            log.warning("no trial can be forked (%s): nothing more is preloaded", error)
            break
        if not found:
            break
        verdicts |= found
        left = [name for name in left if name not in verdicts]
    return verdicts


def _do(name: str) -> int | None:
    """Do what stood the trial; the microseconds that it took, or None if it failed all the same."""
    before, began = leak_check.look(), time.monotonic_ns()
    try:
        warmup.preload(name)
    except (Exception, SystemExit):
        log.exception("the preload of %s failed, which its trial had not", name)
        return None
    cost = (time.monotonic_ns() - began) // 1000
    for complaint in warmup.complaints(f"the preload of {name}", before):
        log.error("%s", complaint, extra={"code": "setup.unsafe"})
    return cost
