"""Define the settings for judging and recording, and find the noise for rule R."""

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
    """Hold a session's settings for judging and recording.

    Attributes:
        max_runs: Maximum number of runs of a case; then it is INCONCLUSIVE.
        confirm: Which drops to confirm by interleaved runs: "always", "never", or "auto" for
            PROVISIONAL drops and drops from a baseline of few sessions.
        baselines: Folder of the baselines; None for the nearest `baselines/` above the suite.
        root: Folder that paths in messages are relative to.
        accept_cut: Whether a first accuracy baseline may have many empty or truncated answers.
        against: Other build to compare with; None to judge by the stored baseline.
        judged_pairs: Number of gated (case, metric) pairs in the session.
        accept_regression: Whether the update "replace" may record values worse than the baseline's.
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
        """Return a path as text for messages: relative to `root` if it is below it."""
        resolved, root = path.resolve(), self.root.resolve()
        return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(path)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Hold the number of (case, metric) pairs to judge; `once`: add no runs to undecided cases."""

    pairs: int = 1
    once: bool = False

    @property
    def is_joint(self) -> bool:
        """Whether the pairs are judged together, with a correction for multiplicity."""
        return self.pairs > MAX_LONE_PAIRS

    @property
    def joint_pairs(self) -> int:
        """Number of (case, metric) pairs that are judged jointly; 0 if each is judged alone."""
        return self.pairs if self.is_joint else 0


LONE_PHASE = Phase()


def gated_pairs(planned: Testable, kind: Kind, *, power: bool, meter: bool) -> int:
    """Return how many metrics of a test are gated; energy counts with `power` or a wall `meter`."""
    if isinstance(planned, PlannedPair):
        return 0  # pairs have no baseline
    if kind == Kind.PERFORMANCE:
        return len(planned.limits)
    source = meter or is_metered(planned) or (power and planned.case.accelerator != "cpu")
    return len(planned.efficiency_limits) if kind == Kind.EFFICIENCY and source else 0


@dataclass(frozen=True, kw_only=True)
class OtherMachineBaseline:
    """Hold the date of the most similar machine's baseline, and the differences to this machine."""

    date: str
    differences: tuple[Difference, ...]

    @property
    def in_words(self) -> str:
        """All differences as text: "baseline of DAY is for another machine: cores 64, here 2"."""
        return self._of_client or f"{self._begin} {'; '.join(map(_changed, self.differences))}"

    @property
    def short_text(self) -> str:
        """First difference between the baseline's machine and this one as text, for a headline."""
        more = len(self.differences) - 1
        return self._of_client or f"{self._begin} {_changed(self.differences[0])}" + (
            f" and {more} more" * bool(more)
        )

    @property
    def _of_client(self) -> str:
        """Message if the baseline is the client machine's, not the remote server's; else ""."""
        source = next((one for one in self.differences if one.name == SOURCE), None)
        if source is None or source.theirs is not None:
            return ""
        return (
            f"the baseline of {self.date} was stored for the client machine, not for the server's "
            "hardware; if the server has the same hardware as then, move the baseline: "
            "pytest-mlperf machine --adopt"
        )

    @property
    def _begin(self) -> str:
        return f"baseline of {self.date} is for another machine:"


def most_similar_machine(
    baseline: Baseline, identity: Mapping[str, Property]
) -> OtherMachineBaseline | None:
    """Return date and hardware differences of the most similar machine's record; None if none."""
    if (closest := nearest(baseline, identity)) is None:
        return None
    record, different = closest
    return OtherMachineBaseline(date=acceptance_date(record), differences=tuple(different))


def acceptance_date(record: Record) -> str:
    """Return the date of a record's last acceptance, else of its last run."""
    return record.history[-1].date if record.history else record.runs[-1].started[:10]


def _changed(difference: Difference) -> str:
    sides = (difference.theirs, difference.ours)
    theirs, ours = ("unknown" if value is None else value for value in sides)
    return f"{difference.name} {theirs}, here {ours}"


def former_baseline(
    loaded: Baseline | None, identity: Mapping[str, Property], root: Path, file: Path, case: Case
) -> OtherMachineBaseline | None:
    """Describe the most similar machine's baseline, else one for another GPU count, else None."""
    former = most_similar_machine(loaded, identity) if loaded else None
    if former is None and SOURCE in identity and (old := unnamed_server_baseline(root, file)):
        former = most_similar_machine(old, identity)
    return former or min(
        _records_of_other_counts(root, file, case),
        key=lambda other: str(other.differences[0].theirs),
        default=None,
    )


def unnamed_server_baseline(root: Path, file: Path) -> Baseline | None:
    """Return the baseline that an older release filed under "cpu" for a remote server, or None."""
    with contextlib.suppress(BaselineError):
        return baselines.load(root.joinpath("cpu", *file.relative_to(root).parts[1:]))
    return None


def _records_of_other_counts(root: Path, file: Path, case: Case) -> Iterator[OtherMachineBaseline]:
    """Yield date and accelerator name of the case's baselines for other counts of its GPU."""
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
            yield OtherMachineBaseline(date=acceptance_date(record), differences=(count,))


def rule_for(accelerator: str, max_runs: int = 5) -> RuleR:
    """Return rule R (the test of speed) with the default noise of an accelerator."""
    return uncalibrated(accelerator).rule(max_runs)


def calibrated(root: Path, accelerator: str, identity: Mapping[str, Property]) -> Calibrated | None:
    """Return the calibration for exactly this hardware, or None; for `root` see `closed_root`."""
    stored = calibration.load(calibration.path_for(root, accelerator), accelerator)
    return stored.of(identity) if stored else None


def closed_root(file: Path) -> Path:
    """Return the closed division's baselines folder, given a baseline of either division."""
    root = file.parents[3]
    return root.parent if root.name == "open" else root


def calibrated_rule(
    root: Path, accelerator: str, identity: Mapping[str, Property], max_runs: int
) -> tuple[RuleR, str | None]:
    """Return (rule R, source of its noise); the source is None without calibration."""
    machine = calibrated(root, accelerator, identity)
    if machine is None or machine.settings is None:
        return rule_for(accelerator, max_runs), None
    return machine.rule(machine.settings, max_runs), machine.settings.in_words


def rule_of_baseline(
    file: Path, accelerator: str, identity: Mapping[str, Property], max_runs: int
) -> tuple[RuleR, str | None]:
    """Return rule R for a baseline file, and the source of its noise; None without calibration."""
    return calibrated_rule(closed_root(file), accelerator, identity, max_runs)
