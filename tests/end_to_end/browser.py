"""Debian's Chromium, for the tests that look at a page and click."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager

from playwright.sync_api import expect, sync_playwright

from tests.timeouts import seconds

CHROMIUM = shutil.which("chromium")
PATIENCE = seconds(300.0)  # seconds, of a browser and of a shell


@contextmanager
def browser(folder):
    """A page of Debian's Chromium; when the test fails, its error names a picture of the page."""
    assert CHROMIUM, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments).new_page(
            viewport={"width": 1280, "height": 800}
        )
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        try:
            yield page
        except Exception as error:
            page.screenshot(path=folder / "failed.png")
            raise AssertionError(
                f"{page.url} looked like {folder / 'failed.png'} when it failed: {error}"
            ) from error
        finally:
            page.context.browser.close()
