"""A drop is measured again beside the build of its baseline, and says which evidence decided."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.confirm import (
    MORE_SESSIONS,
    NO_BUILD,
    NO_METRIC,
    NOT_MADE,
    UNCHANGED,
    confirm,
    in_words,
    not_made,
    worse,
)
from pytest_mlperf.bench.performance import judge_performance
from pytest_mlperf.bench.policy import Confirm, Phase, Policy
from pytest_mlperf.core.baseline import Baseline
from pytest_mlperf.core.judge.ratio import Ratio
from pytest_mlperf.core.judge.ruling import Ruling, ruling_of
from pytest_mlperf.core.judge.standing import Decision
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.verdict import (
    InTurns,
    MetricVerdict,
    Outcome,
    Turns,
    Unchecked,
    Verdict,
    beside_accuracy,
)
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.plan import Planned, plan_suite
from tests.plugin.project import RATE, Project, case, near, spec_of
from tests.run import other_python
from tests.run.other_python import ENGINE, git

ACME = case(engine="Acme")
HERE = Path(sys.prefix).name
"""An engine that is slow `here` is as fast as ever in another environment."""

UNSTEADY = "0.002 * factor * (1 + 0.4 * (len(list(Path(__file__).parent.glob('runs/*'))) % 2))"
"""How long a batch takes, by the number of runs until now."""


@dataclass(frozen=True, kw_only=True)
class Confirming(Policy):
    """As --mlperf-confirm sets it."""

    confirm: Confirm = "always"


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

    def judge(self, runs: CaseRuns, *, handicap: float = 0) -> tuple[Ruling, Ruling]:
        """Return the answer against the stored baseline, and the one after it is confirmed."""
        first = judge_performance(runs, {"performance"})
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
    """Every second run is slower by far, so that now the one build is ahead and now the other."""
    lab.project.baseline(near(2 * RATE), of=ACME)
    (lab.project.path / "acme.py").write_text(ENGINE.replace("0.002 * factor", UNSTEADY), "utf-8")

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
    ("baseline_engine", "state", "note"),
    [
        ("", Turns.NO_BUILD, NO_BUILD),
        (
            'python = "/there/is/none"',
            Turns.NO_BUILD,
            "not confirmed by A/B: {suite}:10: engines[0].baseline_engine.python, /there/is",
        ),
        (
            'command = ["false"]',
            Turns.NOT_COMPARABLE,
            "not confirmed by A/B: the worker ended with exit code 1",
        ),
        ('git = "v9"', Turns.NO_BUILD, "not confirmed by A/B: git rev-parse"),
    ],
)
def test_a_drop_stands_where_the_other_build_cannot_be_had(
    baseline_engine: str, state: Turns, note: str, lab: Lab
) -> None:
    lab.project.baseline(near(2 * RATE), of=ACME)
    runs = lab.case(baseline_engine)

    first, answer = lab.judge(runs)

    assert first.outcome is answer.outcome is Outcome.PERF_DROP
    assert answer.notes[0].startswith(note.format(suite=runs.planned.path))
    assert answer == replace(first, notes=answer.notes, turns=answer.turns)
    assert answer.turns is not None
    assert answer.turns.state is state


def test_only_a_drop_is_confirmed_and_only_when_it_is_asked_for(lab: Lab, python: Path) -> None:
    runs = lab.case(f'python = "{python}"')
    drop = Ruling(outcome=Outcome.PERF_DROP, headline="samples/s −9 %")
    never, auto = replace(lab.policy, confirm="never"), replace(lab.policy, confirm="auto")
    conditions = lab.conditions()
    settled = replace(drop, metrics=(fallen(sessions_baseline=4),))

    assert confirm(runs, settled, never, conditions, print) is settled
    assert confirm(runs, settled, auto, conditions, print) is settled  # of four sessions
    assert confirm(runs, drop, auto, conditions, print) is drop
    for outcome in set(Outcome) - {Outcome.PERF_DROP, Outcome.POWER_DROP}:
        other = Ruling(outcome=outcome, headline="")
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
    ratio = Ratio(decision=Decision.FAIL, ratio=0.8, low=0.75, high=0.85, pairs=2, sd=0.01)

    assert in_words(metric, ratio) == words


# --- auto: a baseline of few sessions ------------------------------------------------------------


def fallen(outcome: Outcome = Outcome.PERF_DROP, **about: Any) -> MetricVerdict:
    """Return a metric that seems to have dropped by half."""
    usual: dict[str, Any] = {"low": -0.55, "high": -0.45, "runs": 2, "runs_baseline": 6, "p": 0.001}
    return MetricVerdict(
        metric="throughput",
        outcome=outcome,
        now=RATE / 2,
        baseline=RATE,
        change=-0.5,
        limit=0.4,
        **{**usual, **about},
    )


def provisional() -> Ruling:
    """Return an answer that leans to a drop; what else was added to its headline."""
    metric = fallen(Outcome.PROVISIONAL, leans="drop", note="one session")
    unchecked = Unchecked.NOT_CHECKED
    return Ruling(
        outcome=Outcome.PROVISIONAL,
        headline=beside_accuracy(ruling_of([metric]).headline, unchecked),
        metrics=(metric,),
        unchecked=unchecked,
    )


def measured(lab: Lab, *, handicap: float = 0.0, slow: str = "") -> CaseRuns:
    """Return a case after one run, whose baseline of three sessions is of this very build."""
    lab.project.baseline(near(RATE, 6), of=ACME)
    runs = lab.case(slow=slow, handicap=handicap)
    runs.add_run()
    assert runs.record is not None
    assert runs.subject is not None
    runs.record = replace(runs.record, fingerprint=dict(runs.subject.fingerprint))
    return runs


def test_a_provisional_drop_is_red_once_runs_in_turns_prove_it(lab: Lab) -> None:
    runs = measured(lab, handicap=0.5)
    auto = replace(lab.policy, confirm="auto")

    answer = confirm(runs, provisional(), auto, lab.conditions(0.5), lambda _: None)

    assert answer.outcome is Outcome.PERF_DROP
    assert answer.headline == (
        "samples/s −50.0 % (−55.0 to −45.0 %); −40 % exceeded, accuracy not checked"
    )
    (metric,) = answer.metrics
    assert (metric.outcome, metric.confirmed, metric.leans) == (Outcome.PERF_DROP, True, None)
    assert " with this build without the handicap; runs in runs" in answer.notes[0]
    assert answer.turns is not None
    assert answer.turns.state is Turns.PROVEN
    assert answer.turns.runs == 2 * answer.turns.pairs > 0
    names = [spec_of(folder)["handicap"] for folder in order(lab, 1)]
    assert names[:4] == [0.0, 0.5, 0.5, 0.0]


def test_efficiency_that_is_proven_to_drop_has_its_own_word(lab: Lab) -> None:
    runs = measured(lab, handicap=0.5)
    auto = replace(lab.policy, confirm="auto")

    answer = confirm(
        runs,
        provisional(),
        auto,
        lab.conditions(0.5),
        lambda _: None,
        failing=Outcome.POWER_DROP,
    )

    assert answer.outcome is answer.metrics[0].outcome is Outcome.POWER_DROP


def test_a_provisional_drop_that_the_baseline_s_build_has_too_is_none(
    lab: Lab, python: Path
) -> None:
    lab.project.baseline(near(2 * RATE, 6), of=ACME)
    auto = replace(lab.policy, confirm="auto")

    runs = lab.case(f'python = "{python}"')
    runs.add_run()
    answer = confirm(runs, provisional(), auto, lab.conditions(), lambda _: None)

    assert answer.outcome is answer.metrics[0].outcome is Outcome.OK
    assert answer.metrics[0].leans is None
    assert answer.notes[1].startswith("against the stored baseline: PROVISIONAL samples/s −50.0 %")
    assert answer.turns is not None
    assert answer.turns.state is Turns.EXCLUDED


@pytest.mark.parametrize(
    ("now", "then", "engine", "state", "note"),
    [
        ("0123456789ab", "0123456789ab", "same", Turns.UNCHANGED, UNCHANGED),
        ("0123456789ab+", "0123456789ab", "same", Turns.NO_BUILD, NO_BUILD + MORE_SESSIONS),
        ("aaaaaaaaaaaa", "0123456789ab", "same", Turns.NO_BUILD, NO_BUILD + MORE_SESSIONS),
        (None, None, "same", Turns.NO_BUILD, NO_BUILD + MORE_SESSIONS),
        ("0123456789ab", "0123456789ab", "other", Turns.NO_BUILD, NO_BUILD + MORE_SESSIONS),
    ],
)
def test_without_another_build_a_drop_says_what_it_rests_on(
    now: str | None, then: str | None, engine: str, state: Turns, note: str, lab: Lab
) -> None:
    lab.project.baseline(near(RATE, 6), of=ACME)
    runs = lab.case()
    assert runs.record is not None
    runs.subject = Subject(identity={}, fingerprint={"engine": "same"})
    before = tuple(replace(run, commit=then) for run in runs.record.runs)
    runs.record = replace(runs.record, fingerprint={"engine": engine}, runs=before)
    conditions = replace(lab.conditions(), commit=now)
    auto = replace(lab.policy, confirm="auto")

    answer = confirm(runs, provisional(), auto, conditions, print)

    assert answer.outcome is Outcome.PROVISIONAL
    assert answer.notes == (note,)
    assert answer.turns == InTurns(state=state, metrics=("throughput",))


@pytest.mark.parametrize(("high", "names"), [(0.94, ["throughput"]), (1.0, []), (1.2, [])])
def test_a_drop_that_is_smaller_than_the_limit_is_not_called_none(
    high: float, names: list[str]
) -> None:
    """Where the limit is excluded and 0 as well, the old build is not as slow."""
    ratio = Ratio(decision=Decision.PASS, ratio=0.9, low=0.85, high=high, pairs=4, sd=0.01)

    assert worse({"throughput": ratio}) == names


def test_a_missed_latency_limit_is_not_excused_by_pairs(lab: Lab) -> None:
    """The rate was held when the baseline was recorded; pairs only compare figures."""
    runs = measured(lab)
    runs.runs = [replace(run, limit_missed=True) for run in 2 * runs.runs]
    drop = replace(provisional(), outcome=Outcome.PERF_DROP)

    answer = confirm(runs, drop, lab.policy, lab.conditions(), print)

    assert answer.notes == (NO_METRIC,)
    assert answer.outcome is Outcome.PERF_DROP


# --- many cases: the last word -------------------------------------------------------------------


def last_word(planned: Planned) -> Verdict:
    """Return a drop that was decided at the end of a session, among many."""
    metric = fallen(note="the only drop among 25 pairs judged together, p=0.0004")
    headline = ruling_of([metric]).headline
    return Verdict(
        case=planned.case,
        kind="performance",
        outcome=Outcome.PERF_DROP,
        headline=headline,
        metrics=(metric,),
        notes=("busy",),
    )


def test_a_drop_that_the_others_decided_is_measured_again_after_that(
    lab: Lab, python: Path
) -> None:
    lab.project.baseline(near(2 * RATE, 6), of=ACME)
    planned = lab.case(f'python = "{python}"').planned
    auto = replace(lab.policy, confirm="auto")
    bench = Bench(lab.conditions(), auto, lambda _: None)
    bench.verdict(planned, "performance", {"performance"}, Phase(pairs=25, once=True))

    found = bench.confirm_last(planned, last_word(planned))

    assert found.outcome is found.metrics[0].outcome is Outcome.OK
    assert found.notes[1].startswith("against the stored baseline: PERF DROP")
    assert found.notes[2] == "busy"
    assert found.turns is not None
    assert found.turns.state is Turns.EXCLUDED


def test_where_nothing_is_measured_any_more_the_drop_says_so(lab: Lab) -> None:
    """As after -x, Ctrl-C, or in the controller of pytest-xdist; a settled baseline needs none."""
    auto = replace(lab.policy, confirm="auto")
    drop = last_word(lab.case().planned)

    found = not_made(drop, auto)

    assert found.outcome is Outcome.PERF_DROP
    assert found.notes == (NOT_MADE, "busy")
    assert found.turns == InTurns(state=Turns.NOT_MADE, metrics=("throughput",), reason=NOT_MADE)
    assert not_made(drop, replace(auto, confirm="never")) is drop
    settled = replace(drop, metrics=(replace(drop.metrics[0], sessions_baseline=4),))
    assert not_made(settled, auto) is settled
    passed = replace(drop, outcome=Outcome.OK, metrics=())
    assert not_made(passed, replace(auto, confirm="always")) is passed


# --- a whole session -----------------------------------------------------------------------------


def test_the_verdict_says_which_evidence_decided(lab: Lab, python: Path) -> None:
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


def test_without_a_drop_the_suite_s_other_build_is_not_run(lab: Lab) -> None:
    runs = lab.case('command = ["/there/is/none"]')

    result = lab.project.run(runs.planned.path)

    result.assert_outcomes(passed=1)
