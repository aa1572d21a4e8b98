"""Test the micro-benchmark's program: its counts, with numpy and with torch, and its end."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from time import perf_counter
from typing import ClassVar

import pytest

from pytest_mlperf.core.control import COPY, LIBRARY, MATMUL, PEER
from pytest_mlperf.hardware import control
from pytest_mlperf.hardware.control import ControlSizes, UnavailableControl

TINY = ControlSizes(matrix=16, copied_bytes=(4096,), batch=2, warm_s=0.0, measured_s=0.0)
COMMAND = [sys.executable, "-m", "pytest_mlperf.hardware.control"]
LIMIT_S = 60.0


def test_the_cpu_is_measured_with_numpy_and_with_torch() -> None:
    """Torch by the same code on every device: here on the CPU, with its clock for events."""
    speeds = control.measure_cpu(TINY)
    assert list(speeds) == [MATMUL, COPY, LIBRARY]
    assert all(value > 0 for value in speeds.values())

    pytest.importorskip("torch")
    speeds = control.with_torch("cpu", TINY)
    assert list(speeds) == [MATMUL, COPY, LIBRARY]
    assert all(value > 0 for value in speeds.values())


def test_a_figure_is_the_median_of_five_repeats_or_more_after_a_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one does not count; repeats fill the measuring time, and each is a batch."""
    took = iter([9.0, 0.2, 0.1, 0.3, 0.2, 7.0, 5.0])
    assert control.median_s(lambda: next(took), TINY) == 0.2
    assert list(took) == [5.0]

    seconds = itertools.count()
    monkeypatch.setattr(control, "perf_counter", lambda: float(next(seconds)))
    sizes = ControlSizes(matrix=1, copied_bytes=(), batch=1, warm_s=10.0, measured_s=20.0)
    repeats: list[float] = []

    def repeat() -> float:
        repeats.append(1.0)
        return 1.0

    control.median_s(repeat, sizes)
    assert len(repeats) == 10 + control.MIN_REPEATS + 19, "by a clock of a second a look"
    assert control.by_clock(lambda: None, 4)() == 0.25


def test_short_memory_takes_the_next_smaller_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones

    def limited(size: int, **options: object) -> object:
        if size > 5000:
            raise torch.cuda.OutOfMemoryError
        return ones(size, **options)

    monkeypatch.setattr(torch, "ones", limited)

    source, target = control.buffers("cpu", (4096, 2048))
    assert (source.nbytes, target.nbytes) == (2048, 2048)
    assert source.data_ptr() + 2048 == target.data_ptr()
    with pytest.raises(UnavailableControl, match="too little GPU memory is free"):
        control.buffers("cpu", (8192, 4096))


def test_a_library_is_known_by_its_versions_and_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = control.library_checksum("numpy", "2.4.0")

    assert first == control.library_checksum("numpy", "2.4.0") == int(first)
    assert first != control.library_checksum("numpy", "2.4.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert first != control.library_checksum("numpy", "2.4.0")


def test_rates_are_operations_and_bytes_both_ways_and_the_slowest_gpu_counts() -> None:
    """A product of 1000² takes 2·10⁹ operations; a byte copied is one read and one written."""
    assert control.rates(0.5, 0.25, 1000, 10**9) == {MATMUL: 4e9, COPY: 8e9}
    first = {MATMUL: 9e14, COPY: 3.1e12, LIBRARY: 5.0}
    second = {MATMUL: 7e14, COPY: 3.3e12, LIBRARY: 5.0}
    assert control.slowest([first, second]) == {MATMUL: 7e14, COPY: 3.1e12, LIBRARY: 5.0}


class FakeEvent:
    """An event of CUDA's, by this machine's clock, that notes what happens to it."""

    seen: ClassVar[list[str]] = []

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_s = 0.0

    def record(self) -> None:
        self.seen.append("record")
        self.at_s = perf_counter()

    def synchronize(self) -> None:
        assert self.at_s
        self.seen.append("synchronize")

    def elapsed_time(self, end: FakeEvent) -> float:
        self.seen.append("elapsed")
        return 1e3 * (end.at_s - self.at_s)


def test_a_gpus_events_are_in_milliseconds_and_are_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "seen", [])
    monkeypatch.setattr(FakeEvent, "elapsed_time", lambda start, end: 12.0 * (start is not end))

    assert control.by_events(lambda: FakeEvent.seen.append("work"), 3)() == pytest.approx(0.004)
    assert FakeEvent.seen == ["record", "work", "work", "work", "record", "synchronize"]


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, *, memory: int = 2**30) -> list[str]:
    """Let torch have GPUs, which are this CPU; return where each buffer is made, as it is."""
    torch = pytest.importorskip("torch")
    ones, randn, made = torch.ones, torch.randn, list[str]()

    def on_a_gpu(size: int, *, dtype: object, device: str) -> object:
        if size > memory:
            raise torch.cuda.OutOfMemoryError
        made.append(f"{device} {size}")
        return ones(size, dtype=dtype)

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.append(f"on {device}"))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch, "Generator", lambda device: torch.default_generator)
    monkeypatch.setattr(torch, "randn", lambda shape, dtype, **_: randn(shape).to(dtype))
    monkeypatch.setattr(torch, "ones", on_a_gpu)
    monkeypatch.setattr(control, "GPU", TINY)
    monkeypatch.setattr(control, "PEERS", PAIRS)
    return made


PAIRS = ControlSizes(matrix=0, copied_bytes=(16384, 512), batch=2, warm_s=0.0, measured_s=0.0)


@pytest.mark.parametrize(("count", "memory", "size"), [(2, 2**30, 16384), (4, 8192, 512)])
def test_several_gpus_copy_to_each_other_around_a_ring(
    monkeypatch: pytest.MonkeyPatch, count: int, memory: int, size: int
) -> None:
    made = with_gpus(monkeypatch, count, memory=memory)

    figures = control.on_gpus(count)

    assert list(figures) == [MATMUL, COPY, LIBRARY, PEER]
    assert all(value > 0 for value in figures.values())
    ring = [(n, (n + 1) % count) for n in range(count)]
    expected = [[f"on cuda:{a}", f"cuda:{a} {size}", f"cuda:{b} {size}"] for a, b in ring]
    assert made[-3 * count :] == [each for pair in expected for each in pair]


def test_the_slowest_pair_counts_and_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        with_gpus(patch, 1)
        assert PEER not in control.on_gpus(1)
    with monkeypatch.context() as patch:
        with_gpus(patch, 2, memory=100)
        with pytest.raises(UnavailableControl, match="too little GPU memory is free"):
            control.peer_copy_rate(["cuda:0", "cuda:1"], PAIRS)

    with_gpus(monkeypatch, 3)
    took_s = iter([0.5, 4.0, 1.0])
    monkeypatch.setattr(control, "median_s", lambda repeat, sizes: next(took_s))
    assert control.peer_copy_rate(["cuda:0", "cuda:1", "cuda:2"], PAIRS) == 16384 / 4.0


def test_a_torch_without_its_gpus_is_reported() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        says = "was built without CUDA and cannot use the GPU: install"
    else:
        says = f"sees {torch.cuda.device_count()} of 99 GPUs"

    with pytest.raises(UnavailableControl, match=says):
        control.on_gpus(99)


@pytest.mark.process
def test_started_by_hand_it_prints_one_line_and_ends_when_a_pipe_at_its_stdin_has() -> None:
    done = subprocess.run(
        COMMAND, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True
    )
    assert set(json.loads(done.stdout)) == {MATMUL, COPY, LIBRARY, "contention"}
    assert (done.stdout.count(b"\n"), done.stderr) == (1, b"")

    done = subprocess.run(COMMAND, input=b"", capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode in (1, -signal.SIGIO)
    assert done.stdout == b""
