"""Read LiveCodeBench's tests from its files, and run programs on them in sandboxes."""

from __future__ import annotations

import base64
import json
import pickletools
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.adapters.scorers.code._languages import (
    MAX_PROGRAM_BYTES,
    PROCESSES,
    Toolchain,
    python_toolchain,
)
from pytest_mlperf.adapters.scorers.code.programs import in_parallel
from pytest_mlperf.adapters.scorers.code.sandbox import MIB, SandboxStep, run_isolated
from pytest_mlperf.extension import inflate, parse_json

TEST_SECONDS = 60
MAX_PROGRAM_SECONDS = 1200
"""Limit for a program with all its tests; MLPerf's scripts crash after this time without a result.
"""

MAX_TESTS_BYTES = 2**30
MAX_LINE_BYTES = 2**30

INSIDE_SCRIPT = Path(__file__).with_name("livecodebench_inside.py")

IMPORTABLE = ("sympy", "mpmath")
"""Packages besides numpy in MLPerf's image of the evaluation."""

IDENTIFIER = re.compile(rb'(?<!\\)"question_id":\s*"([^"\\]+)"')


@dataclass(frozen=True, kw_only=True)
class ProblemTests:
    """Hold the tests of one problem.

    Attributes:
        function: Name of the function to call; None if the program reads stdin and prints.
        tests: Pairs of input and expected output.
    """

    function: str | None
    tests: Sequence[tuple[str, str]]


class Archive:
    """Read tests from LiveCodeBench's files, one problem at a time, as all tests take 21 GB."""

    def __init__(self, scorer: str, path: str) -> None:
        self._scorer = scorer
        self._path = Path(path)

    def files(self) -> list[Path]:
        """Return the files with LiveCodeBench's tests; raise UnavailableError if there are none."""
        files = sorted(self._path.glob("*.jsonl")) if self._path.is_dir() else [self._path]
        if not files or not files[0].is_file():
            raise UnavailableError(
                f"scorer {self._scorer}: {self._path} holds no LiveCodeBench tests; download "
                "test.jsonl, test2.jsonl and so on of livecodebench/code_generation_lite from "
                "Hugging Face, and set the scorer's option tests to their folder",
                path=self._path,
                option="tests",
            )
        return files

    def find(self, identifiers: Iterable[str]) -> dict[str, tuple[Path, int]]:
        """Return the file and byte offset of each problem, by identifier; omit missing problems."""
        ids = {identifier.encode() for identifier in identifiers}
        offsets: dict[str, tuple[Path, int]] = {}
        for path in self.files():
            offset = 0
            with path.open("rb") as file:
                for line in file:
                    first = IDENTIFIER.search(line)
                    if first and first[1] in ids:
                        offsets.setdefault(first[1].decode(), (path, offset))
                    offset += len(line)
        if ids and not offsets:
            raise scorer_error(
                f"scorer {self._scorer}: {self._path} has no tests for any of the {len(ids)} "
                f"problems in the data set (the first: {min(ids).decode()!r:.60}); set the "
                "scorer's option tests to the folder with LiveCodeBench's files",
            )
        return offsets

    def task(self, path: Path, offset: int) -> ProblemTests:
        """Read the tests of the problem at a byte offset of a file."""
        with path.open("rb") as file:
            file.seek(offset)
            line = file.readline(MAX_LINE_BYTES)
        try:
            return _task(parse_json(line))
        except _BROKEN_ROWS as error:
            raise scorer_error(
                f"scorer {self._scorer}: the line at byte {offset} of {path} is not a "
                f"LiveCodeBench problem ({type(error).__name__}: {error!s:.100}); download the "
                "file again",
            ) from error


def _task(row: Mapping[str, Any]) -> ProblemTests:
    tests = [*parse_json(row["public_test_cases"]), *_hidden(row["private_test_cases"])]
    return ProblemTests(
        function=parse_json(row["metadata"]).get("func_name"),
        tests=[(str(test["input"]), str(test["output"])) for test in tests],
    )


def _hidden(text: str) -> list[Any]:
    try:
        tests = parse_json(text)
    except ValueError:
        content = inflate(base64.b64decode(text), MAX_TESTS_BYTES)
        tests = parse_json(_pickled_text(content))
    if not isinstance(tests, list):
        raise TypeError(f"private_test_cases holds a {type(tests).__name__}, not a list")
    return tests


_BROKEN_ROWS = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError, MemoryError),
    RecursionError,
)
"""Errors that reading a broken row raises."""


_TEXT_OPCODES = re.compile(
    "(PROTO )?(FRAME )?(SHORT_)?BINUNICODE8? ((LONG_)?BINPUT |MEMOIZE )?STOP"
)


def _pickled_text(content: bytes) -> str:
    """Return the text in a pickle; refuse other content, which may run code or exhaust memory."""
    operations = list(islice(pickletools.genops(content), 6))
    names = " ".join(operation.name for operation, _, _ in operations)
    if not _TEXT_OPCODES.fullmatch(names):
        raise ValueError(f"private_test_cases is not one pickled text; its opcodes: {names}")
    return next(str(text) for operation, text, _ in operations if "UNICODE" in operation.name)


def passed_tests(
    scorer: str,
    archive: Archive,
    programs: Sequence[tuple[str, str | None]],
    *,
    processes: int | None = None,
) -> list[bool]:
    """Run programs on their tests, each in its own sandbox; return which pass all tests.

    A program is (identifier of its problem, code); code None fails. As in MLPerf's scripts, a
    problem that is missing in the archive fails too. `processes` programs run at a time; None is
    one per core.
    """
    offsets = archive.find({identifier for identifier, _ in programs})
    missing = sum(identifier not in offsets for identifier, _ in programs)
    if missing:
        print(f"{scorer}: {missing:,} programs have no tests and count as wrong, as in MLPerf")
    toolchain = python_toolchain(INSIDE_SCRIPT, *IMPORTABLE)
    return in_parallel(
        [
            partial(_passes, archive, offsets.get(identifier), code, toolchain)
            for identifier, code in programs
        ],
        processes=processes,
        name=scorer,
    )


def _passes(
    archive: Archive, location: tuple[Path, int] | None, code: str | None, toolchain: Toolchain
) -> bool:
    return bool(location and code and passes(archive.task(*location), code, toolchain))


def passes(task: ProblemTests, code: str, toolchain: Toolchain) -> bool:
    """Return whether a program passes all tests of a problem."""
    content = json.dumps(
        {"code": code, "function": task.function, "tests": task.tests, "seconds": TEST_SECONDS}
    )
    word = secrets.token_hex(16).encode()
    seconds = min((TEST_SECONDS + 1) * len(task.tests) + 5, MAX_PROGRAM_SECONDS)
    step = SandboxStep(
        command=toolchain.steps[0].command,
        wall_s=seconds,
        cpu_s=seconds,
        memory_bytes=2 * MAX_PROGRAM_BYTES,
        address_bytes=4 * MAX_PROGRAM_BYTES,
        processes=PROCESSES,
    )
    result = run_isolated(
        step,
        files={**toolchain.files, "task.json": content, "word.txt": word},
        readable=toolchain.readable,
        environment=toolchain.environment,
        disk_bytes=max(64 * MIB, 2 * len(content)),
    )
    return result.returncode == 0 and result.stdout == word
