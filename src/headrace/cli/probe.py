"""The answer to an exec probe, from shared bytes alone: ``headrace health`` without the parser of commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.worker.health_stamps import Stamp

# Seconds that a probe waits at most where one image leaves before the other has said that it is ready: the two are not
# read at one moment, and each speaks for itself. Less than the second that Kubernetes gives a probe.
CHANGEOVER = 0.5


def probe(worker: int | None, *, ready: bool, json: bool, app: str | None = None, url: str | None = None) -> int:
    """Say how the workers of this machine fare; the exit code.

    Args:
        worker: process id of one of them; None: all.
        ready: whether each must take jobs.
        app: only workers of this application, as their command lines name it.
        url: only workers of this server.
    """

    def look() -> tuple[list[dict[str, Any]], bool]:
        return _look(_chosen(worker, app, url), ready=ready)

    end = time.monotonic() + CHANGEOVER
    rows, changing = look()
    while changing and time.monotonic() < end:
        time.sleep(0.02)
        rows, changing = look()
    try:
        _tell(rows, "ready" if ready else "healthy", json=json)
        if not rows and not json:
            _tell_none(worker, app, url)
    except OSError:
        # The exit code is the answer: a disk without room for the reason is no reason to restart a worker.
        from headrace.cli.output import discard

        discard(sys.stdout)
    return 0 if rows and all(row["ready" if ready else "healthy"] for row in rows) else 1


def _chosen(worker: int | None, app: str | None, url: str | None) -> list[list[Stamp]]:
    """The images of each worker that is meant."""
    from headrace.worker.health_stamps import bare_url, pid_space, stamps

    meant = [one for one in stamps() if worker in (None, one.worker, one.process) and app in (None, one.app)]
    if worker is not None:
        # Workers of other containers may share the directory, and have the same process id.
        meant = [stamp for stamp in meant if stamp.space == pid_space()] or meant
    found: dict[tuple[int, float], list[Stamp]] = {}
    for stamp in meant:
        found.setdefault((stamp.worker, stamp.space), []).append(stamp)
    workers = [images for _, images in sorted(found.items())]
    if url is None:
        return workers
    # A worker that does not know its URL yet is one that starts: a probe that did not find it would end it.
    known = [{one.url for one in images if one.url} for images in workers]
    return [images for images, urls in zip(workers, known, strict=True) if not urls or bare_url(url) in urls]


def _look(workers: Sequence[Sequence[Stamp]], *, ready: bool) -> tuple[list[dict[str, Any]], bool]:
    """How each worker fares, and whether one that is not ready has an image that leaves and one that comes."""
    now = time.monotonic()
    rows = [_verdict(images, now, ready=ready) for images in workers]
    changing = [len(images) > 1 and not row["ready"] for images, row in zip(workers, rows, strict=True)]
    return rows, ready and any(changing)


def _verdict(images: Sequence[Stamp], now: float, *, ready: bool) -> dict[str, Any]:
    """A worker is as well as the best of its images: in a rolling restart one of them drains and one starts."""

    def troubles(image: Stamp) -> list[str]:
        return image.unready(now) if ready else image.unhealthy(now)

    best = min(images, key=lambda image: (len(troubles(image)), len(image.unready(now))))
    return {
        "worker": best.worker,
        "process": best.process,
        "app": best.app,
        "url": best.url,
        "healthy": not best.unhealthy(now),
        "ready": not best.unready(now),
        "reasons": troubles(best),
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
    return probe(
        numbers[0] if numbers else None,
        ready="--ready" in flags,
        json="--json" in flags,
        app=chosen.get("--app"),
        url=chosen.get("--url"),
    )
