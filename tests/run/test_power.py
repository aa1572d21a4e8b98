"""What a run's sampling gives: energy near the exact joules, events, processes, and why not."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.hardware.nvml_quantities import REASONS
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.sampling import PowerLog, PowerSampling
from tests.nvml.library import Fake

ALLOWED = 0.01
"""Share by which an energy may be off."""


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
    """Five loads at once, whose windows begin and end while the load is steady."""
    # Where others keep both cores busy, the sampler itself waits, and an end of the window is
    # known no better than that: such a log is not what this is about.
    for last in (False, False, True):
        log, begin_s, end_s = sample_loads(fake)
        if last or max(map(longest_gap_s, log.gpus)) < 1.5 / 50:
            break
    for index, (name, gpu) in enumerate(zip(LOADS, log.gpus, strict=True)):
        energy = gpu.energy(begin_s, end_s)
        exact = fake.joules(begin_s, end_s, index)
        assert energy.joules is not None
        assert energy.uncertainty_j is not None
        off = energy.joules / exact - 1
        print(f"{name}: {off:+.3%} of {exact:.1f} J, ± {energy.uncertainty_j / exact:.1%}")
        assert energy.method == "counter"
        assert abs(off) <= ALLOWED, name
        assert energy.invalid == ()
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
    return max(b.time_s - a.time_s for a, b in pairwise(gpu.trace))


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
    spans = gpu.clock_limits()
    held = gpu.limited_s(fake.t0, end_s)

    names = [*REASONS.values(), "unknown 0x800"]
    assert [span.reason for span in spans] == names
    for i, span in enumerate(spans):
        assert span.begin_s - fake.t0 == pytest.approx(0.3 + 0.15 * i, abs=0.09)
        assert span.end_s - span.begin_s == pytest.approx(0.1, abs=0.09)
    assert list(held) == names
    assert all(seconds == pytest.approx(0.1, abs=0.09) for seconds in held.values())


@pytest.mark.process
def test_a_sampler_that_breaks_or_waits_for_its_driver_says_so(fake: Fake) -> None:
    folder = fake.folder / "run"
    with pytest.raises(RunError, match="No such file"), PowerSampling(["GPU-0"], folder):
        pass
    folder.mkdir()
    running = PowerSampling(["GPU-0"], folder, watch_s=0.02)
    running.path.mkdir()
    with running:
        pass
    assert "sampler of the GPUs did not start: IsADirectoryError" in str(running.log.unavailable)

    fake.write("latency nvmlInitWithFlags 60000000", "device")
    with PowerSampling(["GPU-0"], fake.folder, patience_s=0.7) as running:
        pass
    assert running.log.unavailable == "NVML did not answer within 0.7 s"


READY = {"ready": {"gpus": [{"index": 0, "uuid": "GPU-0"}], "driver": "1", "rates": {}}}


def test_a_file_with_other_records_is_refused(tmp_path: Path) -> None:
    """A clock that was set in between is noticed."""
    path = tmp_path / "power.jsonl"
    lines = ["[]", "5", "null", "[" * 60_000]
    lines += ['{"t": 5}', '{"t": [1, 7, 3]}', '{"s": {}}', '{"end": 5}']
    for line in lines:
        for text in (line, f"{json.dumps(READY)}\n{line}"):
            path.write_text(f"{text}\n")
            with pytest.raises(RunError, match=f"cannot read {path}: ") as raised:
                PowerLog.read(path)
            assert raised.value.layer == "sampler"
    path.write_text('{"a": 1}\n')
    with pytest.raises(RunError, match="its first line is not from the sampler"):
        PowerLog.read(path)
    path.write_text("")
    assert PowerLog.read(path).unavailable == "the sampler wrote nothing"
    assert PowerLog(offsets_s=(100.0, 100.05)).clock_stepped
    assert not PowerLog(offsets_s=(100.0, 100.01)).clock_stepped
