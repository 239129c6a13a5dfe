"""``headrace server`` (the private one of a directory), ``shards``, ``acl``, ``restored``, ``migrate``, ``doctor``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from headrace.cli.arguments import Yes, argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import Output, bar_of, several, span
from headrace.cli.session import ExitCode, OperationFault, Session, UsageFault, confirm
from headrace.errors import EvictingServer, HeadraceError, OptionsError, StoreUnavailable
from headrace.model.notation import size

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.embedded import Status
    from headrace.migrations import Progress, StoreState
    from headrace.model.environment import Finding
    from headrace.store.reach import Reach

_SHARED = ("dir", "json", "debug")

DEFAULT_WAIT = 30.0  # seconds

Wait = Annotated[float | None, option("--timeout TIME", "Give up after TIME.", "30s")]

app = group("Start, stop and describe the private Valkey of a directory.")


@command(app, "start", shared=_SHARED)
def start(session: Session, timeout: Wait = None) -> None:
    """Start the server, or keep the running one, until `headrace server stop`. Programs start it by themselves."""
    from headrace import embedded

    _show(session.output, embedded.start(session.settings["dir"], timeout=_seconds(timeout)))
    _remind(session.output)


@command(app, "stop", shared=_SHARED)
def stop(session: Session, timeout: Wait = None) -> None:
    """Stop the server in order, even while programs use it. Its data stay."""
    from headrace import embedded

    directory = embedded.path(session.settings["dir"])
    stopped = embedded.stop(session.settings["dir"], timeout=_seconds(timeout))
    text = f"the server of {directory} has stopped" if stopped else f"no server runs for {directory}"
    session.output.done(text, {"directory": str(directory), "stopped": stopped})


@command(app, "status", shared=_SHARED)
def status(session: Session) -> int:
    """Describe the server; exit 1 if it does not run. Does not start it."""
    from headrace import embedded

    found = embedded.status(session.settings["dir"])
    _show(session.output, found)
    _remind(session.output)
    return ExitCode.OK if found.running else ExitCode.FAILED


@command(app, "path", shared=_SHARED)
def path(session: Session) -> None:
    """Print the data directory of the private server. Changes nothing."""
    from headrace import embedded

    directory = str(embedded.path(session.settings["dir"]))
    session.output.done(directory, {"directory": directory})


def _seconds(wait: float | None) -> float:
    return DEFAULT_WAIT if wait is None else wait


def _show(output: Output, found: Status) -> None:
    known = asdict(found)
    rows: list[tuple[str, object]] = [("directory", found.directory), ("server", _state(found))]
    if found.version:
        rows += [("version", found.version), ("process", found.pid)]
        rows += [("up for", span(found.uptime or 0)), ("clients", found.clients), ("keys", found.keys)]
        rows += [("memory", size(found.memory or 0)), ("data file", size(found.file or 0)), ("url", found.url)]
    output.details({name: known[name] for name in known if name != "socket"}, rows)


def _state(found: Status) -> str:
    if not found.running:
        return "stopped by command" if found.stopped else "does not run"
    words = {"ready": "runs", "loading": "loads its data"}.get(found.health, f"runs, but is {found.health}")
    if found.kept:
        return f"{words}, until headrace server stop"
    return f"{words}, and programs use it" if found.used else f"{words}, about to end: no program uses it"


def _remind(output: Output) -> None:
    if os.environ.get("HEADRACE_URL"):
        output.remark("HEADRACE_URL is set, so programs here use that server, not this one")


def acl(
    session: Session,
    role: Annotated[
        Literal["producer", "worker", "dashboard", "relay"], argument("ROLE", "What the user of the server is for.")
    ],
) -> None:
    """Print the least access rules of the server with which a program of this role works.

    Give them to a user of the server: redis-cli ACL SETUSER NAME on '>PASSWORD' $(headrace acl producer), with set -f.
    A producer enqueues and can read nothing of a job. A relay also enqueues ordered and unique jobs, and workflows. The
    settings durability and replicas add what they need. The rules are made from the scripts of this version: print them
    anew after an upgrade.
    """
    from headrace.protocol.access import access_rules
    from headrace.protocol.durability import durability
    from headrace.protocol.keys import keys_of

    app = session.app()
    keys = keys_of(app.settings.namespace)
    rules = access_rules(role, keys, durability(app.settings))
    if app.client.count > 1:
        rules = [rule.replace(keys.prefix, keys.prefix.replace(":0}", ":*}")) for rule in rules]
    session.output.done(" ".join(rules), {"role": role, "rules": rules})


def shards(session: Session) -> None:
    """List the shards: their servers, what each holds, and whether workers serve them.

    A store has one shard unless its URL or the setting shards says otherwise. On a cluster the command shows the node
    of each, and where some nodes have more than others, the server's command that moves one.
    """
    from concurrent.futures import ThreadPoolExecutor

    with session.view(hide=True) as app:
        store = app.store
        # All at once: one that is silent is waited for.
        with ThreadPoolExecutor(app.client.count) as threads:
            rows = [*threads.map(partial(_facts, store), range(app.client.count))]
    if session.output.documents(rows):
        return
    heads = ("shard", "server", ">slot", ">ready", ">running", ">oldest wait", ">workers")
    told = [row | {"slot": row["slot"] and str(row["slot"])} for row in rows]
    session.output.table(heads, [tuple(_shown(value) for value in row.values()) for row in told])
    if unserved := [str(row["shard"]) for row in rows if row["workers"] == 0]:
        session.output.remark(
            f"no worker serves shard {', '.join(unserved)}: start one with the same URLs, headrace worker MODULE:APP"
        )
    if store.target.seeds and len(rows) == 1:
        session.output.remark("one node has all of it: write ?shards=1+11 in the URL of every program, workers first")
    slots = {str(row["server"]): row["slot"] for row in rows if row["workers"] is not None}
    nodes = Counter(str(row["server"]) for row in rows if row["workers"] is not None)
    if store.target.seeds and max(nodes.values(), default=0) > min(nodes.values(), default=0) + 1:
        (most, number), (least, few) = nodes.most_common()[0], nodes.most_common()[-1]
        session.output.remark(
            f"{most} has {number} shards and {least} has {few}; write there, with the id of the second: CLUSTER "
            f"MIGRATESLOTS SLOTSRANGE {slots[most]} {slots[most]} NODE ID"
        )
    if silent := [str(row["shard"]) for row in rows if row["workers"] is None]:
        rest = "; the others go on" if len(silent) < len(rows) else ""
        session.output.remark(f"no answer from shard {', '.join(silent)}{rest}")


def _facts(store: Any, shard: int) -> dict[str, Any]:
    from redis.crc import key_slot

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
    if target.seeds and (place := target.slots.known(keys.prefix)):
        row["server"] = f"{place[0]}:{place[1]}"
    return row | {
        "ready": states["ready"], "running": states["running"], "oldest": max(waits, default=None),
        "workers": len(seen.live),
    }  # fmt: skip


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return span(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


# Jobs of one page, of those that run in the copy.
PAGE = 1000
NOTE = "the store was put back to an old copy: jobs may have run already"


def restored(
    session: Session,
    live: Annotated[
        Literal["park", "run"],
        option("--live park|run", "park: pause every queue, so that jobs wait for you; run: they run again."),
    ] = "park",
) -> None:
    """Let workers claim again from a store that was put back to an old copy.

    Workers that live while a store is put back notice it: their leases there are old. They stop, and none claims, since
    jobs that are ready in the copy have run since. With park every queue is paused: delete or move what has run, by
    headrace jobs, then resume each queue. What was stored since the copy was made is lost, request ids included.
    """
    from headrace.protocol.operations import restored as look

    with session.acting("restored", "store", scope=f"live {live}", view=True) as (app, act):
        lost = app.client.run(look(app.client.keys, go=False))
        if not lost:
            raise OperationFault("workers claim from this store already: it was not put back")
        paused = _pause_all(app) if live == "park" else []
        app.client.run(look(app.client.keys, go=True))
        act.reply = f"workers claim again; {several(len(paused), 'queue')} paused"
        session.output.done(
            f"the last {span(lost / 1e6)} were lost; {act.reply}", {"lost": lost / 1e6, "paused": paused, "live": live}
        )


def _pause_all(app: Headrace) -> list[str]:
    """Pause each queue that holds jobs, that a worker serves, or whose jobs ran when the copy was made."""
    from headrace.protocol.operations import pause

    seen = app.overview()
    names = {*seen.names, *(queue for worker in (*seen.live, *seen.silent) for queue in worker.queues)}
    after = None
    while True:
        page = app.jobs.page(state="running", limit=PAGE, after=after)
        names |= {job.queue for job in page}
        if not (after := page.next):
            break
    for queue in sorted(names):
        app.client.run(pause(app.client.keys, queue, 0, NOTE))
    return sorted(names)


def migrate(
    session: Session,
    to: Annotated[int | None, option("--to N", "The schema to go to, up or down.", "this version's")] = None,
    to_url: Annotated[str | None, option("--to-url URL", "Move the store to this server or cluster instead.")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Print what would be done; read everything, change nothing.")] = False,
) -> None:
    """Migrate a store to the schema of this version, back to an older one, or to another server.

    First stop workers and programs that enqueue: the command refuses to run while workers live. You may interrupt it at
    any time and run it again: it continues where it stopped. Until it has ended, every program refuses the store. Of
    several shards one is migrated after the other, home last. Only a store with one shard can be moved.
    After --to-url, programs that still use the old URL are refused with the new one. The old server keeps its copy.
    """
    if to_url is not None:
        if to is not None or dry_run:
            raise UsageFault("--to-url takes neither --to nor --dry-run")
        _move(session, to_url)
    else:
        _lead(session, to, dry=dry_run)


def _lead(session: Session, to: int | None, *, dry: bool) -> None:
    from headrace.migrations import STEPS, Migrator

    with session.app() as app:
        # Home last: a program of this version asks it first, and refuses the store until all is done.
        for target, keys in reversed(app.store.shards):
            with Migrator(target, app.settings, STEPS, keys) as migrator:
                before = migrator.look()
                try:
                    with _bars(session) as bars:
                        done = (migrator.rehearse if dry else migrator.run)(to, _shown_on(bars))
                except OptionsError as error:
                    raise UsageFault(f"--to {to}: {error}") from error
                after = migrator.look().schema
            place = {"shard": keys.shard} if keys.count > 1 else {}
            if session.output.json:
                session.output.document(place | _applied(before, after, done, dry=dry))
            else:
                shown = f"shard {keys.shard} of {target.shown}" if place else target.shown
                _tell_applied(session, shown, before, after, done, dry=dry)


def _move(session: Session, url: str) -> None:
    from headrace.migrations import Mover
    from headrace.settings import shard_urls
    from headrace.store.url import located

    with session.app() as app, _bars(session) as bars:
        if app.client.count > 1:
            raise UsageFault("--to-url moves a store with one shard")
        urls, number = shard_urls(url, app.settings)
        if number.partition("+")[0] != "1":
            raise UsageFault(f"--to-url has {number} shards: write ?shards=1+N, since ids, keys and names stay on one")
        target, task = located(urls[0] or url, app.settings), bars.add_task("moved", total=1.0)
        with Mover(located(app.client.url(), app.settings), target, app.settings) as mover:
            moved = mover.run(lambda done: bars.update(task, completed=done.share))
    more = f" with ?shards={number}, and workers first" if number != "1" else ""
    told = f"moved {several(moved.keys, 'key')}, {moved.bytes:,} bytes; give programs {target.shown}{more}"
    session.output.done(told, {"keys": moved.keys, "bytes": moved.bytes, "url": target.shown})


def _bars(session: Session) -> Any:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text: Any = TextColumn("{task.description}")
    columns = (text, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    quiet = session.output.json or not sys.stderr.isatty()
    return Progress(*columns, console=session.output.console(sys.stderr), disable=quiet)


def _shown_on(bars: Any) -> Callable[[Progress], None]:
    made: dict[int, Any] = {}

    def show(progress: Progress) -> None:
        version = progress.leg.step.version
        if version not in made:
            made[version] = bars.add_task(f"schema {version} {progress.leg.direction}", total=1.0)
        bars.update(made[version], completed=progress.share)

    return show


def _applied(before: StoreState, after: int, done: list[Progress], *, dry: bool) -> dict[str, Any]:
    return {
        "from": before.schema,
        "schema": after,
        "dry_run": dry,
        "workers": list(before.workers),
        "applied": [
            {
                "version": one.leg.step.version,
                "direction": one.leg.direction,
                "title": one.leg.step.title,
                "resumed": bool(one.leg.cursor),
                "read": one.read,
                "changed": one.changed,
            }
            for one in done
        ],
    }


def _tell_applied(
    session: Session, shown: str, before: StoreState, after: int, done: list[Progress], *, dry: bool
) -> None:
    say = session.output.line
    would = "would change" if dry else "changed"
    for one in done:
        leg = one.leg
        name = f"schema {leg.step.version}{'' if leg.direction == 'up' else ' taken back'}: {leg.step.title}"
        gone_on = ", from where it was left" if leg.cursor else ""
        say(f"{name}: {would} {one.changed:,} of {several(one.read, 'key')}{gone_on}")
    if not before.schema:
        say(f"0 migrations applied; {shown} holds nothing yet")
        return
    if dry:
        say(f"{several(len(done), 'migration')} would be applied; nothing was changed, {shown} holds schema {after}")
        if done and before.workers:
            session.output.remark(f"stop these workers first: {', '.join(before.workers)}")
    else:
        say(f"{several(len(done), 'migration')} applied; {shown} holds schema {after}")


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
    servers = {part.url: part for part in reversed(app.store.parts)}
    seen = dict["Finding", list[str]]()
    try:
        for url, part in reversed(servers.items()):
            target = located(url, app.settings)
            with _naming(part):
                for one in judged(sight_of(target, app.settings, app.settings.timeout, shards=shards)):
                    seen.setdefault(one, []).append(target.shown)
    except Exception:
        # It says in one line what to do.
        if refusal is not None:
            raise refusal from None
        raise
    finally:
        for one, places in seen.items():
            more = queues if one.id == "full" else []
            more = more if len(places) == len(servers) else [*more, *(f"at {place}" for place in places)]
            found.append(msgspec.structs.replace(one, evidence=(*one.evidence, *more)))
    if isinstance(refusal, StoreUnavailable):
        raise refusal
    if refusal is None:
        found += _unserved(app)
    # Of an evicting server the table has a row.
    elif not isinstance(refusal, EvictingServer):
        found.insert(0, Finding("refused", "error", str(refusal), "", (type(refusal).__name__,)))


@contextlib.contextmanager
def _naming(part: Reach) -> Generator[None]:
    """Have an error of the driver name the server and what to do, as one of any call does."""
    from redis import exceptions as driver

    try:
        yield
    except (driver.RedisError, OSError) as error:
        part.give_up_or_wait(error, 1, 0.0, "doctor")
        raise


def _unserved(app: Headrace) -> list[Finding]:
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
            _naming(store),
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
    rows = [(one.severity, one.id, one.meaning, "\n".join(_evidence(one)), one.command) for one in found]
    known = [row for row in rows if row[0] != "unknown"]
    if known:
        output.table(("severity", "finding", "meaning", "evidence", "repaired by"), known, keep=("severity", "finding"))
    hidden = [row[1] for row in rows if row[0] == "unknown"]
    if hidden:
        output.line(f"unknown, since the server does not tell, or too much changes at once: {', '.join(hidden)}")
    if not known:
        output.line("nothing is wrong")


def _evidence(one: Finding) -> list[str]:
    left = one.count - len(one.evidence)
    return [*one.evidence, *([f"and {left:,} more"] if left > 0 else [])]
