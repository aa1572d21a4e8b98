"""bench/tree.py: files that changed since a commit, those that a run loaded apart from others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mlperf.bench.bench import tree_changes
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.core.job import Factory, Job, ScoringPlan
from pytest_mlperf.run.project import commit_of
from tests.core.made import present
from tests.run.test_figures import SERVED, job
from tests.stores.killed import git

pytestmark = pytest.mark.process

FILES = (
    *("suites/s.mlperf.toml", "data.py", "README.md", "model/config.json", "files/labels.txt"),
    *("adapter.bin", "serve.sh", "baselines/cpu/a.json", "accepted/b.json", "tests/run/harness.py"),
)


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, Job, str]:
    """Return a project in git, a job that names files of it, and its commit."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    whole = replace(
        job(tmp_path / "suites", SERVED),
        model=str(tmp_path / "model"),
        engine=Factory(
            target="pytest_mlperf.builtin.null:NullEngine",
            options={"serve": ["../serve.sh"], "args": [f"--adapter={tmp_path}/adapter.bin", "."]},
        ),
        dataset=Factory(target="data:Samples", options={"path": str(tmp_path / "files")}),
    )
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path, whole, present(commit_of(tmp_path))


def changed_files(
    root: Path, job: Job, commit: str | None, imported: tuple[str, ...] = ()
) -> tuple[list[str], list[str]]:
    policy = Policy(accuracy=root, root=root, baselines=root / "accepted")
    return tree_changes(policy, commit, job, root / "suites/s.mlperf.toml", imported)


def test_imported_and_named_files_are_separated_from_other_changes(
    project: tuple[Path, Job, str],
) -> None:
    """Changes may be committed or not.

    Baselines are not code, and an outer folder tells nothing.
    """
    root, whole, commit = project
    assert changed_files(root, whole, commit) == ([], [])
    for name in FILES:
        (root / name).write_text("second")
        if name == "README.md":
            git(root, "commit", "--quiet", "--all", "--message=second")

    (loaded, others), unknown = changed_files(root, whole, commit, (str(root / "data.py"),))

    since = f"in git since {commit}"
    names = "adapter.bin, data.py, files/labels.txt"
    assert loaded == f"files.loaded 6 {since}: {names} and 3 more"
    assert others == f"files.other 2 {since}: README.md, tests/run/harness.py"
    assert unknown == []
    around = replace(whole, model=str(root))
    assert changed_files(root, around, commit)[0][0].split(":")[0] == f"files.loaded 4 {since}"
    scorer = Factory(target="data:Scorer", options={"table": "../README.md"})
    scored = replace(whole, scoring=ScoringPlan(scorer=scorer))
    assert changed_files(root, scored, commit)[0][0].split(":")[0] == f"files.loaded 6 {since}"


def test_data_beside_a_model_counts_as_loaded_and_compiled_python_as_no_file(
    project: tuple[Path, Job, str],
) -> None:
    root, whole, _ = project
    names = ("m.onnx", "m.onnx.data", "m.onnx_data", "__pycache__/data.cpython-311.pyc", "n.onnx")
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("first")
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", "--message=model")
    commit = present(commit_of(root))
    for name in names[1:]:
        (root / name).write_text("second")

    (loaded, others), unknown = changed_files(
        root, replace(whole, model=str(root / "m.onnx")), commit
    )

    assert loaded == f"files.loaded 2 in git since {commit}: m.onnx.data, m.onnx_data"
    assert others == f"files.other 1 in git since {commit}: n.onnx"
    assert unknown == []
    (root / "n.onnx").write_text("first")
    (root / "m.onnx.data").write_text("first")
    (root / "m.onnx_data").write_text("first")
    assert commit_of(root) == commit


def test_lines_are_bounded(project: tuple[Path, Job, str]) -> None:
    root, whole, commit = project
    for number in range(300):
        (root / f"{number}.py").write_text("new")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=many")

    ((line,), _) = changed_files(root, whole, commit)

    names = ", ".join(f"{number}.py" for number in (0, 1, 10))
    assert line == f"files.other 300 in git since {commit}: {names} and 297 more"


def test_nothing_is_claimed_about_files_outside_of_git(
    project: tuple[Path, Job, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, whole, commit = project
    (root / "README.md").write_text("second")
    new = root / "new.py"
    new.write_text("a = 1")
    (root / ".gitignore").write_text("ignored.py\n")
    (root / "ignored.py").write_text("a = 1")
    outside = tmp_path_factory.mktemp("outside")

    assert changed_files(root, whole, None) == ([], [])
    for folder, then in ((root, "0123456789ab"), (root, "--output=a"), (outside, commit)):
        text = f"files: not compared, this clone lacks commit {then}"
        assert changed_files(folder, whole, then) == ([], [text])
    assert not (root / "a").exists()
    dirty = f"files: not compared, the baseline was recorded with uncommitted changes ({commit}+)"
    assert changed_files(root, whole, f"{commit}+") == ([], [dirty])
    imported = (str(new), str(root / "ignored.py"), str(outside / "elsewhere.py"))
    lines, unknown = changed_files(root, whole, commit, imported)
    assert [line.split(" ")[0] for line in lines] == ["files.other"]
    assert unknown == ["files that are not in git and may have changed: new.py"]
    too_many = tuple(str(root / f"{number:0200}") for number in range(15_000))
    _, unknown = changed_files(root, whole, commit, too_many)
    assert unknown == ["files: not compared, git cannot list them"]
