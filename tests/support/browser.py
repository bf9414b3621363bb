"""A real browser for the tests of pages: playwright's own Chromium, or one that the machine has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = f"no browser; `playwright install chromium`, or install one of {', '.join(NAMES)}"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; tests are skipped where there is none."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = own if Path(own).exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.skip(INSTALL)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page as a reader meets it, and what it said while it was loaded."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, dark: bool = False) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            offline=True,
        )
        self.page = context.new_page()
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.goto(path.absolute().as_uri())
        self.page.wait_for_load_state()

    def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def wait_for_outcome(self) -> None:
        """Let the page go on until a script has run or was refused."""
        while not (self.dialogs or self.violations):
            self.page.wait_for_timeout(20)

    @property
    def violations(self) -> list[str]:
        """What the page's policy forbade, in frames of the page too."""
        return [error for error in self.errors if "Content Security Policy" in error]
