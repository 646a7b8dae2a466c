"""Which pages has the site beside those of docs/? mkdocs calls these hooks; nothing is written but the site.

The project's pages outside of docs/ are on it, too, under their own names, so that each link between pages
holds on the site as it does in a checkout.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from website import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

BESIDE = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/RESULTS.md")
_CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?![a-z]+:|#)(?P<to>[^)#\s]+)")
_ROLE = re.compile(r":(?:class|func|meth):(?=<code)")  # Sphinx's, in docstrings


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Caller: mkdocs, once it has read docs/. Affects: the pages there are."""
    checkout = Path(config.config_file_path).parent
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(checkout / name)))
    worker = str(checkout / "website" / "iframe-worker.js")
    files.append(File.generated(config, "assets/iframe-worker.js", abs_src_path=worker))
    for name, make in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Caller: mkdocs, for each page. Affects: where its links lead, and the first page's template."""
    here = page.file.src_uri
    if here == "README.md":
        page.meta.update(template="home.html", title="kafka_liveness_dagster")
        markdown = _without_header(markdown)
    if here.startswith("reference/"):
        return markdown
    parts = _CODE.split(markdown)  # every second one is code
    parts[::2] = [_LINK.sub(lambda link: f"]({_place(here, link['to'])}", text) for text in parts[::2]]
    return "".join(parts)


def _without_header(readme: str) -> str:
    r"""Leave out the title, the tagline and the picture of the lanes, which the first page's template has.

    >>> _without_header("# a\n\n- b\n\n![c](docs/images/concept-lanes.svg)\n")
    '- b\n\n'
    """
    body = readme[readme.index("\n- ") + 1 :]
    return re.sub(r"!\[[^]]*\]\([^)]*concept-lanes\.svg\)\n+", "", body)


def on_page_content(html: str, **_: object) -> str:
    """Caller: mkdocs, for each page. Affects: words of Sphinx's in docstrings."""
    return _ROLE.sub("", html)


def _place(here: str, link: str) -> str:
    """A link of the checkout as one of the site, where docs/ is the root.

    >>> _place("README.md", "docs/errors.md"), _place("speed.md", "../benchmarks/RESULTS.md")
    ('errors.md', 'benchmarks/RESULTS.md')
    """
    in_checkout = here if here in BESIDE else f"docs/{here}"
    to = posixpath.normpath(posixpath.join(posixpath.dirname(in_checkout), link))
    return posixpath.relpath(to.removeprefix("docs/"), posixpath.dirname(here) or ".")
