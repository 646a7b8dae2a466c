"""The documentation as ``make docs`` builds it, for the tests that read it or click on it."""

from __future__ import annotations

from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[1]


def build_site(folder):
    """Build it into this folder; a dead link, an orphaned page or any other warning is an error."""
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()
    return folder
