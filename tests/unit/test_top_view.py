"""``headrace top``: what keys do, played on a frame."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from headrace.cli.output import local, moment
from headrace.cli.top import SORTS, TopAct, TopView, keys_of, lines_of, marks_of, pressed, question, summary
from headrace.cli.top_frame import TopFrame, TopQueue, TopRun, TopTask, TopWorker

FRAME = TopFrame(
    now=1_700_000_000_000_000,
    states={"ready": 3, "running": 1},
    queues=[TopQueue("mail", 2, 5.0, paused=False, workers=1), TopQueue("video", 1, 1.0, paused=True, workers=0)],
    tasks=[TopTask("tasks.send", 4, 1, 0.1, 0.2, 1.0), TopTask("tasks.encode", 1, 0, 9.0, 9.0, 9.0)],
    workers=[TopWorker("host:1", 1, 4, 0)],
    runs=[TopRun("j1", "tasks.encode", "host:1", 90.0)],
    rate=1.0,
    ended=[1, 2],
    failed=[0, 0],
)


def played(keys: str, view: TopView | None = None) -> tuple[TopView, list[TopAct]]:
    """The view after these keys, and what they asked for."""
    view, acts = view or TopView(), list[TopAct]()
    for key in keys_of(keys):
        view, act = pressed(view, key, view.filtered(FRAME))
        acts += [] if act is None else [act]
    return view, acts


def test_keys_of_one_read_are_told_apart() -> None:
    assert keys_of("jk\x1b[A/\r\x1b") == ["j", "k", "\x1b[A", "/", "\r", "\x1b"]


def test_a_filter_is_typed_kept_and_dropped() -> None:
    view, acts = played("/VIDq\x7f")
    assert (view.typing, view.like, acts) == (True, "VID", [])
    assert "filter: VID_" in view.head
    view, _ = played("\r", view)
    shown = view.filtered(FRAME)
    assert ([one.name for one in shown.queues], shown.tasks, shown.runs) == (["video"], [], [])
    assert "only 'VID'" in view.head
    assert played("\x1b", view)[0].like == ""
    assert played("/xy\x1b")[0] == TopView()
    assert played("q") == (TopView(), [("quit", "")])


def test_a_terminal_of_80_columns_shows_every_key() -> None:
    for sort in range(len(SORTS)):
        head = TopView(sort=sort).head
        assert head.endswith("P pause")
        assert len(head) <= 80


def test_the_mark_goes_over_queues_and_running_jobs_and_stays_inside() -> None:
    assert marks_of(FRAME) == [("queue", "mail"), ("queue", "video"), ("job", "j1")]
    assert played("j")[0].mark == ("queue", "mail")
    assert played("jj")[0].mark == ("queue", "video")
    assert played("\x1b[B" * 9)[0].mark == ("job", "j1")
    assert played("jjkkk")[0].mark == ("queue", "mail")
    # One that is filtered out is marked no more.
    assert played("jj/mail\r\r")[1] == []


def test_enter_asks_why() -> None:
    assert played("\r")[1] == []
    assert played("j\r")[1] == [("why queue", "mail")]
    assert played("jjj\r")[1] == [("why job", "j1")]


@pytest.mark.parametrize(
    ("moves", "question_", "act"), [("j", "Pause mail?", "pause"), ("jj", "Resume video?", "resume")]
)
def test_a_queue_is_paused_and_resumed_when_that_is_confirmed(moves: str, question_: str, act: str) -> None:
    view, acts = played(moves + "P")
    assert acts == []
    assert question_ in question(view, FRAME)
    name = question_.split()[1].rstrip("?")
    assert played("y", view) == (TopView(mark=("queue", name)), [(act, name)])
    for key in ("n", "\r", "P"):
        assert played(key, view) == (TopView(mark=("queue", name)), [])
    assert played("jjjP")[0].asked == ""


def test_other_keys_do_as_before() -> None:
    assert played("p")[0].stopped
    assert played("pp") == (TopView(), [("look", "")])
    assert played("p ") == (TopView(), [("look", "")])
    assert played("s")[0].sort == 1
    assert played("sss")[0] == TopView()
    assert played("zx\x1b[Z")[0] == TopView()


def test_without_a_frame_there_is_nothing_to_mark() -> None:
    assert pressed(TopView(), "j", None) == (TopView(), None)


def test_the_marked_row_is_seen() -> None:
    lines = lines_of(FRAME, 100, 40, "time", "video")
    assert [line.split()[:2] for line in lines if line.startswith(">")] == [[">", "video"]]
    assert [line for line in lines_of(FRAME, 100, 40, "time", "j1") if line.startswith("> tasks.encode")]
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines_of(FRAME, 100, 40, "time") if line.startswith((">", "  "))]


@pytest.fixture
def lord_howe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Australia/Lord_Howe")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("lord_howe")
def test_the_zone_tells_times_apart_that_the_clock_shows_twice() -> None:
    first, second = 1_775_313_900_000_000, 1_775_315_700_000_000
    assert moment(first, second / 1e6) == "2026-04-05 01:45:00 +11 (30m ago)"
    assert moment(second, second / 1e6) == "2026-04-05 01:45:00 +1030 (0s ago)"
    assert (moment(0, 0), local(0)) == ("-", "-")
    assert local(253_402_300_799_999_999) == "9999-12-31 23:59:59 UTC", "datetime.max, of a job that waits for ever"
    heads = [summary(msgspec.structs.replace(FRAME, now=now))[:14] for now in (first, second)]
    assert heads == ["01:45:00 +11 r", "01:45:00 +1030"]
