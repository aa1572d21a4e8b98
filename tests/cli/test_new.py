"""`pytest-mlperf new` writes a module and a test that pass as they are, or nothing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pytest_mlperf.cli.new import KINDS
from tests.cli.lab import ROOT
from tests.cli.test_init import tree
from tests.cli.text import Say, differing, finished

pytestmark = pytest.mark.usefixtures("here")

LONGEST = "a-name_of_20_letters"
PROJECT = '[project]\nname = "My-Project"\n'


@pytest.fixture
def checkout(here: Path) -> Path:
    """A folder that is taken for a checkout of this project."""
    shutil.copy(ROOT / "pyproject.toml", here)
    return here


def packages(folder: Path, *names: str) -> None:
    """Write a project with packages."""
    (folder / "pyproject.toml").write_text(PROJECT)
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()


def test_without_a_package_module_and_test_are_beside_each_other(here: Path, say: Say) -> None:
    """The module is not called as a library that it may use."""
    assert say.ends(0, "new", "engine", "my-torch") == (
        "wrote my_torch_engine.py\n"
        "wrote test_my_torch_engine.py\n"
        "next: pytest test_my_torch_engine.py\n"
        '      in a suite: [[engines]] use = "my_torch_engine:MyTorchEngine"\n'
    )
    output = say.ends(0, "new", "dataset", "lines_dataset")
    assert 'dataset = { use = "lines_dataset:LinesDataset", path = "FILE" }' in output
    assert 'scorer = { use = "wer_scorer:WerScorer" }' in say.ends(0, "new", "scorer", "wer")
    names = {"my_torch_engine", "lines_dataset", "wer_scorer"}
    assert tree(here) == {f"{before}{name}.py" for name in names for before in ("", "test_")}


def test_in_a_package_the_entry_point_is_shown(here: Path, say: Say) -> None:
    packages(here, "acme", "tests")
    assert say.ends(0, "new", "scorer", "word-overlap") == (
        "wrote acme/word_overlap_scorer.py\n"
        "wrote tests/test_word_overlap_scorer.py\n"
        "next: add to pyproject.toml:\n"
        '        [project.entry-points."pytest_mlperf.scorers"]\n'
        '        word-overlap = "acme.word_overlap_scorer:WordOverlapScorer"\n'
        "      pip install -e .\n"
        "      pytest tests/test_word_overlap_scorer.py\n"
        '      in a suite: scorer = { use = "word-overlap" }\n'
    )
    assert (here / "pyproject.toml").read_text() == PROJECT


def test_the_package_is_the_only_one_or_the_one_called_as_the_project(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        ("acme", "tests"): "acme/x_engine.py",
        ("acme", "my_project"): "my_project/x_engine.py",
        ("acme", "other"): "x_engine.py",
        ("src/acme", "docs"): "src/acme/x_engine.py",
        (): "x_engine.py",
    }
    written = {}
    for number, names in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        packages(folder, *names)
        monkeypatch.chdir(folder)
        output = say.ends(0, "new", "engine", "x")
        written[names] = output.split()[1]
        assert '"src.' not in output

    assert written == rows


def test_here_it_becomes_part_of_this_project(checkout: Path, say: Say) -> None:
    """One line more in pyproject.toml, the last of its table."""
    lines_at_start = (checkout / "pyproject.toml").read_text("utf-8").splitlines()
    assert say.ends(0, "new", "dataset", "rows", "--here") == (
        "wrote pytest_mlperf/adapters/datasets/rows.py\n"
        "wrote tests/adapters/datasets/test_rows.py\n"
        "wrote pyproject.toml\n"
        "next: make schemas\n"
        "      pytest tests/adapters/datasets/test_rows.py\n"
        "      describe it in docs/workloads.md and CHANGELOG.md\n"
    )
    lines = (checkout / "pyproject.toml").read_text("utf-8").splitlines()
    line = 'rows = "pytest_mlperf.adapters.datasets.rows:RowsDataset"'
    position = lines.index(line)
    assert lines[:position] + lines[position + 1 :] == lines_at_start
    assert lines[position + 1 : position + 3] == [
        "",
        '[project.entry-points."pytest_mlperf.scorers"]',
    ]
    (checkout / "pytest_mlperf/adapters/datasets/rows.py").unlink()
    assert "'rows' exists already" in say.ends(2, "new", "dataset", "rows", "--here")


def test_what_cannot_be_is_refused_and_nothing_is_written(here: Path, say: Say) -> None:
    names = ("class", "My", "1st", "a.b", "a b", "../a", "", "é", f"{LONGEST}x")
    rows: list[tuple[tuple[object, ...], int, tuple[str, ...]]] = [
        (("new", "engine", name), 2, (f"{name!r} cannot be the name of a module",))
        for name in names
    ]
    taken = "scorer 'rouge' exists already (pytest_mlperf.adapters.scorers.rouge"
    rows += [
        (("new", "scorer", "rouge"), 2, (taken, "Choose another name")),
        (("new", "engine", "x", "--here"), 2, ("is not a checkout of pytest-mlperf",)),
    ]
    assert differing(say, rows) == []
    assert tree(here) == set()
    (here / "pyproject.toml").write_text("project = ")
    assert "pyproject.toml: cannot be read as TOML" in say.ends(2, "new", "engine", "x")
    assert tree(here) == {"pyproject.toml"}


def test_this_project_itself_is_changed_only_if_asked(checkout: Path, say: Say) -> None:
    assert "is a checkout of pytest-mlperf; add --here" in say.ends(2, "new", "engine", "x")
    assert tree(checkout) == {"pyproject.toml"}


def test_nothing_is_overwritten_and_nothing_half_written(checkout: Path, say: Say) -> None:
    content_at_start = (checkout / "pyproject.toml").read_bytes()
    for name in ("pytest_mlperf/adapters/engines/x.py", "tests/adapters/engines/test_x.py"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("mine")
        output = say.ends(2, "new", "engine", "x", "--here")
        assert f"{name} exists; nothing was written. Choose another name: " in output
        assert tree(checkout) == {name, "pyproject.toml"}
        shutil.rmtree(checkout / name.partition("/")[0])
    (checkout / "tests").write_text("no folder")
    assert "cannot be written: " in say.ends(2, "new", "engine", "x", "--here")
    assert tree(checkout) == {"tests", "pyproject.toml"}
    assert (checkout / "pyproject.toml").read_bytes() == content_at_start


@pytest.mark.process
def test_all_are_right_as_they_are_written(here: Path, say: Say) -> None:
    """Their tests pass, where the project's own rules of pytest are strict."""
    (here / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error")
    for kind in KINDS:
        say.ends(0, "new", kind, "my-own")
    done = finished(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=here)
    assert (done.returncode, "4 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.process
@pytest.mark.parametrize("name", ["x", LONGEST])
def test_all_keep_the_format_and_the_rules_of_this_project(
    name: str, checkout: Path, say: Say
) -> None:
    for kind in KINDS:
        say.ends(0, "new", kind, name, "--here")
    # Imports are sorted by the modules that are there.
    for module in ("extension", "testing"):
        (checkout / "pytest_mlperf" / f"{module}.py").write_text('"""Public names."""\n')
    for command in (("format", "--check"), ("check", "--no-cache")):
        done = finished(sys.executable, "-m", "ruff", *command, ".", cwd=checkout)
        assert done.returncode == 0, done.stdout


@pytest.mark.nightly
@pytest.mark.process
def test_all_are_typed(here: Path, say: Say) -> None:
    for kind in KINDS:
        say.ends(0, "new", kind, "my-own")
    done = finished(sys.executable, "-m", "mypy", "--strict", "--cache-dir", here / "cache", ".")
    assert done.returncode == 0, done.stdout


def test_the_example_of_the_guide_is_what_is_written(checkout: Path, say: Say) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert say.ends(0, "new", "scorer", "contains", "--here") in guide
    lines = (checkout / "pytest_mlperf/adapters/scorers/contains.py").read_text("utf-8")
    assert "".join(f"+{line}" for line in lines.splitlines(keepends=True)) in guide
    test = (checkout / "tests/adapters/scorers/test_contains.py").read_text("utf-8")
    body = test[test.index("@pytest") :]
    assert "".join(f"+{line}\n" for line in body.splitlines()) in guide
