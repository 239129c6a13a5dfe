"""To which project a directory belongs: where its private server has its files.

Looks at names and owners of directories; changes and starts nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

NAME = ".headrace"
"""The data directory, in the directory of its project."""

MARKERS = ("pyproject.toml", ".git")
"""What the directory of a project holds."""


def find(here: Path, home: Path, me: int) -> Path:
    """The directory of the project that ``here`` belongs to, absolute.

    That is the nearest directory, from ``here`` upwards, with a ``.headrace``; else the nearest one with a
    ``pyproject.toml`` or ``.git``; else ``here``. Above ``here`` only directories count that user ``me`` owns and that
    not everyone may write to: in any other, somebody else may have put one of these. Neither the home directory nor
    what is above it counts, unless it is ``here``: a ``.git`` for dotfiles makes no project of all that a user has.
    """
    candidates = list(_upwards(here, home, me))
    marks: tuple[Callable[[Path], bool], ...] = (lambda one: _holds_data(one, me), _is_project)
    return next((one for mark in marks for one in candidates if mark(one)), here)


def data_directory() -> Path:
    """The data directory of the project of the current directory; it need not exist.

    Raises:
        FileNotFoundError: the current directory was removed.
    """
    here = Path(os.getcwd())  # noqa: PTH109 - where links lead, as every process sees it
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - as above; never fails
    return find(here, home, os.geteuid()) / NAME


def _upwards(here: Path, home: Path, me: int) -> Iterator[Path]:
    yield here
    if here == home:
        return
    for parent in here.parents:
        if parent in (home, Path(parent.anchor)):
            return
        if _is_own(parent, me):
            yield parent


def _is_own(directory: Path, me: int) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return found.st_uid == me and not found.st_mode & stat.S_IWOTH


def _holds_data(directory: Path, me: int) -> bool:
    data = directory / NAME
    try:
        # A link that somebody else made, or one to a directory of somebody else's, leads nowhere for us.
        return data.lstat().st_uid in (0, me) and data.is_dir() and data.stat().st_uid == me
    except OSError:
        return False


def _is_project(directory: Path) -> bool:
    return any(os.path.lexists(directory / marker) for marker in MARKERS)
