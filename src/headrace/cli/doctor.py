"""``headrace doctor``: whether an installation is sound, and what repairs it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from headrace.cli.arguments import Yes, argument, option
from headrace.cli.output import bar_of, several
from headrace.cli.session import ExitCode, OperationFault, Session, confirm
from headrace.errors import EvictingServer, HeadraceError, StoreUnavailable

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.model.environment import Finding

BLIND = 2  # the exit code of a doctor that could not look; 1 says that it found something


def doctor(
    session: Session,
    part: Annotated[
        Literal["environment", "keyspace"] | None,
        argument("[PART]", "environment: the server and its settings; keyspace: what is stored. Default: both."),
    ] = None,
    repair: Annotated[
        bool, option("--repair", "Repair what cannot hurt: jobs in no or the wrong structure, dead claims, counters.")
    ] = False,
    yes: Yes = False,
) -> int:
    """Report what is wrong with an installation, each finding with its evidence and the command that repairs it.

    Without --repair nothing is changed. It may run beside workers: it takes 5 % of the server's time. The exit code is
    0 where all is well, 1 where something was found, 2 where it could not look.
    """
    if repair and part == "environment":
        raise OperationFault("--repair repairs what is stored: headrace doctor keyspace --repair")
    found = list["Finding"]()
    try:
        with session.view() as app:
            if part != "keyspace":
                _look_at_servers(app, found)
            # A server that cannot be used has nothing to look at.
            if part != "environment" and not any(one.id in ("refused", "eviction-policy") for one in found):
                stored = _keyspace(session, app, repair=False)
                if repair and _may_repair(stored, yes=yes):
                    stored = _keyspace(session, app, repair=True)
                found += stored
    except OperationFault:
        raise
    except Exception as error:  # noqa: BLE001 - whatever kept it from looking, it says so by its exit code
        if found:
            _tell(session, found)
        session.output.fault(str(error), type(error).__name__, BLIND)
        return BLIND
    _tell(session, found)
    return ExitCode.FAILED if any(one.severity != "unknown" for one in found) else ExitCode.OK


def _look_at_servers(app: Headrace, found: list[Finding]) -> None:
    """Add what is wrong with servers and settings. Raises an error where a server does not answer as it should."""
    from headrace.cli.server_check import sight_of
    from headrace.model.environment import Finding, judged
    from headrace.store.url import located

    refusal, queues = None, list[str]()
    try:
        largest = sorted(app.overview().queues, key=lambda queue: -queue.size)[:3]
        queues = [f"queue {queue.name}: {several(queue.size, 'job')}" for queue in largest if queue.size]
    except HeadraceError as error:
        refusal = error
    shards = list(zip(app.client.urls(), app.client.shards, strict=True))
    try:
        for url in dict.fromkeys(url for url, _ in shards):
            target = located(url, app.settings)
            for one in judged(sight_of(target, app.settings, app.settings.timeout, shards=shards)):
                if one.id == "full":
                    one = msgspec.structs.replace(one, evidence=(*one.evidence, *queues))  # noqa: PLW2901
                found += [] if one in found else [one]
    except Exception:
        # It says in one line what to do.
        if refusal is not None:
            raise refusal from None
        raise
    if isinstance(refusal, StoreUnavailable):
        raise refusal
    if refusal is None:
        found += _unserved(app)
    # Of an evicting server the table has a row.
    elif not isinstance(refusal, EvictingServer):
        found.insert(0, Finding("refused", "error", str(refusal), "", (type(refusal).__name__,)))


def _unserved(app: Headrace) -> list[Finding]:
    """Shards without a worker, where others have one."""
    from headrace.model.environment import Finding
    from headrace.protocol.overviews import overview

    parts = app.store.parts
    idle = [part.place for part in parts if not part.run(overview(part.keys, details=False)).live]
    if len(idle) in (0, len(parts)):
        return []
    meaning, step = "no worker serves a shard, and its jobs wait", "headrace worker MODULE:APP, with the same URL"
    return [Finding("unserved-shards", "warn", meaning, step, tuple(idle[:10]), len(idle))]


def _keyspace(session: Session, app: Headrace, *, repair: bool) -> list[Finding]:
    from headrace.admin.doctor import KeyspaceDoctor, findings_of
    from headrace.store.connection import driver_client

    # A store of another layout, or one that may drop jobs, is refused here.
    app.overview()
    found, repaired = list[list["Finding"]](), 0
    for store in app.store.parts:
        with (
            contextlib.closing(driver_client(store.target, app.settings.timeout)) as server,
            bar_of(session.output, server.dbsize(), "keys") as show,
        ):
            walk = KeyspaceDoctor(store, server, repair=repair, heard=show)
            found.append(walk.run())
            repaired += walk.repaired
    if repaired:
        with session.acting("repair", "keyspace", view=True) as (_, act):
            act.count, act.reply = repaired, f"repaired {several(repaired, 'fault')}"
        session.output.remark(act.reply)
    return findings_of(found)


def _may_repair(found: list[Finding], *, yes: bool) -> bool:
    from headrace.admin.doctor import REPAIRED

    wrong = sum(one.count for one in found if one.id in REPAIRED)
    if wrong and not yes:
        confirm(f"repair {several(wrong, 'fault')}", "nothing was repaired")
    return bool(wrong)


def _tell(session: Session, found: list[Finding]) -> None:
    output = session.output
    if output.documents(msgspec.structs.asdict(one) for one in found):
        return
    rows = [(one.severity, one.id, one.meaning, "\n".join(_shown(one)), one.command) for one in found]
    known = [row for row in rows if row[0] != "unknown"]
    if known:
        output.table(("severity", "finding", "meaning", "evidence", "repaired by"), known, keep=("severity", "finding"))
    hidden = [row[1] for row in rows if row[0] == "unknown"]
    if hidden:
        output.line(f"unknown, since the server does not tell, or too much changes at once: {', '.join(hidden)}")
    if not known:
        output.line("nothing is wrong")


def _shown(one: Finding) -> list[str]:
    left = one.count - len(one.evidence)
    return [*one.evidence, *([f"and {left:,} more"] if left > 0 else [])]
