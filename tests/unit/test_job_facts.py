"""What log lines say of a start, and what all work that one piece of work led to has in common."""

from __future__ import annotations

from headrace.context import CurrentJob
from headrace.model.headers import CORRELATION, MOST_HEADERS, TRACE, packed, with_correlation
from headrace.model.ids import make_id
from headrace.model.job import Claim
from headrace.model.workflow import correlation_of, log_fields, trace_id_of

ID = make_id(1, 1)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_correlation_is_inherited_or_that_of_the_trace_or_the_job() -> None:
    assert correlation_of(ID, {}) == ID
    assert correlation_of(ID, {TRACE: PARENT}) == "0af7651916cd43dd8448eb211c80319c"
    assert correlation_of(ID, {TRACE: PARENT, CORRELATION: "request 7"}) == "request 7"
    assert trace_id_of({TRACE: "rubbish"}) == ""


def test_a_job_passes_its_correlation_on_where_there_is_room() -> None:
    assert with_correlation({}, ID) == {CORRELATION: ID}
    assert with_correlation({CORRELATION: "own"}, ID) == {CORRELATION: "own"}
    many = {str(n): "" for n in range(MOST_HEADERS)}
    assert with_correlation(many, ID) == many
    large = {"a": "x" * 4090}
    assert with_correlation(large, ID) == large


def test_a_plain_job_has_no_workflow() -> None:
    claim = Claim(ID, 1, "mail", 1, "tasks.send", b"", failures=1, headers=packed({CORRELATION: "c"}))
    assert log_fields(claim) == {"job": ID, "task": "tasks.send", "queue": "mail", "attempt": 2, "correlation": "c"}


def test_a_logger_of_ones_own_has_what_our_lines_have() -> None:
    claim = Claim(ID, 1, "mail", 1, "tasks.send", b"", headers=packed({CORRELATION: "c"}))
    assert CurrentJob(claim, print).log_fields == log_fields(claim)
