"""An engine in whose process the wall clock is set while it works."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytest_mlperf.builtin.null import NullEngine
from pytest_mlperf.core.extension import Sink

_real = time.time


class ClockSetter(NullEngine):
    """Sets the clock of its own process on by `step_s` with each query."""

    ahead_s, step_s = 0.0, 0.05

    def submit(self, ids: Sequence[int], samples: Sequence[int], sink: Sink) -> None:
        """Set the clock and answer."""
        cls = ClockSetter
        cls.ahead_s += self.step_s
        time.time = lambda: _real() + cls.ahead_s
        super().submit(ids, samples, sink)
