"""Measure the machine's speed by a fixed benchmark (matmul, copy) in its own process.

    python -m pytest_mlperf.hardware.control [--cuda COUNT]

On the CPU it uses numpy with the threads of its BLAS; with --cuda it uses torch on each GPU in
turn. The slowest GPU counts, because GPUs that work together wait for it. Several GPUs also copy to
their neighbour, and the slowest pair counts. The output is one JSON object: {"matmul_flops":,
"copy_bytes_per_s":, "matmul_library":, "peer_bytes_per_s":}, see core.control, or {"unavailable":
why}; and "contention" from hardware.contention. The process ends with its stdin, if that is a pipe.

Sizes, seeds, measuring times and the statistic (median of all repeats that fit, at least five) are
fixed. A change of any of them invalidates the controls of all baselines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import stat
import statistics
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from pytest_mlperf.core.control import COPY, LIBRARY, MATMUL, PEER
from pytest_mlperf.core.errors import TO_MEASURE
from pytest_mlperf.hardware.contention import ContentionMonitor, Window, session_of

MIN_REPEATS = 5
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS")
"""Environment variables that change the product's speed but not the machine."""

TOO_LITTLE = "too little GPU memory is free for the micro-benchmark: another process uses the GPU"

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlSizes:
    """Define the sizes of the micro-benchmark of a machine's speed.

    Attributes:
        copied_bytes: Sizes of each of the two buffers, tried in order until one fits. They exceed
            most last-level caches; a single core can hardly use all of a larger one.
        batch: Calls per repeat, which hide the launch overhead.
    """

    matrix: int
    copied_bytes: tuple[int, ...]
    batch: int
    warm_s: float
    measured_s: float


CPU_SIZES = ControlSizes(
    matrix=1024, copied_bytes=(96 * MIB,), batch=1, warm_s=0.02, measured_s=0.12
)
"""2.1 GFLOP and 192 MiB per call; 192 MiB of memory."""

GPU = ControlSizes(
    matrix=8192,
    copied_bytes=(1024 * MIB, 512 * MIB, 256 * MIB),
    batch=4,
    warm_s=0.2,
    measured_s=0.3,
)
"""1.1 TFLOP and 2 GiB per call; 2 GiB of memory. Clocks need the warm-up to rise."""


PEERS = ControlSizes(
    matrix=0, copied_bytes=(256 * MIB, 64 * MIB), batch=4, warm_s=0.05, measured_s=0.1
)
"""1 GiB per repeat between two GPUs; 256 MiB of memory on each."""


class UnavailableControl(Exception):
    """Report that the benchmark cannot run here, with the reason and the fix."""


def measure_cpu(sizes: ControlSizes = CPU_SIZES) -> dict[str, float]:
    """Return numpy's rates by name: float32 product [FLOP/s], copy [B/s]; and a numpy checksum."""
    try:
        import numpy as np
    except ImportError:
        raise UnavailableControl(f"numpy is not installed: {TO_MEASURE}") from None

    (size,) = sizes.copied_bytes
    draw = np.random.default_rng(0).standard_normal
    shape = (sizes.matrix, sizes.matrix)
    a, b = draw(shape, np.float32), draw(shape, np.float32)
    product = np.empty_like(a)
    matmul_s = median_s(by_clock(lambda: np.matmul(a, b, out=product), sizes.batch), sizes)
    source = np.ones(size, np.uint8)
    target = np.empty_like(source)
    copy_s = median_s(by_clock(lambda: np.copyto(target, source), sizes.batch), sizes)
    config: Any = np.show_config(mode="dicts")
    return {
        **rates(matmul_s, copy_s, sizes.matrix, size),
        LIBRARY: library_checksum("numpy", np.__version__, repr(config["Build Dependencies"])),
    }


def on_gpus(count: int) -> dict[str, float]:
    """Run the micro-benchmark per GPU; return the lowest results or raise UnavailableControl."""
    try:
        import torch
    except ImportError:
        raise UnavailableControl(
            "torch is not installed, which the GPU micro-benchmark needs: pip install torch"
        ) from None
    if torch.version.cuda is None:
        raise UnavailableControl(
            f"torch {torch.__version__} was built without CUDA and cannot use the GPU: "
            "install a torch with CUDA"
        )
    visible = torch.cuda.device_count()
    if visible != count:
        raise UnavailableControl(f"torch {torch.__version__} sees {visible} of {count} GPUs")
    devices = [f"cuda:{index}" for index in range(count)]
    figures = slowest([with_torch(device, GPU) for device in devices])
    return {**figures, PEER: peer_copy_rate(devices, PEERS)} if count > 1 else figures


def with_torch(device: str, sizes: ControlSizes) -> dict[str, float]:
    """Return the speed of a half-precision matrix product and of a copy in a device, by name.

    Half precision means the same on every GPU; float32 may be TF32. The inputs are random, because
    a product of zeros needs less power and runs at higher clocks.
    """
    import torch

    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(device)
    watch = by_events if cuda else by_clock
    generator = torch.Generator(device).manual_seed(0)
    shape = (sizes.matrix, sizes.matrix)
    try:
        left, right, product = (
            torch.randn(shape, dtype=torch.float16, device=device, generator=generator)
            for _ in range(3)
        )
        work = watch(lambda: torch.matmul(left, right, out=product), sizes.batch)
        matmul_s = median_s(work, sizes)
    except torch.cuda.OutOfMemoryError:
        raise UnavailableControl(TOO_LITTLE) from None
    source, target = buffers(device, sizes.copied_bytes)
    copy_s = median_s(watch(lambda: target.copy_(source), sizes.batch), sizes)
    return {
        **rates(matmul_s, copy_s, sizes.matrix, source.nbytes),
        LIBRARY: library_checksum("torch", torch.__version__, str(torch.version.cuda)),
    }


def peer_copy_rate(devices: Sequence[str], sizes: ControlSizes) -> float:
    """Return the lowest copy rate [B/s] from a device to the next one in a ring.

    Pairs are measured one after the other. Without peer access torch copies through the host's
    memory, as it does for an engine.
    """
    import torch

    slowest_pair = math.inf
    for device, other in zip(devices, [*devices[1:], devices[0]], strict=True):
        cuda = device.startswith("cuda")
        if cuda:
            torch.cuda.set_device(device)  # the copy is queued, and timed, where it starts
        source, target = copy_buffers(device, other, sizes.copied_bytes)
        watch = by_events if cuda else by_clock
        copy_s = median_s(watch(partial(target.copy_, source), sizes.batch), sizes)
        slowest_pair = min(slowest_pair, source.nbytes / copy_s)
    return slowest_pair


def copy_buffers(device: str, other_device: str, sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return a buffer on each device, both of the first size [bytes] that fits on both."""
    import torch

    for size in sizes:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            return tuple(
                torch.ones(size, dtype=torch.uint8, device=d) for d in (device, other_device)
            )
    raise UnavailableControl(TOO_LITTLE)


def buffers(device: str, sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return two buffers on a device, of the first size [bytes] that fits."""
    import torch

    for size in sizes:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            both = torch.ones(2 * size, dtype=torch.uint8, device=device)
            return both[:size], both[size:]
    raise UnavailableControl(TOO_LITTLE)


def by_clock(work: Callable[[], object], batch: int) -> Callable[[], float]:
    """Return a function that calls `work` `batch` times and returns wall-clock seconds per call."""

    def repeat() -> float:
        begun_s = perf_counter()
        for _ in range(batch):
            work()
        return (perf_counter() - begun_s) / batch

    return repeat


def by_events(work: Callable[[], object], batch: int) -> Callable[[], float]:
    """Return a function that calls `work` `batch` times and returns CUDA event seconds per call."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def repeat() -> float:
        begin.record()
        for _ in range(batch):
            work()
        end.record()
        end.synchronize()
        took_ms: float = begin.elapsed_time(end)
        return took_ms / 1e3 / batch

    return repeat


def median_s(repeat: Callable[[], float], sizes: ControlSizes) -> float:
    """Call `repeat` until warm, then repeatedly; return the median of its times [s]."""
    warm_s = perf_counter() + sizes.warm_s
    repeat()
    while perf_counter() < warm_s:
        repeat()
    times_s: list[float] = []
    end_s = perf_counter() + sizes.measured_s
    while len(times_s) < MIN_REPEATS or perf_counter() < end_s:
        times_s.append(repeat())
    return statistics.median(times_s)


def rates(matmul_s: float, copy_s: float, matrix: int, copied_bytes: int) -> dict[str, float]:
    """Return rates by name: matrix product (2 n³ FLOP) [FLOP/s] and copy (read + write) [B/s]."""
    return {MATMUL: 2 * matrix**3 / matmul_s, COPY: 2 * copied_bytes / copy_s}


def library_checksum(*facts: str) -> float:
    """Return the CRC-32 of `facts` (a library's name, versions) and thread settings, as a float."""
    settings = [f"{name}={os.environ.get(name, '')}" for name in THREADS]
    return float(zlib.crc32("\n".join([*facts, *settings]).encode()))


def slowest(gpu_figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the lowest value of each figure over all GPUs, by name."""
    return {name: min(figures[name] for figures in gpu_figures) for name in gpu_figures[0]}


def end_with_stdin() -> None:
    """Let the kernel end this process when its stdin, if a pipe, is closed.

    A thread could not do this: a call into a broken driver may never release the interpreter's
    lock. Only Linux can signal a closed pipe; elsewhere the parent ends this process if it can.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return  # started by hand: leave the terminal's flags alone
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends us
    if select.select([0], [], [], 0)[0]:
        os._exit(1)  # already closed


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the micro-benchmark; print the results as one line of JSON."""
    end_with_stdin()
    warnings.simplefilter("ignore")  # libraries warn when imported
    parser = argparse.ArgumentParser(prog="python -m pytest_mlperf.hardware.control")
    parser.add_argument("--cuda", type=int, default=0, metavar="COUNT", help="that many GPUs")
    options = parser.parse_args(arguments)
    figures: Mapping[str, object]
    window = Window(ContentionMonitor(os.getpid(), session=session_of(os.getpid())))
    window.read_edge()
    try:
        figures = on_gpus(options.cuda) if options.cuda else measure_cpu()
    except UnavailableControl as error:
        figures = {"unavailable": str(error)}
    window.read_edge()
    sys.stdout.write(json.dumps({**figures, "contention": window.seen}) + "\n")


if __name__ == "__main__":
    main()
