"""A real browser for the console: Chromium, driven by playwright, and a record of what its pages did wrong.

Playwright's own loop runs in the thread of the tests while it is open, so that only tests without asyncio may
use it, from a fixture of their module.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSER_SKIP = "Browser tests skipped: "
# Where screenshots are kept, for people to look at; none are taken otherwise.
SCREENSHOTS_VARIABLE = "OTTLA_SCREENSHOTS"
DEADLINE_MS = 60_000
Theme = Literal["light", "dark"]
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing_requirement() -> str | None:
    """What these tests need and this machine has not; None if all is there."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install playwright)"
    if _executable() is None:
        return "no Chromium on the PATH (apt-get install chromium)"
    return None


def _executable() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_executable(), args=["--no-sandbox"])
        yield browser
        browser.close()


class Visitor:
    """One window with the console. `faults` is all that must not happen: errors of scripts, violations of the
    content security policy, requests to other hosts, dialogs that a message's script opened. `base` may be an
    address that opens a session.
    """

    def __init__(self, browser: Browser, base: str, *, theme: Theme = "light", width: int = 1280) -> None:
        opening = urlsplit(base)
        self.base = f"{opening.scheme}://{opening.netloc}"
        self.faults: list[str] = []
        self._theme = theme
        self._width = width
        viewport: Any = {"width": width, "height": 900}
        self._context = browser.new_context(
            viewport=viewport, color_scheme=theme, ignore_https_errors=True, accept_downloads=True
        )
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(DEADLINE_MS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("dialog", self._on_dialog)
        if opening.query:
            self.page.goto(base)

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} {message.location}")

    def _on_request(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc and not request.url.startswith("data:"):
            self.faults.append(f"request to {request.url}")

    def _on_dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, place: str, heading: str | None = None) -> Page:
        """Go to a page of the console, as `topics` or `group?id=…`, and wait for its heading."""
        self.page.goto(f"{self.base}/console/#/{place}")
        if heading is None:
            self.page.wait_for_selector("main h1")
        else:
            self.page.locator("main h1", has_text=re.compile(f"^{re.escape(heading)}$")).wait_for()
        return self.page

    def until(self, expression: str) -> None:
        """Wait until an expression holds in the page. `wait_for_function` needs `eval`."""
        deadline = time.monotonic() + DEADLINE_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, f"not true in time: {expression}"
            self.page.wait_for_timeout(20)

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return found

    def nameless_controls(self) -> list[str]:
        """Controls that a screen reader could not name."""
        found: list[str] = self.page.evaluate(
            """[...document.querySelectorAll("a, button, input, select, textarea, [role=button]")]
            .filter((e) => e.checkVisibility() && !e.getAttribute("aria-label") && !e.title)
            .filter((e) => !e.labels?.length && !e.textContent.trim())
            .map((e) => e.outerHTML)"""
        )
        return found

    def screenshot(self, name: str) -> None:
        folder = os.environ.get(SCREENSHOTS_VARIABLE)
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(folder) / f"{name}-{self._theme}-{self._width}.png"
            self.page.screenshot(path=str(path), full_page=True)

    def close(self) -> None:
        self._context.close()
