"""``headrace migrate``: lead a store to this version's layout, back to an older one, or to another server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli.arguments import option
from headrace.cli.output import several
from headrace.cli.session import Session, UsageFault

if TYPE_CHECKING:
    from headrace.migrations import Migrator, Progress, StoreState


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
    from headrace.errors import OptionsError
    from headrace.migrations import STEPS, Migrator

    with session.app() as app:
        # Home last: a program of this version asks it first, and refuses the store until all is done.
        for target, keys in reversed(app.store.shards):
            with Migrator(target, app.settings, STEPS, keys) as migrator:
                before = migrator.look()
                try:
                    done = _go(session, migrator, to, dry=dry)
                except OptionsError as error:
                    raise UsageFault(f"--to {to}: {error}") from error
                after = migrator.look().schema
            place = {"shard": keys.shard} if keys.count > 1 else {}
            if session.output.json:
                session.output.document(place | _facts(before, after, done, dry=dry))
            else:
                shown = f"shard {keys.shard} of {target.shown}" if place else target.shown
                _tell(session, shown, before, after, done, dry=dry)


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

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    quiet = session.output.json or not sys.stderr.isatty()
    return Progress(*columns, console=session.output.console(sys.stderr), disable=quiet)


def _go(session: Session, migrator: Migrator, to: int | None, *, dry: bool) -> list[Progress]:
    with _bars(session) as bars:
        return (migrator.rehearse if dry else migrator.run)(to, _shown_on(bars))


def _shown_on(bars: Any) -> Callable[[Progress], None]:
    made: dict[int, Any] = {}

    def show(progress: Progress) -> None:
        version = progress.leg.step.version
        if version not in made:
            made[version] = bars.add_task(f"schema {version} {progress.leg.direction}", total=1.0)
        bars.update(made[version], completed=progress.share)

    return show


def _facts(before: StoreState, after: int, done: list[Progress], *, dry: bool) -> dict[str, Any]:
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


def _tell(session: Session, shown: str, before: StoreState, after: int, done: list[Progress], *, dry: bool) -> None:
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
