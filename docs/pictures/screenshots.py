"""The demo's page as a browser shows it at a desk and on a phone.

pathsgd demo
python docs/pictures/screenshots.py runs/demo/report.html    # demo-1280.png, demo-400.png beside it
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 400)


def main(page: Path) -> None:
    """A picture of the whole page at each width."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for width in WIDTHS:
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.goto(page.absolute().as_uri())
            tab.screenshot(path=Path(__file__).with_name(f"demo-{width}.png"), full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
