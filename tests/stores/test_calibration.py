"""A calibration is a file in git: sorted, whole, of one accelerator, for exactly one hardware."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.policy import calibrated_rule, rule_for, rule_of_baseline
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.errors import BaselineError
from pytest_mlperf.core.noise.calibration import (
    Calibrated,
    CalibratedCase,
    Calibration,
    CalibrationRun,
    NoiseSettings,
)
from pytest_mlperf.stores.calibration import load, path_for, save, update
from tests.core.made import present
from tests.stores.spoilt import changed

H200: dict[str, Property] = {"gpu": "H200", "gpus": 1, "power_limit_w": 700.0, "mig": None}
SETTINGS = NoiseSettings(
    date="2026-11-21",
    prior_df=5.5,
    prior_sd=0.0042,
    prior_sd_low=0.003,
    prior_sd_high=0.006,
    session_share=0.3,
    max_runs=4,
    cases=1,
    runs=2,
    sessions=1,
)
RUN = CalibrationRun(
    number=1,
    session="20261121-100000-ab12",
    started="2026-11-21T10:00:00+00:00",
    metrics={"throughput": 1234.5},
    within_se={"throughput": 0.0056},
    duration_s=60.25,
    start_s=12.5,
)
CASE = CalibratedCase(
    case="resnet50-Offline-ort-fp16-H200",
    profile="quick",
    digest="0123456789abcdef",
    target_qps=25_000.0,
    limits={"throughput": 0.03},
    runs=(RUN, dataclasses.replace(RUN, number=2)),
)
WHOLE = Calibration(
    accelerator="H200",
    machines=(Calibrated(identity=dict(H200), settings=SETTINGS, cases=(CASE,)),),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return path_for(tmp_path / "baselines", "H200")


def document() -> Any:
    return json.loads(json.dumps(dataclasses.asdict(WHOLE)))


def test_a_saved_calibration_is_loaded_and_an_update_keeps_other_machines(
    path: Path, tmp_path: Path
) -> None:
    assert path == tmp_path / "baselines" / "calibration" / "H200.json"
    assert load(path, "H200") is None
    save(path, WHOLE)

    assert load(path, "H200") == WHOLE
    text = path.read_text("utf-8")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"
    assert list(path.parent.iterdir()) == [path]

    other = Calibrated(identity={**H200, "gpus": 2}, settings=None, cases=())
    update(path, "H200", lambda old: old.having(WHOLE.machines[0]))
    update(path, "H200", lambda old: old.having(other))

    assert present(load(path, "H200")).machines == (WHOLE.machines[0], other)


DEFECTS: list[tuple[str, object, str]] = [
    ("machines.0.settings.prior_df", 0.5, "prior_df is 0.5"),
    ("machines.0.settings.session_share", 1.5, "session_share is 1.5"),
    ("machines.0.settings.prior_sd", "small", "must be a valid number"),
    ("machines.0.cases.0.runs", [], "a case needs at least one run"),
    ("machines.0.cases.0.runs.0.metrics.throughput", -1.0, "must be positive and finite"),
    ("kind", "baseline", "'calibration'"),
    ("extra", 1, "is not a key of the calibration"),
]


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


def test_a_defect_is_named_with_its_place_and_the_cure(path: Path) -> None:
    """The file of another accelerator or a newer release is refused.

    A verdict must not silently rest on other noise than was reviewed.
    """
    for path_of_value, value, message in DEFECTS:
        write(path, changed(document(), path_of_value, value))
        with pytest.raises(BaselineError, match=f"^{re.escape(str(path))}.*{message}") as caught:
            load(path, "H200")
        assert str(caught.value).endswith(
            "or delete it and calibrate again: pytest-mlperf calibrate"
        )
        with pytest.raises(BaselineError, match=re.escape(str(path))):
            calibrated_rule(path.parents[1], "H200", H200, 5)
    for content, message in (
        ({**document(), "accelerator": "H100"}, "this is the calibration of H100, not of H200"),
        ({**document(), "schema": 2}, "upgrade pytest-mlperf"),
    ):
        write(path, content)
        with pytest.raises(BaselineError, match=message):
            load(path, "H200")


def test_the_judge_takes_it_on_exactly_this_hardware(path: Path) -> None:
    """With the note that a verdict shows; the number of runs stays the session's.

    Elsewhere and without settings the usual noise holds.
    """
    root = path.parents[1]
    save(path, WHOLE)
    rule, note = calibrated_rule(root, "H200", H200, 6)

    assert (rule.prior_df, rule.prior_sd, rule.session_share) == (5.5, 0.0042, 0.3)
    assert rule.max_runs == 6
    assert note == "noise as calibrated 2026-11-21: 1 case, 2 runs on 1 day"
    for division in (root, root / "open"):
        file = division / "H200" / "quick" / "resnet50" / "Offline.ort.fp16.json"
        assert rule_of_baseline(file, "H200", H200, 6) == (rule, note)
    for accelerator, identity in (
        ("H200", {**H200, "power_limit_w": 500.0}),
        ("H200", {"gpu": "H200"}),
        ("cpu", H200),
        ("H200-vs-cpu", H200),
    ):
        usual = (rule_for(accelerator, 4), None)
        assert calibrated_rule(root, accelerator, identity, 4) == usual
    machine = dataclasses.replace(WHOLE.machines[0], settings=None)
    save(path, dataclasses.replace(WHOLE, machines=(machine,)))
    assert calibrated_rule(root, "H200", H200, 5) == (rule_for("H200"), None)
