"""Which directory a private server belongs to, from wherever in a project a program is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.embedded.paths import data_directory, find

ME = os.geteuid()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    return home


def tree(home: Path, *paths: str) -> None:
    """Make directories, which end in a slash, and files."""
    for path in paths:
        where = home / path
        (where if path.endswith("/") else where.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            where.touch()


@pytest.mark.parametrize(
    ("paths", "here", "found"),
    [
        (["a/b/"], "a/b", "a/b"),
        (["a/pyproject.toml", "a/b/c/"], "a/b/c", "a"),
        (["a/.git/", "a/b/"], "a/b", "a"),
        (["a/.git", "a/b/"], "a/b", "a"),  # a worktree of git has a file there
        (["a/.git/", "a/b/pyproject.toml", "a/b/c/"], "a/b/c", "a/b"),
        (["a/.headrace/", "a/b/pyproject.toml"], "a/b", "a"),
        (["a/.headrace/", "a/b/.headrace/", "a/b/c/"], "a/b/c", "a/b"),
        (["a/.headrace", "a/b/"], "a/b", "a/b"),  # a file is no data directory
        ([".git/", ".headrace/", "pyproject.toml", "a/"], "a", "a"),
        ([".git/", ".headrace/"], "", ""),
    ],
)
def test_a_directory_belongs_to_the_nearest_project(home: Path, paths: list[str], here: str, found: str) -> None:
    tree(home, *paths)
    assert find(home / here, home, ME) == home / found


def test_a_directory_that_is_not_below_the_home_directory_has_a_project(home: Path) -> None:
    tree(home, "a/.git/", "a/b/")
    assert find(home / "a/b", home / "elsewhere", ME) == home / "a"


def test_a_directory_that_everyone_may_write_to_is_no_project(home: Path) -> None:
    tree(home, "shared/.headrace/", "shared/pyproject.toml", "shared/mine/")
    (home / "shared").chmod(0o1777)
    assert find(home / "shared/mine", home, ME) == home / "shared/mine"
    assert find(home / "shared", home, ME) == home / "shared", "where the user is, the user has chosen to be"
    (home / "shared").chmod(0o775)
    assert find(home / "shared/mine", home, ME) == home / "shared"


def test_what_belongs_to_somebody_else_is_no_project(home: Path) -> None:
    tree(home, "a/.headrace/", "a/pyproject.toml", "a/b/")
    assert find(home / "a/b", home, ME + 1) == home / "a/b"


@pytest.mark.skipif(ME != 0, reason="only root may give a file away")
def test_data_that_somebody_else_planted_are_not_used(home: Path) -> None:
    tree(home, "a/.headrace/", "a/b/", "a/.git/", "elsewhere/")
    os.chown(home / "a/.headrace", 12345, 12345)
    assert find(home / "a/b", home, ME) == home / "a", "for its .git"
    (home / "a/.git").rmdir()
    assert find(home / "a/b", home, ME) == home / "a/b"
    (home / "a/.headrace").rmdir()
    (home / "a/.headrace").symlink_to(home / "elsewhere")
    assert find(home / "a/b", home, ME) == home / "a", "a link of ours to a directory of ours"
    os.chown(home / "a/.headrace", 12345, 12345, follow_symlinks=False)
    assert find(home / "a/b", home, ME) == home / "a/b"


def test_a_link_that_leads_nowhere_is_no_data_directory(home: Path) -> None:
    tree(home, "a/b/")
    (home / "a/.headrace").symlink_to(home / "absent")
    assert find(home / "a/b", home, ME) == home / "a/b"


def test_a_link_leads_to_the_project_of_its_target(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(home, "a/.git/", "a/b/", "other/.git/")
    (home / "other/link").symlink_to(home / "a/b")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "other/link")
    assert data_directory() == home.resolve() / "a" / ".headrace"


def test_a_home_directory_that_is_a_link_is_the_home_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(home, "real/.git/", "real/a/")
    (home / "link").symlink_to(home / "real")
    monkeypatch.setenv("HOME", str(home / "link"))
    monkeypatch.chdir(home / "link/a")
    assert data_directory() == home.resolve() / "real" / "a" / ".headrace"


def test_a_removed_directory_has_no_project(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(home, "a/")
    monkeypatch.chdir(home / "a")
    (home / "a").rmdir()
    with pytest.raises(FileNotFoundError):
        data_directory()
