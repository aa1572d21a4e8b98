"""Convert an engine's answers between binary formats; "int64" and "int32" are token ids."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

TOKEN_CODES = {"int32": "i", "int64": "q"}

TIMED_RANKED_ROWS = ("ranked row", "predictions")
"""Form of dlrm-v3 in timed runs: TEST08 reads rows without labels, weights and their count."""

FLOAT_BYTES = 4


def converted(output: bytes, forms: Sequence[str]) -> bytes:
    """Convert an answer from format forms[0] ("int64") to forms[1]; ValueError if impossible."""
    if tuple(forms) == TIMED_RANKED_ROWS:
        count = candidates(output)
        return output[: FLOAT_BYTES * (2 + count)] if count else output
    if len(forms) != 2 or not set(forms) <= TOKEN_CODES.keys():
        raise ValueError(f"answers cannot be converted between the forms {', '.join(forms)}")
    source, target = forms
    ids = array(TOKEN_CODES[source])
    if len(output) % ids.itemsize:
        raise ValueError(
            f"an answer of {len(output)} bytes is not a whole number of {source} token ids"
        )
    ids.frombytes(output)
    try:
        return array(TOKEN_CODES[target], ids).tobytes()
    except OverflowError:
        raise ValueError(f"a token id does not fit into {target}") from None


def candidates(row: bytes) -> int:
    """Return the number of ranked candidates in an answer; 0 if it is not a complete ranked row.

    A complete row is float32: step, query, n predictions, n labels, n weights, and n.
    """
    count, rest = divmod(len(row) // FLOAT_BYTES - 3, 3)
    ends_so = count > 0 and row[-FLOAT_BYTES:] == array("f", [count]).tobytes()
    return count if ends_so and not rest else 0
