"""The results that MLCommons published for a round, as far as a limit needs them.

`v4.1-results.csv` has all 937 results of MLPerf Inference v4.1, datacenter and edge, of
https://github.com/mlcommons/inference_results_v4.1 at commit 198fc46799b3: `value` is what LoadGen
logged, in `unit`; `samples_per_s` stands beside values in tokens. The MLPerf name and logo are
trademarks of MLCommons Association.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

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
        count: Accelerators of the system.
        model: The checker's name of the workload, with its target: "llama2-70b-99.9".
        scenario: MLPerf scenario.
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
    """Read a round's results.

    Args:
        name: One of `ROUNDS_WITH_RESULTS`.

    Raises:
        KeyError: The package has none of this round.
    """
    if name not in ROUNDS_WITH_RESULTS:
        raise KeyError(name)
    with files(__package__).joinpath(f"{name}-results.csv").open(encoding="utf-8") as file:
        return tuple(_result(row) for row in csv.DictReader(file))


def _result(row: dict[str, str]) -> OfficialResult:
    value, unit = float(row["value"]), row["unit"]
    samples = value if unit in ("samples/s", "queries/s") else None
    return OfficialResult(
        division=row["division"],
        submitter=row["submitter"],
        system=row["system"],
        accelerator=row["accelerator"],
        count=int(row["count"] or 0),
        model=row["model"],
        scenario=row["scenario"],
        value=value,
        unit=unit,
        samples_per_s=float(row["samples_per_s"]) if row["samples_per_s"] else samples,
    )
