"""Convert answers from the form that an engine returns to the form that MLPerf's scripts read.

A pair of forms names both: ("int64", "int32") are types of token ids, little-endian.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

TOKEN_CODES = {"int32": "i", "int64": "q"}
"""Type codes of `array` by type of a token id."""

TIMED_RANKED_ROWS = ("ranked row", "predictions")
"""Forms of dlrm-v3 in timed runs: TEST08 reads rows without labels, weights and their count."""

FLOAT_BYTES = 4


def converted(output: bytes, forms: Sequence[str]) -> bytes:
    """Return an answer of the first form in the second one.

    Raises:
        ValueError: It has no such form, or the second one cannot hold it.
    """
    if tuple(forms) == TIMED_RANKED_ROWS:
        return _without_labels(output)
    if len(forms) != 2 or not set(forms) <= TOKEN_CODES.keys():
        raise ValueError(f"no conversion is known between the forms {', '.join(forms)}")
    source, target = forms
    ids = array(TOKEN_CODES[source])
    if len(output) % ids.itemsize:
        raise ValueError(f"{len(output)} bytes are no whole number of {source} token ids")
    ids.frombytes(output)
    try:
        return array(TOKEN_CODES[target], ids).tobytes()
    except OverflowError:
        raise ValueError(f"a token id is beyond the range of {target}") from None


def _without_labels(row: bytes) -> bytes:
    """Return step, query and predictions of a float32 row; other answers as they are.

    A whole row is step, query, n predictions, n labels, n weights, and n.
    """
    count, rest = divmod(len(row) // FLOAT_BYTES - 3, 3)
    if rest or count < 1 or row[-FLOAT_BYTES:] != array("f", [count]).tobytes():
        return row
    return row[: FLOAT_BYTES * (2 + count)]
