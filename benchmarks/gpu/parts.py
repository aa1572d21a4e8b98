"""The parts by name, and the process that runs one: `python -m benchmarks.gpu.parts`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.lifeline import die_with_parent
from benchmarks.gpu.setting import Setting
from pytest_mlperf.stores import atomic

RESULT = "answer.json"


@dataclass(frozen=True, kw_only=True)
class PartSpec:
    """One part.

    Attributes:
        name: For --only.
        title: Heading in the Markdown file.
        module: Below benchmarks.gpu.
        seconds: Of nine minutes, with the start of its process.
        rehearsal_s: Likewise where all is simulated.
    """

    name: str
    title: str
    module: str
    seconds: float
    rehearsal_s: float


PARTS = (
    PartSpec(
        name="machine", title="Machine and driver", module="machine", seconds=40, rehearsal_s=6
    ),
    PartSpec(
        name="counter",
        title="Energy counter and power",
        module="counter",
        seconds=80,
        rehearsal_s=36,
    ),
    PartSpec(
        name="sampling", title="Cost of sampling", module="sampling", seconds=30, rehearsal_s=18
    ),
    PartSpec(
        name="real", title="Real sizes, random weights", module="real", seconds=110, rehearsal_s=36
    ),
    PartSpec(name="suite", title="Tiny suite", module="suite", seconds=85, rehearsal_s=36),
    PartSpec(name="spread", title="Run-to-run spread", module="spread", seconds=60, rehearsal_s=12),
    PartSpec(
        name="sessions",
        title="Noise of runs and sessions",
        module="sessions",
        seconds=130,
        rehearsal_s=26,
    ),
)
"""In the order in which they run; the last one fills the time that is left."""


def main() -> None:
    """Run the part that argv names, in the setting on stdin; write each answer that it yields."""
    die_with_parent(int(sys.argv[2]))
    setting = Setting.from_json(sys.stdin.read())
    (name,) = [part.module for part in PARTS if part.name == sys.argv[1]]
    module = importlib.import_module(f"benchmarks.gpu.{name}")
    # Parts count from here, and their time is from when they were started.
    late_s = time.monotonic() - float(sys.argv[3])
    setting = dataclasses.replace(setting, seconds=setting.seconds - late_s)
    for answer in module.part(setting):
        text = json.dumps(answer.as_json(), ensure_ascii=False, allow_nan=False)
        atomic.write_text(Path(setting.folder) / RESULT, text)


if __name__ == "__main__":
    main()
