"""What a shared library needs of others, asked of the loader without loading the library itself.

A provider of onnxruntime cannot be tried by itself: what it takes from onnxruntime is there only
once onnxruntime loads it, and by then a library that is missing is a line in a log.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

LOAD, DYNAMIC = 1, 2
"""Types of an ELF file's segments."""

END, NEEDED, STRINGS, FOLDERS = 0, 1, 5, (15, 29)
"""Types of the entries of its dynamic segment; folders are those where the loader looks first."""


def missing(library: Path) -> list[str]:
    """Return the libraries that one needs and the loader does not load, each with its reason.

    Args:
        library: An ELF file of 64 bits, little-endian; of any other file nothing is missing.
    """
    entries = dynamic_entries(library)
    folders = [
        Path(
            folder.replace("$ORIGIN", str(library.parent)).replace("${ORIGIN}", str(library.parent))
        )
        for tag, text in entries
        if tag in FOLDERS
        for folder in text.split(":")
    ]
    reasons = []
    for name in (text for tag, text in entries if tag == NEEDED):
        beside = next((folder / name for folder in folders if (folder / name).is_file()), name)
        try:
            ctypes.CDLL(str(beside))
        except OSError as error:
            reasons.append(str(error))
    return reasons


def dynamic_entries(library: Path) -> list[tuple[int, str]]:
    """Return what a library says of others: type and text of each entry, in its order.

    Args:
        library: An ELF file of 64 bits, little-endian; any other file says nothing.
    """
    with library.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return []
        file.seek(0)
        head = file.read(64)
        start, size, count = (
            *struct.unpack_from("<Q", head, 32),
            *struct.unpack_from("<HH", head, 54),
        )
        file.seek(start)
        table = file.read(size * count)
        segments = [_Segment(table[at : at + size]) for at in range(0, size * count, size)]
        dynamic = next((one for one in segments if one.type == DYNAMIC), None)
        if dynamic is None:
            return []
        file.seek(dynamic.offset)
        entries = list(_entries(file.read(dynamic.size)))
        strings = next(value for tag, value in entries if tag == STRINGS)
        base = next(
            one.offset + strings - one.address
            for one in segments
            if one.type == LOAD and one.address <= strings < one.address + one.size
        )
        said = []
        for tag, value in entries:
            if tag in (NEEDED, *FOLDERS):
                file.seek(base + value)
                said.append((tag, file.read(4096).partition(b"\0")[0].decode()))
        return said


class _Segment:
    """Where a part of the file lies, and where it is put in memory."""

    def __init__(self, header: bytes) -> None:
        self.type, _, self.offset, self.address, _, self.size = struct.unpack_from(
            "<IIQQQQ", header
        )


def _entries(dynamic: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in struct.iter_unpack("<qQ", dynamic[: len(dynamic) // 16 * 16]):
        if tag == END:
            return
        yield tag, value
