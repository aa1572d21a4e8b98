"""The first job of gpu.yml: a matrix that GitHub can run, and a manifest that holds all of it."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.addons.fleet.test_slurm import SUITE
from tests.workflows.conftest import git
from tests.workflows.github import ROOT, Runner, recorder, words, workflow

pytestmark = pytest.mark.process

GPU = workflow("gpu")
PLAN = GPU.script("plan", "Plan")
REFUSE = GPU.script("plan", "Refuse what does not go together")

LIMIT = 2**20
"""Bytes of a job's outputs on GitHub."""

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Return a job whose workspace has this repository's suites."""
    fake_runner = Runner(tmp_path)
    for name in ("suites", "pyproject.toml", "conftest.py"):
        (fake_runner.workspace / name).symlink_to(ROOT / name)
    return fake_runner


EVERY = " ".join(
    sorted(
        {
            name
            for file in (ROOT / "suites").rglob("*.mlperf.toml")
            for entry in tomllib.loads(file.read_text("utf-8"))["engines"]
            for name in entry.get("accelerators", ["cpu"])
        }
    )
)
"""A fleet that has all that the suites of this repository name."""

GIVEN = {"ACCELERATOR": "", "FLEET": EVERY, "PROFILE": "quick", "PURPOSE": "gate"}


def step(runner: Runner, suites: str, **variables: str) -> CompletedProcess[str]:
    (runner.folder / "output").unlink(missing_ok=True)
    return runner.run(PLAN, SUITES=suites, **{**GIVEN, **variables})


def plan(runner: Runner, suites: str, **variables: str) -> tuple[list[Any], dict[str, Any]]:
    """Run the step; return the jobs of the matrix, and the manifest."""
    done = step(runner, suites, **variables)

    assert done.returncode == 0, done.stderr
    matrix = runner.outputs()["matrix"]
    assert len(matrix.encode()) < LIMIT
    manifest = json.loads((runner.workspace / "plan.json").read_text("utf-8"))
    return json.loads(matrix)["include"], manifest


@pytest.mark.parametrize(
    ("suites", "accelerator"),
    [
        pytest.param("suites/datacenter", "", marks=pytest.mark.nightly),
        ("suites/datacenter/resnet50.mlperf.toml suites/tiny/bert.mlperf.toml", ""),
        ("suites/datacenter/resnet50.mlperf.toml", "H200"),
    ],
)
def test_every_case_is_in_exactly_one_job(runner: Runner, suites: str, accelerator: str) -> None:
    """Jobs are pairs of accelerator and suite, each once, with labels that runners have."""
    jobs, manifest = plan(runner, suites, ACCELERATOR=accelerator)

    pairs = Counter((job["accelerator"], job["suite"]) for job in jobs)
    assert 0 < len(jobs) <= 256
    assert set(pairs.values()) == {1}
    assert set(pairs) == {(case["accelerator"], case["suite"]) for case in manifest["cases"]}
    assert set(Counter(test["test"] for test in manifest["tests"]).values()) == {1}
    assert {test["case"] for test in manifest["tests"]} == {one["id"] for one in manifest["cases"]}
    assert not accelerator or {job["accelerator"] for job in jobs} == {accelerator}
    for job in jobs:
        kind_label = "cpu" if job["accelerator"] == "cpu" else f"gpu-{job['accelerator'].lower()}"
        assert job["runner"] == ["self-hosted", "linux", kind_label]
        assert LABEL.fullmatch(kind_label)
    assert f"{len(manifest['cases'])} cases" in runner.summary()
    assert "accelerator-hours" in runner.summary()


LABEL = re.compile(r"cpu|gpu-([1-9][0-9]*x)?[a-z][a-z0-9_]*")
"""What docs/github-actions.md tells a team to give its runners."""


def test_a_matrix_that_github_would_not_run_is_refused(tmp_path: Path) -> None:
    """256 jobs with long names fit GitHub's limit of an output; one more is refused."""
    runner = Runner(tmp_path)
    file = runner.workspace / "suites" / ("long-" * 40) / f"{'name-' * 40}.mlperf.toml"
    file.parent.mkdir(parents=True)
    names = [f"{number + 2}xB200" for number in range(257)]
    file.write_text(SUITE.format(name="many", accelerators=json.dumps(names)), "utf-8")

    fits = step(runner, "suites", FLEET=" ".join(names[:256]))
    assert fits.returncode == 0, fits.stderr
    assert 100_000 < len(runner.outputs()["matrix"].encode()) < LIMIT
    done = step(runner, "suites", FLEET=" ".join(names))
    assert done.returncode == 2
    assert "257 jobs, but a GitHub matrix has at most 256" in done.stderr.replace("\n", " ")
    assert runner.outputs() == {}


HOSTILE = ["$(touch {0})", "`touch {0}`", ";touch${{IFS}}{0};#", "--runs-dir=/tmp", "'\"", "*"]


def test_an_input_that_is_a_command_stays_a_word(runner: Runner) -> None:
    """Words of `suites` and of the fleet are apart by spaces, and are never options."""
    record = recorder(runner, "pytest-mlperf")
    for text in HOSTILE:
        text_given = text.format(runner.folder / "pwned")
        record.unlink(missing_ok=True)
        variables = dict.fromkeys(("ACCELERATOR", "FLEET", "PROFILE"), text_given)

        done = step(runner, f"{text_given} b", PURPOSE="baseline", **variables)

        assert done.returncode == 0, done.stderr
        fleet = [f"--fleet={name}" for name in text_given.split()]
        options = ["pytest-mlperf", "plan", "--profile", text_given, "--max-runs", "8", *fleet]
        options.append(f"--accelerator={text_given}")
        last = ["--", *text_given.split(), "b"]
        forms: list[list[str]] = [["--format", "json"], ["--format", "github"], []]
        assert words(record) == [[*options, *form, *last] for form in forms]
    assert list(runner.folder.rglob("pwned*")) == []

    for lists in ("H100,8xH100", "H100, 8xH100", "H100\r\n8xH100\r\n", " H100  8xH100"):
        assert step(runner, "a\r\nb", FLEET=lists).returncode == 0
        options = ["plan", "--profile", "quick", "--fleet=H100", "--fleet=8xH100"]
        assert words(record)[-1] == ["pytest-mlperf", *options, "--", "a", "b"], lists


def test_only_whole_commits_are_measured_and_only_branches_make_baselines(runner: Runner) -> None:
    codes = {
        ("gate", "", "", ""): 0,
        ("baseline", "new driver", "", ""): 0,
        ("baseline", "", "", ""): 2,
        ("session", "second day", "", ""): 0,
        ("session", "", "", ""): 2,
        ("session", "second day", SHA, "7"): 2,
        ("gate", "", SHA, "7"): 0,
        ("gate", "", SHA, ""): 2,
        ("gate", "", "", "7"): 2,
        ("gate", "", SHA[:12], "7"): 2,
        ("gate", "", "main", "7"): 2,
        ("gate", "", f"{SHA}\nmain", "7"): 2,
        ("gate", "", SHA, "7; true"): 2,
        ("baseline", "new driver", SHA, "7"): 2,
    }
    codes_found = {}
    for names_given in codes:
        names = ("PURPOSE", "REASON", "SHA", "PR")
        done = runner.run(REFUSE, **dict(zip(names, names_given, strict=True)))
        codes_found[names_given] = done.returncode
        assert done.stdout.startswith("::error::") is bool(done.returncode)

    assert codes_found == codes


def test_jobs_check_out_the_approved_commit_and_wait_only_for_the_same() -> None:
    """Without a queue GitHub cancels all but the newest that waits."""
    refs = {
        job: [step["with"].get("ref") for step in content["steps"] if "checkout@" in str(step)]
        for job, content in GPU.jobs.items()
    }
    fork = "${{ inputs.sha || github.sha }}"

    assert refs == {"plan": [None, fork], "suspects": [], "run": [None, fork], "merge": [None]}

    assert GPU.jobs["run"]["strategy"]["fail-fast"] is False
    assert GPU.content["concurrency"]["cancel-in-progress"] is False
    assert GPU.content["concurrency"]["queue"] == "max"
    inputs = set(GPU.content["on"]["workflow_dispatch"]["inputs"]) - {"reason", "pr", "profile"}
    assert inputs == set(re.findall(r"inputs\.(\w+)", GPU.content["concurrency"]["group"]))


def test_every_default_job_of_four_h100_runners_can_run(runner: Runner) -> None:
    """A job for another accelerator would wait for a runner that there is not."""
    suites = re.search(r"'([^']+)' }}", GPU.jobs["plan"]["env"]["SUITES"])
    assert suites

    jobs, manifest = plan(runner, suites[1], FLEET="H100 V100")

    assert len(jobs) >= 4
    assert all(job["runner"] == ["self-hosted", "linux", "gpu-h100"] for job in jobs)
    assert all(30 <= job["minutes"] <= 5 * 24 * 60 for job in jobs)
    assert {case["accelerator"] for case in manifest["cases"]} == {"H100"}
    assert "concurrency" not in GPU.jobs["run"], "four runners work at once"


def test_a_fleet_that_is_not_named_or_fits_nothing_plans_nothing(runner: Runner) -> None:
    for variables, message in (
        ({"FLEET": ""}, "::error::name what your runners have in the variable MLPERF_ACCELERATORS"),
        ({"FLEET": "GH200"}, "no case runs on GH200; the suites use: "),
        ({"FLEET": "H100 CPUS"}, "no case runs on H100, CPUS; the suites use: cpu"),
        ({"FLEET": "cpu", "ACCELERATOR": "H2000"}, "no case runs on 'H2000'"),
    ):
        done = step(runner, "suites/tiny", **variables)

        assert done.returncode == 2
        assert message in done.stdout + " ".join(done.stderr.split())
        assert runner.outputs() == {}


GH = """#!/bin/sh
case "$1 $2 $3" in
"run list --workflow") printf '%s' "$NIGHTS" ;;
"run download 8") mkdir -p "$7" && echo "{}" > "$7/junit.xml" ;;
"run download 7") mkdir -p "$7" && echo seven > "$7/results.json" ;;
*) exit 1 ;;
esac
"""
"""Night 9 left nothing, 8 no results, 7 has some."""


def test_a_nightly_run_gets_the_suspects_of_the_last_one_with_results(tmp_path: Path) -> None:
    """There is always an artifact: a machine takes it by its name, and none is an error."""
    runner = Runner(tmp_path)
    runner.put("gh", GH)
    script = GPU.script("suspects", "Results of the last nightly run")
    for event, nights, file_name in (
        ("schedule", "9 8 7 6", "results.json"),
        ("schedule", "9 8", "none.txt"),
        ("schedule", "", "none.txt"),
        ("pull_request_target", "7", "results.json"),
    ):
        done = runner.run(script, EVENT=event, NIGHTS=nights)

        assert done.returncode == 0, done.stderr
        assert [path.name for path in (runner.workspace / "suspects").iterdir()] == [file_name]
        shutil.rmtree(runner.workspace / "suspects")
    assert GPU.step("run", "Measure and judge")["with"]["suspects"].endswith("/suspects")


def test_the_plan_is_found_by_the_number_of_its_artifact() -> None:
    """Who measures can put another one in the place of that name: then its number is gone."""
    (keep,) = [s for s in GPU.jobs["plan"]["steps"] if s.get("id") == "keep"]
    downloads = [
        (job, step["with"])
        for job in ("run", "merge")
        for step in GPU.jobs[job]["steps"]
        if "download-artifact" in str(step.get("uses"))
    ]
    number = "${{ needs.plan.outputs.artifact }}"

    assert keep["with"]["name"] == "plan"
    assert GPU.jobs["plan"]["outputs"]["artifact"] == "${{ steps.keep.outputs.artifact-id }}"
    assert [job for job, given in downloads if given.get("artifact-ids") == number] == [
        "run",
        "merge",
    ]
    assert not any(given.get("name") == "plan" for _, given in downloads)


TAKE = GPU.script("plan", "Take its suites and baselines, and nothing that runs")
SAME = GPU.script("run", "The approved commit, and no other")

EVIL = "import os, pathlib\npathlib.Path(os.environ['RUNNER_TEMP'], 'pwned').touch()\n"


@pytest.fixture
def fork(tmp_path: Path) -> Runner:
    """Return the job after its two checkouts: the branch, and a fork's commit below `change`."""
    fake_runner = Runner(tmp_path, in_process=False)
    fake_runner.scripts_of_ours()
    write(
        fake_runner.workspace,
        {
            "suites/first.mlperf.toml": SUITE.format(name="first", accelerators='["H100"]'),
            "suites/gone.mlperf.toml": SUITE.format(name="gone", accelerators='["H100"]'),
            "baselines/README.md": "x",
            "pytest.ini": "[pytest]\n",
            "model.py": "",
        },
    )
    git(fake_runner.workspace, "init", "--quiet", "--initial-branch=main")
    git(fake_runner.workspace, "add", "suites", "baselines", "pytest.ini", "model.py")
    git(fake_runner.workspace, "commit", "--quiet", "-m", "branch")
    git(fake_runner.workspace, "clone", "--quiet", ".", "change")
    return fake_runner


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")


def committed(fork: Runner) -> str:
    change = fork.workspace / "change"
    git(change, "add", "--all", "--force")
    git(change, "commit", "--quiet", "-m", "change")
    return git(change, "rev-parse", "HEAD")


def test_a_fork_is_planned_by_the_branch_and_its_suites_are_data(fork: Runner) -> None:
    """No module, plug-in or setting of it is read: labels, minutes and tests are the branch's."""
    change = fork.workspace / "change"
    write(
        change,
        {
            "suites/first.mlperf.toml": SUITE.format(name="first", accelerators='["H100", "A10"]'),
            "suites/new.mlperf.toml": SUITE.format(name="new", accelerators='["H100"]').replace(
                "synthetic", "evil:words"
            ),
            "baselines/H100/quick/first/Offline.null.fp32.json": "{}",
            "pytest.ini": "[pytest]\npythonpath = evil\naddopts = -p evil\n",
            **dict.fromkeys(
                (
                    *(
                        "evil.py",
                        "conftest.py",
                        "sitecustomize.py",
                        "json.py",
                        "suites/conftest.py",
                    ),
                    *(
                        "evil/evil.py",
                        "evil/tomllib.py",
                        "evil/numpy.py",
                        "pytest_mlperf/__init__.py",
                    ),
                    *("git", ".github/scripts/take_suites.py", ".github/scripts/json.py"),
                ),
                EVIL,
            ),
        },
    )
    (change / "suites/gone.mlperf.toml").unlink()

    fork.ends(0, TAKE, SHA=committed(fork))
    done = step(fork, "suites", FLEET="H100 8xH100")

    assert done.returncode == 0, done.stdout + done.stderr
    assert list(fork.temp.iterdir()) == []
    assert not change.exists()
    (first, new) = json.loads(fork.outputs()["matrix"])["include"]
    assert (first["suite"], new["suite"]) == (
        "suites/first.mlperf.toml",
        "suites/new.mlperf.toml",
    )
    assert first["runner"] == new["runner"] == ["self-hosted", "linux", "gpu-h100"]
    assert all(type(job["minutes"]) is int and 30 <= job["minutes"] <= 7200 for job in (first, new))
    listed = json.loads((fork.workspace / "judged-by.json").read_text("utf-8"))["judged_by_other"]
    assert listed == [
        "baselines/H100/quick/first/Offline.null.fp32.json",
        "conftest.py",
        "pytest.ini",
        "suites/conftest.py",
        "suites/first.mlperf.toml",
        "suites/gone.mlperf.toml",
        "suites/new.mlperf.toml",
    ]
    assert git(fork.workspace, "diff", "--name-only").splitlines() == [
        "suites/first.mlperf.toml",
        "suites/gone.mlperf.toml",
    ]


def test_a_suite_of_a_fork_that_is_a_link_or_special_file_is_refused(fork: Runner) -> None:
    change = fork.workspace / "change"
    (change / "suites/link.mlperf.toml").symlink_to("/etc/passwd")
    done = fork.ends(1, TAKE, SHA=committed(fork))
    assert "::error::suites/link.mlperf.toml is no regular file" in done.stderr

    (change / "suites/link.mlperf.toml").unlink()
    write(change, {"linked/x.mlperf.toml": "x"})
    (fork.workspace / "linked").symlink_to("/tmp")
    done = fork.ends(1, TAKE, SHA=committed(fork))
    assert "::error::linked/x.mlperf.toml lies behind a link" in done.stderr


def test_a_change_of_code_alone_says_nothing_of_suites(fork: Runner) -> None:
    write(fork.workspace / "change", {"model.py": "x = 1\n"})

    fork.ends(0, TAKE, SHA=committed(fork))

    document = json.loads((fork.workspace / "judged-by.json").read_text("utf-8"))
    assert document == {"judged_by_other": []}


def test_nothing_but_the_approved_commit_is_measured(fork: Runner) -> None:
    sha = committed_again(fork)
    fork.ends(0, SAME, SHA=sha)
    fork.ends(1, SAME, SHA=git(fork.workspace / "change", "rev-parse", "HEAD^"))
    fork.ends(1, SAME, SHA=sha.upper())
    steps = GPU.jobs["run"]["steps"]
    names = [str(one.get("name")) for one in steps]
    assert steps[names.index("The approved commit, and no other")]["if"] == "inputs.sha != ''"
    assert names.index("The approved commit, and no other") < names.index("Measure and judge")


def committed_again(fork: Runner) -> str:
    write(fork.workspace / "change", {"model.py": "x = 1\n"})
    return committed(fork)
