"""Our stamps of first tokens, beside those that TensorRT-LLM keeps itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.streaming import median_and_tail, warning

EARLY_S = 1e-3
"""Our stamp may come this much before TensorRT-LLM's: two clocks are read. More is impossible."""


@dataclass(slots=True)
class Gaps:
    """How much later than TensorRT-LLM we saw each first token.

    Both times count from the request's start, ours just before it is handed over, so that ours is
    the longer one: it has the way through processes and queues in it, of which 1.4 ms at p50 and
    12 ms at p99 were reported.
    """

    _gaps_s: list[float] = field(default_factory=list)

    def add(self, index: int, ours_s: float, theirs_s: float) -> None:
        """Take one request's times to first token.

        Raises:
            RunError: Ours is the shorter one, so one of the two is wrong.
        """
        if ours_s < theirs_s - EARLY_S:
            raise RunError(
                "engine",
                f"sample {index} of the data set: its first token was here after "
                f"{ours_s * 1e3:.1f} ms, but TensorRT-LLM says that it made it after "
                f"{theirs_s * 1e3:.1f} ms; one of the two clocks is wrong, so no time to first "
                "token of this run can be trusted",
            )
        self._gaps_s.append(ours_s - theirs_s)

    def take(self) -> str:
        """Return a line for the log about what came since the last call; "" where nothing did."""
        found, self._gaps_s = self._gaps_s, []
        if not found:
            return ""
        median, tail = median_and_tail(found)
        return (
            f"engine tensorrt_llm: first tokens were here {median * 1e3:.1f} ms (p50) and "
            f"{tail * 1e3:.1f} ms (p99) after TensorRT-LLM stamped them itself, over "
            f"{len(found)} requests"
        ) + warning(median)
