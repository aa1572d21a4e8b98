"""Our stamps of tokens beside those that vLLM keeps of each request itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.streaming import median_and_tail, warning

EARLY_S = 1e-3
"""Ours may come this much before vLLM's, for rounding: both read one clock. More is impossible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What we saw of one request.

    Attributes:
        index: Of the sample in the data set.
        tokens: Of its answer.
        first_s: When the first came, by `time.monotonic`.
        last_s: When the last came.
    """

    index: int
    tokens: int
    first_s: float
    last_s: float


@dataclass(slots=True)
class Gaps:
    """How much later than vLLM's own process we saw tokens: the way from there to here."""

    _first_s: list[float] = field(default_factory=list)
    _last_s: list[float] = field(default_factory=list)

    def add(self, seen: Seen, theirs: Any) -> None:
        """Hold one request against vLLM's RequestStateStats; None where it keeps none.

        Raises:
            RunError: The two cannot both be true.
        """
        if theirs is None or not theirs.first_token_ts:
            return
        first_s, last_s = theirs.first_token_ts, theirs.last_token_ts
        if theirs.num_generation_tokens != seen.tokens:
            raise _impossible(
                seen,
                f"vLLM counts {theirs.num_generation_tokens} tokens in the answer, and "
                f"{seen.tokens} came",
            )
        if last_s < first_s:
            raise _impossible(seen, "vLLM stamped its last token before its first")
        for which, ours_s, theirs_s, gaps in (
            ("first", seen.first_s, first_s, self._first_s),
            ("last", seen.last_s, last_s, self._last_s),
        ):
            if ours_s < theirs_s - EARLY_S:
                raise _impossible(
                    seen,
                    f"its {which} token was here {(theirs_s - ours_s) * 1e3:.1f} ms before vLLM "
                    "stamped it",
                )
            gaps.append(ours_s - theirs_s)

    def take(self) -> str:
        """Return a line for the log about what came since the last call; "" where nothing did."""
        first_s, last_s = self._first_s, self._last_s
        self._first_s, self._last_s = [], []
        if not first_s:
            return ""
        (first, first_tail), (last, last_tail) = median_and_tail(first_s), median_and_tail(last_s)
        return (
            f"engine vllm: tokens were here after vLLM's own stamps of them by, p50 and p99: "
            f"first token {first * 1e3:.1f} and {first_tail * 1e3:.1f} ms, last token "
            f"{last * 1e3:.1f} and {last_tail * 1e3:.1f} ms, over {len(first_s)} requests"
        ) + warning(first)


def _impossible(seen: Seen, what: str) -> RunError:
    return RunError(
        "engine",
        f"sample {seen.index} of the data set: {what}; one of the two is wrong, so no time of a "
        "token of this run can be trusted",
    )
