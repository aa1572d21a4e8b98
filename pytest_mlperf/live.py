"""Show that a measurement is alive: a line that renews itself, or a heartbeat in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import pytest

from pytest_mlperf.core.foreign_text import visible

HEARTBEAT_S = 60.0
"""Seconds between two lines where the output is no terminal, such as a CI log."""

RENEW_S = 0.5


class Live:
    """Writes progress past pytest's capture; does nothing in an xdist worker."""

    def __init__(self, config: pytest.Config) -> None:
        """Find the terminal, if there is one to write to."""
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        reporter: Any = config.pluginmanager.getplugin("terminalreporter")
        worker = hasattr(config, "workerinput")
        quiet = config.get_verbosity() < 0
        self._writer: Any = None if worker or quiet or reporter is None else reporter._tw
        self._on_terminal = bool(reporter and reporter.isatty)
        self._last = 0.0
        self._shown = False

    def __enter__(self) -> Self:
        """Start a test's measurement: the first heartbeat is due after a full interval."""
        self._last = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the line and go back to the end of pytest's own, one above."""
        if self._shown:
            column = self._writer.width_of_current_line + 1
            self._write(f"\r\x1b[K\x1b[A\x1b[{column}G")
            self._shown = False

    def show(self, line: str) -> None:
        """Show a line of progress when one is due."""
        now = time.monotonic()
        if self._writer is None or now - self._last < self._interval:
            return
        self._last, line = now, visible(line)
        if self._on_terminal:
            width = self._writer.fullwidth - 1
            start = "\r\x1b[K" if self._shown else "\n"
            self._write(start + line[:width])
            self._shown = True
        else:
            self._write(f"\nmlperf: {line}\n")

    @property
    def _interval(self) -> float:
        return RENEW_S if self._on_terminal else HEARTBEAT_S

    def _write(self, text: str) -> None:
        if self._capture is None:
            self._put(text)
            return
        with self._capture.global_and_fixture_disabled():
            self._put(text)

    def _put(self, text: str) -> None:
        self._writer._file.write(text)
        self._writer._file.flush()
