"""What a suite may say about the Python in which an engine runs."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import EnvironmentFault, UnavailableError
from pytest_mlperf.suite.environments import engine_python
from pytest_mlperf.suite.plan import Planned, plan_suite
from pytest_mlperf.suite.resolve import Problems, resolve
from tests.suite.texts import with_

ENTRY = 'accelerators = ["cpu"]'
DOCKER = ["docker", "run", "--rm", "-i", "-e", "TOKEN=${SECRET}", "trtllm:1.2", "python3"]


def file(tmp_path: Path, lines: str) -> Path:
    """Return a suite whose engine entry has these lines too."""
    path = tmp_path / "s.mlperf.toml"
    path.write_text(with_((ENTRY, f"{ENTRY}\n{lines}")), "utf-8")
    return path


def planned(tmp_path: Path, lines: str) -> Planned:
    return plan_suite(file(tmp_path, lines))[0]


def test_it_is_shown_as_it_is_written(tmp_path: Path) -> None:
    """Values of variables may be secrets; so may words in the middle of a long command."""
    rows = [
        ("", ""),
        ('python = "${VENVS}/trt/bin/python"', "python ${VENVS}/trt/bin/python"),
        (f"command = {DOCKER}", "command docker run … python3"),
        ('command = ["ssh", "host", "python3"]', "command ssh host python3"),
    ]
    assert [planned(tmp_path, lines).elsewhere for lines, _ in rows] == [title for _, title in rows]


def test_the_named_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and ~ are expanded; a path is relative to the suite; only a run looks for it."""
    monkeypatch.setenv("WORD", "run")
    (tmp_path / "python").symlink_to(sys.executable)

    python = engine_python(planned(tmp_path, 'python = "./python"'))
    started = engine_python(planned(tmp_path, f'command = ["{sys.executable}", "${{WORD}}"]'))
    assert python is not None
    assert (python.command, python.key) == ((str(tmp_path / "python"),), "engines[0].python")
    assert started is not None
    assert (started.command, started.key) == ((sys.executable, "run"), "engines[0].command")
    assert engine_python(planned(tmp_path, "")) is None
    case = planned(tmp_path, 'python = "/there/is/none"')
    with pytest.raises(UnavailableError, match=r":12: engines\[0\].python, /there/is/none, is no"):
        engine_python(case)
    job = resolve(case, scorer=False)
    assert isinstance(job, Problems)
    assert [problem.part for problem in job.problems] == ["python"]


class Needy:
    """An engine, as another package registers it, that asks for its library when it is built."""

    def __init__(self, *, dataset: object, model: object, precision: str, latency_s: float) -> None:
        raise EnvironmentFault("needs a library; pip install it")


@pytest.mark.parametrize(("lines", "problem_count"), [("", 1), (f'python = "{sys.executable}"', 0)])
def test_missing_libraries_here_do_not_matter_for_an_engine_elsewhere(
    lines: str, problem_count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("needy", f"{__name__}:Needy", "pytest_mlperf.engines")
    monkeypatch.setitem(registry.registered("engines"), "needy", point)
    path = file(tmp_path, lines)
    path.write_text(path.read_text("utf-8").replace('use = "null"', 'use = "needy"'), "utf-8")
    (case,) = plan_suite(path)

    job = resolve(case, scorer=False)

    problems = job.problems if isinstance(job, Problems) else ()
    assert [problem.part for problem in problems] == ["engine"] * problem_count
