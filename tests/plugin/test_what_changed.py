"""Test the report of changes since a baseline, in git and outside."""

from __future__ import annotations

import pytest

from pytest_mlperf.core.verdict import Outcome, Verdict
from pytest_mlperf.run.project import commit_of
from tests.core.made import present
from tests.plugin.project import Project
from tests.stores.killed import git

DATA = """
import pixels
from pytest_mlperf.run.worker.samples import Samples

class Pictures(Samples):
    def __init__(self, path):
        super().__init__([[1, 2], [3, 4]] * 8)

    digest = "of the files"

    def input(self, index):
        return pixels.scaled(super().input(index))
"""


SYNTHETIC = 'dataset = { use = "synthetic", samples = 32 }'


def committed(project: Project, **files: str) -> str:
    for name, content in files.items():
        (project.path / name.replace("_", ".")).write_text(content)
    git(project.path, "add", "--all")
    git(project.path, "commit", "--quiet", "--message=change")
    return present(commit_of(project.path))


@pytest.fixture
def own_project(project: Project) -> Project:
    """Return a project in git whose data set imports a module of its own."""
    git(project.path, "init", "--quiet")
    suite = project.suite()
    data = 'dataset = { use = "data:Pictures", path = "../files" }'
    suite.write_text(suite.read_text().replace(SYNTHETIC, data))
    (project.path / "files").mkdir()
    (project.path / "files" / "labels.txt").write_text("1")
    project.pytester.syspathinsert()
    return project


def last(project: Project, kind: str = "performance") -> Verdict:
    files = project.path.glob(".mlperf/runs/*/results.json")
    newest = max(files, key=lambda file: file.stat().st_mtime_ns)
    return project.verdicts(str(newest))[kind]


@pytest.mark.process
def test_changed_files_are_separated_by_whether_the_run_loaded_them(own_project: Project) -> None:
    scaled = "def scaled(pixels):\n    return [one / 4 for one in pixels]\n"
    then = committed(own_project, data_py=DATA, pixels_py=scaled, other_py="", README_md="first")
    assert own_project.record("suites", "-k", "performance").ret == 0
    committed(own_project)
    unchanged = last(own_project)
    assert (unchanged.baseline.changed, unchanged.baseline.unknown) == ((), ())

    own_project.run("suites", "-k", "performance")
    same = last(own_project)
    committed(own_project, pixels_py=scaled.replace("4", "5"), other_py="1 / 0", README_md="second")
    (own_project.path / "files" / "labels.txt").write_text("2")
    own_project.run("suites", "-k", "performance")
    fell = last(own_project)

    assert (same.baseline.changed, same.baseline.unknown) == ((), ())
    loaded, others, first, sixteen = fell.baseline.changed
    assert loaded == f"files.loaded 2 in git since {then}: files/labels.txt, pixels.py"
    assert others == f"files.other 2 in git since {then}: README.md, other.py"
    assert (first[:13], sixteen[:16]) == ("inputs.first ", "inputs.first_16 ")
    assert fell.baseline.unknown == ()


ANSWERS = '[[engines]]\nuse = "tests.bench.answers:Answers"\noptions = {{ wrong = {} }}\n'


@pytest.mark.process
def test_changes_since_one_baseline_are_not_causes_against_the_other(project: Project) -> None:
    """If scores failed, speed is not judged: changes since the scores' baseline are listed."""
    reference = 'scorer = { use = "top1" }'
    for wrong, options in (
        (0, ("-k", "accuracy", "--mlperf-update=missing")),
        (1, ("-k", "performance", "--mlperf-update=missing", "-omlperf_baseline_runs=1")),
        (40, ()),
    ):
        suite = project.suite(engines=ANSWERS.format(wrong))
        data = SYNTHETIC.replace("32", "400")
        suite.write_text(suite.read_text().replace(SYNTHETIC, f"{data}\n{reference}"))
        ended = project.run("suites", *options)

    accuracy, performance = (last(project, kind) for kind in ("accuracy", "performance"))

    assert (accuracy.outcome, performance.outcome) == (Outcome.ACC_DROP, Outcome.INVALID)
    assert (
        performance.baseline.changed
        == accuracy.baseline.changed
        == ('options {"wrong": 0} → {"wrong": 40}',)
    )
    assert performance.baseline.file == accuracy.baseline.file
    assert '"wrong": 1' not in ended.stdout.str()
