"""What test suites use: a kit that runs the jobs of an application in the test itself, and checks of a store.

Loads nothing until it is asked for: pytest imports the plugin that is beside this in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.admin.keyspace_rules import assert_invariants as assert_invariants
    from headrace.admin.keyspace_rules import violations as violations
    from headrace.testing.kit import Enqueued as Enqueued
    from headrace.testing.kit import Kit as Kit
    from headrace.testing.kit import Stub as Stub
    from headrace.testing.kit_store import Drained as Drained
    from headrace.testing.kit_store import DrainError as DrainError
    from headrace.testing.kit_store import VirtualClock as VirtualClock

_HOMES = {
    **dict.fromkeys(("assert_invariants", "violations"), "admin.keyspace_rules"),
    **dict.fromkeys(("Enqueued", "Kit", "Stub"), "testing.kit"),
    **dict.fromkeys(("Drained", "DrainError", "VirtualClock"), "testing.kit_store"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"headrace.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
