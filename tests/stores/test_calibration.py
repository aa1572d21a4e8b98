"""A calibration is a file in git: sorted, whole, of one accelerator, for exactly one hardware."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.policy import calibrated_rule, rule_beside, rule_for
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


def test_it_lies_beside_the_baselines(tmp_path: Path) -> None:
    assert path_for(tmp_path, "8xH100") == tmp_path / "calibration" / "8xH100.json"


def test_what_is_saved_is_loaded(path: Path) -> None:
    save(path, WHOLE)

    assert load(path, "H200") == WHOLE
    text = path.read_text("utf-8")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"
    assert list(path.parent.iterdir()) == [path]


def test_none_is_none(path: Path) -> None:
    assert load(path, "H200") is None


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("machines", 0, "settings", "prior_df"), 0.5, "prior_df is 0.5"),
        (("machines", 0, "settings", "session_share"), 1.5, "session_share is 1.5"),
        (("machines", 0, "settings", "prior_sd"), "small", "must be a valid number"),
        (("machines", 0, "cases", 0, "runs"), [], "a case needs at least one run"),
        (
            ("machines", 0, "cases", 0, "runs", 0, "metrics", "throughput"),
            -1.0,
            "must be positive and finite",
        ),
        (("kind",), "baseline", "'calibration'"),
        (("extra",), 1, "is no key of the calibration"),
    ],
)
def test_a_defect_is_named_with_its_place_and_the_cure(
    path: Path, keys: tuple[str | int, ...], value: object, says: str
) -> None:
    content = place = document()
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content), "utf-8")

    with pytest.raises(BaselineError) as caught:
        load(path, "H200")
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("or delete it and calibrate anew: pytest-mlperf calibrate")


def test_a_copied_file_is_refused(path: Path) -> None:
    save(path, dataclasses.replace(WHOLE, accelerator="H100"))

    with pytest.raises(BaselineError, match=r"this is the calibration of H100, not of H200"):
        load(path, "H200")


def test_a_newer_releases_file_is_no_defect(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**document(), "schema": 2}), "utf-8")

    with pytest.raises(BaselineError, match="upgrade pytest-mlperf"):
        load(path, "H200")


def test_an_update_starts_from_nothing_and_keeps_other_machines(path: Path) -> None:
    other = Calibrated(identity={**H200, "gpus": 2}, settings=None, cases=())
    update(path, "H200", lambda old: old.having(WHOLE.machines[0]))
    update(path, "H200", lambda old: old.having(other))

    found = load(path, "H200")
    assert found is not None
    assert found.machines == (WHOLE.machines[0], other)


# --- the judge -----------------------------------------------------------------------------------


def test_the_judge_takes_it_on_exactly_this_hardware(path: Path) -> None:
    """With the note that a verdict shows; the number of runs stays the session's."""
    save(path, WHOLE)
    rule, note = calibrated_rule(path.parents[1], "H200", H200, 6)

    assert (rule.prior_df, rule.prior_sd, rule.session_share) == (5.5, 0.0042, 0.3)
    assert rule.max_runs == 6
    assert note == "noise as calibrated 2026-11-21: 1 case, 2 runs in 1 session"


@pytest.mark.parametrize(
    ("accelerator", "identity"),
    [
        ("H200", {**H200, "power_limit_w": 500.0}),
        ("H200", {"gpu": "H200"}),
        ("cpu", H200),
        ("H200-vs-cpu", H200),
    ],
)
def test_elsewhere_the_usual_noise_holds(
    path: Path, accelerator: str, identity: dict[str, Any]
) -> None:
    save(path, WHOLE)

    assert calibrated_rule(path.parents[1], accelerator, identity, 4) == (
        rule_for(accelerator, 4),
        None,
    )


@pytest.mark.parametrize("division", ["", "open"])
def test_a_case_is_judged_by_the_calibration_of_its_baselines_folder(
    path: Path, division: str
) -> None:
    save(path, WHOLE)
    file = path.parents[1] / division / "H200" / "quick" / "resnet50" / "Offline.ort.fp16.json"

    assert rule_beside(file, "H200", H200, 5) == calibrated_rule(path.parents[1], "H200", H200, 5)


def test_runs_without_settings_are_no_calibration(path: Path) -> None:
    machine = dataclasses.replace(WHOLE.machines[0], settings=None)
    save(path, dataclasses.replace(WHOLE, machines=(machine,)))

    assert calibrated_rule(path.parents[1], "H200", H200, 5) == (rule_for("H200"), None)


def test_a_damaged_calibration_is_no_missing_one(path: Path) -> None:
    """A verdict must not silently rest on other noise than was reviewed."""
    path.parent.mkdir(parents=True)
    path.write_text("{", "utf-8")

    with pytest.raises(BaselineError, match=re.escape(str(path))):
        calibrated_rule(path.parents[1], "H200", H200, 5)
