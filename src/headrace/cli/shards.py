"""``headrace shards``: where the shards of the store are, and what each holds."""

from __future__ import annotations

from typing import Any

from headrace.cli.output import span
from headrace.cli.session import Session


def shards(session: Session) -> None:
    """List the shards: their servers, what each holds, and whether workers serve them.

    A store has one shard unless its URL or the setting shards says otherwise.
    """
    with session.view(hide=True) as app:
        store = app.store
        rows = [_facts(store, n) for n in range(app.client.count)]
    if session.output.documents(rows):
        return
    heads = ("shard", "server", ">slot", ">ready", ">running", ">oldest wait", ">workers")
    session.output.table(heads, [tuple(_shown(value) for value in row.values()) for row in rows])
    if unserved := [str(row["shard"]) for row in rows if row["workers"] == 0]:
        session.output.remark(
            f"no worker serves shard {', '.join(unserved)}: start one with the same URLs, headrace worker MODULE:APP"
        )
    if silent := [str(row["shard"]) for row in rows if row["workers"] is None]:
        session.output.remark(f"shard {', '.join(silent)} does not answer; the others go on")


def _facts(store: Any, shard: int) -> dict[str, Any]:
    from redis.crc import key_slot

    from headrace.errors import StoreUnavailable
    from headrace.protocol.overviews import overview

    target, keys = store.shards[shard]
    slot = key_slot(keys("schema").encode()) if target.seeds else None
    row: dict[str, Any] = {"shard": shard, "server": target.shown, "slot": slot}
    try:
        call = overview(keys, details=False)
        seen = store.run(call) if keys.count == 1 else store.run_at(shard, call)
    except StoreUnavailable:
        return row | {"ready": None, "running": None, "oldest": None, "workers": None}
    waits = [wait for queue in seen.queues if (wait := queue.waited(seen.now)) is not None]
    states = seen.states
    return row | {
        "ready": states["ready"], "running": states["running"], "oldest": max(waits, default=None),
        "workers": len(seen.live),
    }  # fmt: skip


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return span(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
