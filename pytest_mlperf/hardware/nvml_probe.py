"""One quantity of one GPU: its ways, and the reaction to each failure of `hardware.nvml`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_mlperf.hardware.nvml import (
    ADVICE,
    GONE,
    LASTING,
    NO_PERMISSION,
    NOT_SUPPORTED,
    REFUSALS,
    RETRIES,
    UNINITIALIZED,
    UNKNOWN_WAY,
    Device,
    Lost,
    UnavailableNvml,
    words,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to read a quantity.

    Attributes:
        name: For records and messages: function or field.
        read: From the pynvml module and a handle; None is a missed sample.
    """

    name: str
    read: Callable[[Any, Any], Any]


@dataclass(kw_only=True, slots=True)
class Probe:
    """One quantity of one GPU.

    Attributes:
        device: The GPU.
        name: The quantity.
        ways: What is still to be tried, best first; the first is asked.
        way: The one that answered.
        why: Why there is none: the quantity was given up.
        forbidden: That is for lack of permission, so that no other way is to stand in for it.
        missed: Reads without an answer since the first one that had one.
    """

    device: Device
    name: str
    ways: Sequence[Way]
    way: str | None = None
    why: str | None = None
    forbidden: bool = False
    missed: int = 0
    _refused: int = 0
    _well: bool = True
    _last: str = "nothing"

    def read(self) -> Any:
        """Return the quantity; None where it was missed, or has been given up.

        Raises:
            Lost: The GPU is gone.
        """
        nvml = self.device.library.nvml
        while self.ways and self.why is None:
            try:
                value = self._ask(self.ways[0])
            except nvml.NVMLError as error:
                if not self._tries_next(error):
                    return None
                continue
            self._well = value is not None
            if value is None:
                self.missed += 1
            else:
                self.way, self._refused = self.ways[0].name, 0
            return value
        return None

    def settle(self) -> None:
        """Give up what has not answered yet, after it had its chances."""
        if self.way is None and self.why is None:
            self.why = f"{self.ways[0].name} never answered, last with: {self._last}"

    def _ask(self, way: Way) -> Any:
        """Read one way, again where the failure may pass.

        A quantity that failed last time is asked only once, lest a dead sensor takes all the time.
        """
        nvml, device = self.device.library.nvml, self.device
        left = RETRIES if self._well else 0
        while True:
            try:
                return way.read(nvml, device.handle)
            except nvml.NVMLError as error:
                code = error.value
                if code in GONE:
                    raise Lost(ADVICE.get(code, words(error)), code) from None
                if code == UNINITIALIZED:
                    self._begin_again()
                elif code in LASTING or not left:
                    raise
                left -= 1

    def _begin_again(self) -> None:
        nvml = self.device.library.nvml
        try:
            if self.device.library.begin_again(self.device.starts):
                self.device.find_again()
                return
        except (nvml.NVMLError, UnavailableNvml) as error:
            raise Lost(f"NVML was shut down and did not start again: {error}", 1) from None
        raise Lost("NVML was shut down twice by something in this process", UNINITIALIZED)

    def _tries_next(self, error: Any) -> bool:
        """Take note of a failure; True when another way is to be tried now."""
        code, self._well, self._last = error.value, False, words(error)
        if code == NO_PERMISSION:
            self.why, self.forbidden = f"{self.ways[0].name}: {words(error)}", True
            return False
        if self.way is not None:
            self.missed += 1
            return False
        if code not in UNKNOWN_WAY:
            self._refused = self._refused + 1 if code == NOT_SUPPORTED else 0
            if self._refused < REFUSALS:
                return False
        self._refused, self._well = 0, True
        failed, *self.ways = self.ways
        if not self.ways:
            self.why = f"{failed.name}: {words(error)}"
        return True
