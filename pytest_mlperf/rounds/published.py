"""Published figures: MLCommons' results of a round, and printed figures that cannot be.

`v4.1-results.csv` has all 937 results of MLPerf Inference v4.1, datacenter and edge, of
https://github.com/mlcommons/inference_results_v4.1 at commit 198fc46799b3: `value` is what LoadGen
logged, in `unit`; `samples_per_s` stands beside values in tokens. The MLPerf name and logo are
trademarks of MLCommons Association. The other figures are of the table `claims.toml`.
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

PAGES = {
    "A": "NVIDIA's tables of MLPerf Inference v4.1, data center",
    "B": "a third party's summary of GPU speeds",
}

ROUND = "v4.1"
"""The round whose official results the figures are held against."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One figure, read as it is printed.

    Attributes:
        page, line: Where it is printed: a key of `PAGES`, and the line of its text.
        text: The number as printed.
        says: The page's words for what it is of.
        workload, scenario, metric, value, unit: What that is here; scenario None: none is said.
        accelerator, gpus: Name in the table of GPUs or in `figures`, and how many.
        product: MLPerf's name of the GPU, where the page says that it is a result of the round.
        precision, batch: As printed; of MLPerf's rows, as the submission's code has it.
        figures: Of an accelerator that the table of GPUs lacks.
        expect: What finds the fault.
        truth: What the number is; "": nobody knows.
    """

    page: str
    line: int
    text: str
    says: str
    workload: str
    scenario: str | None = None
    metric: str
    value: float
    unit: str
    accelerator: str
    gpus: int
    product: str | None = None
    precision: str | None = None
    batch: int | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    expect: Literal["certain", "estimated", "official"]
    truth: str = ""


@cache
def known_claims() -> tuple[Claim, ...]:
    """Read the figures in the order of the table."""
    raw = tomllib.loads(files(__package__).joinpath("claims.toml").read_text("utf-8"))
    return tuple(Claim(**own) for own in raw["claims"])


ROUNDS_WITH_RESULTS = ("v4.1",)

_TECHNIQUES = {
    "_Sparse": ("2:4-sparsity", "retraining"),
    "_DepthPruned": ("pruning", "distillation"),
    "_LCM": ("latent-consistency",),
}
"""What the open submissions of the table used, by the end of their system's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfficialResult:
    """One result as MLCommons published it.

    Attributes:
        division: "closed" or "open".
        submitter, system: Who, and their name of the system.
        accelerator: Product, as submitted; "" for CPUs.
        model: The checker's name of the workload, with its target: "llama2-70b-99.9".
        value: As logged, in `unit`: samples/s, queries/s, tokens/s or ms.
        samples_per_s: Of a rate; None: a latency.
    """

    division: str
    submitter: str
    system: str
    accelerator: str
    count: int
    model: str
    scenario: str
    value: float
    unit: str
    samples_per_s: float | None

    @property
    def tokens_per_sample(self) -> float | None:
        """Mean tokens of an answer, where the value counts tokens."""
        if self.unit != "tokens/s" or not self.samples_per_s:
            return None
        return self.value / self.samples_per_s

    @property
    def techniques(self) -> tuple[str, ...]:
        """Techniques of the open division that the system's name says."""
        ends = (names for end, names in _TECHNIQUES.items() if self.system.endswith(end))
        return next(ends, ())


@cache
def official_results(name: str) -> tuple[OfficialResult, ...]:
    """Read a round's results; a KeyError says that the package has none of it."""
    if name not in ROUNDS_WITH_RESULTS:
        raise KeyError(name)
    with files(__package__).joinpath(f"{name}-results.csv").open(encoding="utf-8") as file:
        return tuple(_result(row) for row in csv.DictReader(file))


def _result(row: dict[str, Any]) -> OfficialResult:
    """Return a row, whose columns are the fields."""
    value, samples = float(row["value"]), row["samples_per_s"]
    if not samples and row["unit"] in ("samples/s", "queries/s"):
        samples = value
    numbers = {
        "count": int(row["count"] or 0),
        "value": value,
        "samples_per_s": float(samples) if samples else None,
    }
    return OfficialResult(**row | numbers)
