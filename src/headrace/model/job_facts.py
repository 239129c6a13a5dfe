"""What log lines, errors and traces say of one start, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.headers import CORRELATION, TRACE, shown
from headrace.model.ids import flow_of, is_node
from headrace.model.job import Claim
from headrace.model.workflow import parse_facts


def fields_of(claim: Claim, headers: Mapping[str, str] | None = None) -> dict[str, str | int]:
    """``job``, ``task``, ``queue``, ``attempt``, ``correlation``; ``workflow`` and ``node``; ``trace_id``: where known.
    ``headers``: of the claim, if they are unpacked already.
    """
    headers = shown(claim.headers) if headers is None else headers
    fields: dict[str, str | int] = {
        "job": claim.id, "task": claim.task, "queue": claim.queue, "attempt": claim.attempt,
        "correlation": correlation_of(claim.id, headers),
    }  # fmt: skip
    if is_node(claim.id):
        fields |= {"workflow": flow_of(claim.id), "node": parse_facts(claim.facts).name}
    if trace := trace_id_of(headers):
        fields["trace_id"] = trace
    return fields


def correlation_of(id: str, headers: Mapping[str, str]) -> str:
    """What all work that one piece of work led to has in common. The header that it inherited or was given; else the id
    of the sender's trace; else of its workflow; or its own id.
    """
    return headers.get(CORRELATION) or trace_id_of(headers) or (flow_of(id) if is_node(id) else id)


def trace_id_of(headers: Mapping[str, str]) -> str:
    """The trace of the sender, 32 hexadecimal digits, as W3C Trace Context has it; empty for none."""
    parts = headers.get(TRACE, "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else ""
