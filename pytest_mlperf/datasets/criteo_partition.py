"""Which user-item pairs make up a sample of MLPerf's DLRM-v2: 100 to 700 that follow each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mlperf.core.errors import RunError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QUANTILES = (100,) * 2 + (200,) * 12 + (300,) * 2 + (400, 500, 600, 700)
"""Pairs of a sample, by twentieths of probability.

Source: recommendation/dlrm_v2/pytorch/tools/dist_quantile.txt of
https://github.com/mlcommons/inference.
"""

SEED = 123
"""Of NumPy's first generator, which main.py there seeds and multihot_criteo.py draws from."""

_LINE = re.compile(r"(\d{1,12}), (\d{1,12}), (\d{1,12})")


def drawn_ends(rows: int) -> NDArray[np.int64]:
    """Draw the samples as MLPerf's reference does, until all rows are used.

    For the 89,137,319 official rows these are 330,067 samples, and the trace of them has the MD5
    that MLPerf publishes, 3db90209564316f2506c99cc994ad0b2.

    Args:
        rows: Pairs there are.

    Returns:
        Where each sample ends, shape (samples,); the last one ends with the rows.
    """
    import numpy as np

    # NumPy keeps the numbers of this generator as they are for good (NEP 19).
    draws = np.random.RandomState(SEED).randint(0, len(QUANTILES), -(-rows // QUANTILES[0]))
    return _cut(np.cumsum(np.array(QUANTILES, np.int64)[draws]), rows)


def even_ends(rows: int, pairs: int) -> NDArray[np.int64]:
    """Return the ends of samples that have the same number of pairs, but the last one."""
    import numpy as np

    return _cut(pairs * np.arange(1, -(-rows // pairs) + 1, dtype=np.int64), rows)


def _cut(ends: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Let the first sample that reaches the end of the rows be the last."""
    import numpy as np

    kept = ends[: int(np.searchsorted(ends, rows)) + 1]
    return np.minimum(kept, rows)


def read_ends(path: Path, rows: int) -> NDArray[np.int64]:
    """Read a trace of samples, a line "START, END, PAIRS" for each; END is not part of it.

    Raises:
        RunError: A line is malformed, does not follow the one before, or ends behind the rows.
    """
    import numpy as np

    ends, last = [], 0
    with path.open(encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            found = _LINE.fullmatch(line.rstrip("\r\n"))
            start, end, pairs = map(int, found.groups()) if found else (-1, -1, -1)
            if start != last or end - start != pairs or pairs < 1:
                raise RunError(
                    "dataset",
                    f'{path}:{number}: {line[:80].rstrip()!r} is not "START, END, PAIRS" with '
                    f"START = {last}, where the line before ended; get the trace from its source "
                    "again",
                )
            if end > rows:
                raise RunError(
                    "dataset",
                    f"{path}:{number}: the sample ends at pair {end:,}, but the data set has only "
                    f"{rows:,}; the trace belongs to other data",
                )
            last = end
            ends.append(end)
    if not ends:
        raise RunError(
            "dataset", f"{path}: the trace lists no sample; get it from its source again"
        )
    return np.array(ends, np.int64)
