"""Finding suites, and naming their tests as pytest itself does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_mlperf.cli.suites import find_suites, node_id, read_suites, rootdir
from pytest_mlperf.core.errors import MlperfError, SuiteError

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "{name}"
scorer = {{ use = "top1" }}
[[engines]]
use = "null"
[[scenarios]]
name = "Offline"
[[scenarios]]
name = "SingleStream"
"""


def write(*files: str) -> None:
    """Write files; a suite is named after its file."""
    for file in files:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        suite = path.name.endswith(".mlperf.toml")
        path.write_text(SUITE.format(name=path.name.partition(".")[0]) if suite else "")


@pytest.fixture(autouse=True)
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a folder above it."""
    work = pytester.mkdir("work")
    monkeypatch.chdir(work)
    return work


def names(*arguments: str) -> list[str]:
    return [path.as_posix() for path in find_suites([Path(argument) for argument in arguments])]


def test_suites_are_found_below_folders_in_a_stable_order_each_once() -> None:
    """Hidden folders and outputs of builds are not searched; without suites/ only this folder."""
    write("here.mlperf.toml", "deep/below.mlperf.toml")
    assert names() == ["here.mlperf.toml"]
    suites = ["suites/a.mlperf.toml", "suites/b/c.mlperf.toml", "suites/b/z.mlperf.toml"]
    hidden = [f"suites/{name}/x.mlperf.toml" for name in (".git", "build", "node_modules")]
    write(*reversed(suites), "suites/x.toml", *hidden)
    assert names() == names("suites") == suites
    assert names("suites/b", "suites/a.mlperf.toml", "suites") == [*suites[1:], suites[0]]


def test_files_without_a_suite_are_named() -> None:
    write("a.toml", "empty/nothing")
    for argument, message in {
        "": "no suites/ and no *.mlperf.toml in ",
        "gone": "gone does not exist; name a suite file or a folder of suites",
        "a.toml": "a.toml is not a suite: its name must end with .mlperf.toml",
        "empty": "no *.mlperf.toml in ",
    }.items():
        with pytest.raises(MlperfError) as caught:
            names(*argument.split())
        assert str(caught.value).startswith(message)


def test_the_defects_of_all_suites_are_listed_at_once() -> None:
    """Two suites that describe one case are refused as pytest refuses them."""
    write("one/same.mlperf.toml", "two/same.mlperf.toml", "baselines/x", "a.mlperf.toml")
    twice = "two/same.mlperf.toml:6: same-Offline-null-fp32-cpu is also in one/"
    with pytest.raises(SuiteError, match=twice):
        read_suites(find_suites([Path("one"), Path("two")]))
    Path("a.mlperf.toml").write_text("schema = 2\n")
    Path("b.mlperf.toml").write_text("round = 3\n")
    with pytest.raises(SuiteError) as caught:
        read_suites(find_suites([]))
    assert "a.mlperf.toml:1: schema: must be 1, not 2" in str(caught.value)
    assert "b.mlperf.toml:1: round: must be a string" in str(caught.value)


def test_a_profile_takes_the_place_of_each_suites_own() -> None:
    write("a.mlperf.toml")
    assert {one.suite.profile for one in read_suites(find_suites([]), "official")} == {"official"}
    assert {one.suite.profile for one in read_suites(find_suites([]))} == {"quick"}


LAYOUTS = {
    "nothing": ([], [], ["suites/a.mlperf.toml", "suites/deep/b.mlperf.toml"]),
    "one file": ([], ["suites/deep/b.mlperf.toml"], ["suites/deep/b.mlperf.toml"]),
    "pytest.ini here": (["pytest.ini"], ["suites"], ["suites/a.mlperf.toml"]),
    "pytest.ini above": (["../pytest.ini"], ["suites"], ["suites/a.mlperf.toml"]),
    "pytest.ini in suites": (["suites/pytest.ini"], ["suites"], ["suites/a.mlperf.toml"]),
    "pytest.ini too deep": (["suites/deep/pytest.ini"], ["suites"], ["suites/deep/b.mlperf.toml"]),
    "setup.py above": (["../setup.py"], ["suites"], ["suites/a.mlperf.toml"]),
    "empty pyproject above": (["../pyproject.toml"], ["suites"], ["suites/a.mlperf.toml"]),
    "pyproject and pytest.ini": (
        ["pyproject.toml", "../pytest.ini"],
        ["suites"],
        ["suites/a.mlperf.toml"],
    ),
    "tox.ini without pytest": (["tox.ini"], ["suites/deep"], ["suites/deep/b.mlperf.toml"]),
    "elsewhere": ([], ["../other"], ["../other/c.mlperf.toml"]),
}
"""Files of a project, arguments, and suites among them."""


@pytest.mark.process
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tests_are_named_as_pytest_names_them(layout: str, pytester: pytest.Pytester) -> None:
    extra, arguments, suites = LAYOUTS[layout]
    write(*extra, *suites)
    result = pytester.runpytest_inprocess("--collect-only", "-q", *(arguments or ["suites"]))
    collected = [line for line in result.outlines if "::" in line]
    assert collected
    named = [Path(argument) for argument in arguments]
    root = rootdir(named)
    planned = read_suites(find_suites(named))
    assert sorted(node_id(p, kind, root) for p in planned for kind in p.kinds) == sorted(collected)


CONFIGURES = [
    ("pyproject.toml", "[tool.pytest.ini_options]\n", True),
    ("pyproject.toml", "[tool.pytest]\nminversion = '8'\n", True),
    # A pyproject.toml that does not configure pytest still comes before a setup.py.
    ("pyproject.toml", "[tool.other]\n", True),
    ("pyproject.toml", "broken [", True),
    ("tox.ini", "[pytest]\n", True),
    ("tox.ini", "[tox]\n", False),
    ("tox.ini", "no section\n", False),
    ("setup.cfg", "[tool:pytest]\n", True),
    ("setup.cfg", "[metadata]\n", False),
    (".pytest.ini", "", True),
]


def test_files_that_configure_pytest(here: Path) -> None:
    write("inner/suites/a.mlperf.toml", "inner/setup.py")
    failures = []
    for file, content, counts in CONFIGURES:
        path = Path("inner/suites", file)
        path.write_text(content)
        root = rootdir([Path("inner/suites")])
        path.unlink()
        if root != (here / "inner/suites" if counts else here / "inner"):
            failures.append((file, content, root))
    assert failures == []


PYTHONPATHS = [
    ("setup.cfg", "[tool:pytest]\npythonpath = src\n"),
    ("tox.ini", "[tox]\n[pytest]\npythonpath = %(x)s/src\n"),
    ("pyproject.toml", "[tool.other]\n"),
    ("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = "src lib"\n'),
    ("pyproject.toml", '[tool.pytest]\npythonpath = ["src"]\n'),
    (".pytest.ini", "[pytest]\npythonpath = /absolute\n"),
    ("pytest.ini", "[pytest]\n"),
    ("pytest.ini", "[pytest]\npythonpath = . src 'two words'\n"),
    ("pytest.ini", "[pytest]\npythonpath =\n    src\n    lib\n"),
    ("pytest.toml", '[pytest]\npythonpath = ["other"]\n'),
]
"""Files that pytest prefers to those before them; all are left where they are."""


@pytest.mark.process
def test_pythonpath_comes_first_as_with_pytest(
    here: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("suites/deep/a.mlperf.toml")
    path_at_start = list(dict.fromkeys(sys.path))
    for folder in (here, here / "suites/deep"):
        for file, content in PYTHONPATHS:
            (folder / file).write_text(content)
            config = pytester.parseconfig("suites/deep")
            monkeypatch.setattr(sys, "path", list(path_at_start))
            find_suites([Path("suites/deep")])
            expected = [str(path) for path in config.getini("pythonpath")]
            assert sys.path == [*expected, *path_at_start], (folder, file, content)
