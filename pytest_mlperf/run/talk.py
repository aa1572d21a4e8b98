"""Progress of a worker in a line that a user reads."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_mlperf.run.protocol import Event
from pytest_mlperf.suite.plan import Planned


class Talk:
    """Turns a worker's events into progress lines, and keeps the rate it used."""

    def __init__(self, planned: Planned, number: int, show: Callable[[str], None]) -> None:
        self._head = f"{planned.case.id} run {number}"
        self._show = show
        self._expected: dict[str, int] = {}
        self.target_qps: float | None = None
        self.probed = False
        self.warm_s = 0.0

    def show(self, text: str) -> None:
        """Show a line of progress under the case's name."""
        self._show(f"{self._head}: {text}")

    def on_event(self, event: Event) -> None:
        """Take an event of the worker."""
        match event:
            case {"event": "loading"}:
                self.show("loading")
            case {"event": "loaded", "load_s": seconds}:
                self.show(f"loaded in {seconds:.1f} s, warming up")
            case {"event": "warmed"}:
                self.warm_s = time.monotonic()
            case {"event": "probed", "target_qps": rate}:
                self.target_qps, self.probed = float(rate), True
            case {"event": "running", "phase": phase, "expected": expected, "settings": settings}:
                self._expected[phase] = expected
                if phase == "performance" and (rate := settings.get("target_qps")):
                    self.target_qps = float(rate)
            case {"event": "progress", "phase": phase, "done": done, "elapsed_s": elapsed}:
                of = f" of {self._expected[phase]:,}" if phase in self._expected else ""
                rate = done / elapsed if elapsed > 0 else 0.0
                self.show(f"{phase} {done:,}{of} samples, {rate:,.0f}/s")
