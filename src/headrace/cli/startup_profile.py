"""``headrace workers startup``: what jobs lose to what every runner does again after its fork, and what to do about it.

Reads what the workers themselves wrote into their records; works out nothing but sums over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.output import to_json
from headrace.cli.units import several
from headrace.model.notation import duration

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.protocol.overviews import WorkerFacts


def show(output: Output, workers: list[WorkerFacts], name: str | None) -> None:
    """Print the startup profiles of the workers whose name begins with ``name``; OperationFault if there is none."""
    from headrace.cli.exit_codes import OperationFault

    chosen = [one for one in workers if name is None or one.owner.startswith(name)]
    if not chosen:
        raise OperationFault(
            "no worker serves this server: start one with headrace worker module:app"
            if name is None
            else f"no worker is called {name}: headrace workers list has the names; the beginning of one is enough"
        )
    profiles = {
        one.owner: _read(one.metadata.get("startup_profile", "")) for one in sorted(chosen, key=lambda one: one.owner)
    }
    if output.documents({"worker": owner, **_facts(profile)} for owner, profile in profiles.items()):
        return
    _table(output, profiles)
    for owner, profile in profiles.items():
        if profile.get("done"):
            done = ", ".join(f"{what} ({duration(cost)})" for what, cost in profile["done"].items())
            output.line(f"done before the fork by {owner} itself: {done}")
    for what, why in sorted({pair for profile in profiles.values() for pair in profile.get("refused", {}).items()}):
        output.line(f"not to be preloaded: {what}: {why}")
    if wanted := _all(profiles, "preload"):
        output.line(f"preload={to_json(wanted)}")
    if maybe := _all(profiles, "maybe"):
        output.line(f"--preload auto tries at the next start: {', '.join(maybe)}")


def _read(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _table(output: Output, profiles: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            f"{row['jobs']:,}",
            row["kind"],
            row["task"] or "(each new runner)",
            duration(row["lost"]),
            duration(row["total"]),
            ", ".join(f"{what} {duration(cost)}" for what, cost in row["what"][:5]),
        )
        for row in sorted(
            (row for profile in profiles.values() for row in profile.get("rows", ())), key=lambda r: -r["total"]
        )
    ]
    if rows:
        output.table((">jobs", "kind", "task", ">lost each", ">in all", "to what"), rows)
    else:
        output.remark(f"{several(len(profiles), 'worker')}: no runner repeats set-up that is worth a preload")


def _all(profiles: dict[str, dict[str, Any]], what: str) -> list[str]:
    """What all of them should preload, or try, together; each in its own order."""
    return list(dict.fromkeys(name for profile in profiles.values() for name in profile.get(what, ())))


def _facts(profile: dict[str, Any]) -> dict[str, Any]:
    """The same for programs: durations in seconds."""

    def seconds(costs: dict[str, int]) -> dict[str, float]:
        return {what: cost / 1e6 for what, cost in costs.items()}

    return {
        "tasks": [
            {
                "task": row["task"],
                "kind": row["kind"],
                "jobs": row["jobs"],
                "profiled": row["profiled"],
                "lost_each": row["lost"] / 1e6,
                "lost": row["total"] / 1e6,
                "to": seconds(dict(row["what"])),
            }
            for row in profile.get("rows", ())
        ],
        "preload": profile.get("preload", []),
        "maybe": profile.get("maybe", []),
        "auto": profile.get("auto", False),
        "done": seconds(profile.get("done", {})),
        "refused": profile.get("refused", {}),
        "fork_to_ready": seconds(profile.get("born", {})),
    }
