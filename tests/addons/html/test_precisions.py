"""Test the plot of precisions: the meaning of its points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mlperf.addons.html._figures import precisions
from pytest_mlperf.addons.html._page import render
from pytest_mlperf.addons.html._precisions import closest_score
from pytest_mlperf.addons.html.model import RunFiles, grouped
from pytest_mlperf.core.verdict import MetricBaseline, MetricVerdict, Outcome
from tests.reports.test_precisions import (
    RESULTS,
    case,
    gated,
    measured,
    only,
    paired,
    scored,
)
from tests.reports.verdicts import session


def test_a_point_is_speed_and_score_in_shares_of_the_reference() -> None:
    results = [
        scored(case("fp32"), 76.0),
        measured(case("fp32"), 100.0),
        scored(case("int8"), 74.1, paired(-1.9, Outcome.ACC_DROP)),
        measured(case("int8"), 250.0),
    ]

    reference, int8 = precisions(grouped(results)).rows

    fields = ("precision", "speed", "score", "low", "accuracy")
    assert [reference[name] for name in fields] == ["fp32", 1.0, 100.0, None, "kept or not judged"]
    found_at = [int8[name] for name in ("speed", "score", "low", "high")]
    expected = [2.5, 97.5, 100 * 73.6 / 76, 100 * 74.6 / 76]
    assert found_at == pytest.approx(expected, abs=0.0006)
    assert int8["accuracy"] == "failed"
    assert int8["gate"] == pytest.approx(99.0)
    assert (int8["of"], int8["against"]) == ("top1", "fp32")
    assert (int8["interval"], int8["gate_text"]) == ("96.842 to 98.158 %", "99.000 %")


def lower(value: float, metric: str = "fid") -> MetricVerdict:
    """Return a score that is better when lower, gated at 110 % of 20."""
    return MetricVerdict(
        metric=metric,
        outcome=Outcome.OK,
        now=value,
        baseline=MetricBaseline(value=20.0),
        limit=-0.1,
    )


def test_better_is_up_also_where_lower_is_better() -> None:
    results = []
    for precision, value in (("fp32", 20.0), ("int8", 25.0)):
        scored_result = scored(case(precision), 76.0, metrics=(lower(value),))
        assert scored_result.verdict.accuracy is not None
        accuracy = replace(scored_result.verdict.accuracy, scores={"fid": value}, lower=("fid",))
        results += [
            replace(scored_result, verdict=replace(scored_result.verdict, accuracy=accuracy)),
            measured(case(precision), 1.0),
        ]

    _, int8 = precisions(grouped(results)).rows

    assert int8["score"] == 80.0
    assert int8["gate"] == pytest.approx(100 / 1.1, abs=0.0006)


def test_the_score_that_decides_is_the_one_nearest_to_its_gate() -> None:
    rows: list[Any] = [
        ({"top1": (76.0, 75.9), "f1": (90.0, 89.5)}, "f1"),
        ({"top1": (76.0, 75.0), "f1": (90.0, 89.9)}, "top1"),
        ({"top1": (76.0, 75.9), "tokens_per_sample": (40.0, 20.0)}, "top1"),
        ({"top1": (0.0, 0.0)}, None),
    ]
    for scores, metric in rows:
        results = [
            scored(
                case(precision),
                76.0,
                metrics=tuple(gated(v[i], name, reference=v[0]) for name, v in scores.items()),
                accuracy=None,
            )
            for i, precision in enumerate(("fp32", "int8"))
        ]
        decides = closest_score(only(*results))
        assert (decides and decides.metric) == metric


def test_the_figure_has_a_row_for_each_point_of_every_workload() -> None:
    """A panel needs two points."""
    figure = precisions(grouped(RESULTS.cases))

    rows = figure.rows
    assert [row["precision"] for row in rows] == ["fp32", "int8"]
    assert (rows[0]["speed"], rows[0]["score"]) == (1, 100.0)
    assert all(row["against"] == "fp32" for row in rows)
    assert "Not drawn: bf16: no comparable speed; int4: ERROR." in figure.says
    alone = [scored(case("fp32"), 76.0), measured(case("fp32"), 1.0)]
    unscored = [measured(case("fp32"), 1.0), measured(case("int8"), 2.0)]
    assert precisions(grouped(alone)).rows == precisions(grouped(unscored)).rows == []


def test_the_section_stands_where_an_engine_ran_in_several_precisions() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    for names, there in (("fp32 int8", True), ("fp32", False)):
        results = [measured(case(name), 1.0) for name in names.split()]
        page = render(session(*results), RunFiles())
        assert ('<section id="precisions"' in page) is there
        assert ('href="#precisions"' in page) is there
        assert ("<td>resnet50 Offline on H200</td><td>ort</td><td>fp32</td>" in page) is there
