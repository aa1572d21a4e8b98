"""Test where children import the user's code: as pytest does, and from the suite's folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf.cli.doctor import suite_state
from pytest_mlperf.cli.suites import find_suites
from pytest_mlperf.core.errors import EnvironmentFault, SuiteError
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.registry import imported
from pytest_mlperf.run.child.protocol import import_as_parent, import_path
from tests.run.harness import ROOT

LIBRARIES = ["/lib/python311.zip", "/lib/python3.11", "/venv/site-packages"]

PATHS = [
    # The parent's, the child's, what the child then has.
    (["/src", *LIBRARIES], ["/work", *LIBRARIES], ["/src", "/work", *LIBRARIES]),
    (["/work", *LIBRARIES], ["/work", *LIBRARIES], ["/work", *LIBRARIES]),
    (
        ["/src", "/venv/bin", *LIBRARIES, "/vendor", "/work", "/suites"],
        ["/work", *LIBRARIES],
        ["/src", "/venv/bin", "/work", *LIBRARIES, "/vendor", "/suites"],
    ),
    ([], ["/code", *LIBRARIES], ["/code", *LIBRARIES]),
]


@pytest.mark.parametrize(("parent", "child", "expected"), PATHS)
def test_a_child_imports_in_the_order_of_its_parent(
    parent: list[str], child: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of pytest's `pythonpath` hides installed modules, in the child too."""
    monkeypatch.setattr(sys, "path", child)
    import_as_parent(parent)
    assert sys.path == expected


def test_code_of_a_suite_may_be_in_the_working_folder_or_the_suites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/src"])
    assert import_path() == ["/src"]
    assert import_path(Path("suites/a.toml")) == ["/src", str(tmp_path), str(tmp_path / "suites")]


def test_a_failed_import_names_the_searched_folders_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "has_lib.py").write_text("import yaml.no_such, no_such_library\n")
    (tmp_path / "has_name.py").write_text("import os\ndef samples(path, count=3): ...\n")
    cases = [
        (
            "no_such.part:Samples",
            EnvironmentFault,
            f"no module no_such in {tmp_path}, ",
            f" or the packages of {sys.executable}: install it, or add its folder to pytest's "
            "pythonpath (pythonpath = . in pytest.ini)",
        ),
        (
            "has_lib:Samples",
            EnvironmentFault,
            "it imports yaml.no_such, which is not installed",
            f"{sys.executable} -m pip install pyyaml",
        ),
        (
            "has_name:sampels",
            SuiteError,
            f"{tmp_path}/has_name.py has no 'sampels'; did you mean 'samples'?",
            "",
        ),
        (
            "has_name:Echo",
            SuiteError,
            f"{tmp_path}/has_name.py has no 'Echo'; known: samples",
            "has no 'Echo'; known: samples",
        ),
    ]
    for target, error, begin, end in cases:
        with pytest.raises(error) as raised:
            imported("dataset", target)
        text = str(raised.value)
        assert text.startswith(f"dataset {target!r} cannot be imported: {begin}"), text
        assert text.endswith(end), text
    with pytest.raises(SuiteError, match=r"has no option 'cout'; did you mean 'count'\?"):
        imported("dataset", "has_name:samples", {"cout": 3})


FILE = "suites/mine.mlperf.toml"
SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "mine"
dataset = { use = "in_src:samples" }
scorer = { use = "beside:Same" }
[[engines]]
use = "in_work:Echo"
[[engines]]
use = "in_work:Echo"
name = "Twin"
[[scenarios]]
name = "Offline"
target_qps = 100
min_duration = "100ms"
"""
MODULES = {
    "src/in_src.py": "def samples():\n    return list(range(8))\n",
    "in_work.py": """\
from pytest_mlperf import Engine

class Echo(Engine):
    def __init__(self, *, dataset, model, precision):
        self.dataset = dataset

    def submit(self, ids, indices, sink):
        outputs = [str(self.dataset.input(index)).encode() for index in indices]
        sink.done(ids, outputs if sink.wants_output else None)
""",
    "suites/beside.py": """\
from pytest_mlperf import Scores

class Same:
    def __init__(self, *, model):
        pass

    def score(self, outputs, references):
        same = [float(int(one) == two) for one, two in zip(outputs, references, strict=True)]
        return Scores(per_sample={"same": same}, aggregate={"same": sum(same) / len(same)})
""",
    FILE: SUITE,
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with modules in all places, which only pytest's settings name."""
    for name, content in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def command(*words: str) -> tuple[int, str]:
    """Run the installed program, which has no working folder on its path."""
    program = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["pytest", "suites", "-p", "no:benchmark"], "same"),
        (["pytest-mlperf", "turns", f"{FILE}::Echo", f"{FILE}::Twin", "--pairs", "2"], "samples/s"),
    ],
)
def test_every_command_finds_them(project: Path, words: list[str], printed: str) -> None:
    output = command(*words)[1]
    assert printed in output, output
    assert "cannot be imported" not in output, output


@pytest.mark.process
@pytest.mark.parametrize("lost", ["src/in_src.py", "suites/beside.py", "in_work.py", ""])
def test_doctor_calls_nothing_ready_that_cannot_be_imported(
    project: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (suite,) = find_suites([Path("suites")])
    if lost:
        (project / lost).unlink()
    state = suite_state(suite, Machine(cpu={"cpu": "x", "cores": 1.0}), None, {})
    states = {(case.state, lost and Path(lost).stem in case.reason) for case in state.cases}
    assert states == {("missing", True) if lost else ("ready", "")}, state
