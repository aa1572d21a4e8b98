"""The parts one after another, and the files that are written after each."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.board import IDLE_W, SIMULATED_GPU
from benchmarks.gpu.machine import versions
from benchmarks.gpu.parts import PARTS, RESULT, PartSpec
from benchmarks.gpu.report import Report
from benchmarks.gpu.setting import SIMULATED, Setting
from pytest_mlperf.hardware.machine import Machine, detect

ROOT = Path(__file__).resolve().parents[2]
RESERVE_S = 5.0
"""For writing, and for ending a part that ran past its time."""

GRACE_S = 2.0
"""A part that has not ended so long after its time is cut off: its process took time to start."""

ROOMY = 1.5
"""A part may take so many times its time where earlier ones left some; the last takes all."""

SHORTEST_S = 2.0
"""With less time left a part is not begun."""

NO_GPU = "NVML lists no GPU here: run this on a machine with one, or rehearse it with --fake"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return 0 if all that were asked for answered."""
    began_s = time.monotonic()
    options = _options(arguments)
    if not 0 < options.minutes <= 60:
        print(f"--minutes {options.minutes:g}: give a number above 0, at most 60", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as undo:
        if options.fake:
            undo.enter_context(_fake_library())
        machine = detect(gpus=True)
        if not machine.gpus:
            print(f"{NO_GPU} ({machine.nvml_trouble})", file=sys.stderr)
            return 2
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mlperf-gpu-")))
        report = _report(options, machine)
        return _run(options, machine, report, folder, began_s)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    from benchmarks.gpu import __main__ as script

    assert script.__doc__
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=script.__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), metavar="DIR")
    parser.add_argument("--minutes", type=float, default=None, help="9; with --fake 2.9")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="wheels of make gpu-bundle")
    parser.add_argument("--fake", action="store_true", help="a simulated GPU, all work on the CPU")
    options = parser.parse_args(arguments)
    if options.minutes is None:
        options.minutes = 2.9 if options.fake else 9.0
    options.only = options.only or names
    return options


@contextlib.contextmanager
def _fake_library() -> Iterator[None]:
    """Let this and all child processes find the fake NVML library, with one idle H200."""
    from tests.nvml.library import Fake

    with tempfile.TemporaryDirectory(prefix="mlperf-fake-") as folder:
        fake = Fake(Path(folder))
        fake.write("device", f"wave const {IDLE_W:g}", *SIMULATED_GPU)
        for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCENARIO"):
            os.environ[name] = fake.environment[name]
        yield


def _report(options: argparse.Namespace, machine: Machine) -> Report:
    gpu = machine.gpus[0]
    cpu = machine.cpu.get("cpu", "unknown CPU")
    hardware = f"{gpu['gpu']}, {gpu['memory_gib']} GiB, limit {gpu['power_limit_w']} W"
    command = ["python", "-m", "benchmarks.gpu", "--minutes", f"{options.minutes:g}"]
    if options.bundle:
        command += ["--bundle", str(options.bundle)]
    if len(options.only) < len(PARTS):
        command += ["--only", *options.only]
    return Report(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        command=shlex.join(command + ["--fake"] * options.fake),
        hardware=f"simulated {hardware}; work on {cpu}" if options.fake else f"{hardware}; {cpu}",
        accelerator=next(iter(machine.classes)),
        simulated=options.fake,
        minutes=options.minutes,
        identity={"gpu": dict(gpu), "cpu": dict(machine.cpu)},
        versions=versions(),
        commit=_commit(),
    )


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _run(
    options: argparse.Namespace, machine: Machine, report: Report, folder: Path, began_s: float
) -> int:
    """Run each part within what is left, and write the files after each."""
    end_s = began_s + 60 * options.minutes - RESERVE_S
    wanted = [part for part in PARTS if part.name in options.only]
    planned = {p.name: p.rehearsal_s if options.fake else p.seconds for p in wanted}
    scale = (end_s - time.monotonic()) / sum(planned.values())
    if options.fake:
        print(SIMULATED, flush=True)
    for part in PARTS:
        report.parts[part.name] = {"status": "not asked for", "seconds": 0.0}
    for number, part in enumerate(wanted):
        later_s = scale * sum(planned[each.name] for each in wanted[number + 1 :])
        # What earlier parts did not use is for those that follow.
        left_s = end_s - time.monotonic()
        seconds = min(left_s, max(scale * planned[part.name], left_s - later_s))
        if part is not wanted[-1]:
            seconds = min(seconds, ROOMY * scale * planned[part.name])
        report.parts[part.name] = {"status": "not run: no time left", "seconds": 0.0}
        if seconds > SHORTEST_S:
            print(f"{part.title}: at most {seconds:.0f} s ...", flush=True)
            setting = _setting(options, machine, folder / part.name, seconds)
            report.parts[part.name] = run_part(part, setting)
            done = report.parts[part.name]
            print(f"{part.title}: {done['status']}, {done['seconds']:.1f} s", flush=True)
        values = (report.parts[part.name].get("answer") or {}).get("values", {})
        report.driver = values.get("driver", report.driver)
        paths = report.write(options.out)
    print(f"{time.monotonic() - began_s:.0f} s; {paths[0]}, {paths[1]}")
    return int(any(report.parts[part.name]["status"] != "ok" for part in wanted))


def _setting(
    options: argparse.Namespace, machine: Machine, folder: Path, seconds: float
) -> Setting:
    gpu = machine.gpus[0]
    memory = gpu["memory_gib"]
    return Setting(
        folder=str(folder),
        seconds=seconds,
        device="cpu" if options.fake else "cuda",
        uuid=str(gpu["uuid"]),
        product=str(gpu["gpu"]),
        memory_gib=float(memory) if isinstance(memory, int | float) else None,
        accelerator=next(iter(machine.classes)),
        simulated=options.fake,
    )


def run_part(part: PartSpec, setting: Setting) -> dict[str, Any]:
    """Run a part in a process group of its own; return its status and what it answered.

    A part that breaks or runs past its time keeps what it had.
    """
    setting.path.mkdir(parents=True)
    log = setting.path / "part.log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}
    if setting.device == "cuda":
        # torch's first GPU is then the one that is sampled.
        environment["CUDA_VISIBLE_DEVICES"] = setting.uuid
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.parts", part.name]
    command += [str(os.getpid()), str(begin_s)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=setting.path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.communicate(setting.to_json().encode(), timeout=setting.seconds + GRACE_S)
            status = "ok" if process.returncode == 0 else f"failed: {_last_words(log, process)}"
        except subprocess.TimeoutExpired:
            status = f"failed: cut off after {setting.seconds:.0f} s, with what it had by then"
        finally:
            # What the part started is in its group, but for samplers, which end with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - begin_s, 1)}
    result = setting.path / RESULT
    if result.is_file():
        found["answer"] = json.loads(result.read_text("utf-8"))
        if status == "ok":
            found["status"] = status_of(found["answer"]["failures"])
    elif status == "ok":
        found["status"] = "failed: it answered nothing"
    return found


def status_of(failures: Sequence[str]) -> str:
    """Return the status of a part that came to its end: what broke of it, or "ok"."""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"failed: {failures[0]}{more}" if failures else "ok"


def _import_path() -> list[str]:
    """Return where children find benchmarks, and the fake library of the tests."""
    return [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]


def _last_words(log: Path, process: subprocess.Popen[bytes]) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    code = process.returncode
    ended = f"signal {-code}" if code < 0 else f"exit status {code}"
    return f"{lines[-1].strip()} ({ended})" if lines else ended
