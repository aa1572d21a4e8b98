"""Test add-ons of other packages: the effect of each hook, and errors of broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mlperf.plugin import addons
from tests.forked import use_no
from tests.plugin.project import RATE, SUITE, Project, near, newest_results
from tests.plugin.simulated import null_engine, simulate

pytestmark = pytest.mark.process

CRITICAL = "def mlperf_verdict(verdict): return None\n"
REPORTING = "def mlperf_session_finished(results): return None\n"
CURE = "fix or uninstall it, or disable it: -p no:mlperf-acme"


@pytest.fixture
def measured(project: Project) -> Project:
    """A project whose only test is ok."""
    project.suite()
    project.baseline(near(RATE))
    return project


@pytest.fixture
def simulated(measured: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same project, whose runs in this process have the baseline's speed without a worker."""
    simulate(monkeypatch, null_engine(*near(RATE)))
    return measured


def install(project: Project, source: str, *, distribution: str = "acme-tools") -> None:
    """Install an add-on `acme` for this test: a module, and the metadata that name it."""
    module = distribution.replace("-", "_")
    metadata = project.path / f"{module}-1.2.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(f"[pytest_mlperf.addons]\nacme = {module}\n")
    (project.path / f"{module}.py").write_text(source, "utf-8")
    project.pytester.syspathinsert(project.path)


def forget(project: Project) -> None:
    """Make the next session import the add-on again."""
    import sys

    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


FAULTS = {
    "raises while it is loaded": "raise RuntimeError('no licence')\n",
    "is built for another interface": "API = 2\n",
    "states no interface": "",
    "misspells a hook": "API = 1\ndef mlperf_verdikt(verdict): pass\n",
    "ends the process": "raise SystemExit(0)\n",
    "has a hook that is no function": "API = 1\nmlperf_case_facts = 3\n",
    "takes an argument that no hook has": "API = 1\ndef mlperf_case_facts(result, colour): pass\n",
}
TOLD = {
    "raises while it is loaded": "RuntimeError: no licence (acme_tools.py:1)",
    "is built for another interface": "API is 2; this version needs API = 1",
    "states no interface": "API is not declared; this version needs API = 1",
    "misspells a hook": "no hook mlperf_verdikt",
    "ends the process": "SystemExit: 0",
    "has a hook that is no function": "mlperf_case_facts is not a function",
    "takes an argument that no hook has": "colour",
}


def test_an_add_on_that_cannot_be_loaded_is_named_and_fails_where_it_may_have_judged(
    simulated: Project,
) -> None:
    for fault, text in TOLD.items():
        for hooks, code in ((REPORTING, 0), (CRITICAL, 3)):
            install(simulated, FAULTS[fault] + hooks)
            if "misspells" in fault and code == 0:
                continue  # nobody knows what it was to be
            result = simulated.run(SUITE)
            forget(simulated)
            output = " ".join(result.stdout.str().split() + result.stderr.str().split())
            assert result.ret == code, (fault, code, output)
            assert "add-on acme (acme-tools 1.2) cannot be loaded: " in output, fault
            assert text in output, fault
            assert CURE in output, fault
            assert "Traceback" not in output


@pytest.mark.parametrize(
    "source",
    [
        "def mlperf_session_finished(:\n",
        "from acme_none import mlperf_verdict\n",
        "from acme_none import *\n",
        "from acme_none import verdict\nmlperf_verdict = verdict\n",
    ],
)
def test_source_that_may_judge_counts_as_such(source: str, simulated: Project) -> None:
    install(simulated, source)

    assert simulated.run(SUITE).ret == 3


def test_projects_without_suites_and_sessions_without_the_add_on_are_not_disturbed(
    simulated: Project,
) -> None:
    install(simulated, "raise RuntimeError('no licence')\n" + CRITICAL)
    tests = simulated.pytester.makepyfile("def test_own(): pass")

    own_tests = simulated.run(tests)
    without = simulated.run(SUITE, "-p", "no:mlperf-acme")

    for result in (own_tests, without):
        assert result.ret == 0
        assert "acme" not in result.stdout.str() + result.stderr.str()


def test_an_unknown_option_with_a_broken_add_on_names_the_add_on(simulated: Project) -> None:
    """Known options change nothing of how the session ends."""
    install(simulated, "raise RuntimeError('no licence')\n" + CRITICAL)

    known_option = simulated.run(SUITE, "--mlperf-max-runs=3")
    unknown = simulated.run(SUITE, "--mlperf-acme=3")

    assert (known_option.ret, unknown.ret) == (3, pytest.ExitCode.USAGE_ERROR)
    unknown.stderr.fnmatch_lines(["ERROR: unknown option --mlperf-acme; add-on acme (*"])


LOOP = """
API = 1

def mlperf_addoptions(group):
    group.add("acme", "ON", "where", "", elsewhere=True)

def mlperf_runtestloop(session):
    for item in session.items:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return True
"""


def test_a_loop_may_run_ordinary_tests_alone(simulated: Project) -> None:
    install(simulated, LOOP)
    tests = simulated.pytester.makepyfile("def test_own(): pass")

    result = simulated.run(tests, "--mlperf-acme=there")

    assert result.ret == 0
    result.assert_outcomes(passed=1)


def test_two_distributions_cannot_have_one_name(simulated: Project) -> None:
    install(simulated, "API = 1\n" + REPORTING)
    install(simulated, "API = 1\n" + CRITICAL, distribution="acme-more")

    result = simulated.run(SUITE)

    assert result.ret == 3
    output = " ".join(result.stderr.str().split() + result.stdout.str().split())
    assert (
        "add-on acme (acme-more 1.2) cannot be loaded: add-on acme (acme-tools 1.2) has" in output
    )


HOOKS = """
API = 1

def mlperf_addoptions(group):
    group.add("floor", "RATE", "least samples per second", 0.0, convert=float)

def mlperf_case_facts(result, options):
    return {"floor": f"{options['floor']:g} samples/s"}

def mlperf_verdict(verdict, baselines, planned, options):
    from pytest_mlperf.extension import Criterion
    rate = verdict.runs[-1].metrics["throughput"]
    if rate >= options["floor"]:
        return None
    return Criterion(headline=f"below the floor of {options['floor']:g}", notes=("ask sales",))

def mlperf_session_finished(results, folder):
    assert (folder / "results.json").exists()
    yield f"floor: {len(results.cases)} case"

def mlperf_collect_file(path, parent):
    import pytest
    class Floors(pytest.File):
        def collect(self):
            return [Floor.from_parent(self, name="floor")]
    class Floor(pytest.Item):
        def runtest(self):
            assert self.path.read_text() == "7"
    return Floors.from_parent(parent, path=path) if path.suffix == ".floor" else None
"""


def test_an_add_on_adds_options_facts_a_criterion_lines_and_tests(measured: Project) -> None:
    install(measured, HOOKS)
    (measured.path / "suites" / "a.floor").write_text("7")

    passed = measured.run("suites", "--mlperf-floor=1")
    failed = measured.run("suites", "-omlperf_floor=1e6")

    assert (passed.ret, failed.ret) == (0, 1)
    passed.assert_outcomes(passed=2)
    passed.stdout.fnmatch_lines(["floor: 1 case"])
    failed.stdout.fnmatch_lines(
        ["GATE FAIL below the floor of 1e+06", "*against the baseline alone: ok *", "*ask sales*"]
    )
    (case,) = json.loads(newest(measured).read_text("utf-8"))["cases"]
    assert case["facts"] == {"floor": "1e+06 samples/s"}


def newest(project: Project) -> Path:
    return newest_results(project.path)


RAISING = {
    "mlperf_verdict(verdict)": 3,
    "mlperf_case_facts(result)": 0,
    "mlperf_session_finished(results)": 0,
    "mlperf_addoptions(group)": 3,
    "mlperf_runtestloop(session)": 3,
    "mlperf_collect_file(path)": 3,
}


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_hook_that_raises_ends_with_3_where_it_may_have_changed_something(
    simulated: Project, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if workers:  # which start with this path, and as processes of their own
        monkeypatch.setenv("PYTHONPATH", str(simulated.path))
        use_no(monkeypatch)
    for hook, code in RAISING.items():
        text = f"raised in {hook.partition('(')[0]}: RuntimeError: boom (acme_tools.py:2)"
        if workers and "verdict" not in hook and "facts" not in hook:
            continue
        install(simulated, f"API = 1\ndef {hook}: raise RuntimeError('boom')\n")
        run = simulated.run_process if workers else simulated.run
        result = run("suites", *workers)
        forget(simulated)
        output = " ".join(result.stdout.str().split() + result.stderr.str().split())
        assert result.ret == code, (hook, output)
        assert f"add-on acme (acme-tools 1.2) {text}" in output, (hook, output)
        assert "Traceback" not in output
        if "verdict" in hook:
            assert "1 ERROR" in output


NO_TEXT = "import pytest_mlperf.extension as e; return e.Criterion(headline=None)"
WRONG = {
    "mlperf_verdict(verdict): return 'bad'": (3, "returned 'bad', not a Criterion"),
    f"mlperf_verdict(verdict): {NO_TEXT}": (3, "headline and notes of a Criterion must be strings"),
    "mlperf_verdict(verdict): raise SystemExit(0)": (3, "SystemExit: 0"),
    "mlperf_verdict(verdict): import pytest; pytest.skip('no')": (3, "Skipped: no"),
    "mlperf_case_facts(result): return 7": (0, "returned 7, not a mapping"),
    "mlperf_case_facts(result): return {'a': 1}": (0, "returned {'a': 1}, not a mapping"),
    "mlperf_collect_file(path): return 3": (3, "returned 3, not a pytest.Collector"),
    "mlperf_runtestloop(session): return False": (3, "returned False, not True or None"),
    "mlperf_runtestloop(session): return True": (
        3,
        "took over the tests of this session, but ran none",
    ),
    "mlperf_session_finished(results): return 7": (0, "'int' object is not iterable"),
    "mlperf_session_finished(results): print('psst')": (0, "_session_finished, but printed: psst"),
    "mlperf_addoptions(group): group.add('half', 'X', '50 % of it')": (3, "write %% for a percent"),
    "mlperf_addoptions(group): group.add('update', 'X', 'x')": (3, "option 'update' exists; c"),
}


def test_invalid_values_of_hooks_and_their_prints_are_reported(simulated: Project) -> None:
    for hook, (code, text) in WRONG.items():
        install(simulated, f"API = 1\ndef {hook}\n")
        result = simulated.run(SUITE)
        forget(simulated)
        output = " ".join(result.stdout.str().split() + result.stderr.str().split())
        assert (result.ret, text in output) == (code, True), (hook, output)


def test_a_slow_add_on_is_reported(simulated: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addons, "SLOW_S", -1.0)
    install(simulated, "API = 1\n" + REPORTING)

    result = simulated.run(SUITE)

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["WARNING add-on acme (acme-tools 1.2) is slow: * s in mlperf_session_finished"]
    )
