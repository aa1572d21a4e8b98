"""The tiny suite on the GPU, through pytest as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.board import simulate
from benchmarks.gpu.setting import Answer, Part, Setting, Table, show
from benchmarks.gpu.simulated import ENGINES
from pytest_mlperf.core.verdict import Outcome

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "suites" / "tiny"
COLUMNS = (
    "workload",
    "engine",
    "accuracy",
    "performance",
    "samples/s",
    "tokens/s",
    "J",
    "± J",
    "mean W",
    "window, s",
    "samples/J",
    "of the session, s",
)


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A tiny workload that torch can run.

    Attributes:
        name: Of its suite file.
        engine: The engine's table, where it is another than the suite's own.
        model: Likewise its model.
    """

    name: str
    engine: str = ""
    model: str = ""


TWINS = (
    Twin(name="llama2-70b"),
    Twin(
        name="bert",
        engine='use = "torch-module"\nname = "bert"\nprecision = "fp32"\n'
        'options = { factory = "question-answering", batch_size = 64, threads = 1 }\n',
        model="bert/model",
    ),
    Twin(name="dlrm-v2"),
    Twin(name="stable-diffusion-xl"),
    Twin(name="mixtral-8x7b"),
    Twin(name="gptj"),
)
"""In order of how much they tell; those at the end may not fit."""

QUICK = ("bert", "dlrm-v2")
"""Come first on a CPU, where only some fit."""


def part(setting: Setting) -> Part:
    """One session for each workload, as many as the time allows."""
    began_s, answer = time.monotonic(), Answer(values={"cases": {}})
    title = "Tiny suite, Offline, accuracy and performance"
    answer.tables.append(Table(title=title, columns=COLUMNS))
    answer.notes.append(
        "The models are tiny: these figures show that the path works on this device, not how fast "
        "it is. Windows under 20 s are too short for their energy to be gated."
    )
    if setting.simulated:
        answer.notes.append(
            "The engines are the suites' own, on the CPU; while they are loaded they let the "
            "simulated GPU show utilisation, or runs on it would be INVALID."
        )
    folder = setting.path / "suites"
    folder.mkdir(parents=True)
    slowest_s = 5.0
    order = sorted(TWINS, key=lambda t: t.name not in QUICK) if setting.simulated else TWINS
    for twin in order:
        left_s = setting.seconds - (time.monotonic() - began_s)
        if left_s < slowest_s:
            answer.tables[0].rows.append((twin.name, "not run: no time left", *[""] * 10))
            continue
        begin_s = time.monotonic()
        if setting.simulated:
            simulate("const", "500")
        row, values = _session(setting, twin, folder, left_s - 2.0)
        answer.tables[0].rows.append(row)
        answer.failures += [f"{twin.name}: {why}" for why in values["failures"]]
        answer.values["cases"][twin.name] = values
        slowest_s = max(slowest_s, min(time.monotonic() - begin_s, 20.0))
        yield answer
    yield answer


def rewrite(text: str, twin: Twin, setting: Setting, duration: str) -> str:
    """Return a tiny suite for this accelerator: Offline only, on the device, with its threads.

    Args:
        text: The suite as it is committed.
        twin: What differs.
        setting: The accelerator and the device.
        duration: Of the run, as a suite says it.
    """
    head, engine, rest = re.split(
        r"^(?=\[\[engines\]\]|\[\[scenarios\]\])", text, maxsplit=2, flags=re.MULTILINE
    )
    limits = rest[rest.index("[limits]") :] if "[limits]" in rest else ""
    if twin.model:
        head = re.sub(r'^model = ".*"', f'model = "{twin.model}"', head, flags=re.MULTILINE)
    if twin.engine:
        engine = f"[[engines]]\naccelerators = []\n{twin.engine}"
    engine = re.sub(r"accelerators = \[.*\]", f'accelerators = ["{setting.accelerator}"]', engine)
    if setting.device == "cuda":
        engine = re.sub(r", threads = \d+|\bthreads = \d+(, )?", "", engine)
        engine = re.sub(r"options = \{", f'options = {{ device = "{setting.device}",', engine)
        engine = re.sub(
            r"^\[engines\.options\]$",
            f'[engines.options]\ndevice = "{setting.device}"',
            engine,
            flags=re.MULTILINE,
        )
    if setting.simulated:
        engine = re.sub(r'^use = "(.*)"', _stand_in, engine, flags=re.MULTILINE)
    scenario = f'[[scenarios]]\nname = "Offline"\nmin_duration = "{duration}"\n\n'
    made = head + engine.rstrip() + "\n\n" + scenario + limits
    tomllib.loads(made)
    return made


def _stand_in(found: re.Match[str]) -> str:
    """Return the line of an engine that shows itself on the simulated GPU, under the same name."""
    own = ENGINES[found[1]]
    named = "" if "name = " in found.string else f'\nname = "{found[1]}"'
    return f'use = "{own.__module__}:{own.__name__}"{named}'


def _failures(verdicts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return which tests of a session failed or are missing."""
    return [
        f"{kind} {verdict['outcome']} {verdict['headline']}" if verdict else f"no {kind} test ran"
        for kind in ("accuracy", "performance")
        for verdict in [verdicts.get(kind)]
        if verdict is None or Outcome(verdict["outcome"]).fails
    ]


def _session(
    setting: Setting, twin: Twin, folder: Path, limit_s: float
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Run one workload; return its row and its values."""
    text = (TINY / f"{twin.name}.mlperf.toml").read_text("utf-8")
    file = folder / f"{twin.name}.mlperf.toml"
    duration = "1s" if setting.simulated else "6s"
    file.write_text(rewrite(text, twin, setting, duration), "utf-8")
    (folder / twin.name).symlink_to(TINY / twin.name)
    results = folder / f"{twin.name}.json"
    command = [sys.executable, "-m", "pytest", file.name, "-q", f"--rootdir={folder}"]
    command += [f"--mlperf-accelerator={setting.accelerator}", f"--mlperf-json={results}"]
    command += ["--mlperf-baselines=baselines", "-k", "accuracy or performance"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "PYTHONPATH": _path(), "CI": ""}
    environment.setdefault("PYTEST_MLPERF_LEASES", str(folder))
    begin_s = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(limit_s, 1.0),
        )
    except subprocess.TimeoutExpired:
        late = f"not finished in the {limit_s:.0f} s that were left"
        return (twin.name, late, *[""] * 10), {"late": late, "failures": []}
    seconds, said = time.monotonic() - begin_s, done.stdout + done.stderr
    (folder / f"{twin.name}.log").write_text(said, "utf-8")
    if not results.is_file():
        why = telling(said)
        return (twin.name, f"failed: {why}", *[""] * 10), {"failures": [why]}
    return row_of(twin.name, json.loads(results.read_text("utf-8")), seconds)


def telling(said: str) -> str:
    """Return the line of pytest's output that says why there are no results.

    A usage error ends in lines about its ini file.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|Error\b", line, re.IGNORECASE)]
    return (errors or lines or ["no output"])[-1]


def _path() -> str:
    """Return where Python finds the classes that suites name: beside the SDXL twin's data."""
    return os.pathsep.join(
        filter(None, [str(TINY / "stable-diffusion-xl"), os.environ.get("PYTHONPATH", "")])
    )


def row_of(
    name: str, results: Mapping[str, Any], seconds: float
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return a table's row and the values of one session's results file."""
    verdicts = {case["verdict"]["kind"]: case["verdict"] for case in results["cases"]}
    performance = verdicts.get("performance", {})
    runs = performance.get("runs") or [{}]
    metrics, power = runs[-1].get("metrics", {}), runs[-1].get("power") or {}
    subject = (performance.get("subject") or {}).get("fingerprint", {})
    said = {kind: f"{v['outcome']} {v['headline']}".strip() for kind, v in verdicts.items()}
    accuracy = verdicts.get("accuracy", {}).get("accuracy") or {}
    scores = ", ".join(f"{k} {v:.4g}" for k, v in accuracy.get("scores", {}).items())
    joules = power.get("joules")
    rate = metrics.get("throughput")
    samples = runs[-1].get("samples")
    values = {
        "outcomes": said,
        "scores": accuracy.get("scores", {}),
        "metrics": metrics,
        "power": power,
        "fingerprint": subject,
        "failures": _failures(verdicts),
    }
    row = (
        name,
        f"{subject.get('engine.engine', '?')}, {subject.get('engine.device', 'unknown device')}",
        f"{said.get('accuracy', 'none')} ({scores})",
        said.get("performance", "none"),
        show(rate),
        show(metrics.get("tokens_per_second")) if "tokens_per_second" in metrics else "",
        show(joules),
        show(power.get("uncertainty_j")),
        show(power.get("mean_w")),
        show(power.get("window_s")),
        show(samples / joules if samples and joules else None),
        f"{seconds:.1f}",
    )
    return row, values
