"""What a worker is started by: no password stays in the words that every user of the machine can read."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import pytest

from headrace.cli.worker_order import Order, discreet
from headrace.worker.reload.image_launch import Launch
from headrace.worker.worker_options import WorkerOptions

URL = "redis://:open-sesame@127.0.0.1:1"
FORMS = [("--url", URL), (f"--url={URL}",)]


def launch(*words: str) -> Launch:
    return Launch(
        argv=["python", "-m", "headrace", "worker", "tasks:app", *words, "--burst"],
        environ={"LANG": "C"}, directory="/", terminal=False, immune=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", FORMS, ids=len)
def test_the_next_image_finds_a_url_with_a_password_in_its_environment(words: tuple[str, ...]) -> None:
    found = discreet(launch(*words), URL)
    assert found.argv == launch().argv
    assert found.environ == {"LANG": "C", "HEADRACE_URL": URL}


@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:1"])
def test_a_url_without_a_password_stays_where_it_is(url: str | None) -> None:
    given = launch(*(() if url is None else ("--url", url)))
    assert discreet(given, url) == given


@pytest.mark.parametrize("words", FORMS, ids=len)
def test_the_words_of_a_worker_show_no_password(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    shown: list[str] = []

    class BecomesWorkerError(Exception): ...

    def execve(_path: str, argv: list[str], _environ: dict[str, str]) -> NoReturn:
        shown.extend(argv)
        raise BecomesWorkerError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["headrace", "worker", "tasks:app", *words])
    order = Order("tasks:app", WorkerOptions(), {}, 0, json=False, debug=False)
    with pytest.raises(BecomesWorkerError):
        order.carry_out(launch(*words))
    assert " ".join(shown[-len(words) :]).replace("=", " ") == "--url redis://:***@127.0.0.1:1"
