"""What a worker takes for a data set: a plain list stands for one, and a wrong one is refused."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Sequence
from typing import Any, cast

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.run.protocol import Expected

MOST = 2**30
"""Samples of a data set at most; MLPerf's largest has 89 million."""


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
        performance_samples: How many of them LoadGen draws from: the first ones.

    Raises:
        SuiteError: It told something else than finite numbers from 0 on, by name.
    """
    ask = getattr(dataset, "sizes", None)
    if not callable(ask):
        return {}
    given = ask(range(performance_samples))
    if not isinstance(given, dict) or not all(
        isinstance(name, str) and _is_size(value) for name, value in given.items()
    ):
        raise SuiteError(
            f"the data set's sizes are {reprlib.repr(given)}; finite numbers from 0 on, by name, "
            "are needed"
        )
    return {name: float(value) for name, value in given.items()}


def _is_size(value: object) -> bool:
    """Whether it is a number that a mean size can be, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(0 <= value < math.inf and value <= MOST * MOST)


def count(dataset: Dataset) -> int:
    """Return the number of samples.

    Raises:
        RunError: There are none, which LoadGen does not survive, or impossibly many.
    """
    found = len(dataset)
    if not found:
        raise RunError(
            "dataset",
            "the data set is empty; at least one sample is needed: correct its path and its "
            "options, or its __len__",
        )
    if found > MOST:
        raise RunError(
            "dataset",
            f"the data set has {found:,} samples by its __len__; {MOST:,} at most are measured",
        )
    return found


def require_same(dataset: Dataset, samples: int) -> None:
    """Refuse a data set that has another length than before.

    Raises:
        RunError: It has grown or shrunk.
    """
    if (now := len(dataset)) != samples:
        raise RunError(
            "dataset",
            f"the data set had {samples:,} samples, and has {now:,} now: its __len__ must stay the "
            "same while it is measured and scored",
        )


def check_count(found: int, expected: Expected) -> None:
    """Refuse a data set of another size.

    Raises:
        RunError: It has fewer or more samples than it must have.
    """
    if expected.samples is not None and found != expected.samples:
        raise RunError(
            "dataset",
            f"the data set has {found:,} samples, {expected.whose} has {expected.samples:,}: it is "
            "another one, or incomplete; correct its path, or for a part of it set count in the "
            'quick profile, or give the workload a name of its own with twin_of = "..."',
        )


def check_digest(found: object, expected: Expected) -> str:
    """Return the digest of a data set; refuse one with other content.

    Raises:
        RunError: It has none, or another one.
    """
    if not isinstance(found, str) or not found:
        raise RunError(
            "dataset",
            f"the data set's digest is {reprlib.repr(found)}; it must be a text that changes when "
            "the content does, such as a SHA-256: results of other data are told apart by it",
        )
    if expected.digest is not None and found != expected.digest:
        raise RunError(
            "dataset",
            f"the data set's digest is {found}, the suite asks for {expected.digest}: its content, "
            "its order or its options differ; get it from its source again, or correct digest",
        )
    return found
