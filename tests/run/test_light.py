"""What an engine tells of its work moves the limit that its speed is set against."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.measurement import Run
from pytest_mlperf.run.light import with_light
from pytest_mlperf.suite.plan import Planned, plan_suite
from tests.reports.verdicts import run

SUITE = """
schema = 1
round = "v4.1"
division = "open"

[workload]
name = "stable-diffusion-xl"
scorer = {{ use = "clip_fid", clip = "c", inception = "i", statistics = "s" }}

[[engines]]
use = "null"
precision = "fp16"
accelerators = ["{accelerator}"]
techniques = {techniques}

[[scenarios]]
name = "Offline"
"""

H200 = {"gpu": "NVIDIA H200", "memory_gib": 141}


def planned(folder: Path, *techniques: str, accelerator: str = "H200") -> Planned:
    path = folder / "s.mlperf.toml"
    path.write_text(SUITE.format(accelerator=accelerator, techniques=[*techniques]), "utf-8")
    (found,) = plan_suite(path)
    return found


def share(measured: Run) -> float:
    found = measured.light[0].share
    assert found is not None
    return found


def lit(case: Planned, engine: dict[str, str], throughput: float = 1.0) -> Run:
    return with_light(run(throughput=throughput), case, H200, engine=engine, sizes={})


@pytest.mark.parametrize("key", ["generation.steps", "work.steps"])
def test_fewer_steps_are_less_work(tmp_path: Path, key: str) -> None:
    """Images of 10 steps at the same speed use about half as much of what the GPU can do."""
    case = planned(tmp_path, "fewer-steps")

    assert share(lit(case, {key: "10"})) < 0.6 * share(lit(case, {key: "20"}))


def test_shared_work_of_the_network_is_less_work(tmp_path: Path) -> None:
    """DeepCache runs a part of the network in most steps."""
    case = planned(tmp_path, "deepcache")

    half, whole = ({"work.network_share": share} for share in ("0.5", "1.0"))
    assert share(lit(case, half)) < 0.7 * share(lit(case, whole))


def test_what_is_not_declared_changes_no_limit(tmp_path: Path) -> None:
    """Or an engine could talk itself out of being impossible."""
    case = planned(tmp_path)

    assert share(lit(case, {"generation.steps": "1"})) == share(lit(case, {}))


def test_a_speed_beyond_the_limit_is_no_measurement(tmp_path: Path) -> None:
    found = lit(planned(tmp_path), {}, throughput=1e6)

    assert found.light[0].impossible
    assert len(found.invalid) == 1


def test_a_pretended_gpu_and_a_cpu_without_figures_have_no_limit(tmp_path: Path) -> None:
    case, measured = planned(tmp_path), run(throughput=1e6)
    pretended = with_light(measured, case, {**H200, "pretended": True}, engine={}, sizes={})
    on_cpu = with_light(measured, planned(tmp_path, accelerator="cpu"), {}, engine={}, sizes={})

    assert (pretended, on_cpu) == (measured, measured)
