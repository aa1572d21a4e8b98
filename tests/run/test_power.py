"""What a run's sampling gives: energy near the exact joules, events, processes, and why not."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.hardware.nvml_quantities import REASONS
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.sampling import PowerLog, PowerSampling
from tests.nvml.library import LIMIT_S, Fake, build

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"

ALLOWED = 0.01
"""Share by which an energy may be off."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake(tmp_path)
    found.write("device")
    for name, value in found.environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    return found


def sampling(fake: Fake, *gpus: str, watch_s: float = 0.02) -> PowerSampling:
    return PowerSampling(gpus or ("GPU-0",), fake.folder, watch_s=watch_s)


def until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))


LOADS = {
    "constant": ["wave const 412"],
    "square": ["wave square 80 620 0.4"],
    "fast square": ["wave square 80 620 0.05"],
    "steps": ["wave steps 0:80 1.2:620 2.9:350 4.4:80"],
    "lagging steps": ["wave steps 0:80 1.2:620 2.9:350 4.4:80"],
}


@pytest.mark.quiet
@pytest.mark.process
def test_energy_is_within_one_per_cent_of_the_exact_joules(fake: Fake) -> None:
    """Of five loads at once, over 4.2 s, with the counter's steps and its lag as on a real board.

    The windows begin and end where the load is steady, as those of a job do with pads around them.
    """
    # Where others keep both cores busy, the sampler itself waits, and an end of the window is
    # known no better than that: such a log is not what this is about.
    for last in (False, False, True):
        log, begin_s, end_s = sample_loads(fake)
        if last or max(map(longest_gap_s, log.gpus)) < 1.5 / 50:
            break
    for index, (name, gpu) in enumerate(zip(LOADS, log.gpus, strict=True)):
        found = gpu.energy(begin_s, end_s)
        exact = fake.joules(begin_s, end_s, index)
        assert found.joules is not None
        assert found.uncertainty_j is not None
        off = found.joules / exact - 1
        print(f"{name}: {off:+.3%} of {exact:.1f} J, ± {found.uncertainty_j / exact:.1%}")
        assert found.method == "counter"
        assert abs(off) <= ALLOWED, name
        assert found.invalid == ()
    assert log.cpu_share is not None
    print(f"{log.cpu_share:.2%} of a core for {len(LOADS)} GPUs")


def sample_loads(fake: Fake) -> tuple[PowerLog, float, float]:
    """Return the log of a board for each of `LOADS`, and begin and end of the window to look at."""
    fake.t0 = time.monotonic() + 2.0  # the sampler has started by then
    lines = []
    for name, load in LOADS.items():
        lag_ms = 100 if "lagging" in name else 0
        lines += ["device", *load, f"energy 100 lag={lag_ms} phase=37"]
    fake.write(*lines)
    begin_s, end_s = fake.t0 + 0.9, fake.t0 + 5.1
    with sampling(fake, *(f"GPU-{i}" for i in range(len(LOADS)))) as running:
        assert time.monotonic() < begin_s - 0.5
        until(end_s + 0.7)
    return running.log, begin_s, end_s


def longest_gap_s(gpu: GpuLog) -> float:
    """Return the longest time between two readings."""
    return max(b.time_s - a.time_s for a, b in pairwise(gpu.trace))


@pytest.mark.quiet
@pytest.mark.process
def test_without_a_counter_the_trace_gives_the_energy(fake: Fake) -> None:
    fake.write(
        *(f"fail {function} 3" for function in (COUNTER, "field:83", "field:191")),
        "device",
        "wave steps 0:80 1:500 2:200",
    )
    with sampling(fake) as running:
        begin_s = time.monotonic() + 0.3
        until(begin_s + 1.8)
    (gpu,) = running.log.gpus
    found = gpu.energy(begin_s, begin_s + 1.5)

    assert found.method == "trace"
    assert found.joules == pytest.approx(fake.joules(begin_s, begin_s + 1.5), rel=0.02)
    assert gpu.counter == ()
    assert any("Not Supported (3)" in note for note in found.notes)


@pytest.mark.process
def test_a_counter_that_is_reset_is_invalid(fake: Fake) -> None:
    with sampling(fake) as running:
        fake.restart("device", "wave const 300", "energy 100 reset=0.8")
        until(fake.t0 + 1.4)
    (gpu,) = running.log.gpus
    found = gpu.energy(fake.t0 + 0.3, fake.t0 + 1.2)

    assert any("the energy counter went back from" in why for why in found.invalid)
    assert found.method == "trace"


@pytest.mark.process
def test_a_gpu_lost_in_mid_run_is_invalid(fake: Fake) -> None:
    with sampling(fake) as running:
        until(time.monotonic() + 0.3)
        fake.write("fail * 15 dev=0", "device")
        until(time.monotonic() + 0.3)
    (gpu,) = running.log.gpus
    last_s = gpu.trace[-1].time_s
    found = gpu.energy(last_s - 0.2, last_s + 0.2)

    assert gpu.lost == "GPU is lost (15)"
    assert "the GPU was lost: GPU is lost (15)" in found.invalid


@pytest.mark.quiet
@pytest.mark.process
def test_each_event_reason_has_its_span_and_its_duration(fake: Fake) -> None:
    """Reasons one after the other, 0.1 s each, with 0.02 s to spare for the samples."""
    bits = [*REASONS, 0x800]
    events = [
        f"event {bit:#x} after={0.3 + 0.15 * i} until={0.4 + 0.15 * i}"
        for i, bit in enumerate(bits)
    ]
    with sampling(fake) as running:
        fake.restart("device", *events)
        end_s = fake.t0 + 0.4 + 0.15 * len(bits)
        until(end_s + 0.5)
    (gpu,) = running.log.gpus
    spans = gpu.spans()
    held = gpu.held_back_s(fake.t0, end_s)

    names = [*REASONS.values(), "unknown 0x800"]
    assert [span.reason for span in spans] == names
    for i, span in enumerate(spans):
        assert span.begin_s - fake.t0 == pytest.approx(0.3 + 0.15 * i, abs=0.09)
        assert span.duration_s == pytest.approx(0.1, abs=0.09)
    assert list(held) == names
    assert all(seconds == pytest.approx(0.1, abs=0.09) for seconds in held.values())


@pytest.mark.process
def test_what_the_samples_missed_the_gpu_counted(fake: Fake) -> None:
    """An event of 4 ms between two samples that see nothing of it."""
    with sampling(fake) as running:
        fake.restart(
            "fail nvmlDeviceGetCurrentClocksEventReasons 3",
            "device",
            "event 0x40 after=0.5 until=0.504",
            "event 0x80 after=0.6 until=0.75",
        )
        until(fake.t0 + 1.3)
    (gpu,) = running.log.gpus

    assert all(t < fake.t0 + 0.1 for t, _ in gpu.reasons)
    held = gpu.held_back_s(fake.t0 + 0.3, fake.t0 + 1.0)
    assert held["hw_thermal_slowdown"] == pytest.approx(0.004, abs=0.001)
    assert held["hw_power_brake_slowdown"] == pytest.approx(0.15, abs=0.001)


@pytest.mark.process
def test_a_process_that_comes_later_is_foreign(fake: Fake) -> None:
    """Ours are those that are there once the engine is warm; a monitor may come and go."""
    with sampling(fake) as running:
        fake.restart(
            "device",
            "proc 100 2000000000 after=0.1",
            "proc 101 3000000000 after=0.2",
            "proc 666 5000000000 after=2.4",
            "proc 777 1000000 after=2.4",
        )
        warm_s = fake.t0 + 0.3
        until(fake.t0 + 3.8)
    (gpu,) = running.log.gpus

    assert gpu.before_us() == ()
    (found,) = gpu.foreign(warm_s, allowed=[777])
    assert (found.pid, found.memory) == (666, 5_000_000_000)
    assert found.seen_s - fake.t0 == pytest.approx(2.9, abs=0.6)
    assert {process.pid for process in gpu.foreign(warm_s)} == {666, 777}


@pytest.mark.process
def test_what_was_there_before_us_is_said_unless_it_may_be(fake: Fake) -> None:
    fake.write("device", "proc 42 1000", "proc 43 2000")
    with sampling(fake) as running:
        pass
    (gpu,) = running.log.gpus

    assert [process.pid for process in gpu.before_us()] == [42, 43]
    assert [process.pid for process in gpu.before_us(allowed=[42])] == [43]
    assert gpu.foreign(time.monotonic()) == ()


@pytest.mark.process
def test_error_counts_are_differences_over_the_window(fake: Fake) -> None:
    with sampling(fake) as running:
        fake.restart(
            "device",
            "ecc 1 1 corrected=7 uncorrected=2 after=1.2",
            "pcie 5 16 5 16 replay=3 after=1.2",
            "temp 40 rise=10",
        )
        until(fake.t0 + 2.6)
    (gpu,) = running.log.gpus

    assert gpu.risen(fake.t0 + 0.9, fake.t0 + 2.5) == {
        "ecc_uncorrected": 2,
        "ecc_corrected": 7,
        "pcie_replays": 3,
    }
    # The first of them may be what was there before.
    temperatures = [r.value for r in gpu.series("temperature_c", fake.t0 + 0.9, fake.t0 + 2.5)]
    assert len(temperatures) >= 5
    assert temperatures == sorted(temperatures)
    assert temperatures[-1] > temperatures[0] + 10


@pytest.mark.process
def test_clocks_under_a_slowdown_are_in_the_states(fake: Fake) -> None:
    with sampling(fake) as running:
        fake.restart("device", "clocks 1980 3201", "event 0x40 after=0.5 sm=990")
        until(fake.t0 + 1.4)
    (gpu,) = running.log.gpus

    assert {r.value for r in gpu.series("sm_mhz", fake.t0 + 0.8, fake.t0 + 2)} == {990}
    assert {r.value for r in gpu.series("sm_mhz", fake.t0 + 0.02, fake.t0 + 0.3)} == {1980}


@pytest.mark.process
def test_an_instance_in_a_container_has_no_energy_and_says_why(fake: Fake) -> None:
    fake.write("fail * 4 dev=0", "device", "mig 2")
    with sampling(fake, "MIG-0-0") as running:
        begin_s = time.monotonic()
        until(begin_s + 0.3)
    (gpu,) = running.log.gpus
    found = gpu.energy(begin_s + 0.1, begin_s + 0.2)

    assert (gpu.facts["shared"], gpu.trace, gpu.counter) == (None, (), ())
    assert found.joules is None
    assert any("Insufficient Permissions (4)" in note for note in found.notes)


@pytest.mark.process
def test_the_log_tells_rates_clocks_and_what_it_cost(fake: Fake) -> None:
    with sampling(fake) as running:
        wall_s, monotonic_s = time.time(), time.monotonic()
        until(time.monotonic() + 0.4)
    log = running.log

    assert log.ended
    assert (log.unavailable, log.suspect, log.driver) == (None, False, "595.45.04")
    assert log.monotonic(wall_s) == pytest.approx(monotonic_s, abs=0.005)
    assert not log.clock_stepped
    assert log.ticks is not None
    assert log.ticks[0] <= log.ticks[1] <= 50 * 10
    assert log.cpu_share is not None
    assert log.gpus[0].rate_hz == 50
    assert log.gpus[0].limit_w == 700


@pytest.mark.process
@pytest.mark.parametrize(
    ("lines", "gpus", "why"),
    [
        (["fail nvmlInitWithFlags 12", "device"], ["GPU-0"], "utility,compute"),
        (["fail nvmlInitWithFlags 9", "device"], ["GPU-0"], "driver is not loaded"),
        (["device"], ["GPU-5"], "GPU-5: there is no GPU GPU-5 here"),
    ],
)
def test_without_nvml_everything_is_unavailable_and_nothing_is_zero(
    fake: Fake, lines: list[str], gpus: list[str], why: str
) -> None:
    fake.write(*lines)
    with PowerSampling(gpus, fake.folder) as running:
        assert why in str(running.unavailable)
    log = running.log

    assert why in str(log.unavailable)
    for gpu in log.gpus:
        found = gpu.energy(0.0, 10.0)
        assert (found.joules, found.mean_w, found.peak_w) == (None, None, None)
        assert any(why.rsplit(": ", maxsplit=1)[-1] in note for note in found.notes)


@pytest.mark.process
def test_a_driver_upgraded_while_loaded_makes_performance_suspect(fake: Fake) -> None:
    fake.write("fail nvmlInitWithFlags 18", "device")
    with sampling(fake) as running:
        pass

    assert running.log.suspect
    assert "reboot" in str(running.log.unavailable)


@pytest.mark.process
def test_a_driver_that_does_not_answer_is_not_waited_for(fake: Fake) -> None:
    fake.write("latency nvmlInitWithFlags 60000000", "device")
    with PowerSampling(["GPU-0"], fake.folder, patience_s=0.7) as running:
        pass

    assert running.log.unavailable == "NVML did not answer within 0.7 s"


@pytest.mark.process
def test_a_sampler_that_breaks_says_its_last_words(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fake.folder / "run"
    folder.mkdir()
    running = PowerSampling(["GPU-0"], folder, watch_s=0.02)
    running.path.mkdir()
    with running:
        pass

    assert "the sampler broke at its start: IsADirectoryError" in str(running.log.unavailable)


@pytest.mark.process
def test_a_folder_that_is_not_there_is_an_error(fake: Fake) -> None:
    with pytest.raises(RunError, match="No such file"), PowerSampling(["GPU-0"], fake.folder / "x"):
        pass


@pytest.mark.process
def test_a_sampler_that_is_killed_leaves_what_it_had(fake: Fake) -> None:
    """Its file ends in the middle; the log knows that, and keeps the whole lines."""
    with sampling(fake) as running:
        until(time.monotonic() + 1.2)
        assert running._process is not None
        running._process.kill()
    with running.path.open("a") as file:
        file.write('{"t":[123.4,0,30')
    log = running.log

    assert not log.ended
    assert log.ticks is None
    assert len(log.gpus[0].trace) > 20
    assert max(r.value for r in log.gpus[0].trace) == 300


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    path.write_text('{"a": 1}\n')

    with pytest.raises(RunError, match="its first line is not a sampler's"):
        PowerLog.read(path)


READY = {"ready": {"gpus": [{"index": 0, "uuid": "GPU-0"}], "driver": "1", "rates": {}}}


@pytest.mark.parametrize(
    "line",
    ["[]", "5", "null", "[" * 60_000, '{"t": 5}', '{"t": [1, 7, 3]}', '{"s": {}}', '{"end": 5}'],
)
def test_a_file_with_other_records_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "power.jsonl"
    for text in (line, f"{json.dumps(READY)}\n{line}"):
        path.write_text(f"{text}\n")
        with pytest.raises(RunError, match=f"cannot read {path}: ") as raised:
            PowerLog.read(path)
        assert raised.value.layer == "sampler"


def test_an_empty_file_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    path.touch()

    assert PowerLog.read(path).unavailable == "the sampler wrote nothing"


def test_a_clock_that_was_set_meanwhile_is_noticed() -> None:
    assert PowerLog(offsets_s=(100.0, 100.05)).clock_stepped
    assert not PowerLog(offsets_s=(100.0, 100.01)).clock_stepped


@pytest.mark.process
def test_a_killed_parent_leaves_no_sampler(fake: Fake) -> None:
    """kill -9 of the process that samples ends its sampler, and the file is whole but its end."""
    parent = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from pytest_mlperf.run.power.sampling import PowerSampling\n"
        "with PowerSampling(['GPU-0'], Path(sys.argv[1]), watch_s=0.02) as running:\n"
        "    print(running._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, str(fake.folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ended = os.pidfd_open(int(process.stdout.readline()))
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

        assert select.select([ended], [], [], LIMIT_S)[0]
    finally:
        os.close(ended)
    assert PowerLog.read(fake.folder / "power.jsonl").gpus
    assert json.loads((fake.folder / "power.jsonl").read_text().splitlines()[0])["ready"]


@pytest.mark.process
def test_the_library_is_built_once() -> None:
    assert build() == build()
