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


def probe(worker: int | None, *, ready: bool, json: bool) -> int:
    """Say how the workers of this machine fare; the exit code.

    Args:
        worker: process id of one of them; None: all.
        ready: whether each must take jobs.
    """
    end = time.monotonic() + CHANGEOVER
    rows, changing = _look(worker, ready=ready)
    while changing and time.monotonic() < end:
        time.sleep(0.02)
        rows, changing = _look(worker, ready=ready)
    try:
        _tell(rows, worker, "ready" if ready else "healthy", json=json)
    except OSError:
        # The exit code is the answer: a disk without room for the reason is no reason to restart a worker.
        from headrace.cli.output import discard

        discard(sys.stdout)
    return 0 if rows and all(row["ready" if ready else "healthy"] for row in rows) else 1


def _look(worker: int | None, *, ready: bool) -> tuple[list[dict[str, Any]], bool]:
    """How each worker fares, and whether one that is not ready has an image that leaves and one that comes."""
    from headrace.worker.health_stamps import pid_space, stamps

    now = time.monotonic()
    meant = [stamp for stamp in stamps() if worker in (None, stamp.worker, stamp.process)]
    if worker is not None:
        # Workers of other containers may share the directory, and have the same process id.
        meant = [stamp for stamp in meant if stamp.space == pid_space()] or meant
    found: dict[tuple[int, float], list[Stamp]] = {}
    for stamp in meant:
        found.setdefault((stamp.worker, stamp.space), []).append(stamp)
    rows = {name: _verdict(images, now, ready=ready) for name, images in sorted(found.items())}
    changing = ready and any(len(found[name]) > 1 and not row["ready"] for name, row in rows.items())
    return list(rows.values()), changing


def _verdict(images: Sequence[Stamp], now: float, *, ready: bool) -> dict[str, Any]:
    """A worker is as well as the best of its images: in a rolling restart one of them drains and one starts."""

    def troubles(image: Stamp) -> list[str]:
        return image.unready(now) if ready else image.unhealthy(now)

    best = min(images, key=lambda image: (len(troubles(image)), len(image.unready(now))))
    return {
        "worker": best.worker,
        "process": best.process,
        "healthy": not best.unhealthy(now),
        "ready": not best.unready(now),
        "reasons": troubles(best),
    }


def _tell(rows: Sequence[dict[str, Any]], worker: int | None, wanted: str, *, json: bool) -> None:
    for row in rows:
        if json:
            from headrace.cli.output import to_json

            print(to_json(row))
        else:
            why = "; ".join(row["reasons"])
            print(f"worker {row['worker']} is {f'not {wanted}: {why}' if why else wanted}")
    sys.stdout.flush()
    if not rows and not json:
        from headrace.worker.health_stamps import stamps_directory

        which = "no worker" if worker is None else f"no worker with process id {worker}"
        where = f"{which} of this user has a file in {stamps_directory()}"
        print(
            f"headrace: {where}: none runs, it has another TMPDIR, or it warned at its start that it cannot write",
            file=sys.stderr,
        )


def quick(words: Sequence[str]) -> int | None:
    """Answer the plain forms of the command; the exit code. None: it must be parsed, which takes long."""
    flags = {word for word in words if word.startswith("-")}
    numbers = [int(word) for word in words if word.isascii() and word.isdecimal()]
    if not flags <= {"--ready", "--json"} or len(flags) + len(numbers) != len(words) or len(numbers) > 1:
        return None
    return probe(numbers[0] if numbers else None, ready="--ready" in flags, json="--json" in flags)
