"""What share of the best official result a case reached, where there is one of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean

from pytest_mlperf.core.numbers import rounded
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.hardware.machine import split
from pytest_mlperf.hardware.specs import find_gpu, gpu_in
from pytest_mlperf.reports.terminal.layout import plural
from pytest_mlperf.rounds.published import OfficialResult, benchmarks, official_results

METRICS = {"tokens/s": "tokens_per_second", "samples/s": "throughput", "queries/s": "throughput"}
"""What a run calls the values of results. Latencies are left out: those of results are bounds with
early stopping, and ours are percentiles."""


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where a case stands: the best official result on its GPU, and its own share, GPU by GPU."""

    share: float
    best: OfficialResult

    @property
    def in_short(self) -> str:
        """Return "58 % of the best official result per GPU (v5.1, Dell)"."""
        who = f"{self.best.round}, {self.best.submitter}"
        return f"{100 * self.share:.3g} % of the best official result per GPU ({who})"

    @property
    def in_words(self) -> str:
        """Return that with the result: "..., Dell): 4,414.59 tokens/s in XE9680, 8 GPUs, fp8"."""
        best = self.best
        value = f"{rounded(best.value / best.count)} {best.unit}"
        about = (f"{value} in {best.system}", plural(best.count, "GPU"), best.precision)
        return f"{self.in_short}: {', '.join(filter(None, about))}"


def placing_of(result: CaseResult) -> Placing | None:
    """Return where a case stands; None where no official result is like it.

    Like is: the workload with its target, the scenario, the unit, LoadGen as harness, the closed
    division, the kind of GPU. In Server and Interactive a result is the highest rate that held, so
    only a search for that rate is like it.
    """
    verdict = result.verdict
    gpu = gpu_in(verdict.subject.identity) if verdict.subject else None
    if gpu is None or verdict.ratio or not verdict.runs or result.techniques or result.handicap:
        return None
    case, count = verdict.case, split(verdict.case.accelerator)[0]
    if case.scenario != "Offline" and not all(run.search for run in verdict.runs):
        return None
    for unit, metric in METRICS.items():
        best = _best(case.workload, case.scenario, gpu.name, unit)
        values = [run.metrics[metric] for run in verdict.runs if run.metrics.get(metric)]
        if best and values:
            mine = geometric_mean(values) / count  # as the value beside it is that of all runs
            return Placing(share=mine / (best.value / best.count), best=best)
    return None


@cache
def _best(workload: str, scenario: str, gpu: str, unit: str) -> OfficialResult | None:
    names = benchmarks(workload)
    alike = [
        result
        for result in official_results()
        if result.benchmark in names
        and (result.scenario, result.unit, result.statistic) == (scenario, unit, "")
        and (result.division, result.harness, result.availability)
        == ("closed", "loadgen", "available")
        and result.count
        and (spec := find_gpu(result.accelerator)) is not None
        and spec.name == gpu
    ]
    return max(alike, key=lambda result: result.value / result.count, default=None)
