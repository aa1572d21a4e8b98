"""Define the paths of a submission's files by round.

Source: tools/submission/submission_checker/constants.py of https://github.com/mlcommons/inference,
and tools/submission/submission_checker.py of its tag v4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mlperf.extension import Scenario

DETAIL_LOG, SUMMARY_LOG = "mlperf_log_detail.txt", "mlperf_log_summary.txt"
ANSWERS_LOG, SCORES_FILE = "mlperf_log_accuracy.json", "accuracy.txt"

FLAT = ("v6.0", "v6.1")
"""Rounds with measurements and compliance in the folder of results."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Build a submission's paths for one scenario, benchmark and system; `top`: "closed/Acme"."""

    round: str
    top: str
    system: str
    benchmark: str
    scenario: Scenario

    def _below(self, name: str) -> str:
        return f"{self.top}/{name}/{self.system}/{self.benchmark}/{self.scenario}"

    @property
    def flat(self) -> bool:
        """Whether the round keeps measurements and compliance files in the results folder."""
        return self.round in FLAT

    @property
    def results(self) -> str:
        """Folder of the scenario's logs."""
        return self._below("results")

    @property
    def performance(self) -> str:
        """Folder of the performance run."""
        return f"{self.results}/performance/run_1"

    @property
    def accuracy(self) -> str:
        """Folder of the accuracy run."""
        return f"{self.results}/accuracy"

    @property
    def measurements(self) -> str:
        """Folder of the files with LoadGen's settings."""
        return self.results if self.flat else self._below("measurements")

    def implementation(self, name: str) -> str:
        """Return the path of the file on how implementation `name` prepares the model."""
        if self.flat:
            return f"{self.measurements}/measurements.json"
        return f"{self.measurements}/{self.system}_{name}_{self.scenario}.json"

    def audit(self, test: str) -> str:
        """Return the folder of a compliance test."""
        return f"{self.results if self.flat else self._below('compliance')}/{test}"

    @property
    def description(self) -> str:
        """Path of the JSON file that describes the system."""
        return f"{self.top}/systems/{self.system}.json"

    def source(self, name: str) -> str:
        """Return the source folder: src, or that of implementation `name` in older rounds."""
        return f"{self.top}/src" if self.flat else f"{self.top}/code/{self.benchmark}/{name}"
