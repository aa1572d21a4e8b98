"""Open pickle files without executing the code in them."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError
from pytest_mlperf.adapters.datasets.files import wrong

UNPACKED_LIMIT = 4 * 2**30
"""Maximum size of an unpacked pickle, in bytes."""


def read_records(path: Path) -> list[Any]:
    """Read a pickled list of records with plain values and NumPy arrays, without executing code."""
    from pytest_mlperf.adapters.datasets.files import pickled

    with opened(path, compressed=False) as file:
        return pickled.read_records(file, max_bytes=UNPACKED_LIMIT)


@contextlib.contextmanager
def opened(path: Path, *, compressed: bool) -> Iterator[Any]:
    """Open a pickle, through gzip if `compressed`; errors while reading it become RunError."""
    from pytest_mlperf.adapters.datasets.files.pickles import PickleError, UnsupportedPickleError

    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            yield file
    except UnsupportedPickleError as error:
        raise RunError("dataset", f"{path}: {error}") from error
    except PickleError as error:
        raise unreadable(path, str(error)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, f"the file is damaged ({error})") from error
    except MemoryError:
        raise too_large(path) from None


def too_large(path: Path) -> RunError:
    """Return the error for a file that does not fit into memory."""
    return wrong(
        path, "there is not enough memory to unpack it", "end other programs, or add memory"
    )


def unreadable(path: Path, reason: str) -> RunError:
    """Return the error that a table cannot be read, with the `reason` and the remedy."""
    return wrong(
        path, reason, "get the table from its source again, or correct the data set's path"
    )
