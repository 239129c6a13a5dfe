"""The documentation builds as a site without a warning, and the reference has every public name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sphinx.util.inventory import InventoryFile

from headrace import errors

ROOT = Path(__file__).resolve().parents[2]
# What users import names from.
PACKAGES = ("headrace", "headrace.pool", "headrace.stats", "headrace.cache")
# Functions and values, which have no page of members.
NOT_A_CLASS = {"headrace.pool.STRATEGIES", "headrace.cache.ABSENT"}
# The same class under a second name.
TWICE = {"headrace.Pool": "headrace.pool.Pool"}
TWICE |= {f"headrace.{name}": f"headrace.errors.{name}" for name in ("HeadraceError", "RateLimited")}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every name that the built site explains, without the module that it happens to stand in."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", ROOT / "docs", site]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for kind, found in inventory.items() if kind.startswith("py:") for name in found}


def public(package: str) -> set[str]:
    module = importlib.import_module(package)
    listed = getattr(module, "__all__", None) or getattr(module, "_HOMES", None)
    found = listed or [name for name, value in vars(module).items() if isinstance(value, type)]
    return {f"{package}.{name}" for name in found}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_public_name_has_its_entry(names: set[str]) -> None:
    wanted = {name for package in PACKAGES for name in public(package)} - NOT_A_CLASS
    wanted |= {f"headrace.errors.{name}" for name, value in vars(errors).items() if isinstance(value, type)}
    assert len(wanted) > 60
    assert {TWICE.get(name, name) for name in wanted} - names == set()


@pytest.mark.slow
def test_every_verb_of_the_application_has_its_entry(names: set[str]) -> None:
    from headrace import Headrace

    verbs = {name for name in dir(Headrace) if not name.startswith("_")}
    assert {verb for verb in verbs if f"headrace.Headrace.{verb}" not in names} == set()


@pytest.mark.slow
def test_no_record_tells_how_it_is_initialized(names: set[str]) -> None:
    """Its fields say it; the entry would be empty."""
    places = {place: place.rpartition(".") for package in PACKAGES for place in public(package)}
    found = {place: getattr(importlib.import_module(home), name) for place, (home, _, name) in places.items()}
    records = {place for place, value in found.items() if isinstance(value, type) and issubclass(value, msgspec.Struct)}
    assert len(records) > 5
    assert {f"{record}.__init__" for record in records} & names == set()
