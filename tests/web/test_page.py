"""The page in a real browser: what people do with it, in the order in which they would."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.request import Request, urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Response, Route, expect, sync_playwright

import everstep
from everstep import Checkpoint, CheckpointMetadata, SnapshotConfig
from everstep.engine import SyncEngine
from tests.tools.damage import break_page, damage_checkpoint, pages_of
from tests.web import browser as browsers
from tests.web import long_history, places
from tests.web.serving import served

pytestmark = pytest.mark.xdist_group("browser")
expect.set_options(timeout=10_000)

STORY = "trip-to-oslo"
WIDE = {"width": 1440, "height": 820}
NARROW = {"width": 390, "height": 780}
PICTURES = Path(__file__).parents[2] / "docs/images"
STATIC = Path(everstep.__file__).parent / "web/static"
COLOUR = "(element) => getComputedStyle(element).color"
SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def browser(told: Path) -> Iterator[Browser]:
    """A browser; the demo data are made before, since Playwright keeps a loop running in this thread."""
    with sync_playwright() as playwright:
        found = browsers.launch(playwright)
        yield found
        found.close()


@pytest.fixture(scope="module")
def shared(told: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo data, for tests that change nothing."""
    path = tmp_path_factory.mktemp("shared") / "agent.db"
    path.write_bytes(told.read_bytes())
    with served(path) as address:
        yield address


@pytest.fixture
def own(path: Path) -> Iterator[str]:
    """A copy of the demo data, for one test to change."""
    with served(path) as address:
        yield address


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Open pages. In the end none of them has complained, and none has asked another host for anything."""
    troubles: list[str] = []
    contexts = []

    def open_page(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light", "locale": "en-GB", **options})
        contexts.append(context)
        context.route("**/*", lambda route: _only_home(route, address, troubles))
        page = context.new_page()
        page.on("console", lambda message: _note(message, troubles))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _only_home(route: Route, address: str, troubles: list[str]) -> None:
    home = re.match(r"https?://[^/]+", address)
    assert home is not None
    if route.request.url.startswith(home[0] + "/"):
        route.continue_()
    else:
        troubles.append(f"asked for {route.request.url}")
        route.abort()


def _note(message: ConsoleMessage, troubles: list[str]) -> None:
    if message.type in ("error", "warning"):
        troubles.append(f"{message.type}: {message.text}")


def picture(page: Page, name: str) -> None:
    """Keep what the page looks like for the documents, if EVERSTEP_PICTURES=1 asks for it."""
    if not os.environ.get("EVERSTEP_PICTURES"):
        return
    # Not where the tests have it, but where somebody would.
    page.evaluate(
        """() => {
            const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            window.shown = [];
            while (walker.nextNode()) {
                const node = walker.currentNode;
                window.shown.push([node, node.data]);
                node.data = node.data.replace(/sqlite:\\/\\/\\/\\S+\\.db/, "sqlite:///agent.db");
            }
        }"""
    )
    page.set_viewport_size({"width": 1280, "height": 720})
    page.mouse.move(700, 715)
    expect(page.locator(".thread-size:empty")).to_have_count(0)  # sizes come last
    page.evaluate("document.activeElement?.blur()")
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
    # The test goes on with what it was.
    page.evaluate("() => { for (const [node, data] of window.shown) node.data = data; }")


def rows(page: Page) -> Locator:
    return page.locator("#rows").get_by_role("option")


def selected(page: Page) -> Locator:
    return page.locator(".row.selected")


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


def toast(page: Page) -> Locator:
    return page.locator(".toast")


# -- looking


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_with_the_threads_and_a_history(shared: str, visit: Visit, scheme: str) -> None:
    page = visit(shared, color_scheme=scheme)
    expect(page.get_by_role("main").get_by_text("Active last")).to_be_visible()
    page.get_by_role("link", name=STORY, exact=True).click()
    expect(page).to_have_url(f"{shared}/t/{STORY}")
    expect(page).to_have_title(f"{STORY} · Everstep")
    expect(page.get_by_role("heading", name=STORY)).to_be_visible()
    expect(selected(page)).to_contain_text("Merge scenic")
    expect(page.locator(".detail h2")).to_contain_text("Merge scenic")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(selected(page)).to_contain_text("hotel")
    expect(page.locator(".change").first).to_be_visible()
    picture(page, f"page-{scheme}")


NAMES = (
    ".",
    "..",
    "a/b",
    "%2F",
    "%",
    "a?b#c",
    " ",
    "~3",
    "@",
    "a.json",
    ".json",
    "c",
    "a\nb",
    "\\",
    "日本 語",
    "a&b=c+d",
)


def test_a_thread_of_any_name_has_an_address_that_works_again(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "names.db"
    with everstep.open(path).sync as engine:
        for name in NAMES:
            engine.append(name, [{"role": "user", "content": "one"}])
            engine.append(name, [{"role": "user", "content": "two"}])
    with served(path) as address:
        page = visit(address)
        listed = page.request.get(f"{address}/api/v1/threads").json()["threads"]
        for place, name in enumerate([thread["thread_id"] for thread in listed]):
            link = page.locator(".thread").nth(place)
            assert (link.text_content() or "").split("now")[0].strip()
            link.click()
            expect(selected(page).locator(".row-step")).to_have_text("#2")
            page.keyboard.press("j")
            expect(selected(page).locator(".row-step")).to_have_text("#1")
            page.reload()
            expect(selected(page).locator(".row-step")).to_have_text("#1")
            expect(page.locator(".detail h2")).to_contain_text("one")
            expect(page).to_have_title(f"{' '.join(name.split())} · Everstep".strip())
            expect(link).to_have_attribute("aria-current", "page")
        page.close()


def test_a_usual_window_shows_how_long_steps_took(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}", viewport={"width": 1280, "height": 720})
    row = rows(page).filter(has_text="hotels answered")
    expect(row.locator(".row-duration")).to_be_visible()
    expect(row.locator(".row-duration")).to_have_text("880 ms")
    expect(row.locator(".row-time")).to_be_visible()
    expect(row.locator(".row-bytes")).to_be_visible()
    # What it is called comes first.
    room = row.locator(".row-what").bounding_box()
    assert room is not None
    assert room["width"] > 200


def test_a_damaged_checkpoint_is_a_row_that_says_so_among_the_others(path: Path, visit: Visit) -> None:
    damage_checkpoint(path, STORY, 4)
    with served(path) as address:
        page = visit(f"{address}/static/icon.svg")
        page.goto(f"{address}/t/{STORY}")
        expect(rows(page)).to_have_count(19)
        expect(page.locator(".row-kind.damaged")).to_have_count(1)
        row = rows(page).filter(has_text="Cannot be read")
        expect(row.locator(".chip")).to_have_text("damaged")
        expect(row.locator(".row-step")).to_have_text("#?")
        row.click()
        detail = page.locator(".detail")
        expect(detail.get_by_role("alert")).to_contain_text("Cannot be read")
        expect(detail.get_by_role("alert")).to_contain_text(f"everstep verify {STORY}")
        expect(detail.get_by_role("button")).to_have_count(0)
        for key in "frep":
            page.keyboard.press(key)
            expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("k")
        expect(page.locator(".detail h2")).to_contain_text("trains answered")
        expect(page.locator(".changes-top")).to_contain_text("its parent is damaged")
        page.get_by_role("tab", name="Messages").click()
        expect(page.get_by_role("tabpanel")).to_contain_text("Plan a weekend in Oslo")
        page.get_by_role("button", name="More about this thread").click()
        page.get_by_role("button", name="Storage of this thread").click()
        window = page.get_by_role("dialog")
        expect(window).to_contain_text("Not all of this can be measured")
        expect(window.locator(".figure").filter(has_text="checkpoints")).to_contain_text("32")
        page.close()


def test_the_start_shows_what_waits_for_somebody_first(shared: str, visit: Visit) -> None:
    page = visit(shared)
    groups = page.get_by_role("main").locator("section")
    expect(groups.first).to_contain_text("Waits for somebody")
    expect(groups.first).to_contain_text("Asks: Refund 249 to Ada?")
    expect(groups.last).to_contain_text("Active last")
    page.locator("#find-thread").fill("bergen")
    expect(groups).to_have_count(1)
    expect(groups).to_contain_text("Found")
    groups.get_by_role("link", name="trip-to-bergen").click()
    expect(page.get_by_role("heading", name="trip-to-bergen")).to_be_visible()


def test_threads_are_found_by_their_name_and_state(shared: str, visit: Visit) -> None:
    page = visit(shared)
    page.keyboard.press("/")
    page.keyboard.type("support")
    expect(page.locator(".thread")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="support-4711")).to_be_visible()
    page.get_by_label("Find a thread").fill("no such thread")
    expect(page.get_by_text("Nothing found")).to_be_visible()
    page.get_by_role("button", name="Show all threads").click()
    page.get_by_label("State of the threads").select_option("waiting")
    expect(page.locator(".thread")).to_have_count(2)
    expect(page.locator(".thread").first).to_contain_text("refund-0093")
    expect(page.locator(".thread").last).to_contain_text("trip-to-bergen")


def test_a_thread_is_found_and_walked_without_a_mouse(shared: str, visit: Visit) -> None:
    page = visit(shared)
    expect(page.locator(".thread").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("invoice")
    expect(page.locator(".thread")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(selected(page).locator(".row-step")).to_have_text("#16")
    page.keyboard.press("j")
    expect(selected(page).locator(".row-step")).to_have_text("#15")
    expect(page.locator("#find-thread")).to_have_value("invoice")


def test_between_wide_and_narrow_the_threads_make_way(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}", viewport={"width": 880, "height": 700})
    expect(rows(page).first).to_be_visible()
    expect(page.locator(".detail h2")).to_be_visible()
    expect(page.get_by_role("navigation")).not_to_be_visible()
    page.get_by_role("link", name="All threads").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    expect(page.get_by_role("main").get_by_text("Active last")).to_be_visible()


def test_threads_are_sorted_in_other_orders_too(shared: str, visit: Visit) -> None:
    page = visit(shared)
    names = page.locator(".thread")
    expect(names.first).to_be_visible()
    listed = addresses(names)
    assert listed != sorted(listed)
    order = page.get_by_label("Order of the threads")
    order.select_option("By name")
    expect(names.first).to_have_attribute("href", min(listed))
    assert addresses(names) == sorted(listed)
    order.select_option("Most steps")
    expect(names.first).to_have_attribute("href", "/t/support-4711")
    order.select_option("Newest first")
    expect(names.first).to_have_attribute("href", listed[0])


def addresses(links: Locator) -> list[str]:
    return [link.get_attribute("href") or "" for link in links.all()]


def test_threads_show_their_sizes_and_nothing_moves(shared: str, visit: Visit) -> None:
    asked: list[Route] = []

    def hold_the_first(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    page = visit(f"{shared}/static/icon.svg")
    page.clock.set_fixed_time(datetime.now(UTC))  # else "now" may become "10 s", which is wider
    page.route("**/api/v1/storage?*", hold_the_first)
    with page.expect_request("**/api/v1/storage?*"):
        page.goto(shared)
    size = page.locator(".thread").filter(has_text="412 steps").locator(".thread-size")
    expect(size).to_be_empty()
    before = [fact.bounding_box() for fact in page.locator(".thread-facts > *").all()]
    assert len(asked) == 1  # one after the other
    asked[0].continue_()
    for each in page.locator(".thread-size").all():
        expect(each).to_have_text(re.compile(r"^[\d.]+ [kM]?B$"))
    assert [fact.bounding_box() for fact in page.locator(".thread-facts > *").all()] == before
    told = page.request.get(f"{shared}/api/v1/storage?thread=support-4711").json()["total_bytes"]
    expect(size).to_have_text(f"{told / 1000:.0f} kB")


def test_very_long_threads_are_not_measured(long: str, visit: Visit) -> None:
    asked: list[str] = []
    page = visit(f"{long}/static/icon.svg")
    page.on("request", lambda request: asked.append(request.url))
    page.goto(long)
    sizes = page.locator(".thread-size")
    expect(page.locator(".thread-name")).to_have_text(["nightly-eval", "short"])
    expect(sizes.last).not_to_be_empty()
    expect(sizes.first).to_be_empty()
    assert len([url for url in asked if "/storage?" in url]) == 1


def test_the_graph_is_walked_with_the_keyboard(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    expect(selected(page)).to_have_attribute("aria-posinset", "1")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(selected(page)).to_have_attribute("aria-posinset", "3")
    expect(page).to_have_url(re.compile("/c/"))
    page.keyboard.press("k")
    expect(selected(page)).to_contain_text("Merge cheap")
    page.keyboard.press("Control+ArrowDown")
    expect(selected(page)).to_contain_text("hotels answered")
    page.keyboard.press("Control+ArrowUp")
    expect(selected(page)).not_to_contain_text("hotels answered")
    page.keyboard.press("Home")
    page.keyboard.press("]")
    expect(selected(page).locator(".chip.branch")).to_be_visible()
    page.keyboard.press("End")
    expect(selected(page)).to_contain_text("Plan a weekend in Oslo")
    page.keyboard.press("s")
    expect(page.get_by_role("tab", name="State")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_branch_says_where_it_began(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    rows(page).filter(has_text="Branch family").click()
    expect(page.locator(".changes-top")).to_contain_text(f"against parent {STORY} #7")
    page.locator(".changes-top").get_by_role("link").click()
    expect(selected(page)).to_contain_text("#7")


def test_windows_without_a_field_can_be_read_and_scrolled_at_once(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}", viewport={"width": 1280, "height": 420})
    expect(rows(page).first).to_be_visible()
    page.keyboard.press("?")
    body = page.get_by_role("dialog").locator(".dialog-body")
    expect(body).to_be_focused()
    page.keyboard.press("End")
    expect(page.get_by_role("dialog").get_by_text("close, end comparing")).to_be_in_viewport()


def test_the_back_button_goes_where_one_was(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    rows(page).nth(4).click()
    expect(selected(page)).to_have_attribute("aria-posinset", "5")
    place = page.url
    page.get_by_role("link", name="support-4711").click()
    expect(page.get_by_role("heading", name="support-4711")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(place)
    expect(selected(page)).to_have_attribute("aria-posinset", "5")
    page.go_back()
    expect(selected(page)).to_have_attribute("aria-posinset", "1")
    page.goto(place)
    expect(selected(page)).to_have_attribute("aria-posinset", "5")


def test_filters_say_how_many_and_what_they_hide(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    page.get_by_role("button", name=re.compile("^merges 2")).click()
    expect(rows(page)).to_have_count(2)
    page.get_by_label("Only checkpoints that changed").fill("no such words")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No checkpoint passes the filter")).to_be_visible()
    expect(page.locator(".empty")).to_contain_text("words no such words")
    page.get_by_role("button", name="Show all", exact=True).click()
    expect(rows(page).first).to_contain_text("Merge scenic")
    page.get_by_role("button", name="hidden").click()
    expect(page.locator(".hidden-row").first).to_be_visible()
    page.goto(f"{shared}/t/support-4711")  # of a long history the newest are counted
    expect(page.get_by_role("button", name=re.compile(r"^models \d+\+$"))).to_be_visible()
    page.get_by_role("button", name="errors").click()
    expect(page.get_by_text("No checkpoint passes the filter")).to_be_visible()


def test_a_filter_looks_at_all_of_a_long_history(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "long.db"
    long_history.fill(path, "long", 12_000)
    with served(path) as address:
        page = visit(f"{address}/t/long")
        page.get_by_label("Only checkpoints that changed").fill("no such words")
        page.keyboard.press("Enter")
        # More than one answer of the server can look at.
        expect(page.locator(".empty")).to_contain_text(
            "12,000 checkpoints of this thread are left out by the words", timeout=60_000
        )
        page.close()


def test_a_search_in_a_long_history_can_be_stopped(long: str, visit: Visit) -> None:
    page = visit(f"{long}/t/nightly-eval")
    page.get_by_label("Only checkpoints that changed").fill("no such words")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").click(timeout=30_000)
    expect(page.get_by_text("None found so far")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="of 100,000 checkpoints looked at")).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("Searching")).to_be_visible()


# -- folding


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Steps with a tag, a pin and an error among them; a branch of eight begins at the tenth."""
    path = tmp_path_factory.mktemp("forked") / "agent.db"
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off").sync as engine:
        made = [_step(engine, "run", number) for number in range(1, 31)]
        engine.pin(made[25])
        branch = engine.branch(made[9], "other")
        for number in range(1, 9):
            _step(engine, branch, number)
        _step(engine, "run", 31)
    with served(path) as address:
        yield address


def _step(engine: SyncEngine, thread_id: str, number: int) -> str:
    message = {"role": "assistant", "content": f"step {number} is done"}
    tags = ["release"] if number == 20 else []
    metadata = {"error": {"type": "ValueError", "message": "no"}} if number == 15 else {}
    return engine.append(thread_id, [message], {"step": number}, trigger="llm_call", tags=tags, metadata=metadata)


def folded(page: Page) -> Locator:
    return page.locator(".row.run")


def test_runs_of_steps_are_folded_and_opened(forked: str, visit: Visit) -> None:
    page = visit(f"{forked}/t/run")
    expect(rows(page).first).to_be_visible()
    expect(selected(page).locator(".row-step")).to_have_text("#31")
    page.keyboard.press("z")
    # Of the branch and of the thread: what is a head, selected, pinned, tagged, failed or forked from has its own row.
    told = ["7 steps", "4 steps", "5 steps", "4 steps", "4 steps", "8 steps"]
    expect(folded(page).locator(".row-title")).to_have_text(told)
    expect(folded(page).nth(2)).to_contain_text("#21 to #25 · 5 models")
    expect(page.get_by_role("button", name="fold", exact=True)).to_have_attribute("aria-pressed", "true")
    for text in ("#26", "#20", "#15", "#10", "#31"):
        expect(page.get_by_text(text, exact=True)).to_be_visible()
    # The lines: of the branch beside the thread and of the thread beside it, one that goes through and one that passes.
    for number, edges in enumerate((3, 3, 3, 3, 3, 2)):
        expect(folded(page).nth(number).locator(".edge")).to_have_count(edges)
    colour = folded(page).nth(0).locator("rect").evaluate("(dot) => getComputedStyle(dot).stroke")
    assert folded(page).nth(1).locator("rect").evaluate("(dot) => getComputedStyle(dot).stroke") != colour
    assert serious(page) == []

    folded(page).nth(2).click()
    expect(folded(page)).to_have_count(5)
    expect(page.get_by_text("#23", exact=True)).to_be_visible()
    expect(selected(page).locator(".row-step")).to_have_text("#31")
    page.keyboard.press("End")  # the oldest has a chip of its own
    expect(selected(page).locator(".row-step")).to_have_text("#1")
    page.keyboard.press("k")
    expect(page.locator(".row.pointed .row-title")).to_have_text("8 steps")
    expect(page.get_by_role("listbox")).to_have_attribute("aria-activedescendant", re.compile(r"^row-\d+$"))
    page.keyboard.press("k")
    expect(selected(page).locator(".row-step")).to_have_text("#10")
    expect(page.locator(".row.pointed")).to_have_count(0)
    page.keyboard.press("j")
    expect(page.locator(".row.pointed .row-title")).to_have_text("8 steps")
    page.keyboard.press("Enter")
    expect(folded(page)).to_have_count(4)
    expect(selected(page).locator(".row-step")).to_have_text("#9")
    page.keyboard.press("z")
    expect(folded(page)).to_have_count(0)
    expect(selected(page)).to_be_in_viewport()


def test_what_is_loaded_later_is_folded_too(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/support-4711")
    expect(selected(page).locator(".row-step")).to_have_text("#412")
    page.keyboard.press("z")
    told = folded(page).locator(".row-title")
    expect(told).to_have_text(["199 steps", "200 steps", "11 steps"])
    folded(page).nth(1).click()
    expect(told).to_have_text(["199 steps"])  # the other one is far below now
    page.keyboard.press("End")
    expect(selected(page).locator(".row-step")).to_have_text("#1")
    page.keyboard.press("z")
    expect(folded(page)).to_have_count(0)


def test_what_is_selected_is_never_folded_away(forked: str, visit: Visit) -> None:
    page = visit(f"{forked}/t/run")
    page.locator("#rows").get_by_role("option", name=re.compile("^step 23, model")).click()
    place = page.url
    page.keyboard.press("Home")
    page.get_by_role("button", name="fold", exact=True).click()
    expect(folded(page)).to_have_count(6)
    page.evaluate("(url) => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')) }", place)
    expect(selected(page).locator(".row-step")).to_have_text("#23")
    expect(folded(page)).to_have_count(5)
    page.keyboard.press("z")
    page.keyboard.press("z")
    expect(selected(page).locator(".row-step")).to_have_text("#23")
    expect(folded(page)).to_have_count(5)


def test_runs_stay_folded_while_others_write(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/support-4711")
    expect(rows(page).first).to_be_visible()
    page.keyboard.press("z")
    told = folded(page).locator(".row-title")
    expect(told).to_have_text(["199 steps", "200 steps", "11 steps"])
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        engine.append("support-4711", [{"role": "assistant", "content": "once more"}])
    expect(rows(page).first).to_contain_text("once more")
    expect(told).to_have_text(["199 steps", "200 steps", "11 steps"])
    expect(page.locator("#row-201")).to_contain_text("#13 to #212")
    folded(page).first.click()
    expect(page.locator("#row-2 .row-step")).to_have_text("#411")
    expect(folded(page)).to_have_count(0)  # the others are far below now

    # A branch that begins below what is fetched again: its line would be missing beside the run.
    page.keyboard.press("z")
    page.keyboard.press("z")
    expect(folded(page).first).to_be_visible()
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        points = engine.list_time_travel_points("support-4711", 300)
        branch = engine.branch(points[-1].checkpoint_id, "deep")
        engine.append(branch, [{"role": "assistant", "content": "from elsewhere"}])
    expect(rows(page).first).to_contain_text("from elsewhere")
    expect(folded(page)).to_have_count(0)
    expect(page.locator("#row-9 .edge")).to_have_count(3)
    page.context.close()


def test_two_checkpoints_are_compared(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    expect(page.locator(".changes")).to_contain_text("against parent #8")
    rows(page).nth(4).click(modifiers=["Control"])
    expect(page).to_have_url(re.compile("vs="))
    expect(page.locator(".changes-top")).to_contain_text("from scenic #3 to #9")
    expect(page.locator(".row.compared")).to_have_count(1)
    page.get_by_role("button", name="Patch").click()
    expect(page.locator(".patch")).to_contain_text('"op": "add"')
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator(".sides").first).to_be_visible()
    page.get_by_role("button", name="List", exact=True).click()
    page.keyboard.press("Escape")
    expect(page.locator(".changes")).to_contain_text("against parent #8")
    page.keyboard.press("c")
    expect(page.get_by_text("Choose another row to compare")).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".changes-top")).to_contain_text("from #9 to #8")
    page.keyboard.press("x")
    expect(page.locator(".changes-top")).to_contain_text("from #8 to #9")


def test_two_conversations_stand_side_by_side_from_where_they_part(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}?tab=messages")
    places.VIEWS["two conversations"](page, shared)
    expect(page.get_by_text("the same up to message 7")).to_be_visible()
    sides = page.locator(".pair-side")
    expect(sides).to_have_count(2)
    expect(sides.nth(0)).to_contain_text("The hostel by the station has a double room.")
    expect(sides.nth(1)).to_contain_text("Wait, my sister and her son come along.")
    expect(page.locator(".pair-side .message").filter(has_text="Plan a weekend")).to_have_count(0)
    page.get_by_role("button", name="The other way round").click()
    expect(sides.nth(0)).to_contain_text("Wait, my sister")
    page.get_by_role("button", name="One conversation again").click()
    expect(sides).to_have_count(0)
    expect(page.locator(".transcript")).to_be_visible()


def test_the_tabs_show_messages_state_and_step(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}?tab=messages")
    expect(page.locator(".transcript")).to_contain_text("Plan a weekend in Oslo")
    call = page.locator(".call").filter(has_text="hotels")
    expect(call.locator(".call-result")).to_contain_text("Fjord View")
    picture(page, "messages-light")
    tab(page, "State")
    page.locator(".node-key").filter(has_text="budget").click()
    expect(page.locator(".node-key").filter(has_text="left")).to_be_visible()
    for name, value in (("hotel", '"Lighthouse"'), ("nights", "2"), ("next_node", '""')):
        found = page.locator(".node").filter(has=page.locator(".node-key", has_text=name))
        expect(found.locator(".node-preview")).to_have_text(value)  # a text does not look like what it says
    page.get_by_label("Find in the values").fill("Lighthouse")
    expect(page.get_by_text(re.compile(r"^\d+ places?"))).to_be_visible()
    expect(page.locator(".node-preview").get_by_text('"Lighthouse"', exact=True).first).to_be_visible()
    page.get_by_label("Find in the values").fill("")
    hotel = page.locator(".node").filter(has_text="hotel").first
    hotel.hover()
    hotel.get_by_role("button", name="Who wrote this?").click()
    expect(page.locator(".writers a").first).to_be_visible()
    tab(page, "Step")
    expect(page.locator(".about")).to_contain_text("merge")
    page.goto(f"{shared}/t/invoice-run-2026-11")
    expect(rows(page).first).to_be_visible()


PROSE = """# The plan

1. **Friday**: the `night train`
2. a [museum](https://museum.example/a?b=c), ![map](https://evil.example/x.png)

- one
  - two *three*

> said she

```python
print("<b>not bold</b>")
```
| a | b |
"""


def test_markdown_is_off_until_somebody_wants_it_and_leads_nowhere(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "prose.db"
    with everstep.open(path).sync as engine:
        engine.append("prose", [{"role": "assistant", "content": PROSE}, {"role": "tool", "content": "# no heading"}])
        engine.append("marks", [{"role": "assistant", "content": "[*`_~" * 4_000}])
    with served(path) as address:
        page = visit(f"{address}/t/prose?tab=messages")
        said = page.locator(".message.assistant")
        expect(said).to_contain_text("# The plan")
        expect(said).to_contain_text("**Friday**")
        page.get_by_role("button", name="Markdown").click()
        expect(said.locator(".md-heading")).to_have_text("The plan")
        expect(said.locator("b")).to_have_text("Friday")
        expect(said.locator(".md-item")).to_have_count(4)
        expect(said.locator("i")).to_have_text("three")
        expect(said.locator("pre").first).to_have_text('print("<b>not bold</b>")')
        expect(said).to_contain_text("https://museum.example/a?b=c")
        expect(said.locator("a, img")).to_have_count(0)
        expect(page.locator(".message.tool")).to_contain_text("# no heading")
        assert serious(page) == []
        page.goto(f"{address}/t/marks?tab=messages")
        page.get_by_role("button", name="Markdown").click()
        page.get_by_role("button", name="show all 20,000 characters").click()
        expect(page.get_by_role("button", name="show less")).to_be_visible()
        page.context.close()


def test_paths_and_values_are_copied_and_the_tree_is_remembered(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}?tab=state", permissions=["clipboard-read", "clipboard-write"])
    page.locator(".node-key").filter(has_text="budget").click()
    budget = page.locator(".node").filter(has_text="budget").first
    budget.hover()
    budget.get_by_role("button", name="Copy the path").click()
    assert page.evaluate("navigator.clipboard.readText()") == "/state/budget"
    budget.get_by_role("button", name="Copy the value").click()
    expect(toast(page)).to_contain_text("The value is copied")
    assert json.loads(page.evaluate("navigator.clipboard.readText()")) == {"limit": 900, "left": 312}
    page.reload()
    expect(page.locator(".node-key").filter(has_text="left")).to_be_visible()
    page.get_by_role("button", name="Collapse all").click()
    expect(page.locator(".node-key").filter(has_text="budget")).to_have_count(0)
    tab(page, "Changes")
    page.get_by_role("button", name="Side by side").click()
    row = page.locator(".sides tr").filter(has_text="Lighthouse")
    row.hover()
    row.get_by_role("button", name="Copy the value").click()
    expect(toast(page)).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == '"Lighthouse"'


def test_a_workflow_that_waits_is_shown(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/refund-0093")
    expect(page.locator(".kind-interrupt").first).to_be_visible()
    tab(page, "Step")
    expect(page.locator(".step")).to_contain_text("kind")


def test_it_says_what_cannot_be_found(shared: str, browser: Browser) -> None:
    page = browser.new_page()  # the browser itself writes failed requests to its console
    page.goto(f"{shared}/t/trip-to-osl")
    expect(page.get_by_role("alert").first).to_contain_text("trip-to-osl")
    page.locator(".no-history").get_by_role("link", name=STORY).click()
    expect(selected(page)).to_contain_text("Merge scenic")
    page.goto(f"{shared}/t/{STORY}/c/nothing")
    expect(page.locator(".detail").get_by_role("alert")).to_contain_text("nothing")
    page.get_by_role("button", name="Show the newest checkpoint").click()
    expect(page.locator(".detail h2")).to_contain_text("Merge scenic")
    page.goto(f"{shared}/t/no-such-thread-at-all")
    page.get_by_role("button", name="Show all threads").click()
    expect(page).to_have_url(f"{shared}/")
    page.close()


def test_a_wrong_address_leads_on(shared: str, browser: Browser) -> None:
    # The browser itself writes failed requests to its console.
    page = browser.new_page(viewport={"width": 390, "height": 780})
    answer = page.goto(f"{shared}/nowhere/at/all")
    assert answer is not None
    assert answer.status == 404
    page.get_by_role("main").get_by_role("link", name="All threads").click()
    expect(page).to_have_url(f"{shared}/")
    expect(page.get_by_role("link", name=STORY, exact=True)).to_be_visible()
    page.close()


def test_a_thread_that_is_called_like_a_file_is_a_page(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "files.db"
    with everstep.open(path).sync as engine:
        engine.append("report.json", [{"role": "user", "content": "hello"}])
    with served(path) as address:
        page = visit(address)
        page.locator(".thread").click()
        expect(rows(page).first).to_contain_text("hello")
        page.reload()
        expect(rows(page).first).to_contain_text("hello")
        page.context.close()


def test_copies_can_be_pasted_elsewhere(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("y")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("engine.get(")
    expect(dialog).to_contain_text(" show ckpt-trip-to-oslo-9-")
    expect(dialog).to_contain_text(f"{shared}/api/v1/checkpoint?ref=")


def test_a_checkpoint_is_also_there_as_json(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    rows(page).nth(1).click()
    expect(page).to_have_url(re.compile("/c/"))
    found = page.request.get(f"{page.url}.json")
    assert found.json()["title"] == "Merge cheap"
    assert page.request.get(f"{shared}/t/{STORY}.json").json()["rows"][0]["title"] == "Merge scenic"
    rows(page).nth(4).click(modifiers=["Control"])
    expect(page).to_have_url(re.compile("vs="))
    page.get_by_role("button", name="More with this checkpoint").click()
    link = page.get_by_role("link", name="Open as JSON").get_attribute("href") or ""
    assert page.request.get(f"{shared}{link}").json()["patch"]


# -- changing


def test_a_rewind_says_what_it_will_do_and_is_undone(own: str, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    page.locator("#rows").get_by_role("option", name=re.compile("hotels answered")).click()
    page.get_by_role("button", name="Rewind to here").click()
    dialog = page.get_by_role("dialog", name="Rewind to #7")
    expect(dialog).to_contain_text("2 later steps will be hidden")
    expect(dialog).to_contain_text("Nothing is deleted")
    expect(dialog.get_by_role("button", name="Rewind", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(toast(page)).to_contain_text("Rewound to step 7. 2 later steps are hidden, nothing is deleted.")
    expect(page.locator("#rows").get_by_role("option", name=re.compile("Merge scenic"))).to_have_count(0)
    expect(selected(page)).to_contain_text("hotels answered")
    expect(selected(page)).to_contain_text("HEAD")
    toast(page).get_by_role("button", name="Undo").click()
    expect(page.locator("#rows").get_by_role("option", name=re.compile("Merge scenic"))).to_have_count(1)
    page.keyboard.press("o")
    log = page.get_by_role("dialog", name="Operations")
    expect(log).to_contain_text("undone")
    log.get_by_role("button", name="Redo").click()
    expect(page.locator("#rows").get_by_role("option", name=re.compile("Merge scenic"))).to_have_count(0)


def test_a_fork_with_an_edited_state(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("e")
    dialog = page.get_by_role("dialog", name="Fork from #9")
    dialog.get_by_label("Name of the branch").fill("by-boat")
    editor = dialog.get_by_label("state as JSON")
    text = editor.input_value()
    editor.fill(text[:-1])
    expect(dialog.locator("#editor-problem")).to_contain_text("line")
    expect(dialog.get_by_role("button", name="Fork", exact=True)).to_be_disabled()
    editor.fill(text.replace("Lighthouse", "Houseboat"))
    expect(dialog.get_by_label("What you change")).to_contain_text("/state/hotel")
    expect(dialog.get_by_label("What you change")).to_contain_text("Houseboat")
    picture(page, "edit-light")
    command = dialog.locator(".as-code code").text_content()
    copied = path.with_name("by-command.db")
    everstep.copy(path, copied)
    dialog.get_by_role("button", name="Fork with these edits").click()
    expect(page.get_by_role("heading", name="by-boat")).to_be_visible()
    expect(page.locator(".detail .changes")).to_contain_text("Houseboat")
    _run_in_shell((command or "").replace(str(path), str(copied)))
    for file in (path, copied):
        with everstep.open(file, SnapshotConfig(gc_policy="keep_all")).sync as engine:
            made = engine.list_threads(prefix=f"{STORY}-branch-by-boat")[0]
            head = engine.get_latest(made.thread_id)
            before = engine.get_latest(STORY)
        assert head is not None
        assert before is not None
        assert head.state == {**before.state, "hotel": "Houseboat"}
        assert head.messages == before.messages
    made_here = page.locator(".thread").filter(has_text="by-boat")
    expect(made_here.locator(".thread-size")).not_to_be_empty()  # else it is asked for when it is gone
    toast(page).get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name=STORY)).to_be_visible()
    expect(selected(page)).to_contain_text("Merge scenic")
    expect(made_here).to_have_count(0)


def test_a_large_state_is_neither_fetched_nor_edited_here(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "large.db"
    with everstep.open(path).sync as engine:
        engine.append("large", [], {"text": "x" * 3_000_000, "many": list(range(60_000)), "small": 1})
    with served(path) as address:
        sizes: list[int] = []
        page = visit(f"{address}/static/icon.svg")
        page.on("response", lambda answer: weigh(answer, sizes))
        page.goto(f"{address}/t/large?tab=state")
        page.locator(".node-key").filter(has_text="many").click()
        expect(page.get_by_role("button", name="show more of 60,000")).to_be_visible()
        page.locator(".node-key").filter(has_text="text").click()
        expect(page.get_by_text("too large to show whole")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("e")
        expect(page.get_by_role("dialog").get_by_text("Too large to edit here")).to_be_visible()
        page.get_by_label("Name of the branch").fill("all the same")
        expect(page.get_by_role("button", name="Fork", exact=True)).to_be_enabled()
        page.context.close()
    assert len(sizes) > 3
    assert max(sizes) < 200_000


def weigh(answer: Response, sizes: list[int]) -> None:
    """Note how much an answer of the interface is; live updates never end."""
    if "/api/" in answer.url and "/events" not in answer.url:
        sizes.append(int(answer.headers["content-length"]))


def test_a_merge_with_a_conflict(own: str, path: Path, visit: Visit) -> None:
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        here = engine.list_time_travel_points(STORY, 1)[0].checkpoint_id
        other = engine.branch(here, "dear")
        engine.append(other, [], {"hotel": "Grand", "spa": True})
        engine.append(STORY, [], {"hotel": "Cabin"})
    page = visit(f"{own}/t/{STORY}")
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_role("button", name="Fork from here")).to_be_visible()  # it is known that it may write
    page.get_by_role("radio", name="Patch").or_(page.get_by_role("button", name="Patch")).first.click()
    page.keyboard.press("Shift+M")
    dialog = page.get_by_role("dialog", name="Merge")
    dialog.get_by_label("Take what was done in").select_option(other)
    conflict = dialog.locator(".conflict")
    expect(conflict).to_have_count(1)
    expect(conflict).to_contain_text("hotel")
    expect(conflict).to_contain_text("Lighthouse")
    merge = dialog.get_by_role("button", name="Merge", exact=True)
    expect(merge).to_be_disabled()
    conflict.get_by_label("another value").check()
    conflict.get_by_role("textbox").fill('"Grand Cabin')
    expect(merge).to_be_disabled()
    conflict.get_by_role("textbox").fill('"Grand Cabin"')
    expect(dialog.locator(".change").filter(has_text="Grand Cabin")).to_be_visible()
    picture(page, "merge-light")
    shown = dialog.locator(".as-code code")
    dialog.get_by_role("button", name="Python").click()
    in_python = shown.text_content()
    dialog.get_by_role("button", name="Command", exact=True).click()
    command = shown.text_content()
    copies = [path.with_name("by-command.db"), path.with_name("in-python.db")]
    for copy in copies:
        everstep.copy(path, copy)
    merge.click()
    expect(toast(page)).to_contain_text("1 conflict settled")
    expect(selected(page)).to_contain_text("Merge dear")
    # What is copied names the store of the page, so the two that do the same are told to take another one.
    assert str(path) in (command or "")
    assert str(path) in (in_python or "")
    _run_in_shell((command or "").replace(str(path), str(copies[0])))
    _run_in_python((in_python or "").replace(str(path), str(copies[1])))
    for file in (path, *copies):
        with everstep.open(file).sync as engine:
            head = engine.get_latest(STORY)
        assert head is not None
        assert (head.state["hotel"], head.state["spa"]) == ("Grand Cabin", True)
        assert len(head.metadata.parents) == 2


def _run_in_shell(command: str) -> str:
    """Do what somebody does who copies a command from the page, and return what it printed."""
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "PATH": places}, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def _run_in_python(program: str) -> str:
    """Do what somebody does who copies a program from the page, and return what it printed."""
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def test_a_name_that_another_branch_has_is_not_taken_twice(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    expect(page.get_by_role("button", name="4 branches")).to_be_visible()
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("f")
    window = page.get_by_role("dialog")
    fork = window.get_by_role("button", name="Fork", exact=True)
    window.get_by_label("Name of the branch").fill("cheap")
    expect(window).to_contain_text("A branch is called so already")
    expect(fork).to_be_disabled()
    window.get_by_label("Name of the branch").fill("cheaper")
    expect(window).not_to_contain_text("A branch is called so already")
    expect(fork).to_be_enabled()


def test_a_checkpoint_is_copied_as_a_command_and_a_program_that_find_it(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("y")
    window = page.get_by_role("dialog")
    command, program, request, _ = window.locator("code").all_text_contents()
    assert "Merge scenic" in _run_in_shell(command)
    assert "Lighthouse" in _run_in_python(f"{program}\nprint(checkpoint.state)")
    assert "Merge scenic" in _run_in_shell(request)
    expect(window.locator(".hint")).to_have_count(0)


def test_commands_about_names_that_look_like_options_do_what_the_page_does(tmp_path: Path, visit: Visit) -> None:
    """Without `--` in front of such a name the command would do something else: this one means all threads."""
    path = tmp_path / "odd.db"
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        for number, name in enumerate(("first", "second", "third")):
            metadata = CheckpointMetadata("--all", name, number, summary=f"the {name} one")
            engine.checkpointer.put(Checkpoint(metadata))
        branch = engine.branch("second", "dear", thread_id="--all")
        engine.append(branch, [], {"from the branch": True})
        engine.append("other", [{"role": "user", "content": "stays"}])
    with served(path) as address:
        page = visit(f"{address}/t/--all/c/second")
        expect(page.locator(".detail h2")).to_contain_text("the second one")
        expect(page.get_by_role("button", name="Fork from here")).to_be_visible()  # it is known that it may write

        def command_in(window: str, opener: str, **fields: str) -> str:
            page.keyboard.press(opener)
            dialog = page.get_by_role("dialog", name=window)
            for label, text in fields.items():
                dialog.get_by_label(label.replace("_", " ")).fill(text)
            told = dialog.locator("code").filter(has_text="everstep --store").first
            expect(told).to_contain_text(" -- ")
            command = told.text_content() or ""
            page.keyboard.press("Escape")
            page.keyboard.press("Escape")  # out of the field, then out of the window
            expect(page.get_by_role("dialog")).to_have_count(0)
            return command

        show = command_in("#1 as", "y")
        time = command_in("Time", "Shift+T")
        tag = command_in("Tags", "t", A_new_tag="-good")
        note = command_in("Note", "n", The_note="-fine")
        fork = command_in("Fork", "f", Name_of_the_branch="-cheap")
        rewind = command_in("Rewind", "r")
        merge = command_in("Merge", "Shift+M")
        undo = command_in("Operations", "o")
        page.get_by_role("button", name="More about this thread").click()
        page.get_by_role("button", name="Delete for good").click()
        remove = page.get_by_role("dialog").locator("code").text_content() or ""
        page.keyboard.press("Escape")
        page.get_by_role("button", name="More about this thread").click()
        page.get_by_role("button", name="Storage of this thread").click()
        retention = page.get_by_role("dialog").locator(".as-code code").text_content() or ""
        page.goto(f"{address}/t/{branch}")
        page.get_by_role("button", name="More about this thread").click()
        page.get_by_role("button", name="Rename or archive").click()
        page.get_by_role("dialog").get_by_label("Name").fill("-cheaper")
        rename = page.get_by_role("dialog").locator("code").last.text_content() or ""
        page.close()

    assert "the second one" in _run_in_shell(show)
    assert "the third one" in _run_in_shell(time)
    for command in (tag, note, fork, rename, merge, rewind, undo):
        _run_in_shell(command)
    with everstep.open(path).sync as engine:
        kinds = [operation.kind for operation in engine.operations("--all")]
        assert kinds == ["rewind", "merge", "branch", "note", "tag", "branch"]
        assert engine.operations("--all")[0].undone
        assert engine.resolve("--all@-good").checkpoint_id == "second"
        assert engine.operations("--all")[3].details["note"] == "-fine"
        assert engine.resolve("--all@-cheaper").thread_id == branch
        assert engine.resolve("--all@-cheap").step == 0
    assert _run_in_shell(retention.replace(" apply ", " plan ")).startswith("1 thread looked at")
    _run_in_shell(remove.replace(" rm ", " rm --yes "))
    with everstep.open(path).sync as engine:
        assert engine.get_latest("--all") is None
        assert engine.get_latest("other") is not None


def test_a_store_that_only_its_server_reaches_says_so_beside_what_is_copied(visit: Visit) -> None:
    engine = everstep.open("memory://", SnapshotConfig(gc_policy="keep_all"))
    engine.sync.append("trip", [{"role": "user", "content": "Oslo?"}])
    with served(engine) as address:
        page = visit(f"{address}/t/trip")
        expect(page.locator(".detail h2")).to_contain_text("Oslo?")
        page.keyboard.press("y")
        window = page.get_by_role("dialog")
        expect(window).to_contain_text("only requests, as with curl, reach it")
        _, program, request, _ = window.locator("code").all_text_contents()
        assert program.startswith("checkpoint = await engine.get(")
        assert "Oslo?" in _run_in_shell(request)
        page.close()


def test_requests_that_are_copied_show_the_token_without_holding_it(
    path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "t0ken-of-this-page"  # not one of anybody's
    with served(path, token=token) as address:
        page = visit(f"{address}/t/{STORY}?token={token}")
        expect(page.locator(".detail h2")).to_contain_text("Merge")
        page.keyboard.press("y")
        window = page.get_by_role("dialog")
        expect(window).to_contain_text("EVERSTEP_TOKEN must hold the token of this page")
        request = window.locator("code").nth(2).text_content() or ""
        assert token not in (window.text_content() or "")
        monkeypatch.setenv("EVERSTEP_TOKEN", token)
        assert "Merge scenic" in _run_in_shell(request)
        page.close()


def test_a_fork_with_an_edit_is_copied_as_a_program_that_does_it(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("e")
    window = page.get_by_role("dialog")
    window.get_by_label("Name of the branch").fill("try-the-bus")
    window.get_by_role("textbox", name="state as JSON").fill('{"city": "Oslo", "hotel": "Grand"}')
    expect(window.locator(".preview .change").first).to_be_visible()
    window.get_by_role("button", name="Python").click()
    _run_in_python(window.locator(".as-code code").text_content() or "")
    with everstep.open(path).sync as engine:
        made = engine.resolve(f"{STORY}@try-the-bus")
        checkpoint = engine.get(made.checkpoint_id, thread_id=made.thread_id)
    assert checkpoint is not None
    assert checkpoint.state == {"city": "Oslo", "hotel": "Grand"}


def test_a_pin_is_set_and_seen(own: str, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("p")
    expect(selected(page)).to_contain_text("pinned")


def test_an_action_is_shown_as_command_python_and_request(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    rows(page).nth(4).click()
    page.keyboard.press("t")
    page.get_by_role("textbox", name="A new tag").fill("good one")
    window = page.get_by_role("dialog")
    expect(window.locator("code")).to_contain_text(f"everstep --store sqlite:///{path} tag ")
    expect(window.locator("code")).to_contain_text("'good one'")
    window.get_by_role("button", name="Python").click()
    expect(window.locator("code")).to_have_text(
        re.compile(
            r"import everstep\n\nwith everstep.open\(.+\).sync as engine:\n"
            r'    engine.tag\("ckpt-.+", "good one", thread_id=".+"\)$'
        )
    )
    window.get_by_role("button", name="curl").click()
    command = shlex.split(window.locator("code").inner_text())
    assert [command[0], command[1], command[2]] == ["curl", "-X", "POST"]
    headers = dict(text.split(": ") for option, text in itertools.pairwise(command) if option == "-H")
    body = command[command.index("-d") + 1]
    with urlopen(Request(command[3], body.encode(), headers), timeout=30) as answer:  # our own server
        assert json.loads(answer.read())["tag"] == "good one"
    with everstep.open(path).sync as engine:
        thread = json.loads(body)["ref"].partition("@")[0]
        assert engine.operations(thread)[0].kind == "tag"


def test_a_note_is_written_seen_and_taken_back(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("n")
    window = page.get_by_role("dialog", name="Note about #9")
    window.get_by_label("The note").fill(f"keep this one {SCRIPT}")
    expect(window.locator("code").last).to_contain_text(" note ckpt-")
    window.get_by_role("button", name="Note", exact=True).click()
    expect(toast(page)).to_contain_text("Noted.")
    expect(page.locator(".detail .note")).to_contain_text("keep this one <script>")
    expect(selected(page).locator(".chip.note")).to_contain_text("keep this one")
    with everstep.open(path).sync as engine:
        assert engine.operations(STORY)[0].details["note"] == f"keep this one {SCRIPT}"
    toast(page).get_by_role("button", name="Undo").click()
    expect(page.locator(".detail .note")).to_have_count(0)


def test_a_branch_is_renamed_archived_and_brought_back(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(rows(page).first).to_be_visible()
    page.keyboard.press("b")
    page.get_by_role("button", name="Rename or archive cheap").click()
    window = page.get_by_role("dialog", name="Branch", exact=True)
    expect(window.get_by_role("button", name="Rename")).to_be_disabled()
    window.get_by_label("Name").fill("by bus")
    expect(window.locator("code").last).to_contain_text(" branch rename ")
    window.get_by_role("button", name="Rename").click()
    expect(toast(page)).to_contain_text("The branch is called by bus now.")
    expect(page.locator(".thread").filter(has_text="by bus")).to_have_count(1)
    expect(rows(page).locator(".chip.branch").filter(has_text="by bus")).to_have_count(1)
    page.locator(".thread").filter(has_text="by bus").click()
    expect(page.get_by_role("heading", name="by bus")).to_be_visible()
    expect(page.locator(".bar-from")).to_have_text(f"branch of {STORY}")

    page.get_by_role("button", name="More about this thread").click()
    page.get_by_role("button", name="Rename or archive").click()
    window.get_by_role("button", name="Archive").click()
    expect(toast(page)).to_contain_text("by bus is archived")
    expect(page.locator(".thread").filter(has_text="by bus")).to_have_count(0)
    expect(page.locator(".detail h2")).to_be_visible()  # it is still open
    page.get_by_label("State of the threads").select_option("With archived")
    expect(page.locator(".thread").filter(has_text="by bus")).to_contain_text("archived")
    with everstep.open(path).sync as engine:
        thread = engine.resolve(f"{STORY}@by bus").thread_id
        assert [operation.kind for operation in engine.operations(thread)] == ["archive", "rename"]
    toast(page).get_by_role("button", name="Undo").click()
    expect(page.locator(".thread").filter(has_text="archived")).to_have_count(0)


def test_a_branch_is_merged_into_where_it_came_from(own: str, path: Path, visit: Visit) -> None:
    with everstep.open(path).sync as engine:
        branch = engine.resolve(f"{STORY}@family").thread_id
    page = visit(f"{own}/t/{branch}")
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_role("button", name="Fork from here")).to_be_visible()  # it is known that it may write
    page.keyboard.press("Shift+M")
    window = page.get_by_role("dialog", name="Merge")
    expect(window.get_by_label("Take what was done in")).to_have_value(branch)
    expect(window.get_by_label("and put it into")).to_have_value(STORY)
    window.get_by_label("and put it into").select_option(branch)  # the other way round
    expect(window.get_by_label("Take what was done in")).to_have_value(STORY)
    window.get_by_label("and put it into").select_option(STORY)
    expect(window.get_by_text("decide.")).to_be_visible()
    window.get_by_label("ours").check()
    window.get_by_role("button", name="Merge", exact=True).click()
    expect(page.get_by_role("heading", name=STORY)).to_be_visible()
    expect(selected(page)).to_contain_text("Merge family")


def test_a_thread_is_deleted_when_its_name_is_written(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    page.get_by_role("button", name="More about this thread").click()
    page.get_by_role("button", name="Delete for good").click()
    window = page.get_by_role("dialog", name="Delete this thread")
    expect(window).to_contain_text("32 checkpoints, hidden ones included, go for good")
    delete = window.get_by_role("button", name="Delete for good")
    expect(delete).to_be_disabled()
    unusable = delete.evaluate(COLOUR)
    expect(window.get_by_role("textbox")).to_be_focused()
    page.keyboard.type(STORY)
    expect(delete).to_be_enabled()
    assert delete.evaluate(COLOUR) != unusable  # nobody presses in vain what looks as if it could be
    # All sizes are known, in whatever order they came: else one is asked for when its thread is gone.
    expect(page.locator(".thread-size:empty")).to_have_count(0)
    delete.click()
    expect(toast(page)).to_contain_text(f"{STORY} is deleted, with 32 checkpoints.")
    expect(page).to_have_url(f"{own}/")
    expect(page.get_by_role("link", name=STORY, exact=True)).to_have_count(0)
    expect(page.locator(".thread").filter(has_text="cheap")).to_have_count(1)
    with everstep.open(path).sync as engine:
        assert engine.get_latest(STORY) is None


def test_branches_far_down_are_found_too(tmp_path: Path, visit: Visit) -> None:
    """One whose head is not among the rows that were loaded."""
    path = tmp_path / "deep.db"
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off").sync as engine:
        first = engine.append("deep", [], {"n": 0})
        engine.branch(first, "early")
        for number in range(1, 701):
            engine.append("deep", [], {"n": number})
    with served(path) as address:
        page = visit(f"{address}/t/deep")
        expect(selected(page).locator(".row-step")).to_have_text("#701")
        page.get_by_role("button", name="2 branches").click()
        expect(page.get_by_role("dialog").get_by_role("link", name="early")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("]")
        expect(selected(page)).to_contain_text("Branch early")
        expect(selected(page)).to_be_in_viewport()
        page.keyboard.press("[")
        expect(selected(page).locator(".row-step")).to_have_text("#701")
        page.context.close()


def test_the_time_that_steps_took(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/support-4711")
    expect(selected(page)).to_contain_text("#412")
    expect(page.locator(".detail h2")).to_be_visible()
    page.keyboard.press("T")
    dialog = page.get_by_role("dialog", name="Time")
    expect(dialog.locator(".time-row")).to_have_count(60)
    expect(dialog).to_contain_text("The newest 60 steps of 412")
    expect(dialog).to_contain_text("left out")
    bar = dialog.locator(".time-row").last
    box = bar.locator(".time-bar").bounding_box()
    assert box is not None
    assert box["width"] >= 3
    step = bar.locator(".time-title").inner_text()
    bar.get_by_role("link").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".detail h2")).to_contain_text(step)


def test_a_tag_is_given_seen_and_taken_back(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).to_contain_text("Merge")
    page.keyboard.press("t")
    page.get_by_label("A new tag").fill("the good one")
    page.get_by_role("button", name="Tag", exact=True).click()
    expect(toast(page)).to_contain_text("Tagged")
    expect(selected(page)).to_contain_text("the good one")
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        assert engine.resolve(f"{STORY}@the good one") == engine.resolve(STORY)
    toast(page).get_by_role("button", name="Undo").click()
    expect(selected(page)).not_to_contain_text("the good one")


# -- files


def test_a_thread_is_exported_and_brought_into_another_store(shared: str, visit: Visit, tmp_path: Path) -> None:
    page = visit(f"{shared}/t/{STORY}")
    page.get_by_role("button", name="More about this thread").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as a file").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    with served(tmp_path / "other.db") as address:
        page = visit(address)
        page.get_by_role("main").get_by_role("button", name="import a file").click()
        window = page.get_by_role("dialog", name="Import")
        expect(window.get_by_role("button", name="Import", exact=True)).to_be_disabled()
        window.get_by_label("A file of threads").set_input_files(file)
        command = f"everstep --store sqlite:///{tmp_path / 'other.db'} import {STORY}.everstep"
        expect(window.locator("code").last).to_have_text(command)
        window.get_by_role("button", name="Import", exact=True).click()
        expect(window.get_by_text("4 threads, 42 checkpoints brought in")).to_be_visible()
        expect(page.locator(".thread")).to_have_count(4)
        window.get_by_role("link", name=STORY, exact=True).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(selected(page)).to_contain_text("Merge scenic")
        page.context.close()


def test_a_file_that_is_damaged_is_told(own: str, browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()  # the browser itself writes failed requests to its console
    page.goto(f"{own}/storage")
    page.get_by_role("button", name="Import a file").click()
    window = page.get_by_role("dialog", name="Import")
    file = tmp_path / "notes.everstep"
    file.write_text("these are only notes")
    window.get_by_label("A file of threads").set_input_files(file)
    window.get_by_role("button", name="Import", exact=True).click()
    expect(window.get_by_role("alert")).to_contain_text("this is not an export of Everstep")
    expect(window.get_by_role("button", name="Import", exact=True)).to_be_enabled()
    page.close()


def test_read_only_offers_nothing_that_changes(path: Path, visit: Visit) -> None:
    with served(path, read_only=True) as address:
        page = visit(f"{address}/t/{STORY}")
        expect(page.get_by_text("read only")).to_be_visible()
        expect(page.locator(".detail h2")).to_contain_text("Merge")
        expect(page.get_by_role("button", name="Fork from here")).to_have_count(0)
        expect(page.get_by_role("button", name="Rewind to here")).to_have_count(0)
        page.keyboard.press("f")
        page.keyboard.press("y")
        expect(page.get_by_role("dialog")).to_have_count(1)
        page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="More about this thread").click()
        expect(page.get_by_role("link", name="Export as a file")).to_be_visible()
        expect(page.get_by_role("button", name="Import a file")).to_have_count(0)
        expect(page.get_by_role("button", name="Delete for good")).to_have_count(0)
        page.goto(f"{address}/runs")
        expect(page.get_by_text("Book it for 412?")).to_be_visible()
        expect(page.get_by_role("textbox", name="Your answer")).to_have_count(0)
        page.goto(f"{address}/storage")
        page.get_by_label("How many").fill("5")
        page.get_by_role("button", name="What would go?").click()
        expect(page.get_by_text("It would remove")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^Remove"))).to_have_count(0)
        assert "would go" in _run_in_shell(page.locator(".as-code code").text_content() or "")
        page.get_by_role("button", name="Python").click()
        assert "dry_run=True" in _run_in_python(
            (page.locator(".as-code code").text_content() or "") + "\nprint(report)"
        )
        page.context.close()


def test_the_result_of_an_earlier_step_is_not_shown_as_that_of_this_one(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}?tab=step")
    panel = page.get_by_role("tabpanel")
    expect(selected(page)).to_contain_text("Merge scenic")
    expect(panel.get_by_role("heading", name="Result of an earlier step")).to_be_visible()
    expect(panel.get_by_role("heading", name="Output")).to_have_count(0)
    page.get_by_role("option").filter(has_text="boats answered").first.click()
    expect(panel.get_by_role("heading", name="Output")).to_be_visible()
    expect(panel.get_by_role("heading", name="Result of an earlier step")).to_have_count(0)


# -- durable runs


def test_a_run_shows_its_steps_with_tries_and_times(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/report-week-46?tab=run")
    steps = page.get_by_role("tabpanel").locator(".run-steps").first.get_by_role("listitem")
    expect(steps).to_have_count(8)
    failed = steps.filter(has_text="fetch_costs").first
    expect(failed).to_contain_text("3 tries")
    expect(failed).to_contain_text("try 3: TimeoutError: the ledger did not answer within 5 s")
    expect(failed).to_contain_text("15 s")
    expect(page.get_by_role("tabpanel")).to_contain_text('weekly_report("2026-W46")')
    expect(page.get_by_role("tabpanel")).to_contain_text("sent: 8,680 left")
    steps.get_by_role("link", name="fetch_sales").click()
    expect(selected(page)).to_contain_text("fetch_sales done")
    page.goto(f"{shared}/t/{STORY}?tab=run")
    expect(page.get_by_role("tab", name="Changes")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Run")).to_have_count(0)


def test_runs_are_listed_by_their_state(shared: str, visit: Visit) -> None:
    page = visit(shared)
    page.get_by_role("button", name="Runs", exact=True).click()
    items = page.locator(".run-item")
    expect(items).to_have_count(2)
    page.get_by_role("button", name="waiting", exact=True).last.click()
    expect(items).to_have_count(1)
    expect(items).to_contain_text("Book it for 412?")
    page.get_by_role("button", name="failed", exact=True).last.click()
    expect(page.get_by_text("No run is failed")).to_be_visible()
    page.get_by_role("button", name="all", exact=True).last.click()
    page.get_by_role("main").get_by_role("link", name="trip-to-bergen").click()
    expect(page).to_have_url(re.compile("/t/trip-to-bergen$"))
    expect(page.locator(".run-panel")).to_contain_text("Book it for 412?")
    expect(page.locator(".run-panel")).to_contain_text('"hotel": "Bryggen"')


@pytest.mark.parametrize("place", ["/runs", "/t/trip-to-bergen"])
def test_a_waiting_question_is_answered(own: str, path: Path, visit: Visit, place: str) -> None:
    page = visit(own + place)
    expect(page.get_by_role("button", name="Answer")).to_be_disabled()
    page.get_by_role("textbox", name="Your answer").fill('{"seats": 2}')
    page.keyboard.press("Enter")
    expect(toast(page)).to_contain_text("Answered. The run goes on when a worker takes it up.")
    expect(page.get_by_role("textbox", name="Your answer")).to_have_count(0)
    with everstep.open(path).sync as engine:
        latest = engine.get_latest("trip-to-bergen")
        assert [run.thread_id for run in engine.runs("ready")] == ["trip-to-bergen"]
    assert latest is not None
    assert latest.tools_result["answer"] == {"seats": 2}


@pytest.mark.parametrize("did_happen", [True, False])
def test_whether_an_effect_happened_is_said_on_the_page(own: str, path: Path, visit: Visit, did_happen: bool) -> None:
    begin_an_effect(path)
    page = visit(f"{own}/t/order-1")
    expect(page.locator(".run-panel")).to_contain_text("Did charge happen?")
    expect(page.get_by_role("button", name="Answer", exact=True)).to_have_count(0)
    if did_happen:
        page.get_by_role("textbox", name="The result of charge").fill("receipt 7")
    page.get_by_role("button", name="It happened" if did_happen else "It did not happen").click()
    expect(toast(page)).to_contain_text("Answered.")
    with everstep.open(path).sync as engine:
        latest = engine.get_latest("order-1")
    assert latest is not None
    told = {"happened": True, "result": "receipt 7"} if did_happen else {"happened": False}
    assert latest.tools_result["answer"] == told


def begin_an_effect(path: Path) -> None:
    """Leave a run that was cut off in the middle of an effect, and asks about it."""

    class Killed(BaseException):
        pass

    def charge() -> None:
        raise Killed

    with everstep.open(path).sync as engine:

        @engine.durable(name="order")
        def order(run: everstep.SyncRun) -> None:
            run.step(charge, effect="once")

        with pytest.raises(Killed):
            order(thread_id="order-1")
        engine.recover()


def test_forks_of_a_run_are_shown(own: str, path: Path, visit: Visit) -> None:
    with everstep.open(path).sync as engine:
        second = engine.resolve("report-week-46#2")
        branch = engine.branch(second.checkpoint_id, "other-week", thread_id="report-week-46")
    page = visit(f"{own}/t/report-week-46?tab=run")
    fork = page.get_by_role("tabpanel").get_by_role("listitem").filter(has_text="other-week")
    expect(fork).to_contain_text("paused")
    fork.get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/t/{branch}"))


def test_storage_and_what_would_go(own: str, visit: Visit) -> None:
    page = visit(f"{own}/storage")
    expect(page.locator(".figure").filter(has_text="checkpoints")).to_be_visible()
    shares = page.locator(".shares tbody tr")
    expect(shares).to_have_count(10)
    expect(shares.first).to_contain_text("support-4711")  # the longest
    expect(shares.first).to_contain_text(re.compile(r"412\s*\d+ kB\s*\d+\.\d ×"))
    page.get_by_label("How many").fill("5")
    page.get_by_role("button", name="What would go?").click()
    expect(page.get_by_text("It would remove")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Remove"))).to_be_visible()
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_text("All is as it was written")).to_be_visible()


def test_storage_tells_the_size_of_every_thread(tmp_path: Path, visit: Visit) -> None:
    """Also of those that the list beside it does not show."""
    path = tmp_path / "many.db"
    with everstep.open(path).sync as engine:
        for number in range(60):
            engine.append(f"thread {number}", [{"role": "user", "content": "hello"}])
    with served(path) as address:
        page = visit(f"{address}/storage")
        sizes = page.locator(".shares tbody tr td:nth-of-type(2)")
        expect(sizes).to_have_count(50)
        expect(sizes.filter(has_text=re.compile(r"\d"))).to_have_count(50, timeout=30_000)
        page.close()


def test_a_damaged_page_takes_nothing_from_the_threads_that_are_not_on_it(path: Path, visit: Visit) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        query = """SELECT max(c.seq) FROM checkpoints c JOIN lines l ON l.id = c.line
            JOIN threads t ON t.id = l.thread WHERE t.name = 'onboarding-ada'"""
        (seq,) = file.execute(query).fetchone()
        file.execute("UPDATE checkpoints SET info = zeroblob(length(info)) WHERE seq = ?", (seq,))
    with served(path) as address:
        page = visit(f"{address}/storage")
        expect(page.locator(".thread")).to_have_count(10)
        expect(page.locator(".thread").filter(has_text="damaged")).to_have_count(1)
        expect(page.locator(".thread").filter(has_text="onboarding-ada")).to_contain_text("damaged")
        expect(page.get_by_role("main")).to_contain_text("Not all of this can be measured")
        expect(page.locator(".figure").filter(has_text="checkpoints")).to_contain_text("497")
        page.get_by_role("button", name="Verify now").click()
        expect(page.locator(".findings").get_by_role("link", name="onboarding-ada").first).to_be_visible()
        page.close()


def test_a_damaged_store_is_verified_though_it_cannot_be_measured(path: Path, browser: Browser) -> None:
    """Nobody can tell which threads it has."""
    break_page(path, pages_of(path, "lines")[0])
    with served(path) as address:
        page = browser.new_page()  # the browser itself writes failed requests to its console
        page.goto(f"{address}/storage")
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("damaged")
        page.get_by_role("button", name="Verify now").click()
        expect(page.locator(".findings")).to_be_visible()
        page.goto(f"{address}/t/onboarding-ada")
        expect(page.get_by_role("main")).to_contain_text("everstep repair")
        page.close()


def test_a_store_that_does_not_answer_is_not_called_empty(browser: Browser) -> None:
    with served("postgresql://somebody:secret@127.0.0.1:1/nowhere") as address:
        page = browser.new_page()  # the browser itself writes failed requests to its console
        page.goto(address)
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("cannot be reached", timeout=30_000)
        expect(page.get_by_text("This store is empty")).to_have_count(0)
        expect(page.locator("body")).not_to_contain_text("secret")
        page.close()


def test_storage_of_a_thread_and_its_branches(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}")
    page.get_by_role("button", name="More about this thread").click()
    page.get_by_role("button", name="Storage of this thread").click()
    shares = page.get_by_role("dialog").locator(".shares tbody tr")
    expect(shares).to_have_count(4)
    for name in (STORY, "cheap", "scenic", "family"):
        row = shares.filter(has=page.get_by_role("link", name=name, exact=True))
        expect(row).to_contain_text(re.compile(r"\d (k?B)"))
    shares.get_by_role("link", name="cheap").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("heading", name="cheap")).to_be_visible()


# -- while others write

WRITER = """
import sys, everstep
engine = everstep.open(sys.argv[1], everstep.SnapshotConfig(gc_policy="keep_all")).sync
for line in sys.stdin:
    engine.append(sys.argv[2], [{"role": "assistant", "content": line.strip()}], {"last": line.strip()})
    print("done", flush=True)
"""


def test_what_another_process_writes_appears(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/support-4711", viewport={"width": 1280, "height": 700})
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    command = [sys.executable, "-c", WRITER, str(path), "support-4711"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None

        def write(text: str) -> None:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write(text + "\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "done\n"

        before = selected(page).locator(".row-step").inner_text()
        write("hello from elsewhere")
        expect(rows(page).first).to_contain_text("hello from elsewhere")
        expect(page.locator(".thread").first).to_contain_text("support-4711")
        expect(selected(page).locator(".row-step")).to_have_text(before)
        assert "/c/" not in page.url

        # Scrolled down, nothing in view may move.
        listed = page.get_by_role("listbox")
        listed.evaluate("(box) => { box.scrollTop = 28 * 100 }")
        row = page.locator("#row-104")
        expect(row).to_be_visible()
        title = row.locator(".row-title").inner_text()
        top = row.bounding_box()
        write("and once more")
        expect(page.get_by_role("button", name="1 new checkpoint above")).to_be_visible()
        moved = page.locator("#row-105")
        expect(moved.locator(".row-title")).to_have_text(title)
        assert moved.bounding_box() == top
        page.get_by_role("button", name="1 new checkpoint above").click()
        expect(rows(page).first).to_contain_text("and once more")
        writer.stdin.close()


def test_nothing_in_view_moves_while_retention_lets_old_rows_go(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "long.db"
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off").sync as engine:
        for number in range(1, 301):
            engine.append("long", [], {"n": number})
    with served(path) as address, everstep.open(path).sync as engine:
        page = visit(f"{address}/t/long")
        expect(selected(page).locator(".row-step")).to_have_text("#300")
        page.get_by_role("listbox").evaluate("(box) => { box.scrollTop = 28 * 20 }")
        row = page.locator(".row").filter(has=page.get_by_text("#275", exact=True))
        expect(row).to_be_visible()
        top = row.bounding_box()
        # The first one makes room for all: 201 rows go. After that one goes for each that comes.
        for number in range(1, 4):
            engine.append("long", [], {"n": 300 + number})
            some = "checkpoint" if number == 1 else "checkpoints"
            expect(page.get_by_role("button", name=f"{number} new {some} above")).to_be_visible()
            assert row.bounding_box() == top
        assert len(engine.list_time_travel_points("long", 500)) == 100
        page.context.close()


def test_the_first_checkpoints_of_an_empty_store_appear(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "new.db"
    with served(path) as address:
        page = visit(address)
        expect(page.get_by_role("main").get_by_text("This store is empty")).to_be_visible()
        expect(page.get_by_role("main").locator("pre")).to_contain_text("everstep.open(")
        page.set_viewport_size({"width": 390, "height": 780})
        expect(page.get_by_role("navigation").locator("pre")).to_be_visible()
        page.set_viewport_size({"width": 1280, "height": 780})
        with everstep.open(path).sync as engine:
            engine.append("first", [{"role": "user", "content": "hello"}])
        expect(page.get_by_role("link", name="first", exact=True)).to_be_visible()
        page.context.close()


LOOKED_AT = """(isLookedAt) => {
  Object.defineProperty(document, "hidden", { value: !isLookedAt, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_more_tabs_than_a_browser_has_connections(own: str, path: Path, visit: Visit) -> None:
    """What nobody looks at gives its connection back, and hears what it has missed when somebody does again."""
    first = visit(f"{own}/t/onboarding-ada")
    expect(first.get_by_text("live", exact=True)).to_be_visible()
    tabs = [first]
    for _ in range(7):
        tabs[-1].evaluate(LOOKED_AT, arg=False)
        tabs.append(first.context.new_page())
        tabs[-1].goto(f"{own}/t/onboarding-ada")
        expect(rows(tabs[-1]).first).to_be_visible()
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        engine.append("onboarding-ada", [{"role": "assistant", "content": "once more"}])
    expect(rows(tabs[-1]).first).to_contain_text("once more")
    expect(rows(first).first).not_to_contain_text("once more")
    first.evaluate(LOOKED_AT, arg=True)
    expect(rows(first).first).to_contain_text("once more")


def test_a_thread_that_is_deleted_meanwhile_is_told(own: str, path: Path, browser: Browser) -> None:
    page = browser.new_page()  # the browser itself writes failed requests to its console
    page.goto(f"{own}/t/onboarding-ada")
    expect(page.locator(".detail h2")).not_to_be_empty()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with everstep.open(path).sync as engine:
        engine.checkpointer.delete_thread("onboarding-ada")
        expect(page.get_by_text("This thread is gone")).to_be_visible()
        expect(page.locator(".detail h2")).to_have_count(0)
        page.keyboard.press("j")
        engine.append("somebody-else", [])
    expect(page.get_by_role("link", name="somebody-else")).to_be_visible()
    assert len([url for url in asked if "/history?" in url]) < 5  # not over and over
    page.get_by_role("button", name="Show all threads").click()
    expect(page).to_have_url(f"{own}/")
    page.close()


def test_a_window_that_could_not_open_does_not_open_later_by_itself(own: str, path: Path, browser: Browser) -> None:
    page = browser.new_page()  # the browser itself writes failed requests to its console
    trouble = {"error": {"code": "store_unavailable", "message": "not now", "hint": ""}}
    is_down = threading.Event()

    def answer(route: Route) -> None:
        if is_down.is_set():
            route.fulfill(status=503, json=trouble)
        else:
            route.continue_()

    # Requests go through here from the beginning: who begins to look later may miss one that is under way.
    page.route(re.compile(r"/checkpoint\?"), answer)
    page.goto(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).not_to_be_empty()
    is_down.set()
    page.keyboard.press("j")
    page.keyboard.press("f")
    expect(page.locator(".detail").get_by_role("alert")).to_contain_text("not now")
    page.keyboard.press("f")
    is_down.clear()
    with everstep.open(path).sync as engine:
        engine.append("somebody-else", [])
    expect(page.locator(".detail h2")).to_contain_text("Merge cheap")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("f")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.close()


def test_what_is_typed_before_a_window_is_there_does_nothing_else(own: str, path: Path, visit: Visit) -> None:
    page = visit(f"{own}/t/{STORY}")
    expect(page.locator(".detail h2")).not_to_be_empty()
    held: list[Route] = []
    page.route(re.compile(r"/checkpoint\?"), lambda route: held.append(route))
    for keys, title in (("under", "Merge cheap"), ("Escape", "Then two rooms")):
        page.keyboard.press("j")
        page.keyboard.press("f")
        if keys == "Escape":
            page.keyboard.press(keys)
        else:
            page.keyboard.type(keys)  # the first letter alone would undo a merge
        while not held:
            page.wait_for_timeout(20)
        held.pop().continue_()
        expect(page.locator(".detail h2")).to_contain_text(title)
        expect(page.get_by_role("dialog")).to_have_count(0 if keys == "Escape" else 1)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    page.unroute_all()
    with everstep.open(path).sync as engine:
        assert not any(operation.undone for operation in engine.operations(STORY))


def test_rows_that_cannot_be_had_are_asked_for_again_when_somebody_wants_it(shared: str, browser: Browser) -> None:
    page = browser.new_page()  # the browser itself writes failed requests to its console
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.fulfill(status=503, json={"error": {"code": "store_unavailable", "message": "not now", "hint": ""}})

    page.route(re.compile(r"/history\?.*(cursor|offset)="), refuse)
    page.goto(f"{shared}/t/support-4711")
    expect(rows(page).first).to_be_visible()
    page.get_by_role("listbox").evaluate("(box) => { box.scrollTop = box.scrollHeight }")
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("not now")
    page.get_by_role("listbox").evaluate("(box) => { box.scrollTop -= 100 }")
    expect(page.locator(".row.waiting").first).to_be_visible()
    assert len(refused) < 5
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("#1", exact=True)).to_be_attached()
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0)
    page.close()


def test_a_file_that_is_replaced_meanwhile_is_looked_at(own: str, path: Path, browser: Browser) -> None:
    page = browser.new_page()  # the browser itself writes failed requests to its console
    page.goto(f"{own}/t/{STORY}")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    expect(page.locator(".detail h2")).to_contain_text("Merge scenic")
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    expect(page.get_by_text("store unreadable")).to_be_visible()
    expect(page.locator(".detail h2")).to_contain_text("Merge scenic")  # what is shown stays
    with everstep.open(path).sync as engine:
        engine.append("another", [{"role": "user", "content": "hello"}])
    expect(page.get_by_role("link", name="another")).to_be_visible()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    page.close()


# -- size


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("long") / "nightly.db"
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off").sync as engine:
        engine.append("short", [{"role": "user", "content": "hello"}])
    long_history.fill(path, "nightly-eval", 100_000)
    with served(path) as address:
        yield address


def test_a_hundred_thousand_checkpoints(long: str, visit: Visit) -> None:
    page = visit(f"{long}/t/nightly-eval")
    expect(rows(page).first).to_contain_text("#100000")
    expect(page.get_by_role("listbox")).to_have_attribute("data-count", "100000")
    expect(page.locator(".detail h2")).not_to_be_empty()
    assert page.locator(".row").count() < 100
    page.keyboard.press("End")
    expect(selected(page)).to_contain_text("#1", timeout=60_000)
    expect(selected(page)).to_have_attribute("aria-posinset", "100000")
    page.keyboard.press("k")
    expect(selected(page).locator(".row-step")).to_have_text("#2")
    page.reload()  # a link into the depth of the history
    expect(selected(page).locator(".row-step")).to_have_text("#2")
    page.keyboard.press("Home")
    expect(selected(page)).to_contain_text("#100000")
    page.get_by_role("listbox").evaluate("(box) => { box.scrollTop = box.scrollHeight / 2 }")
    expect(page.get_by_text("#50000", exact=True)).to_be_visible()
    assert page.locator(".row").count() < 100


# -- hostile content


def test_hostile_content_is_shown_and_does_nothing(tmp_path: Path, visit: Visit) -> None:
    path = tmp_path / "hostile.db"
    name = f"x{SCRIPT}/../..%2f?#"
    turned = "safe\u202egnp.exe"
    with everstep.open(path, SnapshotConfig(gc_policy="keep_all")).sync as engine:
        message = {"role": SCRIPT, "name": SCRIPT, "content": f"{SCRIPT} \x1b[31mred\x07 {turned}", "id": SCRIPT}
        link = {"role": "user", "content": "[click](javascript:window.hacked=1) ](javascript:1)"}
        engine.append(
            name,
            [message, link],
            {SCRIPT: SCRIPT, "long": "z" * 5_000_000, "__proto__": {"a": 1}},
            tags=[SCRIPT],
            summary=SCRIPT,
            metadata={"error": {"type": SCRIPT, "message": SCRIPT}},
        )
        engine.append(name, [{"role": "assistant", "content": "y" * 5_000_000}], {SCRIPT: f"{SCRIPT}2"})
        engine.branch(engine.list_time_travel_points(name, 1)[0].checkpoint_id, SCRIPT)
    with served(path) as address:
        page = visit(address)
        page.locator(".thread").filter(has_text="/../..%2f").last.click()
        expect(rows(page).first).to_be_visible()
        for row in range(rows(page).count()):
            rows(page).nth(row).click()
            for each in ("Changes", "Messages", "State", "Step"):
                tab(page, each)
                expect(page.get_by_role("tabpanel").locator(".loading")).to_have_count(0)
        page.locator(".row").last.click()
        tab(page, "Messages")
        expect(page.locator(".transcript")).to_contain_text("<script>")
        expect(page.locator(".transcript")).not_to_contain_text("\u202e")
        expect(page.locator(".transcript")).not_to_contain_text("\x1b")
        expect(page.locator("a[href^='javascript']")).to_have_count(0)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("({}).a") is None
        page.context.close()


# -- looks


def serious(page: Page, scheme: str = "light") -> list[str]:
    """Return what the accessibility check finds that would keep somebody out; in the dark, of colours only."""
    options = {"resultTypes": ["violations"]} if scheme == "light" else {"runOnly": ["color-contrast"]}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.mark.long
def test_everybody_can_use_every_view(shared: str, visit: Visit) -> None:
    page = visit(shared)
    for name, go in places.VIEWS.items():
        go(page, shared)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert serious(page, scheme) == [], (name, scheme)


def test_everybody_can_use_every_window(shared: str, visit: Visit) -> None:
    page = visit(shared)
    for name, go in places.WINDOWS.items():
        go(page, shared)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert serious(page, scheme) == [], (name, scheme)
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_every_window_is_among_them() -> None:
    """One that is added to the page is looked at, too."""
    source = (STATIC / "dialogs.js").read_text()
    asked = set(re.findall(r'open\.name === "(\w+)"', source)) - {"pin"}  # it asks nothing
    assert asked <= places.WINDOWS.keys()


@pytest.mark.long
def test_no_view_and_no_window_sticks_out(shared: str, visit: Visit) -> None:
    page = visit(shared, viewport={"width": WIDE["width"], "height": 780})
    for name, go in (places.VIEWS | places.WINDOWS).items():
        page.set_viewport_size({"width": WIDE["width"], "height": 780})
        go(page, shared)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 780})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert page.evaluate(STICKS_OUT) == [], (name, width)


STICKS_OUT = """() => {
  const box = document.querySelector("dialog");
  if (!box) return [];
  const { left, right, top, bottom } = box.getBoundingClientRect();
  const inner = box.querySelector(".dialog-body");
  const found = [];
  if (left < 0 || right > innerWidth || top < 0 || bottom > innerHeight) found.push("it is larger than the screen");
  if (inner.scrollWidth > inner.clientWidth) found.push("its content is wider than it");
  return found;
}"""


def test_the_colours_can_be_chosen_and_are_remembered(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}", color_scheme="light")
    ground = "rgb(251, 250, 248)", "rgb(20, 21, 22)"
    body = page.locator("body")
    expect(body).to_have_css("background-color", ground[0])
    page.get_by_role("button", name="Colours: system").click()
    page.get_by_role("button", name="Colours: light").click()
    expect(body).to_have_css("background-color", ground[1])
    page.reload()
    expect(body).to_have_css("background-color", ground[1])
    page.get_by_role("button", name="Colours: dark").click()
    expect(body).to_have_css("background-color", ground[0])
    page.emulate_media(color_scheme="dark")
    expect(body).to_have_css("background-color", ground[1])


@pytest.mark.parametrize(
    "place", ["/", f"/t/{STORY}", f"/t/{STORY}?tab=messages", "/storage", "/runs", "/t/trip-to-bergen?tab=run"]
)
def test_nothing_sticks_out(shared: str, visit: Visit, place: str) -> None:
    page = visit(shared + place)
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    for width in (1280, 1024, 880, 760, 390):
        page.set_viewport_size({"width": width, "height": 780})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_narrow_screen_shows_one_thing_after_the_other(shared: str, visit: Visit) -> None:
    page = visit(shared, viewport=NARROW, has_touch=True)
    page.get_by_role("link", name=STORY, exact=True).click()
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_role("navigation")).not_to_be_visible()
    rows(page).first.click()
    expect(page.locator(".detail h2")).to_contain_text("Merge scenic")
    expect(page.get_by_role("listbox")).not_to_be_visible()
    page.get_by_role("link", name="Back to the history").click()
    expect(page.get_by_role("listbox")).to_be_visible()
    page.get_by_role("link", name="All threads").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    assert serious(page) == []


def test_every_value_has_its_tools_on_a_narrow_screen(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}?tab=state", viewport=NARROW, has_touch=True)
    rows(page).first.tap()
    page.locator(".node-key").filter(has_text="messages").tap()
    page.get_by_role("button", name="Who wrote this?").tap()
    expect(page.locator(".writers a").first).to_be_visible()


def test_a_link_that_was_sent_leads_back_into_the_page(shared: str, visit: Visit) -> None:
    """Whoever follows one on a narrow screen has nowhere to go back to but the history and the list."""
    page = visit(f"{shared}/t/{STORY}?tab=state", viewport=NARROW, has_touch=True)
    rows(page).first.click()
    link = page.url
    page.context.close()
    page = visit(link, viewport=NARROW, has_touch=True)
    page.get_by_role("link", name="Back to the history").click()
    expect(page.get_by_role("listbox")).to_be_visible()
    page.get_by_role("link", name="All threads").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    expect(page.get_by_role("link", name=STORY, exact=True)).to_be_visible()


def test_two_checkpoints_are_compared_on_a_narrow_screen(shared: str, visit: Visit) -> None:
    page = visit(f"{shared}/t/{STORY}", viewport=NARROW, has_touch=True)
    rows(page).first.click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("button", name="Show the rows").click()
    expect(page.get_by_text("Choose a row to compare #9 with.")).to_be_visible()
    rows(page).nth(1).click()
    expect(page.locator(".changes-top")).to_contain_text("from #9 to #8")
    page.get_by_role("link", name="Back to the history").click()
    page.get_by_role("button", name="End comparing").click()
    rows(page).nth(1).click()
    expect(page.locator(".changes-top")).to_contain_text("against parent #7")
