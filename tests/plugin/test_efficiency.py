"""Energy of runs on a GPU, as sampled through NVML, and what fails for it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from pytest_mlperf.bench.runner import INVALID_TRIES
from pytest_mlperf.core.energy import Source
from pytest_mlperf.core.reason import Key
from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.hardware import machine
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.results import read_results
from tests.nvml.library import Fake, scenario
from tests.plugin.project import OPTIONS, RATE, Project, case, near, newest_results
from tests.run.other_python import git

GATED_FROM_1_S = """
from pytest_mlperf.core import energy
energy.MIN_GATED_SECONDS = 1.0
"""
"""Else a window of 20 s is needed, for the counter's lag; the load here is steady."""

OFFLINE = """
[[scenarios]]
name = "Offline"
target_qps = 500
min_duration = "1500ms"
"""

ONE_RUN = "-omlperf_baseline_runs=1"

COLD = "-omlperf_warmup=never"
"""A fake GPU has nothing to warm up; tests/run/test_warmup.py is about the run that does it."""

H200 = scenario("wave const 500")


@pytest.fixture
def fake(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """An H200 that draws 500 W, for all processes of the project's pytest."""
    fake_gpu = Fake(tmp_path)
    fake_gpu.write(*H200)
    for name, value in fake_gpu.environment.items():
        if name in {"LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"}:
            monkeypatch.setenv(name, value)
    project.pytester.makeconftest(GATED_FROM_1_S)
    project.pytester.makepyfile(working=WORKING)
    return fake_gpu


WORKING = """
import os
import re
from pathlib import Path

from pytest_mlperf.builtin.null import NullEngine

SCENARIO = Path(os.environ["FAKE_NVML_SCENARIO"])


class Working(NullEngine):
    # The GPU shows that it works while this engine is loaded.
    def __enter__(self):
        self.rest = SCENARIO.read_text()
        self.put(re.sub("^device$", "device\\nutil 95 40", self.rest, flags=re.M))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.put(self.rest)

    def put(self, text):
        draft = SCENARIO.with_suffix(f".{os.getpid()}.draft")
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
samples_per_joule = { max_drop = "40%" }
"""
"""A busy machine moves the speed by a tenth, and with it the samples of a joule."""


def suite(project: Project) -> None:
    project.suite(engines=ENGINE, scenarios=OFFLINE, more=LIMITS)


def run(project: Project, *arguments: str) -> pytest.RunResult:
    return project.run_process("suites", COLD, *arguments)


def last(project: Project) -> dict[str, Verdict]:
    """Return the verdicts of the last session by kind."""
    newest = newest_results(project.path)
    return {each.verdict.kind: each.verdict for each in read_results(newest).cases}


def outcomes(project: Project) -> dict[str, Outcome]:
    return {kind: verdict.outcome for kind, verdict in last(project).items()}


SEES = """
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
Path("seen").write_text(" ".join(os.environ[name] for name in names))
"""


def test_samples_per_joule_are_recorded_and_judged(fake: Fake, project: Project) -> None:
    """A worker sees only its GPU; the same speed at three times the power is a POWER DROP."""
    other_gpu = ("device", "wave const 500")
    suite(project)
    project.pytester.makepyfile(working=WORKING + SEES)
    fake.write(*scenario("wave const 250"), *other_gpu)

    recorded = run(project, "--mlperf-update=missing", ONE_RUN)

    recorded.assert_outcomes()
    recorded.stdout.re_match_lines([r"2 tests: 2 recorded; 1 run.*"])
    assert outcomes(project) == {"performance": Outcome.RECORDED, "efficiency": Outcome.RECORDED}
    assert (project.path / "seen").read_text("utf-8") == "0 PCI_BUS_ID"
    project.over_days()

    fake.write("driver 600.10", "device", "wave const 250", "clocks 1500 3201", *other_gpu)
    changed = run(project)

    # What is other than with the baseline stands beside OK; on a busy machine the baseline's own
    # run may have been the slow one.
    assert outcomes(project).keys() == {"performance", "efficiency"}
    assert set(outcomes(project).values()) <= {Outcome.OK, Outcome.IMPROVED}
    entry = "first-Offline-Working-fp32-H200"
    text = " ".join(" ".join(changed.outlines).split())
    assert f"changed {entry}: machine.driver 595.45.04 → 600.10 since the baseline" in text
    assert f"note {entry}: compared with the baseline: SM clock −24.2 %, time at the power" in text

    fake.write(*scenario("wave const 750"), *other_gpu)
    hungrier = run(project)

    assert outcomes(project)["performance"] in {Outcome.OK, Outcome.IMPROVED}
    assert outcomes(project)["efficiency"] is Outcome.POWER_DROP
    # The speed is the machine's; the power is what the fake draws.
    changes = {metric.metric: metric.change for metric in last(project)["efficiency"].metrics}
    faster, worse = changes["throughput"], changes["samples_per_joule"]
    assert faster is not None
    assert worse == pytest.approx((1 + faster) / 3 - 1, abs=0.02)
    hungrier.stdout.re_match_lines(
        [
            r"POWER DROP samples/J −[67]\d\.\d % \(.*\); limit −40 % exceeded",
            r"samples/J .* −40 %  POWER DROP",
            r".*J \(± \d+\) in \d+\.\d s, 7[45]\d W",
        ]
    )


def test_the_energy_of_another_build_is_measured_in_the_same_session(
    fake: Fake, project: Project
) -> None:
    """This build, slowed by a handicap, against the same commit without it."""
    suite(project)
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        git(project.path, *words)
    fake.write(*scenario("wave const 250"), "device", "wave const 500")

    run(project, "--mlperf-against", "HEAD", "--mlperf-handicap=70%")

    assert outcomes(project) == {
        "performance": Outcome.PERF_DROP,
        "efficiency": Outcome.POWER_DROP,
    }
    verdict = last(project)["efficiency"]
    other = verdict.interleaved
    assert other is not None
    assert len(other.other_runs) == len(verdict.runs)
    assert all("samples_per_joule" in one.metrics for one in other.other_runs)
    metric = next(one for one in verdict.metrics if one.metric == "samples_per_joule")
    assert metric.baseline.runs == metric.runs >= 2


DOUBTFUL = """
from pathlib import Path

import working

TRIED = Path("tried")


class Recovers(working.Working):
    # Uncorrected memory errors in the first process's run, and in no other.
    def submit(self, ids, indices, sink):
        if len(ids) > 200 and not TRIED.exists():  # the run's only query, no warm-up
            TRIED.touch()
            self.put(working.SCENARIO.read_text() + "ecc 1 1 uncorrected=2 after=0\\n")
        super().submit(ids, indices, sink)


class Hot(working.Working):
    # The clocks are halted while it is loaded.
    def __enter__(self):
        super().__enter__()
        self.put(working.SCENARIO.read_text() + "event 0x40 after=0\\n")
        return self
"""


@pytest.mark.nightly
def test_an_invalid_run_is_measured_again_with_a_note(fake: Fake, project: Project) -> None:
    """In the summary, in results.json with the reason's key, and in JUnit's file.

    tests/run/test_power_doubts.py has every other reason.
    """
    project.pytester.makepyfile(doubtful=DOUBTFUL)
    entries = [ENGINE.replace("working:Working", f"doubtful:{n}") for n in ("Recovers", "Hot")]
    half_a_second = OFFLINE.replace("1500ms", "500ms")
    project.suite(engines="".join(entries), scenarios=half_a_second, more=LIMITS)

    result = run(project, "-k", "performance", "--junit-xml=junit.xml")

    recovered, hot = (each.verdict for each in project.results().cases)
    message = "2 uncorrected memory errors (ECC) during the run"
    assert f"  1 run INVALID, measured again: {message}" in result.outlines
    result.stdout.re_match_lines([r"2 tests: 1 INVALID, 1 NO BASELINE; 1 run and 4 INVALID, .*"])
    (invalid,) = recovered.invalid_runs
    (reason,) = invalid.invalid
    assert (reason.key, sentence(reason.text)) == (Key.ECC_UNCORRECTED, message)
    assert Path(invalid.folder).is_dir()
    assert (recovered.outcome, recovered.reasons) == (Outcome.NO_BASELINE, ())
    assert f'"mlperf.invalid_run" value="ecc_uncorrected: {message}"' in (
        project.path / "junit.xml"
    ).read_text("utf-8")

    assert hot.outcome is Outcome.INVALID
    assert [reason.key for reason in hot.reasons] == [Key.HW_THERMAL_SLOWDOWN]
    assert [len(run.invalid) for run in hot.invalid_runs] == [1] * INVALID_TRIES
    assert len(hot.measured_again) == INVALID_TRIES - 1
    headline = r"INVALID heat \(hardware slowdown\) reduced the clocks for \d\.\d\d s, 100\.0% of"
    result.stdout.re_match_lines([headline, r"samples/s +\d.* reported"])


UNSIGNED = ("PowerUsage", "ClockInfo", "Temperature*", "UtilizationRates", "CurrPcie*")
LONG = ("MemoryInfo*", "TotalEnergyConsumption", "CurrentClocks*", "TotalEccErrors")
GARBAGE = [
    "show field:* 9223372036854775794 every=8",
    *(f"show nvmlDeviceGet{name} 4294967295 every=8" for name in UNSIGNED),
    *(f"show nvmlDeviceGet{name} 18446744073709551615 every=8" for name in LONG),
]


def test_no_output_of_a_session_has_impossible_hardware_values(
    fake: Fake, project: Project
) -> None:
    """Every eighth answer of each function is a blank; the energy and the speed are recorded."""
    fake.write(*GARBAGE, *scenario("wave const 250"))
    suite(project)

    recorded = run(project, "--mlperf-update=missing", ONE_RUN, "--mlperf-report=html=page.html")

    assert set(outcomes(project).values()) == {Outcome.RECORDED}, recorded.stdout.str()
    (baseline,) = project.path.glob("baselines/H200/**/*.json")
    results = newest_results(project.path)
    files = (baseline, results, project.path / "page.html")
    texts = [file.read_text("utf-8") for file in files]
    for text in (recorded.stdout.str(), *texts):
        assert re.search(r"4[,.]?294[,.]?96\d|9[,.]?223[,.]?372|1\.?8446744", text) is None
    power = last(project)["efficiency"].runs[0].energy[Source.NVML]
    assert power is not None
    assert power.mean_w == pytest.approx(250, rel=0.05)


def test_an_unreadable_energy_is_never_0(fake: Fake, project: Project) -> None:
    project.suite(engines=ENGINE, more=LIMITS)
    fake.write(
        *scenario("energy none", "instant none", "average none"), "fail nvmlDeviceGetPowerUsage 3"
    )
    for power, performance, skipped in (("auto", 1, 1), ("require", 0, 0)):
        selected = () if performance else ("-k", "efficiency")
        result = run(project, "-rs", f"-omlperf_power={power}", *selected)

        result.assert_outcomes(skipped=skipped, failed=1 - skipped, deselected=1 - performance)
        result.stdout.fnmatch_lines(["*H200: energy unknown: *"])
        if performance:
            assert outcomes(project)["performance"] is Outcome.NO_BASELINE


def test_energy_of_a_short_run_is_neither_gated_nor_recorded(fake: Fake, project: Project) -> None:
    """Speed is recorded from the same runs; the test of efficiency says why it is not."""
    project.pytester.makeconftest("")
    project.suite(engines=ENGINE, more=LIMITS)

    recorded = run(project, "--mlperf-update=missing", "-omlperf_baseline_runs=2")

    assert outcomes(project) == {
        "performance": Outcome.RECORDED,
        "efficiency": Outcome.NOT_EVALUATED,
    }
    recorded.stdout.fnmatch_lines(
        ["*not evaluated*run 1 of 2: energy measured for only *.* s is reported, not gated*"]
    )
    (file,) = project.path.glob("baselines/H200/**/*.json")
    assert "throughput" in file.read_text("utf-8")
    assert "per_joule" not in file.read_text("utf-8")


def test_a_lost_gpu_is_named_where_its_cases_are_deselected(fake: Fake, project: Project) -> None:
    suite(project)
    fake.write("fail nvmlDeviceGetHandleByIndex_v2 15", "device")

    result = run(project, "--collect-only")

    output = " ".join(result.outlines)
    assert (
        "accelerator not here: H200 (2); here: cpu (GPU 0 cannot be queried: GPU is lost" in output
    )


SLOW_THIRD = """
NUMBER = os.environ.get("PYTEST_MLPERF_REPLICA", "none")
Path("seen." + NUMBER).write_text(os.environ["CUDA_VISIBLE_DEVICES"])


class Working(Working):
    def __init__(self, *, latency_s, **rest):
        super().__init__(latency_s=latency_s * (3 if NUMBER == "3" else 1), **rest)

    def describe(self):  # or they would not be copies of one engine
        return {"name": "working"}
"""


def test_each_replica_sees_its_own_gpu_and_a_slow_one_is_reported(
    fake: Fake, project: Project
) -> None:
    """One LoadGen drives six processes; the run is one of the whole system.

    It takes a second, in which batches follow each other, and the slow replica is far behind:
    delays by a busy machine in some batches hide nothing.
    """
    device = ("device", "wave const 500")
    hot = ("device", "wave const 400", "temp 80", "clocks 1400 3201", "limit 600")
    fake.write(*scenario("wave const 500"), *device * 2, *hot, *device * 2)
    project.pytester.makepyfile(working=WORKING + SLOW_THIRD)
    engine = ENGINE.replace('["H200"]', '["6xH200"]\nreplicas = "all"')
    project.suite(engines=engine, scenarios=OFFLINE.replace("500", "2000", 1))

    run(project, "-k", "performance")

    assert {file.suffix: file.read_text("utf-8") for file in project.path.glob("seen.*")} == {
        f".{number}": str(number) for number in range(6)
    }
    verdict = last(project)["performance"]
    (run_,) = verdict.runs
    assert len(run_.hardware.gpus) == len(run_.replicas) == 6
    assert run_.metrics["slowest_replica"] == pytest.approx(1 / 3, abs=0.15)
    (note,) = [note for note in map(sentence, verdict.notes) if "behind the median" in note]
    assert note.startswith("replica 3 (GPU 3): ")
    assert re.search(r" 30 °C hotter, 580 MHz slower, (9|10)\d W less$", note)
    assert "the GPUs of this case differ: power_limit_w is 700, 600 on GPU 3" in map(
        sentence, verdict.notes
    )
    assert verdict.subject is not None
    assert verdict.subject.identity["topology"] == "NV18 NVSwitch"
    assert run_.energy[Source.NVML].joules == pytest.approx(
        sum(gpu.joules or 0 for gpu in run_.hardware.gpus)
    )
    parts = [gpu.uncertainty_j or 0 for gpu in run_.hardware.gpus]
    assert math.hypot(*parts) <= (run_.energy[Source.NVML].uncertainty_j or 0) <= math.fsum(parts)
    assert all("nvlink_sent" in gpu.state for gpu in run_.hardware.gpus)


@pytest.mark.nightly
def test_gpus_of_one_reason_are_one_sentence(fake: Fake, project: Project) -> None:
    """An engine that was meant for eight GPUs works on four."""
    fake.write(*scenario("wave const 500"), *(("device", "wave const 90") * 7))
    half = WORKING.replace("flags=re.M", "flags=re.M, count=4")
    project.pytester.makepyfile(working=half)
    engine = ENGINE.replace('["H200"]', '["8xH200"]')
    project.suite(engines=engine, scenarios=OFFLINE)

    run(project, "-k", "performance")

    verdict = last(project)["performance"]
    assert verdict.outcome is Outcome.INVALID
    assert "4 of 8 GPUs (4 to 7): the GPU did not do the work" in sentence(verdict.headline)


KEEPS_MEMORY = """
import time


class Working(Working):
    # A rank that outlives its parent gives its memory back a while later.
    def __enter__(self):
        freed = Path("freed")
        early = freed.exists() and time.monotonic() < float(freed.read_text())
        with open("loads", "a") as loads:
            loads.write("early " if early else "free ")
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        until = time.monotonic() + 4
        Path("freed").write_text(str(until))
        t0 = float(re.search("^t0 (.+)$", self.rest, re.M)[1])
        taken = f"more=70000000000 after=0 until={until - t0}"
        self.put(f"{self.rest}\\nmem 150754820096 1000000000 {taken}\\n")
"""


def test_a_case_is_loaded_when_the_gpu_has_its_memory_back(fake: Fake, project: Project) -> None:
    project.pytester.makepyfile(working=WORKING + KEEPS_MEMORY)
    entries = [ENGINE.replace("use =", f'name = "e{n}"\nuse =') for n in range(2)]
    project.suite(engines="".join(entries))

    run(project, "-k", "performance")

    assert Path(project.path / "loads").read_text("utf-8").split() == ["free", "free"]


MEETS_FOUR = """
import fcntl
import time

NUMBER = int(os.environ["CUDA_VISIBLE_DEVICES"])


class Working(NullEngine):
    # Loaded once all four are: measured one after the other, the first waits in vain.
    def __enter__(self):
        Path(f"seen.{NUMBER}").touch()
        until = time.monotonic() + 60
        while len(list(Path.cwd().glob("seen.*"))) < 4:
            assert time.monotonic() < until, "alone"
            time.sleep(0.05)
        self.work("device\\nutil 95 40")
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.work("device")

    def work(self, text):
        with open("scenario.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            gpus = re.split("^device$(?:\\nutil 95 40)?", SCENARIO.read_text(), flags=re.M)
            old = re.findall("^device$(?:\\nutil 95 40)?", SCENARIO.read_text(), flags=re.M)
            old[NUMBER] = text
            draft = SCENARIO.with_suffix(f".{NUMBER}.draft")
            draft.write_text(gpus[0] + "".join(a + b for a, b in zip(old, gpus[1:])))
            draft.replace(SCENARIO)
"""


def test_two_cases_are_measured_at_once_on_two_gpus(fake: Fake, project: Project) -> None:
    fake.write(*scenario("wave const 500"), "device", "wave const 500")
    project.pytester.makepyfile(working=WORKING + MEETS_FOUR.replace("< 4", "< 2"))
    entries = [ENGINE.replace("use =", f'name = "e{n}"\nuse =') for n in range(2)]
    project.suite(engines="".join(entries))
    shared = ("-n2", "-omlperf_neighbours=yes", "-omlperf_control=off")

    recorded = run(project, "-k", "performance", *shared, "--mlperf-update=missing", ONE_RUN)

    assert recorded.ret == 0
    assert sorted(file.suffix for file in project.path.glob("seen.*")) == [".0", ".1"]
    subjects = [each.verdict.subject for each in project.results().cases]
    assert len(subjects) == 2
    assert all(subject and subject.identity["shared_host"] is True for subject in subjects)


def test_a_baseline_of_another_power_limit_is_named_and_its_absence_fails_under_ci(
    fake: Fake, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression may not hide behind a setting of the machine."""
    project.suite(engines=ENGINE)
    identity = machine.detect.__wrapped__(gpus=True).identity("H200")
    project.baseline(near(RATE), of=case(engine="Working", accelerator="H200"), identity=identity)
    fake.write(*scenario("wave const 500", "limit 500"))
    monkeypatch.setenv("CI", "true")

    failed = run(project, "-k", "performance")
    allowed = run(project, "-k", "performance", "--mlperf-update=missing", ONE_RUN)

    assert (failed.ret, allowed.ret) == (1, 0)
    changed = r"baseline of 2026-11-01 is for another machine: power_limit_w 700, here 500"
    failed.stdout.re_match_lines([rf"NO BASELINE samples/s: {changed}", rf"note +{changed}"])
    text = " ".join(" ".join(allowed.outlines).split())
    assert f"recorded in addition: {changed}" in text
    assert outcomes(project) == {"performance": Outcome.RECORDED}
