"""Samples become pictures: what is drawn, what is left out, and that no name breaks it."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from headrace.cli import flame

FOLDED = """\
main (app.py:3);work (app.py:9) 6
main (app.py:3);work (app.py:9);<lambda> (app.py:10) 3
main (app.py:3);rest & "more" (app.py:20) 1
"""
SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> dict[str, tuple[float, float, float]]:
    """Boxes by name: left edge, width and row."""
    found = {}
    for group in ET.fromstring(text).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        found[group.attrib["data-n"]] = (
            float(group.attrib["data-x"]), float(group.attrib["data-w"]), float(rect.attrib["y"]),
        )  # fmt: skip
    return found


def test_lines_are_samples_and_others_are_not() -> None:
    samples = flame.parse(FOLDED + "not a sample\n\nmain (app.py:3);work (app.py:9) 4\n")
    assert samples["main (app.py:3)", "work (app.py:9)"] == 10
    assert sum(samples.values()) == 14
    assert flame.parse("") == {}


def test_a_box_is_as_wide_as_its_share_and_stands_below_its_caller() -> None:
    boxes = drawn(flame.svg(flame.parse(FOLDED), "all <of> it"))
    assert set(boxes) == {
        "all",
        "main (app.py:3)",
        "work (app.py:9)",
        "<lambda> (app.py:10)",
        'rest & "more" (app.py:20)',
    }
    x, width, row = boxes["work (app.py:9)"]
    assert width == 0.9 * flame.WIDTH
    inner, narrow, below = boxes["<lambda> (app.py:10)"]
    assert (narrow, below) == (0.3 * flame.WIDTH, row + flame.ROW)
    assert x <= inner <= inner + narrow <= x + width + 0.01


def test_what_nobody_could_see_is_not_drawn() -> None:
    boxes = drawn(flame.svg({("a",): 1_000_000, ("b",): 1}, "t"))
    assert set(boxes) == {"all", "a"}


def test_a_stack_of_any_depth_is_drawn() -> None:
    stack = tuple(f"f{n} (deep.py:1)" for n in range(3000))
    assert len(drawn(flame.svg({stack: 1}, "t"))) == 3001


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn(flame.svg({}, "t")) == {}


def test_frames_that_lead_to_all_others_are_cut_off_and_equals_add_up() -> None:
    samples = {("x (a/sup.py:1)", "go (a/sup.py:2)", "job (t.py:1)"): 2, ("y (a/sup.py:9)", "job (t.py:1)"): 3}
    assert flame.trim(samples, ("(a/sup.py:",)) == {("job (t.py:1)",): 5}
    assert flame.trim({("x (a/sup.py:1)",): 1}, ("(a/sup.py:",)) == {("x (a/sup.py:1)",): 1}


def test_what_waits_is_left_out_by_its_innermost_frame() -> None:
    samples = {("job", "wait (s.py:1)"): 2, ("wait (s.py:1)", "job"): 3}
    assert flame.without(samples, ("(s.py:",)) == {("wait (s.py:1)", "job"): 3}


def test_speedscope_gets_frames_once_and_seconds() -> None:
    document = json.loads(flame.speedscope(flame.parse(FOLDED), "t", 100))
    (profile,) = document["profiles"]
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert len(names) == len(set(names)) == 4
    assert [names[n] for n in profile["samples"][1]] == ["main (app.py:3)", "work (app.py:9)", "<lambda> (app.py:10)"]
    assert profile["weights"] == [0.06, 0.03, 0.01]
    assert profile["endValue"] == sum(profile["weights"])
