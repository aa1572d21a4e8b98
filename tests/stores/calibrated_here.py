"""A calibration of the machine that the tests run on."""

from __future__ import annotations

from pathlib import Path

from pytest_mlperf.core.noise.calibration import Calibrated, Calibration, NoiseSettings
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.stores import calibration

WORDS = "noise as calibrated 2026-11-21: 2 cases, 16 runs on 4 days"


def calibrate(root: Path, accelerator: str = "cpu") -> None:
    """Write the noise of an accelerator of this machine below a folder of baselines."""
    settings = NoiseSettings(
        date="2026-11-21",
        prior_df=8,
        prior_sd=0.06,
        prior_sd_low=0.05,
        prior_sd_high=0.07,
        session_share=0.4,
        max_runs=5,
        cases=2,
        runs=16,
        sessions=4,
    )
    identity = dict(detect(gpus=False).identity(accelerator))
    machine = Calibrated(identity=identity, settings=settings, cases=())
    file = Calibration(accelerator=accelerator, machines=(machine,))
    calibration.save(calibration.path_for(root, accelerator), file)
