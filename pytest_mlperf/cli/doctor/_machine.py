"""Check tools, LoadGen, accelerators, space, engines and their libraries.

Code that is slow or may crash runs in child processes: LoadGen, NVML, pytest, engine libraries.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pytest_mlperf import registry
from pytest_mlperf.cli.doctor import requirements
from pytest_mlperf.core.addons import Command
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.contention import NOT_MEASURED, TOLERATED_SHARE, Contention, load_seen
from pytest_mlperf.core.errors import REINSTALL, TO_MEASURE, MlperfError, RunError, text_of
from pytest_mlperf.core.job import Factory, LoadGenSettings, Seeds
from pytest_mlperf.hardware import host, power_limit, rapl
from pytest_mlperf.hardware.contention import ContentionMonitor
from pytest_mlperf.hardware.host import Property
from pytest_mlperf.hardware.leases import lease_folder, lease_place
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.child.process import Patience, WorkerProcess
from pytest_mlperf.run.child.protocol import WorkerSpec
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.suite.libraries import declared_libraries, extras, is_here

ENOUGH_GIB = 1.0
"""Free space below which the page has a note [GiB]."""

WATCH_SECONDS = 0.3


@dataclass(frozen=True)
class Check:
    """Hold the result of one check.

    Attributes:
        state: "ok", "note", "missing" (optional and absent), "broken" (nothing can be measured) or
            "defective" (a file in this folder has an error).
        do: Remedy, or "" if none is needed.
    """

    group: Literal["tools", "machine", "engines", "libraries", "files"]
    name: str
    state: Literal["ok", "note", "missing", "broken", "defective"]
    text: str
    do: str = ""


def run_checks(machine: Machine, runs_dir: Path) -> tuple[list[Check], requirements.Failures]:
    """Run all checks; return them, and the import errors of installed libraries."""
    watch = ContentionMonitor(os.getpid())
    start = watch.read()
    time.sleep(WATCH_SECONDS)  # before anything is asked: what asks is a load itself
    seen = Contention(**watch.between(start, watch.read()))
    engines = sorted(registry.registered("engines"))
    libraries = dict.fromkeys(
        one for name in engines for one in declared_libraries("engines", name)
    )
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(plugin), pool.submit(loadgen)]
        failures = pool.submit(
            requirements.import_failures, [one for one in libraries if is_here(one)]
        )
        checks = [
            python(),
            *(future.result() for future in answers),
            gpus(machine),
            *gpu_sensors(machine),
            *power_limits(machine),
            cpu(machine),
            *int8_products(),
            host_energy(),
            load(seen),
            memory(),
            space(runs_dir),
            leases(),
            *(_engine(name, failures.result()) for name in engines),
            *(_extra(n, needed) for n, needed in extras().items() if n not in engines),
        ]
        return [*checks, *of_addons()], failures.result()


def of_addons() -> Iterator[Check]:
    """Run the checks that add-ons declare for the working folder."""
    for name, command in registry.declared("commands", Command, Command).items():
        try:
            for check in import_module(command.doctor).checks() if command.doctor else ():
                yield Check("files", *check)
        except Exception as error:  # code of another package may raise anything
            yield Check("files", name, "note", f"its checks failed: {text_of(error)}")


def gpus(machine: Machine) -> Check:
    """List the GPUs, or report why none is visible."""
    if machine.gpus:
        names = [f"{n}x{c}" if n > 1 else c for c, n in machine.classes.items()]
        about = [", ".join(filter(None, _gpu_facts(machine.identity(name)))) for name in names]
        about = [f"{name}: {facts}" for name, facts in zip(names, about, strict=True)]
        differing = [text for name in names for text in machine.differing(name)]
        text = "; ".join(filter(None, (*about, *differing, machine.nvml_trouble)))
        return Check("machine", "GPUs", "note" if machine.nvml_trouble or differing else "ok", text)
    text = f"none: {machine.nvml_trouble or 'NVML finds no driver or no GPU'}"
    do = "if this machine has one, check that it is listed: nvidia-smi -L"
    return Check("machine", "GPUs", "note", f"{text}; only cases on cpu can run", do)


def _gpu_facts(identity: Mapping[str, Property]) -> Iterator[str]:
    yield str(identity.get("gpu"))
    if "topology" in identity:
        yield str(identity["topology"] or "unknown topology")


def gpu_sensors(machine: Machine) -> Iterator[Check]:
    """Report which GPU sensors can be sampled, if there is a GPU."""
    if not machine.gpus:
        return
    whose: dict[tuple[str, str], list[str]] = {}
    for kind, count in machine.classes.items():
        for uuid, gpu in machine.used(f"{count}x{kind}").items():
            for quantity, reason in machine.unread.get(uuid, {}).items():
                whose.setdefault((quantity, reason), []).append(gpu.name)
    lacks = [
        f"{quantity} of {'each GPU' if len(gpus) == len(machine.gpus) else ', '.join(gpus)}: {why}"
        for (quantity, why), gpus in whose.items()
    ]
    blind = any(quantity in ENERGY_QUANTITIES for quantity, _ in whose)
    text = f"not readable: {'; '.join(lacks)}" if lacks else "all readable"
    yield Check("machine", "GPU sensors", "note" if blind else "ok", text)


def power_limits(machine: Machine, proc: Path = Path("/proc")) -> Iterator[Check]:
    """Report whether GPU power limits can be set, and whether a case left one changed."""
    if not machine.gpus:
        return
    notes = power_limit.saved_limits(lease_place())
    left = [
        f"a case changed the power limit of {note.uuid} from {note.was_mw / 1000:g} to "
        f"{note.set_mw / 1000:g} W; it is restored when that case ends, or by the next case there"
        for note in notes.values()
        if note.uuid in {gpu["uuid"] for gpu in machine.gpus}
    ]
    may = power_limit.may_set(proc)
    text = "power_limit_w can be set" if may else "power_limit_w cannot be set without root"
    do = "" if may else "run as root, or: sudo nvidia-smi -pl WATTS"
    text = "; ".join((text, *left))
    yield Check("machine", "power limits", "note" if left else "ok", text, do)


ENERGY_QUANTITIES = {"energy_j", "power_w"}


def cpu(machine: Machine) -> Check:
    """Report the CPU and its frequency governor."""
    governor = machine.cpu["governor"] or "unknown"
    text = f"{machine.cpu['cpu']}, {machine.cpu['cores']} cores, governor {governor}"
    if governor not in {"powersave", "ondemand", "conservative", "schedutil"}:
        return Check("machine", "CPU", "ok", text)
    text += ": clocks follow the load, which adds noise"
    return Check("machine", "CPU", "note", text, "sudo cpupower frequency-set -g performance")


def int8_products(root: Path = host.LINUX) -> Iterator[Check]:
    """Yield a note if int8 products can saturate on this CPU and lower scores."""
    if host.int8_can_saturate(root):
        text = (
            "no VNNI: ONNX Runtime adds int8 products in 16 bits, so a model with 8-bit weights "
            "can "
            "score lower than on a CPU with VNNI"
        )
        do = "quantise with reduce_range=True (7-bit weights), or measure int8 on a CPU with VNNI"
        yield Check("machine", "int8", "note", text, do)


def host_energy(folder: Path = rapl.POWERCAP_FOLDER) -> Check:
    """Check the host's RAPL energy counters and their permissions."""
    name, counters = "host energy", rapl.domains(folder)
    if not counters:
        text = "no RAPL, as in most virtual machines and containers"
        return Check("machine", name, "missing", text)
    broken = [one for one in counters if one.trouble]
    if not broken:
        text = f"RAPL of {', '.join(one.name for one in counters)}"
        return Check("machine", name, "ok", text)
    text = "; ".join(f"{one.file}: {one.trouble}" for one in broken)
    do = f"for permissions, at each boot: sudo chmod a+r {folder}/intel-rapl:*/energy_uj"
    return Check("machine", name, "note", f"RAPL of {broken[0].name} cannot be read: {text}", do)


def load(seen: Contention) -> Check:
    """Check whether other processes use the cores."""
    figures = {
        "processor use": seen.foreign_s,
        "waits for a core": seen.waited_s,
        "the hypervisor": seen.stolen_s,
        "processor quotas": seen.throttled_s,
        "memory pressure": seen.memory_some_s,
    }
    if not seen.has_cpu_times:
        return Check("machine", "load", "note", NOT_MEASURED)
    hidden = [name for name, value in figures.items() if value is None]
    unreported = f"; not reported: {', '.join(hidden)}" if hidden else ""
    if seen.foreign_s is None or not seen.window_s:
        return Check("machine", "load", "note", f"unknown{unreported}")
    others = f"{sentence(load_seen(replace(seen, waited_s=None)))}{unreported}"
    if seen.foreign_s / (seen.cores * seen.window_s) <= TOLERATED_SHARE:
        return Check("machine", "load", "ok", f"idle: {others}")
    do = "close other processes: they make verdicts INCONCLUSIVE"
    return Check("machine", "load", "note", f"busy: {others}", do)


def memory() -> Check:
    """Check free memory."""
    try:
        rows = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return Check("machine", "memory", "note", NOT_MEASURED)
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in rows)}
    free, total = kib["MemAvailable"] / 2**20, kib["MemTotal"] / 2**20
    text = f"{free:.1f} GiB free of {total:.1f} GiB"
    return Check("machine", "memory", "ok" if free >= ENOUGH_GIB else "note", text)


def space(runs_dir: Path) -> Check:
    """Check free space for results and logs."""
    name, path = "runs folder", runs_dir.absolute()
    folder = next(parent for parent in (path, *path.parents) if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        do = "name another: --mlperf-runs-dir DIR"
        return Check("machine", name, "broken", f"{runs_dir} cannot be written", do)
    free = shutil.disk_usage(folder).free / 2**30
    state: Literal["ok", "note"] = "ok" if free >= ENOUGH_GIB else "note"
    return Check("machine", name, state, f"{runs_dir}, {free:.1f} GiB free")


def leases() -> Check:
    """Check whether the lock files for GPUs and processors are writable."""
    try:
        folder = lease_folder()
    except (RunError, OSError) as error:
        do = "export PYTEST_MLPERF_LEASES=/path/shared/by/all/users"
        return Check("machine", "leases", "broken", str(error), do)
    if os.access(folder, os.W_OK | os.X_OK):
        return Check("machine", "leases", "ok", f"{folder} can be written")
    do = f"sudo chmod 1777 {folder}"
    return Check("machine", "leases", "broken", f"{folder} cannot be written", do)


def python() -> Check:
    """Report the Python interpreter and the operating system."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("tools", "Python", "ok", text)


def plugin() -> Check:
    """Check that pytest loads the plugin with this folder's configuration."""
    command = [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"]
    limit_s = 60
    try:
        done = requirements.run_captured(command, limit_s)
    except subprocess.TimeoutExpired:
        return Check("tools", "pytest", "broken", f"pytest --help did not end in {limit_s} s")
    versions = f"{version('pytest')}, plugin pytest-mlperf {version('pytest-mlperf')}"
    if "--mlperf-plan" in done.stdout:
        return Check("tools", "pytest", "ok", f"{versions} is active")
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        text, do = f"pytest --help fails: {' '.join(last)}", "fix the configuration of pytest here"
        return Check("tools", "pytest", "broken", text, do)
    do = (
        'remove "-p no:mlperf" from addopts, PYTEST_ADDOPTS or PYTEST_PLUGINS, and unset '
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
    )
    text = f"{versions} is installed, but not active in this folder"
    return Check("tools", "pytest", "broken", text, do)


TRIAL = LoadGenSettings(
    scenario=Scenario.OFFLINE,
    seeds=Seeds(qsl=1, sample_index=2, schedule=3),
    target_qps=2000.0,
    min_duration_ms=1,
    min_query_count=64,
    fixed_work_s=0.05,
    performance_samples=64,
)
"""The shortest run that proves that a worker and LoadGen work together."""

PATIENCE = Patience(progress_s=30.0, phase_s=60.0)


def loadgen() -> Check:
    """Check that LoadGen works, by a short run in a worker process that locks no processors."""
    wheel = "mlcommons-loadgen"
    try:
        release = version(wheel)
    except PackageNotFoundError:
        return Check("tools", "LoadGen", "broken", f"{wheel} is not installed", TO_MEASURE)
    try:
        with tempfile.TemporaryDirectory(prefix="pytest-mlperf-trial-") as folder:
            built = _trial(Path(folder))
    except (MlperfError, OSError) as error:
        layer = f"{error.layer}: " if isinstance(error, RunError) else ""
        text = f"{release}: the test run failed: {layer}{error}"
        return Check("tools", "LoadGen", "broken", text, REINSTALL)
    text = f"{release} (library {built}), the test run was VALID"
    return Check("tools", "LoadGen", "ok", text)


def _trial(folder: Path) -> str:
    engine = registry.registered("engines")["null"].value
    spec = WorkerSpec(
        folder=str(folder),
        engine=Factory(target=engine, options={"latency_s": 0.0001}),
        dataset=Factory(target=registry.registered("datasets")["synthetic"].value),
        model=None,
        precision="fp32",
        settings=TRIAL,
        warmup_s=0.01,
    )
    with WorkerProcess(spec, PATIENCE, lambda _: None) as worker:
        worker.wait_for("loaded")
        run = worker.wait_for("finished")
        worker.wait_for("ready")
        worker.send({"command": "stop"})
    detail = parse_detail(Path(run["folder"]) / DETAIL)
    detail.require_no_errors()
    if not detail.valid:
        raise RunError("loadgen", f"the run is INVALID: {'; '.join(detail.invalid_reasons)}")
    return str(detail.values.get("loadgen_version", "unknown")).split(" @ ")[0]


def _engine(name: str, failures: requirements.Failures) -> Check:
    if lack := requirements.missing_library("engines", name, failures):
        return Check("engines", name, "missing", *lack)
    trouble = requirements.library_trouble(name)
    return Check("engines", name, "missing" if trouble else "ok", trouble or "usable")


def _extra(name: str, needed: list[str]) -> Check:
    present, absent = [], []
    for distribution in needed:
        try:
            present.append(f"{distribution} {version(distribution)}")
        except PackageNotFoundError:
            absent.append(distribution)
    if not absent:
        return Check("libraries", name, "ok", ", ".join(present))
    do = f"pip install 'pytest-mlperf[{name}]'"
    return Check("libraries", name, "missing", f"not installed: {', '.join(absent)}", do)
