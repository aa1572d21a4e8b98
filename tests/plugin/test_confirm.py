"""A drop is measured again beside the build of its baseline, and says which evidence decided."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_mlperf.case_runs import CaseRuns, Policy
from pytest_mlperf.confirm import NO_BUILD, NO_METRIC, confirm, in_words
from pytest_mlperf.core.baseline import Baseline
from pytest_mlperf.core.judge.answer import Answer
from pytest_mlperf.core.judge.ratio import Ratio
from pytest_mlperf.core.judge.rule_r import Decision
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.performance import judge_performance
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.supervisor import Patience
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.plan import plan_suite
from tests.plugin.project import RATE, Project, case, near
from tests.run import other_python
from tests.run.other_python import ENGINE, git

ACME = case(engine="Acme")
HERE = Path(sys.prefix).name
"""An engine that is slow `here` is as fast as ever in another environment."""


@dataclass(frozen=True, kw_only=True)
class Confirming(Policy):
    """As --mlperf-confirm sets it."""

    confirm: bool = True


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_python.environment(tmp_path_factory.mktemp("other") / "the-old-one")


@dataclass(frozen=True)
class Lab:
    """A project with an engine of its own and a baseline that says how fast it was."""

    project: Project

    def case(
        self, baseline_engine: str = "", *, slow: str = "", limit: str = "40%", handicap: float = 0
    ) -> CaseRuns:
        """Return a case without runs; `baseline_engine` is the table in the suite."""
        given = f"baseline_engine = {{ {baseline_engine} }}\n" if baseline_engine else ""
        file = self.project.suite(
            engines=f'[[engines]]\nuse = "acme:Acme"\n{given}options = {{ slow = "{slow}" }}\n',
            more=f'[limits]\nthroughput = {{ max_drop = "{limit}" }}\n',
        )
        (planned,) = plan_suite(file)
        return CaseRuns(planned, self.conditions(handicap), self.policy, lambda _: None)

    def judge(self, runs: CaseRuns, *, handicap: float = 0) -> tuple[Answer, Answer]:
        """Return the answer against the stored baseline, and the one after it is confirmed."""
        first = judge_performance(runs, self.policy, {"performance"})
        conditions = self.conditions(handicap)
        return first, confirm(runs, first, self.policy, conditions, lambda _: None)

    @property
    def policy(self) -> Confirming:
        return Confirming(accuracy=self.project.path / "accuracy", root=self.project.path)

    def conditions(self, handicap: float = 0) -> Conditions:
        return Conditions(
            folder=self.project.path / "runs",
            session="now",
            commit=None,
            handicap=handicap,
            patience=Patience(progress_s=60),
            lease_limit_s=60,
            machine=detect(gpus=False),
            control=False,
        )


@pytest.fixture
def lab(project: Project, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (project.path / "acme.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(project.path)
    project.baseline(near(RATE), of=ACME)
    return Lab(project)


def test_a_drop_of_this_build_is_decided_by_the_runs_in_turns(lab: Lab, python: Path) -> None:
    """The baseline's own build is as fast as ever today."""
    runs = lab.case(f'python = "{python}"', slow=HERE)

    first, answer = lab.judge(runs)

    assert first.outcome is answer.outcome is Outcome.PERF_DROP
    assert answer.headline == first.headline
    note = answer.notes[0]
    assert note.startswith("decided by A/B: ")
    assert " pairs in turns, −" in note
    assert f" with python {python}; runs in runs" in note
    turns = [folder.name for folder in order(lab, len(runs.runs))]
    case_id = ACME.id
    number = len(runs.runs)
    assert turns[:4] == [
        f"{case_id}.baseline-build.1",
        f"{case_id}.{number + 1}",
        f"{case_id}.{number + 2}",
        f"{case_id}.baseline-build.2",
    ]


def order(lab: Lab, before: int) -> list[Path]:
    """Return the folders of the runs in turns, oldest first."""
    found = lab.project.path.glob("runs/*/spec.json")
    return sorted((f.parent for f in found), key=lambda f: f.stat().st_ctime_ns)[before:]


def test_a_drop_that_the_baseline_s_build_has_too_is_none_of_this_build(
    lab: Lab, python: Path
) -> None:
    """The machine is slower than it was when the baseline was recorded."""
    lab.project.baseline(near(2 * RATE), of=ACME)

    first, answer = lab.judge(lab.case(f'python = "{python}"'))

    assert first.outcome is Outcome.PERF_DROP
    assert answer.outcome is Outcome.OK
    assert answer.headline.startswith("samples/s ")
    assert answer.headline.endswith(" by A/B; −40 % excluded")
    assert answer.notes[0].startswith("not confirmed by A/B: ")
    assert "the baseline's own build is as slow today" in answer.notes[0]
    assert answer.notes[1] == f"against the stored baseline: PERF DROP {first.headline}"
    assert answer.metrics[0].outcome is Outcome.OK


def test_what_pairs_neither_prove_nor_exclude_stays_open(lab: Lab, python: Path) -> None:
    """A limit of 1 % is beyond what five pairs on a CPU can tell."""
    lab.project.baseline(near(2 * RATE), of=ACME)

    first, answer = lab.judge(lab.case(f'python = "{python}"', limit="1%"))

    assert first.outcome is Outcome.PERF_DROP
    assert answer.outcome is Outcome.INCONCLUSIVE
    assert answer.notes[0].startswith("not confirmed by A/B, not refuted either: 5 pairs in turns")
    assert answer.notes[1].startswith("against the stored baseline: PERF DROP ")


def test_a_commit_in_git_is_the_baseline_s_build(lab: Lab) -> None:
    """The tested project's own code became slower; its last release was not."""
    git(lab.project.path, "init", "-q", "-b", "main")
    git(lab.project.path, "add", "acme.py")
    git(lab.project.path, "commit", "-q", "-m", "fast")
    git(lab.project.path, "tag", "v1")
    slower = ENGINE.replace("FACTOR = 1", "FACTOR = 2")
    (lab.project.path / "acme.py").write_text(slower, "utf-8")

    _, answer = lab.judge(lab.case('git = "v1"'))

    assert answer.outcome is Outcome.PERF_DROP
    assert answer.notes[0].startswith("decided by A/B: ")
    assert " with git v1 (" in answer.notes[0]


def test_a_handicap_slows_only_this_build(lab: Lab, python: Path) -> None:
    """It shows what a failure looks like, so it must not cancel."""
    runs = lab.case(f'python = "{python}"', handicap=0.5)

    _, answer = lab.judge(runs, handicap=0.5)

    assert answer.outcome is Outcome.PERF_DROP
    assert answer.notes[0].startswith("decided by A/B: ")


def test_another_build_than_the_baseline_s_decides_nothing(lab: Lab, python: Path) -> None:
    """That it is as slow would excuse every drop: one run is enough to see it."""
    file = lab.project.baseline(near(2 * RATE), of=ACME)
    stored = baselines.load(file)
    assert stored is not None
    known = {"engine.acme": "0.9"}
    (record,) = stored.records
    baselines.save(file, with_fingerprint(stored, record.fingerprint | known))
    runs = lab.case(f'python = "{python}"')

    first, answer = lab.judge(runs)

    assert answer.outcome is Outcome.PERF_DROP
    assert answer.notes == (
        "not confirmed by A/B: baseline_engine is not the build of the baseline: engine.acme 0.9 "
        "there, 1.0 here",
        *first.notes,
    )
    assert len(order(lab, len(runs.runs))) == 1


def with_fingerprint(stored: Baseline, fingerprint: dict[str, str]) -> Baseline:
    (record,) = stored.records
    return replace(stored, records=(replace(record, fingerprint=fingerprint),))


@pytest.mark.parametrize(
    ("baseline_engine", "note"),
    [
        ("", NO_BUILD),
        (
            'python = "/there/is/none"',
            "not confirmed by A/B: {suite}:10: engines[0].baseline_engine.python, /there/is",
        ),
        ('command = ["false"]', "not confirmed by A/B: the worker ended with exit code 1"),
        ('git = "v9"', "not confirmed by A/B: git rev-parse"),
    ],
)
def test_a_drop_stands_where_the_other_build_cannot_be_had(
    baseline_engine: str, note: str, lab: Lab
) -> None:
    """What is proven stays proven until something better speaks."""
    lab.project.baseline(near(2 * RATE), of=ACME)
    runs = lab.case(baseline_engine)

    first, answer = lab.judge(runs)

    assert first.outcome is answer.outcome is Outcome.PERF_DROP
    assert answer.notes[0].startswith(note.format(suite=runs.planned.path))
    assert answer == replace(first, notes=answer.notes)


def test_only_a_drop_is_confirmed_and_only_when_it_is_asked_for(lab: Lab, python: Path) -> None:
    """Neither costs another process."""
    runs = lab.case(f'python = "{python}"')
    drop = Answer(outcome=Outcome.PERF_DROP, headline="samples/s −9 %")
    plain = Policy(accuracy=lab.policy.accuracy, root=lab.policy.root)
    conditions = lab.conditions()

    assert confirm(runs, drop, plain, conditions, print) is drop
    for outcome in set(Outcome) - {Outcome.PERF_DROP, Outcome.POWER_DROP}:
        other = Answer(outcome=outcome, headline="")
        assert confirm(runs, other, lab.policy, conditions, print) is other
    assert confirm(runs, drop, lab.policy, conditions, print).notes == (NO_METRIC,)
    assert not (lab.project.path / "runs").exists()


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("throughput", "−20.0 % (−25.0 to −15.0 %)"),
        ("latency_p99", "+25.0 % (+17.6 to +33.3 %)"),
    ],
)
def test_a_change_is_that_of_the_raw_value(metric: str, words: str) -> None:
    """A latency that rises is worse."""
    ratio = Ratio(decision=Decision.FAIL, ratio=0.8, low=0.75, high=0.85, pairs=2, sd=0.01)

    assert in_words(metric, ratio) == words


# --- a whole session -----------------------------------------------------------------------------


def test_the_verdict_says_which_evidence_decided(lab: Lab, python: Path) -> None:
    """In the message of the failure, and in the results."""
    runs = lab.case(f'python = "{python}"', slow=HERE)

    result = lab.project.run(runs.planned.path, "--mlperf-confirm")

    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r"PERF DROP samples/s −",
            r"note      decided by A/B: \d pairs in turns, −.* %\) with python",
            r"reproduce pytest .* --mlperf-confirm",
        ],
        consecutive=False,
    )
    (found,) = lab.project.results().cases
    assert found.verdict.notes[0].startswith("decided by A/B: ")


def test_a_drop_that_is_not_confirmed_passes_with_both_results(lab: Lab, python: Path) -> None:
    lab.project.baseline(near(2 * RATE), of=ACME)
    runs = lab.case(f'python = "{python}"')

    result = lab.project.run(runs.planned.path, "--mlperf-confirm")

    result.assert_outcomes(passed=1)
    (found,) = lab.project.results().cases
    assert found.verdict.outcome is Outcome.OK
    assert found.verdict.notes[1].startswith("against the stored baseline: PERF DROP ")


def test_without_the_option_the_suite_s_other_build_is_not_run(lab: Lab) -> None:
    """A suite is code: what it names runs only when it is asked for, and never at collection."""
    runs = lab.case('command = ["/there/is/none"]')

    result = lab.project.run(runs.planned.path)

    result.assert_outcomes(passed=1)
