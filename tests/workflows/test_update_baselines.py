"""Test update-baselines.yml on a real recording: a table, a patch of baselines/, a proposal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.stores import accuracy_baselines
from pytest_mlperf.stores.results import sealed
from tests.shared import once
from tests.workflows.conftest import CASE, Measured, git
from tests.workflows.github import GitHub, Runner, workflow
from tests.workflows.test_report import run_of_gpu

pytestmark = pytest.mark.process

UPDATE = workflow("update-baselines")
REFUSE = UPDATE.script("read", "Refuse a run that may not make baselines")
TABLE = UPDATE.script("read", "What would change")
WRITE = UPDATE.script("read", "Write")
PROPOSE = UPDATE.script("propose", "Propose")

RUN = "GET repos/lab/bench/actions/runs/123"
ARTIFACTS = f"{RUN}/artifacts?per_page=100&page=1"
PERFORMANCE = "baselines/cpu/quick/first/Offline.null.fp32.json"
ACCURACY = "baselines/accuracy/first/null.fp32.json"
SCORES = re.compile(r"baselines/accuracy/first/null\.fp32\.[0-9a-f]{12}\.scores\.npz")
REASON = "driver 580; $(touch pwned) `touch pwned` '; touch pwned; \" --accept-regression x"
INPUTS = {"RUN_ID": "123", "REASON": REASON, "SELECT": "", "ACCEPT": ""}


def artifact(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "expired": False, "digest": f"sha256:{'d' * 64}", **changes}


KEPT = [artifact("merged-results"), artifact("baselines-mlperf-cpu-first"), artifact("plan")]


def prepare(recorded: Measured, runner: Runner) -> Runner:
    """Bring a job to the point at which it has its checkout and its downloads of the recording."""
    runner.scripts_of_ours()
    folder = runner.workspace
    shutil.copytree(recorded.project / "suites", folder / "suites")
    (folder / "baselines").mkdir()
    shutil.copy(recorded.project / "baselines" / "README.md", folder / "baselines")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "suites", "baselines")
    git(folder, "commit", "--quiet", "-m", "suite")
    (folder / "merged").mkdir()
    shutil.copy(recorded.runner.temp / "mlperf" / "results.json", folder / "merged")
    shutil.copytree(
        recorded.project / "baselines", folder / "recorded" / "baselines-mlperf-cpu-first"
    )
    (folder / "artifacts.txt").write_text("- `merged-results` sha256:dd\n", "utf-8")
    return runner


@pytest.fixture
def job(recorded: Measured, tmp_path: Path) -> Runner:
    return prepare(recorded, Runner(tmp_path, env=INPUTS))


@dataclass(frozen=True)
class Accepted:
    """A job, the output of its first step, and its changes in baselines/."""

    runner: Runner
    table: str
    status: str


@pytest.fixture(scope="session")
def accepted(recorded: Measured, tmp_path_factory: pytest.TempPathFactory) -> Accepted:
    """Return a first job that succeeded; it is read-only."""
    return once(tmp_path_factory, "accepting", lambda folder: accept(recorded, folder))


def accept(recorded: Measured, job: Path) -> Accepted:
    """Run the first job with extra files that no result mentions."""
    runner = prepare(recorded, Runner(job, env=INPUTS))
    folder = runner.workspace / "recorded" / "baselines-mlperf-cpu-first"
    shutil.copytree(folder / "accuracy" / "first", folder / "accuracy" / "second")
    (folder / "cpu" / "quick" / "first" / "evil.json").write_text("{}", "utf-8")
    first = runner.run(TABLE)
    assert first.returncode == 0, first.stdout + first.stderr
    status = git(runner.workspace, "status", "--short", "baselines")
    second = runner.run(WRITE)
    assert second.returncode == 0, second.stdout + second.stderr
    return Accepted(runner, first.stdout, status)


def test_exactly_the_recorded_baselines_are_taken_and_proposed(accepted: Accepted) -> None:
    """The table alone changes nothing."""
    assert accepted.status == ""
    for part in ("dry run", f"{CASE}\n  throughput new ", "  top1 new 100\n"):
        assert part in accepted.table
    assert accepted.table in accepted.runner.summary()

    folder = accepted.runner.workspace
    names = git(folder, "diff", "--cached", "--name-only").splitlines()
    assert SCORES.fullmatch(names.pop(0))
    assert names == [ACCURACY, PERFORMANCE]
    (record,) = json.loads((folder / PERFORMANCE).read_text("utf-8"))["records"]
    assert record["history"][-1]["reason"] == f"{REASON} (run 123)"
    assert len(record["runs"]) == 5
    assert list(accepted.runner.folder.rglob("pwned*")) == []
    text = (folder / "proposal" / "text.md").read_text("utf-8")
    assert text.startswith(f"{REASON}\n\n```\nfrom merged/results.json")
    assert text.endswith("```\n\n- `merged-results` sha256:dd\n")


def test_values_that_get_worse_are_only_taken_by_name(job: Runner, recorded: Measured) -> None:
    """The accepted runs were twice as fast: refused, unless the case is named."""
    file = job.workspace / PERFORMANCE
    file.parent.mkdir(parents=True)
    baseline = json.loads((recorded.project / PERFORMANCE).read_text("utf-8"))
    for run in baseline["records"][0]["runs"]:
        run["metrics"]["throughput"] *= 2
    file.write_text(json.dumps(baseline), "utf-8")

    refused, named = job.run(TABLE), job.run(TABLE, ACCEPT=CASE)

    assert (refused.returncode, named.returncode) == (0, 0)
    assert "refused: worse: throughput" in refused.stdout
    assert "refused" not in named.stdout.replace("0 refused", "")


def test_only_a_refusal_lets_the_job_go_on(job: Runner) -> None:
    """Python ends a crash with 1, so a refusal has a code of its own and nothing is proposed."""
    broken = job.folder / "broken"
    broken.mkdir()
    (broken / "shlex.py").write_text("raise RuntimeError('a defect of ours')\n", "utf-8")
    job.in_process = False
    done = job.ends(1, TABLE, PYTHONPATH=str(broken))
    assert "RuntimeError: a defect of ours" in done.stderr
    assert not (job.workspace / "proposal").exists()

    (job.workspace / "table.txt").write_text("x\n", "utf-8")
    codes = {0: 0, 4: 0, 1: 1, 2: 2, 3: 3, 137: 137}
    for step in (TABLE, WRITE):
        for code, ends in codes.items():
            job.put("python", f"#!/bin/sh\necho changed > baselines/x.json\nexit {code}\n")

            assert job.run(step).returncode == ends
            shutil.rmtree(job.workspace / "proposal", ignore_errors=True)
            git(job.workspace, "reset", "--quiet")


def test_a_selection_of_accepted_or_unknown_cases_stops_the_job(
    job: Runner, recorded: Measured
) -> None:
    for field, text in (
        ("SELECT", "first-Offline-null-fp32-H200"),
        ("SELECT", "$(touch pwned)"),
        ("ACCEPT", "; touch pwned"),
        ("ACCEPT", "--write"),
    ):
        done = job.run(TABLE, **{field: text})

        assert (done.returncode, "no case" in done.stderr) == (2, True)
    assert list(job.folder.rglob("pwned")) == []

    scores = accuracy_baselines.scores_path(recorded.project / ACCURACY)
    for name in (PERFORMANCE, ACCURACY, str(scores.relative_to(recorded.project))):
        (job.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(recorded.project / name, job.workspace / name)
    git(job.workspace, "add", "baselines")
    git(job.workspace, "commit", "--quiet", "-m", "accepted")
    done = job.ends(1, WRITE)
    assert "::error::nothing to accept" in done.stdout


def baseline_of(job: Runner) -> Path:
    return job.workspace / "recorded/baselines-mlperf-cpu-first/accuracy/first/null.fp32.json"


def second(job: Runner, name: str) -> Path:
    """Return the accuracy baseline in a second artifact, a copy of the first."""
    first = job.workspace / "recorded" / "baselines-mlperf-cpu-first"
    shutil.copytree(first, job.workspace / "recorded" / name)
    return job.workspace / "recorded" / name / baseline_of(job).relative_to(first)


def rescore(path: Path, score: float) -> None:
    scored_baseline = accuracy_baselines.load(path)
    assert scored_baseline is not None
    baseline, scores = scored_baseline
    changed = {name: [score] * 32 for name in scores}
    accuracy_baselines.replace_scores(path, lambda _: baseline, changed)


def test_checkouts_of_another_job_do_not_count_as_its_records(job: Runner) -> None:
    """Every machine sends its whole folder; one artifact alone has no folder of its own."""
    old = second(job, "baselines-mlperf-cpu-second")
    rescore(old, 50.0)
    for file in (old, accuracy_baselines.scores_path(old)):
        folder = job.workspace / "baselines" / "accuracy" / "first" / file.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    assert f"32 scores -> {ACCURACY}" in job.ends(0, TABLE).stdout

    (job.workspace / "recorded" / "baselines-mlperf-cpu-first").rename(job.folder / "alone")
    shutil.rmtree(job.workspace / "recorded")
    (job.folder / "alone").rename(job.workspace / "recorded")
    assert f"32 scores -> {ACCURACY}" in job.ends(0, TABLE).stdout


def edit_accuracy(job: Runner, edit: Callable[[list[Any]], None]) -> None:
    """Leave only the accuracy results, and change them."""
    file = job.workspace / "merged" / "results.json"
    content = json.loads(file.read_text("utf-8"))
    content["cases"] = [one for one in content["cases"] if one["verdict"]["kind"] == "accuracy"]
    edit(content["cases"])
    file.write_text(json.dumps(sealed(content)), "utf-8")


def other_scores(job: Runner) -> None:
    with accuracy_baselines.scores_path(baseline_of(job)).open("ab") as file:
        file.write(b"x")


def scores_of_gigabytes(job: Runner) -> None:
    file = accuracy_baselines.scores_path(baseline_of(job))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top1.npy", bytes(65 * 2**20))
    assert file.stat().st_size < 2**20


def another_case(job: Runner) -> None:
    text = baseline_of(job).read_text("utf-8").replace('"engine": "null"', '"engine": "other"', 1)
    baseline_of(job).write_text(text, "utf-8")


def name_that_is_a_path(job: Runner) -> None:
    edit_accuracy(job, lambda cases: cases[0]["verdict"]["case"].update(workload="../../../escape"))


UNTAKEN: list[tuple[Callable[[Runner], object], str]] = [
    (other_scores, "its SHA-256 is not the scores_sha256 in"),
    (scores_of_gigabytes, "unpacks to more than 64 MiB"),
    (lambda job: baseline_of(job).write_bytes(b" " * (8 * 2**20 + 1)), "larger than 8 MiB"),
    (another_case, "is of another case than its name"),
    (
        lambda job: rescore(second(job, "baselines-mlperf-cpu-second"), 50.0),
        "recorded twice by cpu, and not the same",
    ),
    (name_that_is_a_path, "workload '../../../escape' cannot be part of a file's path"),
]


def test_recorded_files_that_cannot_be_taken_are_refused(job: Runner, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(job.workspace, kept)
    for damage, message in UNTAKEN:
        damage(job)
        done = job.run(TABLE)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        assert list(job.folder.rglob("escape*")) == []
        for name in ("recorded", "merged"):
            shutil.rmtree(job.workspace / name)
            shutil.copytree(kept / name, job.workspace / name)


def test_two_machines_that_recorded_different_scores_need_a_choice(job: Runner) -> None:
    """No hardware is part of the file's name; `select` says whose scores are accepted."""
    rescore(second(job, "baselines-mlperf-H200-first"), 50.0)

    def on_two_machines(cases: list[Any]) -> None:
        cases.append(json.loads(json.dumps(cases[0])))
        cases[1]["verdict"]["case"]["accelerator"] = "H200"

    edit_accuracy(job, on_two_machines)

    refused, chosen = job.run(TABLE), job.run(TABLE, SELECT=CASE.replace("cpu", "H200"))

    assert refused.returncode == 2
    assert "recorded different scores: select one of them" in refused.stderr
    assert chosen.returncode == 0
    assert "  top1 new " in chosen.stdout


@pytest.fixture
def github(job: Runner) -> GitHub:
    return GitHub(job)


def test_a_machines_records_come_back_and_the_writing_job_reads_a_patch() -> None:
    """One case that is INVALID ends the job with 1, and the scores of all others are accepted."""
    steps = workflow("gpu").jobs["run"]["steps"]
    (upload,) = [s for s in steps if s.get("with", {}).get("name", "").startswith("baselines-")]
    first, second = UPDATE.jobs["read"], UPDATE.jobs["propose"]
    downloads = [s["with"]["name"] for s in second["steps"] if "download" in str(s.get("uses"))]

    assert upload["if"].startswith("always() && steps.suite.outputs.artifact != '' && (")
    assert "write" not in first["permissions"].values()
    assert "setup-python" not in str(second["steps"])
    assert downloads == ["proposal"]


def test_all_artifacts_are_named_with_their_digests(github: GitHub) -> None:
    """Each job of a large fleet leaves two, and GitHub lists a hundred at a time."""
    jobs = [artifact(f"{kind}mlperf-H100-s{n}") for n in range(50) for kind in ("", "baselines-")]
    second = {ARTIFACTS.replace("&page=1", "&page=2"): {"artifacts": KEPT}}
    for artifacts, more in ((KEPT, {}), (jobs, second)):
        run = {RUN: run_of_gpu(display_title="gpu: baseline")}
        github.answers({**run, ARTIFACTS: {"artifacts": artifacts}, **more})
        github.runner.ends(0, REFUSE)
        text = (github.runner.workspace / "artifacts.txt").read_text("utf-8")
        counts = (text.count("- `baselines-"), text.count("- `merged-results`"))
        assert counts == (51 if more else 1, 1)
        assert text.startswith(f"Run 123 of main at {'c' * 40}:\n\n- `")
        assert f"- `baselines-mlperf-cpu-first` sha256:{'d' * 64}\n" in text


def test_a_run_that_may_not_make_baselines_is_refused(github: GitHub) -> None:
    fine = run_of_gpu(display_title="x")
    for run_id, run, artifacts in (
        ("123", run_of_gpu(), KEPT),
        ("123", run_of_gpu(display_title="x", path=".github/workflows/ci.yml"), KEPT),
        ("123", run_of_gpu(display_title="x", head_repository={"full_name": "a/b"}), KEPT),
        ("123", run_of_gpu(display_title="x", status="in_progress"), KEPT),
        ("123", fine, []),
        ("123", fine, [artifact("merged-results", expired=True)]),
        ("123/../124", fine, KEPT),
        ("$(touch pwned)", fine, KEPT),
    ):
        github.answers({RUN: run, ARTIFACTS: {"artifacts": artifacts}})

        assert github.runner.run(REFUSE, RUN_ID=run_id).returncode == 1, (run_id, run, artifacts)
    assert list(github.runner.folder.rglob("pwned")) == []


@pytest.fixture
def proposal(accepted: Accepted, tmp_path: Path) -> Runner:
    """Return the second job: a clone of the branch, and the first one's artifact."""
    (tmp_path / "second").mkdir()
    runner = Runner(tmp_path / "second", env={**INPUTS, "BASE": "main"})
    first = accepted.runner.workspace
    git(tmp_path, "clone", "--quiet", "--bare", str(first), "origin.git")
    runner.workspace.rmdir()
    git(tmp_path, "clone", "--quiet", "origin.git", str(runner.workspace))
    shutil.copytree(first / "proposal", runner.workspace / "proposal")
    gh(runner, proposals=0)
    return runner


def gh(runner: Runner, proposals: int) -> None:
    """Put a gh in place that writes down its words and knows of proposals of this branch."""
    record = runner.folder / "words"
    listed = f'[ "$1 $2" = "pr list" ] && echo {proposals} && exit 0'
    runner.put("gh", f'#!/bin/sh\n{listed}\nprintf "%s\\n" "$@" >> {record}\n')


def test_the_patch_becomes_one_commit_on_a_branch_of_its_own(proposal: Runner) -> None:
    """A job that is run again changes the proposal that is there."""
    proposal.ends(0, PROPOSE)
    origin = proposal.folder.parent / "origin.git"
    log = git(origin, "log", "--format=%s%n%b", "main..baselines/run-123")
    assert log == f"Baselines of run 123\n{REASON}"
    assert list(proposal.folder.rglob("pwned*")) == []
    names = git(origin, "diff", "--name-only", "main", "baselines/run-123").splitlines()
    assert SCORES.fullmatch(names.pop(0))
    assert names == [ACCURACY, PERFORMANCE]
    words = (proposal.folder / "words").read_text("utf-8").split("\n")
    assert words[:5] == ["auth", "setup-git", "pr", "create", "--base"]
    assert words[5:8] == ["main", "--head", "baselines/run-123"]
    assert "proposal/text.md" in words

    git(proposal.workspace, "checkout", "--quiet", "main")
    git(proposal.workspace, "branch", "--quiet", "-D", "baselines/run-123")
    (proposal.folder / "words").unlink()
    gh(proposal, proposals=1)
    proposal.ends(0, PROPOSE)
    words = (proposal.folder / "words").read_text("utf-8").splitlines()
    assert words[2:5] == ["pr", "edit", "baselines/run-123"]


PATCH = """\
diff --git a/{name} b/{name}
new file mode 100644
--- /dev/null
+++ b/{name}
@@ -0,0 +1 @@
+on: push
"""


def test_a_patch_of_anything_else_is_refused(proposal: Runner) -> None:
    patch = proposal.workspace / "proposal" / "baselines.patch"
    whole = patch.read_text("utf-8")
    names = (
        *(".github/workflows/x.yml", "baselines/../conftest.py", "baselines2/x.json"),
        *("conftest.py", "baselines/conftest.py", "baselines/.gitattributes", "baselines/x.yml"),
        *("baselines/.x/y.json", "baselines/a b.json", "baselines/README.md", "x.json"),
        *("baselines/a.json.sh", ".git/hooks/pre-commit.json", "BASELINES/x.json"),
    )
    for name in names:
        patch.write_text(whole + PATCH.format(name=name), "utf-8")

        refuses(proposal, name)


def refuses(proposal: Runner, case_name: str) -> None:
    """Check that nothing is pushed and no file is written; put the branch back."""
    status = git(proposal.workspace, "status", "--short")
    done = proposal.run(PROPOSE)
    assert done.returncode != 0, case_name + done.stdout
    assert git(proposal.folder.parent / "origin.git", "branch", "--list", "baselines/*") == ""
    git(proposal.workspace, "reset", "--quiet")
    assert git(proposal.workspace, "status", "--short") == status, case_name
    git(proposal.workspace, "reset", "--quiet", "--hard")
    git(proposal.workspace, "checkout", "--quiet", "main")
    git(proposal.workspace, "branch", "--quiet", "-D", "baselines/run-123")


OLD = "baselines/accuracy/old/null.fp32"
EXECUTABLE, LINK, SUBMODULE = "100755", "120000", "160000"

WRONG: dict[str, list[tuple[str, ...]]] = {
    "a workflow renamed to a baseline": [("mv", ".github/gpu.yml", "baselines/gpu.json")],
    "a renamed baseline": [("mv", f"{OLD}.json", "baselines/accuracy/old/other.fp32.json")],
    "a removed baseline": [("rm", f"{OLD}.json")],
    "scores removed, and their baseline is unchanged": [("rm", f"{OLD}.0123456789ab.scores.npz")],
    "scores removed beside another case": [
        ("rm", f"{OLD}.0123456789ab.scores.npz"),
        ("add", "baselines/accuracy/old/other.fp32.json"),
    ],
    "an executable baseline": [("chmod", f"{OLD}.json", EXECUTABLE)],
    "a new executable": [("chmod", "baselines/new.json", EXECUTABLE)],
    "a link": [("chmod", "baselines/link.json", LINK)],
    "a link in the place of a baseline": [("chmod", f"{OLD}.json", LINK)],
    "a submodule": [("chmod", "baselines/module.json", SUBMODULE)],
    "a submodule in the place of a baseline": [("chmod", f"{OLD}.json", SUBMODULE)],
    "a name of two lines": [("add", "baselines/a\nb.json")],
    "a removed page": [("rm", "baselines/README.md")],
    "a changed workflow": [("add", ".github/gpu.yml")],
    "a baseline beside a workflow": [("add", "baselines/a.json"), ("add", ".github/x.json")],
}


def patched(folder: Path, steps: list[tuple[str, ...]]) -> bytes:
    """Return the patch of some changes, with its renames, and put the index back."""
    for step in steps:
        match step:
            case ("mv", old, new):
                git(folder, "mv", old, new)
            case ("rm", name):
                git(folder, "rm", "--quiet", name)
            case ("add" | "chmod", name, *modes):
                git(folder, "update-index", "--add", "--cacheinfo", blob(folder, name, *modes))
    patch = subprocess.check_output(
        ["git", "diff", "--cached", "--binary", "--find-renames"], cwd=folder
    )
    git(folder, "reset", "--quiet", "--hard")
    return patch


def blob(folder: Path, name: str, mode: str = "100644") -> str:
    """Return an entry of git's index with a new content."""
    content = "../.github\n" if mode == LINK else "{}\n"
    command = ["git", "hash-object", "-w", "--stdin"]
    digest = subprocess.check_output(command, cwd=folder, input=content, text=True).strip()
    if mode == SUBMODULE:
        digest = git(folder, "rev-parse", "HEAD")
    return f"{mode},{digest},{name}"


@pytest.fixture
def filled(proposal: Runner) -> Runner:
    """Return the second job in a repository that has workflows and baselines."""
    folder = proposal.workspace
    for name in (f"{OLD}.json", f"{OLD}.0123456789ab.scores.npz", ".github/gpu.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(map(str, range(50))), "utf-8")
        git(folder, "add", name)
    git(folder, "commit", "--quiet", "-m", "filled")
    git(folder, "push", "--quiet", "origin", "main")
    return proposal


def test_only_regular_files_of_baselines_are_taken_and_nothing_is_renamed(filled: Runner) -> None:
    """What is checked is the index after the patch, and the patch reaches no file before that."""
    patch = filled.workspace / "proposal" / "baselines.patch"
    for case_name, steps in WRONG.items():
        patch.write_bytes(patched(filled.workspace, steps))

        refuses(filled, case_name)
    patch.write_text("", "utf-8")
    refuses(filled, "an empty patch")
    assert git(filled.workspace, "log", "--format=%s", "-1") == "filled"


def test_scores_that_a_changed_baseline_no_longer_names_are_removed(filled: Runner) -> None:
    new = f"{OLD}.ba9876543210.scores.npz"
    steps = [("add", f"{OLD}.json"), ("mv", f"{OLD}.0123456789ab.scores.npz", new)]
    patch = filled.workspace / "proposal" / "baselines.patch"
    patch.write_bytes(patched(filled.workspace, steps))

    filled.ends(0, PROPOSE)

    origin = filled.folder.parent / "origin.git"
    command = ("diff", "--name-status", "--no-renames", "main", "baselines/run-123")
    assert git(origin, *command).split() == [
        *("D", f"{OLD}.0123456789ab.scores.npz"),
        *("A", new),
        *("M", f"{OLD}.json"),
    ]
