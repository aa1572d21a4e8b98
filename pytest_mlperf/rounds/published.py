"""MLCommons' results of four rounds.

`official-results.csv.gz` has the results of MLPerf Inference v4.1 (937), v5.1 (1,448), v6.0 (520)
and v6.1 (492), datacenter and edge, made by tools/official_results.py of
https://github.com/mlcommons/inference_results_v4.1 at commit 198fc46799b3, _v5.1 at 965182b03376,
_v6.0 at 232fbf90fceb and _v6.1 at 7bf15fd80896: those of v4.1 are as LoadGen logged them, those of
v5.1 and v6.0 were held against their logs, those of v6.1 are its table's. The power of v4.1 is
computed from its meters' logs, as the round's checker does it. The MLPerf name and logo are
trademarks of MLCommons Association.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pytest_mlperf.core.case import ScenarioName
from pytest_mlperf.core.numbers import Count, Positive
from pytest_mlperf.rounds import ROUNDS, load_round

RESULTS_FILE = "official-results.csv.gz"

RESULT_COLUMNS = (
    *("round", "division", "category", "availability", "submitter", "system"),
    *("accelerator", "count", "nodes", "model", "used_model", "scenario", "value", "unit"),
    *("statistic", "inferred", "harness", "precision", "samples_per_s", "power", "power_unit"),
)

_TECHNIQUES = {
    "_Sparse": ("2:4-sparsity", "retraining"),
    "_DepthPruned": ("pruning", "distillation"),
    "_LCM": ("latent-consistency",),
}
"""What the open submissions of v4.1 used, by the end of their system's name."""

SECONDS = {"ms": 1e-3, "s": 1.0}

Unit = Literal["samples/s", "queries/s", "tokens/s", "tasks/s", "streams", "ms", "s"]
PowerUnit = Literal["", "W", "mJ"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OfficialResult:
    """One result as MLCommons published it; "" is what the round's table does not say.

    Attributes:
        round: "v6.1".
        division: "closed" or "open".
        category: "datacenter" or "edge".
        availability: "available", "preview" or "rdi".
        submitter, system: Who, and their name of the system.
        accelerator: Product, as submitted; "" for CPUs.
        count, nodes: Accelerators in all, and machines; 0: not said.
        model: The checker's name of the workload, with its target: "llama2-70b-99.9".
        used_model: Another model that an open submission ran.
        value: As published, in `unit`: samples/s, queries/s, tokens/s, tasks/s, ms or s; "streams"
            of MultiStream before v2.0.
        statistic: Of a latency which one; of a rate that it was scheduled, as in Server before
            v4.1; of tokens how they were counted, where they were not.
        inferred: The value was made of another scenario's.
        harness: "loadgen" or "endpoints"; what they measure differs.
        samples_per_s: Of a rate, where it is known; None of a latency.
        power: Of the whole system in `power_unit`, W or mJ a query; None: not measured.
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
    scenario: ScenarioName
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
        """Whether less is better."""
        return self.unit in SECONDS

    @property
    def benchmark(self) -> str:
        """The model as the newest rounds call it."""
        return "resnet" if self.model == "resnet50" else self.model

    @property
    def kind(self) -> tuple[str, ...]:
        """What two results must share to be compared."""
        return self.benchmark, self.scenario, self.unit, self.statistic, self.harness

    @property
    def tokens_per_sample(self) -> float | None:
        """Mean tokens of an answer, where the value counts tokens."""
        if self.unit != "tokens/s" or not self.samples_per_s:
            return None
        return self.value / self.samples_per_s

    @property
    def techniques(self) -> tuple[str, ...]:
        """Techniques of the open division that the system's name says."""
        return next((names for end, names in _TECHNIQUES.items() if self.system.endswith(end)), ())


@cache
def official_results(name: str | None = None) -> tuple[OfficialResult, ...]:
    """Read a round's results, None: of every round; a KeyError says that there are none of it."""
    if name is not None:
        results = tuple(result for result in official_results() if result.round == name)
        if not results:
            raise KeyError(name)
        return results
    content = gzip.decompress(files(__package__).joinpath(RESULTS_FILE).read_bytes()).decode()
    return tuple(_result(row) for row in csv.DictReader(io.StringIO(content)))


def benchmarks(workload: str) -> frozenset[str]:
    """Return what the results call a workload; a name with a target means that target alone."""
    rounds = [load_round(name).find(workload) for name in ROUNDS]
    names = {workload, *(name for about in rounds if about for name in about.checker_names)}
    return frozenset(names & {result.benchmark for result in official_results()})


def _result(row: dict[str, Any]) -> OfficialResult:
    row |= {name: int(row[name] or 0) for name in ("count", "nodes")}
    row |= {name: float(row[name] or 0) or None for name in ("value", "samples_per_s", "power")}
    if row["unit"] in ("samples/s", "queries/s"):
        row["samples_per_s"] = row["samples_per_s"] or row["value"]
    return OfficialResult(**row | {"inferred": row["inferred"] == "yes"})
