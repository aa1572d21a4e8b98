"""The first job of gpu.yml: a matrix that GitHub can run, and a manifest that holds all of it."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

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
    found = Runner(tmp_path)
    for name in ("suites", "pyproject.toml", "conftest.py"):
        (found.workspace / name).symlink_to(ROOT / name)
    return found


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


def plan(
    runner: Runner, suites: str, accelerator: str = "", fleet: str = EVERY
) -> tuple[list[Any], dict[str, Any]]:
    """Run the step; return the jobs of the matrix, and the manifest."""
    done = runner.run(
        PLAN, SUITES=suites, ACCELERATOR=accelerator, FLEET=fleet, PROFILE="quick", PURPOSE="gate"
    )

    assert done.returncode == 0, done.stderr
    matrix = runner.outputs()["matrix"]
    assert len(matrix.encode()) < LIMIT
    manifest = json.loads((runner.workspace / "plan.json").read_text("utf-8"))
    return json.loads(matrix)["include"], manifest


@pytest.mark.parametrize(("suites", "accelerator"), [("suites/datacenter", ""), ("suites", "H200")])
def test_every_case_is_in_exactly_one_job(runner: Runner, suites: str, accelerator: str) -> None:
    """Jobs are pairs of accelerator and suite, each once, with labels that runners have."""
    jobs, manifest = plan(runner, suites, accelerator)

    pairs = Counter((job["accelerator"], job["suite"]) for job in jobs)
    assert 0 < len(jobs) <= 256
    assert set(pairs.values()) == {1}
    assert set(pairs) == {(case["accelerator"], case["suite"]) for case in manifest["cases"]}
    assert set(Counter(test["test"] for test in manifest["tests"]).values()) == {1}
    assert {test["case"] for test in manifest["tests"]} == {one["id"] for one in manifest["cases"]}
    assert not accelerator or {job["accelerator"] for job in jobs} == {accelerator}
    for job in jobs:
        own = "cpu" if job["accelerator"] == "cpu" else f"gpu-{job['accelerator'].lower()}"
        assert job["runner"] == ["self-hosted", "linux", own]
        assert LABEL.fullmatch(own)
    assert f"{len(manifest['cases'])} cases" in runner.summary()
    assert "accelerator-hours" in runner.summary()


LABEL = re.compile(r"cpu|gpu-([1-9][0-9]*x)?[a-z][a-z0-9_]*")
"""What docs/github-actions.md tells a team to give its runners."""


SUITE = """schema = 1
round = "v4.1"

[workload]
name = "{name}"
dataset = {{ use = "synthetic", samples = 32 }}

[[engines]]
use = "null"
accelerators = {accelerators}
options = {{ latency_s = 0.002, batch_size = 16, threads = 1 }}

[[scenarios]]
name = "Offline"
target_qps = 500
"""


@pytest.mark.parametrize(("count", "code"), [(256, 0), (257, 2)])
def test_a_matrix_that_github_would_not_run_is_refused(
    tmp_path: Path, count: int, code: int
) -> None:
    """256 jobs with long names fit GitHub's limit of an output; one more is no matrix."""
    runner = Runner(tmp_path)
    names = [f"{number + 2}xB200" for number in range(count)]
    file = runner.workspace / "suites" / ("long-" * 40) / f"{'name-' * 40}.mlperf.toml"
    file.parent.mkdir(parents=True)
    file.write_text(SUITE.format(name="many", accelerators=json.dumps(names)), "utf-8")

    fleet = " ".join(names)
    done = runner.run(
        PLAN, SUITES="suites", ACCELERATOR="", FLEET=fleet, PROFILE="quick", PURPOSE="gate"
    )

    assert done.returncode == code, done.stderr
    if code:
        assert "257 jobs, GitHub makes 256" in done.stderr.replace("\n", " ")
        assert runner.outputs() == {}
    else:
        assert 100_000 < len(runner.outputs()["matrix"].encode()) < LIMIT


HOSTILE = ["$(touch {0})", "`touch {0}`", ";touch${{IFS}}{0};#", "--runs-dir=/tmp", "'\"", "*"]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_input_that_is_a_command_stays_a_word(runner: Runner, text: str) -> None:
    """Words of `suites` are apart by spaces, as a person writes them; they are never options."""
    given = text.format(runner.folder / "pwned")
    record = recorder(runner, "pytest-mlperf")

    done = runner.run(
        PLAN, SUITES=f"{given} b", ACCELERATOR=given, FLEET=given, PROFILE=given, PURPOSE="baseline"
    )

    assert done.returncode == 0, done.stderr
    fleet = [f"--fleet={name}" for name in given.split()]
    options = ["pytest-mlperf", "plan", "--profile", given, "--max-runs", "8", *fleet]
    options.append(f"--accelerator={given}")
    last = ["--", *given.split(), "b"]
    assert words(record) == [
        [*options, "--format", "json", *last],
        [*options, "--format", "github", *last],
        [*options, *last],
    ]
    assert list(runner.folder.rglob("pwned*")) == []


def test_what_is_no_plan_sets_no_matrix(runner: Runner) -> None:
    done = runner.run(
        PLAN, SUITES="suites/tiny", ACCELERATOR="H2000", FLEET="cpu", PROFILE="quick", PURPOSE=""
    )

    assert done.returncode == 2
    assert "no case runs on 'H2000'" in done.stderr
    assert runner.outputs() == {}


@pytest.mark.parametrize(
    ("purpose", "reason", "sha", "pr", "code"),
    [
        ("gate", "", "", "", 0),
        ("baseline", "new driver", "", "", 0),
        ("baseline", "", "", "", 2),
        ("session", "second day", "", "", 0),
        ("session", "", "", "", 2),
        ("session", "second day", SHA, "7", 2),
        ("gate", "", SHA, "7", 0),
        ("gate", "", SHA, "", 2),
        ("gate", "", "", "7", 2),
        ("gate", "", SHA[:12], "7", 2),
        ("gate", "", "main", "7", 2),
        ("gate", "", f"{SHA}\nmain", "7", 2),
        ("gate", "", SHA, "7; true", 2),
        ("baseline", "new driver", SHA, "7", 2),
    ],
)
def test_only_whole_commits_are_measured_and_only_branches_make_baselines(
    runner: Runner, purpose: str, reason: str, sha: str, pr: str, code: int
) -> None:
    done = runner.run(REFUSE, PURPOSE=purpose, REASON=reason, SHA=sha, PR=pr)

    assert done.returncode == code
    assert done.stdout.startswith("::error::") is bool(code)


def test_the_commit_of_a_fork_is_planned_and_measured_and_nothing_else() -> None:
    """Both checkouts name it alike; what merges and judges checks out the branch."""
    refs = {
        job: [step["with"].get("ref") for step in content["steps"] if "checkout@" in str(step)]
        for job, content in GPU.jobs.items()
    }
    fork = "${{ inputs.sha || github.sha }}"

    assert refs == {"plan": [fork], "suspects": [], "run": [None, fork], "merge": [None]}


def test_four_h100_runners_are_given_only_what_they_can_run(tmp_path: Path) -> None:
    """A job for another accelerator would wait for a runner that there is not."""
    runner = Runner(tmp_path)
    for number in range(5):
        file = runner.workspace / "suites" / f"s{number}.mlperf.toml"
        file.parent.mkdir(exist_ok=True)
        names = '["H100", "8xH100", "H200", "cpu"]' if number else '["B200"]'
        file.write_text(SUITE.format(name=f"s{number}", accelerators=names), "utf-8")

    jobs, manifest = plan(runner, "suites", fleet="H100 L40S")

    labels = {"self-hosted", "linux", "gpu-h100"}
    assert [job["suite"] for job in jobs] == [f"suites/s{n}.mlperf.toml" for n in range(1, 5)]
    assert all(set(job["runner"]) == labels for job in jobs)
    assert {case["accelerator"] for case in manifest["cases"]} == {"H100"}
    assert "concurrency" not in GPU.jobs["run"], "four runners work at once"


def test_every_default_job_of_four_h100_runners_can_run(runner: Runner) -> None:
    suites = re.search(r"'([^']+)' }}", GPU.jobs["plan"]["env"]["SUITES"])
    assert suites

    jobs, manifest = plan(runner, suites[1], fleet="H100")

    assert len(jobs) >= 4
    assert all(job["runner"] == ["self-hosted", "linux", "gpu-h100"] for job in jobs)
    assert all(30 <= job["minutes"] <= 5 * 24 * 60 for job in jobs)
    assert {case["accelerator"] for case in manifest["cases"]} == {"H100"}


@pytest.mark.parametrize(
    "fleet", ["H100,8xH100", "H100, 8xH100", "H100\r\n8xH100\r\n", " H100  8xH100"]
)
def test_a_fleet_may_be_written_in_the_ways_that_people_write_lists(
    runner: Runner, fleet: str
) -> None:
    """A name that was left out would be a machine that is silently never used."""
    record = recorder(runner, "pytest-mlperf")

    done = runner.run(
        PLAN, SUITES="a\r\nb", ACCELERATOR="", FLEET=fleet, PROFILE="quick", PURPOSE="gate"
    )

    assert done.returncode == 0, done.stderr
    options = ["plan", "--profile", "quick", "--fleet=H100", "--fleet=8xH100"]
    assert words(record)[-1] == ["pytest-mlperf", *options, "--", "a", "b"]


@pytest.mark.parametrize(
    ("fleet", "code", "said"),
    [
        ("", 2, "::error::name what your runners have in the variable MLPERF_ACCELERATORS"),
        ("GH200", 2, "no case runs on GH200; they run on "),
        ("H100 CPU", 2, "no case runs on CPU; did you mean cpu?"),
    ],
)
def test_a_fleet_that_is_not_named_or_fits_nothing_plans_nothing(
    runner: Runner, fleet: str, code: int, said: str
) -> None:
    done = runner.run(
        PLAN, SUITES="suites/tiny", ACCELERATOR="", FLEET=fleet, PROFILE="quick", PURPOSE="gate"
    )

    assert done.returncode == code
    assert said in done.stdout + " ".join(done.stderr.split())
    assert runner.outputs() == {}


def test_no_run_is_dropped() -> None:
    """Without a queue GitHub cancels all but the newest that waits."""
    run = GPU.jobs["run"]

    assert run["strategy"]["fail-fast"] is False
    assert GPU.content["concurrency"]["cancel-in-progress"] is False
    assert GPU.content["concurrency"]["queue"] == "max"


def test_only_a_run_that_asks_the_same_waits_for_another() -> None:
    """Else a night on one kind of machine keeps a gate from three others that are idle."""
    group = GPU.content["concurrency"]["group"]

    asked = set(GPU.content["on"]["workflow_dispatch"]["inputs"]) - {"reason", "pr", "profile"}
    assert asked == set(re.findall(r"inputs\.(\w+)", group))


GH = """#!/bin/sh
case "$1 $2 $3" in
"run list --workflow") printf '%s' "$NIGHTS" ;;
"run download 8") mkdir -p "$7" && echo "{}" > "$7/junit.xml" ;;
"run download 7") mkdir -p "$7" && echo seven > "$7/results.json" ;;
*) exit 1 ;;
esac
"""
"""Night 9 left nothing, 8 no results, 7 has some."""


@pytest.mark.parametrize(
    ("event", "nights", "given"),
    [
        ("schedule", "9 8 7 6", "results.json"),
        ("schedule", "9 8", "none.txt"),
        ("schedule", "", "none.txt"),
        ("workflow_dispatch", "7", "none.txt"),
    ],
)
def test_a_nightly_run_is_given_what_the_last_one_with_results_left(
    tmp_path: Path, event: str, nights: str, given: str
) -> None:
    """There is always an artifact: a machine takes it by its name, and none is an error."""
    runner = Runner(tmp_path)
    runner.put("gh", GH)

    found = runner.run(
        GPU.script("suspects", "Results of the last nightly run"), EVENT=event, NIGHTS=nights
    )

    assert found.returncode == 0, found.stderr
    assert [path.name for path in (runner.workspace / "suspects").iterdir()] == [given]
    assert GPU.step("run", "Measure and judge")["with"]["suspects"].endswith("/suspects")
