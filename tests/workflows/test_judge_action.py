"""The action `judge`: its steps, run by bash as GitHub runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.addons.github.comment import MARKER
from pytest_mlperf.extension import read_results
from tests.addons.judge.recorded import serving
from tests.children import PYTHON
from tests.workflows.github import ROOT, GitHub, Runner, action, fill

pytestmark = pytest.mark.process

STEPS = {step["name"]: step for step in action("judge")["runs"]["steps"]}


@pytest.fixture
def job(tmp_path: Path) -> Runner:
    """A job with result files and an environment that has pytest-mlperf."""
    runner = Runner(tmp_path, in_process=False)
    for name, side, slower in (("old", 0, 1.0), ("new", 1, 1.0), ("slow", 1, 1.12)):
        first_day = 1 if name == "old" else 11
        serving(runner.workspace / name, side=side, slower=slower, first_day=first_day)
    programs = runner.temp / "judge-venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("pytest-mlperf", "-m pytest_mlperf")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{PYTHON}" {words} "$@"\n', "utf-8")
        program.chmod(0o755)
    (runner.temp / "judge").mkdir()
    return runner


def step(job: Runner, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the action with inputs, whose hyphens are underscores here."""
    definition = action("judge")["inputs"]
    given_inputs = {key.replace("_", "-"): value for key, value in inputs.items()}
    assert given_inputs.keys() <= definition.keys()
    values = {
        f"inputs.{key}": given_inputs.get(key, content.get("default", ""))
        for key, content in definition.items()
    }
    env = {key: fill(value, values) for key, value in STEPS[name]["env"].items()}
    return job.run(STEPS[name]["run"], **env)


INSTALL = "Install into an environment of this job's own"

BACKEND = """\
import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    about = "tool-1.0.dist-info"
    files = {
        "tool.py": "",
        f"{about}/METADATA": "Metadata-Version: 2.1\\nName: tool\\nVersion: 1.0\\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(f"{folder}/tool-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "tool-1.0-py3-none-any.whl"
"""


def test_without_a_package_the_action_installs_its_own_commit(job: Runner) -> None:
    """In a new environment of the named Python, which a second job replaces."""
    repository = job.folder / "repository"
    (repository / ".github" / "actions" / "judge").mkdir(parents=True)
    (repository / "backend.py").write_text(BACKEND, "utf-8")
    (repository / "constraints.txt").write_text("tool==1.0\n", "utf-8")
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (repository / "pyproject.toml").write_text(build, "utf-8")
    job.env |= {
        "GITHUB_ACTION_PATH": str(repository / ".github" / "actions" / "judge"),
        "PIP_NO_INDEX": "1",
    }
    (job.temp / "judge" / "of-an-earlier-job").touch()
    done = step(job, INSTALL, python=sys.executable)

    assert done.returncode == 0, done.stdout + done.stderr
    program = job.temp / "judge-venv" / "bin" / "python"
    seen = subprocess.run(
        [program, "-c", "import tool; print(tool.__file__)"], capture_output=True, check=True
    )
    assert seen.stdout.decode().startswith(str(job.temp / "judge-venv"))
    assert list((job.temp / "judge").iterdir()) == []


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_a_python_that_cannot_be_used_is_one_error(job: Runner, python: str) -> None:
    done = step(job, INSTALL, python=python)

    assert done.returncode == 2
    assert "::error::the input python must name a Python of 3.11 or newer" in done.stdout


def test_an_unchanged_build_is_ok_with_a_summary_and_outputs(job: Runner) -> None:
    done = step(job, "Judge", files="new/*.json\n", against="old/*.json\r\n")

    assert done.returncode == 0, done.stdout + done.stderr
    assert job.outputs()["outcome"] == "ok"
    table = Path(job.outputs()["table"]).read_text("utf-8")
    assert table.startswith("## mlperf: no drop proven in 1 test")
    assert table in job.summary()
    assert Path(job.outputs()["junit"]).is_file()
    assert len(read_results(Path(job.outputs()["results"])).cases) == 1


def test_a_drop_fails_with_annotations(job: Runner) -> None:
    done = step(job, "Judge", files="slow", against="old")

    assert done.returncode == 1
    assert "::error title=concurrency_64-Benchmark-vllm-any-any::PERF DROP p50" in done.stdout
    assert job.outputs()["outcome"] == "PERF DROP"
    looser = step(job, "Judge", files="slow", against="old", limits="ttft=20%")
    assert looser.returncode == 0
    others = step(job, "Judge", files="slow", against="old", metrics="tpot,itl")
    assert others.returncode == 0


def test_an_open_verdict_fails_where_that_is_asked_for(job: Runner) -> None:
    pair = {"files": "slow/run-0.json", "against": "old/run-0.json"}

    assert step(job, "Judge", **pair).returncode == 0
    assert job.outputs()["outcome"] == "PROVISIONAL"
    assert step(job, "Judge", **pair, fail_on="provisional").returncode == 1


def test_files_that_are_not_there_are_named(job: Runner) -> None:
    done = step(job, "Judge", files="gone/*.json", against="old")

    assert done.returncode == 2
    assert "gone/*.json: cannot be read" in done.stderr
    assert "judge: no verdict" in job.summary()


@pytest.mark.parametrize("name", ["files", "against", "baseline", "limits", "metrics", "ignore"])
def test_no_input_is_a_command(job: Runner, name: str) -> None:
    inputs = {"files": "new", "against": "old"} | {
        name: "$(touch pwned) `touch pwned`; touch pwned"
    }
    if name == "baseline":
        del inputs["against"]
    step(job, "Judge", **inputs)

    assert list(job.folder.rglob("pwned")) == []


def test_a_file_whose_name_is_an_option_is_a_file(job: Runner) -> None:
    (job.workspace / "new" / "run-0.json").rename(job.workspace / "--plan")
    done = step(job, "Judge", files="*plan\nnew/*.json", against="old/*.json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert job.outputs()["outcome"] == "ok"


def test_the_comment_is_written_once_and_replaces_no_other(job: Runner) -> None:
    job.env["GITHUB_ACTION_PATH"] = str(ROOT / ".github" / "actions" / "judge")
    github = GitHub(job)
    pages, bot = "GET repos/lab/bench/issues/7/comments?per_page=100&page=1", "github-actions[bot]"
    new, change = (
        "POST repos/lab/bench/issues/7/comments",
        "PATCH repos/lab/bench/issues/comments/2",
    )
    others = [
        {"id": 1, "user": {"login": bot}, "body": f"{MARKER}\nof a suite"},
        {"id": 3, "user": {"login": bot}, "body": "of another tool"},
    ]
    assert step(job, "Comment").returncode == 0
    step(job, "Judge", files="new", against="old")
    assert step(job, "Comment").returncode == 0
    assert github.requests() == []

    github.answers({pages: others, new: {}})
    step(job, "Comment", pull_request="7", token="t")
    request, body = github.requests()[-1]
    assert request == new
    report = (job.temp / "judge" / "comment.md").read_text("utf-8")
    assert body["body"].partition("\n")[2].strip() == report.partition("\n")[2].strip()

    own = {"id": 2, "user": {"login": bot}, "body": body["body"]}
    github.answers({pages: [*others, own], change: {}})
    step(job, "Comment", pull_request="7", token="t")
    assert github.requests()[-1] == (change, body)
