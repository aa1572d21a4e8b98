"""Sample GPUs through NVML in a process of its own, which never changes a setting.

    python -m pytest_mlperf.hardware.sampler --gpu UUID [--gpu UUID ...] [--hz 50] [--out FILE]

A separate process does not wait for the interpreter's lock and is independent of other users of
NVML. Each GPU has its own thread, because NVML calls block. Sampling ends when stdin closes or the
parent is gone. The output is one JSON object per line; with --out the records go to that file, and
the first one also to stdout. Times are CLOCK_MONOTONIC [s], except "wall". Readers ignore an
incomplete last line.

{"ready": {...}}  first record
    version     1
    unavailable reason why nothing can be read; then this is the only record
    lost        next to unavailable: true if the driver or its GPUs were present and are gone
    suspect     true if the driver's state may also affect performance
    time, wall  monotonic and wall clock at one moment
    driver, cuda, binding  versions
    rates       samples/s per GPU (trace_hz, counter_hz, state_hz, slow_hz), and expected cost:
                cpu_share of a core for all GPUs, driver_share of the time for each GPU
    gpus        one entry per requested GPU, in order:
        index, uuid     number used by later records, and the requested UUID
        unavailable     reason why this GPU cannot be read; then no other key follows
        lost            next to unavailable: true if the GPU is gone, or must be reset
        identity        properties and settings: nvml_quantities.IDENTITY_READERS
        instance, instances, shared  MIG: whether the UUID is of an instance, number of instances,
                            and whether readings may include other instances
        scope           "gpu", or "module" if power includes CPU and memory
        covers          whether the power sensor is known to measure without gaps
        averages        whether average_w is the mean of the last second
        ways            NVML call or field that answered, by quantity
        unavailable_quantities  why it cannot be read, by quantity
        forbidden       quantities among them that this user may not read
        cost_us         by quantity: [median, maximum, mean CPU time] of up to 20 reads
        counter_period_s  median time between changes of the energy counter, or null
        utilization_percent  at rest, after the effect of earlier work has faded
        processes       [[pid, bytes], ...] at rest, with pids on the host
        memory_used     bytes, at rest
{"t": [time, gpu, watts, reasons, counter_time, joules]}  the last two only if joules were read
{"s": {"time":, "gpu":, quantity: value, ...}}  nvml_quantities.STATE, or SLOW_QUANTITIES
{"rates": {"time":, trace_hz and so on}}  higher rates if the first ones were too low
{"lost": {"time":, "gpu":, "code":, "why":}}  that GPU is gone and no longer read
{"end": {...}}  last record
    time, wall, elapsed_s, cpu_s  clocks, duration and cost of sampling
    ticks, planned, slow          samples of all GPUs: done, due, over half a period late
    gpus        [{"index":, "missed": {quantity: n}, "unavailable_quantities": {...},
                  "forbidden": [...]}, ...]

A null is a missed sample. Names contain the units. throttle_ns has the throttled time by reason
since the driver was loaded; reasons is a bit mask of nvml_quantities.REASONS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_mlperf.hardware import sampler_gpu
from pytest_mlperf.hardware._nvml import NvmlLibrary, UnavailableNvml, binding
from pytest_mlperf.hardware._sampler_threads import Sampler, Writer, choose, highest_cost
from pytest_mlperf.hardware.nvml_quantities import COUNTER, SLOW_QUANTITIES, STATE, TRACE

RECORDS_VERSION = 1
NVML_GRACE_SECONDS = 2.0
HUNG_EXIT_CODE = 3
GROUPS = {"trace": TRACE, "counter": COUNTER, "state": STATE, "slow": SLOW_QUANTITIES}
SUSPECT_XIDS = frozenset({18})


def clocks() -> dict[str, float]:
    """Return the monotonic clock and the wall clock at one moment."""
    start, wall = time.monotonic(), time.time()
    return {"time": (start + time.monotonic()) / 2, "wall": wall}


def main(arguments: Sequence[str] | None = None) -> None:
    """Sample the GPUs named on the command line."""
    parser = argparse.ArgumentParser(prog="pytest_mlperf.hardware.sampler")
    parser.add_argument("--gpu", action="append", required=True, help="UUID")
    parser.add_argument("--hz", type=float, default=50.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--watch-s", type=float, default=1.5, help="to find the counter's period")
    options = parser.parse_args(arguments)
    parent, stop = os.getppid(), end_with_stdin()
    with options.out.open("w", encoding="ascii") if options.out else sys.stdout as file:
        write = Writer(file)
        for line in sample(options, stop, parent, write):
            write(line)
            write.flush()
            if options.out and line.startswith('{"ready"'):
                print(line, flush=True)


def sample(
    options: argparse.Namespace, stop: threading.Event, parent: int, write: Writer
) -> Iterator[str]:
    """Write GPU samples until `stop` is set or pid `parent` ends; yield first and last record."""
    first: dict[str, Any] = {"version": RECORDS_VERSION}
    try:
        library = NvmlLibrary(binding())
    except (ImportError, UnavailableNvml) as error:
        suspect = getattr(error, "code", None) in SUSPECT_XIDS
        lost = getattr(error, "code", None) in sampler_gpu.DISAPPEARED
        failure = {"unavailable": str(error), "suspect": suspect, "lost": lost}
        yield json.dumps({"ready": {**first, **failure}})
        return
    with contextlib.closing(library):
        yield from _sample(library, first, options, stop, parent, write)


def _sample(
    library: NvmlLibrary,
    first: dict[str, Any],
    options: argparse.Namespace,
    stop: threading.Event,
    parent: int,
    write: Writer,
) -> Iterator[str]:
    versions = _versions(library.nvml)
    gpus, silent = sampler_gpu.open_gpus(library, options.gpu, str(versions["driver"]))
    sampler_gpu.measure_periods(gpus, options.watch_s, stop)
    sampler_gpu.read_at_rest(gpus, stop)
    silent += [
        sampler_gpu.silent_part(gpu.index, gpu.device.uuid, gpu.lost) for gpu in gpus if gpu.lost
    ]
    gpus = [gpu for gpu in gpus if not gpu.lost]
    groups = GROUPS.items() if gpus else ()
    costs = {group: highest_cost(gpu.cost(names) for gpu in gpus) for group, names in groups}
    rates = choose(costs, max(1, len(gpus)), trace_hz=options.hz)
    parts = [*silent, *(gpu.ready() for gpu in gpus)]
    first |= {**clocks(), **versions, "rates": asdict(rates)}
    yield json.dumps({"ready": {**first, "gpus": sorted(parts, key=lambda r: r["index"])}})
    sampler = Sampler(gpus, rates, write, options.hz)
    began, cpu = time.monotonic(), time.process_time()
    ended = sampler.run(stop, parent)
    spent = {"elapsed_s": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
    write.flush()
    if not ended:
        raise SystemExit(HUNG_EXIT_CODE)  # a reader sees that the last record is missing
    sampler.finish()
    for probe in (probe for gpu in gpus for probe in gpu.probes.values()):
        probe.set_failure(at_end=True)
    endings = [
        {
            "index": gpu.index,
            "missed": {name: p.missed for name, p in gpu.probes.items() if p.missed},
            "unavailable_quantities": gpu.unavailable(),
            "forbidden": gpu.forbidden(),
            "last_failure": gpu.probes["power_w"].last,
        }
        for gpu in gpus
    ]
    yield json.dumps({"end": {**clocks(), **spent, **sampler.counts(), "gpus": endings}})


def _versions(nvml: Any) -> dict[str, str | int | None]:
    driver = cuda = package = None
    with contextlib.suppress(nvml.NVMLError):
        driver = nvml.nvmlSystemGetDriverVersion()
    with contextlib.suppress(nvml.NVMLError):
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    with contextlib.suppress(metadata.PackageNotFoundError):
        package = metadata.version("nvidia-ml-py")
    return {"driver": driver, "cuda": cuda, "binding": package}


def end_with_stdin() -> threading.Event:
    """Return an event set when stdin closes; kill this process `NVML_GRACE_SECONDS` later."""
    stop = threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        stop.set()
        time.sleep(NVML_GRACE_SECONDS)
        os._exit(HUNG_EXIT_CODE)  # a call into a broken driver may never return

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes stdin
    threading.Thread(target=watch, daemon=True).start()
    return stop


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(1)  # the reader is gone
