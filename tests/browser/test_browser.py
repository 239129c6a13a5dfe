"""The dashboard in a real browser: widths, themes, with and without script, live figures, keys, dialogs, accessibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Store
from tests.dashboard.test_pages import LISTS, pages
from tests.deadline import eventually

OpenPage = Callable[..., Any]

WIDER = "document.documentElement.scrollWidth - window.innerWidth"


SMALL = """() => [...document.querySelectorAll(
  "button, summary, select, input:not([type=hidden]), a.button, .side ul a, .tabs a, .spans a")]
  .filter((one) => one.checkVisibility() && !one.closest("dialog"))
  .map((one) => one.type === "checkbox" ? one.closest("label") : one)
  .map((one) => [one.getBoundingClientRect(), one.outerHTML.slice(0, 120)])
  .filter(([box]) => box.width < 24 || box.height < 24)
  .map(([box, text]) => `${box.width}x${box.height} ${text}`)"""


# Only what is wrong is sent: of what is right there is a hundred times as much.
AXE = """(options) => axe.run({ resultTypes: ["violations"], rules: { "target-size": { enabled: true } }, ...options })
  .then((found) => found.violations.map((one) => [one.id, one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]))"""


# A quarter of the pages costs half a minute, and three times that on a slow machine.
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("store", ["empty", "hostile"], indirect=True)
def test_all_pages_fit_their_screen_and_axe_finds_nothing(store: Store, open_page: OpenPage, part: int) -> None:
    """A store with hostile texts has all that a full one has. A visit of a page costs more than a look at it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make setup").Axe()
    page = open_page("/")
    found: list[tuple[str, Any]] = []
    for path in (pages(store.shop) if store.shop.flow else LISTS)[part::4]:
        answer = page.goto(store.base + path)
        assert answer.status == 200, path
        assert page.locator("h1").count() == 1, path
        page.evaluate(axe.axe_script)
        found.append((f"{path}: light", page.evaluate(AXE, {})))
        for width in (768, 320, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            found.append((f"{path}: wider than {width}", page.evaluate(WIDER) > 0))
            found.append((f"{path}: too small to press at {width}", page.evaluate(SMALL)))
        page.emulate_media(color_scheme="dark")
        # No other rules depend on colours.
        ruled = {"runOnly": ["color-contrast", "link-in-text-block"], "rules": {}}
        found.append((f"{path}: dark", page.evaluate(AXE, ruled)))
        page.emulate_media(color_scheme="light")
    assert [one for one in found if one[1]] == []


def test_pages_are_whole_without_script_and_ticked_rows_ask_with_one(store: Store, open_page: OpenPage) -> None:
    page = open_page("/", width=320, script=False)
    assert page.get_by_role("link", name="Queues").first.is_visible()
    page.get_by_role("searchbox").fill(store.shop.failed)
    page.get_by_role("searchbox").press("Enter")
    # A key or a click returns before the page that it leads to is there: each look waits for what is to be seen.
    page.locator("main", has_text="ValueError").wait_for()
    page.get_by_role("button", name="Retry").click()
    page.get_by_role("status").filter(has_text="lines up again").wait_for()
    page.get_by_role("button", name="Change between light and dark").click()
    page.locator("html[data-theme=dark]").wait_for()
    page.goto(f"{store.base}/jobs?state=failed")
    # The first one is a node of a workflow, which is deleted as a whole.
    page.locator("input[name=id]").nth(1).check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", level=1, name="Delete 1 job?", exact=True).wait_for()
    page.get_by_role("button", name="Delete 1 job").click()
    page.get_by_role("status").filter(has_text="1 job is deleted.").wait_for()


def test_figures_stay_fresh_and_a_list_stands_still(store: Store, open_page: OpenPage) -> None:
    page = open_page("/jobs?state=ready")
    rows = page.locator("tbody tr").count()
    count = page.locator("#states a[aria-current] b")
    before = count.inner_text()
    store.shop.add.options(queue="mail").enqueue(7)
    page.wait_for_function("old => document.querySelector('#states a[aria-current] b').textContent !== old", arg=before)
    page.locator("#newer:visible").wait_for()
    assert page.locator("#newer").inner_text() == "1 newer: show"
    assert page.locator("tbody tr").count() == rows
    page.locator("#newer a").click()
    page.wait_for_function("rows => document.querySelectorAll('tbody tr').length > rows", arg=rows)


def test_keys_search_step_go_and_lead_to_the_content(store: Store, open_page: OpenPage) -> None:
    page = open_page("/jobs?state=failed")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("tr.at").count() == 1
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url("**/queues")
    page.goto(store.base + "/queues")
    page.keyboard.press("Tab")
    skip = page.locator("a.skip")
    assert skip.evaluate("one => one === document.activeElement")
    assert skip.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_dangerous_verb_and_ticked_rows_ask_first(store: Store, open_page: OpenPage) -> None:
    page = open_page(f"/jobs/{store.shop.waiting}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Leave it").click()
    assert store.shop.app.job(store.shop.waiting).state == "ready"
    page.get_by_role("button", name="Cancel").click()
    page.locator("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("status").wait_for()
    assert store.shop.app.job(store.shop.waiting).state == "cancelled"
    page.goto(f"{store.base}/jobs?state=failed")
    bar = page.locator(".tickbar")
    assert [one.inner_text() for one in bar.locator(":visible").all()] == ["Retry all 3…", "Delete all 3…"]
    page.locator("[data-tick-all]").check()
    assert bar.get_by_role("button", name="Retry").inner_text() == "Retry 3 ticked"
    page.locator("[data-tick-all]").uncheck()
    boxes = page.locator("input[name=id]")
    boxes.nth(0).click()
    boxes.nth(2).click(modifiers=["Shift"])
    assert boxes.nth(1).is_checked()
    boxes.nth(0).click(modifiers=["Shift"])
    assert not boxes.nth(1).is_checked()
    assert bar.get_by_role("button", name="Retry").inner_text() == "Retry 1 ticked"
    boxes.nth(2).click()
    page.locator("h1").click()
    # The first one is a node, which is run again with its workflow.
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    bar.get_by_role("button", name="Retry 1 ticked").click()
    assert "Retry 1 job?" in page.locator("dialog[open]").inner_text()
    # What destroys nothing comes first.
    assert page.locator("dialog[open] button").all_inner_texts() == ["Retry 1 ticked", "Leave it"]
    page.get_by_role("button", name="Leave it").click()
    assert store.shop.app.jobs.count("failed") == 3
    page.locator(".tickbar").get_by_role("button", name="Retry").click()
    page.locator("dialog[open]").get_by_role("button", name="Retry").click()
    page.get_by_role("status").filter(has_text="1 job is ready again.").wait_for()
    assert page.url.endswith("/jobs?state=failed")


def test_a_plot_tells_its_values_to_keys_and_pointers(store: Store, open_page: OpenPage) -> None:
    page = open_page("/tasks/shop.add")
    drawing = page.locator(".drawing").first
    drawing.focus()
    page.keyboard.press("ArrowRight")
    assert "succeeded" in page.locator(".plot .value").first.inner_text()


FRAMES = """async ([pages, times]) => {
  let shown = 0, done;
  const ended = new Promise((resolve) => { done = resolve; });
  window.fetch = async () => {
    if (++shown >= times) done();
    return new Response(pages[shown % pages.length], { headers: { "content-type": "text/html" } });
  };
  // The script asks anew whenever the tab is shown again.
  const again = () => { if (shown < times) { document.dispatchEvent(new Event("visibilitychange")); setTimeout(again); } };
  again();
  await ended;
}"""


@pytest.mark.timeout(300)
def test_a_tab_that_is_left_open_does_not_grow(store: Store, open_page: OpenPage) -> None:
    """DS8: 5,000 frames, which are real pages by turns; only the way to the server is cut short."""
    page = open_page("/queues")
    pages = [page.request.get(store.base + "/queues").text()]

    def another() -> bool:
        text = page.request.get(store.base + "/queues").text()
        return text not in pages and not pages.append(text)

    for n in range(3):
        store.shop.add.options(queue="mail").enqueue(n)
        eventually(another, 60)
    session = page.context.new_cdp_session(page)

    # Nothing is drawn, which would take twice as long as all else.
    page.evaluate("document.documentElement.hidden = true")

    def left() -> tuple[int, int]:
        """Bytes and nodes after a collection; what the last frame still works at is collected by a later one."""
        for _ in range(2):
            session.send("HeapProfiler.collectGarbage")
        counters = session.send("Memory.getDOMCounters")
        assert counters["documents"] < 20
        found = session.send("Runtime.getHeapUsage")["usedSize"], counters["nodes"] + counters["jsEventListeners"]
        print("bytes and nodes:", *found)
        return found

    page.evaluate(FRAMES, [pages, 500])
    heap, nodes = (min(counts) for counts in zip(*(left() for _ in range(5)), strict=True))
    page.evaluate(FRAMES, [pages, 5_000])

    def stands() -> bool:
        heap_then, nodes_then = left()
        return heap_then - heap < 500_000 and nodes_then - nodes < 500

    eventually(stands, 30, what="fewer than 100 bytes a frame and a node for ten", every=0.1)


ASKED = """() => {
  window.asked = 0;
  window.fetch = () => { window.asked++; return new Promise((answer) => { window.answer = answer; }); };
}"""


def test_a_tab_asks_again_after_the_answer_and_a_hidden_one_not_at_all(store: Store, open_page: OpenPage) -> None:
    """DS7."""
    page = open_page("/queues")
    text = page.content()
    page.clock.install()
    page.reload()
    page.evaluate(ASKED)
    page.clock.fast_forward(120_000)
    page.wait_for_function("asked === 1")
    # The answer takes minutes.
    page.clock.fast_forward(600_000)
    assert page.evaluate("asked") == 1
    answer = "text => answer(new Response(text, { headers: { 'content-type': 'text/html' } }))"
    page.evaluate(answer, text)
    page.clock.run_for(60_000)
    page.wait_for_function("asked === 2")
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.evaluate(answer, text)
    page.clock.run_for(600_000)
    assert page.evaluate("asked") == 2
    page.evaluate("Object.defineProperty(document, 'hidden', { value: false, configurable: true })")
    page.clock.run_for(60_000)
    page.wait_for_function("asked === 3")


def test_a_tab_that_is_older_than_the_server_is_loaded_anew(store: Store, open_page: OpenPage) -> None:
    """DS27."""
    page = open_page("/queues")
    page.evaluate("window.mark = 1")
    page.evaluate("document.body.dataset.version = '0.0.1'")
    page.wait_for_function("() => window.mark === undefined")
    assert page.locator("body").get_attribute("data-version") != "0.0.1"


def test_the_answer_to_a_form_is_not_asked_for_again(store: Store, open_page: OpenPage) -> None:
    page = open_page(f"/jobs/{store.shop.failed}")
    # No event: the page that asks comes instead of the dialog.
    page.evaluate("document.querySelector('form[data-ask]').submit()")
    page.locator("h1", has_text="Delete?").wait_for()
    asked: list[str] = []

    def note(request: Any) -> None:
        asked.append(request.url)

    page.on("request", note)
    # A tab that comes back looks at once.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_role("link", name="Leave it").click()
    page.locator("#job-now").wait_for()
    assert [url for url in asked if "/act/" in url] == []


@pytest.mark.parametrize("store", ["hostile"], indirect=True)
def test_a_page_opens_at_what_broke_and_no_text_turns_its_neighbour_around(store: Store, open_page: OpenPage) -> None:
    page = open_page(f"/jobs/{store.shop.deep}", width=320)
    assert page.locator(".trace pre").last.evaluate("one => one.scrollTop + one.clientHeight >= one.scrollHeight - 1")
    assert page.locator(".fault .error").first.evaluate("one => getComputedStyle(one).whiteSpace") == "pre-line"
    # A head of three rows that stays would take half of a phone.
    assert page.locator(".top").evaluate("one => getComputedStyle(one).position") == "static"
    page.goto(f"{store.base}/jobs?state=failed")
    turns = "all => all.map(one => getComputedStyle(one).unicodeBidi)"
    assert set(page.locator("tbody :is(.error, .arguments, a)").evaluate_all(turns)) == {"isolate"}
    page.goto(f"{store.base}/workflows/{store.shop.wide}")
    broken = page.locator(".node.s-failed")
    broken.wait_for()
    page.reload()
    edges = "one => Object.values(one.getBoundingClientRect().toJSON())"
    x, y, width, height = broken.evaluate(edges)[:4]
    left, top, wide, high = page.locator(".graph-frame").evaluate(edges)[:4]
    assert left <= x <= x + width <= left + wide
    assert top <= y <= y + height <= top + high


def test_rows_of_a_list_stand_apart_on_a_phone(store: Store, open_page: OpenPage) -> None:
    page = open_page("/schedules", width=320)
    assert page.locator("tbody tr").last.evaluate("one => getComputedStyle(one).paddingTop") != "0px"
    assert page.locator(".pages").is_visible()
    page.goto(f"{store.base}/causes?task=nothing")
    assert page.locator(".empty").is_visible()
    page.goto(f"{store.base}/workflows?state=cancelled")
    # "0 of 0" says nothing below a list that says why it is empty.
    assert not page.locator(".pages").is_visible()
