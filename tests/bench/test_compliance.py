"""Test that a compliance test runs and scores its own data, against the runs of its case."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.accuracy import Scoring
from pytest_mlperf.run.answers import ACCURACY_LOG, write_answers
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.run.measure import ProcessResult, ProcessTask
from pytest_mlperf.suite.plan import plan_suite
from tests.core.made import make_run
from tests.run.harness import entry

SUITE = """
schema = 1
round = "v6.1"
[workload]
name = "{name}"
twin_of = "gpt-oss-120b"
dataset = {{ use = "synthetic", samples = 64 }}
accuracy_dataset = {{ use = "synthetic", samples = 32, seed = 1 }}
scorer = {{ use = "exact_match", answers = "ids" }}
reference = {{ exact_match = 90.0 }}
{more}
[[engines]]
use = "null"
accelerators = ["cpu"]
[[scenarios]]
name = "Offline"
"""

SMALL = 'compliance_dataset = { use = "synthetic", samples = 16, seed = 2 }'
INVALID = Reason(key=Key.TOKENS_MISCOUNTED, text="counts differ")


@dataclass
class Lab:
    """A case whose timed runs are VALID or not, and whose scores are given.

    Attributes:
        processes: Samples of the data set of each process, by the test that it was made for.
        scored: Samples of the data set that was scored, how many were answered, and of how many.
    """

    folder: Path
    valid: bool = True
    score: float = 95.0
    answers: Sequence[bytes] = tuple(array("i", range(5, 15)).tobytes() for _ in range(8))
    processes: list[tuple[str, int]] = field(default_factory=list)
    scored: list[tuple[int, int, int]] = field(default_factory=list)

    def measure(
        self, job: Job, conditions: Conditions, show: Callable[[str], None], task: ProcessTask
    ) -> ProcessResult:
        """Stand for `pytest_mlperf.run.measure.measure`."""
        del conditions, show
        samples = job.dataset.options["samples"]
        self.processes.append((task.audit.test if task.audit else "", samples))
        logs = self.folder / f"run-{len(self.processes)}" / "performance"
        logs.mkdir(parents=True)
        write_answers(logs / ACCURACY_LOG, self.answers)
        text = (logs / ACCURACY_LOG).read_text("utf-8")
        (logs / ACCURACY_LOG).write_text(text.replace('" }', '", "token_count" : 10 }'), "utf-8")
        run = {"result": {"answer_forms": ["int64", "int32"]}}
        (logs / "run.json").write_text(json.dumps(run), "utf-8")
        values = {"result_validity": "VALID", "qsl_reported_total_count": samples, "num_errors": 0}
        (logs / DETAIL).write_text("".join(entry(*item) for item in values.items()), "utf-8")
        invalid = () if self.valid or task.audit else (INVALID,)
        return ProcessResult(
            run=make_run(invalid=invalid, folder=str(logs), target_qps=100.0),
            accuracy=None,
            scored=None,
            unscored=None,
            subject=Subject(identity={}, fingerprint={"dataset": str(samples)}),
            target_qps=100.0,
            probed=True,
        )

    def score_logs(
        self, scoring: Scoring, blocks: Sequence[Mapping[str, Any]], total: int
    ) -> tuple[Accuracy, Scored | None]:
        """Stand for `pytest_mlperf.run.accuracy.score_logs`."""
        (block,) = blocks
        first = json.loads(Path(block["log"]).read_text("utf-8"))[0]["data"]
        assert array("q", bytes.fromhex(first)).tolist() == list(range(5, 15))
        samples = scoring.dataset.options["samples"]
        self.scored.append((samples, len(block["indices"]), total))
        accuracy = Accuracy(
            scores={"exact_match": self.score}, samples=8, total=total, full=False, folder=""
        )
        return accuracy, None

    def verdict(self, test: Kind, *more: str, name: str = "mine") -> Verdict:
        file = self.folder / "s.mlperf.toml"
        file.write_text(SUITE.format(more="\n".join(more), name=name), "utf-8")
        (planned,) = plan_suite(file)
        conditions = Conditions(
            folder=self.folder,
            session="now",
            commit=None,
            handicap=0.0,
            patience=Patience(),
            lease_limit_s=1.0,
            machine=Machine(cpu={}),
            control=False,
        )
        policy = Policy(baselines=self.folder, accuracy=self.folder, root=self.folder)
        return Bench(conditions, policy, lambda _: None).verdict(planned, test, {test})


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path)
    monkeypatch.setattr("pytest_mlperf.bench.runner.measure", lab.measure)
    monkeypatch.setattr("pytest_mlperf.bench.compliance.score_logs", lab.score_logs)
    return lab


def test_test07_is_scored_against_the_truths_of_the_data_that_it_asked(lab: Lab) -> None:
    assert lab.verdict(Kind.TEST07).outcome is Outcome.OK
    assert lab.processes[-1] == (Kind.TEST07, 64)
    assert lab.scored[-1] == (64, 8, 64)

    assert lab.verdict(Kind.TEST07, SMALL).outcome is Outcome.OK
    assert lab.processes[-1] == (Kind.TEST07, 16)
    assert lab.scored[-1] == (16, 8, 16)

    lab.score = 89.0
    verdict = lab.verdict(Kind.TEST07, SMALL)
    assert verdict.outcome is Outcome.GATE_FAIL
    assert isinstance(verdict.headline, Note)
    assert verdict.headline == Note.of(
        "audit",
        test=str(Kind.TEST07),
        reasons=(Note.of("score_too_low", score=89.0, least=pytest.approx(89.1)),),
    )
    assert verdict.subject
    assert verdict.subject.fingerprint == {"dataset": "64"}


def test_test09_of_a_twin_holds_answers_against_its_own_length(lab: Lab) -> None:
    assert lab.verdict(Kind.TEST09, "timed_tokens = 10").outcome is Outcome.OK
    verdict = lab.verdict(Kind.TEST09, "timed_tokens = 12")
    assert verdict.outcome is Outcome.GATE_FAIL
    bounds = {"low": pytest.approx(10.8), "high": pytest.approx(13.2)}
    length = Note.of("mean_length", mean=10.0, **bounds)
    assert verdict.headline == Note.of("audit", test=str(Kind.TEST09), reasons=(length,))
    count = len(lab.processes)
    with pytest.raises(UnavailableError, match=r"set timed_tokens in \[workload\] to its mean"):
        lab.verdict(Kind.TEST09)
    assert len(lab.processes) == count


def test_runs_that_are_invalid_end_only_the_tests_that_compare_speeds(lab: Lab) -> None:
    lab.valid = False
    more = "timed_tokens = 10"
    tests: tuple[Kind, ...] = (Kind.TEST06, Kind.TEST07, Kind.TEST09, Kind.TEST04)
    outcomes = {test: lab.verdict(test, more) for test in tests}

    assert {test: verdict.outcome for test, verdict in outcomes.items()} == {
        **dict.fromkeys(tests[:3], Outcome.OK),
        Kind.TEST04: Outcome.INVALID,
    }
    assert "counts differ" in sentence(outcomes[Kind.TEST04].headline)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('twin_of = "gpt-oss-120b"', 'twin_of = "llama2-70b"'), "only TEST07 uses it, which v6.1"),
        (("samples = 16", "sample = 16"), "dataset 'synthetic' has no option 'sample'"),
    ],
)
def test_data_that_no_test_reads_or_takes_are_a_defect_of_the_suite(
    change: tuple[str, str], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "s.mlperf.toml"
    file.write_text(SUITE.format(more=SMALL, name="mine").replace(*change), "utf-8")
    with pytest.raises(SuiteError, match=reason):
        plan_suite(file)
