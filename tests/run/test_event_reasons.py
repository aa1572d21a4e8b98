"""Test that each clock event reason, and each fate of a GPU, has its verdict on a sampled run.

A sampler really runs, on a library that a scenario drives; its file is judged as a run's is.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.core.energy import Source
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.reason import Key
from pytest_mlperf.hardware.machine import Machine, UsedGpu, detect
from pytest_mlperf.hardware.nvml_quantities import REASONS
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run import measure, reading
from pytest_mlperf.run.conditions import Conditions, ControlRun, LostGpus
from pytest_mlperf.run.figures import Figures, Findings
from pytest_mlperf.run.logs import CLOCK, DETAIL, Detail, parse_detail
from pytest_mlperf.run.power import figures as power_figures
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.doubts import rejection_reasons
from pytest_mlperf.run.power.figures import SUSPECT, Meter
from pytest_mlperf.run.power.sampling import PowerLog, PowerSampling
from tests.core.made import keys_of
from tests.nvml.library import Fake
from tests.run.conftest import fake_gpus
from tests.run.harness import entry, result_of, settings
from tests.run.sentences import notes_of, reasons_of
from tests.run.test_figures import job
from tests.run.test_reading import evidence

pytestmark = pytest.mark.process

BEGIN_S, END_S = 1.0, 3.0
"""The window, in the scenario's time."""


def until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))


OURS = ("proc 77 2000000000 after=0.5", "util 90 40 after=0.5")
"""The engine's process and its work: a GPU without them would not have done the work."""


def sampled(fake: Fake, general: list[str], *gpus: list[str]) -> PowerLog:
    fake.t0 = time.monotonic() + 60  # at rest: what the scenario tells of is yet to come
    fake.write(*general, *(line for gpu in gpus for line in ("device", *gpu)))
    with PowerSampling([*USED][: len(gpus)], fake.folder, watch_s=0.02) as running:
        fake.restart(*general, *(line for gpu in gpus for line in ("device", *gpu, *OURS)))
        until(fake.t0 + END_S + 1.3)
    return running.log


@dataclass(frozen=True)
class Watched:
    fake: Fake
    log: PowerLog
    names: Sequence[str] = ()

    def gpu(self, name: str) -> GpuLog:
        return self.log.gpus[self.names.index(name)]

    def at(self, moment_s: float) -> float:
        """Return when this moment of the scenario was."""
        return self.fake.t0 + moment_s

    def judged(self, gpu: GpuLog) -> Findings:
        return rejection_reasons(gpu, self.at(BEGIN_S), self.at(END_S), warm_s=self.at(0.9))

    def run(self, *names: str) -> Findings:
        """Return the samples of a run's window on these GPUs, or on all."""
        detail = parse_detail(logged(self.fake, self.fake.folder / "run"))
        log = replace(self.log, gpus=tuple(map(self.gpu, names))) if names else self.log
        return power_figures.sampled(FIGURES, log, detail, warm_s=self.at(0.9), used=USED)

    def title(self, name: str) -> str:
        number = self.names.index(name)
        bus = f"0000:{number + 1:02x}:00.0"
        return f"GPU {number} (GPU-{number}, PCI {bus}) of replica {number}"


USED = {
    f"GPU-{n}": UsedGpu(
        uuid=f"GPU-{n}", name=f"GPU {n}", bus=f"0000:{n + 1:02x}:00.0", replica=f"replica {n}"
    )
    for n in range(64)
}
"""What a session knows of its GPUs, each with a process of its own."""

GPUS = {
    "steady": ["wave const 300"],
    "weaker": ["wave const 200"],
    "reset": ["wave const 300", "energy 100 reset=2"],
    "lost": ["wave const 300"],
    "needs reset": ["wave const 300"],
    "told by XID": ["xid 79 at=2"],
    "told by both": ["xid 79 at=1.9"],
    "linked": ["nvlink 18 18 sent=3e9 received=1e9"],
    "unlinked": ["nvlink none", "xid 13 at=9"],
    "used": ["proc 100 2147483648 after=0.3", "proc 666 1073741824 after=1.8 until=4"],
    "capped": ["limit 700 later=500 at=2"],
    "narrowed": ["pcie 5 16 5 16 width=8 at=2"],
    "with errors": ["xid 31 at=0.2", "xid 94 at=2"],
    "without events": ["xid 31 at=0.2", "xid 94 at=2"],
    "held back outside": [
        f"event {sum(REASONS):#x} after=0 until=0.3",
        f"event {sum(REASONS):#x} after=3.7",
    ],
    "resting": ["wave steps 0:80 1:500 3:80"],
    "restless": ["wave square 80 500 0.3"],
    "counting": [
        "ecc 1 1 corrected=7 uncorrected=2 after=1.5",
        "pcie 5 16 5 16 replay=3 after=1.5",
        "temp 40 rise=10",
    ],
    "slowed": ["clocks 1980 3201", "event 0x40 after=2 sm=990"],
}
"""What happens to each of the GPUs that one sampler watches."""

FAILS = {
    "lost": "fail * 15 dev={} after=2",
    "needs reset": "fail * 16 dev={} after=2",
    "told by both": "fail nvmlDeviceGetP* 15 dev={0} after=2\nfail field:186 15 dev={0} after=2",
    "without events": "fail nvmlDeviceRegisterEvents 3 dev={}",
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    names = [*GPUS]
    general = [line.format(names.index(name)) for name, line in FAILS.items()]
    with pytest.MonkeyPatch.context() as patch:
        fake = fake_gpus(tmp_path_factory.mktemp("watched"), patch)
        yield Watched(fake, sampled(fake, general, *GPUS.values()), names)


def started(fake: Fake, *lines: str, gpus: Sequence[str] = ("GPU-0",)) -> Watched:
    """Return the file of a sampler that is ended once it has started."""
    fake.write(*lines)
    with PowerSampling(gpus, fake.folder, watch_s=0.02) as running:
        pass
    return Watched(fake, running.log)


FIGURES = Figures(
    metrics={"throughput": 100.0}, samples=300, queries=300, duration_s=END_S - BEGIN_S
)


def logged(fake: Fake, folder: Path, **values: object) -> Path:
    wall_s = time.time() - time.monotonic()
    folder.mkdir(exist_ok=True)

    def text(at_s: float) -> str:
        return dt.datetime.fromtimestamp(fake.t0 + at_s + wall_s, dt.UTC).strftime(CLOCK)

    window = {"power_begin": text(BEGIN_S), "power_end": text(END_S)}
    entries = {**values, **window, "num_errors": 0}
    log = folder / DETAIL
    log.write_text("".join(map(entry, entries, entries.values())))
    return log


def test_event_reasons_have_the_verdicts_of_their_shares(fake: Fake) -> None:
    """Heat that no sample shows is judged by the time that the GPU counted."""
    cases: list[tuple[int, float, bool, str, str]] = [
        (0x40, 0.2, False, "heat (hardware slowdown)", "invalid"),
        (0x40, 0.04, True, "heat (hardware slowdown)", "invalid"),
        (0x80, 0.01, True, "a power brake of the supply reduced the clocks", "told"),
        (0x4, 0.7, False, "the power limit reduces the clocks", "told"),
        (0x800, 0.2, False, "the driver limits the clocks (reason unknown 0x800)", "told"),
        (0x1, 0.2, False, "", ""),
    ]
    general = [
        f"fail nvmlDeviceGetCurrentClocks* 3 dev={n}" for n, case in enumerate(cases) if case[2]
    ]
    gpus = [[f"event {bit:#x} after=2 until={2 + s:.4f}"] for bit, s, *_ in cases]
    watched_gpus = Watched(fake, sampled(fake, general, *gpus))

    for gpu, (bit, seconds, blind, words, verdict) in zip(
        watched_gpus.log.gpus, cases, strict=True
    ):
        gpu_doubts = watched_gpus.judged(gpu)
        invalid = [sentence(reason.text) for reason in gpu_doubts.invalid]
        signs = [sentence(sign.note) for sign in gpu_doubts.signs]
        assert gpu_doubts.energy_unknown is None, bit
        assert (len(invalid), len(signs)) == (verdict == "invalid", verdict == "told"), gpu_doubts
        for text in (*invalid, *signs):
            assert text.startswith(words)
            assert "% of the run" in text
            assert not blind or f"for {seconds:.2f} s" in text
        if blind:
            held_s = gpu.limited_s(watched_gpus.at(BEGIN_S), watched_gpus.at(END_S))
            assert max(held_s.values()) == pytest.approx(seconds, abs=0.001)


def test_a_reason_outside_the_window_has_no_effect(watched: Watched) -> None:
    """An error of the driver in it is reported."""
    assert watched.judged(watched.gpu("held back outside")) == Findings()

    run = watched.run("with errors", "without events")
    name = f"GPU {watched.names.index('with errors')}"
    assert notes_of(run) == (f"{name}: the driver reported XID 94 during the run: see dmesg",)
    assert "xids" in watched.gpu("without events").missing
    assert run.invalid == ()


def test_counts_clocks_traffic_and_energy_are_those_of_each_gpu_in_the_window(
    watched: Watched,
) -> None:
    counting, slowed = watched.gpu("counting"), watched.gpu("slowed")
    assert counting.risen(watched.at(BEGIN_S), watched.at(END_S)) == {
        "ecc_uncorrected": 2,
        "ecc_corrected": 7,
        "pcie_replays": 3,
    }
    heat = counting.series("temperature_c", watched.at(BEGIN_S), watched.at(END_S))
    assert len(heat) >= 5
    assert [reading.value for reading in heat] == sorted(reading.value for reading in heat)
    assert heat[-1].value > heat[0].value + 10
    for begin_s, end_s, mhz in ((0.3, 1.8, 1980), (2.3, 3.5, 990)):
        clocks = slowed.series("sm_mhz", watched.at(begin_s), watched.at(end_s))
        assert {reading.value for reading in clocks} == {mhz}

    first, second = watched.run("linked", "unlinked").gpus
    assert first.state["nvlink_sent"] == pytest.approx(3e9, rel=1e-2)
    assert first.state["nvlink_received"] == pytest.approx(1e9, rel=1e-2)
    assert "nvlink_sent" not in second.state
    names = [f"GPU {watched.names.index(name)}" for name in ("linked", "unlinked")]
    assert [gpu.name for gpu in (first, second)] == names

    run = watched.run("steady", "weaker")
    assert [gpu.joules for gpu in run.gpus] == pytest.approx([600, 400], rel=0.03)
    assert run.energy[Source.NVML].joules == pytest.approx(sum(gpu.joules or 0 for gpu in run.gpus))
    parts = [gpu.uncertainty_j or 0 for gpu in run.gpus]
    assert math.hypot(*parts) <= (run.energy[Source.NVML].uncertainty_j or 0) <= math.fsum(parts)


def test_a_gpu_lost_in_mid_run_makes_the_run_invalid(watched: Watched) -> None:
    """The energy of the others stands; XID 79 is a loss whatever NVML answers by then."""
    for name, code in (("lost", 15), ("needs reset", 16)):
        run, gpu = watched.run("steady", name), watched.gpu(name)
        (invalid_reason,) = run.invalid
        assert invalid_reason.key is Key.GPU_LOST
        assert sentence(invalid_reason.text).startswith(f"{watched.title(name)} was lost at ")
        assert f"({code})" in sentence(invalid_reason.text)
        moment = re.search(
            r" at \d\d:\d\d:\d\d UTC, (.*) s into the run: ", sentence(invalid_reason.text)
        )
        assert moment
        assert float(moment[1]) == pytest.approx(2 - BEGIN_S, abs=0.2)
        energy = gpu.energy(watched.at(BEGIN_S), watched.at(END_S))
        assert f"the GPU was lost: {gpu.lost}" in energy.invalid
        assert (run.energy[Source.NVML].joules, run.energy[Source.NVML].gated) == (None, False)
        assert run.energy[Source.NVML].parts["GPU-0"] == pytest.approx(600, rel=0.03)
        assert "samples_per_joule" not in run.metrics

    names = ("told by XID", "told by both")
    ends = ("it has fallen off the bus; the driver reported XID 79", "; the driver reported XID 79")
    for name, end, reason in zip(names, ends, watched.run(*names).invalid, strict=True):
        assert sentence(reason.text).startswith(f"{watched.title(name)} was lost at ")
        assert sentence(reason.text).endswith(end)


def _lose_and_stop(fake: Fake, records: Path) -> None:
    """Lose the second GPU, wait until that is seen, and break as an engine then does."""
    fake.write("fail * 15 dev=1", "device", "device")
    while '"lost"' not in records.read_text():
        time.sleep(0.02)
    raise RunError("engine", "it stopped", "engine.log")


def test_failures_caused_by_a_lost_gpu_name_it_first(fake: Fake, tmp_path: Path) -> None:
    here = Machine(
        cpu={},
        gpus=tuple(
            {"uuid": f"GPU-{n}", "gpu": "NVIDIA H200", "index": n, "bus": None} for n in range(2)
        ),
    )
    case: Any = SimpleNamespace(
        conditions=SimpleNamespace(machine=here, lost=LostGpus(tmp_path / "lost")),
        job=SimpleNamespace(accelerator="2xH200", replicas=2),
        folder=fake.folder,
    )
    fake.write("device", "device")
    with pytest.raises(RunError) as plain, measure._sampling(case):
        raise RunError("engine", "it stopped", "engine.log")
    with pytest.raises(RunError) as lost, measure._sampling(case) as running:
        _lose_and_stop(fake, running.path)

    assert (plain.value.layer, str(plain.value)) == ("engine", "it stopped")
    assert (lost.value.layer, lost.value.log) == ("gpu", "engine.log")
    assert re.fullmatch(
        r"GPU 1 \(GPU-1\) of replica 1 was lost at \S+ UTC: GPU is lost \(15\); engine: it stopped",
        str(lost.value),
    )
    assert LostGpus(tmp_path / "lost").messages(["GPU-0", "GPU-1"]) == {
        "GPU-1": re.sub(r" of replica 1|; engine: it stopped", "", str(lost.value))
    }


def test_a_log_has_rates_clocks_cost_and_earlier_processes(fake: Fake) -> None:
    log = started(fake, "device", "proc 42 1000", "proc 43 2000").log
    (gpu,) = log.gpus

    assert (log.ended, log.suspect, log.clock_stepped) == (True, False, False)
    assert (log.unavailable, log.driver) == (None, "595.45.04")
    assert log.monotonic(time.time()) == pytest.approx(time.monotonic(), abs=0.005)
    assert log.ticks is not None
    assert log.ticks[0] <= log.ticks[1] <= 50 * 10
    assert log.cpu_share is not None
    assert (gpu.rate_hz, gpu.limit_w) == (50, 700)
    assert list(gpu.initial_processes) == [42, 43]
    assert gpu.foreign_processes(time.monotonic()) == {}


def test_a_counter_that_goes_back_is_not_gated_and_joules_above_idle_are_a_metric(
    watched: Watched,
) -> None:
    power = watched.run("reset").energy[Source.NVML]
    energy = watched.gpu("reset").energy(watched.at(BEGIN_S), watched.at(END_S))
    assert power is not None
    assert not power.gated
    assert "counter_reset" in keys_of(power.notes)
    assert power.joules == pytest.approx(600, rel=0.03)
    assert energy.method == "trace"
    assert keys_of(energy.invalid) == ["counter_reset"]

    run, both = watched.run("resting"), watched.run("resting", "restless")
    assert run.energy[Source.NVML].idle_w == pytest.approx(80)
    assert run.energy[Source.NVML].net_joules == pytest.approx(2 * 420, rel=0.1)
    assert run.metrics["net_joules_per_sample"] == pytest.approx(
        (run.energy[Source.NVML].net_joules or 0) / 300
    )
    assert (both.energy[Source.NVML].idle_w, both.energy[Source.NVML].net_joules) == (None, None)
    assert both.energy[Source.NVML].joules is not None
    assert "net_joules_per_sample" not in both.metrics


def test_a_run_keeps_the_evidence_of_each_witness_and_reads_its_log_once(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sampled(fake, [], ["event 0x4 after=0"])
    late = {"result_samples_per_second": 150.0, "result_validity": "INVALID"}
    path = logged(fake, tmp_path / "run", result_min_duration_met=False, **late)
    result = result_of(
        token_metrics={"goodput": 0},
        notes={"tokens_together": "tokens came together"},
        issued=300,
        completed=300,
        duration_s=END_S - BEGIN_S,
        client={"issue_p99": 0.0, "loop_p99": 0.0},
    )
    run_evidence = evidence(
        path.parent,
        result,
        settings=settings("Offline"),
        subject=Subject(identity={"pretended": True}, fingerprint={}),
        power=log,
        warm_s=fake.t0 + 0.9,
        control=ControlRun(unavailable="no compiler"),
        warmed=True,
        notes=("the worker was slow to end",),
    )
    (tmp_path / "meter.csv").write_text("time,watts\n", "utf-8")
    suite = (
        'schema = 1\nround = "v4.1"\n[workload]\nname = "mine"\n[[engines]]\nuse = "null"\n'
        'accelerators = ["H200"]\n[[scenarios]]\nname = "Offline"\n'
    )
    meter = Meter(path=tmp_path / "meter.csv")
    conditions = Conditions(folder=tmp_path, session="s", machine=detect(gpus=False), meter=meter)
    reads: list[Path] = []

    def counted(path: Path) -> Detail:
        reads.append(path)
        return parse_detail(path)

    monkeypatch.setattr(reading, "parse_detail", counted)

    run = reading.read_run(run_evidence, job(tmp_path, suite), conditions)

    assert run is not None
    assert reads == [path]
    beginnings = (
        "tokens came together",
        "the power limit reduces the clocks: ",
        "goodput is 0: ",
        "the speed of this machine was not checked: no compiler",
        "the worker was slow to end",
    )
    assert [note[: len(begin)] for note, begin in zip(notes_of(run), beginnings, strict=True)] == [
        *beginnings
    ]
    assert [reason.key for reason in run.invalid] == [Key.LOADGEN]
    assert reasons_of(run) == ("LoadGen: the run was too short",)
    joules = run.energy[Source.NVML].joules
    assert joules is not None
    assert run.metrics["samples_per_joule"] == pytest.approx(300 / joules)


@pytest.mark.parametrize(
    ("broken", "how"),
    [
        (signal.SIGKILL, "signal 9 (Killed)"),
        (signal.SIGSEGV, "signal 11 (Segmentation fault)"),
        (signal.SIGSTOP, "it hung in NVML, or was stopped"),
    ],
)
def test_a_failed_sampler_is_noted_and_its_run_has_no_energy(
    fake: Fake, broken: signal.Signals, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file may end in the middle of a line; the whole lines are kept."""
    monkeypatch.setattr("pytest_mlperf.run.power.sampling.FLUSH_GRACE_SECONDS", 0.5)
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        fake.restart("device", *OURS, "event 0x40 after=1")
        until(fake.t0 + 2.2)
        assert running._process is not None
        running._process.send_signal(broken)
        until(fake.t0 + END_S + 0.2)
    with running.path.open("a") as file:
        file.write('{"t":[123.4,0,30')
    run, how = Watched(fake, running.log).run(), f"the sampler stopped ({how})"

    assert (run.energy.get(Source.NVML), run.state, run.metrics) == (
        None,
        {},
        {},
    )  # the speed is of another witness
    assert str(run.energy_unknown).startswith(how)
    assert re.match(r"GPUs were not watched from [01]\.\d s on: ", notes_of(run)[-1])
    assert how in notes_of(run)[-1]
    assert [why.key for why in run.invalid] == [Key.HW_THERMAL_SLOWDOWN]
    assert (running.log.ended, running.log.ticks) == (False, None)
    trace = running.log.gpus[0].trace
    assert len(trace) > 20
    assert max(reading.value for reading in trace) == 300


def test_a_sampler_whose_file_cannot_be_written_says_so(fake: Fake) -> None:
    """As on a full disk; one that broke before the run saw nothing of it."""
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        fake.restart("device", *OURS)
        assert running._process is not None
        most = running.path.stat().st_size + 1000
        resource.prlimit(running._process.pid, resource.RLIMIT_FSIZE, (most, most))
        until(fake.t0 + END_S + 0.2)
    assert "File too large" in str(Watched(fake, running.log).run().energy_unknown)

    fake.restart("device")
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        assert running._process is not None
        running._process.kill()
    run = Watched(fake, running.log).run()
    assert (run.invalid, run.energy.get(Source.NVML)) == ((), None)
    assert notes_of(run)[-1].startswith(
        "GPUs were not watched from 0.0 s on: the sampler stopped (signal 9"
    )


def test_a_power_limit_that_changes_in_mid_run_makes_it_invalid(watched: Watched) -> None:
    """So does a process that comes in; one that is there to the warm-up's end is ours."""
    run = watched.run("capped", "narrowed")
    capped, narrowed = (f"GPU {watched.names.index(name)}" for name in ("capped", "narrowed"))
    (reason,) = run.invalid
    assert reason.key is Key.POWER_LIMIT_CHANGED
    assert f"{capped}: the power limit changed from 700 to 500 W" in sentence(reason.text)
    assert notes_of(run) == (f"{narrowed}: the PCIe link fell from x16 to x8 during the run",)

    name = f"GPU {watched.names.index('used')}"
    (reason,) = watched.run("steady", "used").invalid
    assert reason.key is Key.USED_BY_OTHERS
    assert sentence(reason.text) == (
        f"{name}: used by others during the run: process 666 (1.0 GiB). End them"
    )
    gpu = watched.gpu("used")
    assert gpu.foreign_processes(watched.at(0.9)) == {666: 2**30}
    assert gpu.initial_processes == {}


def test_one_of_two_gpus_that_only_holds_a_context_is_named(fake: Fake) -> None:
    """An engine's process, its memory and a little more power on both; work on one of them."""
    held = ["wave steps 0:80 0.6:115", "proc 77 500000000 after=0.5"]
    gpus = ("device", *held, "util 60 9 after=0.5 mean=1000", "device", *held)
    fake.t0 += 60  # at rest
    fake.write(*gpus)
    with PowerSampling(["GPU-0", "GPU-1"], fake.folder, watch_s=0.02) as running:
        fake.restart(*gpus)
        begin_s = fake.t0 + 0.6
        until(begin_s + 3.6)
    working, idle = (
        rejection_reasons(gpu, begin_s, begin_s + 3.5, warm_s=begin_s) for gpu in running.log.gpus
    )

    assert working.invalid == ()
    (reason,) = idle.invalid
    assert reason.key is Key.GPU_UNUSED
    assert "no utilisation in any of" in sentence(reason.text)
    assert "115 W (80 W before engine load)" in sentence(reason.text)


def test_an_instance_in_a_container_has_a_speed_and_no_energy(fake: Fake) -> None:
    """The GPU behind it may not be asked for anything, and nothing of it becomes a 0."""
    fake.write("fail * 4 dev=0", "device", "mig 2")
    with PowerSampling(["MIG-0-0"], fake.folder, watch_s=0.02) as running:
        until(fake.t0 + END_S + 1.0)
    run = Watched(fake, running.log).run()
    (gpu,) = running.log.gpus

    assert run.invalid == ()
    assert run.metrics == {}  # of energy; the speed is of another witness
    assert (
        run.energy[Source.NVML].joules,
        run.energy[Source.NVML].mean_w,
        run.energy[Source.NVML].peak_w,
    ) == (None, None, None)
    assert not run.energy[Source.NVML].gated
    assert (
        "this user may not see which MIG instances share this GPU and its energy"
        in run.energy[Source.NVML].notes
    )
    texts = map(sentence, run.energy[Source.NVML].notes)
    assert any("Insufficient Permissions (4)" in text for text in texts)
    assert (gpu.facts["shared"], gpu.trace, gpu.counter) == (None, [], [])


def test_without_nvml_the_run_stands_and_says_why_it_has_no_energy(fake: Fake) -> None:
    """A GPU that is lost makes it invalid: it was seen, and is gone at the sampler's start."""
    for code, gpu, words in (
        (12, "GPU-0", "NVIDIA_DRIVER_CAPABILITIES=utility,compute"),
        (4, "GPU-0", "may not open"),
        (999, "GPU-0", "NVML does not start"),
        (18, "GPU-0", "reboot; until then measurements may be wrong"),
        (9, "GPU-0", ""),
        (15, "GPU-0", ""),
        (None, "GPU-5", "there is no GPU GPU-5 here"),
    ):
        fails = [f"fail nvmlInitWithFlags {code}"] if code else []
        watched_gpu = started(fake, *fails, "device", gpus=[gpu])
        run = watched_gpu.run()

        assert words in str(watched_gpu.log.unavailable)
        assert (run.energy.get(Source.NVML), run.metrics) == (
            None,
            {},
        )  # the speed is of another witness
        assert [why.key for why in run.invalid] == [Key.GPU_LOST] * (code in (9, 15, None))
        assert (
            notes_of(run)
            or not code
            or [why.text for why in run.invalid]
            == [f"the GPU was lost: {run.energy_unknown}"] * (code in (9, 15))
        )
        assert words in str(run.energy_unknown)
        assert watched_gpu.log.suspect == (code == 18)
        assert notes_of(run) == ((SUSPECT,) if code == 18 else ())
        for gpu_log in watched_gpu.log.gpus:
            energy = gpu_log.energy(0.0, 10.0)
            assert (energy.joules, energy.mean_w, energy.peak_w) == (None, None, None)
            assert energy.notes
