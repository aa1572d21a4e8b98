"""Test `pytest-mlperf calibrate`.

It repeats unchanged code, learns its noise, and writes on request.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.bench.policy import calibrated_rule, rule_for
from pytest_mlperf.cli.calibrate import Page
from pytest_mlperf.core.noise import learn, uncalibrated
from pytest_mlperf.core.noise.calibration import (
    Calibrated,
    CalibratedCase,
    CalibrationRun,
    settings_of,
)
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.run.conditions import ControlRun
from pytest_mlperf.stores import calibration
from tests.cli.lab import ROOT
from tests.cli.text import Say, differing, one_line

HEAD = """\
schema = 1
round = "v4.1"

[workload]
name = "first"
dataset = { use = "synthetic", samples = 32 }
"""

SCENARIOS = """
[[scenarios]]
name = "Offline"
target_qps = 2000
min_duration = "300ms"

[[scenarios]]
name = "SingleStream"
min_duration = "100ms"
"""


def engine(name: str, accelerators: str = '["cpu"]', **options: object) -> str:
    option_text = ", ".join(f"{key} = {value}" for key, value in options.items())
    return (
        f'\n[[engines]]\nuse = "null"\nname = "{name}"\naccelerators = {accelerators}\n'
        f"options = {{ {option_text} }}\n"
    )


STEADY = engine("steady", '["cpu", "H200"]', latency_s=0.001, batch_size=4)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with one suite, without measurements of the machine's own speed."""
    monkeypatch.setattr("pytest_mlperf.run.conditions.control", lambda *_, **__: ControlRun())
    path = tmp_path / "project"
    (path / "suites").mkdir(parents=True)
    (path / "baselines").mkdir()
    monkeypatch.chdir(path)
    suite(HEAD, STEADY, SCENARIOS)
    return path


def suite(*parts: str) -> None:
    Path("suites/first.mlperf.toml").write_text("".join(parts), "utf-8")


def stored(root: Path = Path()) -> Calibrated:
    calibrated = calibration.load(root / "baselines/calibration/cpu.json", "cpu")
    assert calibrated is not None
    (machine,) = calibrated.machines
    return machine


@pytest.mark.process
def test_two_sessions_are_made_in_turns_learnt_from_and_stored(project: Path, say: Say) -> None:
    """The whole way: dry run, second session written, the judge's rule."""
    output = say.ends(0, "calibrate", "--runs", 2)
    assert list(Path("baselines").iterdir()) == []
    assert "left out: 2 cases on H200, which is not on this machine\n" in output
    assert re.search(r"\n4 of 4  first-SingleStream-steady-fp32-cpu  \d+\.\d s, start-up", output)
    assert re.search(
        r"estimated from 2 cases, 4 runs on 1 day; these runs determine \d+ % of s0", output
    )
    assert "note: all runs are from one day; calibrate again on another day" in one_line(output)
    assert output.endswith(
        "would write baselines/calibration/cpu.json\n"
        "dry run; to write: pytest-mlperf calibrate --runs 0 --write\n"
    )
    assert max(map(len, output.splitlines())) <= 80
    assert Path(".mlperf/.gitignore").read_text("utf-8") == "*\n"

    for file in Path(".mlperf/calibration").rglob("*.json"):  # as if made on another day
        text = file.read_text("utf-8")
        file.write_text(re.sub(r'"20\d\d-\d\d-\d\dT', '"2026-11-20T', text), "utf-8")
    output = say.ends(0, "calibrate", "suites", "--runs", 2, "--write")
    assert "wrote baselines/calibration/cpu.json\n" in output
    machine = stored()
    offline, stream = machine.cases
    assert [run.number for run in offline.runs] == [1, 2, 1, 2]
    assert len({run.session for run in offline.runs}) == 2
    assert set(offline.runs[0].metrics) == {"throughput"}
    assert offline.runs[0].within_se.keys() == {"throughput"}
    assert 0 < offline.runs[0].start_s < 60
    turns = sorted((run.started, run.session, run.number) for run in (*offline.runs, *stream.runs))
    assert [number for _, _, number in turns] == [1, 1, 2, 2] * 2
    rule, note = calibrated_rule(Path("baselines"), "cpu", detect(gpus=False).identity("cpu"), 5)
    assert machine.settings is not None
    assert rule == machine.settings.rule(5) != rule_for("cpu")
    assert note is not None
    assert note.endswith(": 2 cases, 8 runs on 2 days")


@pytest.mark.process
def test_another_engine_starts_the_case_anew_and_says_so(project: Path, say: Say) -> None:
    assert say("calibrate", "--runs", 2, "--case", "offline", "--write")[0] == 0
    suite(HEAD, engine("steady", latency_s=0.002, batch_size=4), SCENARIOS)
    output = say.ends(0, "calibrate", "--runs", 2, "--case", "Offline", "--write")
    assert "first-Offline-steady-fp32-cpu: 2 older runs left out: engine, options" in output
    (case,) = stored().cases
    assert len(case.runs) == 2
    content = Path("baselines/calibration/cpu.json").read_text("utf-8")
    shutil.rmtree(".mlperf")
    output = say.ends(0, "calibrate", "--runs", 0, "--write")
    assert json.loads(Path("baselines/calibration/cpu.json").read_text("utf-8")) == json.loads(
        content
    ), "what is stored is enough to learn the same"


@pytest.mark.process
def test_a_case_that_breaks_is_told_and_the_others_go_on(project: Path, say: Say) -> None:
    Path("broken.py").write_text(
        "from pytest_mlperf.builtin.null import NullEngine\n\n\n"
        "class Broken(NullEngine):\n"
        "    def __enter__(self):\n"
        "        raise OSError('no such chip')\n",
        "utf-8",
    )
    bad = '\n[[engines]]\nuse = "broken:Broken"\nname = "bad"\naccelerators = ["cpu"]\n'
    suite(HEAD, bad, STEADY, SCENARIOS)
    sys.path.insert(0, str(project))
    try:
        code, output = say("calibrate", "--runs", 2, "--case", "Offline", "--write")
    finally:
        sys.path.remove(str(project))
    assert code == 1
    assert re.search(r"1 of 4  first-Offline-bad-fp32-cpu  failed: .*no such chip", output)
    assert output.count("fp32-cpu  failed: ") == 1
    assert [case.case for case in stored().cases] == ["first-Offline-steady-fp32-cpu"]


@pytest.mark.quiet
@pytest.mark.process
def test_an_interrupted_session_keeps_its_runs_and_goes_on(project: Path, say: Say) -> None:
    """Ctrl-C after the first run; the printed command makes only those that lack."""
    command = [
        sys.executable,
        "-c",
        "import sys; from pytest_mlperf.cli import main; sys.exit(main())",
    ]
    lines = []
    with subprocess.Popen(
        [*command, "calibrate", "--runs", "2", "--case", "Offline", "--write"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if line.startswith("1 of 2"):
                child.send_signal(signal.SIGINT)
    output = "".join(lines)
    assert child.returncode == 130, output
    assert list(Path("baselines").iterdir()) == []
    again = re.search(
        r"interrupted; the finished runs are kept; continue: pytest-mlperf (.*--session \S+)\n",
        output,
    )
    assert again is not None
    output = say.ends(0, *shlex.split(again[1]), "--write")
    assert "1 run done already" in output
    assert "\n1 of 2" not in output
    (case,) = stored().cases
    assert [run.number for run in case.runs] == [1, 2]
    assert len({run.session for run in case.runs}) == 1


@pytest.mark.process
def test_what_cannot_be_calibrated_is_told_before_any_run(project: Path, say: Say) -> None:
    """No runs to learn from, wrong usage, a damaged file, wrong options, and no accelerator."""
    nothing = "cpu: no estimate: noise needs at least two runs of one case in one session"
    case = "no case matches 'Server'; the suites have: first-Offline-"
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("calibrate", "--runs", 0), 1, (nothing,)),
        (("calibrate", "--case", "Server"), 2, (case,)),
        (("calibrate", "elsewhere"), 2, ("elsewhere does not exist",)),
    ]
    assert differing(say, rows) == []
    for words in ("--runs 1", "--runs -2", "--session ../x"):
        with pytest.raises(SystemExit, match="2"):
            say("calibrate", *words.split())
    file = Path("baselines/calibration/cpu.json")
    file.parent.mkdir()
    file.write_text("{", "utf-8")
    anew = ("calibrate again: pytest-mlperf calibrate",)
    assert differing(say, [(("calibrate", "--runs", 2), 2, anew)]) == []
    file.unlink()
    suite(HEAD, engine("steady", speed=11), SCENARIOS)
    assert differing(say, [(("calibrate",), 2, ("speed",))]) == []
    suite(HEAD, engine("steady", '["H200"]', latency_s=0.001), SCENARIOS)
    texts = (
        "2 cases on H200, which is not on this machine",
        "no case can run on this machine (cpu",
    )
    assert differing(say, [(("calibrate",), 3, texts)]) == []
    assert not list(Path().glob(".mlperf/runs/*/*"))


def test_a_metric_that_some_runs_lack_is_left_out_aloud() -> None:
    """As a p99 of which one run had too few queries; one session shows no interval."""
    runs = tuple(
        CalibrationRun(
            number=number,
            session="now",
            started="2026-11-21T10:00:00+00:00",
            metrics={"latency_p50": 0.01 * factor} | ({"latency_p99": 0.03} if number < 4 else {}),
            within_se={},
            duration_s=60.0,
            start_s=5.0,
        )
        for number, factor in enumerate((1.0, 1.01, 0.99, 1.0), start=1)
    )
    case = CalibratedCase(
        case="a-Server-e-fp16-H200",
        profile="quick",
        digest="0",
        target_qps=10.0,
        limits={"latency_p50": 0.05, "latency_p99": 0.10},
        runs=runs,
    )
    calibration_found = Calibrated(identity={"gpu": "H200"}, settings=None, cases=(case,))
    learnt = learn(calibration_found.series, uncalibrated("H200"))
    page = Page(
        accelerator="H200",
        machine=calibration_found,
        learnt=learnt,
        settings=settings_of(learnt, date="2026-11-21", max_runs=5),
        default=uncalibrated("H200"),
        baselines={},
        width=80,
    )

    text = " ".join("\n".join(page.lines()).split())

    assert "note: a-Server-e-fp16-H200: p99 latency left out, because some runs did" in text
    assert "phi is the default, so s0 has no confidence interval" in text
    assert "(90 %" not in text
