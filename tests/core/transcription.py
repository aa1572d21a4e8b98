"""The 132 measurements of three published pages, from `tests/data/published_measurements.csv`.

Page A is NVIDIA's tables of MLPerf v4.1, B a third party's summary, C NVIDIA's post on v4.0. `text`
and `unit_printed` are what the page prints, `unit` is what the number really is in, and `logged`,
`samples_per_s` and `path` are of the official result that the page rounds.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.core.conversions import TokensFrom, TokensPerSample
from pytest_mlperf.core.origin import Accelerator, Origin, RoundResults, Source
from pytest_mlperf.core.printed import Printed
from pytest_mlperf.core.published import Published, metric_of
from pytest_mlperf.core.units import Unit, parse
from pytest_mlperf.rounds import load_round

Row = Mapping[str, str]

FILE = Path(__file__).parents[1] / "data" / "published_measurements.csv"

LINKS = {
    "A": "NVIDIA's tables of MLPerf Inference v4.1, data center",
    "B": "a third party's summary of GPU speeds",
    "C": "NVIDIA's post on MLPerf Inference v4.0",
}

METRICS = {
    "decode": "decode_tokens_per_second",
    "price": "usd_per_gpu_hour",
    "tokens per dollar": "tokens_per_usd",
    "relative value": "relative_value",
}


def rows() -> list[Row]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


ROWS = rows()


def id_of(row: Row) -> str:
    return f"{row['page']}{row['line']}.{row['number']}"


BY_ID = {id_of(row): row for row in ROWS}


def results(name: str) -> RoundResults:
    """Return what a round's checker reports, from its table."""
    workloads = load_round(name).workloads
    return RoundResults(
        round=name,
        fields={
            workload: {scenario: own.result for scenario, own in about.scenarios.items()}
            for workload, about in workloads.items()
        },
    )


V41 = results("v4.1")


def unit_as_printed(row: Row) -> Unit:
    return parse(row["unit_printed"] or row["unit"])


def mislabelled(row: Row) -> bool:
    """By the transcription alone: printed per sample or query, but counted in tokens."""
    return (
        row["unit"].startswith("tokens")
        and not row["unit_printed"].startswith(("tokens", "tok/"))
        and bool(row["unit_printed"])
    )


def published(row: Row, unit: Unit, **changes: Any) -> Published:
    """Build the figure of a row, taking its number to be in `unit`."""
    given: dict[str, Any] = {
        "metric": METRICS.get(row["what"]) or metric_of(unit),
        "printed": Printed.read(row["text"], unit),
        "workload": row["workload"],
        "variant": row["model"].removeprefix(row["workload"]).removeprefix("-") or None,
        "scenario": row["scenario"] or None,
        "batch": int(row["batch"]) if row["batch"] else None,
        "accelerator": accelerator(row),
        "precision": row["precision"] or None,
        "software": row["software"] or None,
        "origin": origin(row),
        "logged": float(row["logged"]) if row["logged"] else None,
        "tokens_per_sample": tokens_per_sample(row),
        "note": row["note"] or None,
    }
    return Published.checked(V41, **{**given, **changes})


def corrected(row: Row) -> Published:
    """Build the figure of a row in its right unit, and say so where another one is printed."""
    if not mislabelled(row):
        return published(row, unit_as_printed(row))
    note = f"printed in {unit_as_printed(row)}, which cannot be: see result_field"
    return published(row, parse(row["unit"]), note=note)


def accelerator(row: Row) -> Accelerator:
    matched = re.fullmatch(r"(?:NVIDIA )?(TPU v5e|[A-Z]+\d+S?)(.*)", row["accelerator"])
    assert matched, row["accelerator"]
    rest = re.sub(r"Grace Hopper Superchip|\(.*\)", "", matched[2]).replace("-", " ")
    return Accelerator(
        name=matched[1],
        count=int(row["count"]) if row["count"] else None,
        variant=" ".join(rest.split()),
        power=row["power_setting"] or None,
    )


def origin(row: Row) -> Origin:
    official = Source.PREVIEW if row["availability"] == "preview" else Source.MLPERF
    source = {"A": official, "B": Source.UNVERIFIED, "C": Source.VENDOR}[row["page"]]
    given: dict[str, Any] = {
        name: row[name] or None
        for name in ("round", "division", "availability", "submitter", "system", "path")
    }
    return Origin(source=source, link=LINKS[row["page"]], line=int(row["line"]), **given)


def tokens_per_sample(row: Row) -> TokensPerSample | None:
    """Return the run's own, from its two logged rates; gptj's are LoadGen's constant."""
    if not row["samples_per_s"]:
        return None
    if row["workload"] == "gptj":
        return TokensPerSample.of_loadgen()
    tokens_per_s = float(BY_ID[f"{row['page']}{row['line']}.1"]["logged"])
    value = round(tokens_per_s / float(row["samples_per_s"]), 3)
    return TokensPerSample(value=value, source=TokensFrom.RUN)
