"""report.yml: one comment on the pull request that was measured, by GitHub's word and no other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.addons.github.comment import MARKER
from pytest_mlperf.stores.results import write_results
from tests.reports.verdicts import DROP, OK, result, session
from tests.workflows.github import SCRIPTS, GitHub, Runner, workflow

pytestmark = pytest.mark.process

REPORT = workflow("report")
FIND = REPORT.script("read", "Find the pull request")
WRITE = REPORT.script("read", "Write the comment")
POST = REPORT.script("post", "Post or replace")

SHA, NEWER = "a" * 40, "b" * 40
PULL = "GET repos/lab/bench/pulls/7"
URL = "https://github.com/lab/bench/actions/runs/123"


def run_of_gpu(**changes: Any) -> dict[str, Any]:
    """Return a run for an approved commit, as GitHub describes it."""
    return {
        "id": 123,
        "path": ".github/workflows/gpu.yml",
        "status": "completed",
        "display_title": f"gpu: {SHA} of pull request 7",
        "head_branch": "main",
        "head_sha": "c" * 40,
        "head_repository": {"full_name": "lab/bench"},
        **changes,
    }


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    runner = Runner(tmp_path)
    runner.scripts_of_ours()
    fake_github = GitHub(runner)
    fake_github.event({"workflow_run": run_of_gpu()})
    return fake_github


def pull(sha: str = SHA, state: str = "open") -> dict[str, Any]:
    return {"number": 7, "state": state, "head": {"sha": sha, "ref": "fix"}}


def test_the_pull_request_is_the_one_that_a_maintainer_approved(github: GitHub) -> None:
    """And a branch of ours is found by its name and commit."""
    for answer, number, sha in (
        (pull(), "7", SHA),
        (pull(NEWER), "", ""),
        (pull(state="closed"), "", ""),
    ):
        github.answers({PULL: answer})
        github.runner.ends(0, FIND)
        assert github.runner.outputs() == {"number": number, "sha": sha}
        (github.runner.folder / "output").unlink()

    run = run_of_gpu(display_title="gpu: gate", head_branch="fix", head_sha=SHA)
    github.event({"workflow_run": run})
    for pulls, number in (([pull()], "7"), ([], ""), ([pull(NEWER)], "")):
        github.answers({OF_BRANCH: pulls})
        github.runner.ends(0, FIND)
        assert github.runner.outputs()["number"] == number


OF_BRANCH = "GET repos/lab/bench/pulls?state=open&head=lab%3Afix&per_page=100&page=1"


def test_a_run_or_a_title_that_is_another_is_refused(github: GitHub) -> None:
    """With another title the run is one of a branch, and `main` has no pull request."""
    github.answers({PULL: pull()})
    for changes in (
        {"path": ".github/workflows/ci.yml"},
        {"path": ".github/workflows/gpu.yml.yml@refs/heads/x"},
        {"head_repository": {"full_name": "stranger/bench"}},
        {"status": "in_progress"},
    ):
        github.event({"workflow_run": run_of_gpu(**changes)})

        github.runner.ends(1, FIND)
        assert "number" not in github.runner.outputs()

    github.answers({PULL: pull(), OF_BRANCH.replace("lab%3Afix", "lab%3Amain"): []})
    for title in (
        f"gpu: {SHA} of pull request 7\n8",
        f"gpu: {SHA} of pull request 7 ",
        f"x gpu: {SHA} of pull request 7",
        f"gpu: {SHA[:12]} of pull request 7",
        f"gpu: {SHA} of pull request 0",
        "gpu: gate",
    ):
        github.event({"workflow_run": run_of_gpu(display_title=title)})

        github.runner.ends(0, FIND)
        assert github.runner.outputs()["number"] == "", title


def test_the_workflow_and_its_scripts_agree() -> None:
    name = workflow("gpu").content["run-name"]
    read, write = REPORT.jobs["read"], REPORT.jobs["post"]

    assert "format('gpu: {0} of pull request {1}', inputs.sha, inputs.pr)" in name
    assert r"gpu: ([0-9a-f]{40}) of pull request ([1-9]" in (SCRIPTS / "gpu_run.py").read_text()
    assert f'MARKER = "{MARKER}"' in (SCRIPTS / "comment.py").read_text("utf-8")
    assert "write" not in read["permissions"].values()
    assert not any("download-artifact" in str(step) for step in write["steps"])
    assert "pip" not in str(write["steps"])


def write(runner: Runner) -> str:
    runner.ends(0, WRITE, URL=URL)
    return runner.outputs()["text"]


def test_the_comment_names_the_verdict_first_and_links_the_run(github: GitHub) -> None:
    assert write(github.runner).startswith(f"{MARKER}\n**mlperf: failed: no result**\n")
    write_results(github.runner.workspace / "merged" / "results.json", session(result(DROP)))

    text = write(github.runner)

    assert text.startswith(f"{MARKER}\n**mlperf: failed: 1 PERF DROP**\n")
    assert f"[the run]({URL})" in text
    assert f"[the report]({URL}#artifacts)" in text


HOSTILE = "x\nnumber=8\nEOF\n<script>alert(1)</script> @team $(touch pwned) ](http://evil) `"


def test_a_hostile_text_sets_no_output_and_no_markup(github: GitHub) -> None:
    """Damaged results stop the job and post nothing."""
    file = github.runner.workspace / "merged" / "results.json"
    file.parent.mkdir()
    for content in ("{", "[]", '{"schema": 1}', '{"schema": 99}'):
        file.write_text(content, "utf-8")
        github.runner.ends(2, WRITE, URL=URL)
        assert github.runner.outputs() == {}
    case_result = result(replace(OK, outcome=DROP.outcome, headline=HOSTILE), failed=True)
    write_results(file, session(case_result))

    text = write(github.runner)

    assert set(github.runner.outputs()) == {"text"}
    assert [part for part in ("<script>", "@team", "](http://evil)") if part in text] == []
    assert list(github.runner.folder.rglob("pwned")) == []


PAGE = "GET repos/lab/bench/issues/7/comments?per_page=100&page="
NEW = "POST repos/lab/bench/issues/7/comments"
TEXT = f"{MARKER}\n**mlperf: no drop proven in 2 tests**\n$(touch pwned) `\"'\n"


def remark(number: int, login: str, body: str) -> dict[str, Any]:
    return {"id": number, "user": {"login": login}, "body": body}


BOT = "github-actions[bot]"


def post(github: GitHub, **changes: str) -> tuple[int, str]:
    variables = {"NUMBER": "7", "SHA": SHA, "TEXT": TEXT, **changes}
    done = github.runner.run(POST, **variables)
    return done.returncode, done.stdout


def test_the_first_report_is_posted_and_the_next_one_replaces_it(github: GitHub) -> None:
    """It is found behind a hundred others, by its first line and its author."""
    others = [remark(1, "stranger", f"{MARKER}\nnot ours"), remark(2, BOT, f"quotes {MARKER}")]
    github.answers({PULL: pull(), f"{PAGE}1": others, NEW: {}})

    assert post(github) == (0, "commented on pull request 7\n")
    assert github.requests()[-1] == (NEW, {"body": TEXT})
    assert list(github.runner.folder.rglob("pwned")) == []

    change = "PATCH repos/lab/bench/issues/comments/205"
    pages = {
        f"{PAGE}1": [remark(number, "somebody", "+1") for number in range(100)],
        f"{PAGE}2": [remark(205, BOT, f"{MARKER}\r\nold")],
    }
    github.answers({PULL: pull(), **pages, change: {}})

    assert post(github) == (0, "replaced the comment of pull request 7\n")
    assert github.requests()[-1] == (change, {"body": TEXT})


def test_nothing_is_posted_that_is_old_or_no_report(github: GitHub) -> None:
    github.answers({PULL: pull(NEWER)})

    code, output = post(github)

    assert code == 0
    assert "has moved on" in output
    assert [key for key, _ in github.requests()] == [PULL]

    github.answers({PULL: pull(), f"{PAGE}1": [], NEW: {}})
    for changes in ({"TEXT": "buy this"}, {"NUMBER": "7/../8"}, {"NUMBER": ""}):
        assert post(github, **changes)[0] == 1
        assert NEW not in [key for key, _ in github.requests()]


def test_a_change_of_its_own_suite_or_baseline_is_reported_before_the_verdict(
    github: GitHub,
) -> None:
    """By the digests in its results, and by the plan's reading of a fork before its code ran."""
    folder = github.runner.workspace
    for name in ("suites/rn.mlperf.toml", "baselines/a.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of the branch\n", "utf-8")
    same = hashlib.sha256(b"of the branch\n").hexdigest()
    file = folder / "merged" / "results.json"
    for rests_on, listed, paths in (
        ({"suites/rn.mlperf.toml": same, "baselines/a.json": same}, None, []),
        ({"suites/rn.mlperf.toml": "0" * 64}, None, ["suites/rn.mlperf.toml"]),
        ({"baselines/a.json": same}, ["baselines/a.json"], ["baselines/a.json"]),
        ({"baselines/new.json": same}, None, ["baselines/new.json"]),
        ({"../workspace/baselines/a.json": same}, [], ["../workspace/baselines/a.json"]),
        ({str(folder / "baselines/a.json"): same}, [], [str(folder / "baselines/a.json")]),
        ({}, ["conftest.py", "x`<img src=x>\n@team.mlperf.toml"], ["conftest.py"]),
        ({}, [f"suites/{number:03}.mlperf.toml" for number in range(30)], ["and 10 more"]),
    ):
        write_results(file, session(replace(result(OK), rests_on=rests_on)))
        (folder / "merged" / "judged-by.json").unlink(missing_ok=True)
        if listed is not None:
            text = json.dumps({"judged_by_other": listed})
            (folder / "merged" / "judged-by.json").write_text(text, "utf-8")

        comment_text = write(github.runner)

        first, verdict = comment_text.index("**"), comment_text.index("**mlperf: ")
        assert (first == verdict) is (paths == []), rests_on
        assert all(comment_text.index(path) < verdict for path in paths), comment_text
        assert "\n@team" not in comment_text
    for text in ("[]", "{", '{"judged_by_other": [1]}', '{"judged_by_other": "x"}'):
        (folder / "merged" / "judged-by.json").write_text(text, "utf-8")
        github.runner.ends(2, WRITE, URL=URL)
