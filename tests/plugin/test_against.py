"""Test `--mlperf-against`: verdicts by runs interleaved with another build, without a baseline."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import Bench
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.cli import main
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.history import histories_of
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.verdict import Confirmation, Outcome, Verdict
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions
from pytest_mlperf.run.measure import ProcessResult
from pytest_mlperf.run.project import commit_of
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.suite.environments import parse_against
from pytest_mlperf.suite.plan import plan_suite
from tests.plugin.project import LIGHT, RATE, Project, case, near, newest_results
from tests.plugin.simulated import Simulation, simulate
from tests.run import other_python
from tests.run.other_python import ENGINE, git

ACME = case(engine="Acme")
OTHER_PYTHON = "python:other/bin/python"
SLOW_ENGINE = ENGINE.replace("FACTOR = 1", "FACTOR = 2").replace('"1.0"', '"2.0"')


@dataclass(frozen=True)
class Lab:
    """A project in git with an engine of its own; tag v1 is the state before today's changes."""

    project: Project

    def suite(
        self, *, entry: str = "", limit: str = "40%", more: str = "", top1: bool = False
    ) -> Path:
        return self.project.suite(
            engines=f'[[engines]]\nuse = "acme:Acme"\n{entry}\n',
            more=f'[limits]\nthroughput = {{ max_drop = "{limit}" }}\n{more}',
            top1=100.0 if top1 else None,
        )

    def other_python(self) -> None:
        """Make the program that `OTHER_PYTHON` names; no process is started with it."""
        program = self.project.path / "other/bin/python"
        program.parent.mkdir(parents=True)
        program.symlink_to(sys.executable)

    def bench(self, against: str, *, handicap: float = 0.0, max_runs: int = 6) -> Bench:
        root = self.project.path
        conditions = Conditions(
            folder=root / ".mlperf/runs/now",
            session="now",
            commit=commit_of(root),
            handicap=handicap,
            patience=Patience(progress_s=60),
            lease_limit_s=60,
            machine=detect(gpus=False),
            control=False,
            max_runs=max_runs,
        )
        policy = Policy(
            accuracy=root / "accuracy", root=root, max_runs=max_runs, against=parse_against(against)
        )
        return Bench(conditions, policy, lambda _: None)

    def verdict(self, against: str, suite: Path | None = None, *, handicap: float = 0.0) -> Verdict:
        """Judge the case of the suite in this process."""
        (planned,) = plan_suite(suite or self.suite())
        bench = self.bench(against, handicap=handicap)
        try:
            return bench.verdict(planned, Kind.PERFORMANCE, [Kind.PERFORMANCE])
        finally:
            bench.close()


@pytest.fixture
def lab(project: Project, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(project.path)
    monkeypatch.syspath_prepend(project.path)
    (project.path / "acme.py").write_text(ENGINE, "utf-8")
    (project.path / ".gitignore").write_text(".mlperf/\n__pycache__/\nother/\n", "utf-8")
    git(project.path, "init", "-q", "-b", "main")
    git(project.path, "add", ".")
    git(project.path, "commit", "-q", "-m", "one")
    git(project.path, "tag", "v1")
    return Lab(project)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    return simulate(monkeypatch)


def test_a_reference_names_one_build() -> None:
    rows = {
        "main": {"git": "main"},
        "origin/main": {"git": "origin/main"},
        "git:v1": {"git": "v1"},
        "pip:vllm==0.32.0": {"wheel": "vllm==0.32.0"},
        "pip:dist/a-1.0-py3-none-any.whl": {"wheel": "dist/a-1.0-py3-none-any.whl"},
        "python:~/old/bin/python": {"python": "~/old/bin/python"},
        'command:docker run "my image" python': {
            "command": ["docker", "run", "my image", "python"]
        },
    }
    assert {text: parse_against(text).model_dump(exclude_none=True) for text in rows} == rows
    for text, message in {
        "docker:image": "names no build; write git:REF, pip:NAME==VERSION, python:PATH or",
        "gti:v1": "did you mean 'git'",
        "git:": "is not a git ref",
        "-x": "is not a git ref",
        "pip:vllm": "write name==version",
        "pip:vllm>=0.3": "write name==version",
        "command:'docker": "is no command: No closing quotation",
        "command:": "'command:': ",
        "python:": "'python:': ",
    }.items():
        with pytest.raises(MlperfError) as raised:
            parse_against(text)
        assert message in str(raised.value), text


def test_a_value_is_told_from_a_path(lab: Lab) -> None:
    """The option may stand before a suite, with a value or without one."""
    suite = lab.suite()
    for words, against in [
        (["--mlperf-against", "suites"], "merge-base"),
        (["--mlperf-against", str(suite)], "merge-base"),
        (["--mlperf-against=v1", "suites"], "v1"),
        (["--mlperf-against", "origin/main", "suites"], "origin/main"),
        (["--mlperf-against", "git:v1", "suites"], "git:v1"),
        (["suites", "--mlperf-against"], "merge-base"),
    ]:
        config = lab.project.pytester.parseconfig(*words)
        assert config.getoption("mlperf_against") == against, words
        assert any("suites" in str(argument) for argument in config.args), words


def test_options_that_contradict_it_are_refused(lab: Lab) -> None:
    for words, message in [
        (("--mlperf-against=docker:x",), "--mlperf-against: 'docker:x' names no build"),
        (("--mlperf-against=v1", "--mlperf-update"), "--mlperf-update cannot be combined"),
    ]:
        result = lab.project.run(lab.suite(), *words)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert message in result.stderr.str()


def test_pairs_decide_without_a_stored_baseline(lab: Lab, simulation: Simulation) -> None:
    """Runs stop at the decision; a stored baseline that says otherwise is ignored."""
    lab.other_python()
    lab.project.baseline(near(3 * RATE), of=ACME)
    slow, uneven = (RATE / 2, 0.505 * RATE), (RATE, 0.6 * RATE)
    rows = [
        ("equal", (RATE, 1.01 * RATE), "40%", Outcome.OK, Confirmation.EXCLUDED),
        ("slower", slow, "40%", Outcome.PERF_DROP, Confirmation.PROVEN),
        ("smaller", (0.75 * RATE, 0.755 * RATE), "40%", Outcome.OK, Confirmation.EXCLUDED),
        ("uneven", uneven, "1%", Outcome.INCONCLUSIVE, Confirmation.UNDECIDED),
    ]
    for name, simulation.new_rates, limit, outcome, state in rows:
        verdict = lab.verdict(OTHER_PYTHON, lab.suite(limit=limit))
        other = verdict.interleaved
        assert verdict.outcome is outcome, name
        assert other is not None
        assert other.state is state
        assert len(verdict.runs) == len(other.other_runs) == other.pairs <= 6
        assert (len(verdict.runs) < 6) == (name != "uneven")
        assert verdict.baseline.file is None
        (metric,) = [one for one in verdict.metrics if one.limit]
        assert metric.baseline.lacks is None
        assert metric.baseline.runs == metric.runs == other.pairs
        assert RATE * 0.99 < (metric.baseline.value or 0.0) < RATE * 1.02


def test_a_latency_drops_where_it_rises(lab: Lab, simulation: Simulation) -> None:
    """A time to the first token, or a tail, is worse if it is longer; each has its own limit."""
    lab.other_python()
    simulation.metrics, simulation.queries = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"), 5000
    suite = lab.project.suite(
        engines='[[engines]]\nuse = "acme:Acme"\n',
        scenarios='[[scenarios]]\nname = "Interactive"\ntarget_qps = 20\nttft_limit = "9s"\n'
        'tpot_limit = "9s"\nmin_duration = "100ms"\n'
        'limits = { ttft_p50 = { max_rise = "30%" }, ttft_p99 = { max_rise = "30%" } }\n',
    )
    text = suite.read_text("utf-8").replace('name = "first"\n', 'name = "first"\ntokens = true\n')
    suite.write_text(text.replace('[limits]\nthroughput = { max_drop = "40%" }\n', ""), "utf-8")
    seconds = simulation.old_rates = (0.1, 0.1002)
    rows = [
        ("equal", seconds, Outcome.OK, Confirmation.EXCLUDED),
        ("longer", (0.15, 0.1505), Outcome.PERF_DROP, Confirmation.PROVEN),
        ("shorter", (0.05, 0.0502), Outcome.IMPROVED, Confirmation.EXCLUDED),
    ]
    for name, simulation.new_rates, outcome, state in rows:
        verdict = lab.verdict(OTHER_PYTHON, suite)
        assert verdict.outcome is outcome, (name, sentence(verdict.headline))
        assert verdict.interleaved is not None
        assert verdict.interleaved.state is state
        judged = {metric.metric: metric for metric in verdict.metrics if metric.limit}
        assert {*judged} >= {"ttft_p50", "ttft_p99"}, name
        moved = simulation.new_rates[0] / 0.1 - 1
        for metric in judged.values():
            assert metric.change == pytest.approx(moved, abs=0.01)
            assert (metric.low or 0.0) <= (metric.change or 0.0) <= (metric.high or 0.0)
            assert metric.confirmed is (outcome is Outcome.PERF_DROP)


def test_the_servers_of_a_served_suite_are_alive_alternately(
    lab: Lab, simulation: Simulation
) -> None:
    """Each build starts its own, so that both can have the whole machine."""
    lab.other_python()
    suite = lab.project.suite(
        engines='[[engines]]\nuse = "openai"\noptions = { serve = ["vllm", "--port", "{port}"], '
        'api = "completions", served_model = "m" }\n',
    )

    verdict = lab.verdict(OTHER_PYTHON, suite)

    assert verdict.outcome is Outcome.OK, sentence(verdict.headline)
    assert "only one build's server was running at a time, in turns from run to run" in map(
        sentence, verdict.notes
    )
    jobs = {bool(label): job for label, job in simulation.jobs}
    assert all(job.engine.options["serve"] for job in jobs.values())
    assert jobs.keys() == {True, False}


def test_scores_are_compared_although_no_run_is_valid(lab: Lab, simulation: Simulation) -> None:
    """The accuracy test is judged by the other build's scores, in any order of the tests."""
    lab.other_python()
    simulation.invalid = (Reason(key=Key.LOADGEN, text="too short"),)
    simulation.scores = (100.0, 0.0) * 16
    engines = '[[engines]]\nuse = "acme:Acme"\n'
    (planned,) = plan_suite(lab.project.suite(engines=engines, top1=50.0))
    kinds = [Kind.PERFORMANCE, Kind.ACCURACY]
    for order in (kinds, kinds[::-1]):
        bench = lab.bench(OTHER_PYTHON)
        verdicts = {kind: bench.verdict(planned, kind, kinds) for kind in order}
        bench.close()
        speed, accuracy = verdicts[Kind.PERFORMANCE], verdicts[Kind.ACCURACY]
        assert speed.outcome is Outcome.INVALID
        assert accuracy.interleaved is not None
        assert accuracy.interleaved.other_accuracy is not None, sentence(accuracy.headline)
        assert accuracy.paired[0].samples == 32


def test_an_invalid_other_build_stays_invalid_if_its_test_runs_again(
    lab: Lab, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with pytest-rerunfailures; a run without its neighbour is no pair."""

    def measure(*arguments: Any) -> ProcessResult:
        done = simulation.measure(*arguments)
        assert done.run is not None
        reasons = (Reason(key=Key.LOADGEN, text="too short"),) if arguments[-1].label else ()
        return replace(done, run=replace(done.run, invalid=reasons))

    monkeypatch.setattr("pytest_mlperf.bench.runner.measure", measure)
    lab.other_python()
    (planned,) = plan_suite(lab.suite())
    bench = lab.bench(OTHER_PYTHON)
    for _ in range(3):
        verdict = bench.verdict(planned, Kind.PERFORMANCE, [Kind.PERFORMANCE])
        assert verdict.outcome is Outcome.INVALID, sentence(verdict.headline)
        assert sentence(verdict.headline).startswith("python other/bin/python")
    bench.close()
    assert sum(folder.startswith("against") for folder, _ in simulation.tasks) == 3


def test_too_noisy_says_how_many_pairs_decide(lab: Lab, simulation: Simulation) -> None:
    lab.other_python()
    simulation.new_rates = (RATE, 0.9 * RATE, 0.95 * RATE)

    verdict = lab.verdict(OTHER_PYTHON, lab.suite(limit="8%"))

    assert verdict.outcome is Outcome.INCONCLUSIVE
    notes = [sentence(note) for note in verdict.notes]
    (note,) = [note for note in notes if "pairs would decide" in note]
    assert "--mlperf-max-runs" in note
    assert not verdict.fails


def test_the_order_within_a_pair_is_drawn_and_then_reversed(
    lab: Lab, simulation: Simulation
) -> None:
    lab.other_python()
    simulation.new_rates = (RATE, 0.6 * RATE)

    lab.verdict(OTHER_PYTHON, lab.suite(limit="1%"))

    titles = [title.partition(", ") for title in simulation.titles]
    assert [pair for pair, _, _ in titles] == [
        f"pair {n} of at most 6" for n in range(1, 7) for _ in range(2)
    ]
    assert sum(side == "this build" for _, _, side in titles) == 6
    sides = ["against" in folder for folder, _ in simulation.tasks]
    pairs = [tuple(sides[n : n + 2]) for n in range(0, len(sides), 2)]
    assert all(set(pair) == {True, False} for pair in pairs)
    assert [
        first == second[::-1] for first, second in zip(pairs[::2], pairs[1::2], strict=True)
    ] == [True] * 3


def test_a_build_that_cannot_be_compared_is_one_error(
    lab: Lab, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run is made, and no half of a comparison becomes a verdict."""
    path = lab.project.path
    git(path, "commit", "-q", "--allow-empty", "-m", "two")
    (path / "pyproject.toml").write_text('[project]\nrequires-python = "<3.9"\n', "utf-8")
    git(path, "add", "pyproject.toml")
    git(path, "commit", "-q", "-m", "old python")
    git(path, "tag", "old")
    git(path, "rm", "-q", "pyproject.toml")
    git(path, "commit", "-q", "-m", "three")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    rows = [
        ("v9", "v9 is not a commit of this clone: git fetch it, or name another"),
        ("main", "is the build under test itself; name another"),
        ("old", "requires Python <3.9, and this is Python 3."),
        ("python:/there/is/none", "--mlperf-against.python, /there/is/none, is not a program here"),
        (f"python:{sys.executable}", "is the build under test itself"),
        ("command:/there/is/none", "--mlperf-against.command, /there/is/none, is not a program"),
        ("pip:nothing.whl", "--mlperf-against.pip, nothing.whl, is not a file here"),
        ("pip:there-is-none==9", "there-is-none==9 cannot be installed by"),
        ("merge-base", "is the build under test itself; name another"),
    ]
    for against, message in rows:
        verdict = lab.verdict(against)
        assert (verdict.outcome, verdict.metrics) == (Outcome.ERROR, ())
        headline = sentence(verdict.headline)
        assert headline.startswith("against: ")
        assert message in headline, (against, headline)
    assert simulation.tasks == []
    assert len(git(path, "worktree", "list").splitlines()) == 1


def test_a_handicap_may_be_compared_with_the_same_commit(lab: Lab, simulation: Simulation) -> None:
    """It slows down this side alone."""
    verdict = lab.verdict("HEAD", handicap=0.5)

    assert verdict.outcome is Outcome.PERF_DROP
    assert {(folder.startswith("against"), share) for folder, share in simulation.tasks} == {
        (True, 0.0),
        (False, 0.5),
    }


def test_a_server_that_already_runs_is_no_build(lab: Lab, simulation: Simulation) -> None:
    lab.other_python()
    suite = lab.project.suite(
        engines='[[engines]]\nuse = "openai"\noptions = { url = "http://127.0.0.1:9", '
        'api = "completions", served_model = "m" }\n',
    )

    verdict = lab.verdict(OTHER_PYTHON, suite)

    assert verdict.outcome is Outcome.ERROR
    assert "both builds would use the same server" in sentence(verdict.headline)
    assert simulation.tasks == []


def test_the_merge_base_is_the_reference_of_a_pull_request(
    lab: Lab, simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target branch may have moved on, and its later commits are not compared."""
    path = lab.project.path
    base = git(path, "rev-parse", "v1")
    git(path, "update-ref", "refs/remotes/origin/trunk", "v1")
    git(path, "checkout", "-q", "-b", "change")
    (path / "acme.py").write_text(SLOW_ENGINE, "utf-8")
    git(path, "commit", "-q", "-a", "-m", "slower")
    git(path, "checkout", "-q", "main")
    git(path, "commit", "-q", "--allow-empty", "-m", "moved on")
    git(path, "update-ref", "refs/remotes/origin/trunk", "main")
    git(path, "checkout", "-q", "change")
    monkeypatch.setenv("GITHUB_BASE_REF", "trunk")

    verdict = lab.verdict("merge-base")
    assert verdict.interleaved is not None
    assert verdict.interleaved.build == f"git merge-base ({base[:12]})"
    assert {run.commit for run in verdict.interleaved.other_runs} == {None}  # simulated

    monkeypatch.setenv("GITHUB_BASE_REF", "gone")
    assert "origin/gone is not in this clone" in sentence(lab.verdict("merge-base").headline)
    assert simulation.tasks


def test_a_submodule_must_be_the_same(
    lab: Lab, simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worktree has no submodules: those of today stand in if they are unchanged."""
    part, path = tmp_path / "part", lab.project.path
    part.mkdir()
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "one")):
        git(part, *command)
    git(path, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(part), "part")
    git(path, "commit", "-q", "-m", "submodule")
    git(path, "tag", "v2")
    git(path, "commit", "-q", "--allow-empty", "-m", "more")
    assert lab.verdict("v2").outcome is Outcome.OK

    git(path / "part", "commit", "-q", "--allow-empty", "-m", "two")
    git(path, "commit", "-q", "-a", "-m", "newer part")
    verdict = lab.verdict("v2")

    assert verdict.outcome is Outcome.ERROR
    assert "uses another commit of submodule part" in sentence(verdict.headline)
    assert simulation.tasks


@pytest.mark.process
def test_a_session_measures_both_builds(lab: Lab) -> None:
    """Speed in interleaved pairs, accuracy once; the results hold both sides."""
    (lab.project.path / "acme.py").write_text(SLOW_ENGINE, "utf-8")
    suite = lab.suite(top1=True)

    result = lab.project.run(suite, "--mlperf-against=v1", "--mlperf-json=one.json")

    result.assert_outcomes(failed=1, passed=1)
    verdicts = lab.project.verdicts("one.json")
    speed, accuracy = verdicts[Kind.PERFORMANCE], verdicts[Kind.ACCURACY]
    assert (accuracy.outcome, speed.outcome) == (Outcome.OK, Outcome.PERF_DROP)
    assert accuracy.paired[0].samples == 32
    for verdict in (speed, accuracy):
        assert verdict.interleaved is not None
        assert verdict.interleaved.other_accuracy is not None
    other = speed.interleaved
    assert other is not None
    assert len(other.other_runs) == len(speed.runs) == other.pairs
    assert other.other_subject is not None
    assert other.other_subject.fingerprint["engine.acme"] == "1.0"
    commit = git(lab.project.path, "rev-parse", "v1")[:12]
    assert {run.commit for run in other.other_runs} == {commit}
    assert {run.commit for run in speed.runs} == {f"{commit}+"}
    assert "engine.acme 1.0 → 2.0" in speed.baseline.changed
    assert not any("python" in text for text in speed.baseline.changed)
    series = [
        one
        for one in histories_of([read_results(lab.project.path / "one.json")])
        if (one.series.kind, one.series.metric) == (Kind.PERFORMANCE, "throughput")
    ]
    points = [point for history in series for point in history.points]
    assert [point.fingerprint["engine.acme"] for point in points] == ["1.0", "2.0"]
    assert [point.baseline for point in points] == [None, None]
    labels = [folder.name.split(".")[1] for folder in lab.project.run_folders()]
    assert labels.count("against") == other.pairs + 1
    assert len(git(lab.project.path, "worktree", "list").splitlines()) == 1
    assert not list(lab.project.path.glob(".mlperf/runs/*/against*"))

    again = lab.project.run(suite, "--mlperf-against=v1", "--mlperf-json=two.json", "-k accuracy")

    again.assert_outcomes(passed=1, deselected=1)
    (one,) = read_results(lab.project.path / "two.json").cases
    assert one.verdict.interleaved is not None
    assert one.verdict.interleaved.other_accuracy is not None
    assert one.verdict.interleaved.other_accuracy.source == "stored"
    assert "engine.acme 1.0 → 2.0" in one.verdict.baseline.changed


@pytest.mark.process
def test_the_runs_of_this_build_can_be_accepted_as_a_session(lab: Lab) -> None:
    """They are added to the baseline of the same build."""
    lab.suite()
    lab.project.record("suites")
    git(lab.project.path, "commit", "-q", "--allow-empty", "-m", "two")

    lab.project.run("suites", "--mlperf-against", "v1").assert_outcomes(passed=1)
    code = main(["update", "--write", "--no-runs", "--reason", "compared with v1"])

    assert code == 0
    record = lab.project.recorded(ACME)
    newest = newest_results(lab.project.path).parent.name
    assert newest in {run.session for run in record.runs}
    assert record.history[-1].action == "append"


@pytest.mark.process
def test_a_build_that_breaks_is_an_error(lab: Lab) -> None:
    """It lacks the engine, or an option that the suite sets today."""
    (lab.project.path / "acme.py").unlink()
    git(lab.project.path, "commit", "-q", "-a", "-m", "no engine")
    git(lab.project.path, "tag", "none")
    newer = ENGINE.replace('slow=""', 'slow="", fast=True')
    (lab.project.path / "acme.py").write_text(newer, "utf-8")
    git(lab.project.path, "add", "acme.py")
    for against, entry, message in [
        ("none", "", "cannot be imported"),
        ("v1", "options = { fast = true }", "fast"),
    ]:
        verdict = lab.verdict(against, lab.suite(entry=entry))
        headline = sentence(verdict.headline)
        assert verdict.outcome is Outcome.ERROR, headline
        assert headline.startswith(f"against: git {against} ("), headline
        assert message in headline
        assert verdict.metrics == ()


@pytest.mark.process
def test_a_requirement_gets_an_environment(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept for later sessions; one that a killed session left half made is made again."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    other_python.wheel(tmp_path, "dialect", "1.0")
    here = tmp_path / "here"
    here.mkdir()
    (here / "dialect.py").write_text('VERSION = "2.0"\n', "utf-8")
    monkeypatch.syspath_prepend(here)
    described = ENGINE.replace('"acme": VERSION', '"acme": __import__("dialect").VERSION')
    (lab.project.path / "acme.py").write_text(described, "utf-8")

    verdict = lab.verdict("pip:dialect==1.0")

    assert verdict.outcome is not Outcome.ERROR, verdict.headline
    assert verdict.interleaved is not None
    assert verdict.interleaved.other_subject is not None
    assert verdict.interleaved.other_subject.fingerprint["engine.acme"] == "1.0"
    assert verdict.subject is not None
    assert verdict.subject.fingerprint["engine.acme"] == "2.0"
    (ready,) = lab.project.path.glob(".mlperf/environments/*/ready")
    made = ready.stat().st_mtime_ns
    (ready.parent / "half").touch()
    with pytest.MonkeyPatch.context() as patch:
        simulate(patch)
        assert lab.verdict("pip:dialect==1.0").outcome is Outcome.OK
        assert ready.stat().st_mtime_ns == made
        ready.unlink()
        assert lab.verdict("pip:dialect==1.0").outcome is Outcome.OK
    assert ready.exists()
    assert not (ready.parent / "half").exists()


STOPS = """
from pathlib import Path

def pytest_runtest_setup(item):
    if "two" in item.nodeid and Path("stop").exists():
        raise KeyboardInterrupt
"""


@pytest.mark.process
def test_an_interrupted_session_resumes_against_the_same_commit(lab: Lab) -> None:
    """A ref that has moved is another comparison."""
    path, project = lab.project.path, lab.project
    engines = [f'[[engines]]\nuse = "acme:Acme"\nname = "{name}"\n' for name in ("one", "two")]
    project.suite(engines="\n".join(engines))
    project.pytester.makeconftest(STOPS)
    (path / "acme.py").write_text(SLOW_ENGINE, "utf-8")
    git(path, "branch", "target", "v1")
    (path / "stop").touch()
    words = ("suites", "-p", "no:benchmark", "--mlperf-against", "target")
    assert project.run_process(*words).ret == pytest.ExitCode.INTERRUPTED
    assert len(git(path, "worktree", "list").splitlines()) == 1
    (path / "stop").unlink()

    tree = git(path, "commit-tree", "v1^{tree}", "-p", "v1", "-m", "moved")
    git(path, "update-ref", "refs/heads/target", tree)
    refused = project.run(*words, "--mlperf-resume")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*commit of --mlperf-against was *"])
    git(path, "update-ref", "refs/heads/target", "v1")

    result = project.run(*words, "--mlperf-resume")

    result.assert_outcomes(failed=2)
    one, two = read_results(newest_results(path)).cases
    assert one.verdict.runs[0].session != two.verdict.runs[0].session
    for case_result in (one, two):
        assert case_result.verdict.outcome is Outcome.PERF_DROP
        assert case_result.verdict.interleaved is not None
        assert len(case_result.verdict.interleaved.other_runs) == len(case_result.verdict.runs)


def wait_for(pattern: str, folder: Path) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + 60
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.process
def test_files_of_a_killed_session_are_removed_by_the_next(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a session that runs stay."""
    path = lab.project.path
    (path / "acme.py").write_text(SLOW_ENGINE.replace("0.002", "2.0"), "utf-8")
    lab.suite()
    words = [sys.executable, "-m", "pytest", *LIGHT, "suites", "--mlperf-against", "v1"]
    with subprocess.Popen(words, cwd=path, stdout=subprocess.DEVNULL) as session:
        try:
            wait_for(".mlperf/runs/*/*/tree/acme.py", path)
            assert len(git(path, "worktree", "list").splitlines()) == 2
            simulate(monkeypatch)
            assert lab.verdict("v1").outcome is Outcome.OK
            assert len(git(path, "worktree", "list").splitlines()) == 2
        finally:
            session.kill()
    assert len(git(path, "worktree", "list").splitlines()) == 2

    assert lab.verdict("v1").outcome is Outcome.OK

    assert len(git(path, "worktree", "list").splitlines()) == 1
    assert not list(path.glob(".mlperf/runs/*/against*"))
