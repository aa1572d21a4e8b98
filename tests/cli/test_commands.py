"""The command itself: help that teaches, version, exit codes, lines that cannot be forged."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf import __version__
from pytest_mlperf.cli import build_parser, init, main
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.foreign_text import clean
from tests.cli.text import finished

NAMES = (
    *("init", "doctor", "plan", "explain", "compare", "turns", "bisect", "history", "update"),
    *("calibrate", "merge", "import", "export", "store", "submission", "report", "options"),
    *("round", "limits", "published", "schema"),
)


def exits(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert exits(*command, "--help") == 0
    return capsys.readouterr().out


HELP = (Path(__file__).parent / "pages/help.txt").read_text("utf-8")


def test_help_lists_every_command_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys)

    for command in NAMES:
        assert f"\n    {command} " in shown
    # Python releases word their own lines differently; ours are as designed.
    ours = HELP[HELP.index("commands:") :]
    assert shown.endswith(ours)
    assert HELP[HELP.index("What stands") : HELP.index("options:")] in shown


def whole_lines(text: str) -> str:
    """Join what a backslash at the end of a line continues."""
    return re.sub(r" \\\n\s*", " ", text)


def test_help_says_what_a_command_needs_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in NAMES:
        shown = help_of(capsys, command)

        assert shown.startswith(f"usage: pytest-mlperf {command} ")
        assert "\nneeds: " in shown, command
        examples = whole_lines(shown.partition("\nexamples:\n")[2]).splitlines()
        assert len(examples) >= 4, f"{command}: two examples, each with its outcome"
        for line, outcome in zip(examples[::2], examples[1::2], strict=True):
            assert line.startswith(f"  $ pytest-mlperf {command}")
            assert outcome.startswith("      ")
        assert max(map(len, shown.splitlines())) <= 80, command


def examples() -> Iterator[str]:
    _, commands = build_parser()
    text = "".join(command.load().epilog or "" for command in commands.values())
    yield from re.findall(r"\$ pytest-mlperf (.+)", whole_lines(text))


def test_every_example_is_a_command_line_that_is_accepted() -> None:
    lines = list(examples())

    assert len(lines) >= 2 * len(NAMES)
    for line in lines:
        parser, _ = build_parser()
        parser.parse_args(shlex.split(line.partition(" > ")[0]))


def test_version_and_wrong_usage_have_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits("--version") == 0
    assert capsys.readouterr().out == f"pytest-mlperf {__version__}\n"

    for line in (
        "",
        "no-such-command",
        "update --no-such-option",
        "schema nothing",
        "init --engine none",
        "plan --max-runs 1",
        "plan --format pbs",
        "bisect a b --pairs 1 -- c",
        "turns a b --pairs 1",
        "compare only-one",
        "explain",
        "report --format nothing",
        "round",
    ):
        assert exits(*line.split()) == 2, line
        assert capsys.readouterr().err.startswith("usage: pytest-mlperf"), line

    assert main(["report", "\x1b[2Jx.json"]) == 2
    assert capsys.readouterr().err.startswith("pytest-mlperf: \\x1b[2Jx.json: cannot be read")


@pytest.mark.parametrize(("error", "code"), [(MlperfError("x"), 2), (EnvironmentFault("x"), 3)])
def test_an_error_for_the_user_is_one_line_and_its_exit_code(
    error: MlperfError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(init, "run", fail)

    assert main(["init"]) == code
    assert capsys.readouterr() == ("", "pytest-mlperf: x\n")


def test_foreign_text_is_no_control_sequence_and_no_workflow_command() -> None:
    texts = {
        "suites/a.mlperf.toml::test_performance[x]": "suites/a.mlperf.toml::test_performance[x]",
        "−3 % at 1.5 µs": "−3 % at 1.5 µs",
        "\x1b[31mPERF DROP\x1b[0m": "\\x1b[31mPERF DROP\\x1b[0m",
        "a\rb\nc\td": "a\\rb\\nc\\td",
        "right\u202eleft": "right\\u202eleft",
        "::error file=x::forged": "\\::error file=x::forged",
        "  ::set-output name=x::1": "  \\::set-output name=x::1",
        "##[group]x": "\\##[group]x",
    }

    assert {text: clean(text) for text in texts} == texts


@pytest.mark.process
def test_the_installed_command_runs_and_loads_no_engine_library(tmp_path: Path) -> None:
    script = (
        "import sys; from pytest_mlperf.cli import main; code = main(['init']);"
        "heavy = {'mlperf_loadgen', 'onnxruntime', 'numpy', 'pynvml', 'torch', 'pytest'}"
        " & set(sys.modules);"
        "sys.exit(code or ', '.join(sorted(heavy)) or 0)"
    )

    done = finished(sys.executable, "-c", script, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "suites" / "demo.mlperf.toml").is_file()


@pytest.mark.process
def test_a_reader_that_has_enough_is_no_error() -> None:
    """`pytest-mlperf schema | head -1` ends quietly."""
    code = "from pytest_mlperf.cli import main; main(['schema'])"
    command = f'{sys.executable} -c "{code}" | head -1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)

    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.process
def test_a_terminal_without_our_signs_shows_a_question_mark() -> None:
    """An ISO-8859-1 terminal has no "−"; that is no reason to end in a traceback."""
    code = "from pytest_mlperf.cli.output import *; print_what_the_terminal_can(); show(['−3 %'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env={"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert done.stdout == b"?3 %\n"
