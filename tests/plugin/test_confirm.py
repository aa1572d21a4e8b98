"""Test that a drop is measured again with the baseline's build, and which evidence decides."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.confirm import (
    AS_SLOW,
    MORE_SESSIONS,
    NO_BUILD,
    NO_METRIC,
    NOT_MADE,
    OTHER_CHANGES_NOTE,
    SMALL_DROP_NOTE,
    UNCHANGED,
    confirm,
    note_unconfirmed,
    proven_worse,
)
from pytest_mlperf.bench.earlier import decision_advice
from pytest_mlperf.bench.interleaved import in_words
from pytest_mlperf.bench.performance import judge_performance
from pytest_mlperf.bench.policy import Confirm, Phase, Policy
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.notes import Note
from pytest_mlperf.core.paths import placeless
from pytest_mlperf.core.rulings.ruling import Ruling, ruling_of
from pytest_mlperf.core.verdict import (
    Confirmation,
    InterleavedRuns,
    MetricBaseline,
    MetricVerdict,
    Outcome,
    Unchecked,
    Verdict,
    with_unchecked_note,
)
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.ratio import Ratio
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions, on_server
from pytest_mlperf.stores import baselines
from pytest_mlperf.suite.plan import plan_suite
from tests.plugin.project import OPTIONS, RATE, SUITE, Project, case, near
from tests.plugin.simulated import SAME, Simulation, simulate
from tests.run import other_python
from tests.run.other_python import ENGINE, git

ACME = case(engine="Acme")
HERE = Path(sys.prefix).name
"""An engine that is slow `here` is as fast as ever in another environment."""

OTHER_BUILD = f'python = "{sys.executable}"'
"""The baseline's build where no process is started: any Python will do."""


@dataclass(frozen=True)
class Lab:
    """A project with an engine of its own and a baseline that says how fast it was."""

    project: Project

    def suite(self, baseline_engine: str = "", *, slow: str = "", limit: str = "40%") -> Path:
        """Write the suite; `baseline_engine` is the table in it."""
        table = f"baseline_engine = {{ {baseline_engine} }}\n" if baseline_engine else ""
        return self.project.suite(
            engines=f'[[engines]]\nuse = "acme:Acme"\n{table}options = {{ slow = "{slow}" }}\n',
            more=f'[limits]\nthroughput = {{ max_drop = "{limit}" }}\n',
        )

    def case(self, baseline_engine: str = "", *, limit: str = "40%") -> CaseRuns:
        """Return a case without runs."""
        (planned,) = plan_suite(self.suite(baseline_engine, limit=limit))
        return CaseRuns(planned, self.conditions(), self.policy("always"), lambda _: None)

    def confirm(
        self,
        runs: CaseRuns,
        answer: Ruling,
        mode: Confirm = "always",
        *,
        handicap: float = 0.0,
        commit: str | None = None,
        failing: Outcome = Outcome.PERF_DROP,
    ) -> Ruling:
        runs.conditions = replace(self.conditions(), handicap=handicap, commit=commit)
        runs.policy = self.policy(mode)
        return confirm(runs, answer, failing=failing)

    def policy(self, mode: Confirm) -> Policy:
        return Policy(accuracy=self.project.path / "accuracy", root=self.project.path, confirm=mode)

    def conditions(self) -> Conditions:
        return Conditions(
            folder=self.project.path / "runs",
            session="now",
            commit=None,
            handicap=0.0,
            patience=Patience(progress_s=60),
            lease_limit_s=60,
            machine=detect(gpus=False),
            control=False,
        )


@pytest.fixture
def lab(project: Project, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (project.path / "acme.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(project.path)
    project.baseline(near(RATE, 6), of=ACME)
    return Lab(project)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    return simulate(monkeypatch)


def fallen(outcome: Outcome = Outcome.PERF_DROP, days: int = 0, **about: Any) -> MetricVerdict:
    """Return a metric that seems to have dropped by half."""
    usual: dict[str, Any] = {
        "low": -0.55,
        "high": -0.45,
        "runs": 2,
        "p": 0.001,
        "limit": 0.4,
    }
    return MetricVerdict(
        metric="throughput",
        outcome=outcome,
        now=RATE / 2,
        baseline=MetricBaseline(value=RATE, runs=6, days=days),
        change=-0.5,
        **{**usual, **about},
    )


def dropped(**about: Any) -> Ruling:
    """Return an answer that is a drop of half."""
    return replace(ruling_of([fallen(**about)]), notes=("busy",))


def provisional() -> Ruling:
    """Return an answer that leans to a drop; what else was added to its headline."""
    metric = fallen(Outcome.PROVISIONAL, direction="drop", note="one session")
    unchecked = Unchecked.NOT_CHECKED
    return Ruling(
        outcome=Outcome.PROVISIONAL,
        headline=with_unchecked_note(ruling_of([metric]).headline, unchecked),
        metrics=(metric,),
        unchecked=unchecked,
    )


@pytest.mark.parametrize("slower", [True, False], ids=["this build", "the machine"])
def test_a_session_runs_both_builds_in_turns_and_says_which_evidence_decided(
    lab: Lab, tmp_path: Path, *, slower: bool
) -> None:
    """A drop that the baseline's build has too is not a drop of this build."""
    python = other_python.environment(tmp_path / "the-old-one")
    lab.project.baseline(near(RATE if slower else 2 * RATE), of=ACME)
    suite = lab.suite(f'python = "{python}"', slow=HERE if slower else "")

    result = lab.project.run(suite, "--mlperf-confirm")

    result.assert_outcomes(failed=int(slower), passed=int(not slower))
    (case_result,) = lab.project.results().cases
    verdict = case_result.verdict
    number = len(verdict.runs)
    turns = [folder.name for folder in lab.project.run_folders()[number:]]
    tasks = [folder.removeprefix(f"{ACME.id}.") for folder in turns[:4]]
    builds = [task.partition(".")[0] == "baseline-build" for task in tasks]
    assert builds[:2] == builds[3:1:-1] != builds[2:4]
    assert sorted(tasks) == [
        str(number + 1),
        str(number + 2),
        "baseline-build.1",
        "baseline-build.2",
    ]
    if slower:
        assert verdict.outcome is Outcome.PERF_DROP
        assert sentence(verdict.notes[0]).startswith("decided by A/B: ")
        assert "/the-old-one/bin/python; runs in .mlperf/runs" in sentence(verdict.notes[0])
        note = r"note      decided by A/B: \d pairs, −.* %\) interleaved with"
        reproduce = "reproduce pytest .* --mlperf-confirm"
        result.stdout.re_match_lines(["PERF DROP samples/s −", reproduce, note])
    else:
        assert verdict.outcome is verdict.metrics[0].outcome is Outcome.OK
        assert sentence(verdict.headline).startswith("samples/s ")
        assert sentence(verdict.headline).endswith(" by A/B; a drop of −40 % is ruled out")
        assert sentence(verdict.notes[0]).startswith("not confirmed by A/B: ")
        assert AS_SLOW in sentence(verdict.notes[0])
        assert sentence(verdict.notes[1]).startswith("against the stored baseline: PERF DROP ")


def test_a_commit_in_git_is_the_baseline_s_build(lab: Lab, simulation: Simulation) -> None:
    """tests/run/test_other_python.py runs the checked out code."""
    git(lab.project.path, "init", "-q", "-b", "main")
    git(lab.project.path, "add", "acme.py")
    git(lab.project.path, "commit", "-q", "-m", "fast")
    git(lab.project.path, "tag", "v1")
    simulation.new_rates = (RATE / 2, 0.505 * RATE)

    answer = lab.confirm(lab.case('git = "v1"'), dropped())

    assert answer.outcome is Outcome.PERF_DROP
    assert sentence(answer.notes[0]).startswith("decided by A/B: ")
    assert " with git v1 (" in sentence(answer.notes[0])


def test_runs_in_turns_decide(lab: Lab, simulation: Simulation) -> None:
    """Proven drops keep their headline; excluded or open ones state the earlier verdict."""
    slow, uneven = (RATE / 2, 0.505 * RATE), (RATE, 0.6 * RATE)
    stored = "against the stored baseline: PERF DROP samples/s −50.0 %"
    rows = [
        ("proven", slow, (RATE, 1.01 * RATE), "40%", "decided by A/B: "),
        ("excluded", slow, slow, "40%", AS_SLOW),
        ("smaller", (0.75 * RATE, 0.755 * RATE), (RATE, 1.005 * RATE), "40%", SMALL_DROP_NOTE),
        ("open", uneven, uneven, "1%", "not confirmed by A/B, not refuted either: 5 pairs"),
    ]
    outcomes, failures = {}, []
    for name, simulation.new_rates, simulation.old_rates, limit, note in rows:
        runs = lab.case(OTHER_BUILD, limit=limit)
        answer = lab.confirm(runs, dropped(limit=float(limit.strip("%")) / 100))
        outcomes[name] = (answer.outcome, answer.interleaved.state if answer.interleaved else None)
        kept = (
            sentence(answer.headline) == sentence(dropped().headline) if name == "proven" else True
        )
        stored_notes = [text[: len(stored)] for text in map(sentence, answer.notes[1:-1])]
        if not (
            kept
            and note in sentence(answer.notes[0])
            and stored_notes == [stored] * (name != "proven")
        ):
            failures.append((name, sentence(answer.headline), answer.notes))

    assert failures == []
    assert outcomes == {
        "proven": (Outcome.PERF_DROP, Confirmation.PROVEN),
        "excluded": (Outcome.OK, Confirmation.EXCLUDED),
        "smaller": (Outcome.OK, Confirmation.EXCLUDED),
        "open": (Outcome.INCONCLUSIVE, Confirmation.UNDECIDED),
    }


def test_another_build_than_the_baseline_s_decides_nothing(
    lab: Lab, simulation: Simulation
) -> None:
    """That it is as slow would excuse every drop: its first run is enough to see it."""
    runs = lab.case(OTHER_BUILD)
    assert runs.record is not None
    runs.record = replace(runs.record, fingerprint={**SAME, "engine.acme": "0.9"})

    answer = lab.confirm(runs, dropped())

    assert answer.outcome is Outcome.PERF_DROP
    assert tuple(map(sentence, answer.notes)) == (
        (
            "not confirmed by A/B: baseline_engine is not the baseline's build: engine.acme is "
            "1.0, but 0.9 in the baseline"
        ),
        "busy",
    )
    assert [task for task, _ in simulation.tasks].count("baseline-build.1") == 1
    assert len(simulation.tasks) <= 2


def test_a_drop_stands_where_the_other_build_cannot_be_had(lab: Lab) -> None:
    rows = [
        ("", Confirmation.NO_BUILD, NO_BUILD),
        (
            'python = "/there/is/none"',
            Confirmation.NO_BUILD,
            "not confirmed by A/B: {suite}:10: engines[0].baseline_engine.python, /there/is",
        ),
        (
            'command = ["false"]',
            Confirmation.NOT_COMPARABLE,
            "not confirmed by A/B: the worker ended with exit code 1",
        ),
        ('git = "v9"', Confirmation.NO_BUILD, "not confirmed by A/B: git rev-parse"),
    ]
    for baseline_engine, state, note in rows:
        runs = lab.case(baseline_engine)

        answer = lab.confirm(runs, dropped())

        assert answer == replace(dropped(), notes=answer.notes, interleaved=answer.interleaved)
        assert sentence(answer.notes[0]).startswith(note.format(suite=runs.planned.path))
        assert answer.interleaved is not None
        assert answer.interleaved.state is state


def test_only_a_drop_is_confirmed_and_only_when_it_is_asked_for(
    lab: Lab, simulation: Simulation
) -> None:
    runs = lab.case('command = ["/there/is/none"]')
    drop = Ruling(outcome=Outcome.PERF_DROP, headline="samples/s −9 %")
    settled = replace(drop, metrics=(fallen(days=4),))

    assert lab.confirm(runs, settled, "never") is settled
    assert lab.confirm(runs, settled, "auto") is settled  # of four sessions
    assert lab.confirm(runs, drop, "auto") is drop
    for outcome in set(Outcome) - {Outcome.PERF_DROP, Outcome.POWER_DROP}:
        other = Ruling(outcome=outcome, headline="")
        assert lab.confirm(runs, other) is other
    assert lab.confirm(runs, drop).notes == (NO_METRIC,)

    # Nor is a missed latency limit: the rate was held when the baseline was recorded.
    fine = lab.confirm(runs, judge_performance(runs, {Kind.PERFORMANCE}))
    runs.runs = [replace(run, limit_missed=True) for run in 2 * runs.runs]
    missed = lab.confirm(runs, replace(provisional(), outcome=Outcome.PERF_DROP))
    assert fine.outcome is Outcome.OK
    assert (missed.outcome, missed.notes) == (Outcome.PERF_DROP, (NO_METRIC,))
    assert all("baseline-build" not in task for task, _ in simulation.tasks)


def test_a_change_is_that_of_the_raw_value_and_the_limit_that_of_its_end() -> None:
    """Where the limit is excluded and 0 as well, the old build is not as slow."""
    ratio = Ratio(outcome=Answer.FAIL, ratio=0.8, interval=(0.75, 0.85), pairs=2, sd=0.01)
    words = {name: in_words(name, ratio) for name in ("throughput", "latency_p99")}
    assert words == {
        "throughput": "−20.0 % (−25.0 to −15.0 %)",
        "latency_p99": "+25.0 % (+17.6 to +33.3 %)",
    }

    passed = replace(ratio, outcome=Answer.PASS, ratio=0.9)
    names = {
        high: proven_worse({"throughput": replace(passed, interval=(0.85, high))})
        for high in (0.94, 1.0, 1.2)
    }
    assert names == {0.94: ["throughput"], 1.0: [], 1.2: []}


@pytest.mark.parametrize("failing", [Outcome.PERF_DROP, Outcome.POWER_DROP])
def test_a_provisional_drop_is_red_once_runs_in_turns_prove_it(
    lab: Lab, simulation: Simulation, failing: Outcome
) -> None:
    """Compared with this build without the handicap, if it is the baseline's; efficiency too."""
    runs = lab.case()
    runs.add_run()
    assert runs.record is not None
    runs.record = replace(runs.record, fingerprint=SAME)

    answer = lab.confirm(runs, provisional(), "auto", handicap=0.5, failing=failing)

    assert answer.outcome is failing
    assert sentence(answer.headline) == (
        "samples/s −50.0 % (−55.0 to −45.0 %); limit −40 % exceeded, accuracy not checked"
    )
    (metric,) = answer.metrics
    assert (metric.outcome, metric.confirmed, metric.direction) == (failing, True, None)
    assert " with this build without the handicap; runs in runs" in sentence(answer.notes[0])
    assert answer.interleaved is not None
    assert answer.interleaved.state is Confirmation.PROVEN
    assert answer.interleaved.runs == 2 * answer.interleaved.pairs > 0
    handicaps = [handicap for _, handicap in simulation.tasks[1:5]]
    assert handicaps[:2] == handicaps[3:1:-1] != handicaps[2:4]


def test_a_provisional_ok_is_final_once_runs_in_turns_exclude_a_drop(
    lab: Lab, simulation: Simulation
) -> None:
    """It takes six runs and more, so only against a named build, while the baseline has few days.

    An open result of the pairs changes nothing; a drop that they prove counts.
    """
    metric = fallen(Outcome.PROVISIONAL, low=-0.1, high=0.1, direction="ok", note="one day", days=1)
    passed = ruling_of([metric])
    four = ruling_of([replace(metric, baseline=replace(metric.baseline, days=4))])

    for engine, mode, answer in (
        (OTHER_BUILD, "never", passed),
        (OTHER_BUILD, "auto", four),
        ("", "always", passed),
    ):
        assert lab.confirm(lab.case(engine), answer, mode) is answer  # type: ignore[arg-type]
    assert simulation.tasks == []
    assert lab.confirm(lab.case(OTHER_BUILD), four, "always").outcome is Outcome.OK

    final = lab.confirm(lab.case(OTHER_BUILD), passed, "auto")
    assert final.outcome is final.metrics[0].outcome is Outcome.OK
    assert sentence(final.headline).endswith(" by A/B; a drop of −40 % is ruled out")
    assert sentence(final.notes[0]).startswith("decided by A/B: ")
    assert sentence(final.notes[1]).startswith("against the stored baseline: PROVISIONAL samples/s")

    simulation.new_rates = (RATE / 2, 0.505 * RATE)
    proven = lab.confirm(lab.case(OTHER_BUILD), passed)
    assert proven.outcome is proven.metrics[0].outcome is Outcome.PERF_DROP
    assert (proven.metrics[0].direction, proven.metrics[0].note) == (None, None)

    simulation.new_rates = simulation.old_rates = (RATE, 0.6 * RATE)
    undecided = lab.confirm(
        lab.case(OTHER_BUILD, limit="1%"), ruling_of([replace(metric, limit=0.01)])
    )
    assert undecided.outcome is undecided.metrics[0].outcome is Outcome.PROVISIONAL
    assert sentence(undecided.notes[0]).startswith("not decided by A/B: 5 pairs")


def test_a_provisional_drop_that_the_baseline_s_build_has_too_is_none(
    lab: Lab, simulation: Simulation
) -> None:
    answer = lab.confirm(lab.case(OTHER_BUILD), provisional(), "auto")

    assert answer.outcome is answer.metrics[0].outcome is Outcome.OK
    assert answer.metrics[0].direction is None
    assert sentence(answer.notes[1]).startswith(
        "against the stored baseline: PROVISIONAL samples/s −50.0 %"
    )
    assert answer.interleaved is not None
    assert answer.interleaved.state is Confirmation.EXCLUDED
    assert len(simulation.tasks) == answer.interleaved.runs


def test_without_another_build_a_drop_states_its_evidence(lab: Lab) -> None:
    commit, named = "0123456789ab", "name the baseline's build with --mlperf-against"
    ref = f"run pytest {SUITE} --mlperf-against {commit}"
    code, unknown = (
        (Confirmation.NO_BUILD, NO_BUILD + decides + MORE_SESSIONS) for decides in (ref, named)
    )
    same = {"engine": "same"}
    rows = [
        (commit, commit, same, (Confirmation.UNCHANGED, UNCHANGED)),
        (commit, commit, {**same, "engine.weights_sha256": "not known now"}, code),
        (f"{commit}+", commit, same, code),
        ("aaaaaaaaaaaa", commit, same, code),
        (None, None, same, unknown),
        (commit, f"{commit}+", same, unknown),
        (commit, commit, {"engine": "other"}, unknown),
    ]
    for commit_now, then, kept, (state, note) in rows:
        runs = lab.case()
        assert runs.record is not None
        runs.subject = Subject(identity={}, fingerprint=same)
        baseline_runs = tuple(replace(run, commit=then) for run in runs.record.runs)
        runs.record = replace(runs.record, fingerprint=kept, runs=baseline_runs)

        answer = lab.confirm(runs, provisional(), "auto", commit=commit_now)

        assert answer.outcome is Outcome.PROVISIONAL
        assert (commit_now, answer.notes) == (commit_now, (note,))
        assert answer.interleaved == InterleavedRuns(state=state, metrics=("throughput",))


def changed(
    lab: Lab, old_facts: dict[str, str], *, commit: str | None = None, engines: str = ""
) -> CaseRuns:
    """Return a case with a run, whose record has other facts."""
    if engines:
        lab.project.suite(engines=engines, more='[limits]\nthroughput = { max_drop = "40%" }\n')
        (planned, *_) = plan_suite(lab.project.path / SUITE)
        machine = on_server(planned, lab.conditions()).machine
        lab.project.baseline(near(RATE), identity=machine.identity("cpu"))
        runs = CaseRuns(planned, lab.conditions(), lab.policy("auto"), lambda _: None)
    else:
        runs = lab.case()
    runs.add_run()
    assert runs.record is not None
    assert runs.subject is not None
    facts = {**runs.subject.fingerprint, **old_facts}
    kept = tuple(replace(run, commit=commit) for run in runs.record.runs)
    runs.record = replace(runs.record, fingerprint=facts, runs=kept)
    return runs


@pytest.mark.parametrize("own_path", [False, True])
def test_options_that_changed_are_interleaved_with_those_of_the_baseline(
    lab: Lab, simulation: Simulation, monkeypatch: pytest.MonkeyPatch, *, own_path: bool
) -> None:
    """They are the suite's: variables unexpanded, paths below the home folder."""
    model = Path.home() / "models" / "acme" if own_path else "${ACME_MODEL}"
    monkeypatch.setenv("ACME_MODEL", "/models/acme")
    table = f'slow = "new", model_file = "{model}"'
    old_options = json.dumps(
        {"model_file": placeless(str(model), home=str(Path.home())), "slow": "~/old", "gone": 1}
    )
    simulation.new_rates = (RATE / 2, 0.505 * RATE)
    simulation.fingerprint["options"] = "{}"
    runs = changed(
        lab,
        {"options": old_options},
        engines=f'[[engines]]\nuse = "acme:Acme"\noptions = {{ {table} }}\n',
    )
    simulation.fingerprint["options"] = old_options

    answer = lab.confirm(runs, provisional(), "auto")

    assert answer.outcome is Outcome.PERF_DROP
    assert answer.interleaved is not None
    assert answer.interleaved.state is Confirmation.PROVEN
    assert " interleaved with the baseline's options (slow, gone); " in sentence(answer.notes[0])
    then = next(job for label, job in simulation.jobs if label)
    assert then.facts["options"] == old_options
    expanded = os.path.expandvars(str(model))
    assert then.engine.options == {
        "model_file": expanded,
        "slow": str(Path.home() / "old"),
        "gone": 1,
    }


READS_A_VARIABLE = """
import os
from pytest_mlperf.builtin.null import NullEngine

class Acme(NullEngine):
    def __init__(self, dataset, model=None, precision=""):
        self.slow = os.environ.get("ACME_SLOW")
        super().__init__(dataset, latency_s=0.004 if self.slow else 0.002, batch_size=16, threads=1)

    def describe(self):
        return {"environment.ACME_SLOW": self.slow} if self.slow else {}
"""


@pytest.mark.parametrize("change", ["options (latency_s)", "environment (ACME_SLOW)"])
def test_half_the_speed_is_red_on_the_first_day(
    project: Project, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The baseline has one session; its record is enough to measure it again."""
    entries = '[[engines]]\nuse = "acme:Acme"\n' if "ACME" in change else None
    (project.path / "acme.py").write_text(READS_A_VARIABLE, "utf-8")
    monkeypatch.syspath_prepend(project.path)
    project.suite(engines=entries)
    project.record("suites")
    file = project.baseline_file(ACME if entries else None)
    loaded = baselines.load(file)
    assert loaded is not None
    (record,) = loaded.records
    runs = tuple(replace(record.runs[0], metrics={"throughput": r}) for r in near(RATE, 5))
    baselines.save(file, replace(loaded, records=(replace(record, runs=runs),)))
    if entries:
        monkeypatch.setenv("ACME_SLOW", "1")
    suite = project.suite(engines=entries, options=OPTIONS.replace("0.002", "0.004"))

    result = project.run(suite, "--mlperf-json=now.json")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    verdict = project.verdicts("now.json")["performance"]
    assert verdict.outcome is Outcome.PERF_DROP
    assert sentence(verdict.notes[0]).startswith("decided by A/B: ")
    assert f" interleaved with the baseline's {change}; runs in" in sentence(verdict.notes[0])


def test_variables_that_changed_are_those_of_the_baseline_in_its_side(
    lab: Lab, simulation: Simulation
) -> None:
    simulation.new_rates = (RATE / 2, 0.505 * RATE)
    variables = {"engine.environment.ACME_A": "1", "engine.environment.ACME_B": "2"}
    simulation.fingerprint |= variables
    runs = changed(lab, {"engine.environment.ACME_A": "0"})
    assert runs.record is not None
    del runs.record.fingerprint["engine.environment.ACME_B"]
    simulation.fingerprint |= {"engine.environment.ACME_A": "0"}

    answer = lab.confirm(runs, provisional(), "auto")

    assert answer.outcome is Outcome.PERF_DROP
    assert "interleaved with the baseline's environment (ACME_A, ACME_B); " in sentence(
        answer.notes[0]
    )
    assert {str(dict(job.variables)) for label, job in simulation.jobs if label} == {
        "{'ACME_A': '0', 'ACME_B': None}"
    }


def test_options_that_explain_no_drop_excuse_none_unless_git_shows_no_other_change(
    lab: Lab, simulation: Simulation
) -> None:
    root = lab.project.path
    lab.suite()
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "acme.py", "suites")
    git(root, "commit", "-q", "-m", "fast")
    commit = git(root, "rev-parse", "--short=12", "HEAD")
    simulation.new_rates = simulation.old_rates = near(RATE / 2)
    rows = []
    for edit in ("", "# edited\n"):
        (root / "acme.py").write_text(ENGINE + edit, "utf-8")
        simulation.fingerprint["options"] = "{}"
        runs = changed(lab, {"options": '{"slow": "x"}'}, commit=commit)
        simulation.fingerprint["options"] = '{"slow": "x"}'
        answer = lab.confirm(runs, provisional(), "auto")
        assert answer.interleaved is not None
        rows.append((answer.outcome, answer.interleaved.state))
    assert rows == [
        (Outcome.OK, Confirmation.EXCLUDED),
        (Outcome.PROVISIONAL, Confirmation.UNDECIDED),
    ]
    advice = f"; {OTHER_CHANGES_NOTE}run pytest {SUITE} --mlperf-against {commit}"
    assert advice in sentence(answer.notes[0])


def test_a_baseline_that_cannot_be_measured_again_decides_with_a_reason(
    lab: Lab, simulation: Simulation
) -> None:
    """Other weights, data and options that the engine refuses today; a package is exchanged."""
    pydantic = version("pydantic")
    simulation.fingerprint |= {
        "engine.pydantic": pydantic,
        "engine.weights_sha256": "bb",
        "dataset": "d",
        "options": "{}",
    }
    two = '[[engines]]\nuse = "null"\n[[engines]]\nuse = "acme:Acme"\n'
    label = "copy suites/first.mlperf.toml to suites/before-first.mlperf.toml, set the earlier "
    label += "model in it, and run pytest-mlperf turns suites/before-first.mlperf.toml"
    suite = "suites/first.mlperf.toml"
    rows: list[tuple[str, dict[str, str], str]] = [
        ("", {"engine.weights_sha256": "aa"}, f"{label} {suite}"),
        (two, {"engine.weights_sha256": "aa"}, f"{label}::null-fp32 {suite}::null-fp32"),
        (
            "",
            {"engine.pydantic": "1.0"},
            "run pytest suites/first.mlperf.toml --mlperf-against pip:pydantic==1.0",
        ),
        ("", {"dataset": "c"}, "name the baseline's build with --mlperf-against"),
        ("", {"options": "["}, "the baseline's options are no longer valid: "),
        ("", {"options": "[" * 99_999}, "the baseline's options are no longer valid: "),
        ("", {"options": '{"a": "…/b/c"}'}, "the baseline stores only the end of the path …/b/c"),
        (two, {"options": '{"latency": 1}'}, "engine 'null' has no option 'latency'"),
        ("", {"options": '{"slow": "y"}'}, "options (slow) is not the baseline's build: opt"),
    ]
    failures = []
    for engines, facts, expected in rows:
        answer = lab.confirm(changed(lab, facts, engines=engines), provisional(), "auto")
        (note,) = map(sentence, answer.notes)
        if answer.outcome is not Outcome.PROVISIONAL or expected not in note:
            failures.append((expected, note))
    assert failures == []


@pytest.mark.usefixtures("simulation")
def test_no_build_of_the_client_is_the_earlier_build_of_a_server(lab: Lab) -> None:
    """Neither a commit nor a package of today's client decides about a server at a url."""
    at_url = (
        '[[engines]]\nuse = "openai"\nname = "null"\noptions = { url = "http://127.0.0.1:1" }\n'
    )
    facts: list[dict[str, str]] = [{}, {"engine.pydantic": "1.0"}, {"dataset": "c"}]
    for facts_of_baseline in facts:
        runs = changed(lab, facts_of_baseline, commit="0123456789ab", engines=at_url)
        advice = decision_advice(runs)
        assert "set the url of a server of the earlier build in it, and run pytest-ml" in advice


def last_word(runs: CaseRuns) -> Verdict:
    """Return a drop that was decided at the end of a session, among many."""
    metric = fallen(note=Note.of("drop_among", drops=1, among=25, p=0.0004))
    return Verdict(
        case=runs.planned.case,
        kind=Kind.PERFORMANCE,
        outcome=Outcome.PERF_DROP,
        headline=ruling_of([metric]).headline,
        metrics=(metric,),
        notes=("busy",),
    )


def test_a_drop_that_the_others_decided_is_measured_again_after_that(
    lab: Lab, simulation: Simulation
) -> None:
    simulation.new_rates = simulation.old_rates = near(RATE / 2)
    runs = lab.case(OTHER_BUILD)
    bench = Bench(lab.conditions(), lab.policy("auto"), lambda _: None)
    bench.verdict(runs.planned, Kind.PERFORMANCE, {Kind.PERFORMANCE}, Phase(pairs=25, once=True))

    confirmed = bench.confirm_last(runs.planned, last_word(runs))

    assert confirmed.outcome is confirmed.metrics[0].outcome is Outcome.OK
    assert sentence(confirmed.notes[1]).startswith("against the stored baseline: PERF DROP")
    assert sentence(confirmed.notes[2]) == "busy"
    assert confirmed.interleaved is not None
    assert confirmed.interleaved.state is Confirmation.EXCLUDED


def test_where_nothing_is_measured_any_more_the_drop_says_so(lab: Lab) -> None:
    """As after -x, Ctrl-C, or in the controller of pytest-xdist; a settled baseline needs none."""
    auto = lab.policy("auto")
    drop = last_word(lab.case())

    answer = note_unconfirmed(drop, auto)

    assert answer.outcome is Outcome.PERF_DROP
    assert answer.notes == (NOT_MADE, "busy")
    assert answer.interleaved == InterleavedRuns(
        state=Confirmation.NOT_MADE, metrics=("throughput",), reason=NOT_MADE
    )
    assert note_unconfirmed(drop, lab.policy("never")) is drop
    settled = replace(
        drop,
        metrics=(replace(drop.metrics[0], baseline=replace(drop.metrics[0].baseline, days=4)),),
    )
    assert note_unconfirmed(settled, auto) is settled
    passed = replace(drop, outcome=Outcome.OK, metrics=())
    assert note_unconfirmed(passed, lab.policy("always")) is passed
