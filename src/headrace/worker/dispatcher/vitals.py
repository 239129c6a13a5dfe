"""How a dispatcher fares, as probes ask it: whether it holds its lease, has runners, and claims what it could run."""

from __future__ import annotations

from headrace.worker.dispatcher.claiming import Claiming
from headrace.worker.dispatcher.duties.maintenance import Maintenance
from headrace.worker.dispatcher.placement import Placement
from headrace.worker.dispatcher.worker_state import WorkerState
from headrace.worker.health_stamps import ANSWERED, DRAINING, REGISTERED, RUNNERS


class Vitals:
    """What a worker's health depends on, as far as its dispatcher knows it. Decides nothing."""

    def __init__(self, worker: WorkerState, placement: Placement, maintenance: Maintenance, claiming: Claiming) -> None:
        self._worker = worker
        self._pool, self._renewal = placement.pool, maintenance.renewal
        self._claiming = claiming
        self._starving = 0.0

    def look(self, now: float) -> tuple[int, float, float]:
        """Flags, end of the lease and since when it starves, as :class:`headrace.worker.health_stamps.Stamp` has them.

        To be called about once a second: it starves from the first look on that finds jobs and room for them.
        """
        worker, claiming = self._worker, self._claiming
        kinds = {
            handle.kind for handle in self._pool.assignment.handles.values() if not (handle.starting or handle.single)
        }
        flags = REGISTERED if worker.owner and not worker.fenced else 0
        flags |= 0 if worker.requests.away else ANSWERED
        flags |= RUNNERS if kinds.issuperset(worker.kinds) else 0
        flags |= 0 if worker.phase == "working" else DRAINING
        # A claim that was answered since may have taken what the last renewal saw.
        ready = self._renewal.ready and claiming.answered < self._renewal.looked
        self._starving = (self._starving or now) if ready and claiming.has_room(now) else 0.0
        return flags, self._renewal.lease_until, self._starving
