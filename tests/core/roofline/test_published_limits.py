"""Test that official results lie below the limits; printed figures above are impossible.

`tests/data/published_limits.csv` has the shares of both limits, in per cent, that a calculation of
its own, before this code, found for each throughput of NVIDIA's tables; `peak` is the precision.
`published_measurements.csv` has the figures of three pages: A is NVIDIA's tables of MLPerf v4.1, B
a third party's summary, C NVIDIA's post on v4.0. `text` and `unit_printed` are the page's, `unit`
is the real unit of the number, and `logged`, `samples_per_s` and `path` are of the official result
that the page rounds.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.official.commands.limits import Limited, result_rows
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.core.roofline import Limit, share_of_limit
from pytest_mlperf.core.roofline.gpu import PRECISIONS, fewest_gpus, parse_gpu
from pytest_mlperf.core.roofline.work import Circumstances
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from pytest_mlperf.rounds.published import official_results
from pytest_mlperf.rounds.work import find_work
from tests.core.made import present


def table(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parents[2] / "data" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


SHARES = {f"{row['page']}{row['line']}.1": row for row in table("published_limits.csv")}
BY_ID = {
    f"{row['page']}{row['line']}.{row['number']}": row
    for row in table("published_measurements.csv")
}


@cache
def rows_of(round_name: str) -> tuple[Sequence[Limited], Mapping[str, int]]:
    """Return the rows of a round, and how many results of other GPUs it has."""
    return result_rows(round_name)


Printed = tuple[str, str, float, str, int, str, str | None, int | None, str, float, str]
"""Key, workload, value, unit, GPUs, accelerator, precision, batch, certain limit, share in %,
reason."""


def printed_figures() -> Iterator[Printed]:
    page = (Path(__file__).parents[3] / "docs/limits.md").read_text("utf-8")
    for row in re.findall(r"^\| [AB] \d+ \|.*$", page, re.MULTILINE):
        line, figure, work_and_batch, where, certain, share, reason = (
            cell.strip() for cell in row[1:-1].split("|")
        )
        value, unit = figure.strip("~").replace(",", "").split()
        workload, _, batch = work_and_batch.partition(", batch ")
        count, _, gpu = where.partition(" x ")
        precision = next((word for word in gpu.split()[1:] if word in PRECISIONS), None)
        yield (
            *(line.replace(" ", ""), workload, float(value), unit, int(count)),
            *(gpu.removesuffix(f" {precision}"), precision, int(batch) if batch else None),
            *(certain, float(share.removesuffix(" %").replace(",", "")), reason),
        )


PRINTED = list(printed_figures())

TPU = {"bf16": 197e12, "int8": 393e12, "bandwidth": 819e9, "memory": 16e9, "source": "Google Cloud"}


def limit_of(line: Printed, **changes: Any) -> Limit:
    _, workload, value, unit, count, accelerator, precision, batch, *_ = line
    about = present(find_work(workload))
    run: dict[str, Any] = {"gpus": count, "precision": precision, "batch": batch, **changes}
    is_tpu = accelerator.startswith("TPU")
    return share_of_limit(
        "tokens_per_second" if unit == "tokens/s" else "throughput",
        value,
        accelerator=accelerator,
        gpu=parse_gpu(accelerator, TPU) if is_tpu else known_gpus()[accelerator],
        work=about.work,
        seen=Circumstances(**{**about.typical, **run}),
    )


def test_shares_to_the_printed_digit() -> None:
    """Every throughput of the page has one, 70 of them."""
    printed = {k for k, row in BY_ID.items() if (row["page"], row["what"]) == ("A", "throughput")}
    printed_shares, expected = {}, {}
    for key, row in ((key, BY_ID[key]) for key in SHARES):
        about = present(find_work(row["workload"]))
        figures: dict[str, Any] = dict(about.typical)
        rate = "tokens_per_second" if row["unit"] == "tokens/s" else "throughput"
        if rate == "tokens_per_second":
            figures["output_tokens"] = float(row["logged"]) / float(row["samples_per_s"])
        limit = share_of_limit(
            rate,
            float(row["logged"]),
            accelerator=row["accelerator"],
            gpu=find_gpu(row["accelerator"]),
            work=about.work,
            seen=Circumstances(gpus=int(row["count"]), precision=SHARES[key]["peak"], **figures),
        )
        shares = (limit.certain_share or 0, limit.estimated_share)
        printed_shares[key] = ["" if share is None else f"{100 * share:.2f}" for share in shares]
        expected[key] = [SHARES[key]["certain"], SHARES[key]["estimated"]]

    assert (printed_shares, set(SHARES), len(SHARES)) == (expected, printed, 70)


def test_the_official_results_are_those_that_the_pages_round() -> None:
    """937 results of MLPerf v4.1; those of known GPUs have a row, the others are counted.

    Every throughput of NVIDIA's tables is one of them, to the logged digit.
    """
    results, (rows, others) = official_results("v4.1"), rows_of("v4.1")
    logged = {(r.accelerator, r.count, r.scenario, r.value, r.samples_per_s) for r in results}

    assert len(results) == len(rows) + sum(others.values()) == 937
    assert Counter(result.division for result in results) == {"closed": 873, "open": 64}
    assert Counter(row.result.division for row in rows) == {"closed": 763, "open": 19}
    for key in SHARES:
        row = BY_ID[key]
        rates = float(row["logged"]), float(row["samples_per_s"] or row["logged"])
        assert (row["accelerator"], int(row["count"]), row["scenario"], *rates) in logged, key


def test_every_official_result_lies_below_the_certain_limit() -> None:
    """At the stated peaks, without headroom of the clock; and below 90 % of the estimate.

    Open results are compared with the limit of their declared techniques: the consistency model is
    faster than the plain limit, and its own lies above.
    """
    rows, _ = rows_of("v4.1")
    unlimited = [row for row in rows if row.bound.limit.certain is None]
    consistent = next(row for row in rows if row.result.system.endswith("_LCM"))
    shares = {"llama2-70b": 0.62, "bert": 0.55, "resnet50": 0.51, "stable-diffusion-xl": 0.33}

    assert [row for row in rows if (row.bound.limit.certain_share or 0.0) >= 1] == []
    assert [row for row in rows if row.bound.limit.impossible or row.bound.limit.near] == []
    assert [row.result.system for row in unlimited] == ["H200-SXM-141GBx1_TRT_DepthPruned"]
    needs = Note.of("technique_needs", technique="pruning", figure="work_share")
    assert unlimited[0].bound.limit.why_unknown == needs
    assert {name: nearest(rows, name) for name in shares} == pytest.approx(shares, abs=0.005)
    assert 1978.9e12 / 281.14e12 < consistent.result.value < present(consistent.bound.limit.certain)


def nearest(rows: Iterable[Limited], workload: str) -> float:
    return max(
        row.bound.limit.estimated_share or 0.0
        for row in rows
        if row.result.model.startswith(workload) and row.result.division == "closed"
    )


def test_results_of_later_rounds_lie_below_every_limit() -> None:
    """All on GPUs of the table, at their fastest precision; below 90 % of the estimate too."""
    counts = {"v5.1": 509, "v6.0": 433, "v6.1": 381}
    rows = [row for name in counts for row in rows_of(name)[0]]
    shares = {"llama2-70b": 0.657, "llama3.1-405b": 0.466, "llama3.1-8b": 0.424}
    shares |= {"deepseek-r1": 0.084, "wan-2.2-t2v-a14b": 0.300}

    assert {name: len(rows_of(name)[0]) for name in counts} == counts
    assert [row.result for row in rows if row.bound.limit.certain is None] == []
    assert [row.result for row in rows if (row.bound.limit.certain_share or 0.0) >= 1] == []
    assert [row.result for row in rows if row.bound.limit.impossible or row.bound.limit.near] == []
    assert {name: nearest(rows, name) for name in shares} == pytest.approx(shares, abs=0.001)


def needed_gpus(line: Printed, limit: Limit) -> str:
    """Return the GPUs that a decoding speed takes, and those that the weights fill."""
    about, memory = present(find_work(line[1])), present(known_gpus()[line[5]].memory)
    text = f"it takes {math.ceil(limit.certain_share or 0)} GPUs or more"
    fewest = fewest_gpus(about.parameters * PRECISIONS[line[6] or ""].weight, memory)
    return f"{text}; the weights alone fill {fewest}" if fewest > line[4] else text


def test_the_printed_figures_are_as_the_page_says() -> None:
    """16 above the certain limit, and 6 that contradict the round's results or the estimate."""
    assert len({line[0] for line in PRINTED}) == len(PRINTED) == 22
    assert sum(line[-2] > 100 for line in PRINTED) == 16
    for line in PRINTED:
        key, value, limit = line[0], line[2], limit_of(line)
        certain, share, reason = line[-3:]
        printed = BY_ID[f"{key}.1"]
        assert rounded(limit.certain or 0.0) == certain, key
        printed_share = pytest.approx(share, abs=0.6 if share > 1000 else 0.1)
        assert 100 * (limit.certain_share or 0.0) == printed_share, key
        assert limit.impossible == (share > 100), key
        assert float(printed["text"].strip("~").replace(",", "")) == value
        assert line[3] == (printed["unit_printed"] or printed["unit"]).replace("/sec", "/s")
        if limit.impossible and line[1] == "llama2-70b":
            assert (limit.binds, reason) == ("memory", needed_gpus(line, limit)), key


def test_the_best_results_that_the_page_names_and_figures_beyond_the_estimated_limit() -> None:
    """Eight GPUs and Llama 2 70B, closed; None if the round has no such result.

    116 % in int8 of prompts of 290 tokens; 104 % in fp16, where int8 is possible.
    """
    results = official_results("v4.1")
    tpu, a100 = (next(line for line in PRINTED if line[0] == key) for key in ("B12", "B13"))

    for product, scenario, best in (
        ("NVIDIA H200-SXM-141GB", "Offline", 32124.3),
        ("NVIDIA H200-SXM-141GB", "Server", 30438.7),
        ("NVIDIA B200-SXM-180GB", "Offline", None),
        ("A100", "Offline", None),
    ):
        values = [
            result.value
            for result in results
            if (result.accelerator, result.count, result.division) == (product, 8, "closed")
            if (result.scenario, result.unit) == (scenario, "tokens/s")
            if result.model.startswith("llama2-70b")
        ]
        assert max(values, default=None) == (best and pytest.approx(best, abs=0.05))
    assert limit_of(tpu).estimated_share == pytest.approx(1.16, abs=0.005)
    assert limit_of(a100, precision="fp16").estimated_share == pytest.approx(1.04, abs=0.005)
