"""What of the README works on a package index? Its words: what it shows and links to here is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[(?P<words>[^\]]+)\]\((?!https?://|#)(?P<file>[^)]+)\)")
_WHERE = "\nThe files that this page names, docs/ and benchmarks/, are in the source distribution.\n"


class IndexReadme(MetadataHookInterface):
    """The long description of the built package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Give the README without pictures, and with the names of files in place of links to them.

        Caller: hatchling, when it builds. Affects: the field ``readme``, which is dynamic.
        """
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = _LINK.sub(_named, _PICTURE.sub("", text)) + _WHERE
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _named(link: re.Match[str]) -> str:
    words, file = link["words"], link["file"]
    return words if words == file else f"{words} ({file})"
