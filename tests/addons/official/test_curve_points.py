"""The points of a curve of our own loop, in the words of MLCommons' files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.official.curve_points import points_of
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.run.worker.point_window import CURVE_LOG, SCHEMA_VERSION
from tests.reports.verdicts import OK, run
from tests.run.harness import settings
from tests.run.test_curve import point


def left_by(folder: Path, sent: Any = None, **changes: Any) -> Run:
    """Write the files of a run with one point, with further fields in requests; return the run."""
    performance = folder / "performance"
    performance.mkdir()
    curve_settings = dataclasses.replace(settings(), points=[4], min_duration_ms=10_000)
    options = {} if sent is None else {"extra": sent}
    spec = json.dumps(
        {"settings": dataclasses.asdict(curve_settings), "engine": {"options": options}}
    )
    (folder / "spec.json").write_text(spec, "utf-8")
    points = [dataclasses.asdict(point(4, **changes))]
    log = {"samples": 100, "points": points, "arrivals": "", "burstiness": None}
    (performance / CURVE_LOG).write_text(json.dumps({"schema": SCHEMA_VERSION, **log}), "utf-8")
    metrics = {"tokens_per_second@4": 100.0}
    return dataclasses.replace(run(), metrics=metrics, folder=str(performance))


def test_a_point_of_our_own_loop_carries_our_name_and_the_seed_of_requests(tmp_path: Path) -> None:
    seeds = settings().seeds
    schedule = {"scheduler_rng_seed": seeds.schedule, "sample_index_rng_seed": seeds.sample_index}
    sent: list[tuple[Any, dict[str, int]]] = [
        (None, {}),
        ({"top_p": 1}, {}),
        ({"seed": 7}, {"model_seed": 7}),
    ]
    for number, (fields, seed) in enumerate(sent):
        folder = tmp_path / str(number)
        folder.mkdir()
        (curve_point,) = points_of(left_by(folder, fields), OK, folder)
        assert (curve_point.concurrency, curve_point.tokens_per_second) == (4, 100.0)
        assert curve_point.settings["load_pattern"] == "concurrency"
        assert curve_point.settings["runtime"] == {**schedule, **seed}
        assert all(b"pytest-mlperf" in content for content in curve_point.files.values())


def test_a_curve_of_conversations_is_not_written_as_one_of_prompts(tmp_path: Path) -> None:
    of_turns = left_by(tmp_path, turns=[(1, 50, 0.4, 0.1), (2, 50, 0.2, 0.05)])

    with pytest.raises(
        MlperfError, match="has a curve of conversations, and only curves of single"
    ):
        points_of(of_turns, OK, tmp_path)
