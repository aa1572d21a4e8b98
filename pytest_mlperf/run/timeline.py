"""Draw power.svg of a run that was sampled: `python -m pytest_mlperf.run.timeline FOLDER`.

pytest lets a child process do it, because drawing loads matplotlib and takes a second.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.power import LABEL
from pytest_mlperf.core.results import LABEL as UNVERIFIED
from pytest_mlperf.core.trace import Reading
from pytest_mlperf.reports import timeline as drawing
from pytest_mlperf.reports.timeline_model import GpuLines, Lane, Timeline
from pytest_mlperf.run.lifeline import die_with_parent
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.power import FILE, GpuLog, PowerLog
from pytest_mlperf.run.power_doubts import HALTED
from pytest_mlperf.stores import atomic

PICTURE = "power.svg"
"""In the run's folder, beside the sampler's file."""

LOG = "timeline.log"
"""There too: why there is no picture."""

LEAST_S, SHARE = 5.0, 0.15
"""So many seconds, or as much of the window, are shown before it and after it."""

WORDS = {
    "hw_thermal_slowdown": "heat (hardware)",
    "sw_thermal_slowdown": "heat (software)",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_power_cap": "power cap",
    "sync_boost": "sync boost",
    "board_limit": "board limit",
    "reliability": "reliability limit",
    "display_clocks": "display's clocks",
    "application_clocks": "clocks set by hand",
    "gpu_idle": "idle",
}
"""Clock event reasons in a few words, the worst first."""

CAP = "sw_power_cap"


def draw_timeline(folder: Path, *, limit_s: float = 60.0) -> Path | None:
    """Draw the timeline of a run in a child process; nothing that fails there is raised.

    Args:
        folder: The run's, or the one in it with LoadGen's logs.
        limit_s: The child is killed after so long.

    Returns:
        The picture; None where matplotlib is not installed or nothing was sampled, or where the
        drawing failed: then timeline.log in the folder says why.
    """
    folder = _home(folder)
    if importlib.util.find_spec("matplotlib") is None or not _sampled(folder):
        return None
    command = [sys.executable, "-m", "pytest_mlperf.run.timeline", str(folder)]
    command += ["--parent", str(os.getpid())]
    log = folder / LOG
    with contextlib.suppress(OSError):
        with log.open("wb") as output:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                output.write(f"drawing took longer than {limit_s:g} s\n".encode())
                return None
        if done.returncode == 0:
            log.unlink()
            return folder / PICTURE
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, and print where; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_mlperf.run.timeline",
        description=f"Draws {PICTURE}: power, SM clock and temperature of the GPUs over a run.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"of a run; it has {FILE}")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with_parent(options.parent)
    folder = _home(options.folder)
    picture = folder / PICTURE
    try:
        atomic.write_bytes(picture, drawing.draw(read_timeline(folder)))
    except MlperfError as error:
        print(f"no timeline: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"no timeline: {picture} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"wrote {picture}")
    return 0


def read_timeline(folder: Path) -> Timeline:
    """Return what there is to draw of a run.

    Raises:
        RunError: Nothing was sampled, LoadGen's log is not there or not whole, or its window
            cannot be found in what was sampled.
    """
    path = folder / FILE
    if not path.exists():
        raise RunError("sampler", f"there is no {path}; name the folder of a run on a GPU")
    log = PowerLog.read(path)
    gpus = [gpu for gpu in log.gpus if gpu.trace or gpu.states]
    if log.unavailable or not gpus:
        why = log.unavailable or "the sampler read nothing"
        raise RunError("sampler", f"{path} has no readings: {why}")
    if log.clock_stepped:
        why = "the wall clock was set during the run, so that LoadGen's window cannot be found"
        raise RunError("sampler", f"{path}: {why}")
    began, ended = _window(folder)
    begin_s, end_s = log.monotonic(began), log.monotonic(ended)
    times = [time_s for gpu in gpus for time_s in _ends(gpu)]
    pad_s = max(LEAST_S, SHARE * (end_s - begin_s))
    first_s, last_s = max(min(times), begin_s - pad_s), min(max(times), end_s + pad_s)
    if not (end_s > begin_s and first_s < end_s and last_s > begin_s):
        raise RunError("sampler", f"{path} has no readings of LoadGen's window")
    shown = (min(first_s, begin_s), max(last_s, end_s))
    names = ", ".join(dict.fromkeys(_name(gpu) for gpu in gpus))
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    moment = dt.datetime.fromtimestamp(began, dt.UTC).isoformat(sep=" ", timespec="seconds")
    return Timeline(
        title=folder.resolve().name,
        subtitle=f"{count}{names}, driver {log.driver}; the window began {moment[:19]} UTC",
        footer=f"Sampled through NVML. {LABEL[0].upper()}{LABEL[1:]}. {UNVERIFIED}",
        shown=(shown[0] - begin_s, shown[1] - begin_s),
        window_s=end_s - begin_s,
        gpus=[_lines(gpu, f"GPU {place}", shown, begin_s) for place, gpu in enumerate(gpus)],
        lanes=_lanes(gpus, shown, (begin_s, end_s)),
    )


def _home(folder: Path) -> Path:
    """Return the folder that the sampler wrote into: LoadGen's logs lie in one below it."""
    above = folder.resolve().parent
    inside = not (folder / FILE).exists() and (folder / DETAIL).exists()
    return above if inside and (above / FILE).exists() else folder


def _sampled(folder: Path) -> bool:
    """Whether the sampler's first record says that it samples; a damaged one is for the child."""
    try:
        with (folder / FILE).open("rb") as file:
            ready = json.loads(file.readline())["ready"]
        silent = [gpu.get("unavailable") for gpu in ready.get("gpus", ())]
    except OSError:
        return False
    except (ValueError, LookupError, TypeError, AttributeError):
        return True
    return "unavailable" not in ready and not all(silent)


def _window(folder: Path) -> tuple[float, float]:
    """Return LoadGen's window on the wall clock, seconds since the epoch."""
    paths = [folder / "performance" / DETAIL, folder / DETAIL]
    path = next((path for path in paths if path.exists()), paths[0])
    return parse_detail(path).window_s


def _ends(gpu: GpuLog) -> list[float]:
    """Return when a GPU was first and last read."""
    times = [*(r.time_s for r in gpu.trace[:: len(gpu.trace) - 1 or 1])]
    return times + [state["time"] for state in gpu.states[:: len(gpu.states) - 1 or 1]]


def _name(gpu: GpuLog) -> str:
    return str(gpu.facts.get("identity", {}).get("name") or gpu.uuid)


def _lines(gpu: GpuLog, name: str, shown: tuple[float, float], begin_s: float) -> GpuLines:
    def moved(readings: Sequence[Reading]) -> list[Reading]:
        return [
            Reading(time_s=reading.time_s - begin_s, value=reading.value)
            for reading in readings
            if shown[0] <= reading.time_s <= shown[1]
        ]

    return GpuLines(
        name=name,
        power=moved(gpu.trace),
        clock=moved(gpu.series("sm_mhz", *shown)),
        temperature=moved(gpu.series("temperature_c", *shown)),
        limit_w=gpu.limit_w,
    )


def _lanes(
    gpus: Sequence[GpuLog], shown: tuple[float, float], window: tuple[float, float]
) -> list[Lane]:
    """Return a lane per reason, with the times of all GPUs together."""
    spans: dict[str, list[tuple[float, float]]] = {}
    shares: dict[str, dict[int, float]] = {}
    begin_s, end_s = window
    for place, gpu in enumerate(gpus):
        for span in gpu.spans():
            first_s, last_s = max(span.begin_s, shown[0]), min(span.end_s, shown[1])
            if last_s > first_s:
                found = spans.setdefault(span.reason, [])
                found.append((first_s - begin_s, last_s - begin_s))
                shares.setdefault(span.reason, {}).setdefault(place, 0.0)
        for reason, seconds in gpu.held_back_s(begin_s, end_s).items():
            shares.setdefault(reason, {})[place] = seconds / (end_s - begin_s)
    order = [*WORDS, *sorted(shares.keys() - WORDS.keys())]
    return [
        Lane(
            label=_label(reason, shares[reason], len(gpus)),
            kind="fault" if reason in HALTED else "cap" if reason == CAP else "plain",
            spans=spans.get(reason, []),
        )
        for reason in order
        if reason in shares
    ]


def _label(reason: str, shares: Mapping[int, float], count: int) -> str:
    """Return a reason with the largest share of the window, and whose it is if not of all."""
    told = f"{WORDS.get(reason, reason)} {_percent(max(shares.values()))}"
    if len(shares) == count:
        return told
    if len(shares) > 2:
        return f"{told}, {len(shares)} GPUs"
    return f"{told}, GPU {' '.join(map(str, shares))}"


def _percent(share: float) -> str:
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
