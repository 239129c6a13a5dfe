"""Acts, events and verbs on many jobs as documents for programs. Pure, and without redaction: a page redacts them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from headrace.admin.declared_alarms import AlarmRecord
from headrace.model.activity import Act, EventRecord
from headrace.model.errand import Errand
from headrace.model.notation import iso


def act_document(one: Act) -> dict[str, Any]:
    facts = asdict(one)
    return {"id": facts.pop("id"), "at": iso(facts.pop("at_us")), **facts}


def errand_document(one: Errand) -> dict[str, Any]:
    """A verb on many jobs, and how far it has come."""
    return {
        "id": one.id,
        "verb": one.verb,
        "jobs": one.which.words,
        "phase": one.phase,
        "who": one.who,
        "by": one.by,
        "began": iso(one.bound_us),
        "ended": iso(one.ended_us),
        "total": one.total,
        "exact": one.exact,
        "rate": one.rate or None,
        "looked_at": one.looked,
        "done": one.done,
        "refused": dict(one.refused),
    }


def event_document(one: EventRecord) -> dict[str, Any]:
    return {"id": one.id, "at": iso(one.at_us), "kind": one.kind, **one.facts}


def alarm_document(one: AlarmRecord) -> dict[str, Any]:
    return {
        "alarm": one.name,
        "rule": one.state.words,
        "raised": iso(one.state.raised_us),
        "figure": one.state.value,
        "looked_at": iso(one.looked_us),
    }
