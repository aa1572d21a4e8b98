"""Test that `pytest-mlperf doctor` asks the Python of an engine entry for missing parts."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_mlperf.cli.doctor import CaseState, SuiteState, lines, suite_state
from pytest_mlperf.hardware.machine import Machine
from tests.run import other_python
from tests.run.other_python import IS_OLDER, PASSES_ON_NOTHING

pytestmark = pytest.mark.process

HERE = Machine(
    cpu={"cpu": "Testium 9000", "cores": 4.0, "governor": "performance"},
    gpus=({"uuid": "GPU-0", "gpu": "NVIDIA H200"},),
)

SUITE = """\
schema = 1
round = "v4.1"
[workload]
name = "a"
{workload}
[[engines]]
use = "{use}"
{where}
[[scenarios]]
name = "Offline"
[[scenarios]]
name = "SingleStream"
"""

SHADOW = "raise RuntimeError('built for another numpy')"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_python.environment(tmp_path_factory.mktemp("other") / "there")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The Python of an environment that has numpy and LoadGen, and nothing else."""
    python = other_python.environment(tmp_path / "bare")
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (packages / "shared.pth").unlink()
    for name in ("numpy", "mlcommons-loadgen"):
        package = distribution(name)
        tops = {file.parts[0] for file in package.files or () if file.parts[0] != ".."}
        for top in tops:
            (packages / top).symlink_to(str(package.locate_file(top)))
    return python


def state(folder: Path, where: str, *, use: str = "null", workload: str = "") -> SuiteState:
    """Return the state of a suite whose engine runs in another environment."""
    path = folder / "a.mlperf.toml"
    path.write_text(SUITE.format(where=where, use=use, workload=workload), "utf-8")
    return suite_state(path, HERE, folder / "baselines", {}, folder / "runs")


def first(suite_report: SuiteState) -> CaseState:
    assert not suite_report.error
    return suite_report.cases[0]


def of_onnx(folder: Path, python: Path, more: str = "") -> CaseState:
    """Return the state of a case of onnxruntime whose engine runs in another Python."""
    (folder / "model.onnx").write_bytes(b"weights")
    model = f'model = "{folder / "model.onnx"}"'
    return first(state(folder, f'python = "{python}"{more}', use="onnxruntime", workload=model))


def test_a_complete_python_is_told_with_its_versions(tmp_path: Path, python: Path) -> None:
    """Once for all cases of the entry; no question stays; a command has three streams."""
    suite_report = state(tmp_path, f'python = "{python}"')
    here = ".".join(map(str, sys.version_info[:3]))
    about = (
        f"python {python}: Python {here}, numpy {version('numpy')}, "
        f"mlcommons-loadgen {version('mlcommons-loadgen')}"
    )
    assert [(case.state, case.elsewhere) for case in suite_report.cases] == [("ready", about)] * 2
    text = " ".join(" ".join(lines([], [suite_report], [], 0)).split())
    assert text.count(f"runs in {about}") == 1
    assert list((tmp_path / "runs").iterdir()) == []
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(PASSES_ON_NOTHING, "utf-8")
    case = first(state(tmp_path, f'command = ["{sys.executable}", "{wrapper}", "{python}"]'))
    assert case.state == "ready"


def test_a_python_or_a_command_that_starts_no_worker_is_told(tmp_path: Path) -> None:
    empty = other_python.environment(tmp_path / "empty")
    next(empty.parents[1].glob("lib/python*/site-packages/shared.pth")).unlink()
    case_state = first(state(tmp_path, f'python = "{empty}"'))
    assert case_state.state == "missing"
    assert case_state.reason == (
        f"{empty} (engines[0].python) lacks numpy and mlcommons-loadgen: install them there"
    )
    for command, reason in (
        (["false"], "command false does not start: exit code 1"),
        (["echo", "hello"], "command echo hello does not run Python: it printed 'hello "),
    ):
        assert shutil.which(command[0])
        assert first(state(tmp_path, f"command = {command}")).reason.startswith(reason)
    older = tmp_path / "older"
    older.write_text(IS_OLDER, "utf-8")
    older.chmod(0o755)
    reason = first(state(tmp_path, f'python = "{older}"')).reason
    assert reason.endswith("(engines[0].python) is Python 3.10.14; workers need 3.11 or newer")


def test_the_engines_library_is_looked_for_there_and_not_here(tmp_path: Path, bare: Path) -> None:
    """One that fails there is named with its reason."""
    case_state = of_onnx(tmp_path, bare)
    assert case_state.state == "missing"
    assert case_state.reason.splitlines() == [
        f"python {bare}: needs {name}, which is not installed: {bare} -m pip install {name}"
        for name in ("onnxruntime", "onnx")
    ]
    (packages,) = bare.parents[1].glob("lib/python*/site-packages")
    (packages / "onnxruntime.py").write_text(SHADOW, "utf-8")
    (packages / "onnx.py").touch()
    assert of_onnx(tmp_path, bare).reason == (
        f"python {bare}: needs onnxruntime, which cannot be imported: RuntimeError: built for "
        "another numpy"
    )


def test_the_builders_python_is_asked_for_its_libraries(tmp_path: Path, bare: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", "utf-8")
    build = f'precision = "int8"\nbuild = {{ use = "torchao", recipe = "int8", python = "{bare}" }}'
    case_state = first(state(tmp_path, build, use="null", workload=f'model = "{model}"'))
    assert case_state.state == "missing"
    assert case_state.reason == (
        "builder torchao needs torchao and torch and transformers and safetensors, which are not "
        f"installed in python {bare} (engines[0].build.python): pip install torchao torch "
        "transformers safetensors"
    )


def test_the_library_is_asked_there_for_what_the_options_name(tmp_path: Path, python: Path) -> None:
    """As it is here: which providers ONNX Runtime has only it can tell."""
    pytest.importorskip("onnxruntime")
    more = '\noptions = { providers = ["TensorrtExecutionProvider"] }\naccelerators = ["H200"]'
    case_state = of_onnx(tmp_path, python, more)
    assert case_state.state == "missing"
    assert case_state.reason.startswith(f"{tmp_path}/a.mlperf.toml:9: ")
    assert case_state.reason.endswith(f"(in python {python})")
