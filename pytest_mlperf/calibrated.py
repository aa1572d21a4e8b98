"""The rule that an accelerator's cases are judged by: as calibrated here, else as usual."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.judge.rule_r import RuleR
from pytest_mlperf.core.noise import uncalibrated
from pytest_mlperf.stores import calibration


def rule_for(accelerator: str, max_runs: int = 5) -> RuleR:
    """Return rule R with the noise that is expected of an accelerator (uncalibrated)."""
    return uncalibrated(accelerator).rule(max_runs)


def calibrated_rule(
    root: Path, accelerator: str, identity: Mapping[str, Property], max_runs: int
) -> tuple[RuleR, str | None]:
    """Return rule R for an accelerator, and where its noise comes from if it was calibrated.

    A calibration counts for exactly the hardware that it was made on.

    Args:
        root: Folder of the baselines; that of the closed division, also for open cases: noise is
            the machine's.
        accelerator: Class and count.
        identity: This machine's identity.
        max_runs: Most runs of a case.

    Raises:
        BaselineError: The calibration cannot be read or is damaged.
    """
    file = calibration.path_for(root, accelerator)
    found = calibration.load(file, accelerator)
    machine = found.of(identity) if found else None
    if machine is None or machine.settings is None:
        return uncalibrated(accelerator).rule(max_runs), None
    return machine.settings.rule(max_runs), machine.settings.in_words


def rule_beside(
    file: Path, accelerator: str, identity: Mapping[str, Property], max_runs: int
) -> tuple[RuleR, str | None]:
    """Return the rule for the case of a baseline file, by the calibration of the same folder.

    Args:
        file: ROOT/ACCELERATOR/PROFILE/WORKLOAD/CASE.json; ROOT/open/… in the open division.
        accelerator: Class and count.
        identity: This machine's identity.
        max_runs: Most runs of a case.

    Raises:
        BaselineError: The calibration cannot be read or is damaged.
    """
    root = file.parents[3]
    closed = root.parent if root.name == "open" else root
    return calibrated_rule(closed, accelerator, identity, max_runs)
