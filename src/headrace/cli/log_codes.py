"""The codes of the worker's own log lines: they stay when the words of a line change. docs/logs.md lists them.

A line is known by its template. One whose template is ``%s`` gives its code with ``extra``; those about the end of a
start are in ``worker/dispatcher/job_log.py``.
"""

from __future__ import annotations

#: By template.
CODES: dict[object, str] = {
    "worker starts": "worker.starts",
    "worker %s serves %s": "worker.serves",
    "worker %s stops claiming: jobs that have run: %d; that still run: %d": "worker.draining",
    "there was nothing to run for %g s": "worker.idle",
    "worker %s leaves: jobs that have run: %d": "worker.left",
    "%s still holds jobs; they come back when its lease is over": "worker.left_jobs",
    "%s: %d jobs are killed and handed back, and no crash is counted": "shutdown.timeout",
    "leaving runners that do not exit to the supervisor": "shutdown.runners_stay",
    "%s: %d at once, %d before": "worker.resized",
    "not resized: %s": "worker.not_resized",
    "cannot do what was asked of this worker: %.100r": "worker.not_understood",
    "%d lines of output were dropped, since their reader was too slow": "log.dropped",
    "waiting for %s%s": "store.waiting",
    "%s answers again": "store.back",
    "%s accepts %s again": "store.back",
    "the lease of %s could not be kept: stopping its jobs": "lease.lost",
    "the server lost data, the lease of %s among it: stopping its jobs": "store.lost_data",
    "the server lost data, which this worker repairs: %d claims are stored again, %d batches of outcomes are sent "
    "again, %d unknown jobs are returned": "store.lost_data",
    "refused, since a newer start owns it or the server lost it: %s": "outcome.refused",
    "refused, since a newer start owns them or the server lost them: %d jobs, such as %s": "outcome.refused",
    "stopping job %s: the server lost its start, and it starts again": "job.lost_start",
    "job %s was ready, but its record is gone or alien; it left the queue": "job.no_record",
    "job %s: its id, its priority or its record cannot be read: quarantined": "job.unreadable",
    "job %s: its record names no task": "job.no_task",
    "job %s wants the unknown task %s: parked until a worker knows it": "job.parked",
    "schedule %s is not that of this code: one of this name was stored otherwise; delete it": "schedule.taken",
    "schedule %s: its record cannot be read; delete and declare it anew": "schedule.unreadable",
    "the server's clock was set back: schedule %s is reckoned anew from now": "schedule.rewound",
    "this worker cannot reckon the ticks of schedule %s: %s": "schedule.failed",
    "the supervisor died: stopping": "supervisor.died",
    "the dispatcher died (%s)": "dispatcher.died",
    "the dispatcher has not moved for %.1f s and its lease ends: killing its runners": "dispatcher.silent",
    "the dispatcher has not moved for %.0f s: it is killed, since the worker stops": "dispatcher.killed",
    "a process of the worker failed": "process.failed",
    "cannot fork a process (%s); trying again in %.1f s": "fork.failed",
    "runner %d wrote what is no message into its socket: it is killed and replaced": "runner.garbled",
    "%s: this runner is replaced": "lifespan.failed",
    "the lifespan %s yields more than once: what follows its second yield never runs": "lifespan.yields",
    "the lifespan %s took too long to leave, and was cut": "lifespan.cut",
    "the lifespan %s failed while it was left": "lifespan.leave_failed",
    "the task that holds the lifespans was cancelled, by a job or for a failed child of a task group: they stay open "
    "until the runner leaves": "lifespan.cancelled",
    "the hook %s took more than %.2g s around a fork and was interrupted": "hook.cut",
    "the hook %s failed around a fork": "hook.failed",
    "metrics server listens on %s": "metrics.listens",
    "the metrics server cannot start yet: %s": "metrics.waiting",
    "the %s exited (%s); restarting": "process.restarted",
    "the event hook %s raised": "watcher.hook_raised",
    "no process for the event hook %s (%s): again in %g s": "watcher.no_process",
    "the event hook %s failed (%s); it is called again in %g s": "watcher.hook_failed",
    "the event hook %s failed %d times, and goes past these events: headrace events --order asc --after %s": (
        "watcher.hook_given_up"
    ),
    "the exit hook %r failed after a call of an event hook": "watcher.exit_hook",
    "hooks and alarms are not looked after: %s": "watcher.refused",
    "done before the fork, since earlier runs did it in each runner: %s": "preload.done",
    "what earlier runs learned is not known: %s": "preload.unknown",
    "no trial can be forked (%s): nothing more is preloaded": "preload.no_trial",
    "reloading: new process %d is warming up": "reload.begun",
    "a reload is in progress; another one follows it": "reload.waiting",
    "new process %d is serving; old process %d is draining": "reload.done",
    "new process %d is serving; old process %d is draining, then only supervises": "reload.done",
    "the new process could not be started, so nothing is replaced: %s": "reload.failed",
    "the new process did not become ready, so nothing is replaced: %s": "reload.failed",
    "process %d, which was serving, was ended by signal %d": "reload.died",
    "%s cannot be started again (%s): the old code stays in memory": "reload.stays",
    "%s changed": "reload.changed",
}


def code_of(template: object) -> str:
    """The code of a line of ours; empty for others."""
    return CODES.get(template, "") if isinstance(template, str) else ""
