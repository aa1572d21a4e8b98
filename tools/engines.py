"""`make engines`: one tiny Llama through every engine that is here, beside each other.

Offline and Server, accuracy and speed, through the same suite, LoadGen and judge. The engines are
transformers in this process (`torch`), `transformers serve` behind the OpenAI API (`openai`),
TensorRT-LLM's API on a stand-in that ships with the tests (`tensorrt_llm`: its speed says nothing
of TensorRT-LLM), and vLLM where PYTEST_MLPERF_VLLM_PYTHON names a Python that has it.

Answers are greedy, so all engines should give the same tokens; where they do not, a rounding chose
another one. What the harness itself costs is timed: everything that happens when an engine reports.

Everything is written under build/engines, which git ignores.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timed_engine import FOLDER as TIMED

from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.registry import target
from pytest_mlperf.reports.terminal.layout import table
from pytest_mlperf.run.answers import AccuracyLog
from pytest_mlperf.stores.results import read_results

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "engines"
TINY = ROOT / "suites" / "tiny" / "llama2-70b"
DATA = TINY / "data/open_orca/open_orca_tiny.pkl.gz"
VLLM = "PYTEST_MLPERF_VLLM_PYTHON"

SAMPLES = 64
QPS = 8

COLUMNS = (
    "engine",
    "tokens/s",
    *("TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"),
    "ROUGE-1",
    "same answers",
    "harness/request",
)

SUITE = f"""\
schema = 1
round = "v4.1"

[workload]
name = "engines"
twin_of = "llama2-70b-99"
model = "{TINY / "model"}"
dataset = {{ use = "openorca", path = "{DATA}", count = {SAMPLES} }}
reference = {{ rouge1 = 77.6931, rouge2 = 61.9696, rougeL = 71.7761, tokens_per_sample = 38.6 }}
target = "90%"

{{engines}}
[[scenarios]]
name = "Offline"
min_duration = "4s"

[[scenarios]]
name = "Server"
target_qps = {QPS}
min_duration = "4s"
"""

ENTRY = """\
[[engines]]
use = "timed_engine:TimedEngine"
name = "{name}"
{python}options = {{ label = "{name}", engine = "{target}", options = {options} }}

"""

SERVE = [
    "{transformers}",
    "serve",
    "{{model}}",
    "--device",
    "cpu",
    "--host",
    "{{host}}",
    "--port",
    "{{port}}",
    "--continuous-batching",
    "--cb-num-blocks",
    "64",
    "--cb-max-batch-tokens",
    "512",
]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One engine.

    Attributes:
        name: Its registered name.
        options: As TOML.
        python: What runs it; None: this one.
        note: What is to be known about it.
    """

    name: str
    options: str
    python: str | None = None
    note: str = ""

    @property
    def text(self) -> str:
        """The entry as the suite has it."""
        python = f'python = "{self.python}"\n' if self.python else ""
        # Another Python knows no registered names: nothing of ours is installed there.
        where = target("engines", self.name)
        return ENTRY.format(name=self.name, target=where, options=self.options, python=python)


def entries() -> Iterator[Entry]:
    """Return what is here."""
    yield Entry(name="torch", options="{ batch_size = 32, max_new_tokens = 128, threads = 1 }")
    script = Path(sys.executable).with_name("transformers")
    if importlib.util.find_spec("uvicorn") and script.exists():
        words = ", ".join(f'"{word}"' for word in SERVE).format(transformers=script)
        hub = BUILD / "hub"
        environment = f'{{ HF_HUB_OFFLINE = "1", HF_HOME = "{hub}" }}'
        yield Entry(
            name="openai",
            options=f"{{ serve = [{words}], max_new_tokens = 128, env = {environment} }}",
            note="transformers serve, continuous batching",
        )
    else:
        print("openai is left out: pip install 'transformers[serving]'")
    yield Entry(
        name="tensorrt_llm",
        options="{ max_new_tokens = 128 }",
        note="a stand-in with TensorRT-LLM's API",
    )
    python = os.environ.get(VLLM)
    if python:
        # Its own choice is nine tenths of the memory: on a CPU, of the machine's.
        options = "{ max_new_tokens = 128, max_model_len = 512, gpu_memory_utilization = 0.2 }"
        yield Entry(name="vllm", options=options, python=python)
    else:
        print(f"vllm is left out: set {VLLM} to a Python that has it")


def main() -> int:
    """Run the suite and print the table; return 1 where an engine failed."""
    shutil.rmtree(BUILD, ignore_errors=True)
    for folder in ("hub/hub", "timed", "standins", "leases"):
        (BUILD / folder).mkdir(parents=True)
    # Only this one: a vLLM that is installed is not to be hidden by its stand-in.
    (BUILD / "standins/tensorrt_llm").symlink_to(ROOT / "tests/standins/tensorrt_llm")
    found = list(entries())
    suite = BUILD / "engines.mlperf.toml"
    suite.write_text(SUITE.replace("{engines}", "".join(e.text for e in found)), "utf-8")
    begun = time.monotonic()
    results = run(suite)
    for line in report(results, found):
        print(line)
    print(f"\n{time.monotonic() - begun:.0f} s on {os.cpu_count()} cores")
    judged = {result.verdict.case.engine for result in results.cases}
    broken = [result for result in results.cases if result.failed]
    return int(bool(broken) or judged != {entry.name for entry in found})


def run(suite: Path) -> Results:
    """Run pytest on the suite."""
    path = [str(ROOT / "tools"), str(BUILD / "standins"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        TIMED: str(BUILD / "timed"),
    }
    json_file = BUILD / "results.json"
    command = [sys.executable, "-m", "pytest", str(suite), "-p", "no:cacheprovider", "-q"]
    command += [f"--mlperf-runs-dir={BUILD}", f"--mlperf-baselines={BUILD / 'baselines'}"]
    command += [f"--mlperf-json={json_file}", "-omlperf_control=off"]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return read_results(json_file)


def report(results: Results, found: Sequence[Entry]) -> list[str]:
    """Return the table."""
    by_case: dict[tuple[str, str, str], CaseResult] = {
        (r.verdict.case.engine, r.verdict.case.scenario, r.verdict.kind): r for r in results.cases
    }
    answers = {entry.name: outputs(entry.name) for entry in found}
    rows = [
        [
            entry.name,
            *speeds(by_case, entry.name),
            *scores(by_case, entry.name),
            same(answers[entry.name], answers["torch"]),
            harness(entry.name),
        ]
        for entry in found
    ]
    notes = [f"{entry.name}: {entry.note}" for entry in found if entry.note]
    about = f"Offline: tokens/s, scores. Server at {QPS} requests/s: TTFT, TPOT (ms)."
    shown = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return ["", *table(shown, 120, left=["engine"]), "", about, *notes]


def speeds(found: Mapping[tuple[str, str, str], CaseResult], engine: str) -> list[str]:
    """Return tokens/s in Offline, and the four latencies in Server, ms."""
    offline = measured(found.get((engine, "Offline", "performance")))
    server = measured(found.get((engine, "Server", "performance")))
    rate = offline.get("tokens_per_second")
    times = [server.get(name) for name in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")]
    shown = ["" if rate is None else f"{rate:,.0f}"]
    return shown + ["" if value is None else f"{1e3 * value:.1f}" for value in times]


def measured(result: CaseResult | None) -> Mapping[str, float]:
    """Return the metrics of a result's last run."""
    return result.verdict.runs[-1].metrics if result and result.verdict.runs else {}


def scores(found: Mapping[tuple[str, str, str], CaseResult], engine: str) -> list[str]:
    """Return ROUGE-1 of the accuracy pass."""
    result = found.get((engine, "Offline", "accuracy"))
    accuracy = result.verdict.accuracy if result else None
    return [f"{accuracy.scores['rouge1']:.2f}" if accuracy else ""]


def outputs(engine: str) -> dict[int, tuple[int, ...]]:
    """Return the tokens of each sample of an engine's accuracy pass."""
    found: dict[int, tuple[int, ...]] = {}
    for path in sorted(BUILD.glob(f"runs/*/engines-Offline-{engine}-fp32-cpu.*/score.json")):
        for block in json.loads(path.read_text("utf-8"))["blocks"]:
            for index, output in AccuracyLog(Path(block["log"])).items():
                found[block["indices"][index]] = struct.unpack(f"<{len(output) // 8}q", output)
    return found


def same(answers: Mapping[int, object], reference: Mapping[int, object]) -> str:
    """Return how many answers are those of the reference."""
    common = answers.keys() & reference.keys()
    return f"{sum(answers[i] == reference[i] for i in common)} of {len(common)}"


def harness(engine: str) -> str:
    """Return what all reports of a request to LoadGen cost, the median over processes, µs."""
    costs = []
    for path in (BUILD / "timed").glob(f"{engine}.*.json"):
        sums = json.loads(path.read_text("utf-8"))
        if sums["samples"]:
            costs.append(1e6 * sums["seconds"] / sums["samples"])
    return f"{statistics.median(costs):.1f} µs" if costs else ""


if __name__ == "__main__":
    sys.exit(main())
