"""Files of a model: found, checked, hashed, and never run as code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pytest_mlperf.core.errors import RunError

WORTH_BYTES = 1 << 30
"""What takes a second or more to read is worth remembering."""

SETTLED_S = 2.0
"""Files that changed within this time may change again without another time of change."""

LARGEST_INDEX = 64 * 2**20
"""Bytes of an index of weights; 100,000 tensors take about 10 MB."""

SHOWN = 3
"""Names that are listed in an error; the rest is counted."""


def weight_files(folder: Path, *, option: str = "weights") -> list[Path]:
    """Return the safetensors files of a checkpoint, by name.

    Args:
        folder: Where they are.
        option: Of the engine, with which it runs without them.

    Raises:
        RunError: There are none, one is missing, or one is cut short.
    """
    import safetensors

    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        files = [single]
    elif index.is_file():
        files = [folder / name for name in _named(index)]
    elif list(folder.glob("*.bin")):
        raise broken(
            folder,
            "has weights as .bin files only, which can carry code; convert them once with "
            "model.save_pretrained(folder) of transformers, which writes model.safetensors",
        )
    else:
        raise broken(folder, f'has no model.safetensors; {option} = "dummy" runs without')
    for file in files:
        if not file.is_file():
            raise broken(file, f"is missing, but {index.name} names it; copy it here again")
        try:
            with safetensors.safe_open(file, "pt"):
                pass
        except safetensors.SafetensorError as error:
            raise broken(
                file, f"is cut short or is no safetensors file ({error}); copy it here again"
            ) from error
    return files


def _named(index: Path) -> list[str]:
    """Return the files that an index names, all of them in its own folder.

    Raises:
        RunError: It is no index, too large, or names files elsewhere.
    """
    if index.stat().st_size > LARGEST_INDEX:
        raise broken(index, f"is larger than {LARGEST_INDEX >> 20} MiB, which no index is")
    try:
        named = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise broken(index, f"is no index of safetensors files: {one_line(error)}") from error
    for name in named:
        if not isinstance(name, str) or not name.isprintable() or not name.strip():
            raise broken(index, f"is no index of safetensors files: it names {name!r}")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise broken(index, f"names {name!r}, which lies outside its folder; correct it")
    return sorted(named)


def sha256(files: Sequence[Path]) -> str:
    """Return the hex SHA-256 of files read one after the other.

    Large ones are read once: a fresh process for each run would spend minutes on it. What they had
    is kept in the user's cache, by place, device, number, size and times of each, and not where one
    changed a moment ago, when the next change could leave all of these as they are.
    """
    looks = _looks(files)
    if sum(look[3] for look in looks) < WORTH_BYTES:
        return _hashed(files)
    place = _cache() / hashlib.sha256(repr(looks).encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError):
        known = place.read_text("ascii").strip()
        if re.fullmatch("[0-9a-f]{64}", known):
            return known
    began_s = time.time()
    digest = _hashed(files)
    settled = began_s - max(look[-1] for look in looks) / 1e9 > SETTLED_S
    if settled and _looks(files) == looks:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f".{secrets.token_hex(8)}.tmp")
            temporary.write_text(f"{digest}\n", "ascii")
            temporary.replace(place)
    return digest


def _hashed(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _looks(files: Sequence[Path]) -> list[tuple[str, int, int, int, int, int]]:
    """Return place, device, number, size and times of files."""
    states = [(path.resolve(), path.stat()) for path in files]
    return [
        (str(place), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        for place, s in states
    ]


def _cache() -> Path:
    own = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(own) if Path(own).is_absolute() else Path("~/.cache").expanduser()
    return base / "pytest-mlperf" / "sha256"


def broken(path: Path, what: str) -> RunError:
    """Return the error that names a file or folder and what is wrong with it."""
    return RunError("engine", f"{path}: {what}")


def one_line(error: BaseException) -> str:
    """Return an exception's text as one line."""
    return " ".join(str(error).split())


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
