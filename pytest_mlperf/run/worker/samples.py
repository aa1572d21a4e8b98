"""Check data sets and stage times in the worker; convert lists to data sets."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, cast

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset, Engine
from pytest_mlperf.core.job import Expected
from pytest_mlperf.core.metrics import STAGE, STAGE_METRIC

_unfit = partial(RunError, "dataset")

MAX_SAMPLES = 2**30
"""Maximum size of a data set, in samples; MLPerf's largest has 89 million."""


class Samples:
    """Wrap a list of JSON values as a data set without references."""

    def __init__(self, samples: Sequence[Any]) -> None:
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
        return len(self._samples)

    def input(self, index: int) -> Any:
        """Return the JSON value of a sample."""
        return self._samples[index]

    def reference(self, index: int) -> None:
        """Return None, as a list has no references."""


def as_dataset(built: object) -> Dataset:
    """Return a factory's result as a data set; a list becomes `Samples`."""
    return Samples(built) if isinstance(built, list | tuple) else cast("Dataset", built)


def sizes(dataset: Dataset, performance_samples: int) -> dict[str, float]:
    """Return the data set's mean sample sizes ("input_tokens"), by name; {} if it states none."""
    ask = getattr(dataset, "sizes", None)
    if not callable(ask):
        return {}
    means = ask(range(performance_samples))
    if not isinstance(means, dict) or not all(
        isinstance(name, str) and _is_size(value) for name, value in means.items()
    ):
        raise SuiteError(
            f"the data set's sizes are {reprlib.repr(means)}; they must be a table of finite "
            "numbers of at least 0: {'input_tokens': 512}"
        )
    return {name: float(value) for name, value in means.items()}


def fixed_lengths(dataset: Dataset) -> bool:
    """Return whether the data set prescribes the number of output tokens of its samples."""
    ask = getattr(dataset, "output_tokens", None)
    return callable(ask) and len(dataset) > 0 and ask(0) is not None


def groups_of(dataset: Dataset, indices: Sequence[int]) -> list[int] | None:
    """Return a group number for each sample, or None if all samples are independent."""
    ask = getattr(dataset, "group", None)
    if not callable(ask):
        return None
    numbers: dict[str | int, int] = {}
    groups = []
    for position, index in enumerate(indices):
        group = ask(index)
        if group is None:  # an independent sample gets its own number
            groups.append(len(indices) + position)
            continue
        if isinstance(group, bool) or not isinstance(group, str | int):
            raise SuiteError(
                f"the data set's group of sample {index} is {reprlib.repr(group)}; it must "
                "be a text, a whole number, or None for a sample without a group"
            )
        groups.append(numbers.setdefault(group, len(numbers)))
    return groups if len(set(groups)) < len(groups) else None


def _is_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(0 <= value < math.inf and value <= MAX_SAMPLES * MAX_SAMPLES)


def count(dataset: Dataset) -> int:
    """Return the number of samples; raise RunError if it is 0 or above `MAX_SAMPLES`."""
    samples = len(dataset)
    if not samples:
        raise _unfit(
            "the data set is empty; at least one sample is needed: correct its path and its "
            "options, or its __len__",
        )
    if samples > MAX_SAMPLES:
        raise _unfit(
            f"the data set has {samples:,} samples by its __len__; at most {MAX_SAMPLES:,} "
            "can be measured",
        )
    return samples


def require_same_length(dataset: Dataset, samples: int) -> None:
    """Raise RunError if the data set's length has changed."""
    if (length := len(dataset)) != samples:
        raise _unfit(
            f"the data set had {samples:,} samples, and has {length:,} now: its __len__ must stay "
            "the same while it is measured and scored",
        )


def check_count(samples: int, expected: Expected) -> None:
    """Raise RunError if the data set does not have the expected size."""
    if expected.samples is not None and samples != expected.samples:
        raise _unfit(
            f"the data set has {samples:,} samples, {expected.whose} has {expected.samples:,}: it "
            "is a different one, or incomplete; correct its path, or set count in the quick "
            'profile to use a part of it, or rename the workload and add twin_of = "..."',
        )


def check_digest(digest: object, expected: Expected) -> str:
    """Return the data set's digest; raise RunError if it is not the expected one."""
    if not isinstance(digest, str) or not digest:
        raise _unfit(
            f"the data set's digest is {reprlib.repr(digest)}; it must be a text that changes when "
            "the content does, such as a SHA-256, because it identifies the data of a result",
        )
    if expected.digest is not None and digest != expected.digest:
        raise _unfit(
            f"the data set's digest is {digest}, the suite asks for {expected.digest}: its "
            "content, its order or its options differ; get it from its source again, or "
            "correct digest",
        )
    return digest


MAX_STAGES = 16
SLACK_SHARE, SLACK_SECONDS = 0.01, 0.1
"""Tolerances by which stages may exceed the run, as an engine may work on after the last answer."""


def stages_of(engine: Engine, duration_s: float, processes: int = 1) -> dict[str, float]:
    """Return the engine's seconds by stage; RunError if they exceed `processes` · `duration_s`."""
    stages: object = engine.stage_seconds()
    if not isinstance(stages, Mapping):
        raise _refused(f"{type(stages).__name__}, not a table of seconds by name")
    if len(stages) > MAX_STAGES:
        raise _refused(f"{len(stages)} stages; return at most {MAX_STAGES}")
    for name, seconds in stages.items():
        if not (isinstance(name, str) and STAGE_METRIC.fullmatch(f"{STAGE}{name}")):
            raise _refused(
                f"the name {name!r:.60}; a name has up to 32 lower-case letters, digits and "
                "_, and begins with a letter"
            )
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if not (is_number and 0 <= seconds < math.inf):
            raise _refused(f"{seconds!r:.60} for {name!r}; it must be a number of at least 0")
    seconds_by_name = {name: float(seconds) for name, seconds in stages.items()}
    total_s, most_s = math.fsum(seconds_by_name.values()), processes * duration_s
    if total_s > most_s * (1 + SLACK_SHARE) + SLACK_SECONDS:
        raise _refused(
            f"{total_s:.3g} s in all, of a run of {duration_s:.3g} "
            f"s{(f' in {processes} processes' if processes > 1 else '')}; do not count the "
            "same time twice, or a batch's time for each of its samples"
        )
    return seconds_by_name


def _refused(problem: str) -> RunError:
    return RunError("engine", f"stage_seconds() returns {problem}")
