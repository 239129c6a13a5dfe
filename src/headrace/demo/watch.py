"""Follow the demo's workflow to its end, and read what its nodes went through.

Reads the store as any program would, in bounded pages. Starts nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.demo import demo_tasks
from headrace.model.job import State
from headrace.model.workflow import NodeRecord, WorkflowState
from headrace.workflows.run import WorkflowRun

# Nodes that one look reads, as long as they have not all ended.
PAGE = 100


class StageProgress:
    """What is known of the run so far.

    Attributes:
        defined: nodes of the definition; all others were added by the run.
        state: of the workflow, a moment ago; so are the others.
        done: nodes that had ended.
        total: nodes that there were.
        running: jobs that ran.
        files: how many files the scan found; 0: it had not ended.
    """

    def __init__(self, run: WorkflowRun, defined: int) -> None:
        self.defined = defined
        self.state = WorkflowState.PENDING
        self.done = self.total = self.running = self.files = 0
        self._run = run
        self._cursor: str | None = None
        self._told: set[int] = set()

    def look(self) -> list[str]:
        """Learn what happened since the last look; a sentence for each job that survived something.

        Cost: four round trips, and two more for each 100 nodes that ended.
        """
        # Read before the nodes are: what ends in between is found by their pages, or by the next look.
        record = self._run.refresh()
        self.running = demo_tasks.app.overview().states.get(State.RUNNING, 0)
        news = list(self._survivors())
        self.state, self.done, self.total = record.state, record.done, record.total
        return news

    def _survivors(self) -> Iterator[str]:
        """Of the nodes that were added; the first ones of them that have not ended are where the next look begins."""
        if self._cursor is None:
            first = self._run.nodes(limit=self.defined)
            scanned = first[0].job
            if scanned.state is not State.SUCCEEDED or first.next is None:
                return
            self.files = len(scanned.result)
            self._cursor = first.next
        while True:
            page = self._run.nodes(limit=PAGE, after=self._cursor)
            for node in page:
                if node.job.state is State.SUCCEEDED and node.number not in self._told:
                    self._told.add(node.number)
                    if text := survived(node):
                        yield text
            if page.next is None or not all(node.job.state.final for node in page):
                return
            self._cursor = page.next


def collect(run: WorkflowRun) -> list[NodeRecord]:
    """All nodes. Cost: two or three round trips per 1,000."""
    found: list[NodeRecord] = []
    cursor: str | None = None
    while True:
        page = run.nodes(limit=1000, after=cursor)
        found += page
        if page.next is None:
            return found
        cursor = page.next


def survived(node: NodeRecord) -> str:
    """What went wrong with a job that succeeded all the same; empty when nothing did."""
    job = node.job
    if job.crashes:
        return f"a runner was killed while {_work(node)}: its job ran again and succeeded, start {job.attempt}"
    if job.failures:
        return f"{_work(node)} raised: its job was retried and succeeded, start {job.attempt}"
    return ""


def _work(node: NodeRecord) -> str:
    """What the job did, by its file if it has one."""
    job = node.job
    if job.task != demo_tasks.measure.name or node.facts.map:
        return f"running {node.facts.name!r}"
    return f"measuring {job.result.name}"
