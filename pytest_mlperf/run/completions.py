"""What may be wrong with what an engine hands to `done`, in words."""

from __future__ import annotations

from collections.abc import Sequence

MOST_TOKENS = 2**31 - 1
"""Output tokens of one sample at most: a thousand times what any model writes."""


def token_fault(ids: Sequence[int], n_tokens: Sequence[int] | None) -> str:
    """Return what is wrong with the counts of a run that times tokens, "" where nothing is."""
    if n_tokens is None:
        return "done() was given no n_tokens; a run with token latencies needs one per id"
    if wrong := count_fault(ids, n_tokens):
        return wrong
    # LoadGen divides by n_tokens - 1 to get the time per output token.
    if len(n_tokens) and (fewest := min(n_tokens)) < 2:
        return f"done() was given n_tokens {fewest!r}; LoadGen needs at least 2 tokens per sample"
    return ""


def count_fault(ids: Sequence[int], n_tokens: Sequence[int]) -> str:
    """Return what is wrong with counts of tokens, "" where nothing is."""
    if len(n_tokens) != len(ids):
        return f"done() was given {len(ids)} ids but {len(n_tokens)} n_tokens"
    if len(n_tokens) and (fewest := min(n_tokens)) < 0:
        return f"done() was given n_tokens {fewest!r}; a count of tokens is at least 0"
    if len(n_tokens) and (most := max(n_tokens)) > MOST_TOKENS:
        return f"done() was given n_tokens {most!r}; no sample has more than {MOST_TOKENS:,} tokens"
    return ""


def output_fault(ids: Sequence[int], outputs: Sequence[bytes] | None) -> str:
    """Return what is wrong with the outputs of an accuracy run, "" where nothing is."""
    if outputs is None:
        return "done() was given no outputs; an accuracy run needs one bytes object per id"
    if len(outputs) != len(ids):
        return f"done() was given {len(ids)} ids but {len(outputs)} outputs"
    wrong = next((output for output in outputs if type(output) is not bytes), None)
    if wrong is not None:
        return f"done() was given an output of type {type(wrong).__name__!r}; it must be bytes"
    return ""
