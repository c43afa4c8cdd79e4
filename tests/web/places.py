"""Every view and every window of the page, and how one gets there: for tests that look at all of them."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

STORY = "trip-to-oslo"

Go = Callable[[Page, str], None]


def _story(page: Page, home: str, rest: str = "") -> None:
    page.goto(f"{home}/t/{STORY}{rest}")
    expect(page.locator("#rows").get_by_role("option").first).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)


def _tab(name: str) -> Go:
    def go(page: Page, home: str) -> None:
        _story(page, home, f"?tab={name}")
        page.locator("#rows").get_by_role("option").first.click()  # so that a narrow screen shows it
        expect(page.get_by_role("tabpanel")).not_to_be_empty()
        expect(page.get_by_role("tabpanel").locator(".loading")).to_have_count(0)

    return go


def _key(key: str) -> Go:
    """Open a window by its key."""

    def go(page: Page, home: str) -> None:
        _story(page, home)
        _select_a_step(page)
        page.keyboard.press(key)
        _wait_for_window(page)

    return go


def _menu(item: str) -> Go:
    """Open a window by the menu of the thread."""

    def go(page: Page, home: str) -> None:
        _story(page, home)
        page.get_by_role("button", name="More about this thread").click()
        page.get_by_role("button", name=item).click()
        _wait_for_window(page)

    return go


def _select_a_step(page: Page) -> None:
    """Select a step that has a parent and comes before others; the history may not be in sight."""
    page.locator("body").press("j")
    page.locator("body").press("j")
    expect(page.locator(".detail .actions button").first).to_be_attached()
    expect(page.locator(".detail .loading")).to_have_count(0)


def _wait_for_window(page: Page) -> None:
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("dialog").locator(".loading")).to_have_count(0)


def _compared(tab: str) -> Go:
    """Compare the heads of two branches."""

    def go(page: Page, home: str) -> None:
        _menu("Compare branches")(page, home)
        for name in (STORY, "family"):
            branch = page.get_by_role("dialog").get_by_role("listitem").filter(has_text=name)
            branch.get_by_role("button", name="Compare").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.locator("body").press(tab)
        shown = {"d": page.locator(".changes-top").get_by_text("from"), "m": page.locator(".pair-side").first}
        expect(shown[tab]).to_be_visible()
        expect(page.locator(".detail .loading, .detail .old")).to_have_count(0)

    return go


def _changes_as(form: str) -> Go:
    def go(page: Page, home: str) -> None:
        _tab("changes")(page, home)
        page.locator(".detail .segments").get_by_role("button", name=form).click()
        expect(page.locator(".detail .loading, .detail .old")).to_have_count(0)

    return go


def _open_menu(page: Page, home: str) -> None:
    _story(page, home)
    page.get_by_role("button", name="More about this thread").click()
    expect(page.locator(".menu")).to_be_visible()


def _edited(page: Page, home: str) -> None:
    _key("e")(page, home)
    page.get_by_label("Name of the branch").fill("try-the-bus")
    editor = page.get_by_role("textbox", name="state as JSON")
    editor.fill('{"city": "Oslo", "hotel": "Grand"}')
    expect(page.locator(".preview .change").first).to_be_visible()


def _conflict(page: Page, home: str) -> None:
    _menu("Merge a branch")(page, home)
    expect(page.get_by_role("dialog").get_by_text("Outcome")).to_be_visible()


def _branch(page: Page, home: str) -> None:
    _key("b")(page, home)
    page.get_by_role("dialog").get_by_role("button", name="Rename or archive cheap").click()
    expect(page.get_by_role("dialog", name="Branch", exact=True)).to_be_visible()


def _who_wrote_it(page: Page, home: str) -> None:
    _tab("state")(page, home)
    page.locator(".node-tools").first.get_by_role("button", name="Who wrote this?").click(force=True)
    expect(page.locator(".writers a").first).to_be_attached()


def _hidden(page: Page, home: str) -> None:
    _story(page, home)
    page.get_by_role("button", name="hidden").click()
    expect(page.locator(".hidden-row").first).to_be_visible()


def _nothing_left(page: Page, home: str) -> None:
    _story(page, home)
    page.locator("#find-row").fill("no such words anywhere")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No checkpoint passes the filter")).to_be_visible()


def _nothing_found(page: Page, home: str) -> None:
    page.goto(home)
    page.locator("#find-thread").fill("no such thread anywhere")
    expect(page.get_by_text("Nothing found")).to_be_visible()


def _storage(page: Page, home: str) -> None:
    page.goto(f"{home}/storage")
    page.get_by_label("How many").fill("5")
    page.get_by_role("button", name="What would go?").click()
    expect(page.get_by_text("It would remove")).to_be_visible()
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_text("All is as it was written")).to_be_visible()


def _runs(page: Page, home: str) -> None:
    page.goto(f"{home}/runs")
    expect(page.locator(".run-item").first).to_be_visible()


def _run(thread: str) -> Go:
    def go(page: Page, home: str) -> None:
        page.goto(f"{home}/t/{thread}?tab=run")
        expect(page.locator(".run-steps").first).to_be_attached()

    return go


def _thread(name: str, tab: str) -> Go:
    def go(page: Page, home: str) -> None:
        page.goto(f"{home}/t/{name}?tab={tab}")
        expect(page.locator(".detail .body")).not_to_be_empty()
        expect(page.locator(".loading")).to_have_count(0)

    return go


def _start(page: Page, home: str) -> None:
    page.goto(home)
    expect(page.locator(".thread").first).to_be_visible()


WINDOWS: dict[str, Go] = {
    "fork": _key("f"),
    "edit": _key("e"),
    "edited": _edited,
    "rewind": _key("r"),
    "merge": _conflict,
    "tags": _key("t"),
    "copy": _key("y"),
    "operations": _key("o"),
    "time": _key("Shift+T"),
    "help": _key("?"),
    "branches": _key("b"),
    "branch": _branch,
    "note": _key("n"),
    "import": _menu("Import a file"),
    "delete": _menu("Delete for good"),
    "sizes": _menu("Storage of this thread"),
}
"""The windows over the page: those that `dialogs.js` knows, but for `pin`, which asks nothing."""

VIEWS: dict[str, Go] = {
    "start": _start,
    "nothing found": _nothing_found,
    "changes": _tab("changes"),
    "messages": _tab("messages"),
    "state": _tab("state"),
    "step": _tab("step"),
    "who wrote it": _who_wrote_it,
    "side by side": _changes_as("Side by side"),
    "patch": _changes_as("Patch"),
    "compared": _compared("d"),
    "two conversations": _compared("m"),
    "menu": _open_menu,
    "hidden": _hidden,
    "nothing left": _nothing_left,
    "a failed run": _thread("report-week-46", "run"),
    "a run that waits": _run("trip-to-bergen"),
    "runs": _runs,
    "storage": _storage,
}
