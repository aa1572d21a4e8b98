"""Sessions that record replace their outliers, and make no first run count that is unlike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.policy import Policy, Update
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.job import Job
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.measure import ProcessResult, ProcessTask
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.plan import plan_suite
from tests.core.made import make_run, on_day, present

QUIET = (100.0, 100.3, 99.8, 100.1, 99.7, 100.2, 99.9, 100.0)

SUITE = """
schema = 1
round = "v4.1"
[workload]
name = "mine"
dataset = { use = "synthetic", samples = 32 }
[[engines]]
use = "null"
accelerators = ["cpu"]
options = { latency_s = 0.001 }
[[scenarios]]
name = "Offline"
target_qps = 100
[limits]
throughput = { max_drop = "30%" }
"""


@dataclass
class Lab:
    """A suite whose runs reach given rates, a session a day."""

    folder: Path
    rates: Iterator[float] = field(default_factory=lambda: iter(()))
    day: int = -1
    made: int = 0

    def measure(
        self, job: Job, conditions: Conditions, show: Callable[[str], None], task: ProcessTask
    ) -> ProcessResult:
        """Stand for `pytest_mlperf.run.measure.measure`."""
        del job, show, task
        self.made += 1
        return ProcessResult(
            run=make_run(
                metrics={"throughput": next(self.rates)},
                session=conditions.session,
                started=on_day(self.day),
                folder=str(self.folder / f"run-{self.made}"),
            ),
            accuracy=None,
            scored=None,
            unscored=None,
            subject=Subject(identity={}, fingerprint={}),
            target_qps=100.0,
            probed=False,
        )

    def session(
        self,
        *rates: float,
        update: Update | None = "missing",
        baseline_runs: int = 8,
        accepts: bool = False,
    ) -> Verdict:
        """Return the verdict of one more session; each run reaches the next rate."""
        self.rates, self.day, self.made = iter(rates), self.day + 1, 0
        (self.folder / "s.mlperf.toml").write_text(SUITE, "utf-8")
        (planned,) = plan_suite(self.folder / "s.mlperf.toml")
        conditions = Conditions(
            folder=self.folder,
            session=f"session {self.day}",
            commit=None,
            handicap=0.0,
            patience=Patience(),
            lease_limit_s=1.0,
            machine=Machine(cpu={}),
            control=False,
        )
        policy = Policy(
            update=update,
            baseline_runs=baseline_runs,
            reason="as it was",
            accept_regression=accepts,
            baselines=self.folder,
            accuracy=self.folder,
            root=self.folder,
        )
        bench = Bench(conditions, policy, lambda _: None)
        return bench.verdict(planned, Kind.PERFORMANCE, {Kind.PERFORMANCE})

    @property
    def record(self) -> Record:
        """The record of the only case."""
        (file,) = self.folder.glob("cpu/quick/mine/*.json")
        return present(baselines.load(file)).records[0]

    def kept(self, session: int = 0) -> list[float]:
        """Return the recorded values of a session."""
        runs = self.record.runs
        return [r.metrics["throughput"] for r in runs if r.session == f"session {session}"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    screening_lab = Lab(tmp_path)
    monkeypatch.setattr("pytest_mlperf.bench.runner.measure", screening_lab.measure)
    return screening_lab


def noted(verdict: Verdict, text: str) -> bool:
    return any(text in note for note in map(sentence, verdict.notes))


def values(verdict: Verdict) -> Sequence[float]:
    return [run.metrics["throughput"] for run in verdict.runs]


def test_an_outlier_is_replaced_by_a_further_run_with_a_note(lab: Lab) -> None:
    """The results keep it; the record and its detectable change do not."""
    rates = (*QUIET[:3], 60.0, *QUIET[3:])

    verdict = lab.session(*rates)

    assert verdict.outcome is Outcome.RECORDED
    assert lab.kept() == [*QUIET]
    assert values(verdict) == [*rates]
    assert noted(verdict, "run 4 of 9 is an outlier, 60 samples/s: not recorded")
    assert sentence(verdict.headline).startswith("8 runs in ")
    assert noted(verdict, "a baseline of 4 days, or --mlperf-against")


def test_a_machine_that_is_really_disturbed_is_recorded_as_it_is(lab: Lab) -> None:
    """No choice of its runs makes it a quiet one; the note states the detectable change."""
    rates = (*QUIET[:6], 50.0, 51.0, 50.5)

    verdict = lab.session(*rates)

    assert verdict.outcome is Outcome.RECORDED
    assert lab.kept() == [*rates]
    assert noted(verdict, "the smallest detectable regression is above the limit")


@pytest.mark.parametrize("update", ["missing", "append"])
def test_a_session_that_is_added_is_screened_too(lab: Lab, update: Update) -> None:
    """A third run decides which of two is the outlier; one that differs as a whole is kept."""
    lab.session(*QUIET)

    outlier = lab.session(100.1, 60.0, 99.9, update=update)
    whole = lab.session(80.0, 80.2, update=update)
    disturbed = lab.session(60.0, 100.0, 30.0, 170.0, 10.0, update=update)

    assert outlier.outcome is whole.outcome is Outcome.RECORDED
    assert lab.kept(1) == [100.1, 99.9]
    assert noted(outlier, "run 2 of 3 is an outlier, 60 samples/s: not recorded")
    assert lab.kept(2) == [80.0, 80.2]
    assert lab.kept(3) == []
    assert "runs agree with each other" in " ".join(
        (sentence(disturbed.headline), *map(sentence, disturbed.notes))
    )


def test_an_unlike_first_run_counts_in_no_session(lab: Lab) -> None:
    """Neither when a session is added nor when it is judged; recording again screens again."""
    first = lab.session(70.0, *QUIET)
    grown = lab.session(70.0, 100.1, 100.2)
    judged = lab.session(70.0, 100.0, update=None)
    dropped = lab.session(50.0, *[65.0] * 5, update=None)

    assert noted(first, "the first run of a session differs by −30.0 % in samples/s: not recorded")
    assert lab.record.skips_first_run
    assert (lab.kept(), lab.kept(1)) == ([*QUIET], [100.1, 100.2])
    assert values(grown) == [100.1, 100.2]
    assert values(judged) == [100.0]
    assert judged.metrics[0].now == pytest.approx(100.0)
    assert noted(judged, "the first run does not count, as in the baseline: 70 samples/s")
    assert dropped.outcome is Outcome.PERF_DROP
    assert not any(
        "first_run" in line for line in (*first.baseline.changed, *judged.baseline.changed)
    )

    anew = lab.session(*QUIET, update="replace")
    assert len(anew.runs) == len(lab.record.runs) == 8
    assert (anew.outcome, noted(anew, "does not count")) == (Outcome.RECORDED, False)


def test_first_runs_of_older_sessions_are_left_out_once_they_are_seen_to_differ(lab: Lab) -> None:
    """With two runs each it takes three sessions; the last one makes a further run."""
    for first, later in ((94.0, 100.0), (94.2, 100.1)):
        lab.session(first, *[later] * 4, baseline_runs=2)
    record = lab.record

    last = lab.session(93.8, 99.9, 99.8, 100.1, 100.0)

    assert last.outcome is Outcome.RECORDED
    assert noted(last, "the first run of a session differs by")
    assert not record.skips_first_run
    assert lab.record.skips_first_run
    assert [lab.kept(session) for session in range(3)] == [[100.0], [100.1], [99.9, 99.8]]


def test_replace_records_a_worse_value_only_where_that_is_accepted(lab: Lab) -> None:
    """Worse is what `pytest-mlperf update` calls so: by more than a tenth of the limit."""
    lab.session(*QUIET)
    record = lab.record
    slower = [rate * 0.96 for rate in QUIET]

    refused = lab.session(*slower, update="replace")

    assert refused.outcome is Outcome.PERF_DROP
    old, new = pytest.approx(100, rel=1e-4), pytest.approx(96, rel=1e-4)
    step = Note.of("step", metric="throughput", old=old, new=new)
    assert refused.headline == Note.of("record_worse", steps=(step,))
    assert (lab.record, len(refused.runs)) == (record, 8)
    for rates, accepts in (
        (slower, True),
        ([rate * 0.98 for rate in slower], False),
        ([rate * 1.1 for rate in slower], False),
    ):
        anew = lab.session(*rates, update="replace", accepts=accepts)
        assert anew.outcome is Outcome.RECORDED
        assert [run.metrics["throughput"] for run in lab.record.runs] == rates
    assert [entry.action for entry in lab.record.history] == ["record", *["replace"] * 3]
