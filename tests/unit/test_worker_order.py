"""What a worker is started by: no password stays in the words that every user of the machine can read."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import pytest
from msgspec.structs import replace

from headrace.cli.worker_order import MARK, Order, discreet
from headrace.worker.reload_parent import WorkerCommand
from headrace.worker.worker_options import WorkerOptions

URL = "redis://:open-sesame@127.0.0.1:1"
FORMS = [("--url", URL), (f"--url={URL}",)]


def command(*words: str) -> WorkerCommand:
    argv = ["python", "-m", "headrace", "worker", "tasks:app", *words, "--burst"]
    return WorkerCommand(argv=argv, environ={"LANG": "C"}, directory="/")


@pytest.mark.parametrize("words", FORMS, ids=len)
def test_the_next_worker_finds_a_url_with_a_password_in_its_environment(words: tuple[str, ...]) -> None:
    found = discreet(command(*words), URL)
    assert found.argv == command().argv
    assert found.environ == {"LANG": "C", "HEADRACE_URL": URL}


@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:1"])
def test_a_url_without_a_password_stays_where_it_is(url: str | None) -> None:
    given = command(*(() if url is None else ("--url", url)))
    assert discreet(given, url) == given


class BecomesWorkerError(Exception):
    """Instead of an exec, with the words and the environment of the program that it would begin."""


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> None:
    def execve(_path: str, argv: list[str], environ: dict[str, str]) -> NoReturn:
        raise BecomesWorkerError(argv, environ)

    monkeypatch.setattr(os, "execve", execve)


@pytest.mark.usefixtures("instead")
@pytest.mark.parametrize("words", FORMS, ids=len)
def test_the_words_of_a_worker_show_no_password(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", "worker", "tasks:app", *words])
    order = Order("tasks:app", WorkerOptions(), {}, 0, json=False, debug=False)
    with pytest.raises(BecomesWorkerError) as became:
        order.carry_out(command(*words).environ)
    shown = became.value.args[0]
    assert " ".join(shown[-len(words) :]).replace("=", " ") == "--url redis://:***@127.0.0.1:1"


@pytest.mark.usefixtures("instead")
def test_an_order_arrives_as_it_was_given_whatever_bytes_its_directory_has() -> None:
    given = Order("tasks:app", WorkerOptions(max_idle=2.5), {"dir": "/a\udcff"}, 0, json=False, debug=True)
    with pytest.raises(BecomesWorkerError) as became:
        given.carry_out({MARK: "1"})
    environ = became.value.args[1]
    assert Order.take_from(environ) == replace(given, instrumented=True)
    assert environ == {}
