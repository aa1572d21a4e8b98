"""Ids and folders of what a command or a session leaves."""

from __future__ import annotations

import datetime as dt
import secrets
from pathlib import Path


def new_id() -> str:
    """Return an id that sorts by time: UTC and four hex digits, "20261121-144232-db7d"."""
    return f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def ignored_in_git(folder: Path) -> Path:
    """Make a folder that git ignores, as pytest does with its cache, and return it.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", "utf-8")
    return folder
