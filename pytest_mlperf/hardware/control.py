"""A fixed micro-benchmark of this machine, in a process of its own: a matrix product and a copy.

    python -m pytest_mlperf.hardware.control [--cuda COUNT]

On the CPU with numpy, in as many threads as its BLAS is set to; with --cuda with torch on each of
so many GPUs in turn, of which the slowest counts: those that work together wait for it. Of several
each copies to the next one as well, and the slowest pair counts. It prints one JSON object:
{"matmul_flops":, "copy_bytes_per_s":, "matmul_library":, "peer_bytes_per_s":}, see core.control, or
{"unavailable": why}; beside it "contention", as hardware.contention reads it. It ends when its
stdin, if that is a pipe, ends.

Sizes, seeds and measuring times are fixed, and so is what a figure is: the median of as many
repeats as fit, five at least. A change of any of them makes all baselines' controls worthless.
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
from pytest_mlperf.hardware.contention import Watch, Window, session_of

MIN_REPEATS = 5
THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS")
"""Settings that change the product's speed and not the machine."""

TOO_LITTLE = "too little memory of the GPU is free for the control: something else uses it"

MIB = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlSizes:
    """What is done.

    Attributes:
        copied_bytes: Size of each of the two buffers, tried from the left until one fits; larger
            than a last-level cache, lest the figure be that of the cache. Some servers have a
            larger one, of which one core can hardly use all.
        batch: Calls per repeat: it hides what it takes to start one.
    """

    matrix: int
    copied_bytes: tuple[int, ...]
    batch: int
    warm_s: float
    measured_s: float


CPU_SIZES = ControlSizes(
    matrix=1024, copied_bytes=(96 * MIB,), batch=1, warm_s=0.02, measured_s=0.12
)
"""2.1 GFLOP and 192 MiB a call, 192 MiB of memory."""

GPU = ControlSizes(
    matrix=8192,
    copied_bytes=(1024 * MIB, 512 * MIB, 256 * MIB),
    batch=4,
    warm_s=0.2,
    measured_s=0.3,
)
"""1.1 TFLOP and 2 GiB a call, 2 GiB of memory. Clocks need the warm-up to rise."""


PEERS = ControlSizes(
    matrix=0,
    copied_bytes=(256 * MIB, 64 * MIB),
    batch=4,
    warm_s=0.05,
    measured_s=0.1,
)
"""1 GiB a repeat between two GPUs, 256 MiB of memory on each."""


class UnavailableControl(Exception):
    """The benchmark cannot be made here; the message says why and what to do."""


def on_cpu(sizes: ControlSizes = CPU_SIZES) -> dict[str, float]:
    """Measure with numpy: a float32 product, and a copy by one thread."""
    try:
        import numpy as np
    except ImportError:
        raise UnavailableControl(f"numpy is not installed: {TO_MEASURE}") from None

    (size,) = sizes.copied_bytes
    draw = np.random.default_rng(0).standard_normal
    shape = (sizes.matrix, sizes.matrix)
    left, right = draw(shape, np.float32), draw(shape, np.float32)
    product = np.empty_like(left)
    matmul_s = median_s(by_clock(lambda: np.matmul(left, right, out=product), sizes.batch), sizes)
    source = np.ones(size, np.uint8)
    target = np.empty_like(source)
    copy_s = median_s(by_clock(lambda: np.copyto(target, source), sizes.batch), sizes)
    config: Any = np.show_config(mode="dicts")
    return {
        **rates(matmul_s, copy_s, sizes.matrix, size),
        LIBRARY: library("numpy", np.__version__, repr(config["Build Dependencies"])),
    }


def on_gpus(count: int) -> dict[str, float]:
    """Measure with torch on each of so many GPUs, and return the lowest; or UnavailableControl."""
    try:
        import torch
    except ImportError:
        raise UnavailableControl(
            "no library here that multiplies matrices on the GPU: pip install torch"
        ) from None
    if torch.version.cuda is None:
        raise UnavailableControl(
            f"torch {torch.__version__} here was built without CUDA, so that nothing multiplies "
            "matrices on the GPU: install a torch with CUDA"
        )
    seen = torch.cuda.device_count()
    if seen != count:
        raise UnavailableControl(f"torch {torch.__version__} sees {seen} of {count} GPUs")
    devices = [f"cuda:{index}" for index in range(count)]
    figures = slowest([with_torch(device, GPU) for device in devices])
    return {**figures, PEER: between(devices, PEERS)} if count > 1 else figures


def with_torch(device: str, sizes: ControlSizes) -> dict[str, float]:
    """Measure on one device of torch: a half-precision product, and a copy within its memory.

    Half precision is one thing on every GPU, other than float32, which is TF32 where that is
    allowed. Drawn numbers, since a product of zeros needs less power and runs at higher clocks.
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
        LIBRARY: library("torch", torch.__version__, str(torch.version.cuda)),
    }


def between(devices: Sequence[str], sizes: ControlSizes) -> float:
    """Return the B/s at which each device of torch copies to the next one, of the slowest pair.

    One pair after the other, around the ring: each sends and receives once. Where they may not
    reach each other's memory torch copies through the host's, which is what an engine gets too.
    """
    import torch

    slowest_pair = math.inf
    for device, other in zip(devices, [*devices[1:], devices[0]], strict=True):
        cuda = device.startswith("cuda")
        if cuda:
            torch.cuda.set_device(device)  # the copy is queued, and timed, where it starts
        source, target = ends(device, other, sizes.copied_bytes)
        watch = by_events if cuda else by_clock
        copy_s = median_s(watch(partial(target.copy_, source), sizes.batch), sizes)
        slowest_pair = min(slowest_pair, source.nbytes / copy_s)
    return slowest_pair


def ends(device: str, other: str, sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return a buffer on each of two devices, of the first size that both have memory for."""
    import torch

    for size in sizes:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            return tuple(torch.ones(size, dtype=torch.uint8, device=d) for d in (device, other))
    raise UnavailableControl(TOO_LITTLE)


def buffers(device: str, sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return two buffers of the first size, in bytes, that there is memory for."""
    import torch

    for size in sizes:
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            both = torch.ones(2 * size, dtype=torch.uint8, device=device)
            return both[:size], both[size:]
    raise UnavailableControl(TOO_LITTLE)


def by_clock(work: Callable[[], object], batch: int) -> Callable[[], float]:
    """Return what does the work so many times and returns seconds per time, by the clock."""

    def repeat() -> float:
        begun_s = perf_counter()
        for _ in range(batch):
            work()
        return (perf_counter() - begun_s) / batch

    return repeat


def by_events(work: Callable[[], object], batch: int) -> Callable[[], float]:
    """Do likewise with what the current GPU itself notes before and after; it is awaited."""
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
    """Warm up, repeat, and return the median."""
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
    """Return operations (2 n³ a product) and bytes (each read and written) per second."""
    return {MATMUL: 2 * matrix**3 / matmul_s, COPY: 2 * copied_bytes / copy_s}


def library(*facts: str) -> float:
    """Return a checksum of a library's name, versions and settings."""
    settings = [f"{name}={os.environ.get(name, '')}" for name in THREADS]
    return float(zlib.crc32("\n".join([*facts, *settings]).encode()))


def slowest(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the lowest of every figure; the library is the same one."""
    return {name: min(found[name] for found in each) for name in each[0]}


def end_with_stdin() -> None:
    """Let the kernel end this process when a pipe at stdin ends, whatever hangs by then.

    A thread that reads it would have to wait for the interpreter's lock, which a call into a
    broken driver may never give back. Other systems than Linux send no signal for a pipe: there the
    parent ends this process, if it can.
    """
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return  # started by hand: the terminal's flags are not ours to change
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends us
    if select.select([0], [], [], 0)[0]:
        os._exit(1)  # it had ended before


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one line of JSON."""
    end_with_stdin()
    warnings.simplefilter("ignore")  # a library's, at its import
    parser = argparse.ArgumentParser(prog="python -m pytest_mlperf.hardware.control")
    parser.add_argument("--cuda", type=int, default=0, metavar="COUNT", help="that many GPUs")
    options = parser.parse_args(arguments)
    figures: Mapping[str, object]
    window = Window(Watch(os.getpid(), session=session_of(os.getpid())))
    window.look()
    try:
        figures = on_gpus(options.cuda) if options.cuda else on_cpu()
    except UnavailableControl as error:
        figures = {"unavailable": str(error)}
    window.look()
    sys.stdout.write(json.dumps({**figures, "contention": window.seen}) + "\n")


if __name__ == "__main__":
    main()
