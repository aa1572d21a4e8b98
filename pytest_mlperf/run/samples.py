"""Let a plain list of samples stand for a data set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.extension import Dataset


class Samples:
    """A list of JSON values without ground truth."""

    def __init__(self, samples: Sequence[Any]) -> None:
        """Keep the samples.

        Raises:
            SuiteError: There is none, or one is no JSON value.
        """
        if not samples:
            raise SuiteError("the data set is an empty list; at least one sample is needed")
        try:
            self._text = json.dumps(samples, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise SuiteError(f"the samples of a list must be JSON values: {error}") from None
        self._samples = samples

    @property
    def digest(self) -> str:
        """Hex SHA-256 over the samples as JSON."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def input(self, index: int) -> Any:
        """Return a sample.

        Raises:
            IndexError: There is no such sample.
        """
        return self._samples[index]

    def reference(self, index: int) -> None:
        """Return None: a list has no ground truth."""


def as_dataset(built: object) -> Dataset:
    """Return what a data set's factory built, a list as `Samples`."""
    return Samples(built) if isinstance(built, list | tuple) else cast("Dataset", built)
