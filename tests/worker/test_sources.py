"""Which files a worker in development watches, and what it calls a change."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.worker.reload_parent import SourceFiles


def test_each_change_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    old, gone = tmp_path / "tasks.py", tmp_path / "shop" / "gone.py"
    old.write_text("1")
    gone.write_text("1")
    sources = SourceFiles(str(tmp_path))
    assert sources.changes() == []
    old.write_text("22")
    gone.unlink()
    (tmp_path / "shop" / "new.py").write_text("1")
    assert sources.changes() == [str(gone), str(tmp_path / "shop" / "new.py"), str(old)]
    assert sources.changes() == []


def test_a_file_that_keeps_its_size_has_changed_by_its_time(tmp_path: Path) -> None:
    file = tmp_path / "tasks.py"
    file.write_text("1")
    sources = SourceFiles(str(tmp_path))
    os.utime(file, ns=(1, 1))
    assert sources.changes() == [str(file)]


def test_what_nobody_edits_is_left_out(tmp_path: Path) -> None:
    sources = SourceFiles(str(tmp_path))
    for directory in (".git", "__pycache__", "env/lib", "node_modules"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "file.py").write_text("1")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "notes.txt").write_text("1")
    assert sources.changes() == []


def test_a_link_that_leads_round_in_circles_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere")
    sources = SourceFiles(str(tmp_path))
    (tmp_path / "tasks.py").write_text("1")
    assert sources.changes() == [str(tmp_path / "tasks.py")]
