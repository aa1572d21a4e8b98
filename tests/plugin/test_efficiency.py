"""Energy of runs on a GPU, as sampled through NVML, and what fails for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.run.tries import INVALID_TRIES
from tests.nvml.library import Fake, scenario
from tests.plugin.project import OPTIONS, Project

GATED_FROM_1_S = """
from pytest_mlperf.core import energy
energy.GATED_S, energy.SHORTEST_S = 1.0, 0.5
"""
"""Else a window of 20 s is needed, for the counter's lag; the load here is steady."""

OFFLINE = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "1500ms"
"""

ONE_RUN = "--mlperf-baseline-runs=1"

H200 = scenario("wave const 500")


@pytest.fixture
def fake(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """An H200 that draws 500 W, for all processes of the project's pytest."""
    found = Fake(tmp_path)
    found.write(*H200)
    for name, value in found.environment.items():
        if name in {"LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"}:
            monkeypatch.setenv(name, value)
    project.pytester.makeconftest(GATED_FROM_1_S)
    project.pytester.makepyfile(working=WORKING)
    return found


WORKING = """
import os
from pathlib import Path

from pytest_mlperf.engines.null import NullEngine

SCENARIO = Path(os.environ["FAKE_NVML_SCENARIO"])


class Working(NullEngine):
    # The GPU shows that it works while this engine is loaded.
    def __enter__(self):
        self.rest = SCENARIO.read_text()
        self.put(self.rest + "util 95 40\\n")
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.put(self.rest)

    def put(self, text):
        draft = SCENARIO.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(SCENARIO)
"""

ENGINE = f"""
[[engines]]
use = "working:Working"
accelerators = ["H200"]
options = {OPTIONS}
"""

LIMITS = """
[limits]
throughput = { max_drop = "40%" }
samples_per_joule = { max_drop = "5%" }
"""


def suite(project: Project) -> None:
    project.suite(engines=ENGINE, scenarios=OFFLINE, more=LIMITS)


def run(project: Project, *arguments: str) -> pytest.RunResult:
    return project.run_process("suites", *arguments)


def outcomes(project: Project) -> dict[str, Outcome]:
    newest = max(project.path.glob(".mlperf/runs/*/results.json"))
    from pytest_mlperf.stores.results import read_results

    return {each.verdict.kind: each.verdict.outcome for each in read_results(newest).cases}


def newest(project: Project) -> CaseResult:
    return project.results().cases[-1]


def rescale(fake: Fake, watts: float) -> None:
    fake.write(*scenario(f"wave const {watts:g}"))


def test_samples_per_joule_are_judged_against_the_baseline(fake: Fake, project: Project) -> None:
    """The same speed at half as much power again is a POWER DROP, and no PERF DROP."""
    suite(project)
    project.record("suites", "-k", "performance", own_process=True)

    run(project)
    before = outcomes(project)
    rescale(fake, 750)
    hungrier = run(project, "-k", "performance or efficiency")

    assert before == {"performance": Outcome.OK, "efficiency": Outcome.OK}
    assert outcomes(project) == {"performance": Outcome.OK, "efficiency": Outcome.POWER_DROP}
    hungrier.stdout.re_match_lines(
        [
            r"POWER DROP samples/J −3\d\.\d % \(.*\); −5 % exceeded",
            r"samples/J .* −5 %  POWER DROP",
            r".*J \(± \d+\) in \d\.\d s, 75\d W",
        ]
    )


def test_what_is_other_than_with_the_baseline_is_told_beside_ok(
    fake: Fake, project: Project
) -> None:
    """Clocks that someone locked, where no event reason shows it, and another driver."""
    suite(project)
    project.record("suites", "-k", "performance", own_process=True)

    fake.write("driver 600.10", "device", "wave const 500", "clocks 1500 3201")
    result = run(project, "-k", "performance")

    assert outcomes(project) == {"performance": Outcome.OK}
    case = "first-Offline-Working-fp32-H200"
    told = " ".join(" ".join(result.outlines).split())
    assert f"changed {case}: machine.driver 595.45.04 → 600.10 since the baseline" in told
    assert f"note {case}: beside the baseline: SM clock −24.2 %, power cap share" in told


def test_while_a_baseline_is_recorded_efficiency_is_too(fake: Fake, project: Project) -> None:
    """One set of runs serves both; nothing is judged against what is not there yet."""
    suite(project)

    result = project.record("suites", own_process=True)

    assert outcomes(project) == {
        "performance": Outcome.RECORDED,
        "efficiency": Outcome.RECORDED,
    }
    result.assert_outcomes()
    result.stdout.re_match_lines([r"2 tests: 2 recorded; 5 runs, .*"])


def test_a_run_on_a_gpu_that_is_throttled_may_not_be_judged(fake: Fake, project: Project) -> None:
    """INVALID says why, for how long, and shows the number."""
    suite(project)
    fake.write(*scenario("wave const 500", "event 0x40 after=0"))

    result = run(project, "-k", "performance")

    assert outcomes(project) == {"performance": Outcome.INVALID}
    found = newest(project).verdict
    assert [each.key for each in found.reasons] == [Key.HW_THERMAL_SLOWDOWN]
    assert [len(run.invalid) for run in found.invalid_runs] == [1] * INVALID_TRIES
    assert len(found.measured_again) == INVALID_TRIES - 1
    result.stdout.re_match_lines(
        [
            r"INVALID heat \(hardware slowdown\) halted the clocks for \d\.\d\d s, 100\.0% of",
            r"note +not judged: samples/s \d+",
        ]
    )


RECOVERS = """
import os
from pathlib import Path

import working

TRIED = Path("tried")


class Recovers(working.Working):
    # Uncorrected memory errors in the first process's run, and in no other.
    def submit(self, ids, indices, sink):
        if len(ids) > 500 and not TRIED.exists():  # the run's only query, no warm-up
            TRIED.touch()
            self.put(working.SCENARIO.read_text() + "ecc 1 1 uncorrected=2 after=0\\n")
        super().submit(ids, indices, sink)
"""


def test_a_run_that_was_invalid_and_measured_again_is_told(fake: Fake, project: Project) -> None:
    """In the summary, in results.json with the reason's key, and in JUnit's file."""
    project.pytester.makepyfile(recovers=RECOVERS)
    project.suite(engines=ENGINE.replace("working:Working", "recovers:Recovers"), scenarios=OFFLINE)

    result = run(project, "-k", "performance", "--junit-xml=junit.xml")

    said = "2 uncorrected memory errors (ECC) during the run"
    assert f"  1 run INVALID, measured again: {said}" in result.outlines
    result.stdout.re_match_lines([r"1 test: 1 NO BASELINE; 1 run and 1 INVALID, .*"])
    (invalid,) = newest(project).verdict.invalid_runs
    assert invalid.invalid == (Reason(key=Key.ECC_UNCORRECTED, text=said),)
    assert Path(invalid.folder).is_dir()
    assert newest(project).verdict.reasons == ()
    assert f'"mlperf.invalid_run" value="ecc_uncorrected: {said}"' in (
        project.path / "junit.xml"
    ).read_text("utf-8")


def test_someone_elses_process_makes_a_run_invalid(fake: Fake, project: Project) -> None:
    suite(project)
    fake.write(*scenario("wave const 500", "proc 4242 2000000000"))

    result = run(project, "-k", "performance")

    assert outcomes(project) == {"performance": Outcome.INVALID}
    result.stdout.re_match_lines([r"INVALID in use before the engine was loaded: .*4242"])


@pytest.mark.parametrize(
    ("arguments", "skipped", "failed"),
    [((), 1, 0), (("--mlperf-power=require",), 0, 1), (("--mlperf-power=off",), 1, 0)],
    ids=["auto", "require", "off"],
)
def test_an_energy_that_nobody_can_read_is_never_0(
    fake: Fake, project: Project, arguments: Sequence[str], skipped: int, failed: int
) -> None:
    """A skip that says why, a failure where it is required; speed is judged all the same."""
    suite(project)
    fake.write(
        *scenario("energy none", "instant none", "average none"), "fail nvmlDeviceGetPowerUsage 3"
    )

    result = run(project, "-rs", *arguments)

    result.assert_outcomes(skipped=skipped, failed=failed)
    assert outcomes(project)["performance"] is Outcome.NO_BASELINE
    if "off" not in "".join(arguments):
        result.stdout.fnmatch_lines(["*H200: energy is not known: *"])


def test_a_short_run_is_reported_and_not_gated(fake: Fake, project: Project) -> None:
    project.pytester.makeconftest("")
    suite(project)

    result = run(project, "-k", "efficiency")

    assert outcomes(project) == {"efficiency": Outcome.NOT_EVALUATED}
    result.stdout.fnmatch_lines(["*not evaluated*a window of 1.* s is too short for energy*"])


def test_of_runs_whose_energy_may_not_be_judged_none_is_recorded(
    fake: Fake, project: Project
) -> None:
    """Speed is recorded from the same runs; the test of efficiency says why it is not."""
    project.pytester.makeconftest("")
    suite(project)

    result = project.record("suites", own_process=True)

    assert outcomes(project) == {
        "performance": Outcome.RECORDED,
        "efficiency": Outcome.NOT_EVALUATED,
    }
    result.stdout.fnmatch_lines(["*not evaluated*run 1 of 5: a window of 1.* s is too short*"])
    (file,) = project.path.glob("baselines/H200/**/*.json")
    assert "throughput" in file.read_text("utf-8")
    assert "per_joule" not in file.read_text("utf-8")


def test_a_gpu_that_did_nothing_did_not_do_the_work(fake: Fake, project: Project) -> None:
    """An engine that fell back to the CPU is no result of the GPU, however good its figures."""
    project.suite(accelerators=["H200"], scenarios=OFFLINE, more=LIMITS)

    result = run(project, "-k", "performance")

    assert outcomes(project) == {"performance": Outcome.INVALID}
    result.stdout.fnmatch_lines(
        [
            "INVALID the GPU did not do the work: 500 W, 500 W before the engine was loaded, no "
            "utilisation,*"
        ]
    )


def test_a_gpu_that_is_lost_is_told_where_its_cases_are_deselected(
    fake: Fake, project: Project
) -> None:
    suite(project)
    fake.write("fail nvmlDeviceGetHandleByIndex_v2 15", "device")

    result = run(project, "--collect-only")

    told = " ".join(result.outlines)
    assert "accelerator not here: H200 (2); here: cpu (GPU 0 may not be asked: GPU is lost" in told


def test_a_worker_sees_only_the_gpus_of_its_case(fake: Fake, project: Project) -> None:
    """By number, in the order of PCI that is set beside it."""
    fake.write(*scenario("wave const 500"), "device", "wave const 500")
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    seen = f'Path("seen").write_text(" ".join(os.environ[name] for name in {names}))\n'
    project.pytester.makepyfile(working=WORKING + seen)
    suite(project)

    run(project, "-k", "performance")

    assert Path(project.path / "seen").read_text("utf-8") == "0 PCI_BUS_ID"


def test_a_baseline_of_another_power_limit_is_named_and_its_absence_fails_under_ci(
    fake: Fake, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression may not hide behind a setting of the machine."""
    suite(project)
    recorded = run(project, "-k", "performance", "--mlperf-update=missing", ONE_RUN)
    fake.write(*scenario("wave const 500", "limit 500"))
    monkeypatch.setenv("CI", "true")

    failed = run(project, "-k", "performance")
    passed = run(project, "-k", "performance", "--mlperf-no-baseline=pass")
    beside = run(project, "-k", "performance", "--mlperf-update=missing", ONE_RUN)

    assert (recorded.ret, failed.ret, passed.ret, beside.ret) == (0, 1, 0, 0)
    changed = r"baseline of 20\d\d-\d\d-\d\d applied to power_limit_w 700, here 500"
    failed.stdout.re_match_lines([rf"NO BASELINE samples/s: {changed}", rf"note +{changed}"])
    text = " ".join(" ".join(beside.outlines).split())
    assert re.search(rf"recorded beside another: {changed}", text)
    assert outcomes(project) == {"performance": Outcome.RECORDED}
