"""Read MLCommons' published MLPerf Inference results, datacenter and edge.

`official-results.csv.gz` has v4.1 (937 results), v5.1 (1,448), v6.0 (520) and v6.1 (492), extracted
by tools/official_results.py from https://github.com/mlcommons/inference_results_v4.1 at commit
198fc46799b3, _v5.1 at 965182b03376, _v6.0 at 232fbf90fceb and _v6.1 at 7bf15fd80896. Values of v4.1
are from LoadGen's logs, and its power from the meters' logs by the rule of the round's checker;
v5.1 and v6.0 were checked against the logs; v6.1 is from its results table. The MLPerf name and
logo are trademarks of MLCommons Association.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.numbers import Count, Positive
from pytest_mlperf.rounds import ROUNDS, load_round

RESULTS_FILE = "official-results.csv.gz"

_TECHNIQUES = {
    "_Sparse": ("2:4-sparsity", "retraining"),
    "_DepthPruned": ("pruning", "distillation"),
    "_LCM": ("latent-consistency",),
}
"""Techniques of the open submissions of v4.1, by the suffix of the system's name."""

SECONDS = {"ms": 1e-3, "s": 1.0}

Unit = Literal["samples/s", "queries/s", "tokens/s", "tasks/s", "streams", "ms", "s"]
PowerUnit = Literal["", "W", "mJ"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OfficialResult:
    """Hold a result as MLCommons published it; "" if the round's table lacks the value.

    Attributes:
        round, division, category, availability: "v6.1", "closed", "datacenter", "available", for
            example.
        submitter, system: Organisation, and its name for the system.
        accelerator: Product name as submitted; "" for CPUs.
        count, nodes: Total number of accelerators, and of machines; 0 if unknown.
        model: Checker's name of the workload, with its target: "llama2-70b-99.9".
        used_model: Model that an open submission ran instead.
        value: Published value in `unit`; "streams" is MultiStream's unit before v2.0.
        statistic: Statistic of a latency; "scheduled" for a rate of Server before v4.1; tokens per
            sample if tokens were not counted.
        inferred: Whether the value was derived from another scenario's.
        harness: Load generator; values of different ones are not comparable.
        samples_per_s: Rate [samples/s]; None if unknown, or for a latency.
        power: Power of the system [W], or energy per query [mJ]; None if not measured.
    """

    round: str = ""
    division: str = ""
    category: str = ""
    availability: str = ""
    submitter: str = ""
    system: str = ""
    accelerator: str = ""
    count: Count = 0
    nodes: Count = 0
    model: str
    used_model: str = ""
    scenario: Scenario
    value: Positive
    unit: Unit
    statistic: str = ""
    inferred: bool = False
    harness: Literal["loadgen", "endpoints"]
    precision: str = ""
    samples_per_s: Positive | None = None
    power: Positive | None = None
    power_unit: PowerUnit = ""

    @property
    def is_latency(self) -> bool:
        """Whether lower is better."""
        return self.unit in SECONDS

    @property
    def unit_seconds(self) -> float:
        """Seconds per unit of a latency; 1 for other units."""
        return SECONDS.get(self.unit, 1.0)

    @property
    def benchmark(self) -> str:
        """Benchmark, by its name in the newest rounds: "resnet" for "resnet50"."""
        return "resnet" if self.model == "resnet50" else self.model

    @property
    def kind(self) -> tuple[str, ...]:
        """Benchmark, scenario, unit, statistic, harness: equal for two comparable results."""
        return self.benchmark, self.scenario, self.unit, self.statistic, self.harness

    @property
    def tokens_per_sample(self) -> float | None:
        """Mean tokens per answer; None if the value does not count tokens, or if unknown."""
        if self.unit != "tokens/s" or not self.samples_per_s:
            return None
        return self.value / self.samples_per_s

    @property
    def techniques(self) -> tuple[str, ...]:
        """Techniques of the open division, told by the end of the system's name; () if none."""
        return next((names for end, names in _TECHNIQUES.items() if self.system.endswith(end)), ())


@cache
def official_results(name: str | None = None) -> tuple[OfficialResult, ...]:
    """Return a round's results, or all results for None; raise KeyError if a round has none."""
    if name is not None:
        results = tuple(result for result in official_results() if result.round == name)
        if not results:
            raise KeyError(name)
        return results
    content = gzip.decompress(files(__package__).joinpath(RESULTS_FILE).read_bytes()).decode()
    return tuple(_result(row) for row in csv.DictReader(io.StringIO(content)))


def benchmarks(workload: str) -> frozenset[str]:
    """Return the workload's names in official results: "bert" gives "bert-99" and "bert-99.9"."""
    rounds = [load_round(name).find(workload) for name in ROUNDS]
    names = {workload, *(name for about in rounds if about for name in about.checker_names)}
    return frozenset(names & {result.benchmark for result in official_results()})


def _result(row: dict[str, Any]) -> OfficialResult:
    row |= {name: int(row[name] or 0) for name in ("count", "nodes")}
    row |= {name: float(row[name] or 0) or None for name in ("value", "samples_per_s", "power")}
    if row["unit"] in ("samples/s", "queries/s"):
        row["samples_per_s"] = row["samples_per_s"] or row["value"]
    return OfficialResult(
        **row | {"inferred": row["inferred"] == "yes", "scenario": Scenario(row["scenario"])}
    )
