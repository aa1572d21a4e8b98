"""The accepted scores of an engine and precision: what the paired accuracy rule compares with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.measurement import Subject

SCHEMA = 1
"""The version of the file format that this release reads and writes."""

GENERATION = "engine.generation."
"""Keys of a fingerprint that decide what is generated; they must equal the baseline's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """One time scores were accepted.

    Attributes:
        date: ISO 8601, UTC.
        commit: Commit of the tested project, or None outside git.
        reason: Why, in the user's words.
        action: What was done to the record.
        old: Aggregate scores by metric before; empty for the first entry.
        new: Aggregate scores by metric afterwards.
    """

    date: str
    commit: str | None
    reason: str
    action: Literal["record", "replace"]
    old: dict[str, float]
    new: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rerun:
    """How far two passes of one build are apart, in one metric.

    Attributes:
        sd: Standard deviation of the score of a whole pass, points.
        correlation: Of the two passes' scores, sample by sample; None where they do not vary.
        passes: Passes compared with the one that is kept.
    """

    sd: float
    correlation: float | None
    passes: int

    def __post_init__(self) -> None:
        if not 0 <= self.sd < math.inf or self.passes < 1:
            raise ValueError(f"re-run sd {self.sd!r} from {self.passes!r} passes")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyBaseline:
    """What an accuracy baseline file holds; the scores of each sample lie beside it.

    Attributes:
        schema: Version of the file format.
        round: MLPerf round, e.g. "v4.1".
        workload: MLPerf benchmark with its accuracy target.
        engine: Engine name of the suite.
        precision: The suite's word.
        scenario: The scenario whose pass was kept: the suite's first.
        samples: Samples of the data set, all of them scored.
        scores: Aggregate score by metric, as MLPerf's reference script prints it.
        steps: By metric, into how many steps a point is divided where each sample's score is kept.
        scores_sha256: Of the file with each sample's scores: the two belong together.
        scorer: What scored them, with its options, as JSON.
        identity: The hardware it was measured on; recorded, and no part of any key.
        fingerprint: Engine version, weights, options, data.
        history: Oldest first.
        rerun: By metric, how far further passes of this build were from the one that is kept;
            empty where none was made.
    """

    schema: int = SCHEMA
    round: str
    workload: str
    engine: str
    precision: str
    scenario: str
    samples: int
    scores: dict[str, float]
    steps: dict[str, int]
    scores_sha256: str
    scorer: str
    identity: dict[str, Property]
    fingerprint: dict[str, str]
    history: tuple[Accepted, ...]
    rerun: dict[str, Rerun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples!r}; at least 1 is needed")
        for name, value in self.scores.items():
            if not math.isfinite(value):
                raise ValueError(f"score {name!r} is {value!r}; must be finite")


def steps_per_point(values: Sequence[float | None]) -> int:
    """Return how finely scores are kept: 0.01 points, or 0.0001 for scores between 0 and 1."""
    return 10_000 if all(value is None or -1 <= value <= 1 for value in values) else 100


def kept(values: Sequence[float | None], steps: int) -> list[float | None]:
    """Return scores as a baseline keeps them; those of two passes are compared in this form."""
    return [None if value is None else round(value * steps) / steps for value in values]


def why_not_comparable(
    baseline: AccuracyBaseline, subject: Subject, scorer: str, samples: int
) -> str | None:
    """Return why scores must not be set against a baseline's, or None.

    Args:
        baseline: The accepted scores.
        subject: What was measured.
        scorer: What scored it, with its options, as JSON.
        samples: Samples of the data set.
    """
    before, now = baseline.fingerprint, subject.fingerprint
    if before.get("dataset") != now.get("dataset") or baseline.samples != samples:
        return f"data or prompts differ from the baseline's: {_data_change(before, now)}"
    settings = sorted(key for key in {*before, *now} if key.startswith(GENERATION))
    changed = [
        f"{key.removeprefix(GENERATION)} {before.get(key, 'absent')} → {now.get(key, 'absent')}"
        for key in settings
        if before.get(key) != now.get(key)
    ]
    if changed:
        return f"generation settings differ from the baseline's: {', '.join(changed)}"
    if baseline.scorer != scorer:
        return f"scored otherwise than the baseline: {baseline.scorer} → {scorer}"
    return None


def _data_change(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    old, new = before.get("dataset.options", ""), now.get("dataset.options", "")
    if old != new:
        return f"dataset options {old} → {new}"
    return f"content {before.get('dataset', '')[:12]} → {now.get('dataset', '')[:12]}"
