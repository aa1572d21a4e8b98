"""Compare a case with the best official MLPerf result; fail it below the suite's required share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import geometric_mean

from pytest_mlperf.bench.runner import CaseRunner
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.rulings.ruling import Ruling
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import find_gpu, gpu_in
from pytest_mlperf.rounds.published import OfficialResult, benchmarks, official_results

UNIT_METRICS = {
    "tokens/s": "tokens_per_second",
    "samples/s": "throughput",
    "queries/s": "throughput",
}
"""Metrics of runs by unit of results. Latencies are left out: official ones are bounds with early
stopping, ours are percentiles."""


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Compare a case with the best official result on the same kind of GPU.

    Attributes:
        value: Geometric mean of the case's runs per GPU, in the unit of `best`.
        best: Official result with the highest value per GPU.
    """

    value: float
    best: OfficialResult

    @property
    def best_value(self) -> float:
        """Value of the best official result per GPU."""
        return self.best.value / self.best.count

    @property
    def share(self) -> float:
        """Ratio of the case's value to the official result's, both per GPU."""
        return self.value / self.best_value

    @property
    def in_short(self) -> str:
        """Comparison as text: "58 % of the best official result per GPU (v5.1, Dell)"."""
        who = f"{self.best.round}, {self.best.submitter}"
        return f"{100 * self.share:.3g} % of the best official result per GPU ({who})"


def compare_with_official(
    case: Case,
    identity: Mapping[str, object],
    runs: Sequence[Run],
    *,
    searched: bool,
    results: Sequence[OfficialResult] | None = None,
) -> Placing | str:
    """Compare a case with the best official result, or return why none is comparable.

    A comparable result has the same workload with its accuracy target, scenario, unit and kind of
    GPU, measured by LoadGen in the closed division. In Server and Interactive a result is the
    highest rate within the latency limits, so the case must have `searched` for it. `results` of
    None means all official results.
    """
    gpu = gpu_in(identity)
    if not runs:
        return "the case has no run"
    if gpu is None:
        return f"{case.accelerator} is not a GPU that has official results"
    if case.scenario.rate_is_condition and not searched:
        return (
            "the case runs at a fixed rate, but an official result is the highest rate within the "
            "latency limits: give the scenario find in place of target_qps"
        )
    if case.scenario != Scenario.OFFLINE and not case.scenario.rate_is_condition:
        return f"{case.scenario} reports a latency, but official latencies are only upper bounds"
    for unit, metric in UNIT_METRICS.items():
        query = (case.workload, case.scenario, gpu.name, unit)
        best = _best(official_results() if results is None else tuple(results), *query)
        values = [run.metrics[metric] for run in runs if run.metrics.get(metric)]
        if best and values:
            # Per GPU, like the result's value.
            mine = geometric_mean(values) / split(case.accelerator)[0]
            return Placing(value=mine, best=best)
    return (
        f"there is no official result of {case.workload}, {case.scenario}, in the same unit on "
        f"{gpu.name}"
    )


def held_to_best(case: CaseRunner, answer: Ruling) -> Ruling:
    """Change a ruling to GATE FAIL below `min_official_share` of the best official result.

    A failed ruling is returned unchanged; without a comparable result a note is added.
    """
    if answer.outcome.fails or not case.runs or case.planned.suite.min_official_share is None:
        return answer
    if isinstance(placing := _standing(case), str):
        note = f"[limits] of_best_published was not checked: {placing}"
        return replace(answer, notes=(*answer.notes, note))
    if (headline := below_best(case)) is None:
        return answer
    notes = (answer.quoted("beside_baseline"), *answer.notes)
    return replace(answer, outcome=Outcome.GATE_FAIL, headline=headline, notes=notes)


def below_best(case: CaseRunner) -> str | None:
    """Return a headline if the case's share of the best official result is too low, else None."""
    least = case.planned.suite.min_official_share
    if least is None or isinstance(placing := _standing(case), str) or placing.share >= least:
        return None
    return f"{placing.in_short}; of_best_published requires {100 * least:.3g} %"


def _standing(case: CaseRunner) -> Placing | str:
    searched = case.planned.find is not None
    identity = case.subject.identity if case.subject else {}
    return compare_with_official(case.planned.case, identity, case.runs, searched=searched)


@cache
def _best(
    results: tuple[OfficialResult, ...], workload: str, scenario: Scenario, gpu: str, unit: str
) -> OfficialResult | None:
    names = benchmarks(workload) | {workload}
    alike = [
        result
        for result in results
        if result.benchmark in names
        and (result.scenario, result.unit, result.statistic) == (scenario, unit, "")
        and (result.division, result.harness, result.availability)
        == ("closed", "loadgen", "available")
        and result.count
        and (spec := find_gpu(result.accelerator)) is not None
        and spec.name == gpu
    ]
    return max(alike, key=lambda result: result.value / result.count, default=None)
