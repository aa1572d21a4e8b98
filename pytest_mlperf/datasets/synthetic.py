"""Numbered samples without content: what the null engine and first suites run on."""

from __future__ import annotations

import hashlib

from pytest_mlperf.core.errors import SuiteError


class SyntheticDataset:
    """Sample i is the number i, and so is its reference."""

    libraries = ()

    def __init__(self, path: str | None = None, *, samples: int = 1024, seed: int = 0) -> None:
        """Keep the size.

        Args:
            path: Not read.
            samples: Number of samples.
            seed: Tells two sets of equal size apart by their digest.

        Raises:
            SuiteError: There would be no sample.
        """
        self.look(path, samples=samples, seed=seed)
        self._samples = samples
        self._seed = seed

    @classmethod
    def look(cls, path: str | None = None, *, samples: int = 1024, seed: int = 0) -> None:
        """Check the size; there is no file to look for.

        Raises:
            SuiteError: There would be no sample.
        """
        del path, seed
        if samples < 1:
            raise SuiteError(f"synthetic data set: samples={samples!r}; at least 1 is needed")

    @property
    def digest(self) -> str:
        """Hex SHA-256 over the parameters, which decide the content."""
        return hashlib.sha256(f"synthetic {self._samples} {self._seed}".encode()).hexdigest()

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._samples

    def input(self, index: int) -> int:
        """Return the sample's number.

        Raises:
            IndexError: There is no such sample.
        """
        if not 0 <= index < self._samples:
            raise IndexError(f"sample {index!r} of {self._samples}")
        return index

    def reference(self, index: int) -> int:
        """Return the sample's number."""
        return self.input(index)
