"""Test a session of one engine in several precisions: its reports show cost and gain of each."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forked
from tests.cli.lab import LIGHT, ROOT
from tests.cli.text import widest

pytestmark = pytest.mark.process

ENGINE = '''\
"""An engine whose int8 is twice as fast and wrong in every tenth sample; it has no int4."""

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.builtin.null import NullEngine


class Rounding(NullEngine):
    def __init__(self, dataset, model=None, precision=""):
        if precision == "int4":
            raise RunError("engine", "no int4 here")
        self.wrong = precision == "int8"
        super().__init__(dataset, latency_s=0.002 if self.wrong else 0.004, batch_size=16)

    def submit(self, ids, indices, sink):
        super().submit(ids, [i + (self.wrong and i % 10 == 0) for i in indices], sink)
'''

SUITE = """\
schema = 1
round = "v4.1"

[workload]
name = "numbers"
dataset = { use = "synthetic", samples = 160 }
scorer = { use = "top1" }
reference = { top1 = 100.0 }
target = "80%"

[[engines]]
use = "rounding:Rounding"
name = "lab"
precision = "fp32"
accelerators = ["cpu"]

[[engines]]
use = "rounding:Rounding"
name = "lab"
precision = "int8"
accelerators = ["cpu"]

[[engines]]
use = "rounding:Rounding"
name = "lab"
precision = "int4"
accelerators = ["cpu"]

[[scenarios]]
name = "Offline"
target_qps = 250
min_duration = "100ms"

[limits]
accuracy = { margin = "20 points", reference = "lab-fp32" }
"""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A session that is over: what pytest printed, and where its reports lie."""

    printed: str
    folder: Path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Accept fp32's scores, then measure everything."""
    project_folder, leases = tmp_path_factory.mktemp("numbers"), tmp_path_factory.mktemp("leases")
    (project_folder / "numbers.mlperf.toml").write_text(SUITE, "utf-8")
    (project_folder / "rounding.py").write_text(ENGINE, "utf-8")
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(leases), "PYTHONPATH": str(ROOT)}
    environment["COLUMNS"] = "95"
    environment.pop("PYTEST_XDIST_WORKER", None)
    output = ""
    for options in (
        ("-k", "accuracy and fp32", "--mlperf-update=missing", "--mlperf-reason=first"),
        ("--mlperf-report=markdown=new/s.md", "--mlperf-report=html=new/p.html"),
    ):
        command = [
            *(sys.executable, "-m", "pytest", *LIGHT, "numbers.mlperf.toml"),
            *("-omlperf_control=off", "--mlperf-baselines=baselines", *options),
        ]
        with pytest.MonkeyPatch.context() as monkeypatch:
            forked.use(monkeypatch)
            finished = subprocess.run(
                command,
                cwd=project_folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        output = finished.stdout
    assert (project_folder / "new" / "p.html").is_file(), output
    return Done(printed=output, folder=project_folder / "new")


def test_terminal_and_reports_show_a_table(done: Done) -> None:
    """The paired interval is there, the ratio is about 2, and what broke shows its word."""
    lines = done.printed.splitlines()
    first = lines.index("Precisions against fp32: numbers Offline on cpu")
    assert lines[first + 1].split() == [
        *("engine", "precision", "metric", "score", "points"),
        *("interval", "accuracy", "samples/s", "speed"),
    ]
    fp32, int8, int4 = (line.split()[1:] for line in lines[first + 2 : first + 5])
    assert fp32[:4] == ["fp32", "top1", "100.000", "ok"]
    assert fp32[-1] == "1.00x"
    assert int8[:4] == ["int8", "top1", "90.000", "−10.00"]
    low, to, high, word = int8[4:8]
    assert (to, word) == ("to", "ok")
    assert float(low.replace("−", "-")) < -10 < float(high.replace("−", "-"))
    assert float(int8[-1].removesuffix("x")) == pytest.approx(2.0, rel=0.3)
    assert int4 == ["int4", "ERROR", "ERROR"]
    note = "numbers-Offline-lab-int4-cpu: ERROR engine: no int4 here"
    assert note in " ".join(done.printed.split())
    assert widest("\n".join(lines[first : first + 12])) <= 95

    markdown = (done.folder / "s.md").read_text("utf-8")
    page = (done.folder / "p.html").read_text("utf-8")

    for report in (markdown, page):
        assert "numbers Offline on cpu" in report
        assert "90.000" in report
    assert "Speed and accuracy of each precision" in page
    assert "Not drawn: int4: ERROR" in page
