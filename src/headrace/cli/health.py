"""``headrace health``: the command as its help shows it; ``probe`` answers."""

from __future__ import annotations

from typing import Annotated

from headrace.cli.arguments import argument, option
from headrace.cli.session import Session

SHARED = ("json", "debug")


def health(
    session: Session,
    worker: Annotated[
        int | None, argument("[PID]", "Process id of one worker. Default: all of this user.", min=1)
    ] = None,
    ready: Annotated[bool, option("--ready", "Also check that it takes jobs.")] = False,
    app: Annotated[str | None, option("--app MODULE:APP", "Only workers that were started with this name.")] = None,
    url: Annotated[str | None, option("--url URL", "Only workers of this server; without user and password.")] = None,
) -> int:
    """Check whether the workers of this user on this machine live; for probes.

    The exit code is 1 if one does not, or if none runs. It imports no application and asks no server. A server that is
    away leaves a worker healthy, but not ready.
    """
    from headrace.cli.probe import probe

    return probe(worker, ready=ready, json=session.output.json, app=app, url=url)
