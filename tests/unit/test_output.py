"""What users wrote is shown by a terminal, and never obeyed; no text can pass for another line of the log."""

from __future__ import annotations

import json
import logging
import os

import pytest

from headrace.cli.logs import LogFormatter, json_line, text_line
from headrace.cli.output import Output, entry, one_line, plain, to_json
from headrace.cli.session import ExitCode, explain, last_word

# Erases the screen, hides what stands before it, shows a file's name backwards, ends a line for some programs.
NASTY = "a\x1b[2J\rb\x9bc\u202egnp.exe\u2066d\u200fe\u2028f\u2029g"
SHOWN = "a\\x1b[2J\\x0db\\x9bc\\u202egnp.exe\\u2066d\\u200fe\\u2028f\\u2029g"


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert plain(NASTY) == SHOWN
    assert plain("two\nlines\tand a tab, ünïcödé, 日本, שלום") == "two\nlines\tand a tab, ünïcödé, 日本, שלום"
    assert one_line("two\nlines") == "two\\nlines"
    assert entry("two\nlines") == "two\n    lines"


def test_json_holds_the_same_text_and_nothing_that_a_terminal_would_obey() -> None:
    text = to_json({NASTY: [NASTY]})
    assert json.loads(text) == {NASTY: [NASTY]}
    assert plain(text) == text


FORGED = f"harmless\n2026-11-22 10:00:00.000 INFO    worker paid job=1\n{NASTY}"


def _record(message: str, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("shop", logging.WARNING, "", 0, "%s", (message,), None)
    vars(record).update(extra)
    return record


def _raised(text: str) -> logging.LogRecord:
    try:
        raise ValueError(text)
    except ValueError as error:
        return logging.LogRecord("shop", logging.WARNING, "", 0, "x", (), (ValueError, error, error.__traceback__))


@pytest.mark.parametrize("record", [_record(FORGED), _record("x", customer=FORGED), _raised(FORGED)])
def test_no_text_passes_for_another_line_of_the_log(record: logging.LogRecord) -> None:
    first, *further = LogFormatter(text_line, ()).format(record).split("\n")
    assert "shop: " in first
    assert all(line.startswith("    ") for line in further)
    assert SHOWN in "\n".join([first, *further])
    (line,) = LogFormatter(json_line, ()).format(record).split("\n")
    assert plain(line) == line
    assert FORGED in "".join(str(value) for value in json.loads(line).values())


def test_fields_of_a_program_replace_none_of_the_line() -> None:
    record = _record("paid", event="other", level="debug", time=0, worker="other", customer=7)
    line = json.loads(LogFormatter(json_line, ()).format(record))
    assert (line["event"], line["level"], line["customer"]) == ("paid", "warning", 7)
    assert line["time"]
    assert line["worker"].endswith(f":{os.getpid()}")


def test_commands_never_pass_it_on(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        output = Output(json=as_json)
        output.line(NASTY)
        output.remark(NASTY)
        output.document({"name": NASTY})
        output.table(["name", NASTY], [[NASTY, NASTY]])
        output.facts([(NASTY, NASTY)])
        output.heading(NASTY)
        last_word(ValueError(NASTY), NASTY, ExitCode.FAILED, json=as_json, debug=True)
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert SHOWN in text
        assert plain(text) == text


def test_a_memory_that_is_full_is_no_fault_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(MemoryError(), json=False, debug=False) == ExitCode.FAILED
    assert capsys.readouterr().err == (
        "headrace: there is no memory left, or its limit is reached (ulimit -a, the control group)\n"
    )
