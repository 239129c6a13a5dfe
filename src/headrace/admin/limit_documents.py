"""Limits as documents for programs: of ``headrace limits --json``, and of ``.json`` pages. Pure."""

from __future__ import annotations

from typing import Any

from headrace.model.limit_rules import Concurrency, Rate
from headrace.model.limit_state import LimitState, Override
from headrace.model.notation import iso


def limit_document(state: LimitState) -> dict[str, Any]:
    """A limit, or one of its values."""
    return {
        "name": state.name,
        "value": state.value,
        "by": state.by or None,
        "queue": state.queue or None,
        "rate": None if state.rate is None else _rate(state.rate),
        "concurrency": None if state.concurrency is None else state.concurrency.n,
        "weight": state.weight,
        "backlog": state.backlog or None,
        "full": state.full,
        "paused": state.paused,
        "paused_until": iso(state.until),
        "running": state.held,
        "waiting": state.waiting,
        "free": state.free,
        "open": state.opens == 0,
        "opens": iso(state.opens or 0),
        "overrides": [_override(one) for one in state.overrides],
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"n": rate.n, "per": rate.per, "burst": rate.burst, "shape": rate.shape, "timezone": rate.timezone}


def _override(one: Override) -> dict[str, Any]:
    return {
        "part": one.part,
        "until": iso(one.until),
        "fields": {name: text for name, text in one.fields.items() if text and name != "zone"},
    }


def limit_numbers(rate: Rate | None, concurrency: Concurrency | None) -> str:
    """The numbers of a limit for people: ``500 per 60 s, 20 at once``."""
    found: list[str] = []
    if rate is not None:
        found.append(str(rate))
    if concurrency is not None:
        found.append(f"{concurrency.n:,} at once")
    return ", ".join(found) or "turns"
