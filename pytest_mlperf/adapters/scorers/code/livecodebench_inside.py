"""Run one program in a sandbox on the tests of LiveCodeBench; a script, never imported.

The script reads task.json and word.txt from its folder. If the program passes all tests, the script
writes the secret word to stdout: a program could fake an exit code by exiting early.

Programs get the same environment as in LiveCodeBench's runner. A program that reads stdin becomes
the body of a function. `sys.stdin.readline()` and `input()` read line by line, `sys.stdin.read()`
returns the whole input at every call, and `sys.stdin` cannot be iterated. After `from sys import
stdin`, `stdin` is the process's own stream with replaced methods, see `run`. `open(0)` is empty.
Functions that end processes or change files are removed, but the protection is the sandbox.

Source: lcb_runner/evaluation/testing_util.py of https://github.com/LiveCodeBench/LiveCodeBench
(28fef95; b1e7cab, which MLPerf pins, has the same file).
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
    """Replace a program's stdin by a text; `read` and `readlines` return all of it each time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.buffer = Bytes(text.encode())
        self.stream = io.StringIO(text)

    def read(self, *_: object) -> str:
        """Return the whole text at every call."""
        return self.text

    def readlines(self, *_: object) -> list[str]:
        """Return all lines without line ends."""
        return self.text.split("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Bytes:
    """Replace `sys.stdin.buffer`, the byte stream of a program's stdin."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, *_: object) -> bytes:
        """Return all bytes at every call."""
        return self.content

    def readline(self, *_: object) -> bytes:
        """Return the first line at every call, as LiveCodeBench's runner does."""
        return self.content.split(b"\n")[0] + b"\n"


def as_function(code: str) -> str:
    """Wrap a program, except its imports, in a function; return unparsable code unchanged."""
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
    """Replace a final `if __name__ == '__main__'` by its body, so that the body always runs."""
    with contextlib.suppress(Exception):  # unparsable code runs unchanged
        *statements, last = ast.parse(code).body
        if isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'":
            return ast.unparse(ast.Module([*statements, *last.body], []))
    return code


def load(code: str, name: str, seconds: int) -> Callable[..., Any]:
    """Run a program; return its function `name`, or that method of its class Solution."""
    signal.alarm(seconds)
    module = types.ModuleType("tmp_sol", "")
    exec(code, module.__dict__)  # noqa: S102 -- in a sandbox
    owner = module.Solution() if "class Solution" in code else module
    signal.alarm(0)
    function: Callable[..., Any] = getattr(owner, name)
    return function


def calls(task: dict[str, Any]) -> Iterator[bool]:
    """Call a program's function for each test; yield whether the result is the expected value."""
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
    """Run a program for each test; yield whether its output is the expected text."""
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
    """Return the tests of a task: pairs of input and expected output."""
    pairs: list[tuple[str, str]] = task["tests"]
    return pairs


def run(function: Callable[..., Any], text: str) -> None:
    """Run a program with `text` as its stdin; the program may exit.

    As in LiveCodeBench, the read methods of the process's stdin are replaced before sys.stdin:
    programs that wrote `from sys import stdin` use these methods.
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
    """Compare two texts line by line, as text or as numbers, ignoring spaces at line ends."""
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
    """End a test that exceeds its time limit.

    The message is printed, as in LiveCodeBench, even if the program catches the exception.
    """
    print("timeout occured: alarm went off")
    raise TestTimeoutException


def main() -> None:
    """Run tests until one fails; if all pass, write the secret word from word.txt to stdout."""
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
