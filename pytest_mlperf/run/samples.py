"""What a worker takes for a data set: a plain list stands for one, and a wrong one is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.run.protocol import Expected


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


def sizes(dataset: Dataset, performance_samples: int) -> dict[str, float]:
    """Return the means that decide the work of a performance run, empty where none are told.

    Args:
        dataset: The samples; one that has a method `sizes` tells the means of some of them.
        performance_samples: How many LoadGen draws from: the first ones.

    Raises:
        SuiteError: It told something else than numbers by name.
    """
    ask = getattr(dataset, "sizes", None)
    if not callable(ask):
        return {}
    told = ask(range(min(performance_samples, len(dataset))))
    if not isinstance(told, dict) or not all(
        isinstance(name, str) and isinstance(value, int | float) for name, value in told.items()
    ):
        raise SuiteError(f"the data set's sizes are {told!r}; numbers by name are needed")
    return {name: float(value) for name, value in told.items()}


def check_count(dataset: Dataset, expected: Expected) -> None:
    """Refuse a data set of another size.

    Raises:
        RunError: It has fewer or more samples than it must have.
    """
    found = len(dataset)
    if expected.samples is not None and found != expected.samples:
        raise RunError(
            "dataset",
            f"the data set has {found:,} samples, {expected.whose} has {expected.samples:,}: it is "
            "another one, or incomplete; correct its path, or for a part of it set count in the "
            'quick profile, or give the workload a name of its own with twin_of = "..."',
        )


def check_digest(found: str, expected: Expected) -> None:
    """Refuse a data set with other content.

    Raises:
        RunError: Its digest is another one.
    """
    if expected.digest is not None and found != expected.digest:
        raise RunError(
            "dataset",
            f"the data set's digest is {found}, the suite asks for {expected.digest}: its content, "
            "its order or its options differ; get it from its source again, or correct digest",
        )
