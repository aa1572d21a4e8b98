"""Cases at power limits of their own on a simulated GPU: set while measured, always restored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import calibration
from pytest_mlperf.stores.results import read_results
from tests.nvml.library import Fake
from tests.plugin.project import OPTIONS, SUITE, Project, case, newest_results
from tests.plugin.test_efficiency import WORKING
from tests.plugin.test_interruption import left_of, measuring

GPU = ("device", "limit 700 min=200 max=700")
COLD = ("-omlperf_warmup=never", "-omlperf_baseline_runs=1")

LIMITED = """
from pathlib import Path

import working

LIMIT = Path(f"{working.SCENARIO}.limit.0")


class Limited(working.Working):
    # Keeps what the GPU was set to when it was loaded.
    def __enter__(self):
        with Path("loaded").open("a") as file:
            print(LIMIT.read_text() if LIMIT.exists() else "", file=file)
        return super().__enter__()


class Breaks(Limited):
    def submit(self, ids, indices, sink):
        self.put(self.rest)
        raise OSError("out of memory")


class Overruled(Limited):
    # An administrator sets another limit while it runs.
    def submit(self, ids, indices, sink):
        LIMIT.write_text("650000")
        super().submit(ids, indices, sink)
"""


@pytest.fixture
def fake(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """An H200 at 700 W, which may be set to 200 to 700 W."""
    fake_gpu = Fake(tmp_path)
    fake_gpu.write(*GPU)
    for name, value in fake_gpu.environment.items():
        if name in {"LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO", "FAKE_NVML_LOG"}:
            monkeypatch.setenv(name, value)
    project.pytester.makepyfile(working=WORKING, engines=LIMITED)
    return fake_gpu


def suite(
    project: Project,
    limits: str | None = "[400, 700]",
    duration: str = "300ms",
    name: str = "first",
    entries: Sequence[tuple[str, object]] = (),
) -> None:
    project.suite(
        name=name,
        engines="".join(
            f'[[engines]]\nuse = "engines:{engine}"\naccelerators = ["H200"]\n'
            f"options = {OPTIONS}\n" + (f"power_limit_w = {limit}\n" if limit else "")
            for engine, limit in entries or [("Limited", limits)]
        ),
        scenarios='[[scenarios]]\nname = "Offline"\ntarget_qps = 500\n'
        f'min_duration = "{duration}"\n',
    )


def record(project: Project, *more: str) -> pytest.RunResult:
    return project.run_process("suites", *COLD, "--mlperf-update=missing", *more)


def results(project: Project) -> dict[str, CaseResult]:
    """Return the results of the last session by engine."""
    newest = newest_results(project.path)
    return {each.verdict.case.engine: each for each in read_results(newest).cases}


def outcomes(project: Project) -> dict[str, Outcome]:
    return {name: result.verdict.outcome for name, result in results(project).items()}


def notes(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("leases/pytest-mlperf/*.power-limit.json"))


def loaded(project: Project) -> list[str]:
    """Return the limits that the GPU had been set to when engines were loaded."""
    return (project.path / "loaded").read_text().split()


def test_each_limit_is_set_for_its_case_and_restored(
    fake: Fake, project: Project, tmp_path: Path
) -> None:
    """Each has a baseline of its own, of a GPU at that limit; the judged run is at it too."""
    suite(project)

    record(project)
    first = results(project)
    again = project.run_process("suites", *COLD, "--mlperf-max-runs=2")
    second = results(project)

    # A run that neighbours disturbed is measured again, at the limit of its case.
    in_turn = [limit for limit, _ in groupby(loaded(project))]
    assert len(in_turn) >= 4
    assert in_turn == ["400000", "700000"] * (len(in_turn) // 2)
    assert (fake.limit_w(), notes(tmp_path)) == (700, [])
    assert {n: r.verdict.outcome for n, r in first.items()} == dict.fromkeys(
        ("Limited-400W", "Limited-700W"), Outcome.RECORDED
    )
    for watts in (400, 700):
        of = case(engine=f"Limited-{watts}W", accelerator="H200")
        identity = project.recorded(of).identity
        assert (identity["power_limit_w"], identity["power_limit_set"]) == (watts, True)
        subject = second[of.engine].verdict.subject
        assert subject is not None
        assert subject.identity == identity
    assert "power limit changed" not in again.stdout.str()


@pytest.mark.nightly
def test_each_limit_is_calibrated_by_itself(fake: Fake, project: Project) -> None:
    """GPUs at another limit are another machine: runs of one say nothing of the other's noise."""
    suite(project)
    done = subprocess.run(
        [sys.executable, "-m", "pytest_mlperf", "calibrate", "suites", "--runs", "2", "--write"],
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = project.path.rglob("baselines/calibration/H200.json")
    stored = calibration.load(file, "H200")
    assert stored is not None
    learnt = {
        machine.identity["power_limit_w"]: [(each.case, len(each.runs)) for each in machine.cases]
        for machine in stored.machines
    }
    assert learnt == {
        watts: [(case(engine=f"Limited-{watts}W", accelerator="H200").id, 2)]
        for watts in (400, 700)
    }


def test_a_marker_selects_cases_by_their_limit(project: Project) -> None:
    limited = '[[engines]]\nuse = "null"\naccelerators = ["H200"]\npower_limit_w = [400, 700]\n'
    usual = '[[engines]]\nuse = "null"\nname = "usual"\naccelerators = ["H200"]\n'
    project.suite(engines=limited + usual)

    results_by_limit = {
        limit: project.run("suites", "--mlperf-plan", "-m", f"mlperf(power_limit_w={limit})")
        for limit in (400, None)
    }

    for limit, cases in {400: ["null-400W"], None: ["usual"]}.items():
        text = results_by_limit[limit].stdout.str()
        named = {name for name in ("null-400W", "null-700W", "usual") if f"-{name}-" in text}
        assert named == {*cases}


def test_without_the_right_a_case_is_skipped_with_the_remedy(fake: Fake, project: Project) -> None:
    fake.write("fail nvmlDeviceSetPowerManagementLimit 4", *GPU)
    suite(project)

    result = record(project, "-rs")

    result.assert_outcomes(skipped=1)
    output = " ".join(result.stdout.str().split())
    assert "power_limit_w = 400: this user may not set the power limit of GPU-0; run as" in output
    assert "sudo nvidia-smi -i GPU-0 -pl 400" in output
    # Nothing is set where the GPU has the limit already: that would fail as well.
    assert outcomes(project) == {"Limited-700W": Outcome.RECORDED}


def test_the_limit_is_restored_after_an_error_and_watched_while_measured(
    fake: Fake, project: Project, tmp_path: Path
) -> None:
    entries = (("Breaks", 500), ("Limited", 700), ("Limited", 800), ("Overruled", 500))
    suite(project, entries=entries)

    result = record(project)

    assert outcomes(project) == {
        "Breaks-500W": Outcome.ERROR,
        "Limited-700W": Outcome.RECORDED,
        "Overruled-500W": Outcome.INVALID,
    }
    # What the board cannot have is never set, and 700 W are what it had.
    assert loaded(project)[:2] == ["500000", "700000"]
    assert {*loaded(project)[2:]} == {"500000"}
    text = " ".join(result.stdout.str().split())
    assert "power_limit_w = 800: GPU-0 allows 200 to 700 W" in text
    overruled = results(project)["Overruled-500W"].verdict
    assert [reason.key for reason in overruled.reasons] == [Key.POWER_LIMIT_CHANGED]
    assert (fake.limit_w(), notes(tmp_path)) == (650, [])


GUARD = "pytest_mlperf.hardware.power_limit"


def guard_of(family: list[psutil.Process]) -> psutil.Process:
    (guard,) = [one for one in family if GUARD in one.cmdline()]
    return guard


@pytest.mark.quiet
@pytest.mark.parametrize("whole_group", [False, True])
def test_the_limit_is_restored_after_pytest_was_killed(
    fake: Fake, project: Project, tmp_path: Path, *, whole_group: bool
) -> None:
    """Its process group as well, as a shell or a scheduler may."""
    suite(project, "500", duration="10min", name="long")
    with measuring(project, SUITE, "-omlperf_warmup=never") as (process, family):
        guard, during = guard_of(family), fake.limit_w()
        if whole_group:
            assert os.getpgid(guard.pid) != os.getpgid(process.pid)
        process.send_signal(signal.SIGKILL)
        left = left_of(family)

    assert during == 500
    assert left == []
    assert (fake.limit_w(), notes(tmp_path)) == (700, [])


@pytest.mark.quiet
def test_the_next_session_restores_the_limit_left_by_a_killed_guard(
    fake: Fake, project: Project, tmp_path: Path
) -> None:
    """It says so, and its baseline is of the GPU's own limit."""
    suite(project, "500", duration="10min", name="long")
    with measuring(project, SUITE, "-omlperf_warmup=never") as (process, family):
        guard_of(family).kill()
        process.kill()
        left_of(family)
    left = fake.limit_w(), len(notes(tmp_path))
    fake.write(*GPU)
    suite(project, None)
    result = record(project)

    assert left == (500, 1)
    assert (fake.limit_w(), notes(tmp_path)) == (700, [])
    assert outcomes(project) == {"Limited": Outcome.RECORDED}
    of = case(engine="Limited", accelerator="H200")
    identity = project.recorded(of).identity
    assert identity["power_limit_w"] == 700
    assert "power_limit_set" not in identity
    output = " ".join(result.stdout.str().split())
    assert "a killed process: GPU-0 has its power limit of 700 W back" in output


@pytest.mark.quiet
def test_a_session_whose_guard_was_killed_restores_the_limit_itself(
    fake: Fake, project: Project, tmp_path: Path
) -> None:
    suite(project, "500", duration="10min", name="long")
    with measuring(project, SUITE, "-omlperf_warmup=never") as (process, family):
        guard_of(family).kill()
        process.send_signal(signal.SIGINT)
        left = left_of(family)

    assert left == []
    assert (fake.limit_w(), notes(tmp_path)) == (700, [])
