"""Define the settings by which verdicts are reached and recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_mlperf.core.baseline import Baseline, Difference, Property, Record, nearest
from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.noise import uncalibrated
from pytest_mlperf.core.noise.calibration import Calibrated
from pytest_mlperf.core.server.identity import SOURCE
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.judge.multiplicity import MAX_LONE_PAIRS
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.stores import baselines, calibration
from pytest_mlperf.suite.pairs import PlannedPair, Testable
from pytest_mlperf.suite.plan import is_metered
from pytest_mlperf.suite.tables import BaselineEngine

Update = Literal["missing", "append", "replace"]

Confirm = Literal["auto", "always", "never"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Hold the settings of verdicts and baselines.

    Attributes:
        max_runs: Largest number of runs of a case before INCONCLUSIVE.
        confirm: Which drops to confirm by interleaved runs: "auto" for PROVISIONAL drops and those
            from a baseline of few sessions, "always" or "never".
        baselines: Folder of the baselines; None for the nearest `baselines/` above the suite.
        root: Root folder of relative paths in messages.
        accept_cut: Whether a first accuracy baseline may have many empty or cut answers.
        against: Other build to interleave with; None to judge by the stored baseline.
        judged_pairs: Number of gated pairs of case and metric in the session.
        accept_regression: Whether "replace" may record values that are worse than the baseline's.
    """

    update: Update | None = None
    baseline_runs: int = 8
    reason: str | None = None
    max_runs: int = 5
    confirm: Confirm = "auto"
    baselines: Path | None = None
    accuracy: Path
    root: Path
    runs_dir: Path | None = None
    accept_cut: bool = False
    accept_regression: bool = False
    against: BaselineEngine | None = None
    judged_pairs: int = 1

    def shown(self, path: Path) -> str:
        """Return a path as messages show it: relative to the root if it is below it."""
        resolved, root = path.resolve(), self.root.resolve()
        return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(path)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Describe a phase of a session; a session that judges many pairs jointly has two."""

    pairs: int = 1
    once: bool = False

    @property
    def many(self) -> bool:
        """Whether the pairs are judged jointly at the end of the session."""
        return self.pairs > MAX_LONE_PAIRS

    @property
    def together(self) -> int:
        """Number of jointly judged pairs, 0 if each is judged separately."""
        return self.pairs if self.many else 0


LONE_PHASE = Phase()


def gated_pairs(planned: Testable, kind: Kind, *, power: bool, meter: bool) -> int:
    """Return how many jointly judged pairs of case and metric one test adds."""
    if isinstance(planned, PlannedPair):
        return 0  # pairs have no baseline
    if kind == Kind.PERFORMANCE:
        return len(planned.limits)
    source = meter or is_metered(planned) or (power and planned.case.accelerator != "cpu")
    return len(planned.efficiency_limits) if kind == Kind.EFFICIENCY and source else 0


@dataclass(frozen=True, kw_only=True)
class Formerly:
    """Describe the baseline of the machine most like this one, which has no baseline."""

    date: str
    differences: tuple[Difference, ...]

    @property
    def in_words(self) -> str:
        """All differences: "baseline of DAY is for another machine: cores 64, here 2"."""
        return self._of_client or f"{self._begin} {'; '.join(map(_changed, self.differences))}"

    @property
    def brief(self) -> str:
        """First difference of the machines, for a headline."""
        more = len(self.differences) - 1
        return self._of_client or f"{self._begin} {_changed(self.differences[0])}" + (
            f" and {more} more" * bool(more)
        )

    @property
    def _of_client(self) -> str:
        """Message if a baseline names the client instead of its server elsewhere, or ""."""
        source = next((one for one in self.differences if one.name == SOURCE), None)
        if source is None or source.theirs is not None:
            return ""
        return (
            f"baseline of {self.date} names the client, not the hardware of the server; if that "
            "is the same now, move the baseline: pytest-mlperf machine --adopt"
        )

    @property
    def _begin(self) -> str:
        return f"baseline of {self.date} is for another machine:"


def formerly(baseline: Baseline, identity: Mapping[str, Property]) -> Formerly | None:
    """Return date and differences of the record nearest to a machine; None without a record."""
    closest = nearest(baseline, identity)
    return Formerly(date=accepted(closest[0]), differences=tuple(closest[1])) if closest else None


def accepted(record: Record) -> str:
    """Return the day on which a record was accepted last."""
    return record.history[-1].date if record.history else record.runs[-1].started[:10]


def _changed(difference: Difference) -> str:
    sides = (difference.theirs, difference.ours)
    theirs, ours = ("unknown" if value is None else value for value in sides)
    return f"{difference.name} {theirs}, here {ours}"


def applied_before(
    loaded: Baseline | None, identity: Mapping[str, Property], root: Path, file: Path, case: Case
) -> Formerly | None:
    """Return the nearest baseline of a case, else of another accelerator count, or None."""
    former = formerly(loaded, identity) if loaded else None
    if former is None and SOURCE in identity and (old := of_unnamed(root, file)):
        former = formerly(old, identity)
    return former or min(
        _of_other_counts(root, file, case),
        key=lambda other: str(other.differences[0].theirs),
        default=None,
    )


def of_unnamed(root: Path, file: Path) -> Baseline | None:
    """Return the baseline that an older release stored under "cpu" for a server, or None."""
    with contextlib.suppress(BaselineError):
        return baselines.load(root.joinpath("cpu", *file.relative_to(root).parts[1:]))
    return None


def _of_other_counts(root: Path, file: Path, case: Case) -> Iterator[Formerly]:
    """Yield, for other counts of the same accelerator, that the case has a baseline there."""
    _, kind = split(case.accelerator)
    behind = file.relative_to(root).parts[1:]
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name == case.accelerator or split(folder.name)[1] != kind:
            continue
        try:
            baseline = baselines.load(folder.joinpath(*behind))
        except BaselineError:
            continue  # the damaged file is not needed
        for record in baseline.records[:1] if baseline else ():
            count = Difference(name="accelerator", theirs=folder.name, ours=case.accelerator)
            yield Formerly(date=accepted(record), differences=(count,))


def rule_for(accelerator: str, max_runs: int = 5) -> RuleR:
    """Return rule R (the test of speed) with an accelerator's default, uncalibrated noise."""
    return uncalibrated(accelerator).rule(max_runs)


def calibrated(root: Path, accelerator: str, identity: Mapping[str, Property]) -> Calibrated | None:
    """Return the calibration of exactly this hardware, or None; `root` is `closed_root`."""
    stored = calibration.load(calibration.path_for(root, accelerator), accelerator)
    return stored.of(identity) if stored else None


def closed_root(file: Path) -> Path:
    """Return the folder of the closed division's baselines for a file of either division."""
    root = file.parents[3]
    return root.parent if root.name == "open" else root


def calibrated_rule(
    root: Path, accelerator: str, identity: Mapping[str, Property], max_runs: int
) -> tuple[RuleR, str | None]:
    """Return rule R for an accelerator, and the source of its noise if it was calibrated."""
    machine = calibrated(root, accelerator, identity)
    if machine is None or machine.settings is None:
        return rule_for(accelerator, max_runs), None
    return machine.rule(machine.settings, max_runs), machine.settings.in_words


def rule_beside(
    file: Path, accelerator: str, identity: Mapping[str, Property], max_runs: int
) -> tuple[RuleR, str | None]:
    """Return `calibrated_rule` for the folder of baselines that contains `file`."""
    return calibrated_rule(closed_root(file), accelerator, identity, max_runs)
