"""Provide numbered dummy samples for the null engine and for first suites."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_mlperf.core.errors import SuiteError


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions:
    """Options of the synthetic data set.

    Attributes:
        path: Accepted, but not used: samples are generated.
        samples: Number of samples.
        seed: Changes the digest, so that data sets of equal size differ.
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


class SyntheticDataset:
    """Numbered dummy samples: sample i and its reference are the number i."""

    libraries: ClassVar[tuple[str, ...]] = ()
    options = SyntheticOptions

    @classmethod
    def look(cls, **options: Any) -> None:
        """Check the options; synthetic data needs no file."""
        cls.options(**options)

    def __init__(self, **options: Any) -> None:
        self._asked = SyntheticOptions(**options)

    def __len__(self) -> int:
        return self._asked.samples

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the parameters, which determine the content."""
        return hashlib.sha256(f"synthetic {len(self)} {self._asked.seed}".encode()).hexdigest()

    def input(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index!r} of {len(self)}")
        return index

    def reference(self, index: int) -> int:
        return self.input(index)
