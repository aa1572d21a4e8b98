"""Points and seeds by the rules of MLPerf Endpoints.

MLCommons' own checker decides where MLPERF_SUBMISSION_PYTHON names a Python that has it
(endpoints-submission-cli).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_mlperf.core.job import Seeds
from pytest_mlperf.rounds.endpoints import points_up_to, region_of, scored_points
from pytest_mlperf.suite.plan import plan_suite
from pytest_mlperf.suite.resolve import settings_of
from tests.suite.texts import with_

EVERY = [*range(33, 2000), 4096, 10_000, 65_536]
THEIRS = """\
import json
from submission_checker.models.regions import classify_concurrency, compute_regions
found = {}
for highest, points in json.load(open(0)).items():
    regions = compute_regions(int(highest), min(points))
    found[highest] = [classify_concurrency(point, regions) for point in points]
print(json.dumps(found))
"""


def test_a_maximum_makes_seven_points_that_cover_every_region() -> None:
    """The curve is scored at the last point of each region."""
    assert points_up_to(1024) == (1, 4, 11, 33, 103, 323, 1024)
    for highest in EVERY:
        points = points_up_to(highest)
        assert len(points) == len(set(points)) == 7
    assert region_of(135, [1], 128) == "margin"
    scored = {
        points_up_to(33): {1, 4, 11, 33},
        points_up_to(1024): {1, 11, 103, 1024},
        (64, 1, 256, 8): {1, 8, 256},
        (1, 4): {1, 4},
        (1, 2): {2},
        (7,): {7},
    }
    assert {points: scored_points(points) for points in scored} == scored


def test_a_suite_has_these_points_and_the_published_seeds(
    tmp_path: Path,
) -> None:
    suite = tmp_path / "s.mlperf.toml"
    declared = 'name = "Concurrency"\nmax_concurrency = 256\nseed_set = "A"'
    suite.write_text(with_(('name = "Offline"\ntarget_qps = 100', declared)), "utf-8")
    (planned,) = plan_suite(suite)

    settings = settings_of(planned)
    assert list(settings.points) == [1, 4, 7, 17, 41, 102, 256]
    assert settings.seeds == Seeds(
        qsl=settings.seeds.qsl,
        sample_index=586478644936801402,
        schedule=10487924139932647040,
        model=9315206023656308754,
    )


@pytest.mark.skipif(
    not os.environ.get("MLPERF_SUBMISSION_PYTHON"),
    reason="MLPERF_SUBMISSION_PYTHON names no Python that has endpoints-submission-cli",
)
@pytest.mark.process
def test_their_checker_divides_as_we_do() -> None:
    points_asked = {
        highest: [*points_up_to(highest), highest + 1, 2 * highest] for highest in EVERY
    }
    python = os.environ["MLPERF_SUBMISSION_PYTHON"]
    answer = subprocess.run(
        [python, "-c", THEIRS],
        input=json.dumps(points_asked),
        capture_output=True,
        check=True,
        text=True,
    )

    ours = {str(h): [region_of(p, points, h) for p in points] for h, points in points_asked.items()}
    assert json.loads(answer.stdout) == ours
