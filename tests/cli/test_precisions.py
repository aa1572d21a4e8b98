"""`pytest-mlperf precisions`: from real sessions to a table and a plot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.core.results import LABEL
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.lab import LIGHT, ROOT
from tests.cli.text import widest
from tests.reports import verdicts
from tests.reports.test_precisions import RESULTS, TABLE, case, measured
from tests.reports.verdicts import result, session

Say = Callable[..., tuple[int, str]]

ENGINE = '''\
"""An engine whose int8 is twice as fast and wrong in every tenth sample; it has no int4."""

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.null import NullEngine


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


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a real session: fp32's scores are accepted, then everything is measured."""
    place, leases = tmp_path_factory.mktemp("numbers"), tmp_path_factory.mktemp("leases")
    (place / "numbers.mlperf.toml").write_text(SUITE, "utf-8")
    (place / "rounding.py").write_text(ENGINE, "utf-8")
    environment = {**os.environ, "PYTEST_MLPERF_LEASES": str(leases), "PYTHONPATH": str(ROOT)}
    for name in ("CI", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    for options in (
        ("-k", "accuracy and fp32", "--mlperf-update=missing", "--mlperf-reason=first"),
        ("--mlperf-json=r.json",),
    ):
        command = [sys.executable, "-m", "pytest", *LIGHT, "numbers.mlperf.toml", *options]
        command += ["--mlperf-baselines=baselines"]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
    assert (place / "r.json").is_file(), done.stdout + done.stderr
    return place / "r.json"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_results(Path("r.json"), RESULTS)


def test_a_real_session_becomes_a_table(real: Path, say: Say) -> None:
    """The paired interval is there, the ratio is about 2, and what broke shows its word."""
    code, shown = say("precisions", real)

    assert code == 0, "a report of failures is a report: pytest has failed already"
    lines = shown.splitlines()
    assert lines[0] == "numbers Offline on cpu, against fp32"
    assert lines[1].split() == [
        *("entry", "metric", "score", "points"),
        *("interval", "accuracy", "samples/s", "speed"),
    ]
    fp32, int8, int4 = (line.split() for line in lines[2:5])
    assert fp32[:4] == ["fp32", "top1", "100.000", "ok"]
    assert fp32[-1] == "1.00x"
    assert int8[:4] == ["int8", "top1", "90.000", "−10.00"]
    low, to, high, word = int8[4:8]
    assert (to, word) == ("to", "ok")
    assert float(low.replace("−", "-")) < -10 < float(high.replace("−", "-"))
    assert float(int8[-1].removesuffix("x")) == pytest.approx(2.0, rel=0.3)
    assert int4 == ["int4", "ERROR", "ERROR"]
    assert "numbers-Offline-lab-int4-cpu: ERROR engine: no int4 here" in " ".join(shown.split())
    assert shown.endswith(f"{LABEL}\n")
    assert widest(shown) <= 80


def test_a_real_session_becomes_a_plot(real: Path, say: Say) -> None:
    pytest.importorskip("matplotlib")

    code, shown = say("precisions", real, "--plot", "new/p.svg")

    assert code == 0
    assert "wrote new/p.svg\n" in shown
    drawn = Path("new/p.svg").read_text("utf-8")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert {"numbers", "fp32", "int8", "below the gate (80 %)", LABEL} <= set(words)
    assert any(word.startswith("not shown: int4: ERROR") for word in words)
    (origin,) = {word for word in words if " UTC, " in word}
    assert origin.startswith(read_results(real).started[:10])


def test_the_table_fills_120_columns_in_a_file(say: Say) -> None:
    assert say("precisions", "r.json", "-o", "new/t.txt") == (0, "wrote new/t.txt\n")

    head = Path("new/t.txt").read_text("utf-8").splitlines()[1]
    assert "needed" in head
    assert "spread" in head


def test_the_table_is_as_wide_as_the_terminal(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    assert say("precisions", "r.json") == (0, f"{TABLE}\n")


def test_json_goes_to_standard_output_alone(capsys: pytest.CaptureFixture[str], say: Say) -> None:
    pytest.importorskip("matplotlib")

    _, shown = say("precisions", "r.json", "--format", "json", "--plot", "p.png")

    content, wrote = shown.rsplit("\n", 2)[:2]
    assert wrote == "wrote p.png"
    assert json.loads(content)["kind"] == "pytest-mlperf precisions"
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_a_session_that_is_named_twice_is_read_once(say: Say) -> None:
    once = say("precisions", "r.json")
    Path("copy.json").write_bytes(Path("r.json").read_bytes())

    assert say("precisions", "r.json", "copy.json") == once


def test_two_sessions_are_two_parts(say: Say) -> None:
    write_results(Path("later.json"), replace(RESULTS, run="later"))

    _, shown = say("precisions", "r.json", "later.json")

    assert shown.count("resnet50 Offline on H200, against fp32") == 2


def test_another_reference_is_named_in_the_heading(say: Say) -> None:
    for name in ("int8", "ort-int8"):
        _, shown = say("precisions", "r.json", "--reference", name)

        assert shown.startswith("resnet50 Offline on H200, against int8\n")
        assert "0.55x" in shown


def test_what_is_wrong_is_said_in_a_line(say: Say) -> None:
    write_results(Path("pairs.json"), session(result(verdicts.PAIR_FAIL)))
    write_results(Path("one.json"), session(measured(case("fp32"), 1.0)))

    for arguments, message in (
        (["gone.json"], "gone.json: cannot be read: No such file or directory"),
        (["pairs.json"], "pairs.json: no accuracy and no performance test in it"),
        (
            ["r.json", "--reference", "fp64"],
            "--reference fp64: nothing is called so; there are fp32, ort, ort-fp32, bf16, "
            "ort-bf16, int8, ort-int8, int4, ort-int4",
        ),
        (["r.json", "--plot", "p.pdf"], "--plot p.pdf: the file must end in .svg or .png"),
        (
            ["one.json", "--plot", "p.svg"],
            "nothing to plot: no workload has score and speed in two precisions; run both tests "
            "of each (pytest SUITE --mlperf-json FILE)",
        ),
        (["r.json", "-o", "r.json/t"], "r.json/t cannot be written: File exists"),
    ):
        assert say("precisions", *arguments) == (2, f"pytest-mlperf: {message}\n")


def test_without_matplotlib_a_plot_says_how_to_get_it(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    code, shown = say("precisions", "r.json", "--plot", "p.svg")

    assert code == 3
    assert shown.startswith("pytest-mlperf: --plot needs matplotlib (")
    assert shown.endswith("): pip install 'pytest-mlperf[plots]'\n")
    assert say("precisions", "r.json")[0] == 0, "the table needs no matplotlib"


def test_foreign_text_is_escaped(say: Say) -> None:
    forged = replace(verdicts.ERROR, headline="engine: \x1b[2Jall ok")
    write_results(Path("forged.json"), session(result(forged)))

    for form in ("text", "markdown", "json"):
        _, shown = say("precisions", "forged.json", "--format", form)
        assert "\x1b" not in shown
