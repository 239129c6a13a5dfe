"""The documentation builds as a site without a warning, and the reference has every public name."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sphinx.util.inventory import InventoryFile

from headrace import Headrace, errors

ROOT = Path(__file__).resolve().parents[2]
# What users import names from.
PACKAGES = ("headrace", "headrace.pool", "headrace.stats", "headrace.cache")
# Functions and values, which have no page of members.
NOT_A_CLASS = {"headrace.pool.STRATEGIES", "headrace.cache.ABSENT"}
# The same class under a second name.
TWICE = {"headrace.Pool": "headrace.pool.Pool"}
TWICE |= {f"headrace.{name}": f"headrace.errors.{name}" for name in ("HeadraceError", "RateLimited", "RetryAfter")}


# To look for garbage would take a fifth of a build, and to list the names of the reference beside each page another.
SPHINX = """
import gc, sys
from sphinx.cmd.build import main
gc.disable()
sys.exit(main([*sys.argv[1:], "-W", "-q", "-b", "html", "-D", "toc_object_entries=0"]))
"""


def explained(site: Path) -> set[str]:
    """Build the site; every name that it explains, without the module that it happens to stand in."""
    # By stdin: from 3.13 on inspect takes what -c was given for the source of a named tuple's methods.
    command = [sys.executable, "-", str(ROOT / "docs"), str(site)]
    done = subprocess.run(command, input=SPHINX, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for kind, found in inventory.items() if kind.startswith("py:") for name in found}


def public(package: str) -> set[str]:
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None) or getattr(module, "_HOMES", None)
    found = listed or [name for name, value in vars(module).items() if isinstance(value, type)]
    return {f"{package}.{name}" for name in found}


def needless(places: set[str]) -> set[str]:
    """How a record is initialized: its fields say it, and the entry would be empty."""
    parts = {place: place.rpartition(".") for place in places}
    found = {place: getattr(importlib.import_module(home), name) for place, (home, _, name) in parts.items()}
    records = {place for place, value in found.items() if isinstance(value, type) and issubclass(value, msgspec.Struct)}
    assert len(records) > 5
    return {f"{record}.__init__" for record in records}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_and_every_public_name_and_verb_has_its_entry(tmp_path: Path) -> None:
    """One test, since a build takes half a minute."""
    names = explained(tmp_path)
    places = {name for package in PACKAGES for name in public(package)}
    wanted = places - NOT_A_CLASS
    wanted |= {f"headrace.errors.{name}" for name, value in vars(errors).items() if isinstance(value, type)}
    assert len(wanted) > 60
    assert {TWICE.get(name, name) for name in wanted} - names == set()
    verbs = {name for name in dir(Headrace) if not name.startswith("_")}
    assert {verb for verb in verbs if f"headrace.Headrace.{verb}" not in names} == set()
    assert needless(places) & names == set()
    tutorial = (tmp_path / "tutorial.html").read_text()
    assert re.search(r'code-block-caption"[^>]*>\s*<span class="caption-text">tasks\.py</span>', tutorial)
    assert "copybutton.js" in tutorial
    assert "[Tutorial](tutorial.html): " in (tmp_path / "llms.txt").read_text()
    assert "The first version" in (tmp_path / "changelog.html").read_text()
    assert list((tmp_path / "_images").glob("workflow*.svg"))
