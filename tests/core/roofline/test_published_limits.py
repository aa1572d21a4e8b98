"""Published figures: every official result lies below the limit, every impossible one is flagged.

`tests/data/published_limits.csv` has the shares of both limits, in per cent, that a calculation of
its own, before this code, found for each throughput of NVIDIA's tables; `peak` is the precision.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli.limits import refuted, result_rows
from pytest_mlperf.core.roofline import share_of_limit
from pytest_mlperf.core.roofline.work import Circumstances
from pytest_mlperf.hardware.specs import find_gpu
from pytest_mlperf.rounds.published import Claim, known_claims, official_results
from pytest_mlperf.rounds.work import find_work
from tests.core.roofline.transcription import BY_ID

FILE = Path(__file__).parents[2] / "data" / "published_limits.csv"

with FILE.open(newline="", encoding="utf-8") as _file:
    SHARES = {f"{row['page']}{row['line']}.1": row for row in csv.DictReader(_file)}

ROWS, OTHERS = result_rows()
CLAIMS = {f"{each.claim.page}{each.claim.line}": each for each in map(refuted, known_claims())}

IMPOSSIBLE = [f"B{line}" for line in (*range(21, 26), *range(32, 37))]
UNITS = ["A84", "A85", "A86", "A103", "A116"]


def test_every_throughput_of_the_page_has_a_share() -> None:
    """70 of them."""
    printed = {
        key for key, row in BY_ID.items() if row["page"] == "A" and row["what"] == "throughput"
    }

    assert set(SHARES) == printed
    assert len(SHARES) == 70


@pytest.mark.parametrize("key", SHARES)
def test_shares_to_the_printed_digit(key: str) -> None:
    """Both levels, two digits behind the point."""
    row, expected = BY_ID[key], SHARES[key]
    about, gpu = find_work(row["workload"]), find_gpu(row["accelerator"])
    assert about is not None
    figures: dict[str, Any] = dict(about.typical)
    if row["unit"] == "tokens/s":
        figures["output_tokens"] = float(row["logged"]) / float(row["samples_per_s"])
    found = share_of_limit(
        "tokens_per_second" if row["unit"] == "tokens/s" else "throughput",
        float(row["logged"]),
        accelerator=row["accelerator"],
        gpu=gpu,
        work=about.work,
        seen=Circumstances(gpus=int(row["count"]), precision=expected["peak"], **figures),
    )

    assert f"{100 * (found.of_certain or 0):.2f}" == expected["certain"]
    share = found.of_estimated
    assert ("" if share is None else f"{100 * share:.2f}") == expected["estimated"]


def test_every_official_result_is_there() -> None:
    """937 of MLPerf v4.1; those of known GPUs have a row, of the others is said how many."""
    results = official_results("v4.1")

    assert len(results) == 937
    assert Counter(result.division for result in results) == {"closed": 873, "open": 64}
    assert len(ROWS) + sum(OTHERS.values()) == 937
    assert len(ROWS) == 782
    assert Counter(row.result.division for row in ROWS)["closed"] == 763


def test_the_official_results_are_those_that_the_pages_round() -> None:
    """Every throughput of NVIDIA's tables is one of them, to the logged digit."""
    logged = {
        (result.accelerator, result.count, result.scenario, result.value, result.samples_per_s)
        for result in official_results("v4.1")
    }
    for key in SHARES:
        row = BY_ID[key]
        samples = float(row["samples_per_s"] or row["logged"])
        value = float(row["logged"])
        wanted = (row["accelerator"], int(row["count"]), row["scenario"], value, samples)
        assert wanted in logged, key


def test_every_official_result_lies_below_the_certain_limit() -> None:
    """At the stated peaks, without the headroom of the clock; and below 90 % of the estimate."""
    unlimited = [row for row in ROWS if row.limit.certain is None]
    beyond = [row for row in ROWS if (row.limit.of_certain or 0.0) >= 1]

    assert beyond == []
    assert [row for row in ROWS if row.limit.impossible or row.limit.near] == []
    assert [row.result.system for row in unlimited] == ["H200-SXM-141GBx1_TRT_DepthPruned"]
    assert unlimited[0].limit.why_unknown == (
        "pruning: say work_share, the share of the work that is left"
    )


@pytest.mark.parametrize(
    ("workload", "share"),
    [("llama2-70b", 0.62), ("bert", 0.55), ("resnet50", 0.51), ("stable-diffusion-xl", 0.33)],
)
def test_the_nearest_official_result_of_a_workload(workload: str, share: float) -> None:
    """Of the estimated limit: the best that anybody reached."""
    shares = [
        row.limit.of_estimated or 0.0
        for row in ROWS
        if row.result.model.startswith(workload) and row.result.division == "closed"
    ]

    assert max(shares) == pytest.approx(share, abs=0.005)


def test_open_results_are_held_against_what_they_declare() -> None:
    """The consistency model is faster than the plain limit; its own lies above."""
    row = next(row for row in ROWS if row.result.system.endswith("_LCM"))
    plain = 1978.9e12 / 281.14e12

    assert row.result.value > plain
    assert row.limit.certain is not None
    assert row.limit.certain > row.result.value


# --- v5.1, v6.0 and v6.1 ---------------------------------------------------------------------

LATER = {name: result_rows(name)[0] for name in ("v5.1", "v6.0", "v6.1")}


@pytest.mark.parametrize(("name", "results"), [("v5.1", 509), ("v6.0", 433), ("v6.1", 381)])
def test_results_of_later_rounds_lie_below_every_limit(name: str, results: int) -> None:
    """All on GPUs of the table, at their fastest precision; below 90 % of the estimate too."""
    rows = LATER[name]

    assert len(rows) == results
    assert [row.result for row in rows if row.limit.certain is None] == []
    assert [row.result for row in rows if (row.limit.of_certain or 0.0) >= 1] == []
    assert [row.result for row in rows if row.limit.impossible or row.limit.near] == []


@pytest.mark.parametrize(
    ("workload", "share"),
    [
        ("llama2-70b", 0.657),
        ("llama3.1-405b", 0.466),
        ("llama3.1-8b", 0.424),
        ("deepseek-r1", 0.084),
        ("wan-2.2-t2v-a14b", 0.300),
    ],
)
def test_the_nearest_result_of_later_rounds(workload: str, share: float) -> None:
    """Of the estimated limit, in the closed division."""
    shares = [
        row.limit.of_estimated or 0.0
        for rows in LATER.values()
        for row in rows
        if row.result.model.startswith(workload) and row.result.division == "closed"
    ]

    assert max(shares) == pytest.approx(share, abs=0.001)


# --- what cannot be --------------------------------------------------------------------------


def over(key: str) -> float:
    return CLAIMS[key].limit.of_certain or 0.0


@pytest.mark.parametrize(
    ("key", "times", "gpus"),
    [
        ("B21", 4.44, 5),
        ("B22", 3.44, 4),
        ("B23", 4.51, 5),
        ("B24", 3.49, 4),
        ("B25", 2.36, 3),
        ("B32", 3.49, 4),
        ("B33", 3.18, 4),
        ("B34", 2.87, 3),
        ("B35", 2.02, 3),
        ("B36", 2.08, 3),
    ],
)
def test_the_ten_impossible_rows_at_batch_1(key: str, times: float, gpus: int) -> None:
    """How far beyond, and the fewest GPUs that could do it without any loss."""
    found = CLAIMS[key]

    assert over(key) == pytest.approx(times, abs=0.006)
    assert found.limit.impossible
    assert found.limit.binds == "memory"
    assert f"at least {gpus} GPUs without any loss" in found.reasons


def test_two_gpus_that_a_row_names_would_not_do_either() -> None:
    """FP16 at 85 tokens/s on two H100: their limit is 48.8."""
    assert over("B32") / 2 == pytest.approx(85 / 48.8, abs=0.01)


def test_weights_that_do_not_fit_are_said() -> None:
    """FP16 on 80 GB."""
    assert [
        key for key in IMPOSSIBLE if "138 GB of weights need 2 GPUs" in CLAIMS[key].reasons
    ] == [
        "B23",
        "B24",
        "B25",
        "B32",
    ]


@pytest.mark.parametrize(
    ("key", "percent"),
    [("A42", 1934), ("A84", 410), ("A85", 404), ("A86", 410), ("A103", 267), ("A116", 238)],
)
def test_rows_with_another_row_s_label_or_unit(key: str, percent: int) -> None:
    """A slipped RetinaNet row, and tokens printed as queries or samples."""
    assert over(key) * 100 == pytest.approx(percent, abs=0.6)
    assert CLAIMS[key].limit.impossible


@pytest.mark.parametrize("key", ["A29", "A63", "B9", "B10", "B12", "B13"])
def test_rows_that_no_official_result_bears_out(key: str) -> None:
    """Another GPU's number, or none of the round."""
    assert not CLAIMS[key].limit.impossible
    assert any("v4.1" in reason for reason in CLAIMS[key].reasons)


def test_a_tpu_beyond_its_estimate() -> None:
    """116 % in INT8 of prompts of 290 tokens; in BF16 it would be 232 %."""
    found = CLAIMS["B12"]

    assert found.limit.of_estimated == pytest.approx(1.1615, abs=1e-4)
    assert "116 % of the estimated limit at its fastest, int8" in found.reasons


def test_a_row_that_is_near_the_official_one_is_not_flagged() -> None:
    """84.2 samples/s on 8x H100 is 0.3 % below what was logged."""
    row = BY_ID["B11.1"]
    honest = Claim(
        page="B",
        line=11,
        text=row["text"],
        says="DGX H100",
        workload="llama2-70b",
        scenario="Offline",
        metric="throughput",
        value=84.2,
        unit="samples/s",
        accelerator="H100-SXM",
        product="NVIDIA H100-SXM-80GB",
        gpus=8,
        expect="official",
    )

    assert refuted(honest).reasons == ()


def test_every_claim_is_flagged_by_what_should_find_it() -> None:
    """And each is a row of the transcription, with its number and unit as printed."""
    assert set(IMPOSSIBLE) | set(UNITS) | {"A42"} <= set(CLAIMS)
    for key, found in CLAIMS.items():
        claim, row = found.claim, BY_ID[f"{key}.1"]
        assert found.reasons, key
        assert (claim.expect == "certain") == found.limit.impossible, key
        assert claim.text == row["text"], key
        assert row["batch"] in ("", str(claim.batch)), key
        unit = row["unit_printed"] or row["unit"]
        assert unit.replace("/sec", "/s") == claim.unit, key
        assert float(row["text"].strip("~").replace(",", "")) == claim.value, key
