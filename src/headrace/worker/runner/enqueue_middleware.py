"""The enqueue middleware of an application around what a running node adds to its workflow.

The dispatcher stores the nodes; what a middleware changes, it changes before they are handed over.
"""

from __future__ import annotations

from headrace.context import CurrentJob
from headrace.model.ended import Growing
from headrace.model.ids import flow_of
from headrace.model.workflow import Graft
from headrace.store.client import Client
from headrace.tasks.submission import Submission, around, of_nodes
from headrace.worker.dispatcher.duties.workflow_growth import Grown, pack_grown, unpack_grown
from headrace.worker.runner.current_start import running


def submitted(client: Client, job: CurrentJob, ended: Growing) -> Growing:
    """An outcome ``growing`` with what middleware changed; raises what a middleware raises."""
    act, grown = _act(job, ended)
    with running(job), around(client, act):
        return _changed(ended, act, grown)


async def asubmitted(client: Client, job: CurrentJob, ended: Growing) -> Growing:
    """See :func:`submitted`."""
    act, grown = _act(job, ended)
    with running(job):
        async with around(client, act):
            return _changed(ended, act, grown)


def _act(job: CurrentJob, ended: Growing) -> tuple[Submission, Grown]:
    grown = unpack_grown(ended.result)
    # Their numbers, and so their ids, are reserved when the dispatcher stores them.
    return of_nodes("grow", grown.graft.nodes, flow_of(job.id), lambda _: ""), grown


def _changed(ended: Growing, act: Submission, grown: Grown) -> Growing:
    graft = grown.graft
    made = Graft(act.nodes(graft.nodes), graft.join, graft.gather)
    return Growing(pack_grown(grown.result, made), ended.ttl)
