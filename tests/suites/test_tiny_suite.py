"""The suite that ships: it runs here, reaches its own gate, and keeps the pytest process small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "suites" / "tiny" / "resnet50.mlperf.toml"
TRAINING = ROOT / "suites" / "tiny" / "resnet50" / "training.json"

MEASURE = """
import sys, pathlib, pytest
code = pytest.main(sys.argv[1:])
status = pathlib.Path("/proc/self/status").read_text()
peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
names = ("torch", "onnxruntime", "transformers", "mlperf_loadgen", "pynvml")
heavy = [name for name in names if name in sys.modules]
print(f"CODE {int(code)} PEAK_KB {peak} HEAVY {heavy}")
"""


@pytest.mark.quiet
def test_the_tiny_suite_runs_accurately_in_a_small_process(tmp_path: Path) -> None:
    """Peak memory of the pytest process stays under 150 MB, and it loads no heavy library.

    The committed scores of the suite hold on this machine too.
    """
    text = SUITE.read_text("utf-8").replace('"3s"', '"300ms"')
    (tmp_path / "short.mlperf.toml").write_text(text, "utf-8")
    (tmp_path / "resnet50").symlink_to(SUITE.parent / "resnet50")
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "accuracy").symlink_to(ROOT / "baselines" / "accuracy")
    results = tmp_path / "results.json"
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(tmp_path)}

    done = subprocess.run(
        [
            *(sys.executable, "-c", MEASURE, "short.mlperf.toml", f"--mlperf-json={results}"),
            *("-p", "no:cacheprovider", "-p", "no:xdist"),
            "-omlperf_control=off",  # other tests compute beside it
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "CODE 0" in done.stdout, done.stdout + done.stderr
    assert "HEAVY []" in done.stdout
    assert int(done.stdout.split("PEAK_KB ")[1].split()[0]) < 150 * 1024
    cases = json.loads(results.read_text("utf-8"))["cases"]
    scores = {c["verdict"]["accuracy"]["scores"]["top1"] for c in cases}
    assert scores == {json.loads(TRAINING.read_text("utf-8"))["top1_onnxruntime_percent"]}
    assert {c["verdict"]["outcome"] for c in cases} == {"ok", "NO BASELINE"}
    accuracy = [c["verdict"] for c in cases if c["verdict"]["kind"] == "accuracy"]
    assert [len(verdict["paired"]) for verdict in accuracy] == [1, 1, 1, 1]
