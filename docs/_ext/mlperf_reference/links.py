"""Make links out of the folder of the pages lead to a copy of the file."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def inside_the_site(markdown: str, page: Path, docs: Path) -> str:
    """Return a page whose links to other files of the repository are downloads.

    A repository's reader follows `../suites/tiny/bert/README.md`; the site has no such page, so the
    file itself is copied beside it. Folders cannot be, and are named instead.
    """

    def download(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if target.is_relative_to(docs.resolve()):
            return match[0]
        if target.is_dir():
            return f"{match[1]} (`{target.relative_to(docs.parent.resolve())}`)"
        return f"{{download}}`{match[1].replace('`', '')} <{match[2]}>`"

    return LINK.sub(download, markdown)
