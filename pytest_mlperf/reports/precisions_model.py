"""The rows of the precision table: entries with their scores and speed, in blocks to compare."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.core.verdict import Outcome


@dataclass(frozen=True, kw_only=True)
class Score:
    """One score of an entry; differences are in the score's own points.

    Attributes:
        metric: Its name.
        value: The score over all samples that were judged.
        needed: What the gate asks for; None where none was evaluated.
        change: Against the reference entry; None for that itself, and where other samples were
            judged.
        low, high: The bounds that decided the paired comparison with the reference entry.
        outcome: The worse word of gate and paired rule; None where neither was asked.
        lower: The score is better when lower.
    """

    metric: str
    value: float
    needed: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    outcome: Outcome | None = None
    lower: bool = False


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Throughput or latency of an entry.

    Attributes:
        metric: Its name.
        value: Geometric mean of the runs, SI units.
        runs: How many those are.
        ratio: How many times better than the reference entry, whatever the metric's direction;
            None where there is nothing comparable.
        low, high: The worst and best quotient of two runs; None unless both have several.
    """

    metric: str
    value: float
    runs: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One engine entry in one precision.

    Attributes:
        engine, precision: Its names in the suite.
        scores: What its accuracy test measured, gated scores only where any is.
        accuracy: The word of that test; None where it was not run.
        samples, total: Samples scored and in the data set; None where nothing was scored.
        speed: What its performance test measured, or None.
        performance: The word of that test; None where it was not run.
        notes: Sentences about it.
    """

    engine: str
    precision: str
    scores: tuple[Score, ...] = ()
    accuracy: Outcome | None = None
    samples: int | None = None
    total: int | None = None
    speed: Speed | None = None
    performance: Outcome | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The engine's name with the precision, as suites write it."""
        return f"{self.engine}-{self.precision}"


@dataclass(frozen=True, kw_only=True)
class Block:
    """What is compared with one reference entry.

    Attributes:
        session: Id of the session that measured it.
        workload, scenario, accelerator, profile: What all entries share.
        reference: The entry that the others are compared with; one of `entries`.
        entries: All of them, the widest precision first.
        metric: What their speed is.
    """

    session: str
    workload: str
    scenario: str
    accelerator: str
    profile: str
    reference: Entry
    entries: tuple[Entry, ...]
    metric: str

    def label(self, entry: Entry) -> str:
        """Return what an entry is called here: its precision alone where that tells it apart."""
        several = len({each.engine for each in self.entries}) > 1
        return entry.name if several else entry.precision

    @property
    def against(self) -> str:
        """What the reference is called here."""
        return self.label(self.reference)
