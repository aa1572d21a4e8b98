"""Times of stages: of the timed window alone, and only such as can be."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Engine
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.run.child.protocol import ReplicaSpec
from pytest_mlperf.run.worker.samples import MAX_STAGES, stages_of
from tests.run.harness import FEWER, error_of, only, run_to_end, settings, spec
from tests.run.test_reading import MISSED, read

ENGINE = "tests.run.engines_in_stages:Stages"


class Says(Engine):
    def __init__(self, stages: object) -> None:
        self._stages = stages

    def stage_seconds(self) -> Mapping[str, float]:
        return self._stages  # type: ignore[return-value]


REFUSED: list[tuple[object, str]] = [
    ({"unet": math.nan}, "returns nan for 'unet'; it must be a number of at least 0"),
    ({"unet": math.inf}, "returns inf for 'unet'"),
    ({"unet": -1e-9}, "returns -1e-09 for 'unet'"),
    ({"unet": "1"}, "returns '1' for 'unet'"),
    ({"unet": True}, "returns True for 'unet'"),
    ({"unet": None}, "returns None for 'unet'"),
    ({"UNet": 1.0}, "returns the name 'UNet'; a name has up to 32 lower-case letters"),
    ({"": 1.0}, "the name ''"),
    ({"a" * 33: 1.0}, "the name 'aaa"),
    ({"text encoder": 1.0}, "the name 'text encoder'"),
    ({"unet@8": 1.0}, "the name 'unet@8'"),
    ({"größe": 1.0}, "the name 'größe'"),
    ({"unet\n": 1.0}, r"the name 'unet\n'"),
    ({1: 1.0}, "the name 1;"),
    ({f"s{n}": 0.1 for n in range(MAX_STAGES + 1)}, "returns 17 stages; return at most 16"),
    (
        {"unet": 6.0, "vae": 4.3},
        "returns 10.3 s in all, of a run of 10 s; do not count the same time twice",
    ),
    (["unet"], "returns list, not a table of seconds by name"),
    (None, "returns NoneType"),
]


@pytest.mark.parametrize(("stages", "message"), REFUSED)
def test_impossible_stages_are_refused(stages: object, message: str) -> None:
    with pytest.raises(RunError) as caught:
        stages_of(Says(stages), 10.0)

    assert str(caught.value).startswith("stage_seconds() ")
    assert message in str(caught.value)


def test_processes_add_up_and_numbers_of_numpy_are_numbers() -> None:
    assert stages_of(Says({"unet": np.float32(29.0)}), 10.0, processes=3) == {"unet": 29.0}
    with pytest.raises(RunError, match="of a run of 10 s in 3 processes; do not count"):
        stages_of(Says({"unet": 31.0}), 10.0, processes=3)
    assert stages_of(Says({}), 10.0) == {}


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True, alphabet=string.printable)


@FEWER
@given(st.dictionaries(NAMES, st.floats(0, 0.5), max_size=MAX_STAGES))
def test_possible_stages_are_kept_and_have_a_metric(stages: dict[str, float]) -> None:
    assert stages_of(Says(stages), 10.0) == stages
    for name in stages:
        metric = METRICS[f"stage_{name}"]
        assert (metric.name, metric.unit) == (f"stage_{name}", "s")
        assert f"stage_{name}" in METRICS
        assert METRICS[f"stage_{name}@64"].title == f"{metric.title} at 64"


def test_a_run_has_them_by_sample(tmp_path: Path) -> None:
    """It completed 125 samples; a stage that took no time is left out."""
    run = read(tmp_path, MISSED, stages={"unet": 5.0, "vae": 0.5, "none": 0.0})
    plain = read(tmp_path, MISSED)

    stages = {name: value for name, value in run.metrics.items() if name.startswith("stage_")}
    assert stages == {"stage_unet": 0.04, "stage_vae": 0.004}
    assert {**plain.metrics, **stages} == run.metrics


def result_of_run(folder: Path, **changes: Any) -> dict[str, Any]:
    events, code = run_to_end(spec(folder, engine=ENGINE, settings=STREAM, **changes))
    assert code == 0, events[-1]
    result: dict[str, Any] = only(events, "finished")["result"]
    return result


STREAM = settings("SingleStream", min_query_count=64, target_qps=200.0)


@pytest.mark.process
def test_the_timed_window_alone_counts(tmp_path: Path) -> None:
    """Whatever the warm-up took: each of `QUERIES` queries slept 1 and 3 ms at least."""
    result = result_of_run(tmp_path)

    stages, queries = result["stages"], result["completed"]
    assert set(stages) == {"first", "second"}
    assert stages["first"] >= 0.001 * queries
    assert stages["second"] >= 0.003 * queries
    assert sum(stages.values()) <= result["duration_s"]


@pytest.mark.process
def test_replicas_are_added_up_and_a_handicap_is_none_of_them(tmp_path: Path) -> None:
    three = [ReplicaSpec(name=f"replica {number}") for number in range(3)]
    result = result_of_run(tmp_path, replicas=three, handicap=0.5)

    stages = result["stages"]
    assert set(stages) == {"first", "second"}
    assert stages["second"] >= 0.003 * result["completed"]
    assert sum(stages.values()) <= 0.6 * result["duration_s"]


@pytest.mark.process
@pytest.mark.parametrize("how", ["nan", "too much", "name", "list"])
def test_impossible_stages_end_the_run_as_an_error_of_the_engine(tmp_path: Path, how: str) -> None:
    events, _ = run_to_end(spec(tmp_path, engine=ENGINE, options={"how": how}, settings=STREAM))

    error = error_of(events)
    assert (error["layer"], error["designed"]) == ("engine", True)
    assert error["message"].startswith("stage_seconds() returns ")
