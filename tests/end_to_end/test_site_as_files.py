"""The site as ``make docs`` opens it: from the disk, in a real browser, without a server."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.built_site import build_site
from tests.end_to_end.browser import browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as ``make docs`` does, in a folder whose name has a space."""
    return build_site(tmp_path_factory.mktemp("the site"))


@pytest.fixture
def page(site, tmp_path):
    """The first page, opened from the disk at the width of a laptop."""
    with browser(tmp_path) as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto((site / "index.html").as_uri())
        yield page


def test_a_link_opens_a_page(page):
    """Not the listing of a directory."""
    page.get_by_role("link", name="Tutorial", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Tutorial")
    page.locator("article a[href*='production']").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("roduction")


def test_the_search_finds_a_page(page):
    """By a word of an error's text; its result opens that page."""
    search = page.get_by_role("textbox", name="Search")
    search.click()
    search.press_sequentially("GroupMismatchError")  # with key events, which the theme listens to
    result = page.locator(".md-search-result__link").first
    expect(result).to_be_visible()
    result.click()
    expect(page.locator("article")).to_contain_text("GroupMismatchError")


def test_code_is_not_cut_and_the_page_fits(page):
    """At the width of a laptop README's example is shown whole; a phone scrolls tables, not the page."""
    cut = "e => e.scrollWidth > e.clientWidth"
    assert page.locator("article pre code").evaluate_all(f"all => all.filter({cut}).length") == 0
    page.set_viewport_size({"width": 500, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 500
