"""What a job's journal learns of a start: of each that did not simply succeed, told with the outcome. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.ended import EndKind
from headrace.model.job import Claim, Outcome, StartNote, first_line
from headrace.worker.dispatcher.ends.job_log import error_of

# Ends of a first start that need no journal.
_SIMPLE: frozenset[EndKind] = frozenset({"succeeded", "grown", "skipped"})
# Ends of claims whose code did not run.
_NO_START: frozenset[EndKind] = frozenset({"released", "parked"})


def starts(batch: Sequence[tuple[Outcome, Claim]]) -> list[StartNote]:
    """The starts of a batch that go into journals: those that did not succeed, and those after one that did not."""
    found = [_note(outcome, claim) for outcome, claim in batch if outcome.kind not in _SIMPLE or claim.journaled]
    return [note for note in found if note is not None]


def _note(outcome: Outcome, claim: Claim) -> StartNote | None:
    if outcome.kind in _NO_START:
        return None
    if outcome.kind == "limited":
        return StartNote(claim.id, claim.ready, outcome.data.decode())
    error = error_of(outcome.kind, outcome.data)
    if error is None:
        return StartNote(claim.id, claim.ready)
    if not error.attempt and outcome.kind in ("cancelled", "corrupt"):
        # It expired, was cancelled or could not be read before its code began.
        return None
    code = -1 if error.exit_code is None else error.exit_code
    return StartNote(claim.id, claim.ready, first_line(error), error.signal or 0, code)
