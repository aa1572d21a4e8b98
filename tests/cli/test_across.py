"""`pytest-mlperf across` sets the same work on other hardware against each other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.cli.across import NO_VERDICT, read_prices
from pytest_mlperf.core.case import Case
from pytest_mlperf.core.energy import EnergyReading, Source
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.stores.results import write_results
from tests.cli.text import Say, differing, one_line, widest
from tests.reports import verdicts
from tests.reports.verdicts import CASE, SERVER, result, run, session

H100 = replace(CASE, accelerator="2xH100")
STEADY = (100.0, 100.2, 99.8, 100.1, 99.9)
FASTER = tuple(4 * value for value in STEADY)

ENERGY = EnergyReading(
    source=Source.NVML,
    joules=100.0,
    uncertainty_j=1.0,
    peak_w=120.0,
    window_s=1.0,
    parts={"GPU-1": 100.0},
    gated=True,
)

PRICES = """
[prices]
H200 = { usd_per_gpu_hour = 4.0, as_of = 2026-11-01, source = "list of a cloud" }
H100 = { usd_per_gpu_hour = 2.0, as_of = 2026-10-01 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("prices.toml").write_text(PRICES, "utf-8")
    return tmp_path


def on(
    gpu: str,
    *values: float,
    case: Case = CASE,
    samples_per_joule: float | None = None,
    **fields: Any,
) -> CaseResult:
    """Return a test whose runs, each of a session of its own, reached these throughputs."""
    energy = {"samples_per_joule": samples_per_joule} if samples_per_joule else {}
    runs = tuple(
        replace(
            run(n, case=case, throughput=value, latency_p50=1 / value, **energy),
            session=str(n),
            energy={Source.NVML: ENERGY} if energy else {},
        )
        for n, value in enumerate(values, start=1)
    )
    subject = Subject(identity={"gpu": gpu}, fingerprint={"dataset": "d1"})
    verdict = replace(verdicts.OK, case=case, runs=runs, subject=subject)
    return result(verdict, **fields)


def sides(a: CaseResult, b: CaseResult) -> None:
    write_results(Path("a.json"), session(a))
    write_results(Path("b.json"), session(b))


def compared(say: Say, *more: str) -> tuple[int, str]:
    return say("across", "a.json", "b.json", *more)


@pytest.mark.process
def test_ratios_are_of_systems_gpus_and_dollars_and_nothing_is_judged(say: Say) -> None:
    """Two H100 at 2 USD cost as much as one H200; B is four times A, per GPU eight times."""
    sides(on("H100", *STEADY, case=H100), on("H200", *FASTER))
    code, output = compared(say, "--prices", "prices.toml")
    rows = [line.split() for line in output.splitlines()]
    by = {row[0]: row for row in rows if row and row[0] in {"system", "GPU", "dollar"}}
    assert code == 0
    assert by["system"][2:5] == ["100", "400", "4.00x"]
    assert by["GPU"][2:5] == ["50", "400", "8.00x"]
    assert by["dollar"][1:4] == ["samples/USD", "90,000", "360,000"]
    assert "4.00x" in by["dollar"]
    assert NO_VERDICT in one_line(output)
    assert "H200 4 USD per hour, 2026-11-01, list of a cloud" in one_line(output)
    assert "no ratio per watt: energy was not measured in both A and B" in one_line(output)
    assert widest(output) <= 80


@pytest.mark.process
def test_a_watt_is_that_of_the_energy_that_both_sides_measured(say: Say) -> None:
    a, b = (
        on("H100", *STEADY, case=H100, samples_per_joule=0.5),
        on("H200", *FASTER, samples_per_joule=1.25),
    )
    sides(a, b)
    _, both = compared(say)
    sides(a, on("H200", *FASTER))
    _, output = compared(say)
    rows = [line.split() for line in both.splitlines()]
    (watt,) = [row for row in rows if row[:1] == ["watt"]]
    assert watt[:5] == ["watt", "samples/J", "0.5", "1.25", "2.50x"]
    assert "no ratio per watt: energy was not measured in both A and B" in one_line(output)


@pytest.mark.process
def test_what_cannot_be_set_against_each_other_is_said(say: Say) -> None:
    h100, h200 = on("H100", *STEADY, case=H100), on("H200", *FASTER)
    slower = on("H100", *STEADY, case=replace(SERVER, accelerator="H100"), target_qps=1.0)
    server = on("H200", *FASTER, case=SERVER, target_qps=2.0)
    bert = on("H100", *STEADY, case=replace(H100, workload="bert"))
    official = replace(h200, profile="official")
    line = ("across", "a.json", "b.json")
    for a, b, code, note in (
        (on("H200", *STEADY), h200, 0, "A and B ran on the same hardware"),
        (h100, official, 0, "not comparable: different profiles: quick → official"),
        (slower, server, 0, "not comparable: offered rate differs: 1/s → 2/s"),
        (h100, h200, 0, "no ratio per dollar: H100 has no price; add it to a table [prices]"),
        (bert, h200, 2, "no workload and scenario in common"),
    ):
        sides(a, b)
        assert differing(say, [(line, code, (note,))]) == []


def test_a_price_that_nobody_can_use_is_one_error() -> None:
    for text, message in {
        "[prices]\nH200 = { usd_per_gpu_hour = 3 }": "prices.H200: as_of is missing",
        "[prices]\nH20O = { usd_per_gpu_hour = 3, as_of = 2026-11-01 }": (
            "prices.H20O: unknown accelerator 'H20O'; did you mean"
        ),
        "[prices]\nH200 = { usd_per_gpu_hour = -3, as_of = 2026-11-01 }": (
            "prices.H200.usd_per_gpu_hour: "
        ),
        "[price]\n": "no table [prices]",
        "[prices": "cannot be read as TOML",
    }.items():
        Path("prices.toml").write_text(text, "utf-8")
        with pytest.raises(MlperfError, match=re.escape(message)):
            read_prices(Path("prices.toml"))
