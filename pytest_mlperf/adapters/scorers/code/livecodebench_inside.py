"""Run one program in a sandbox on the tests of LiveCodeBench; a script, never imported.

It reads task.json and word.txt from its folder, and writes the word to its stdout if the program
passed all tests. A program could fake an exit code by leaving early.

Programs get the environment of LiveCodeBench's runner. A program that reads is the body of a
function. `sys.stdin.readline()` and `input()` read line by line, `sys.stdin.read()` returns the
whole input each time, and `sys.stdin` cannot be iterated. A `stdin` imported from sys is the
process's own, with other functions, see `run`. `open(0)` is empty. Functions that end processes or
change files are missing; the protection is the sandbox.

Source: lcb_runner/evaluation/testing_util.py of https://github.com/LiveCodeBench/LiveCodeBench
(28fef95; b1e7cab, which MLPerf pins, has the same).
"""

# ruff: noqa: PTH107, PTH123
from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any
from unittest import mock

MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json"),
)
STARS = (*MODULES, "builtins", "typing")
"""Modules that a program finds imported, in this order: later names hide earlier ones."""

PREAMBLE = "\n".join(
    [
        *(f"from {name} import *" for name in STARS),
        *(f"import {name}" for name in MODULES),
        "sys.setrecursionlimit(50000)\n",
    ]
)
MAX_DIGITS = 50000
FUNCTION = "wrapped_function"


class TestTimeoutException(Exception):
    """Report that a test exceeded its time limit."""


class Input:
    """Replace a program's stdin: a StringIO with other `read` and `readlines`, not iterable."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.buffer = Bytes(text.encode())
        self.stream = io.StringIO(text)

    def read(self, *_: object) -> str:
        """Return the whole text, each time."""
        return self.text

    def readlines(self, *_: object) -> list[str]:
        """Return all lines, without their ends."""
        return self.text.split("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Bytes:
    """Replace the byte stream of a program's stdin."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, *_: object) -> bytes:
        """Return all bytes, each time."""
        return self.content

    def readline(self, *_: object) -> bytes:
        """Return the first line, each time."""
        return self.content.split(b"\n")[0] + b"\n"


def as_function(code: str) -> str:
    """Return a program as a function after its imports; return unparsable code unchanged."""
    try:
        body = ast.parse(_without_guard(code)).body
        imports: list[ast.stmt] = [
            node for node in body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        rest = [node for node in body if node not in imports]
        function = ast.parse(f"def {FUNCTION}(): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = rest
        parts = (ast.unparse(ast.Module(imports, [])), ast.unparse(function))
    except Exception:  # the parser raises several errors
        return code
    return "\n".join((PREAMBLE, *parts))


def _without_guard(code: str) -> str:
    """Return a program without a final `if __name__ == '__main__'`; its block always runs."""
    with contextlib.suppress(Exception):  # unparsable code runs unchanged
        *statements, last = ast.parse(code).body
        if isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'":
            return ast.unparse(ast.Module([*statements, *last.body], []))
    return code


def load(code: str, name: str, seconds: int) -> Callable[..., Any]:
    """Run a program, and return its function, or the method of its class Solution."""
    signal.alarm(seconds)
    module = types.ModuleType("tmp_sol", "")
    exec(code, module.__dict__)  # noqa: S102 -- in a sandbox
    owner = module.Solution() if "class Solution" in code else module
    signal.alarm(0)
    function: Callable[..., Any] = getattr(owner, name)
    return function


def calls(task: dict[str, Any]) -> Iterator[bool]:
    """Yield for each test whether a function returns the expected value."""
    function = load(f"{PREAMBLE}\n\n{task['code']}", task["function"], task["seconds"])
    tests = [
        (list(map(json.loads, text.split("\n"))), json.loads(right))
        for text, right in tests_of(task)
    ]
    for arguments, right in tests:
        signal.alarm(task["seconds"])
        result = function(*arguments)
        signal.alarm(0)
        yield bool((list(result) if isinstance(result, tuple) else result) == right)


def prints(task: dict[str, Any]) -> Iterator[bool]:
    """Yield for each test whether a program prints the expected text."""
    function = load(as_function(task["code"]), FUNCTION, task["seconds"])
    for text, right in tests_of(task):
        printed = io.StringIO()
        setattr(printed, "close", lambda _: 1)  # noqa: B010 -- closing it has no effect
        signal.alarm(task["seconds"])
        with contextlib.redirect_stdout(printed):
            run(function, text)
        signal.alarm(0)
        yield same_lines(printed.getvalue(), right)


def tests_of(task: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Return pairs of input and expected output."""
    pairs: list[tuple[str, str]] = task["tests"]
    return pairs


def run(function: Callable[..., Any], text: str) -> None:
    """Run a program with `text` as its stdin; the program may exit.

    As in LiveCodeBench, read, readline and readlines of the process's stdin are replaced first, and
    sys.stdin afterwards: a program that wrote `from sys import stdin` reads through them.
    """
    lines = iter(text.split("\n"))
    functions: dict[str, Any] = {
        "read": lambda *_: text,
        "readline": lambda *_: next(lines),
        "readlines": lambda *_: text.split("\n"),
    }
    with (
        mock.patch.multiple(sys.stdin, **functions),
        mock.patch("sys.stdin", Input(text)),
        mock.patch("builtins.open", mock.mock_open(read_data=text)),
        contextlib.suppress(SystemExit),
    ):
        function()


def same_lines(printed: str, right: str) -> bool:
    """Return whether lines are equal, as text or as numbers, without spaces at their ends."""
    lines = [[line.strip() for line in text.strip().split("\n")] for text in (printed, right)]
    return len(lines[0]) == len(lines[1]) and all(map(_same_line, *lines))


def _same_line(printed: str, right: str) -> bool:
    if printed == right:
        return True
    try:
        return list(map(Decimal, printed.split())) == list(map(Decimal, right.split()))
    except ArithmeticError:  # no number
        return False


def too_late(*_: object) -> None:
    """End a test that exceeds its time; print the message even if the program catches it."""
    print("timeout occured: alarm went off")
    raise TestTimeoutException


def main() -> None:
    """Run the tests up to the first failure; if all pass, write the random word of `word.txt`."""
    with open("task.json", encoding="utf-8") as file:
        task = json.load(file)
    with open("word.txt", "rb") as file:
        word = file.read()
    os.remove("task.json")
    os.remove("word.txt")
    out, write, leave = os.dup(1), os.write, os._exit
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # a function's own output must not pass for the word
        os.dup2(nothing, stream)
    sys.set_int_max_str_digits(MAX_DIGITS)
    runpy.run_path("guard")["prepare"](task["code"], ending=("quit", "help"))
    signal.signal(signal.SIGALRM, too_late)
    try:
        right = all(calls(task) if task["function"] else prints(task))
    except BaseException:  # SystemExit of a function fails too
        leave(1)
    if right:
        write(out, word)
    leave(0)


if __name__ == "__main__":
    main()
