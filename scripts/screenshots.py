"""Takes full-page screenshots of a running dashboard, in both themes and languages.

    python scripts/screenshots.py http://127.0.0.1:8501 --out /tmp/pictures --incident INCIDENT_ID

Chromium comes from ``--chromium`` or Playwright's own download.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

HEIGHTS = {1280: 800, 1920: 1080}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
Theme = Literal["light", "dark"]


def main() -> int:
    """Takes all screenshots; returns 1 if a page shows an exception or logs an error to the console."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    troubled = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        for width, theme, language in product(options.widths, options.themes, options.languages):
            for name, path in _pages(options.incident, options.pages):
                address = f"{options.url}{path}{'&' if '?' in path else '?'}lang={language}"
                target = options.out / f"{name}-{width}-{theme}-{language}.png"
                complaints = take(browser, address, target, width, theme)
                troubled += bool(complaints)
                print(f"{target} {' | '.join(complaints)}")
        browser.close()
    return 1 if troubled else 0


def take(browser: Browser, address: str, target: Path, width: int, theme: Theme) -> list[str]:
    """Takes one full-page screenshot; returns the errors of the page."""
    size = {"width": width, "height": HEIGHTS.get(width, 900)}
    context = browser.new_context(viewport={**size}, color_scheme=theme, locale="en-GB")
    page = context.new_page()
    complaints: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        # Streamlit first requests its own paths below the page URL; ignore their errors.
        if message.type == "error" and "/_stcore/" not in message.location.get("url", ""):
            complaints.append(message.text[:200])

    page.on("console", listen)
    page.goto(address, wait_until="domcontentloaded")
    page.wait_for_selector(".o-head", timeout=30_000)
    _settle(page)
    height = page.evaluate(
        "() => { const m = document.querySelector('[data-testid=stMain]'); return m ? m.scrollHeight : 0 }"
    )
    page.set_viewport_size({"width": width, "height": max(size["height"], int(height))})
    page.wait_for_timeout(600)
    page.screenshot(path=str(target))
    complaints += page.locator("[data-testid=stException]").all_inner_texts()
    context.close()
    return complaints


def _settle(page: Page) -> None:
    page.wait_for_selector("[data-testid=stStatusWidget]", state="detached", timeout=30_000)
    page.wait_for_timeout(1500)


def _pages(incident: str | None, wanted: list[str]) -> Iterator[tuple[str, str]]:
    every = {"overview": "/", "incidents": "/incident", "oncall": "/oncall", "capacity": "/capacity"}
    if incident:
        every["incident"] = f"/incident?incident={incident}"
    yield from ((name, path) for name, path in every.items() if not wanted or name in wanted)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the dashboard")
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    parser.add_argument("--incident", help="id of the incident to show")
    parser.add_argument(
        "--pages", nargs="*", default=[], help="overview, incidents, incident, oncall, capacity; default: all"
    )
    parser.add_argument("--widths", nargs="*", type=int, default=[1280, 1920])
    parser.add_argument("--themes", nargs="*", choices=["light", "dark"], default=["light", "dark"])
    parser.add_argument("--languages", nargs="*", choices=["en", "zh"], default=["en", "zh"])
    parser.add_argument("--chromium", help="path of the browser")
    result = parser.parse_args()
    result.url = result.url.rstrip("/")
    return result


if __name__ == "__main__":
    sys.exit(main())
