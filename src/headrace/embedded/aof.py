"""Data that a server cannot read: written by another version, or damaged.

Owns the copy that is made before anything is cut. Nothing is ever repaired without one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from headrace.errors import ServerError, ServerTooOld

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.embedded.paths import DataFiles

PARTS = "appendonlydir"
"""Where servers since Redis 7 keep the append-only file, in parts."""

SINGLE = "appendonly.aof"
"""What older ones write."""

_ADVICE = (
    ("Can't handle RDB format version", "newer"),
    ("Unknown command", "newer"),
    ("No space left", "Free space on that disk."),
    ("Permission denied", "Make the directory writable for you."),
    ("Read-only file system", "Set HEADRACE_DIR to a directory that can be written."),
    (
        "RDB preamble",
        "Its base file is damaged: put back a copy of the directory, or move the directory away.",
    ),
)


def version(binary: Path) -> str:
    """Name and version of a server program, such as ``valkey 9.1.2``.

    Raises:
        ServerError: it cannot be run, or is no server.
        ServerTooOld: it is older than Redis 6.2.
    """
    try:
        done = subprocess.run(
            [name(binary, "server"), "--version"],
            executable=binary,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not end"
        raise ServerError(f"{binary} cannot be run: {reason}; {_ANOTHER}") from error
    found = re.match(r"(\w+) server v=(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None:
        words = (done.stderr or done.stdout).strip().splitlines()[:1]
        raise ServerError(f"{binary} is no server program ({''.join(words) or 'no version'}); {_ANOTHER}")
    product, major, minor, patch = found.groups()
    if (int(major), int(minor)) < (6, 2):
        raise ServerTooOld(f"{binary} is version {major}.{minor}.{patch}, but 6.2 is the oldest that works; {_ANOTHER}")
    return f"{product.lower()} {major}.{minor}.{patch}"


def check(spot: DataFiles, version: str) -> None:
    """Refuse a server that would not see the data: it would start empty, and look as if all jobs were lost.

    Raises:
        ServerError: the data are in parts, which servers before version 7 do not know.
    """
    if _order(version.split()[1]) < (7,) and (spot.directory / PARTS).exists():
        raise ServerError(
            f"{spot.directory} was written by {writer(spot)}, which {version} cannot read: use a server of"
            " version 7 or newer (HEADRACE_SERVER_BINARY), or another directory (HEADRACE_DIR)"
        )


def writer(spot: DataFiles) -> str:
    """The program that last served these data."""
    return _text(spot) or "a newer server"


def alien(spot: DataFiles, version: str) -> bool:
    """Whether the data were last served by another product, or by a newer version of this one.

    A server may well read them. If it does not, they are not damaged, and must not be "repaired".
    """
    writer, ours = _text(spot).split(), version.split()
    return bool(writer) and (writer[0] != ours[0] or _order(writer[1]) > _order(ours[1]))


def advice(words: str, spot: DataFiles, version: str) -> str:
    """What to do next about a server's last words."""
    if "check-aof" in words and alien(spot, version):
        words = "Unknown command"
    for sign, step in _ADVICE:
        if sign in words:
            if step == "newer":
                return (
                    f"Its data were last served by {writer(spot)}: use that or a newer server"
                    " (HEADRACE_SERVER_BINARY), or another directory (HEADRACE_DIR)."
                )
            return step
    return "Mend what it says below, or set HEADRACE_DIR to another directory."


def name(binary: Path, role: str) -> str:
    """The name to call a program by: one file is the server, and the check programs, by what it is called."""
    return f"{'valkey' if 'valkey' in binary.name else 'redis'}-{role}"


def repair(spot: DataFiles, binary: Path) -> str:
    """Cut a damaged append-only file back to its last whole command; all of it is copied first.

    Returns what was done, for people. What came after the damage is only in the copy from then on.

    Raises:
        ServerError: the copy cannot be made, or the damage is not of that kind.
    """
    parts = spot.directory / PARTS
    source = parts if parts.exists() else spot.directory / SINGLE
    copy = spot.directory / f"damaged-{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 10**6:06}"
    try:
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copy2(source, copy)
    except (OSError, shutil.Error) as error:
        # Half a copy would be taken for a whole one.
        shutil.rmtree(copy, ignore_errors=True)
        copy.unlink(missing_ok=True)
        raise ServerError(
            f"{source} is damaged, and is not repaired because no copy could be made ({error}): free space,"
            f" or move {spot.directory} away"
        ) from error
    done = subprocess.run(
        [name(binary, "check-aof"), "--fix", _last(source)],
        executable=binary,
        input="y\n",
        capture_output=True,
        text=True,
        check=False,
    )
    words = " ".join(done.stdout.split())
    if done.returncode != 0:
        raise ServerError(
            f"{source} is damaged and could not be repaired; the copy {copy} is as it was. Put back a good"
            f" copy, or move {spot.directory} away. The check said: {words[-400:]}"
        )
    cut = re.search(r"diff=(\d+)", words)
    return f"{source} was damaged: {cut[1] if cut else 'some'} bytes were cut off its end; {copy} is as it was"


def _text(spot: DataFiles) -> str:
    return spot.version.read_text().strip() if spot.version.exists() else ""


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _last(source: Path) -> Path:
    """The file that was appended to last, which is the one that a crash can damage.

    Not the manifest, which names them all: the check program of Valkey 9 takes the base file of that same
    server for a damaged one, and then refuses to go on.
    """
    if not source.is_dir():
        return source
    manifest = (source / f"{SINGLE}.manifest").read_text()
    parts: list[tuple[str, str]] = re.findall(r"^file (\S+) seq (\d+) type i", manifest, re.MULTILINE)
    if not parts:
        raise ServerError(f"{source} is damaged and has no part that could be repaired: put back a good copy")
    return source / max(parts, key=lambda part: int(part[1]))[0]


_ANOTHER = "name a valkey-server or redis-server of version 6.2 or newer in HEADRACE_SERVER_BINARY"
