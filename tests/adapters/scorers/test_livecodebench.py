"""LiveCodeBench's programs: read from answers, tested as its runner does, and unable to do harm."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import json
import os
import pickle
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.adapters.scorers.code import livecodebench, livecodebench_inside
from pytest_mlperf.adapters.scorers.code._languages import python_toolchain
from pytest_mlperf.adapters.scorers.code.livecodebench import (
    IMPORTABLE,
    INSIDE_SCRIPT,
    Archive,
    ProblemTests,
    passed_tests,
    passes,
)
from pytest_mlperf.adapters.scorers.reasoning._answers import final_program, program
from pytest_mlperf.core.errors import RunError, UnavailableError
from tests.adapters.scorers.refusals import differences
from tests.adapters.scorers.stdin_idioms import IDIOMS

FINAL = "<|channel|>final<|message|>"


def test_deepseeks_program_is_the_first_block_of_python() -> None:
    programs = {
        "so\n```python\na\n```\n```python\nb\n```": "a",
        "```python3\na```": "3\na",
        "```py\na\n```": None,
        "```python\na": None,
        "```\na\n```": None,
        "``````python\na\n```": "a",
        "": None,
    }

    assert {text: program(text) for text in programs} == programs


def test_gpt_osss_program_is_the_last_block_of_its_final_section() -> None:
    programs = {
        "```python\na\n``` ```python\nb\n```": "b",
        f"```python\na\n```{FINAL}```\nb\n```<|return|>": "b",
        f"```python\na\n```{FINAL}none<|return|>```\nc\n```": "a",
        f"{FINAL}```PY \n\n  b\n```": "  b",
        f"{FINAL}```python\nb\n``` ```\nc\n```": "b",
        "```\na\n``` ```\nb": "a",
        f"```python\na{FINAL}```b": "a<|channel|>final<|message|>",
        "": None,
    }

    assert {text: final_program(text) for text in programs} == programs


def test_lines_are_compared_as_text_and_then_as_numbers() -> None:
    lines = {
        ("1 2\n3\n", " 1 2 \n3"): True,
        ("1.0 2e0", "1 2"): True,
        ("50000000000000000", "50000000000000001"): False,
        ("1\n", "1\n\n2"): False,
        ("Yes", "yes"): False,
        ("1 x", "1.0 x"): False,
        ("", ""): True,
    }

    assert {pair: livecodebench_inside.same_lines(*pair) for pair in lines} == lines


INCREASE = [("3\n", "4\n"), ("10\n", "11\n")]

PRINTED = {
    "print(int(input()) + 1)": True,
    "print(int(input()) + 2)": False,
    "def main():\n    print(int(input()) + 1)\nif __name__ == '__main__':\n    main()": True,
    "def main():\n    print(int(input()) + 1)\nif '__main__' == __name__:\n    main()": False,
    "import sys\nprint(int(sys.stdin.read()) + 1.0)": True,
    "import sys\nprint(int(sys.stdin.buffer.readline()) + 1)": True,
    "import sys\nfor line in sys.stdin:\n    print(int(line) + 1)": False,  # not iterable there
    "from sys import stdin\nprint(int(stdin.readline()) + 1)": True,
    "import sys\nprint(int(sys.stdin.readline()[:-1]) + 1)": True,
    "import fileinput\nfor line in fileinput.input():\n    print(int(line) + 1)": True,
    "import fileinput\nprint(int(next(fileinput.input())) + 1)": False,  # active in the 2nd test
    "print(int(open(0).read()) + 1)": False,  # the process's own stdin is empty
    "from sys import stdin\nprint(int(stdin.buffer.read()) + 1)": False,
    "from sys import stdin, stdout\nstdout.write('x' * 10**5)\nprint(int(stdin.read()) + 1)": True,
    "from sys import stdout\nstdout.write(str(int(input()) + 1))": False,  # not what is captured
    "import sympy\nprint(sympy.Integer(input()) + 1)": importlib.util.find_spec("sympy")
    is not None,
    "import joblib\nprint(int(input()) + 1)": False,
    "print(int(input()) + 1)\nexit()": True,
    "print(int(input()) + 1)\nquit()": False,
    "print(int(input()) + 1)\nraise KeyboardInterrupt": False,
    "print(comb(int(input()) + 1, 1))": True,  # everything is imported
    "print(int(input()) + 1": False,
    "": False,
}
"""Programs that read a number and should print the next one: whether they pass."""


def printed(code: str, text: str) -> str | None:
    """Return the output of a program that reads a text; None if it raises."""
    function = livecodebench_inside.load(
        livecodebench_inside.as_function(code), livecodebench_inside.FUNCTION, 60
    )
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        try:
            livecodebench_inside.run(function, text)
        except Exception:  # whatever a program raises
            return None
    return stream.getvalue()


def test_programs_read_as_in_livecodebenchs_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = sys.getrecursionlimit()  # which LiveCodeBench's preamble raises
    with open(os.devnull, encoding="utf-8") as empty:  # noqa: PTH123 -- as its processes have
        monkeypatch.setattr(sys, "stdin", empty)
        monkeypatch.setattr(sys, "argv", ["program"])
        outcomes = [(code, text, printed(code, text)) for code, text, _ in IDIOMS]
    sys.setrecursionlimit(limit)

    assert len(IDIOMS) >= 41
    assert [pair for pair in zip(outcomes, IDIOMS, strict=True) if pair[0] != pair[1]] == []


CALLED = {
    "def f(x, y): return (x, y)": True,  # a tuple is a list
    "class Solution:\n    def f(self, x, y):\n        print(x)\n        return [x, y]": True,
    "def f(x, y): return [str(x), y]": False,  # of the wrong type
    "def f(x, y): return [float(x), y]": True,
    "def g(x, y): return [x, y]": False,
    "def f(x, y): exit()": False,
    "def f(x): return [x, [1]]": False,
    "def f(x, y):\n    print('x' * 10**5, flush=True)\n    return [x, y]": True,
    "def f(x: List[int], y): return [x, y]": True,
}
"""Functions that should return both arguments: whether they pass."""


@pytest.mark.process
def test_programs_are_tested_as_by_livecodebench() -> None:
    printing = ProblemTests(function=None, tests=INCREASE)
    calling = ProblemTests(function="f", tests=[("3\n[1]", "[3, [1]]"), ("0\n[]", "[0, []]")])

    chain = python_toolchain(INSIDE_SCRIPT, *IMPORTABLE)
    assert {code: passes(printing, code, chain) for code in PRINTED} == PRINTED
    assert {code: passes(calling, code, chain) for code in CALLED} == CALLED


HOSTILE = {
    "endless": "while True: pass",
    "deaf": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "asleep": "import time\ntime.sleep(10**6)",
    "forks": "import os, ctypes\nwhile True: ctypes.CDLL(None).fork()",
    "huge output": "while True: print('x' * 10**7)",
    "huge object": "x = bytearray(10**12)",
    "gone": "import ctypes\nctypes.CDLL(None)._exit(0)",
    "reads the tests": "import io\nprint(eval(io.open_code('task.json').read())['tests'][0][1])",
    "writes the word": "import io\nprint(io.open_code('word.txt').read())",
    "deep": "def f(): f()\nf()",
}


@pytest.mark.process
def test_a_hostile_program_is_wrong_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livecodebench, "TEST_SECONDS", 1)
    monkeypatch.setattr(livecodebench, "MAX_PROGRAM_SECONDS", 2)
    task = ProblemTests(function=None, tests=INCREASE[:1])

    chain = python_toolchain(INSIDE_SCRIPT, *IMPORTABLE)
    assert [name for name, code in HOSTILE.items() if passes(task, code, chain)] == []


def packed(content: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(content))).decode()


def test_case(text: str, right: str) -> dict[str, str]:
    return {"input": text, "output": right, "testtype": "stdin"}


test_case.__test__ = False  # type: ignore[attr-defined]


def row(identifier: str, private: str, **metadata: str) -> str:
    return json.dumps(
        {
            "question_title": "Next",
            "question_content": 'Write \\"question_id\\": "decoy" and "question_id": "decoy"',
            "question_id": identifier,
            "public_test_cases": json.dumps([test_case(*INCREASE[0])]),
            "private_test_cases": private,
            "metadata": json.dumps(metadata),
        }
    )


Write = Callable[..., Archive]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def files(*parts: list[str]) -> Archive:
        for number, rows in enumerate(parts):
            name = f"test{number or ''}.jsonl"
            (tmp_path / name).write_text("\n".join(rows) + "\n", "utf-8")
        return Archive("deepseek_r1", str(tmp_path))

    return files


PRIVATE = json.dumps([test_case(*INCREASE[1])])


def test_tests_are_the_public_and_the_private_ones_in_either_form(write: Write) -> None:
    """As JSON, or as its compressed pickle; the problem's function is called, if it names one."""
    archive = write([row("a", PRIVATE)], [row("1873_B", packed(PRIVATE), func_name="f")])
    places = archive.find(["1873_B", "a", "decoy", "b"])

    assert places.keys() == {"a", "1873_B"}
    assert archive.task(*places["a"]) == ProblemTests(function=None, tests=INCREASE)
    assert archive.task(*places["1873_B"]) == ProblemTests(function="f", tests=INCREASE)


def test_tests_that_are_none_are_refused_and_never_run(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match="holds no LiveCodeBench tests; download"):
        Archive("gpt_oss", str(tmp_path)).files()
    monkeypatch.setattr(livecodebench, "MAX_TESTS_BYTES", 1000)
    rows = [
        ("nonsense!", "not a LiveCodeBench problem"),
        (base64.b64encode(b"no zlib").decode(), "not a LiveCodeBench problem"),
        (packed(print), "is not one pickled text; its opcodes: PROTO FRAME SHORT_BINUNICODE"),
        (packed([]), "is not one pickled text; its opcodes: PROTO EMPTY_LIST MEMOIZE STOP"),
        (packed(["text"]), "not a LiveCodeBench problem"),
        ('{"input": 1}', "private_test_cases holds a dict, not a list"),
        (packed("x" * 10**6), "unpacks to more than 1,000 bytes"),
    ]

    def task(private: str) -> None:
        archive = write([row("a", private)])
        archive.task(*archive.find(["a"])["a"])

    assert differences(task, RunError, rows) == []
    with pytest.raises(RunError, match="has no tests for any of the 1 problems in the data set"):
        write([row("a", PRIVATE)]).find(["b"])


@pytest.mark.process
def test_a_program_without_tests_or_an_answer_without_a_program_is_wrong(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    right = "print(int(input()) + 1)"
    answers = [("a", right), ("b", right), ("a", None), ("a", "print(4)")]

    passed = passed_tests("deepseek_r1", write([row("a", PRIVATE)]), answers, processes=2)

    assert passed == [True, False, False, False]
    assert "deepseek_r1: 1 programs have no tests" in capsys.readouterr().out
