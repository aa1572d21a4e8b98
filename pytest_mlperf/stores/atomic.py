"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace the file's content by `text` in UTF-8; see `write_bytes`.

    What UTF-8 cannot hold is written as an escape: nothing else in a text may be lost for it.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes, place: Path | None = None) -> None:
    """Replace the file's content; whoever reads it sees the old or the new, never a part.

    Missing folders are made. After an error the old file is as it was and nothing is left beside
    it; after the return the new one outlasts a power cut.

    Args:
        path: The file.
        content: What it shall hold.
        place: Where the unfinished file goes, on the same file system; None: beside the file.

    Raises:
        OSError: The folder cannot be written, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside it, because a rename is atomic within one file system only.
    temporary = (place or path.parent) / f".{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let what was renamed into a folder outlast a power cut.

    Some network file systems refuse this; the new content is then in place all the same.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
