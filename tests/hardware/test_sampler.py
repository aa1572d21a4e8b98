"""Test the sampler's process: its file, its cost, its end, and that it changes no setting."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_mlperf.hardware.nvml_quantities import SLOW_QUANTITIES, STATE
from tests.nvml import library
from tests.nvml.library import LIMIT_S, Child, Fake, scenario

pytestmark = pytest.mark.process

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    fake_gpu = Fake(tmp_path)
    fake_gpu.write(*scenario("wave square 80 620 0.7"))
    return fake_gpu


def sampled(fake: Fake, seconds: float = 0.3, *gpus: str, watch_s: float = 0.02) -> Child:
    with Child(fake, *gpus, watch_s=watch_s) as child:
        time.sleep(seconds)
    return child


def test_the_log_begins_with_quantities_and_ways_of_reading(fake: Fake) -> None:
    """Identity, the way that answered, costs, rates, both clocks, the counter's period."""
    child = sampled(fake, 0.0, watch_s=0.6)
    ready = child.ready
    (gpu,) = ready["gpus"]

    assert gpu["identity"]["name"] == "NVIDIA H200"
    assert gpu["ways"]["power_w"] == "field POWER_INSTANT"
    assert gpu["unavailable_quantities"] == {}
    assert set(gpu["cost_us"]) == set(gpu["ways"])
    assert all(0 < middle <= longest for middle, longest, _ in gpu["cost_us"].values())
    assert gpu["counter_period_s"] == pytest.approx(0.1, abs=0.02)
    assert (gpu["processes"], gpu["memory_used"]) == ([], 1_000_000_000)
    assert ready["time"] == pytest.approx(time.monotonic(), abs=10)
    assert ready["wall"] == pytest.approx(time.time(), abs=10)
    assert (ready["driver"], ready["cuda"]) == ("595.45.04", 13000)


def test_records_are_ticks_with_a_counter_at_some_and_states_now_and_then(fake: Fake) -> None:
    """Whatever the sampler called from its start to its end is in the log: no setter is."""
    child = sampled(fake, 2.1)
    (end,) = child.of("end")
    ticks, states, called = child.of("t"), child.of("s"), fake.calls()

    assert len(ticks) == end["ticks"] + 1
    assert [t[0] for t in ticks] == sorted(t[0] for t in ticks)
    assert 0 < len([t for t in ticks if len(t) == 6]) < len(ticks)
    assert {tuple(s)[2:] for s in states} >= {STATE, SLOW_QUANTITIES}
    assert {tuple(s)[2:] for s in states} <= {STATE, SLOW_QUANTITIES, STATE + SLOW_QUANTITIES}
    assert called.count(COUNTER) > 20
    assert (called[0], called[-1]) == ("nvmlInitWithFlags", "nvmlShutdown")
    assert set(called) & set(library.setters()) == set()


@pytest.mark.quiet
def test_records_come_at_the_stated_rates(fake: Fake) -> None:
    """Power and reasons at each tick, the counter at some, slower state now and then."""
    child = sampled(fake, 2.1)
    (end,) = child.of("end")
    ticks, states = child.of("t"), child.of("s")
    seconds = end["elapsed_s"]

    assert child.ready["rates"]["trace_hz"] == 50
    assert end["planned"] == pytest.approx(50 * seconds, abs=2)
    assert end["ticks"] > 0.8 * end["planned"]
    assert len([t for t in ticks if len(t) == 6]) == pytest.approx(len(ticks) / 3, abs=2)
    assert 6 <= sum("sm_mhz" in s for s in states) <= 13
    assert 2 <= sum("processes" in s for s in states) <= 5
    # Expected below 1 %; on a machine busy with other things clocks and caches are not ours.
    assert end["cpu_s"] / seconds < 0.05


@pytest.mark.quiet
def test_slow_probes_are_read_less_often(fake: Fake) -> None:
    """A counter that keeps a core busy for 4 ms, and a power that takes 1.5 ms of waiting."""
    fake.write(f"latency {COUNTER} 4000 spin", "latency nvmlDeviceGetFieldValues 3000", "device")
    child = sampled(fake, 1.0)
    rates = child.ready["rates"]
    (end,) = child.of("end")

    assert rates["counter_hz"] < 10
    assert rates["trace_hz"] < 50
    assert child.ready["gpus"][0]["cost_us"]["energy_j"][2] > 2000
    assert child.ready["gpus"][0]["cost_us"]["power_w"][2] < 1500
    assert end["ticks"] == pytest.approx(end["planned"], abs=6)


def test_a_slow_call_is_not_timed_at_length(fake: Fake) -> None:
    """Else a driver that takes 200 ms for each would take a minute before anything is sampled."""
    slow = "nvmlDeviceGetPerformanceState"
    fake.write(f"latency {slow} 30000", "device")
    with Child(fake, watch_s=0.02) as child:
        slow_calls = fake.calls().count(slow)

    assert 2 <= slow_calls < 10
    assert child.ready["gpus"][0]["cost_us"]["pstate"][0] > 30_000


def test_rates_of_a_starved_start_rise_when_calls_are_quick_again(fake: Fake) -> None:
    """Also where every reading of the power was one of the counter too."""
    fake.write("latency nvmlDeviceGet* 20000 spin", *scenario("wave const 500"))
    with Child(fake, watch_s=0.02) as child:
        time.sleep(0.3)
        fake.write(*scenario("wave const 500"))
        enough, deadline = len(fake.calls()) + 600, time.monotonic() + LIMIT_S
        while len(fake.calls()) < enough and time.monotonic() < deadline:
            time.sleep(0.05)

    starved, (raised, *_) = child.ready["rates"], child.of("rates")
    assert starved["trace_hz"] <= 10
    assert raised["trace_hz"] > 2 * starved["trace_hz"]


@pytest.mark.parametrize(
    ("util", "expected"),
    [
        ("until=0.3 mean=167", False),
        ("until=0.9 mean=1000 steps=1000 after=-5", False),
        ("mean=1000", True),
    ],
)
def test_past_work_fades_from_the_utilisation_and_ongoing_work_is_seen(
    fake: Fake, util: str, *, expected: bool
) -> None:
    fake.restart("device", f"util 100 0 {util}", "proc 42 1000 after=0.4")
    with Child(fake, watch_s=0.02) as child:
        (gpu,) = child.ready["gpus"]

    if expected:
        assert (gpu["utilization_percent"], gpu["processes"]) == (100, [[42, 1000]])
    else:
        assert gpu["utilization_percent"] < 10


def test_several_gpus_are_distinguished(fake: Fake) -> None:
    """By the index in the order asked for; of two instances of one GPU one is counted."""
    fake.write("device", "wave const 100", "device", "wave const 400", "device", "mig 2")
    child = sampled(fake, 0.3, "GPU-1", "GPU-9", "GPU-0", "MIG-2-0", "MIG-2-1")
    first, missing, last, _, second = child.ready["gpus"]

    reason = "there is no GPU GPU-9 here"
    assert missing == {"index": 1, "uuid": "GPU-9", "unavailable": reason, "lost": True}
    assert [(gpu["uuid"], gpu["index"]) for gpu in (first, last)] == [("GPU-1", 0), ("GPU-0", 2)]
    assert "same GPU as MIG-2-0" in second["unavailable"]
    powers = {t[1]: t[2] for t in child.of("t")}
    assert ({*powers}, powers[0], powers[2]) == ({0, 2, 3}, 400.0, 100.0)


def test_without_nvml_there_is_one_record_and_a_good_end(fake: Fake) -> None:
    for code, suspect in ((12, False), (18, True)):
        fake.write(f"fail nvmlInitWithFlags {code}", "device")
        with Child(fake) as child:
            pass

        assert child.ready["unavailable"]
        assert child.ready["suspect"] is suspect
        assert len(child.records) == 1

    fake.write(f"fail {COUNTER} 15 dev=0 calls=30", "device", "device")
    child = sampled(fake, 0.1, "GPU-0", "GPU-1", watch_s=0.3)
    assert "lost" in child.ready["gpus"][0]["unavailable"], "lost while it is first looked at"
    assert {t[1] for t in child.of("t")} == {1}


def test_a_machine_without_the_library_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        pytest.skip("this machine has NVIDIA's driver")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_mlperf.hardware.sampler", "--gpu", "GPU-0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )

    (line,) = done.stdout.splitlines()
    assert "utility,compute" in json.loads(line)["ready"]["unavailable"]


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_lost_in_mid_run_is_reported_and_not_read_again(fake: Fake, code: int) -> None:
    """Without a GPU left the sampler ends by itself."""
    fake.write("device", "device")
    with Child(fake, "GPU-0", "GPU-1", watch_s=0.02) as child:
        fake.write(f"fail * {code} dev=0", "device", "device")
        time.sleep(0.4)
        lost_s = time.monotonic()
        calls = len(fake.log.read_text().splitlines())
        time.sleep(0.3)
        after = fake.log.read_text().splitlines()[calls:]
        fake.write(f"fail * {code}", "device", "device")
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    first, second = child.of("lost")

    assert (first["gpu"], first["code"], second["gpu"]) == (0, code, 1)
    assert first["time"] < lost_s
    assert {line.split()[3] for line in after} == {"1"}
    assert {t[1] for t in child.of("t") if t[0] > first["time"]} == {1}
    assert child.of("end")


def test_a_gpu_whose_driver_hangs_makes_no_other_wait(fake: Fake) -> None:
    """The sampler ends when its stdin does, even in such a call."""
    fake.write("device", "device")
    with Child(fake, "GPU-0", "GPU-1", watch_s=0.02) as child:
        fake.restart("latency nvmlDeviceGetFieldValues 9000000 dev=0", "device", "device")
        time.sleep(0.8)
        begin = time.monotonic()
    ticks = {index: [t for t in child.of("t") if t[1] == index] for index in (0, 1)}
    after = [t for t in ticks[1] if t[0] > fake.t0 + 0.1]

    assert len(after) > 5
    assert all(t[0] < fake.t0 + 0.1 for t in ticks[0])
    assert not child.of("end")
    assert time.monotonic() - begin < 6


def test_gpus_that_lose_the_library_at_once_start_it_again_once(fake: Fake) -> None:
    """Something in this process shut NVML down: each thread meets it, one initialises."""
    fake.write("device", "device", "device", "device")
    with Child(fake, *(f"GPU-{i}" for i in range(4)), watch_s=0.02) as child:
        fake.restart("shutdown 0.2", *["device"] * 4)
        time.sleep(0.8)

    assert child.of("lost") == []
    assert fake.calls().count("nvmlInitWithFlags") == 2
    assert {t[1] for t in child.of("t") if t[0] > fake.t0 + 0.4} == {0, 1, 2, 3}


def test_missed_samples_are_null_and_counted(fake: Fake) -> None:
    """Every fifth power reading fails, four times in a row and more: none becomes a 0."""
    with Child(fake, watch_s=0.02) as child:
        fake.restart("fail field:186 3 every=5", "device", "wave const 200")
        time.sleep(0.6)
    powers = [t[2] for t in child.of("t")][5:]
    (end,) = child.of("end")

    assert set(powers) == {None, 200.0}
    assert end["gpus"][0]["missed"]["power_w"] == [t[2] for t in child.of("t")].count(None)


def test_it_dies_with_its_parent(fake: Fake, tmp_path: Path) -> None:
    """Even when the parent is killed and someone else still holds the child's stdin open."""
    parent = (
        "import os, subprocess, sys, time\n"
        "keeper, held = os.pipe()\n"
        "child = subprocess.Popen([sys.executable, '-m', 'pytest_mlperf.hardware.sampler',"
        " '--gpu', 'GPU-0', '--watch-s', '0.02'], stdin=keeper, stdout=subprocess.PIPE)\n"
        "holder = subprocess.Popen(['sleep', '60'], pass_fds=[held])\n"
        "child.stdout.readline()\n"
        "print(child.pid, holder.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=fake.environment
    ) as process:
        assert process.stdout is not None
        sampler, holder = map(int, process.stdout.readline().split())
        ended = os.pidfd_open(sampler)
        process.send_signal(signal.SIGKILL)
    try:
        assert select.select([ended], [], [], LIMIT_S)[0]
    finally:
        os.close(ended)
        os.kill(holder, signal.SIGKILL)
