"""A duty: line up the calls of hooks, and begin looks at alarms. Decides; does no I/O, and runs no code of users.

Once a second it asks for the events behind the cursor of each hook that this code declares. A script stores the job of
the call and moves the cursor, and refuses where another dispatcher has moved it: each event is in one job of each hook.
The reply names the one dispatcher that looks at alarms, every ten seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.model.activity import HOOK_TASKS, event_of
from headrace.model.ids import make_id, ordered_id
from headrace.protocol import operations
from headrace.protocol.operations import DueCall
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Worker

# Seconds between two looks, and between two calls of a hook; and between two looks at alarms.
EVERY = 1.0
ALARMS_EVERY = 10.0
# Events of one call.
MOST = 100
# Where the store keeps when alarms were looked at last.
_ALARMS = "alarms"


class OwnCalls:
    def __init__(self, worker: Worker, desk: Desk) -> None:
        self._worker, self._desk, self._requests = worker, desk, desk.requests
        self._hooks = worker.hooks
        self.makes_ready = worker.prompt_hooks
        pause = 0.0 if worker.prompt_hooks else EVERY
        self._asked: list[tuple[str, int, Sequence[str]]] = [
            (f"hook:{hook.name}", round(pause * 1e6), list(hook.kinds)) for hook in worker.hooks
        ]
        if worker.look_at_alarms is not None and desk.home:
            self._asked.append((_ALARMS, round(ALARMS_EVERY * 1e6), ()))
        self.at = 0.0 if self._asked else NEVER
        self.stored = False
        self._stores: list[Step] = []

    def steps(self, now: float) -> list[Step]:
        found, self._stores = self._stores, []
        if found or self._worker.phase != "working":
            # It stays due until that is answered.
            self.at = now if found else NEVER
            return found
        self.at = now + EVERY
        if self._requests.pauses("own_calls", now) or self._requests.pauses("own_store", now):
            return []
        return [(operations.due_calls(self._desk.keys, self._asked, MOST), self._found)]

    def _found(self, calls: Sequence[DueCall]) -> None:
        for n, call in enumerate(calls):
            if n == len(self._hooks):
                if call.due and self._worker.look_at_alarms is not None:
                    self._worker.look_at_alarms()
            elif call.last != call.was:
                hook = self._hooks[n]
                rows = [row for row in call.rows if hook.wants(event_of(*row))]
                args = msgspec.msgpack.encode([[rows], {}]) if rows else b""
                self._store(HOOK_TASKS + hook.name, args, self._asked[n][0], call.was, call.last)
        if self._stores:
            self.at = self._worker.now

    def _store(self, task: str, args: bytes, hook: str, was: str, at: str) -> None:
        """Store a job of this task, and move the cursor; without arguments only that moves."""
        worker = self._worker
        id = ""
        if args:
            moment = self._desk.server_time(worker.now) // 1000
            id = ordered_id(make_id(moment, worker.random.getrandbits(55), self._desk.keys.shard))
        fields: dict[str, str | bytes | int] = {"task": task, "args": args, "key": task, "more": 1}
        call = operations.store_own(self._desk.keys, id, fields, key=task, hook=hook, was=was, at=at)
        self._stores.append((call, lambda word: self._on_stored(word, id)))

    def _on_stored(self, word: str, id: str) -> None:
        self.at = self._worker.now + EVERY
        self.stored = self.stored or (word == "stored" and bool(id))
