"""Each clock event reason, and each fate of a GPU, has its verdict on a run that was sampled.

A sampler really runs, on a library that a scenario drives; what it wrote is judged as a run's is.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.measurement import Subject
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.hardware.machine import Machine, UsedGpu, detect
from pytest_mlperf.hardware.nvml_quantities import REASONS
from pytest_mlperf.run import measure, reading
from pytest_mlperf.run.child.process import Patience
from pytest_mlperf.run.conditions import Conditions, ControlRun, LostGpus
from pytest_mlperf.run.figures import Figures
from pytest_mlperf.run.logs import CLOCK, DETAIL, PREFIX, Detail, parse_detail
from pytest_mlperf.run.power import figures as power_figures
from pytest_mlperf.run.power.doubts import Doubts, doubts
from pytest_mlperf.run.power.figures import SUSPECT, Meter, Sampled
from pytest_mlperf.run.power.sampling import PowerLog, PowerSampling
from pytest_mlperf.run.reading import Evidence
from pytest_mlperf.suite.plan import plan_suite
from tests.jobs import job_of
from tests.nvml.library import Fake
from tests.run.harness import settings

pytestmark = pytest.mark.process

BEGIN_S, END_S = 1.0, 3.0
"""The window, in the scenario's time."""

INVALID = {
    0x8: "a hardware slowdown",
    0x20: "heat (software slowdown)",
    0x40: "heat (hardware slowdown)",
    0x80: "the power supply's brake",
}
NOTED = {
    0x1: "the GPU had nothing to do",
    0x2: "clocks are set by hand",
    0x4: "clocks are held back to stay within the power limit",
    0x10: "another GPU of the group dictates the clocks",
    0x100: "a display's setting holds the clocks back",
    0x200: "the board's limit holds the clocks back",
    0x400: "a reliability limit holds the clocks back",
    0x800: "clock event reason unknown 0x800",
    0x80000000: "clock event reason unknown 0x80000000",
}
COUNTED = [0x20, 0x40, 0x80]
"""Reasons for heat and brake that a GPU counts in ns, so that a short one is not missed."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake(tmp_path)
    found.write("device")
    for name, value in found.environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    return found


def until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))


LATE = (Reason(key=Key.LOADGEN, text="LoadGen: the run was too short"),)

OURS = ("proc 77 2000000000 after=0.5", "util 90 40 after=0.5")
"""The engine's process and its work: a GPU without them would not have done the work."""


def sampled(fake: Fake, general: list[str], *gpus: list[str]) -> PowerLog:
    """Sample these GPUs from before the window to after it."""
    fake.t0 = time.monotonic() + 60  # at rest: what the scenario tells of is yet to come
    fake.write(*general, *(line for gpu in gpus for line in ("device", *gpu)))
    uuids = [f"GPU-{i}" for i in range(len(gpus))]
    with PowerSampling(uuids, fake.folder, watch_s=0.02) as running:
        fake.restart(*general, *(line for gpu in gpus for line in ("device", *gpu, *OURS)))
        until(fake.t0 + END_S + 1.3)
    return running.log


def judged(fake: Fake, log: PowerLog) -> list[Doubts]:
    begin_s, end_s = fake.t0 + BEGIN_S, fake.t0 + END_S
    return [doubts(gpu, begin_s, end_s, warm_s=fake.t0 + 0.9) for gpu in log.gpus]


FIGURES = Figures(
    metrics={"throughput": 100.0}, samples=300, queries=300, duration_s=END_S - BEGIN_S
)


USED = {
    f"GPU-{n}": UsedGpu(
        uuid=f"GPU-{n}", name=f"GPU {n}", bus=f"0000:0{n + 1}:00.0", replica=f"replica {n}"
    )
    for n in range(2)
}
"""What a session knows of two GPUs, each with a process of its own."""


def measured(fake: Fake, log: PowerLog, folder: Path) -> Sampled:
    """Return what was sampled of the window."""
    detail = parse_detail(logged(fake, folder))
    return power_figures.sampled(FIGURES, log, detail, warm_s=fake.t0 + 0.9, used=USED)


def logged(fake: Fake, folder: Path, **values: object) -> Path:
    """Return LoadGen's log of the window."""
    wall_s = time.time() - time.monotonic()
    folder.mkdir(exist_ok=True)

    def text(at_s: float) -> str:
        return dt.datetime.fromtimestamp(fake.t0 + at_s + wall_s, dt.UTC).strftime(CLOCK)

    window = {"power_begin": text(BEGIN_S), "power_end": text(END_S)}
    entries = {**values, **window, "num_errors": 0}
    lines = [
        PREFIX + json.dumps({"key": key, "value": value, "metadata": {"is_error": False}})
        for key, value in entries.items()
    ]
    log = folder / DETAIL
    log.write_text("\n".join(lines) + "\n")
    return log


def texts(reasons: Sequence[Reason]) -> tuple[str, ...]:
    return tuple(map(str, reasons))


def notes(given: Doubts) -> tuple[str, ...]:
    return tuple(sign.in_words() for sign in given.signs)


def test_every_reason_is_in_one_of_the_tables() -> None:
    assert set(INVALID) | set(NOTED) >= set(REASONS)
    assert set(INVALID) & set(NOTED) == set()


def test_each_event_reason_has_the_verdict_of_its_share(fake: Fake) -> None:
    window_s = END_S - BEGIN_S
    asked = [(bit, share * window_s) for bit in [*INVALID, *NOTED] for share in (0.1, 1 / 3)]
    gpus = [[f"event {bit:#x} after=2 until={2 + seconds:.4f}"] for bit, seconds in asked]

    for (bit, seconds), given in zip(asked, judged(fake, sampled(fake, [], *gpus)), strict=True):
        said = f"{bit:#x} for {seconds:.3f} s: {given}"
        told = texts(given.invalid) if bit in INVALID else notes(given)
        assert given.energy == (), said
        assert len([*given.invalid, *given.signs]) == len(told), said
        if bit == 0x1 and seconds < 0.2 * window_s:
            assert told == (), said
        else:
            assert len(told) == 1, said
            assert told[0].startswith({**INVALID, **NOTED}[bit]), said
            assert "% of the window" in told[0], said


def test_heat_that_no_sample_shows_is_judged_by_its_count(fake: Fake) -> None:
    asked = [(bit, share * (END_S - BEGIN_S)) for bit in COUNTED for share in (0.005, 0.02)]
    gpus = [[f"event {bit:#x} after=2 until={2 + seconds:.4f}"] for bit, seconds in asked]
    blind = ["fail nvmlDeviceGetCurrentClocks* 3"]

    for (bit, seconds), given in zip(asked, judged(fake, sampled(fake, blind, *gpus)), strict=True):
        told, other = (texts(given.invalid), notes(given))[:: 1 if seconds > 0.03 else -1]
        (sentence,) = told
        assert sentence.startswith(INVALID[bit])
        assert f"for {seconds:.2f} s" in sentence
        assert other == ()


def test_a_reason_outside_the_window_is_no_ones_fault(fake: Fake) -> None:
    """Before it and after it, where the GPU did not work for us."""
    all_of_them = sum([*INVALID, *NOTED])
    gpu = [f"event {all_of_them:#x} after=0 until=0.3", f"event {all_of_them:#x} after=3.7"]

    assert judged(fake, sampled(fake, [], gpu)) == [Doubts()]


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_lost_in_mid_run_makes_the_run_invalid(fake: Fake, tmp_path: Path, code: int) -> None:
    """With its speed, and with the energy of the one that still answers."""
    log = sampled(fake, [f"fail * {code} dev=1 after=2"], ["wave const 300"], ["wave const 300"])
    run = measured(fake, log, tmp_path / "run")

    (why,) = texts(run.invalid)
    assert run.invalid[0].key is Key.GPU_LOST
    assert why.startswith("GPU 1 (GPU-1, PCI 0000:02:00.0) of replica 1 was lost at ")
    moment = re.search(r" at \d\d:\d\d:\d\d UTC, (.*) s into the run: ", why)
    assert moment
    assert float(moment[1]) == pytest.approx(2 - BEGIN_S, abs=0.2)
    assert f"({code})" in why
    assert run.power is not None
    assert (run.power.joules, run.power.gated) == (None, False)
    assert run.power.by_gpu["GPU-0"] == pytest.approx(600, rel=0.03)
    assert "samples_per_joule" not in run.metrics


def _lose_and_stop(fake: Fake, records: Path) -> None:
    """Lose the second GPU, wait until that is seen, and break as an engine then does."""
    fake.write("fail * 15 dev=1", "device", "device")
    while '"lost"' not in records.read_text():
        time.sleep(0.02)
    raise RunError("engine", "it stopped", "engine.log")


def test_what_breaks_because_a_gpu_is_lost_says_so_first(fake: Fake, tmp_path: Path) -> None:
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
    assert LostGpus(tmp_path / "lost").among(["GPU-0", "GPU-1"]) == {
        "GPU-1": re.sub(r" of replica 1|; engine: it stopped", "", str(lost.value))
    }


def test_a_gpu_that_fell_off_the_bus_is_lost_whatever_nvml_answers_by_then(
    fake: Fake, tmp_path: Path
) -> None:
    """By the driver's XID 79, which is told beside NVML's own word where both come."""
    lost = ["fail nvmlDeviceGetP* 15 dev=1 after=2", "fail field:186 15 dev=1 after=2"]
    log = sampled(fake, lost, ["xid 79 at=2"], ["xid 79 at=1.9"])
    first, second = texts(measured(fake, log, tmp_path / "run").invalid)

    assert "GPU 0 (GPU-0, PCI 0000:01:00.0) of replica 0 was lost at " in first
    assert first.endswith("it has fallen off the bus; the driver reported XID 79")
    assert "GPU 1 (GPU-1, PCI 0000:02:00.0) of replica 1 was lost at " in second
    assert second.endswith("; the driver reported XID 79")


def test_traffic_over_nvlink_is_a_figure_of_each_gpu(fake: Fake, tmp_path: Path) -> None:
    """Bytes by the counters' growth over the window; not known is not 0."""
    links = ["nvlink 18 18 sent=3e9 received=1e9", "nvlink none"]
    log = sampled(fake, [], *([line, "xid 13 at=9"] for line in links))
    first, second = measured(fake, log, tmp_path / "run").gpus

    assert first.state["nvlink_sent"] == pytest.approx(3e9, rel=1e-3)
    assert first.state["nvlink_received"] == pytest.approx(1e9, rel=1e-3)
    assert "nvlink_sent" not in second.state
    assert (first.name, second.name) == ("GPU 0", "GPU 1")


def test_each_gpus_energy_is_kept_with_its_uncertainty(fake: Fake, tmp_path: Path) -> None:
    log = sampled(fake, [], ["wave const 300"], ["wave const 200"])
    run = measured(fake, log, tmp_path / "run")

    assert [gpu.joules for gpu in run.gpus] == pytest.approx([600, 400], rel=0.03)
    assert run.power is not None
    assert run.power.joules == pytest.approx(sum(gpu.joules or 0 for gpu in run.gpus))
    assert run.power.uncertainty_j == pytest.approx(sum(g.uncertainty_j or 0 for g in run.gpus))


def test_a_process_that_comes_in_mid_run_makes_it_invalid(fake: Fake, tmp_path: Path) -> None:
    """And one that is there from the start to the warm-up's end is ours."""
    ours = "proc 100 2147483648 after=0.3"
    log = sampled(fake, [], [ours], [ours, "proc 666 1073741824 after=1.8 until=4"])
    run = measured(fake, log, tmp_path / "run")

    said = "GPU 1: used by others during the run: process 666 (1.0 GiB)"
    assert run.invalid == (Reason(key=Key.USED_BY_OTHERS, text=said),)


def test_a_counter_that_goes_back_is_not_gated(fake: Fake, tmp_path: Path) -> None:
    log = sampled(fake, [], ["wave const 300", "energy 100 reset=2"])
    power = measured(fake, log, tmp_path / "run").power

    assert power is not None
    assert not power.gated
    assert any("the energy counter went back from" in note for note in power.notes)
    assert power.joules == pytest.approx(600, rel=0.03)


LATE_OFFLINE = {
    "result_samples_per_second": 150.0,
    "result_validity": "INVALID",
    "result_min_duration_met": False,
}

IN_TIME = {"issue_p99": 0.0, "loop_p99": 0.0}


def evidence(fake: Fake, log: PowerLog, folder: Path) -> Evidence:
    """Return what is left of a run of which each witness has something to say."""
    path = logged(fake, folder, **LATE_OFFLINE)
    result = {
        "token_metrics": {"goodput": 0},
        "notes": {"tokens_together": "tokens came together"},
        "faults": [],
        "issued": 300,
        "completed": 300,
        "duration_s": END_S - BEGIN_S,
        "within_se": None,
        "client": IN_TIME,
        "finishes": {},
        "contention": None,
        "accepted_drafts": None,
        "replicas": [],
    }
    return Evidence(
        settings=settings("Offline"),
        finished={"event": "finished", "folder": str(path.parent), "result": result},
        loaded={"event": "loaded", "engine": {}, "dataset": {"sizes": {}}},
        subject=Subject(identity={"pretended": True}, fingerprint={}),
        target_qps=100.0,
        started="2026-01-01T00:00:00+00:00",
        power=log,
        warm_s=fake.t0 + 0.9,
        control=ControlRun(unavailable="no compiler"),
        warmed=True,
        notes=("the worker was slow to end",),
        usual=0.0,
    )


def test_a_run_keeps_what_each_witness_says_and_its_log_is_read_once(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sampled(fake, [], ["event 0x4 after=0"])
    (tmp_path / "meter.csv").write_text("time,watts\n", "utf-8")
    suite = tmp_path / "s.mlperf.toml"
    suite.write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "mine"\n[[engines]]\nuse = "null"\n'
        'accelerators = ["H200"]\n[[scenarios]]\nname = "Offline"\n',
        "utf-8",
    )
    conditions = Conditions(
        folder=tmp_path,
        session="s",
        commit=None,
        handicap=0.0,
        patience=Patience(),
        lease_limit_s=1.0,
        machine=detect(gpus=False),
        meter=Meter(path=tmp_path / "meter.csv"),
    )
    reads: list[Path] = []

    def counted(path: Path) -> Detail:
        reads.append(path)
        return parse_detail(path)

    monkeypatch.setattr(reading, "parse_detail", counted)
    job = job_of(plan_suite(suite)[0])

    run = reading.read_run(evidence(fake, log, tmp_path / "run"), job, conditions)

    assert run is not None
    assert reads == [tmp_path / "run" / DETAIL]
    ours, zero, capped, own_speed, worker = run.notes
    assert ours == "tokens came together"
    assert zero.startswith("goodput is 0: ")
    assert capped.startswith("clocks are held back to stay within the power limit")
    assert own_speed == "the machine's own speed is not known: no compiler"
    assert worker == "the worker was slow to end"
    assert run.invalid == LATE
    assert run.wall is not None
    assert run.power is not None
    assert run.power.joules is not None
    assert run.metrics["samples_per_joule"] == pytest.approx(300 / run.power.joules)


def test_a_driver_upgraded_while_loaded_is_told_beside_the_speed(
    fake: Fake, tmp_path: Path
) -> None:
    run = measured(fake, sampled(fake, ["fail nvmlInitWithFlags 18"], []), tmp_path / "run")

    assert (run.power, run.invalid) == (None, ())
    assert "reboot; until then its performance is suspect" in str(run.power_unknown)
    assert run.notes == (SUSPECT,)


@pytest.mark.parametrize("code", [9, 15, 16])
def test_a_driver_that_is_gone_at_the_samplers_start_makes_the_run_invalid(
    fake: Fake, tmp_path: Path, code: int
) -> None:
    """The session has seen the GPU: it was lost since, as in the retry of a run that lost it."""
    fake.write(f"fail nvmlInitWithFlags {code}", "device")
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        pass
    run = measured(fake, running.log, tmp_path / "run")

    (why,) = run.invalid
    assert why.key is Key.GPU_LOST
    assert why.text == f"the GPU was lost: {run.power_unknown}"


@pytest.mark.parametrize(
    ("broken", "how"),
    [
        (signal.SIGKILL, "the sampler broke (signal 9 (Killed))"),
        (signal.SIGSEGV, "the sampler broke (signal 11 (Segmentation fault))"),
        (signal.SIGSTOP, "the sampler broke (it hung, in NVML or stopped)"),
    ],
    ids=["killed", "crashed", "stopped"],
)
def test_a_sampler_that_broke_is_told_and_its_run_has_no_energy(
    fake: Fake, tmp_path: Path, broken: signal.Signals, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_mlperf.run.power.sampling.GRACE_S", 0.5)
    fake.write("device")
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        fake.restart("device", *OURS, "event 0x40 after=1")
        until(fake.t0 + 2.2)
        assert running._process is not None
        running._process.send_signal(broken)
        until(fake.t0 + END_S + 0.2)
    run = measured(fake, running.log, tmp_path / "run")

    assert run.power is None
    assert str(run.power_unknown).startswith(how)
    assert run.state == {}
    assert run.metrics == {}  # of energy; the speed is of another witness
    assert re.match(r"not watched from [01]\.\d s on: ", run.notes[-1])
    assert how in run.notes[-1]
    assert [why.key for why in run.invalid] == [Key.HW_THERMAL_SLOWDOWN]


def test_a_sampler_that_broke_before_the_run_saw_nothing_of_it(fake: Fake, tmp_path: Path) -> None:
    fake.restart("device")
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        assert running._process is not None
        running._process.kill()
    run = measured(fake, running.log, tmp_path / "run")

    assert (run.invalid, run.power) == ((), None)
    assert run.notes[-1].startswith("not watched from 0.0 s on: the sampler broke (signal 9")


def test_a_sampler_whose_file_cannot_be_written_says_so(fake: Fake, tmp_path: Path) -> None:
    """As on a disk that is full; here a file may not grow by more than half a second's records."""
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        fake.restart("device", *OURS)
        assert running._process is not None
        most = running.path.stat().st_size + 1000
        resource.prlimit(running._process.pid, resource.RLIMIT_FSIZE, (most, most))
        until(fake.t0 + END_S + 0.2)
    run = measured(fake, running.log, tmp_path / "run")

    assert "File too large" in str(run.power_unknown)


def test_errors_of_the_driver_in_the_run_are_told(fake: Fake, tmp_path: Path) -> None:
    events = ["xid 31 at=0.2", "xid 94 at=2"]
    log = sampled(fake, ["fail nvmlDeviceRegisterEvents 3 dev=1"], events, events)
    run = measured(fake, log, tmp_path / "run")

    assert run.notes == ("GPU 0: the driver reported XID 94 during the run: dmesg says more",)
    assert "xids" in log.gpus[1].missing
    assert run.invalid == ()


def test_a_power_limit_that_changes_in_mid_run_makes_it_invalid(fake: Fake, tmp_path: Path) -> None:
    log = sampled(fake, [], ["limit 700 later=500 at=2"], ["pcie 5 16 5 16 width=8 at=2"])
    run = measured(fake, log, tmp_path / "run")

    (why,) = run.invalid
    assert why.key is Key.POWER_LIMIT_CHANGED
    assert "GPU 0: the power limit changed from 700 to 500 W" in why.text
    assert run.notes == ("GPU 1: the PCIe link fell from x16 to x8 in the run",)


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
        doubts(gpu, begin_s, begin_s + 3.5, warm_s=begin_s) for gpu in running.log.gpus
    )

    assert working.invalid == ()
    (why,) = idle.invalid
    assert why.key is Key.GPU_UNUSED
    assert "no utilisation in any of" in why.text
    assert "115 W, 80 W before the engine was loaded" in why.text


def test_an_instance_in_a_container_has_a_speed_and_no_energy(fake: Fake, tmp_path: Path) -> None:
    """The GPU behind it may not be asked for anything, and nothing of it becomes a 0."""
    fake.write("fail * 4 dev=0", "device", "mig 2")
    with PowerSampling(["MIG-0-0"], fake.folder, watch_s=0.02) as running:
        until(fake.t0 + END_S + 1.0)
    run = measured(fake, running.log, tmp_path / "run")

    assert run.invalid == ()
    assert run.metrics == {}  # of energy; the speed is of another witness
    assert run.power is not None
    assert (run.power.joules, run.power.mean_w, run.power.peak_w) == (None, None, None)
    assert not run.power.gated
    assert "which MIG instances share this GPU and its energy may not be seen here" in (
        run.power.notes
    )
    assert any("Insufficient Permissions (4)" in note for note in run.power.notes)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (["fail nvmlInitWithFlags 12"], "NVIDIA_DRIVER_CAPABILITIES=utility,compute"),
        (["fail nvmlInitWithFlags 4"], "may not open"),
        (["fail nvmlInitWithFlags 999"], "NVML does not start"),
    ],
)
def test_without_nvml_the_run_stands_and_says_why_it_has_no_energy(
    fake: Fake, tmp_path: Path, how: list[str], words: str
) -> None:
    fake.write(*how, "device")
    with PowerSampling(["GPU-0"], fake.folder, watch_s=0.02) as running:
        pass
    run = measured(fake, running.log, tmp_path / "run")

    assert (run.power, run.invalid) == (None, ())
    assert run.metrics == {}  # of energy; the speed is of another witness
    assert words in str(run.power_unknown)


def test_joules_above_idle_are_a_metric_where_idle_was_seen(fake: Fake, tmp_path: Path) -> None:
    resting = ["wave steps 0:80 1:500 3:80"]
    one = sampled(fake, [], resting)
    run = measured(fake, one, tmp_path / "one")
    both = measured(fake, sampled(fake, [], resting, ["wave square 80 500 0.3"]), tmp_path / "both")

    assert run.power is not None
    assert run.power.idle_w == pytest.approx(80)
    assert run.power.net_joules == pytest.approx(2 * 420, rel=0.1)
    assert run.metrics["net_joules_per_sample"] == pytest.approx((run.power.net_joules or 0) / 300)
    assert both.power is not None
    assert (both.power.idle_w, both.power.net_joules) == (None, None)
    assert both.power.joules is not None
    assert "net_joules_per_sample" not in both.metrics
