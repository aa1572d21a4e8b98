"""The composite action, its steps run by bash: on a real suite, and on inputs that are commands."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores.results import read_results
from tests.children import shebang
from tests.workflows import composite
from tests.workflows.conftest import CASE, REASON, Measured, inputs_of
from tests.workflows.github import RECORDER, ROOT, Runner, action, words

pytestmark = pytest.mark.process

SCRIPTS = [
    "Prepare",
    "Install into an environment of this job's own",
    "What this machine can run",
    "Measure and judge",
    "Say what was found",
    "Verdict",
]


@pytest.mark.nightly
def test_baselines_are_recorded_with_the_reason_as_it_was_given(measured: Measured) -> None:
    """A whole job: environment, doctor, pytest, summary, artifact; the reason stays a text."""
    assert list(measured.outcome.steps) == SCRIPTS
    assert measured.outcome.outputs == {
        "exit-code": "0",
        "results": str(measured.runner.temp / "mlperf" / "results.json"),
        "junit": str(measured.runner.temp / "mlperf" / "junit.xml"),
        "artifact": "mlperf-cpu-first",
    }
    results = read_results(Path(measured.outcome.outputs["results"]))
    assert {one.verdict.outcome for one in results.cases} == {Outcome.RECORDED}
    file = measured.project / "baselines/cpu/quick/first/Offline.null.fp32.json"
    assert REASON in file.read_text("utf-8").encode().decode("unicode_escape")
    assert list(measured.runner.folder.rglob("pwned")) == []
    assert "## mlperf: no drop proven in 2 tests" in measured.runner.summary()
    assert "::error" not in measured.outcome.steps["Say what was found"].stdout

    (upload,) = measured.outcome.uploads
    base = measured.runner.temp / "mlperf"
    paths = [Path(line) for line in upload["path"].splitlines()]
    assert upload["name"] == "mlperf-cpu-first"
    assert paths[:2] == [base / "results.json", base / "junit.xml"]
    for pattern in (path for path in paths if path.name != "power.jsonl"):  # no GPU, no power
        assert list(base.glob(str(pattern.relative_to(base)))), pattern


@pytest.mark.nightly
def test_a_drop_fails_after_everything_is_printed_and_kept(measured: Measured, job: Runner) -> None:
    """The exit code is the last step's; another machine is refused before a run."""
    addopts = f"{job.env['PYTEST_ADDOPTS']} --mlperf-handicap=80%"
    inputs = inputs_of(job, measured.wheel) | {"python": "linking-python"}

    outcome = composite.run(job, inputs, PYTEST_ADDOPTS=addopts)

    assert outcome.failed == ["Verdict"], outcome.log()
    assert outcome.steps["Verdict"].returncode == 1
    assert outcome.outputs["exit-code"] == "1"
    assert "## mlperf: failed: 1 PERF DROP" in job.summary()
    output = outcome.steps["Say what was found"].stdout
    assert f"::error file=suites/first.mlperf.toml,line=10,title={CASE}::PERF DROP" in output
    assert len(outcome.uploads) == 1

    suite = job.workspace / "change" / "suites" / "first.mlperf.toml"
    suite.write_text(suite.read_text("utf-8").replace('["cpu"]', '["H200"]'), "utf-8")
    (job.folder / "summary").unlink()
    outcome = composite.run(job, inputs | {"accelerator": "H200"})
    assert outcome.failed == ["What this machine can run"]
    assert outcome.outputs["exit-code"] == ""
    assert job.summary() == "**mlperf: no result**: see the log of this job.\n"
    assert len(outcome.uploads) == 1


PYTHON = (
    RECORDER
    + """
import pathlib, shutil
codes = {{"--accelerator=absent": 3, "--mlperf-accelerator=slower": 1}}
code = max(codes.get(word, 0) for word in sys.argv)
if sys.argv[1:3] == ["-m", "venv"]:
    folder = pathlib.Path(sys.argv[3], "bin")
    folder.mkdir(parents=True)
    for name in ("python", "pytest-mlperf"):
        shutil.copy(sys.argv[0], folder / name)
sys.exit(code)
"""
)
"""A Python that writes down its words; an environment of it holds the same.

Its doctor refuses the accelerator "absent", and its pytest fails on "slower".
"""


@pytest.fixture
def acting(tmp_path: Path) -> Callable[..., tuple[composite.Outcome, list[list[str]]]]:
    """Run the action with a Python that only writes down its words."""
    runner = Runner(tmp_path)
    record = tmp_path / "words"
    runner.put("own-python", PYTHON.format(shebang=shebang(), record=str(record)))

    def run(
        at: Path = composite.FOLDER, base: str = "", **inputs: str
    ) -> tuple[composite.Outcome, list[list[str]]]:
        record.unlink(missing_ok=True)
        shutil.rmtree(runner.temp / "mlperf-venv", ignore_errors=True)
        usual = {"suite": "suites/a.mlperf.toml", "accelerator": "H200", "python": "own-python"}
        named = {name.replace("_", "-"): value for name, value in inputs.items()}
        environment = {"GITHUB_ACTION_PATH": str(at), "GITHUB_BASE_REF": base}
        outcome = composite.run(runner, usual | named, **environment)
        return outcome, words(record)

    return run


def test_every_input_reaches_its_place(acting: Any) -> None:
    """Requirements without an extra are installed in the same step, so that pip resolves both.

    No word is an option.
    """
    outcome, commands = acting(
        profile="official",
        select="Offline and not fp16",
        package="pytest-mlperf==0.1.0",
        extras="lm,quantization",
        constraints="c.txt",
        manifest="plan.json",
        suspects="last",
        update="append",
        reason="second session",
    )

    assert outcome.failed == [], outcome.log()
    base = next(word for word in commands[1] if word.endswith("mlperf-venv")).removesuffix("-venv")
    assert commands == [
        ["own-python", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
        ["own-python", "-m", "venv", f"{base}-venv"],
        [
            *("python", "-m", "pip", "install", "--disable-pip-version-check"),
            *("--constraint", "c.txt", "--", "pytest-mlperf==0.1.0[lm,quantization]"),
        ],
        ["pytest-mlperf", "doctor", "--accelerator=H200", "--", "suites/a.mlperf.toml"],
        [
            *("python", "-m", "pytest", "--mlperf-accelerator=H200"),
            *(f"--mlperf-runs-dir={base}", f"--mlperf-json={base}/results.json"),
            *(f"--junitxml={base}/junit.xml", "--mlperf-profile=official"),
            *("-k", "Offline and not fp16", "--mlperf-manifest=plan.json"),
            *("--mlperf-suspects=last", "--mlperf-update=append", "--mlperf-accept-regression"),
            *("--mlperf-reason=second session", "--", "suites/a.mlperf.toml"),
        ],
    ]
    _, commands = acting()
    assert commands[2][3:] == ["install", "--disable-pip-version-check", "--", str(ROOT)]
    assert len(commands[4]) == 9
    more = ["onnxruntime-gpu", "pillow", "--pre"]
    _, commands = acting(package="p", requirements="onnxruntime-gpu  pillow --pre")
    assert commands[2][5:] == ["--", "p", *more]
    _, commands = acting(package=".", extras="lm", requirements="onnxruntime-gpu  pillow --pre")
    assert commands[2][5:] == ["--editable", ".[lm]", "--", *more]
    assert acting(package=".")[1][2][-2:] == ["--editable", "."]


def test_a_pull_request_is_compared_with_its_merge_base(acting: Any) -> None:
    """Unless another build, or the baselines in git, are named."""
    rows: list[tuple[dict[str, str], list[str]]] = [
        ({}, []),
        ({"against": "pip:vllm==0.32.0"}, ["--mlperf-against=pip:vllm==0.32.0"]),
        ({"base": "main"}, ["--mlperf-against=merge-base"]),
        ({"base": "main", "against": "v1"}, ["--mlperf-against=v1"]),
        ({"base": "main", "against": "stored"}, []),
        ({"base": "main", "update": "missing"}, []),
    ]
    for inputs, expected in rows:
        _, commands = acting(**inputs)
        words = [word for word in commands[4] if word.startswith("--mlperf-against")]
        assert words == expected, inputs


def test_the_package_comes_with_the_action(acting: Any, tmp_path: Path) -> None:
    """By default; a copy of the action alone asks for the package, whatever project it lies in."""
    _, commands = acting(extras="lm", requirements="pillow", constraints="c.txt")
    assert commands[2][5:] == ["--constraint", "c.txt", "--", f"{ROOT}[lm]", "pillow"]

    copied = tmp_path / "a project" / ".github" / "actions" / "run-suite"
    copied.mkdir(parents=True)
    for content in (None, '[project]\nname = "other"\ndependencies = ["pytest-mlperf"]\n'):
        if content is not None:
            (tmp_path / "a project" / "pyproject.toml").write_text(content, "utf-8")
        outcome, commands = acting(at=copied)
        assert outcome.failed == [SCRIPTS[1]]
        assert "::error::set the input package" in outcome.log()
        assert len(commands) == 2, "nothing is installed"
        assert acting(at=copied, package="p")[1][2][-1] == "p"


def test_a_job_fails_where_doctor_or_pytest_does_and_after_all_is_kept(acting: Any) -> None:
    outcome, commands = acting(accelerator="absent")
    assert outcome.failed == ["What this machine can run"]
    assert outcome.outputs["exit-code"] == ""
    assert not [words for words in commands if "pytest" in words]
    assert len(outcome.uploads) == 1

    outcome, commands = acting(accelerator="slower")
    assert outcome.failed == ["Verdict"]
    assert (outcome.outputs["exit-code"], outcome.steps["Verdict"].returncode) == ("1", 1)
    assert list(outcome.steps) == SCRIPTS
    assert len(outcome.uploads) == 1


HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned; #",
    "x\ntouch pwned\n",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "--mlperf-update=replace",
    "x\nexit-code=0\nartifact=other",
    "${IFS}$PATH*",
    "::add-mask::x",
]

PLACES = (
    *("suite", "accelerator", "profile", "select", "package", "extras", "constraints"),
    *("manifest", "suspects", "update", "reason", "artifact"),
)


def test_a_hostile_input_is_one_word_and_nothing_else(acting: Any) -> None:
    """In every place at once: it is passed on as it is, runs nothing, and sets no output."""
    for text in ["--mlperf-update=replace", *("\n".join(HOSTILE[n::2]) for n in (0, 1))]:
        outcome, commands = acting(**dict.fromkeys(PLACES, text))

        assert outcome.failed == [], outcome.log()
        assert commands[2][-4:] == ["--constraint", text, "--", f"{text}[{text}]"]
        assert commands[3] == ["pytest-mlperf", "doctor", f"--accelerator={text}", "--", text]
        options = ("profile", "manifest", "suspects", "update", "reason")
        assert {f"--mlperf-{name}={text}" for name in options} <= set(commands[4])
        assert commands[4][-2:] == ["--", text]
        assert commands[4][commands[4].index("-k") + 1] == text
        assert outcome.outputs["exit-code"] == "0"
        assert re.fullmatch(r"[A-Za-z0-9._-]*", outcome.outputs["artifact"])


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path) -> Any:
    """No test of this file makes a file called pwned anywhere in its folder."""
    yield
    assert list(tmp_path.rglob("pwned*")) == []


def test_a_python_or_a_folder_that_is_none_stops_the_job(tmp_path: Path) -> None:
    runner = Runner(tmp_path)
    for input_name in ("python", "working-directory"):
        for text in (*HOSTILE[:4], "--version"):
            inputs = {"suite": "suites", "accelerator": "cpu", input_name: text}

            assert composite.run(runner, inputs).failed == [SCRIPTS[1]], (input_name, text)


BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")

PATIENT = """#!/bin/sh
trap 'sleep 0.5; echo decided; exit 2' INT
echo here
for _ in $(seq 50); do sleep 0.1; done
"""
"""A pytest that tells what it has when it is interrupted."""


def test_a_cancelled_job_keeps_decided_cases(tmp_path: Path) -> None:
    """GitHub interrupts the shell of a step, and nothing that this started."""
    runner = Runner(tmp_path)
    (measure,) = [s for s in action("run-suite")["runs"]["steps"] if s.get("id") == "measure"]
    program = runner.temp / "mlperf-venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(PATIENT, "utf-8")
    program.chmod(0o755)
    (runner.temp / "mlperf-variables").touch()
    inputs = {**dict.fromkeys(measure["env"], ""), "FOLDER": "."}

    with subprocess.Popen(
        # Tests that run in the background ignore the signal, and a shell cannot trap it then.
        ["env", "--default-signal=INT", *BASH, measure["run"]],
        env=runner.environment(**inputs),
        cwd=runner.workspace,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "here\n"
        # A signal between two commands of bash is heard when its wait ends; nobody cancels so fast.
        time.sleep(0.5)
        shell.send_signal(signal.SIGINT)
        output = shell.stdout.read()

    assert (shell.returncode, output) == (0, "decided\n")
    assert runner.outputs() == {"exit-code": "2"}


def test_jobs_of_one_run_give_artifacts_of_different_names(tmp_path: Path) -> None:
    """The folder is part of it: two suites of one name would replace each other's results."""
    runner = Runner(tmp_path)
    (prepare,) = [s for s in action("run-suite")["runs"]["steps"] if s.get("id") == "prepare"]
    for suite, accelerator, name in (
        ("suites/datacenter/resnet50.mlperf.toml", "H200", "mlperf-H200-datacenter-resnet50"),
        ("suites/edge/resnet50.mlperf.toml", "H200", "mlperf-H200-edge-resnet50"),
        ("suites/tiny", "cpu", "mlperf-cpu-tiny"),
        ("bench/a b.mlperf.toml", "8xH100", "mlperf-8xH100-bench-a-b-3131962983"),
        ("bench/a'b.mlperf.toml", "8xH100", "mlperf-8xH100-bench-a-b-3215372786"),
    ):
        inputs = {"SUITE": suite, "ACCELERATOR": accelerator, "ARTIFACT": "", "VARIABLES": ""}
        runner.ends(0, prepare["run"], **inputs)
        assert runner.outputs()["artifact"] == name
