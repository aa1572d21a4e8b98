"""LiveCodeBench's programs: read from answers, tested as its runner does, and unable to do harm."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.scorers.code import livecodebench, livecodebench_inside
from pytest_mlperf.scorers.code.livecodebench import Archive, ProblemTests, passed_tests, passes
from pytest_mlperf.scorers.reasoning._answers import final_program, program

FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("so\n```python\na\n```\n```python\nb\n```", "a"),
        ("```python3\na```", "3\na"),
        ("```py\na\n```", None),
        ("```python\na", None),
        ("```\na\n```", None),
        ("``````python\na\n```", "a"),
        ("", None),
    ],
)
def test_deepseeks_program_is_the_first_block_of_python(text: str, code: str | None) -> None:
    assert program(text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n``` ```python\nb\n```", "b"),
        (f"```python\na\n```{FINAL}```\nb\n```<|return|>", "b"),
        (f"```python\na\n```{FINAL}none<|return|>```\nc\n```", "a"),
        (f"{FINAL}```PY \n\n  b\n```", "  b"),
        (f"{FINAL}```python\nb\n``` ```\nc\n```", "b"),
        ("```\na\n``` ```\nb", "a"),
        (f"```python\na{FINAL}```b", "a<|channel|>final<|message|>"),
        ("", None),
    ],
)
def test_gpt_osss_program_is_the_last_block_of_its_final_section(
    text: str, code: str | None
) -> None:
    assert final_program(text) == code


@pytest.mark.parametrize(
    ("printed", "right", "same"),
    [
        ("1 2\n3\n", " 1 2 \n3", True),
        ("1.0 2e0", "1 2", True),
        ("50000000000000000", "50000000000000001", False),
        ("1\n", "1\n\n2", False),
        ("Yes", "yes", False),
        ("1 x", "1.0 x", False),
        ("", "", True),
    ],
)
def test_lines_are_compared_as_text_and_then_as_numbers(
    printed: str, right: str, same: bool
) -> None:
    assert livecodebench_inside.same_lines(printed, right) is same


INCREASE = [("3\n", "4\n"), ("10\n", "11\n")]

PRINTED = {
    "print(int(input()) + 1)": True,
    "print(int(input()) + 2)": False,
    "def main():\n    print(int(input()) + 1)\nif __name__ == '__main__':\n    main()": True,
    "def main():\n    print(int(input()) + 1)\nif '__main__' == __name__:\n    main()": False,
    "import sys\nprint(int(sys.stdin.read()) + 1.0)": True,
    "import sys\nprint(int(sys.stdin.buffer.readline()) + 1)": True,
    "import sys\nfor line in sys.stdin:\n    print(int(line) + 1)": False,  # not iterable there
    "from sys import stdin\nprint(int(stdin.readline()) + 1)": False,  # bound before it is replaced
    "print(int(open(0).read()) + 1)": False,  # likewise
    "print(int(input()) + 1)\nexit()": True,
    "print(int(input()) + 1)\nquit()": False,
    "print(int(input()) + 1)\nraise KeyboardInterrupt": False,
    "print(comb(int(input()) + 1, 1))": True,  # everything is imported
    "print(int(input()) + 1": False,
    "": False,
}
"""Programs that read a number and should print the next one: whether they pass."""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("code", PRINTED, ids=range(len(PRINTED)))
def test_a_program_that_prints_is_tested_as_by_livecodebench(code: str) -> None:
    assert passes(ProblemTests(function=None, tests=INCREASE), code) is PRINTED[code]


CALLED = {
    "def f(x, y): return (x, y)": True,  # a tuple is a list
    "class Solution:\n    def f(self, x, y):\n        print(x)\n        return [x, y]": True,
    "def f(x, y): return [str(x), y]": False,  # of the wrong type
    "def f(x, y): return [float(x), y]": True,
    "def g(x, y): return [x, y]": False,
    "def f(x, y): exit()": False,
    "def f(x): return [x, [1]]": False,
    "def f(x: List[int], y): return [x, y]": True,
}
"""Functions that should return both arguments: whether they pass."""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("code", CALLED, ids=range(len(CALLED)))
def test_a_function_is_tested_as_by_livecodebench(code: str) -> None:
    task = ProblemTests(function="f", tests=[("3\n[1]", "[3, [1]]"), ("0\n[]", "[0, []]")])

    assert passes(task, code) is CALLED[code]


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
@pytest.mark.slow
@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_program_is_wrong_and_ends(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livecodebench, "TEST_S", 1)
    monkeypatch.setattr(livecodebench, "MOST_S", 4)

    assert not passes(ProblemTests(function=None, tests=INCREASE[:1]), code)


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


@pytest.mark.parametrize(
    ("private", "message"),
    [
        ("nonsense!", "no problem of LiveCodeBench"),
        (base64.b64encode(b"no zlib").decode(), "no problem of LiveCodeBench"),
        (packed(print), "the tests want builtins.print, which is not run"),
        (packed(["text"]), "no problem of LiveCodeBench"),
        ('{"input": 1}', "tests are a dict, not a list"),
    ],
)
def test_tests_that_are_none_are_told_and_never_run(
    write: Write, private: str, message: str
) -> None:
    archive = write([row("a", private)])

    with pytest.raises(RunError, match=message):
        archive.task(*archive.find(["a"])["a"])


def test_tests_that_would_fill_the_memory_are_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livecodebench, "MOST_BYTES", 1000)
    archive = write([row("a", packed("x" * 10**6))])

    with pytest.raises(RunError, match="tests have more than 1,000 bytes"):
        archive.task(*archive.find(["a"])["a"])


def test_an_archive_that_is_not_here_or_another_one_is_told(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no tests of LiveCodeBench at .*; get test\.jsonl"):
        Archive("gpt_oss", str(tmp_path)).files()
    with pytest.raises(RunError, match="has none of the 1 problems that the data set asks, such"):
        write([row("a", PRIVATE)]).find(["b"])


@pytest.mark.process
@pytest.mark.slow
def test_a_program_without_tests_or_an_answer_without_a_program_is_wrong(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    right = "print(int(input()) + 1)"

    found = passed_tests(
        "deepseek_r1",
        write([row("a", PRIVATE)]),
        [("a", right), ("b", right), ("a", None), ("a", "print(4)")],
        processes=2,
    )

    assert found == [True, False, False, False]
    assert "deepseek_r1: 1 programs have no tests" in capsys.readouterr().out
