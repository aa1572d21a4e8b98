"""Run a checkout's submission checker: each way in which it can end, with stand-ins for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_mlperf.addons.official import checker
from tests.cli.text import Say

START = """\
import logging, os, sys, time
logging.basicConfig(
    level=logging.INFO,
    format="[%(asctime)s %(filename)s:%(lineno)d %(levelname)s] %(message)s",
)
log = logging.getLogger()
tree = sys.argv[sys.argv.index("--input") + 1]
"""
OK = 'log.info("SUMMARY: submission looks OK")\n'
ERRORS = 'log.error("SUMMARY: submission has errors"); sys.exit(1)\n'
MANY = 'for i in range(25): log.error("%d", i); log.error("%d", i)\n'
CHOICES = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--version", choices=["v5.0"])
parser.parse_known_args()
"""
ENDS: list[tuple[str, int, str]] = [
    (
        OK,
        0,
        "info: 0 lines; full output and summary.csv: {folder}\nSUMMARY: submission looks OK\n",
    ),
    (ERRORS, 1, "SUMMARY: submission has errors\n"),
    (
        "log.warning('slow')\nlog.error(tree + '/x')\n" + ERRORS,
        1,
        "\nerror: x\nwarning: slow\ninfo",
    ),
    (MANY + ERRORS, 1, "error: 18\nerror: 19\nerror: 5 more, in the full output (see below)\ninfo"),
    ("log.error('y' * 600)\n" + ERRORS, 1, f"error: {'y' * 500}…\n"),
    ("log.error('\\x1b[2J')\n" + ERRORS, 1, "error: \\x1b[2J\n"),
    ("raise ValueError('\\x1b[2J')", 3, "exit code 1 and gave no verdict: ValueError: \\x1b[2J; "),
    ("raise ValueError('x')", 3, "its whole output: {folder}/output.txt\n"),
    ("log.info('hm')", 3, "ended with exit code 0 and gave no verdict: "),
    (OK + "sys.exit(4)", 3, "ended with exit code 4 and gave no verdict: "),
    (
        OK + "os.kill(os.getpid(), 9)",
        3,
        "was killed by SIGKILL and gave no verdict; if nobody killed it, the machine ran out of "
        "memory (see dmesg): ",
    ),
    ("import no_such_module.x", 3, "needs the module no_such_module: "),
    ("raise ModuleNotFoundError(\"No module named 'yaml'\")", 3, "-m pip install pyyaml\n"),
    (CHOICES, 3, "checker does not know v6.1 "),
    ("time.sleep(600)", 3, "did not end within 3 s: killed\n"),
]


@pytest.fixture
def check(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], object]:
    """Run `submission check` on a tree with some checkout."""
    (tmp_path / "tree/closed/Acme/results/box").mkdir(parents=True)
    (tmp_path / "logging.py").write_text("raise SystemExit(9)", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(checker, "CHECKER_TIMEOUT_SECONDS", 3.0)
    command = ("submission", "check", "tree", "--round", "v6.1", "--checker")
    return lambda checkout: say(*command, checkout)


@pytest.mark.process
def test_each_end_of_the_checker(check: Callable[[Path], tuple[int, str]], tmp_path: Path) -> None:
    failures = []
    for number, (script, code, words) in enumerate(ENDS):
        checkout = Path(f"inference{number}")
        main = checkout / "tools/submission/submission_checker/main.py"
        main.parent.mkdir(parents=True)
        main.write_text(START + script, "utf-8")
        ended, output = check(checkout)
        (folder,) = tmp_path.glob("pytest-mlperf-checker-*")
        folder.rename(f"kept{number}")
        files = [path.name for path in main.parent.iterdir()]
        if ended != code or words.format(folder=folder) not in output or files != ["main.py"]:
            failures.append((script, ended, output, files))
    assert failures == []


@pytest.mark.process
def test_the_checker_of_v4_1_is_one_file_and_logs_in_another_format(
    check: Callable[[Path], tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without a checker is refused."""
    monkeypatch.setenv("INFER_SYSTEM_FILE", "yes")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/submission_checker.py").write_text(
        "import logging, os, sys\nlogging.basicConfig(level=logging.INFO)\n"
        "log = logging.getLogger('main')\nos.chdir(sys.argv[2])\n"
        "log.error('%s %s', *os.listdir(), os.environ.get('INFER_SYSTEM_FILE'))\n" + ERRORS,
        "utf-8",
    )
    code, output = check(Path("old"))
    assert code == 1
    assert output.splitlines()[1] == "error: closed None"
    code, output = check(Path("tree"))
    assert code == 3
    assert "tree has no tools/submission with MLCommons' submission checker: get it with" in output
