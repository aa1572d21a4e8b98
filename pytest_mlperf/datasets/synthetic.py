"""Numbered samples without content: what the null engine and first suites run on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.datasets.files import FileDataset, FileOptions


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(FileOptions):
    """How many samples there are.

    Attributes:
        path: Not read.
        samples: Number of samples.
        seed: Tells two sets of equal size apart by their digest.
    """

    path: str | None = None
    samples: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SuiteError(
                f"synthetic data set: samples={self.samples!r}; at least 1 is needed",
                option="samples",
            )

    def find(self) -> None:
        """There is no file to look for."""


class SyntheticDataset(FileDataset[int]):
    """Sample i is the number i, and so is its reference."""

    options = SyntheticOptions

    def _read(self, asked: SyntheticOptions, files: None) -> None:
        del files
        self._samples = range(asked.samples)
        self._seed = asked.seed

    @property
    def digest(self) -> str:
        """Hex SHA-256 over the parameters, which decide the content."""
        return hashlib.sha256(f"synthetic {len(self)} {self._seed}".encode()).hexdigest()

    def input(self, index: int) -> int:
        return self._sample(index)

    def reference(self, index: int) -> int:
        return self._sample(index)
