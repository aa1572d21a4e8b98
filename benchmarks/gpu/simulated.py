"""Engines that let the simulated GPU show that it works while they are loaded.

A run on a GPU whose power, utilisation, memory and processes all stay as they were is INVALID: the
work was done elsewhere. In a rehearsal it is, on the CPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.adapters.engines.torch.diffusion import DiffusionEngine
from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine
from pytest_mlperf.core.extension import Engine

WORKING = "util 95 40\n"


class Seen(Engine):
    """Comes before an engine among the bases of a class."""

    def __enter__(self) -> Self:
        """Say that the GPU is busy."""
        self._scenario = Path(os.environ["FAKE_NVML_SCENARIO"])
        self._rest = self._scenario.read_text("utf-8")
        self._write(self._rest + WORKING)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        """Say that it no longer is."""
        super().__exit__(None, None, None)
        self._write(self._rest)

    def _write(self, text: str) -> None:
        new = self._scenario.with_suffix(".new")
        new.write_text(text, "utf-8")
        new.replace(self._scenario)


class Torch(Seen, TorchEngine):
    """The engine "torch"."""


class TorchModule(Seen, TorchModuleEngine):
    """The engine "torch-module"."""


class Diffusion(Seen, DiffusionEngine):
    """The engine "torch-diffusion"."""


ENGINES = {"torch": Torch, "torch-module": TorchModule, "torch-diffusion": Diffusion}
"""By the name that a suite uses."""
