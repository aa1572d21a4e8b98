"""The command itself: help that teaches, version, exit codes, lines that cannot be forged."""

from __future__ import annotations

import ast
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mlperf import __version__, cli
from pytest_mlperf.cli import build_parser, init, main
from pytest_mlperf.cli.schema import SCHEMAS, published
from pytest_mlperf.core.addons import Command
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError
from pytest_mlperf.core.removed import REMOVED
from pytest_mlperf.core.untrusted_text import clean
from pytest_mlperf.suite.plan import plan_suite
from tests.children import PYTHON
from tests.cli.lab import ROOT
from tests.cli.text import Say, finished, page

NAMES = (
    *("init", "doctor", "machine", "plan"),
    *("explain", "compare", "across", "turns", "bisect", "history", "judge"),
    *("update", "calibrate"),
    *("merge", "report", "kubernetes", "slurm", "store"),
    *("export", "import", "limits", "published", "round", "share", "submission"),
    *("options", "schema", "new"),
)


def exits(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert exits(*command, "--help") == 0
    return capsys.readouterr().out


HELP = page("help.txt")


def test_help_lists_every_command_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    help_text = help_of(capsys)
    assert re.findall(r"^  ([a-z]+) {2,}\w", help_text.partition("\noptions:\n")[0], re.M) == [
        *NAMES
    ]
    # Python releases word their own lines differently; ours are as designed.
    assert help_text.endswith(HELP[HELP.index("a first hour:") :])
    assert HELP[HELP.index("Tools around") : HELP.index("options:")] in help_text


def whole_lines(text: str) -> str:
    """Join lines that end with a backslash."""
    return re.sub(r" \\\n\s*", " ", text)


def test_help_says_what_a_command_needs_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in NAMES:
        help_text = help_of(capsys, command)
        assert help_text.startswith(f"usage: pytest-mlperf {command} ")
        assert "\nneeds: " in help_text, command
        examples = whole_lines(help_text.partition("\nexamples:\n")[2]).splitlines()
        assert len(examples) >= 4, f"{command}: two examples, each with its outcome"
        for line, outcome in zip(examples[::2], examples[1::2], strict=True):
            assert line.startswith(f"  $ pytest-mlperf {command}")
            assert outcome.startswith("      ")
        assert max(map(len, help_text.splitlines())) <= 80, command


def examples() -> Iterator[str]:
    _, commands = build_parser()
    text = "".join(command.load().epilog or "" for command in commands.values())
    yield from re.findall(r"\$ pytest-mlperf (.+)", whole_lines(text))


PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")


def test_every_example_of_the_help_and_the_page_is_accepted() -> None:
    """And the page names every command in the order of use, with outputs that fit a terminal."""
    lines = list(examples())
    assert len(lines) >= 2 * len(NAMES)
    on_page = re.findall(r"^\$ pytest-mlperf (.+)$", PAGE, re.MULTILINE)
    assert on_page
    for line in (*lines, *on_page):
        parser, _ = build_parser()
        parser.parse_args(shlex.split(line.partition(" > ")[0]))
    commands, _, _ = PAGE.partition("\n## ")
    assert re.findall(r"^\| `([a-z]+)", commands, re.MULTILINE) == list(NAMES)
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    example_lines = [line for block in blocks for line in block.splitlines()]
    assert [
        line for line in example_lines if len(line) > 80 and not line.startswith(("$", "{"))
    ] == []


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
        "report --format nothing",
        "round",
    ):
        assert exits(*line.split()) == 2, line
        assert capsys.readouterr().err.startswith("usage: pytest-mlperf"), line
    for line, hint in (
        ("init --engine onnx", "; did you mean 'onnxruntime'?"),
        ("report --format htlm", "; did you mean 'html'?"),
        ("doctor --foo", "unknown argument '--foo'; see "),
        ("doctor --jsn", "; did you mean '--json'?"),
    ):
        assert exits(*line.split()) == 2, line
        assert hint in capsys.readouterr().err, line
    assert main(["report", "\x1b[2Jx.json"]) == 2
    assert capsys.readouterr().err.startswith("pytest-mlperf: \\x1b[2Jx.json: cannot be read")


def test_an_error_for_the_user_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code in ((MlperfError("x"), 2), (EnvironmentFault("x"), 3)):

        def fail(_: object, error: Exception = error) -> int:
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


SCRIPT = """
import json, sys
from pytest_mlperf.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
print("\\n" + json.dumps([code, list(sys.modules)]))
"""
LIMITS = tomllib.loads((ROOT / "tools" / "house_limits.toml").read_text("utf-8"))
MAX_MODULES = LIMITS["allowed"]["modules_imported_by_version"]
LIBRARIES = {"mlperf_loadgen", "onnxruntime", "numpy", "pynvml", "torch", "pytest"}


@pytest.mark.process
def test_a_command_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    """Help and version load no subcommand, and `init` no library of an engine."""
    for word, heavy in (
        ("--version", {*LIBRARIES, "pydantic"}),
        ("--help", {*LIBRARIES, "pydantic"}),
        ("init", LIBRARIES),
    ):
        done = finished(sys.executable, "-c", SCRIPT, word, cwd=tmp_path)
        code, modules = json.loads(done.stdout.splitlines()[-1])
        assert (code, done.stderr) == (0, "")
        assert not heavy & set(modules)
        package_modules = [name for name in modules if name.startswith("pytest_mlperf")]
        assert "pytest_mlperf.cli" in package_modules
        assert len(package_modules) <= MAX_MODULES or word == "init"
    assert (tmp_path / "suites" / "demo.mlperf.toml").is_file()


@pytest.mark.process
def test_a_closed_pipe_is_not_an_error() -> None:
    """`pytest-mlperf schema | head -1` ends quietly, and a full disk is named."""
    code = "from pytest_mlperf.cli import main; raise SystemExit(main(['schema']))"
    done = finished("sh", "-c", f'{PYTHON} -c "{code}" | head -1')
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    full = finished("sh", "-c", f'{PYTHON} -c "{code}" > /dev/full')
    cut = "pytest-mlperf: the output is incomplete: writing failed: No space left on device\n"
    assert (full.returncode, full.stderr) == (2, cut)


@pytest.mark.process
def test_a_terminal_without_our_signs_shows_a_question_mark() -> None:
    """An ISO-8859-1 terminal has no "−"; that is no reason to end in a traceback."""
    code = "import pytest_mlperf.cli.output as o; o.replace_unencodable_characters(); o.show(['−'])"
    environment = {"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)}
    assert finished(sys.executable, "-c", code, env=environment).stdout == "?\n"


def test_schemas_are_printed_and_written_as_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    shipped = {name: published(name).read_text("utf-8") for name in SCHEMAS}
    assert {name: say.ends(0, "schema", name) for name in SCHEMAS} == shipped
    assert json.loads(say.ends(0, "schema"))["title"] == "Suite"
    monkeypatch.setattr(cli.schema, "files", lambda _: tmp_path)
    assert say.ends(0, "schema", "--write").count("wrote ") == len(SCHEMAS)
    assert {name: published(name).read_text("utf-8") for name in SCHEMAS} == shipped
    assert published("suite").is_relative_to(tmp_path)


OLD_SUITE = """
schema = 1
round = "v4.1"

[workload]
name = "old"
dataset = {{ use = "synthetic", samples = 4 }}

[[engines]]
use = "{engine}"
options = {{ {key} = true }}

[[scenarios]]
name = "Offline"
"""


def test_everything_removed_is_refused_with_its_replacement(tmp_path: Path, say: Say) -> None:
    """A word that was never there gets the list."""
    refused = {}
    line = OLD_SUITE.splitlines().index("options = {{ {key} = true }}") + 1
    for entry in REMOVED:
        if entry.kind == "key":
            engine = entry.owner.removeprefix("engine ").strip("'")
            suite = tmp_path / f"{entry.name}.mlperf.toml"
            suite.write_text(OLD_SUITE.format(engine=engine, key=entry.name), "utf-8")
            with pytest.raises(SuiteError, match=f"{suite}:{line}") as caught:
                plan_suite(suite)
            text = str(caught.value)
        else:
            owner = () if entry.kind == "command" else (entry.owner,)
            text = say.ends(2, *owner, entry.name)
        refused[entry] = f"{entry.kind} {entry.name} was removed: {entry.instead}" in text
    assert refused == dict.fromkeys(REMOVED, True)
    with pytest.raises(SystemExit):
        main(["contributed"])


def test_no_command_keeps_an_interrupt_to_itself() -> None:
    """What it has to say it raises: Ctrl-C ends every command with 130 and one line."""
    handlers = [
        (path.name, node.lineno, isinstance(node.body[-1], ast.Raise))
        for path in (ROOT / "pytest_mlperf/cli").rglob("*.py")
        if path != ROOT / "pytest_mlperf/cli/__init__.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler) and "Interrupt" in ast.dump(node.type or node)
    ]
    assert handlers
    assert [one for one in handlers if not one[-1]] == []


@pytest.mark.process
def test_interrupts_end_a_command_without_a_traceback() -> None:
    """The first is exit code 130, the second ends the process by its signal."""
    code = """
import os, signal, sys
from pytest_mlperf import cli
from pytest_mlperf.cli import schema
again = len(sys.argv) > 2
# The children of a shell's background job ignore the signal otherwise.
signal.signal(signal.SIGINT, signal.default_int_handler)
schema.run = lambda _: os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["pytest-mlperf", "schema", "suite"]
code = cli.main()
if again:
    os.kill(os.getpid(), signal.SIGINT)
sys.exit(code)
"""
    for arguments, exit_code in ((["once"], 130), (["once", "again"], -signal.SIGINT)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (exit_code, "pytest-mlperf: interrupted\n")


BROKEN_COMMANDS = {
    "raise SystemExit(0)": "cannot be used: SystemExit: 0",
    "HELP = 'x'": "cannot be used: AttributeError: module 'acme_command' has no attribute 'run'",
    "HELP = 'x'\ndef run(parsed): 1 / 0\ndef add_arguments(parser): pass": (
        "acme_command failed: ZeroDivisionError: division by zero"
    ),
    "HELP = 'x'\ndef run(parsed): return True\ndef add_arguments(parser): pass": (
        "acme_command failed: TypeError: run() must return an exit code from 0 to 255, not True"
    ),
    "HELP = 'x'\ndef run(parsed): return 0\ndef add_arguments(parser): 1 / 0": (
        "cannot be used: ZeroDivisionError: division by zero"
    ),
}


@pytest.mark.parametrize("source", BROKEN_COMMANDS)
def test_a_broken_add_on_command_is_reported_in_one_line(
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "acme_command.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_command", raising=False)
    acme = {"acme": Command("a command of others", "acme_command")}
    monkeypatch.setattr(cli, "commands", lambda: acme)

    try:
        code = main(["acme"])
    except SystemExit as ended:
        code = int(str(ended.code))

    assert (code, BROKEN_COMMANDS[source] in capsys.readouterr().err) == (3, True)
