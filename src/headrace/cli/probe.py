"""The answer to an exec probe, from shared bytes alone: ``headrace health`` without the parser of commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.worker.health_stamps import Stamp


def probe(worker: int | None, *, ready: bool, json: bool, app: str | None = None, url: str | None = None) -> int:
    """Say how the workers of this machine fare; the exit code. ``worker``: process id of one of them; None: all.
    ``ready``: whether each must take jobs. ``app``: only workers of this application, as their command lines name it.
    ``url``: only workers of this server.
    """
    rows = [_verdict(stamp, time.monotonic(), ready=ready) for stamp in _chosen(worker, app, url)]
    try:
        _tell(rows, "ready" if ready else "healthy", json=json)
        if not rows and not json:
            _tell_none(worker, app, url)
    except OSError:
        # The exit code is the answer: a disk without room for the reason is not a reason to restart a worker.
        from headrace.cli.output import discard

        discard(sys.stdout)
    return 0 if rows and all(row["ready" if ready else "healthy"] for row in rows) else 1


def _chosen(worker: int | None, app: str | None, url: str | None) -> list[Stamp]:
    from headrace.worker.health_stamps import bare_url, pid_namespace, stamps

    meant = [one for one in stamps() if worker in (None, one.worker) and app in (None, one.app)]
    if worker is not None:
        # Workers of other containers may share the directory, and have the same process id.
        meant = [stamp for stamp in meant if stamp.space == pid_namespace()] or meant
    # A worker that does not know its URL yet is one that starts: a probe that did not find it would end it.
    return sorted((one for one in meant if url is None or one.url in ("", bare_url(url))), key=lambda one: one.worker)


def _verdict(stamp: Stamp, now: float, *, ready: bool) -> dict[str, Any]:
    return {
        "worker": stamp.worker,
        "process": stamp.process,
        "app": stamp.app,
        "url": stamp.url,
        "healthy": not stamp.reasons_unhealthy(now),
        "ready": not stamp.reasons_unready(now),
        "reasons": stamp.reasons_unready(now) if ready else stamp.reasons_unhealthy(now),
    }


def _tell(rows: Sequence[dict[str, Any]], wanted: str, *, json: bool) -> None:
    for row in rows:
        if json:
            from headrace.cli.output import to_json

            print(to_json(row))
        else:
            why = "; ".join(row["reasons"])
            print(f"worker {row['worker']} is {f'not {wanted}: {why}' if why else wanted}")
    sys.stdout.flush()


def _tell_none(worker: int | None, app: str | None, url: str | None) -> None:
    from headrace.worker.health_stamps import bare_url, stamps_directory

    which = "no worker" if worker is None else f"no worker with process id {worker}"
    which += "" if app is None else f" of the application {app}"
    which += "" if url is None else f" on the server {bare_url(url)}"
    where = f"{which} of this user has a file in {stamps_directory()}"
    print(
        f"headrace: {where}: none runs, it has another TMPDIR, or it warned at its start that it cannot write",
        file=sys.stderr,
    )


def quick(words: Sequence[str]) -> int | None:
    """Answer the plain forms of the command; the exit code. None: it must be parsed, which takes long."""
    chosen: dict[str, str] = {}
    rest, flags, numbers = iter(words), set[str](), list[int]()
    for word in rest:
        name, equals, value = word.partition("=")
        if name in ("--app", "--url"):
            chosen[name] = value if equals else next(rest, "")
            if not chosen[name] or chosen[name].startswith("-"):
                return None
        elif word in ("--ready", "--json"):
            flags.add(word)
        elif word.isascii() and word.isdecimal() and not numbers:
            numbers.append(int(word))
        else:
            return None
    worker, app, url = numbers[0] if numbers else None, chosen.get("--app"), chosen.get("--url")
    return probe(worker, ready="--ready" in flags, json="--json" in flags, app=app, url=url)
