"""What is run of an answer, how, and whether it passes, as in mxeval and MLPerf's script."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.adapters.scorers.code import programs as mbxp_programs
from pytest_mlperf.adapters.scorers.code._languages import TOOLCHAINS, source
from pytest_mlperf.adapters.scorers.code.programs import (
    LANGUAGES,
    Problem,
    defect_of,
    extract,
    passed,
)
from pytest_mlperf.adapters.scorers.mbxp import MbxpScorer
from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.registry import check_call
from pytest_mlperf.testing import check_scorer
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.test_sandbox import isolation
from tests.adapters.scorers.tokenizers_made_here import byte_level

Build = Callable[..., MbxpScorer]

CHECK = "def check(candidate):\n    assert candidate(2) == 4\n"

isolated = pytest.mark.usefixtures("isolation")

__all__ = ["isolation"]


@pytest.fixture(scope="module")
def lodash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lodash with the one function that the tests of MBXP use."""
    folder = tmp_path_factory.mktemp("node_modules") / "lodash"
    folder.mkdir()
    (folder / "index.js").write_text('exports.isEqual = require("util").isDeepStrictEqual')
    return folder


@pytest.fixture
def node_path(lodash: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_PATH", str(lodash.parent))


def problem(code: str, language: str = "python", test: str = CHECK) -> Problem:
    return Problem(language=language, code=code, entry_point="f", test=test)


def outcomes(codes: list[str], language: str = "python", test: str = CHECK) -> list[bool]:
    return passed([problem(code, language, test) for code in codes], processes=2)


EXTRACTED = [
    ("python", "", ""),
    ("python", "```", ""),
    ("python", "def f(): pass\n```\nThis is", "def f(): pass\n"),
    ("python", "def f(): pass", "def f(): pass"),
    ("python", "\n\n  def f(): pass", "def f(): pass"),
    ("python", "a``b```c```d", "a``b"),
    ("python", "f\\_g(\\\\_x, '\\n')", "f_g(\\_x, '\\n')"),
    ("python", "\\_```", "_"),
    ("python", "\u3000é = 1 # 日本 😀", "é = 1 # 日本 😀"),
    ("cpp", "\n int f\\_g() {}\n```", "\n int f_g() {}\n"),
    ("javascript", "  f\\_g()", "  f_g()"),
    ("php", "<?php\n$a\\_b = 1;", "<?php\n$a_b = 1;"),
    ("ruby", "\ndef f\nend", "\ndef f\nend"),
    ("typescript", "\tlet a", "\tlet a"),
]


def test_an_answer_is_cut_and_cleaned_as_by_the_reference() -> None:
    assert [
        (language, completion, extract(language, completion))
        for language, completion, _ in EXTRACTED
    ] == EXTRACTED


@given(
    language=st.sampled_from(LANGUAGES),
    parts=st.lists(st.sampled_from(["```", "``", "\\_", "_", "\\", " ", "\n", "x", "é"])),
)
def test_extraction_is_the_reference_rule(language: str, parts: list[str]) -> None:
    completion = "".join(parts)
    code = completion
    for position in range(len(completion)):
        if completion[position : position + 3] == "```":
            code = completion[:position]
            break
    while language == "python" and code and code[0].isspace():
        code = code[1:]

    assert extract(language, completion) == "_".join(code.split("\\_"))


def test_a_program_is_the_answer_and_its_test() -> None:
    assert source("python", "a", "b", "f") == "a\nb\ncheck(f)"
    for language in set(LANGUAGES) - {"python"}:
        assert source(language, "a", "b", "f") == "ab"


def install(folder: Path, *programs: str) -> None:
    """Make programs that are found; they are not run."""
    folder.mkdir(parents=True)
    for name in programs:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)


COMMANDS = {
    "cpp": ["{bin}/g++ main.cpp -o main_cpp | 100 s", "/box/main_cpp | 20 s"],
    "javascript": ["{bin}/node /box/main.js | 20 s"],
    "php": ["{bin}/php /box/main.php | 20 s"],
    "ruby": ["{bin}/ruby /box/main.rb | 20 s"],
    "typescript": [
        "{bin}/node {bin}/tsc /box/main --target es5 --lib es2016 | 100 s",
        "{bin}/node /box/main.js | 20 s",
    ],
}


@pytest.mark.usefixtures("node_path")
def test_the_commands_are_those_of_mxeval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time limits of mxeval for compilers and of MLPerf for programs."""
    folder = tmp_path / "tools" / "bin"
    install(folder, "g++", "node", "php", "ruby", "tsc")
    monkeypatch.setenv("PATH", str(folder))

    for language, commands in COMMANDS.items():
        how = TOOLCHAINS[language]()

        assert [f"{' '.join(step.command)} | {step.wall_s:.0f} s" for step in how.steps] == [
            command.format(bin=folder) for command in commands
        ]
        assert str(folder.parent) in how.readable
        # tsc is expected to complain, and to write its output all the same.
        first = {2} if language == "typescript" else {0}
        assert [set(step.goes_on) for step in how.steps] == [first, {0}][: len(how.steps)]


@pytest.mark.usefixtures("node_path")
def test_no_home_folder_is_shown_and_a_program_of_the_system_needs_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for program, readable in {
        "home/bin/php": "home/bin/php",
        "home/php8/bin/php": "home/php8",
    }.items():
        path = tmp_path / program
        install(path.parent, "php")
        monkeypatch.setenv("PATH", str(path.parent))
        assert set(TOOLCHAINS["php"]().readable) - {"/etc/php"} == {str(tmp_path / readable)}

    monkeypatch.setenv("PATH", "/usr/bin")
    if shutil.which("g++") is not None:
        how = TOOLCHAINS["cpp"]()
        assert (how.steps[0].command[0], how.readable) == ("/usr/bin/g++", {})


RIGHT = "def f(x): return 4\n"

PYTHON = {
    "def f(x): return x * x": True,
    "def f(x): return x * 3": False,
    "": False,
    "def f(x) return x": False,
    "def g(x): return x * x": False,
    "f = lambda x: x + x": True,
    "# é 日本 😀\ndef f(ö): return ö + ö": True,
    "def f(x):\r\n    return 4": True,
    "def f(x):\n\treturn 4\n        return 5": False,
    "def f(x): return 4\0": False,
    "def f(x): return '\ud800' and 4": False,
    "# -*- coding: latin-1 -*-\ndef f(x): return 3 + len('é')": True,
}
"""Programs in any alphabet; what cannot be written as a file or compiled fails."""

AFTER_RIGHT = {
    "exit(0)": False,
    "import sys\nsys.exit(0)": False,
    "import os\nos._exit(0)": False,
    "raise SystemExit": False,
    "import os\nos.write(1, b'passed')\nos._exit(0)": False,
    "import os, signal\nsignal.raise_signal(signal.SIGKILL)": False,
    "open('word.txt')": False,
    "if __name__ == '__main__':\n    raise ValueError": True,
    "assert __name__ == 'builtins'": True,
    "input()": False,
    "import sys\nsys.stdin.read()": False,
    "import sys\nsys.stdin.readlines()": False,
    "print('x' * 1000000)": True,
    "import sys\nsys.stdout.buffer.write(b'')": False,
    "import os\nos.write(1, bytes(10000000))": True,
    "import os\nos.close(1)": True,
    "import os\nos.getcwd()": False,
    "import os\nos.system('true')": False,
    "import subprocess\nsubprocess.run(['true'])": False,
    "import shutil\nshutil.rmtree('.')": False,
    "import resource": False,
    "import tkinter": False,
    "import math, re, collections, heapq, itertools, sqlite3, json, datetime": True,
    "import numpy as np\nassert np.arange(4).sum() == 6": True,
    "import os\nassert os.getcwd is None": True,
    "import pytest_mlperf": False,
    "def check(candidate): raise ValueError": True,
    "bytearray(3 << 30)": False,
    "import os\nos.fork()": False,
    "import multiprocessing.pool\nmultiprocessing.Lock()": True,
    "from multiprocessing.pool import ThreadPool\nassert ThreadPool(1).map(abs, [-1])": True,
    "import multiprocessing.shared_memory as m\nm.SharedMemory(create=True, size=9)": True,
    "import multiprocessing\nmultiprocessing.Process(target=print).start()": False,
    "from concurrent.futures import ProcessPoolExecutor": True,
    "import tempfile\nwith tempfile.TemporaryFile() as file:\n    file.write(b'x')": True,
    "import tempfile\nwith tempfile.NamedTemporaryFile() as file:\n    file.write(b'x')": True,
    "import tempfile\nassert tempfile.mkdtemp()": True,
    "import tempfile\nwith tempfile.TemporaryDirectory():\n    pass": False,
    "import atexit\natexit.register(lambda: 1 / 0)": True,
    "import threading\nthreading.Thread(target=lambda: 1 / 0).start()": True,
}
"""What may follow a right function: it runs to its end, and has no keyboard and no name."""


@pytest.mark.process
@isolated
def test_a_python_program_runs_as_in_mxeval_and_passes_if_its_test_does() -> None:
    programs = {**PYTHON, **{RIGHT + code: right for code, right in AFTER_RIGHT.items()}}

    assert dict(zip(programs, outcomes(list(programs)), strict=True)) == programs


PROGRAMS = {
    "cpp": (
        "#include <stdexcept>\nusing namespace std;\nint f(int x) { return %s; }\n",
        'int main() { if (f(2) != 4) throw runtime_error("case 0"); return 0; }',
    ),
    "javascript": (
        "function f(x) { return %s }\n",
        'const _ = require("lodash")\nif (!_.isEqual([f(2)], [4])) { throw "case 0" }',
    ),
    "php": (
        "<?php\nfunction f($x) { return %s; }\n",
        'if (f(2) != 4) { throw new Exception("case 0"); }',
    ),
    "python": ("def f(x): return %s\n", CHECK),
    "ruby": ("def f(x)\n  %s\nend\n", 'raise StandardError, "case 0" if f(2) != 4'),
    "typescript": (
        "const f = function (x: number): number { return %s }\n",
        "import * as assert from 'assert'\nassert.deepEqual(f(2), 4, 'case 0')",
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.usefixtures("node_path")
@isolated
def test_right_programs_pass_and_wrong_ones_fail(language: str) -> None:
    """In every language: right, wrong by its test, and no program at all; in their order."""
    if reason := defect_of(language):
        pytest.skip(reason)
    code, test = PROGRAMS[language]
    codes = [code % "4", code % "5", code % "((", code % "4"]

    assert outcomes(codes, language, test) == [True, False, False, True]


JAVASCRIPT = {
    "process.exit(0)": True,
    "process.exit(1)": False,
    "process.stdout.write(Buffer.from([0xff]))": False,
    "process.stdout.write('é 日本')": True,
    "process.stdout.write('x'.repeat(1000000))": True,
    "process.stdout.write('é'.repeat(1000001))": True,
    "require('fs').readFileSync('/etc/passwd')": False,
    "require('child_process').execSync('true')": True,
    "new Array(2 ** 32)": False,
    "const all = []; while (true) all.push(Buffer.alloc(2 ** 28))": False,
    "require('typescript')": False,
}
"""Programs in other languages than Python pass if they end with 0 and write text."""


@pytest.mark.process
@pytest.mark.usefixtures("node_path")
@isolated
def test_other_programs_pass_if_they_end_with_0_and_write_text() -> None:
    if reason := defect_of("javascript"):
        pytest.skip(reason)

    passed = outcomes(list(JAVASCRIPT), "javascript", "")

    assert dict(zip(JAVASCRIPT, passed, strict=True)) == JAVASCRIPT


@pytest.mark.process
@isolated
def test_results_come_in_order_with_any_number_of_processes() -> None:
    expected = [False, True, True, False]
    problems = [problem(RIGHT if right else "def f(x): return 5") for right in expected]

    assert passed(problems, processes=1) == passed(problems, processes=5) == expected
    assert passed(problems[:2]) == expected[:2]
    assert passed([]) == []


@pytest.mark.process
@isolated
def test_missing_languages_are_named_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, each with why and how many programs need it; none counts as failed."""
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    ruby, php = problem("", "ruby"), problem("", "php")

    with pytest.raises(EnvironmentFault) as caught:
        passed([php, problem(RIGHT), ruby, php])

    assert str(caught.value) == (
        "some of the 4 programs of MBXP cannot run here: 2 in php (php is not on PATH), 1 in "
        "ruby (ruby is not on PATH); install the missing tools, or, with scorer mixtral, leave "
        "MBXP out by run_generated_code = false"
    )
    assert {language: defect_of(language) for language in LANGUAGES} | {"python": "?"} == {
        "cpp": "g++ is not on PATH",
        "javascript": "node is not on PATH",
        "php": "php is not on PATH",
        "python": "?",
        "ruby": "ruby is not on PATH",
        "typescript": "node is not on PATH",
    }
    assert defect_of("python") is None


@pytest.mark.process
@isolated
def test_a_toolchain_that_does_not_work_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right program must pass before any program counts as failed."""
    install(tmp_path / "tools" / "bin", "ruby")
    monkeypatch.setenv("PATH", str(tmp_path / "tools" / "bin"))

    assert defect_of("ruby") == "a correct test program ended with 1: it wrote nothing"
    with pytest.raises(EnvironmentFault, match="1 in ruby \\(a correct test program ended"):
        passed([problem("", "ruby")])


@pytest.mark.process
@isolated
def test_javascript_needs_what_its_tests_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "tools" / "bin", "node")
    monkeypatch.setenv("PATH", str(tmp_path / "tools" / "bin"))
    monkeypatch.delenv("NODE_PATH", raising=False)
    monkeypatch.setattr("pytest_mlperf.adapters.scorers.code._languages.NODE_FOLDERS", ())

    assert defect_of("javascript") == (
        "node cannot find the module lodash, which the tests import (npm install -g lodash, or set "
        "NODE_PATH to its folder)"
    )


def test_the_languages_are_those_that_the_reference_runs() -> None:
    assert set(TOOLCHAINS) == {"cpp", "javascript", "php", "python", "ruby", "typescript"}


@pytest.fixture
def build(model: Path) -> Build:
    def with_options(**options: Any) -> MbxpScorer:
        return MbxpScorer(**{"model": str(model), "run_generated_code": True, **options})

    return with_options


def tokens(texts: list[str]) -> list[bytes]:
    return [np.array(one.ids, "<i8").tobytes() for one in byte_level().encode_batch(texts)]


def reference(language: str = "python", **changed: Any) -> dict[str, Any]:
    usual = {
        "dataset": "MBXP",
        "target": CHECK,
        "id": f"{language}_f",
        "language": language,
        "entry_point": "f",
        "prompt": "def f(x):",
    }
    return {**usual, **changed}


ANSWERS = ["def f(x): return 4\n```\nIt is", "def f(x): return 5", "package main", "```", RIGHT]


def test_programs_are_not_run_unless_that_is_asked_for(build: Build) -> None:
    with pytest.raises(SuiteError) as caught:
        build(run_generated_code=False)

    assert str(caught.value) == (
        "scorer mbxp runs programs that the model wrote, in a sandbox without network, files and "
        "privileges; to allow this, set the scorer's option run_generated_code = true"
    )
    with pytest.raises(SuiteError, match="scorer mbxp runs programs that the model wrote"):
        MbxpScorer(model=None)
    options = {"run_generated_code": True, "processes": 2, "dtype": "int32", "clean_up": False}
    check_call("scorer mbxp", MbxpScorer, options)
    json.dumps(options)


def test_wrong_options_and_inputs_are_refused_before_a_program_runs(build: Build) -> None:
    options = [
        ({"run_generated_code": 1}, "run_generated_code = 1 is not true or false"),
        ({"run_generated_code": "yes"}, "run_generated_code = 'yes' is not true"),
        ({"processes": 0}, "processes = 0 is not a whole number of at least 1"),
        ({"processes": True}, "processes = True is not a whole number of at least 1"),
        ({"dtype": "int8"}, "dtype = 'int8' is not one of int32, int64"),
        ({"model": None}, "neither its option tokenizer nor the workload's model"),
    ]
    inputs: list[tuple[list[bytes], list[Any], str]] = [
        ([], [], "got 0 outputs for 0 references"),
        ([b""], [], "got 1 outputs for 0 references; it needs one output per reference"),
        ([b""], ["text"], "the reference of sample 0 is a str; it must be a table of texts"),
        ([b""], [reference(target=1)], "the reference of sample 0 has no text 'target'; use data"),
        (
            [b"", b""],
            [reference(), {"target": "x", "id": "y", "language": "z"}],
            "the reference of sample 1 has no text 'entry_point' and no text 'prompt'",
        ),
        ([b"123"], [reference()], "the output of sample 0 has 3 bytes"),
    ]

    assert differences(lambda values: build(**values), SuiteError, options) == []
    assert differences(build().score, RunError, inputs) == []
    with pytest.raises(UnavailableError, match="the folder /no/such does not exist"):
        build(tokenizer="/no/such")


def test_without_a_program_that_counts_there_is_no_score(build: Build) -> None:
    scores = build().score(tokens(["x"]), [reference("go")])

    assert set(scores.per_sample) == set(scores.aggregate) == {"tokens_per_sample"}


def test_programs_that_have_run_are_counted_aloud_which_is_the_scorers_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(mbxp_programs._with_progress([True, False], "mbxp")) == [True, False]
    assert capsys.readouterr().out == ""

    monkeypatch.setattr(mbxp_programs, "PROGRESS_LINE_SECONDS", 0.0)
    assert list(mbxp_programs._with_progress([True, False], "mbxp")) == [True, False]
    assert capsys.readouterr().out == "mbxp: 1 programs have run\nmbxp: 2 programs have run\n"


@pytest.mark.process
@isolated
def test_a_sample_scores_100_or_0_or_does_not_count(model: Path) -> None:
    """The mean is of those that count, not rounded, as the reference prints it."""
    outputs = tokens(ANSWERS)
    references = [reference("go" if "package" in answer else "python") for answer in ANSWERS]

    scores = check_scorer(
        MbxpScorer,
        outputs,
        references,
        model=str(model),
        options={"run_generated_code": True, "processes": 2},
    )

    counts = [len(output) / 8 for output in outputs]
    assert scores.per_sample == {
        "mbxp": [100.0, 0.0, None, 0.0, 100.0],
        "tokens_per_sample": counts,
    }
    assert scores.aggregate == {"mbxp": 50.0, "tokens_per_sample": round(sum(counts) / 5, 1)}
