"""A browser for the tests of the page: one that is installed, Playwright's own, or one that is installed now."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Playwright
from playwright.sync_api import Error as PlaywrightError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
HELP = (
    "the tests of the page need Chromium, and none could be found or installed. Install one of these: "
    "`apt-get install chromium` (Debian, Ubuntu), `brew install --cask google-chrome` (macOS), or "
    "`.venv/bin/playwright install chromium`; then run the tests again"
)


def launch(playwright: Playwright) -> Browser:
    """Return a running browser, or say how to get one."""
    for executable in (installed, lambda: playwrights_own(playwright), downloaded, from_packages):
        found = executable()
        if found is None:
            continue
        try:
            return playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        except PlaywrightError as exc:
            print(f"{found} does not start: {exc}", file=sys.stderr)
    raise RuntimeError(HELP)


def installed() -> str | None:
    """Return a browser on the PATH."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


def playwrights_own(playwright: Playwright) -> str | None:
    """Return the browser that Playwright has installed before."""
    path = playwright.chromium.executable_path
    return path if path and Path(path).exists() else None


@functools.cache
def downloaded() -> str | None:
    """Let Playwright install its browser, where it can be downloaded."""
    if not _succeeds(sys.executable, "-m", "playwright", "install", "chromium"):
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return playwrights_own(playwright)


@functools.cache
def from_packages() -> str | None:
    """Install the browser of the system, where that is allowed."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return None
    if not _succeeds("apt-get", "install", "-y", "chromium"):
        _succeeds("apt-get", "update")
        _succeeds("apt-get", "install", "-y", "chromium")
    return installed()


def _succeeds(*command: str) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode == 0
