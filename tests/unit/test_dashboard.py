"""The dashboard's pure parts: words, redaction, plots, what needs a person, causes. No server."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

pytest.importorskip("starlette", reason="the extra dashboard is not installed")

from headrace.admin.alarms import AlarmRecord
from headrace.cli import output
from headrace.dashboard import figures, values_shown
from headrace.dashboard.figures import SPANS, Course, LiveFrame, TaskFigures, figures_of
from headrace.dashboard.needs import Need, needs
from headrace.dashboard.values_shown import json_text, shown
from headrace.model.activity import Act, AlarmState, EventRecord
from headrace.model.environment import Sight, fields
from headrace.model.hidden_values import HIDDEN, Redactor
from headrace.model.job import JobError
from headrace.model.limit_rules import Concurrency, LimitState
from headrace.protocol.overviews import Overview, QueueFacts, WorkerFacts
from headrace.stats.reading import Bucket
from headrace.stats.resolutions import histogram_of

NOW = 1_795_000_000_000_000


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0"), (1e-9, "0"), (0.00003, "30 µs"), (0.0004, "400 µs"), (0.34, "340 ms"), (2.06, "2.06 s"), (42, "42 s"), (60, "1 min"), (200, "3 min 20 s"),
        (3600, "1 h"), (18_600, "5 h 10 min"), (90_000, "1 d 1 h"), (None, values_shown.DASH), (-1, "0"),
    ],
)  # fmt: skip
def test_durations_are_written_in_two_units(seconds: float | None, words: str) -> None:
    assert values_shown.duration(seconds) == words


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (7, "7"), (1000, "1.0k"), (12_345, "12.3k"), (3_100_000, "3.1M"), (0.25, "0.25")]
)
def test_figures_are_short(number: float, words: str) -> None:
    assert values_shown.short(number) == words


def test_a_share_is_whole_only_when_nothing_is_missing() -> None:
    assert [values_shown.percent(share) for share in (0, 0.003, 0.99, 0.999, 1)] == [
        "0 %",
        "0.3 %",
        "99 %",
        "99 %",
        "100 %",
    ]
    assert [output.percent(share) for share in (0, 0.996, 1)] == ["0%", "99%", "100%"]


@given(st.integers(-(2**62), 2**62))
def test_no_stored_time_breaks_a_page(at: int) -> None:
    assert values_shown.when(at, NOW)
    assert values_shown.stamp(at)


@given(st.text())
def test_what_is_no_state_is_escaped_where_a_state_stands(text: str) -> None:
    page = str(values_shown.state(text))
    assert page.count("<") == 5
    assert '"' not in re.sub(r'(class|viewBox|aria-hidden|d)="[^"]*"', "", page)


SECRETS: list[Any] = [
    {"password": "hunter2"}, {"options": [{"API-Key": "hunter2"}]}, {"userToken": "hunter2"}, "redis://u:hunter2@host/0",
    {"note": "password=hunter2 and more"}, "{'secret': 'hunter2'}", "Authorization: Bearer hunter2", {"a": ("token: hunter2",)},
    {"rows": [JobError(type="E", message="token=hunter2")]},
]  # fmt: skip


@pytest.mark.parametrize("value", SECRETS, ids=str)
def test_secrets_are_hidden_at_any_depth(value: Any) -> None:
    text = json_text(Redactor().value(value))
    assert "hunter2" not in text
    assert HIDDEN in text


def test_what_is_no_secret_is_shown() -> None:
    value = {"url": "https://example.com/a?b=c", "author": "me", "n": [1, 2.5, None, True], "mail": "a@b.example"}
    assert Redactor().value(value) == value
    assert Redactor(["author"]).value(value)["author"] == HIDDEN


@given(
    st.recursive(
        st.none() | st.text() | st.floats() | st.binary(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_any_value_can_be_shown(value: Any) -> None:
    one = shown("value", value, Redactor())
    assert isinstance(one.text, str)
    one.text.encode("utf-8", "replace")


def test_of_bytes_the_size_and_the_first_ones_are_shown() -> None:
    one = shown("value", {"few": b"ab", "many": (b"\x00" * 5000,)}, Redactor())
    assert '"few": "2 B of bytes: 61 62"' in one.text
    assert '"4.9 KiB of bytes: 00 00 ' in one.text
    assert len(one.text) < 300
    assert shown("value", b"", Redactor()).text == '"0 B of bytes: "'


def test_deep_and_large_values_are_bounded() -> None:
    deep: Any = "end"
    for _ in range(5000):
        deep = [deep]
    assert len(shown("deep", deep, Redactor()).text) < 10_000
    large = shown("large", "x" * 200_000, Redactor())
    assert len(large.text) <= 65_536
    assert large.left > 100_000


def course(values: list[tuple[int, int, float]]) -> Course:
    start = datetime(2026, 11, 23, tzinfo=UTC)
    buckets = [
        Bucket(
            start + timedelta(minutes=n), start + timedelta(minutes=n + 1), {"succeeded": done, "failed": failed, "started": done},
            {"wait": histogram_of({wait: 5})} if wait else {},
        )
        for n, (done, failed, wait) in enumerate(values)
    ]  # fmt: skip
    return Course(SPANS["1h"], "jobs", buckets, buckets[0], figures_of("", buckets[0]))


def elements(svg: str) -> list[ET.Element]:
    return list(ET.fromstring(svg))


def test_a_plot_has_a_bar_for_each_outcome_and_its_numbers_as_a_table() -> None:
    plot = figures.throughput(course([(90, 10, 0), (0, 0, 0), (5, 0, 0)]))
    bars = [one for one in elements(plot.svg) if one.get("class", "").startswith(("failed", "succeeded"))]
    assert [(one.get("class"), one.get("d")) for one in bars] == [
        ("failed", "M0.1 90h.8V100h-.8"),
        ("succeeded", "M0.1 0h.8V90h-.8"),
        # The last minute is not over.
        ("succeeded unfinished", "M2.1 95h.8V100h-.8"),
    ]
    assert plot.ticks == ["100", "50", "0"]
    assert plot.rows[-1] == ["00:00", "10", "90"]
    (hits,) = [one for one in elements(plot.svg) if one.get("class") == "hit"]
    assert len(hits) == 3


def test_a_plot_marks_the_first_start_of_a_version() -> None:
    began = round(datetime(2026, 11, 23, 0, 1, 30, tzinfo=UTC).timestamp() * 1e6)
    seen = replace(course([(9, 0, 0)] * 3), deploys={"<b>1.2</b>": began, "older": began - 86_400_000_000})
    for plot in (figures.throughput(seen), figures.waits(seen)):
        (mark,) = [one for one in elements(plot.svg) if one.get("class") == "mark"]
        assert mark.get("d") == "M1.5 0V100"
        assert plot.deploys == ["<b>1.2</b> 00:01"]
        (hits,) = [one for one in elements(plot.svg) if one.get("class") == "hit"]
        titles = ["".join(hit.itertext()) for hit in hits]
        assert [title.endswith(", first start of <b>1.2</b>") for title in titles] == [False, True, False]


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    plot = figures.waits(course([(1, 0, 0.5), (1, 0, 0.7), (0, 0, 0), (1, 0, 0.6)]))
    assert len([one for one in elements(plot.svg) if one.get("class") == "line half"]) == 2
    assert plot.rows[1][1:] == [values_shown.DASH, values_shown.DASH]
    assert plot.ticks[0] == "1 s"


def test_a_plot_whose_finer_buckets_have_expired_knows_it() -> None:
    given_ = course([(1, 0, 0.5), (1, 0, 0.7)])
    assert figures.throughput(given_).exact
    coarse = replace(given_, buckets=[given_.buckets[0], replace(given_.buckets[1], exact=False)])
    assert not figures.throughput(coarse).exact


def test_a_backlog_of_none_was_counted_and_a_range_without_samples_was_not() -> None:
    ready = course([(0, 0, 0)] * 3)
    sampled = replace(ready, buckets=[replace(one, counts={"samples": 2}) for one in ready.buckets])
    assert not figures.backlog(ready, sampled).empty
    assert figures.backlog(ready, ready).empty


def test_a_plot_begins_at_the_first_datum_and_has_no_slivers() -> None:
    late = figures.throughput(course([(0, 0, 0)] * 40 + [(3, 0, 0.1)] * 20))
    assert (len(late.rows), late.rows[-1][0], late.unit) == (20, "00:40", "jobs a minute")
    fine = figures.throughput(course([(1, 0, 0.1)] * 360))
    assert (len(fine.rows), fine.unit) == (90, "jobs in 4 minutes")
    assert {row[2] for row in fine.rows} == {"4"}


def test_a_backlog_is_the_mean_of_the_samples_of_all_queues() -> None:
    given_ = course([(0, 0, 0)] * 12)
    ready = [replace(one, counts={"ready": 6} if n == 11 else {}) for n, one in enumerate(given_.buckets)]
    sampled = [replace(one, counts={"samples": 2, "ready": 99} if n else {}) for n, one in enumerate(given_.buckets)]
    plot = figures.backlog(replace(given_, buckets=ready), replace(given_, buckets=sampled))
    assert [row[1] for row in plot.rows][:2] == ["3", "0"]
    assert len(plot.rows) == 11, "the plot begins with the first sample"
    unknown = figures.backlog(given_, given_)
    assert unknown.empty
    assert unknown.rows[0][1] == values_shown.DASH


def test_a_name_breaks_at_its_dots_and_underscores_and_stays_text() -> None:
    assert values_shown.breaks("billing.charge_card") == "billing.<wbr>charge_<wbr>card"
    assert values_shown.breaks("5.7 % of a.b fail") == "5.7 % of a.<wbr>b fail"
    assert values_shown.breaks("<b>.x") == "&lt;b&gt;.<wbr>x"


def test_of_a_traceback_the_frames_of_headrace_and_python_are_apart() -> None:
    trace = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/headrace/worker/runner/calls.py", line 9, in call
    return task()
  File "/usr/lib/python3.11/asyncio/tasks.py", line 3, in run
    x()
  File "/app/shop.py", line 7, in charge
    raise ValueError("no")
ValueError: no"""
    pieces = values_shown.frames(trace)
    assert [ours for ours, _ in pieces] == [False, True, False]
    assert pieces[2][1].startswith('  File "/app/shop.py"')
    assert pieces[2][1].endswith("ValueError: no")
    assert "\n".join(text for _, text in pieces) == trace


def test_an_empty_plot_says_so() -> None:
    assert figures.throughput(course([(0, 0, 0)] * 4)).empty
    assert figures.waits(course([(0, 0, 0)] * 4)).empty


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0, 10**7)), min_size=1, max_size=30))
def test_every_plot_is_drawn_within_its_frame(values: list[tuple[int, int, float]]) -> None:
    for plot in (figures.throughput(course(values)), figures.waits(course(values))):
        for one in elements(plot.svg):
            if one.get("class", "").startswith(("failed", "succeeded")):
                heights = re.findall(r"M\d+\.1 ([\d.]+)h\.8V([\d.]+)h-\.8", one.attrib["d"])
                assert all(0 <= float(top) <= float(bottom) <= 100 for top, bottom in heights)
                assert len(heights) == one.attrib["d"].count("M")


def frame(
    queues: list[QueueFacts], workers: list[WorkerFacts], states: dict[str, int] | None = None, parked: int = 0, flows: int = 0
) -> LiveFrame:  # fmt: skip
    counts = {"ready": sum(queue.size for queue in queues)} | (states or {})
    return LiveFrame(
        Overview(NOW, counts, queues, workers, {"shop.gone": parked} if parked else {}, 0), {"failed": flows}
    )


def queue(name: str = "mail", size: int = 3, waited: float = 1, paused: bool = False, held: int = 0) -> QueueFacts:
    return QueueFacts(name, size, paused, NOW - round(waited * 1e6), 0, held=held)


def limit(name: str = "api", waiting: int = 50, paused: bool = True) -> LimitState:
    return LimitState(name, None, "", "", None, Concurrency(2), 1.0, paused, 0, (), 0, waiting, None)


def worker(queues: str = "mail", lease: int = NOW + 1, running: int = 1) -> WorkerFacts:
    return WorkerFacts("w1", lease, running, {"place": "host:1", "queues": queues, "sizes": "process:2"})


def task(failed: int, succeeded: int) -> TaskFigures:
    return TaskFigures("shop.pay", failed + succeeded, succeeded, failed, 0, (0, 0), (0, 0), 0)


@pytest.mark.parametrize(
    ("seen", "tasks", "words", "link"),
    [
        (frame([queue()], []), [], "No worker is running", "/workers"),
        (frame([queue()], [worker("other")]), [], "No worker serves queue mail", "/queues/mail"),
        (frame([queue(waited=90)], [worker()]), [], "Jobs of queue mail wait for 1 min 30 s", "/queues/mail"),
        (frame([queue(paused=True)], [worker()]), [], "Queue mail is paused", "/queues/mail"),
        (replace(frame([], [worker()]), limits=[limit()]), [], "Limit api is paused", "/limits/api"),
        (
            frame([], [worker()], parked=2),
            [],
            "No worker knows the task shop.gone",
            "/tasks/shop.gone",
        ),
        (frame([], [worker(lease=NOW - 1), worker()]), [], "Worker host:1 fell silent", "/workers/w1"),
        (frame([], [worker()], {"quarantined": 1}), [], "1 job is quarantined", "/jobs?state=quarantined"),
        (frame([], [worker()], flows=2), [], "2 workflows failed", "/workflows?state=failed"),
        (frame([], [worker()]), [task(20, 80)], "20 % of shop.pay fail", "/causes?task=shop.pay"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_needs_a_person_is_said_with_the_page_that_answers(
    seen: LiveFrame, tasks: list[TaskFigures], words: str, link: str
) -> None:
    (need,) = needs(seen, tasks)
    assert (need.title, need.link) == (words, link)


def test_nothing_needs_a_person_where_all_is_well() -> None:
    assert needs(frame([queue(waited=5), queue("low", 0)], [worker("mail,low")]), [task(1, 999), task(9, 1)]) == []


def test_what_is_bad_comes_first() -> None:
    found = needs(frame([queue("a", paused=True), queue("b")], [worker("a")]), [])
    assert [need.level for need in found] == ["bad", "warn"]


def test_what_harms_most_comes_first_of_what_is_bad() -> None:
    full = Sight(fields(b"used_memory:100\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n"))
    seen = frame([queue("a", size=1), queue("b", size=9)], [worker("other")], {"quarantined": 1}, parked=1)
    titles = [need.title for need in needs(seen, [task(20, 80)], full)]
    assert titles[:3] == [
        "The store uses 100 % of its memory", "No worker serves queue b", "No worker serves queue a"
    ]  # fmt: skip
    assert titles[-1] == "1 job is quarantined"


def test_needs_of_one_kind_are_one_that_names_the_worst() -> None:
    queues = [queue(name, size=n + 1) for n, name in enumerate("abcde")]
    (need,) = needs(frame(queues, [worker("other")]), [])
    assert (need.title, need.link) == ("No worker serves 5 queues", "/queues")
    assert need.detail == "e, d, c and 2 more: 15 jobs wait."


def acknowledged(need: Need, ago: int = 60) -> Act:
    return Act("1-0", NOW - ago * 1_000_000, "ada", "dashboard", "acknowledge", "needs", need.mark, "", 1, "")


def test_a_need_that_a_person_acknowledged_is_last_until_it_grows() -> None:
    seen = frame([queue("a", size=5), queue("b", size=9)], [worker("other")])
    first = needs(seen, [])[0]
    found = needs(seen, [], acts=[acknowledged(first)])
    assert [(one.subject, one.by) for one in found] == [("a", ""), ("b", "ada")]
    grown = frame([queue("a", size=5), queue("b", size=18)], [worker("other")])
    assert [one.by for one in needs(grown, [], acts=[acknowledged(first)])] == ["", ""]
    assert [one.by for one in needs(seen, [], acts=[acknowledged(first, 90_000)])] == ["", ""]


@pytest.mark.parametrize(
    ("rule", "seen", "tasks", "title"),
    [
        ("delay of mail above 60 s for 60 s", frame([queue(waited=90)], [worker()]), [], "Jobs of queue mail wait"),
        ("workers of mail below 1 for 0 s", frame([queue()], [worker("other")]), [], "No worker serves queue mail"),
        ("failed of shop.pay above 5 % for 0 s", frame([], [worker()]), [task(20, 80)], "20 % of shop.pay fail"),
        ("ready above 100 for 0 s", frame([queue(paused=True)], [worker()]), [], "Queue mail is paused"),
    ],
)
def test_an_alarm_and_a_need_that_say_the_same_are_one(
    rule: str, seen: LiveFrame, tasks: list[TaskFigures], title: str
) -> None:
    alarm = AlarmRecord("pages", AlarmState(NOW - 180_000_000, 0, 90.0, rule), NOW)
    (need,) = needs(seen, tasks, alarms=[alarm])
    assert need.title.startswith(title)
    assert need.level == "bad"
    assert need.detail.endswith("Alarm pages was raised 3 min ago.")
    # Of another queue or task it is a need of its own.
    other = replace(alarm, state=replace(alarm.state, words="delay of other above 60 s for 60 s"))
    assert [one.kind for one in needs(seen, tasks, alarms=[other])].count("alarm") == 1


def test_busy_runners_of_a_kind_are_named_where_jobs_wait_for_them() -> None:
    busy = WorkerFacts("w1", NOW + 1, 2, {"place": "h:1", "queues": "mail", "sizes": "process:2", "busy": "process:2"})
    (need,) = needs(frame([queue(waited=90)], [busy]), [])
    assert (need.title, need.link) == ("All 2 process runners are busy", "/queues/mail")
    assert "has waited for 1 min 30 s" in need.detail
    assert needs(frame([queue(waited=1)], [busy]), []) == []


def test_the_one_workflow_that_failed_is_a_click_away() -> None:
    (need,) = needs(replace(frame([], [worker()], flows=1), failed_flow="f1"), [])
    assert (need.title, need.link) == ("1 workflow failed", "/workflows/f1")


def test_a_row_that_is_fresher_than_its_page_is_not_in_the_future() -> None:
    assert [values_shown.distance(NOW + ahead, NOW) for ahead in (0, 1_500_000, 2_900_000)] == ["now"] * 3
    assert values_shown.distance(NOW + 4_000_000, NOW) == "in 4 s"
    assert values_shown.distance(NOW - 2_000_000, NOW) == "2 s ago"


def test_a_server_that_is_almost_full_needs_a_person() -> None:
    info = b"used_memory:85\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\nredis_version:7.2.4\r\naof_enabled:1\r\n"
    facts = Sight(fields(info))
    assert (facts.full, facts.amount("uptime_in_seconds")) == (0.85, 0)
    (need,) = needs(frame([], [worker()]), [], facts)
    assert (need.level, need.link) == ("warn", "/store")
    assert "85 % of its memory" in need.title
    assert needs(frame([], [worker()]), [], Sight({})) == []


def test_a_worker_that_died_is_news_for_an_hour() -> None:
    died = [EventRecord("1-0", NOW - 180_000_000, "worker_lost", {"place": "host:9", "why": "its lease ended"})]
    (need,) = needs(frame([], [worker()]), [], died=died)
    assert (need.title, need.link) == ("Worker host:9 died", "/activity?show=workers")
    assert need.detail.startswith("Its lease ended, 3 min ago.")
    old = [EventRecord("1-0", NOW - 3_700_000_000, "worker_lost", {"place": "host:9"})]
    assert needs(frame([], [worker()]), [], died=old) == []


def test_jobs_of_the_last_worker_wait_for_one_to_take_them_over() -> None:
    found = needs(frame([], [worker(lease=NOW - 1, running=2)]), [])
    assert found[0].title == "No worker is running"
    assert found[0].detail.startswith("2 jobs of a silent worker wait")


def test_lost_statistics_are_said_with_what_follows() -> None:
    (need,) = needs(frame([], [worker()]), [], None, 3)
    assert (need.level, need.title, need.link) == ("warn", "3 batches of statistics lost", "/tasks")
