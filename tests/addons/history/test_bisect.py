"""`pytest-mlperf bisect` in real repositories, with real runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_mlperf.addons.history import lineage
from tests.cli import test_turns as suites
from tests.cli.text import Say, differing, one_line, widest
from tests.run import other_python
from tests.run.other_python import git

ACME = f'{suites.SUITE}scorer = {{ use = "top1" }}\n[[engines]]\nuse = "acme:Acme"\n'
SUITE = f'{ACME}{suites.OFFLINE}[limits]\nthroughput = {{ max_drop = "20%" }}\n'

ENGINE = """\
# Change {}.
from pytest_mlperf.builtin.null import NullEngine

class Acme(NullEngine):
    def __init__(self, dataset, model=None, precision=""):
        super().__init__(dataset, latency_s={}, batch_size=16, threads=1)
"""

BROKEN = "1 / 0"
CASE = "mine-Offline-Acme-fp32-cpu"
FILE = "s.mlperf.toml"
TEST = f"{FILE}::test_performance[{CASE}]"


def repository(folder: Path, latencies: Sequence[float | str], text: str = SUITE) -> list[str]:
    """Make a repository with a commit for each latency of a sample; return the commits."""
    (folder / FILE).write_text(text, "utf-8")
    (folder / ".gitignore").write_text(".mlperf/\n__pycache__/\n", "utf-8")
    git(folder, "init", "-q", "-b", "main")
    commits = []
    for number, latency in enumerate(latencies):
        (folder / "acme.py").write_text(ENGINE.format(number, latency), "utf-8")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"change {number} \x1b[31m")
        git(folder, "tag", f"c{number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def nothing_is_left(folder: Path) -> bool:
    """Whether no worktree, no checkout and no unfinished file is there."""
    trees = git(folder, "worktree", "list").splitlines()
    left = [*folder.glob(".mlperf/runs/*/bisect-*"), *folder.glob(".mlperf/bisect/*/.*")]
    return len(trees) == 1 and not left and "?" not in git(folder, "status", "--porcelain")


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.slow
def test_the_commit_is_named_past_one_that_does_not_import(here: Path, say: Say) -> None:
    """Whatever the working folder holds: the code is each commit's, the question today's."""
    commits = repository(here, [0.002, 0.008, BROKEN, 0.008])
    (here / "acme.py").write_text("what somebody works on", "utf-8")
    output = say.ends(0, "bisect", "c0", "main", "--", TEST)
    assert f"first bad {commits[1]}\nsubject   change 1 \\x1b[31m\nauthor    test, 20" in output
    assert re.search(r"change    samples/s −\d\d\.\d % \(.*\) against its parent\n", output)
    assert f"see       git show {commits[1][:12]}\n" in output
    assert f"{commits[2][:12]} skipped: engine: ZeroDivisionError: " in output
    assert "(in __init__, acme.py:6)" in one_line(output)
    assert "1 skipped" in one_line(output)
    assert widest(output) <= 80
    assert nothing_is_left(here)
    assert str(here) not in next(here.glob(".mlperf/bisect/*/state.json")).read_text("utf-8")
    specs_at_start = set(here.glob(".mlperf/runs/*/*/spec.json"))
    again = ("of earlier calls", f"first bad {commits[1]}")
    assert differing(say, [(("bisect", "c0", "main", "--", CASE), 0, again)]) == []
    assert set(here.glob(".mlperf/runs/*/*/spec.json")) == specs_at_start


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_interruptions_leave_nothing_and_go_on(
    number: signal.Signals, here: Path, say: Say
) -> None:
    """The next one removes the leftovers of a killed one."""
    commits = repository(here, [0.002, 0.008])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest_mlperf.__main__", "bisect", "c0", "c1", "--", FILE]
    killed = subprocess.Popen(command, env=environment)
    wait_for(lambda: list(here.glob(".mlperf/runs/*/*/spec.json")) != [])
    killed.kill()
    killed.wait()
    assert not nothing_is_left(here)
    sessions = set(here.glob(".mlperf/runs/*"))

    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(
        lambda: any(
            len(list(session.glob("*/spec.json"))) >= 4
            for session in {*here.glob(".mlperf/runs/*")} - sessions
        )
    )
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert stderr == (
        "pytest-mlperf: interrupted; finished runs are kept; repeat the command to continue\n"
    )
    assert nothing_is_left(here)
    assert children_of(here) == []

    output = say.ends(0, "bisect", "c0", "c1", "--", FILE)
    assert re.search(r"[24] runs of earlier calls are used again", one_line(output)), output
    assert f"first bad {commits[1]}" in output


def wait_for(done: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


def children_of(folder: Path) -> list[str]:
    """Return the command lines of other processes that work in a folder."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_in_folder = (process / "cwd").readlink().is_relative_to(folder)
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if str(folder).encode() in line or (is_in_folder and process.name != str(os.getpid())):
            lines.append(line.decode(errors="replace"))
    return lines


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.slow
def test_versions_of_a_library_are_searched_in_the_same_way(
    here: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = here / "wheels"
    wheels.mkdir()
    for version, latency in {"0.9": 0.002, "0.10": 0.008, "1.0": 0.008}.items():
        path = other_python.wheel(wheels, "dialect", version)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("dialect_speed.py", f"LATENCY = {latency}\n")
    engine = ENGINE.format(0, "LATENCY").replace("from", "from dialect_speed import LATENCY\nfrom")
    (here / "acme.py").write_text(engine, "utf-8")
    (here / FILE).write_text(SUITE, "utf-8")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    output = say.ends(0, "bisect", "--versions", "dialect==0.9.0..1.0", "--", FILE)
    assert "first bad dialect==0.10\nchange    samples/s −" in output
    assert "1 version in between" in output
    output = say.ends(2, "bisect", "--versions", "dialect==0.9..2.0", "--", FILE)
    assert "pip finds no dialect==2.0" in output


@pytest.mark.process
@pytest.mark.quiet
@pytest.mark.slow
def test_without_a_drop_or_with_a_broken_bad_one_nothing_is_searched(here: Path, say: Say) -> None:
    repository(here, [0.002, 0.002, 0.002, BROKEN])
    no_drop = "BAD is not worse than GOOD: a drop of the limit is excluded; nothing was searched"
    broken = "cannot be judged: engine: ZeroDivisionError"
    rows: list[tuple[tuple[str, str], int, str]] = [
        (("c0", "c2"), 1, no_drop),
        (("c0", "c3"), 2, broken),
        (("c3", "c3~1"), 2, "they are in the wrong order"),
    ]
    lines = [(("bisect", *ends, "--", FILE), code, (text,)) for ends, code, text in rows]
    assert differing(say, lines) == []


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.nightly
def test_every_commit_is_offered_the_rate_of_the_good_one(here: Path, say: Say) -> None:
    server = suites.SERVER.replace("target_qps = {}\n", "")
    limits = '[limits]\nlatency_p99 = { max_rise = "30%" }\n'
    commits = repository(here, [0.001, 0.008], f"{ACME}{server}{limits}")
    (here / "acme.py").write_text("what somebody works on", "utf-8")
    output = say.ends(0, "bisect", "c0", "main", "--", FILE)
    assert f"first bad {commits[1]}\nsubject   change 1 \\x1b[31m\nauthor    test, 20" in output
    assert f"see       git show {commits[1][:12]}\n" in output
    assert nothing_is_left(here)
    specs = [json.loads(file.read_bytes()) for file in here.glob(".mlperf/runs/*/*/spec.json")]
    rates = Counter(spec["settings"]["target_qps"] for spec in specs)
    assert (len(rates), rates[None]) == (2, 1)


REFUSED: list[tuple[list[str], str]] = [
    (
        ["c1", "c0", "--", FILE],
        "GOOD 'c1' is not an ancestor of BAD 'c0': they are in the wrong order",
    ),
    (["c1", "side", "--", FILE], "is not an ancestor of BAD 'side': they are on different"),
    (["c1", "main", "--", FILE], "GOOD and BAD are the same commit, "),
    (["c0", "v9", "--", FILE], "BAD 'v9' is not a commit of this clone; fetch it"),
    (["--", "--all", "c1", FILE], "GOOD '--all' is not a commit of this clone"),
    (["c0", "c1", "--", f"{FILE}::test_performance[x]"], f"{FILE} has no case 'x'"),
    (["c0", "c1", "--", "Acne"], "no case 'Acne'; known: mine-Offline-Acme-fp32-cpu"),
    (["c0", "c1", "--", "t.mlperf.toml"], "t.mlperf.toml does not exist"),
    (["c0", "c1", "--", f"{FILE}::x"], f"{FILE}::x: not a test of a suite"),
    (
        ["c0", "c1", "--", f"{FILE}::test_accuracy[{CASE}]"],
        "only performance tests can be bisected here",
    ),
    (["c0", "c1", "--versions", "a==1..2", "--", FILE], "either GOOD and BAD, or --versions"),
    (["--versions", "a==1", "--", FILE], "'a==1' is not LIBRARY==A..B"),
]


@pytest.mark.process
def test_unsuitable_ranges_are_refused_in_one_sentence(here: Path, say: Say) -> None:
    """Outside of a repository, with wrong names, and where the accelerator is not here."""
    (here / FILE).write_text(SUITE, "utf-8")
    outside = ("bisect", "a", "b", "--", FILE)
    assert differing(say, [(outside, 2, ("is not in a git repository",))]) == []
    repository(here, [0.002, 0.008])
    git(here, "checkout", "-q", "--orphan", "side")
    git(here, "commit", "-q", "-m", "another beginning")
    git(here, "checkout", "-q", "main")
    rows = [(("bisect", *words), 2, (message,)) for words, message in REFUSED]
    assert differing(say, rows) == []
    entry = 'use = "acme:Acme"\naccelerators = ["Z9000"]'
    (here / FILE).write_text(
        SUITE.replace('use = "acme:Acme"', entry) + "[accelerators.Z9000]\n", "utf-8"
    )
    message = "accelerator Z9000 is not on this machine, so pytest deselects the test"
    assert differing(say, [(("bisect", "c0", "c1", "--", FILE), 3, (message,))]) == []
    assert not list(here.glob(".mlperf/runs/*/*"))


@pytest.mark.process
def test_a_good_one_that_does_not_run_is_named(here: Path, say: Say) -> None:
    commits = repository(here, [BROKEN, 0.002])
    message = f"bisect-{commits[0][:12]}: engine: ZeroDivisionError"
    assert differing(say, [(("bisect", "c0", "c1", "--", FILE), 2, (message,))]) == []
    assert nothing_is_left(here)


@pytest.mark.process
def test_a_merge_counts_as_one_step(here: Path) -> None:
    commits = repository(here, [0.002, 0.002])
    git(here, "checkout", "-q", "-b", "side", "c0")
    for name in ("one", "two"):
        git(here, "commit", "-q", "--allow-empty", "-m", name)
    git(here, "checkout", "-q", "main")
    git(here, "merge", "-q", "--no-edit", "side")
    head = git(here, "rev-parse", "HEAD")
    steps = [(one.name, one.merged, one.parent) for one in lineage.commits(here, "c0", "main")]
    first, second = commits
    assert steps == [(first, False, ""), (second, False, first), (head, True, second)]
