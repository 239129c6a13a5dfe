"""``headrace workers audit``: what jobs lose to what every runner does again after its fork, and what to do about it.

Reads what the workers themselves wrote into their records; works out nothing but sums over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.measures import several
from headrace.cli.output import to_json
from headrace.worker.waste import spell

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.protocol.admin import WorkerFacts


def show(output: Output, workers: list[WorkerFacts], name: str | None) -> None:
    """Print the audits of the workers whose name begins with ``name``.

    Raises:
        OperationFault: there is none.
    """
    from headrace.cli.exits import OperationFault

    chosen = [one for one in workers if name is None or one.owner.startswith(name)]
    if not chosen:
        raise OperationFault(
            "no worker serves this server: start one with headrace worker module:app"
            if name is None
            else f"no worker is called {name}: headrace workers list has their names, of which the beginning is enough"
        )
    audits = {one.owner: _read(one.facts.get("audit", "")) for one in sorted(chosen, key=lambda one: one.owner)}
    if output.json:
        for owner, audit in audits.items():
            output.document({"worker": owner, **_facts(audit)})
        return
    _table(output, audits)
    for owner, audit in audits.items():
        if audit.get("done"):
            done = ", ".join(f"{what} ({spell(cost)})" for what, cost in audit["done"].items())
            output.line(f"done before the fork by {owner} itself: {done}")
    for what, why in sorted({pair for audit in audits.values() for pair in audit.get("refused", {}).items()}):
        output.line(f"not to be preloaded: {what}: {why}")
    if wanted := _preload(audits):
        output.line(f"preload={to_json(wanted)}")


def _read(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _table(output: Output, audits: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            row["task"] or "(each new runner)",
            row["kind"],
            f"{row['jobs']:,}",
            spell(row["lost"]),
            spell(row["total"]),
            ", ".join(f"{what} {spell(cost)}" for what, cost in row["what"][:5]),
        )
        for row in sorted(
            (row for audit in audits.values() for row in audit.get("rows", ())), key=lambda r: -r["total"]
        )
    ]
    if rows:
        output.table((">jobs", "kind", "task", ">lost each", ">in all", "to what"), [
            (jobs, kind, task, each, total, what) for task, kind, jobs, each, total, what in rows
        ])  # fmt: skip
    else:
        output.remark(f"{several(len(audits), 'worker')}: no runner does again what would be worth doing once before")


def _preload(audits: dict[str, dict[str, Any]]) -> list[str]:
    """What all of them should preload together; each in its own order, modules before functions."""
    names = dict.fromkeys(name for audit in audits.values() for name in audit.get("preload", ()))
    return sorted(names, key=lambda name: ":" in name)


def _facts(audit: dict[str, Any]) -> dict[str, Any]:
    """The same for programs: durations in seconds."""

    def seconds(costs: dict[str, int]) -> dict[str, float]:
        return {what: cost / 1e6 for what, cost in costs.items()}

    return {
        "tasks": [
            {
                "task": row["task"],
                "kind": row["kind"],
                "jobs": row["jobs"],
                "audited": row["audited"],
                "lost_each": row["lost"] / 1e6,
                "lost": row["total"] / 1e6,
                "to": seconds(dict(row["what"])),
            }
            for row in audit.get("rows", ())
        ],
        "preload": audit.get("preload", []),
        "auto": audit.get("auto", False),
        "done": seconds(audit.get("done", {})),
        "refused": audit.get("refused", {}),
        "fork_to_ready": seconds(audit.get("born", {})),
    }
