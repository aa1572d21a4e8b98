"""The command itself: help, version, exit codes, schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mlperf import __version__, cli
from pytest_mlperf.cli import main
from pytest_mlperf.cli.schema import SCHEMAS, published
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError


def exits(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--help") == 0

    shown = capsys.readouterr().out
    assert shown.startswith("usage: pytest-mlperf ")
    for command in ("init", "update", "schema"):
        assert f"\n    {command} " in shown


@pytest.mark.parametrize("command", ["init", "update", "schema"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(command, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: pytest-mlperf {command} ")


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out == f"pytest-mlperf {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-command"], ["update", "--no-such-option"], ["schema", "nothing"]]
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits(*arguments) == 2
    assert capsys.readouterr().err.startswith("usage: pytest-mlperf")


@pytest.mark.parametrize(("error", "code"), [(MlperfError("x"), 2), (EnvironmentFault("x"), 3)])
def test_an_error_for_the_user_is_one_line_and_its_exit_code(
    error: MlperfError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(cli.init, "run", fail)

    assert main(["init"]) == code
    assert capsys.readouterr() == ("", "pytest-mlperf: x\n")


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_printed_as_it_is_published(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", name]) == 0
    assert capsys.readouterr().out == published(name).read_text("utf-8")


def test_the_suite_schema_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Suite"


def test_schemas_are_written_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = {name: published(name).read_text("utf-8") for name in SCHEMAS}
    monkeypatch.setattr(cli.schema, "files", lambda _: tmp_path)

    assert main(["schema", "--write"]) == 0

    assert {name: published(name).read_text("utf-8") for name in SCHEMAS} == shipped
    assert published("suite").is_relative_to(tmp_path)
    assert capsys.readouterr().out.count("wrote ") == len(SCHEMAS)


def test_the_installed_command_runs_and_loads_no_engine_library(tmp_path: Path) -> None:
    script = (
        "import sys; from pytest_mlperf.cli import main; code = main(['init']);"
        "heavy = {'mlperf_loadgen', 'onnxruntime', 'numpy', 'pynvml', 'torch'} & set(sys.modules);"
        "sys.exit(code or ', '.join(sorted(heavy)) or 0)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "suites" / "demo.mlperf.toml").is_file()


def test_a_reader_that_has_enough_is_no_error() -> None:
    """`pytest-mlperf schema | head -1` ends quietly."""
    code = "from pytest_mlperf.cli import main; main(['schema'])"
    command = f'{sys.executable} -c "{code}" | head -1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)

    assert done.stdout == "{\n"
    assert done.stderr == ""
