"""Programs that a model wrote: what is run of an answer, and whether it passes its test."""

from __future__ import annotations

import codecs
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

from pytest_mlperf import EnvironmentFault, SuiteError
from pytest_mlperf.adapters.scorers import scorer_error
from pytest_mlperf.adapters.scorers.code import _languages
from pytest_mlperf.adapters.scorers.code.sandbox import StepResult, run_isolated
from pytest_mlperf.extension import usable_cores

LANGUAGES = tuple(_languages.TOOLCHAINS)
"""What the reference script runs; programs in other languages do not count."""

CODE_FENCE = "```"

PROGRESS_LINE_SECONDS = 30.0
"""Time between two lines that say how many programs have run."""

TRIALS = {
    "cpp": ("#include <bits/stdc++.h>\nusing namespace std;\n", "int main() { return 0; }"),
    "javascript": ("", 'if (!require("lodash").isEqual([1], [1])) throw "unequal"'),
    "php": ("<?php\n", 'if (1 != 1) { throw new Exception("unequal"); }'),
    "python": ("f = lambda: 1", "def check(candidate):\n    assert candidate() == 1"),
    "ruby": ("", 'raise StandardError, "unequal" if [1] != [1]'),
    "typescript": (
        "const f = function (x: number): number { return x }\n",
        "import * as assert from 'assert'\nassert.deepEqual(f(1), 1, 'unequal')",
    ),
}
"""A right program and its test by language: whether the language can be run here."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One program to run.

    Attributes:
        language: One of LANGUAGES.
        code: What the model wrote, as `extract` returns it.
        entry_point: Name of the function that is tested.
        test: The program that tests it, in the same language.
        name: Name of the problem, for messages.
    """

    language: str
    code: str
    entry_point: str
    test: str
    name: str


def extract(language: str, prompt: str, completion: str) -> str:
    r"""Return the code to run from a completion without special tokens.

    It ends at the first ```; "\_" becomes "_", which Mixtral likes to write. The prompt is not put
    before it: the model was asked to repeat it. Go and Scala are changed as in the reference too,
    which does not run them.

    Source: worker in language/mixtral-8x7b/evaluate_mbxp.py of
    https://github.com/mlcommons/inference.
    """
    del prompt
    code = completion.partition(CODE_FENCE)[0]
    if language == "python":
        code = code.lstrip()
    elif language == "go":
        code = _without_main(code)
    elif language == "scala":
        lines = code.replace("object Main extends App {", "").splitlines(keepends=True)
        code = "".join(lines[:-1])
    return code.replace("\\_", "_")


def _without_main(code: str) -> str:
    """Remove from a Go program the parts that its test has: package, imports and main."""
    code = code.replace("package main", "")
    code = re.sub(r"^import \(\n.+(?:\n.+)+\n\)", "", code, flags=re.MULTILINE)
    code = re.sub(r'^import ".*"', "", code)
    return re.sub(r"^func main.*^}", "", code, flags=re.MULTILINE | re.DOTALL)


def passed(problems: Sequence[Problem], *, processes: int | None = None) -> list[bool]:
    """Run programs with their tests, each in its own sandbox; return which pass, in order.

    A program passes if it ends without an error within 20 seconds (compilers have 100), as in the
    reference; output that is not UTF-8 fails. No program is run if one cannot be. `processes` run
    at a time; None for one per core.
    """
    counts = Counter(problem.language for problem in problems)
    _require_known(counts)
    _require_toolchains(counts)
    how = {language: _languages.toolchain(language) for language in counts}
    return in_parallel(
        [partial(_passes, one, how[one.language]) for one in problems],
        processes=processes,
        name="mbxp",
    )


def in_parallel(
    attempts: Sequence[Callable[[], bool]], *, processes: int | None, name: str
) -> list[bool]:
    """Return the results of attempts, in order; the first error ends them.

    `processes` run at a time, None for one per core; `name` begins each line of progress.
    """
    workers = processes or len(usable_cores())
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(one) for one in attempts]
        try:
            return list(_shown((one.result() for one in running), name))
        finally:
            for one in running:
                one.cancel()


def _shown(results: Iterable[bool], name: str) -> Iterator[bool]:
    due_s = time.monotonic() + PROGRESS_LINE_SECONDS
    for number, result in enumerate(results, start=1):
        if (now_s := time.monotonic()) >= due_s:
            due_s = now_s + PROGRESS_LINE_SECONDS
            print(f"{name}: {number:,} programs have run", flush=True)
        yield result


def toolchains() -> dict[str, str | None]:
    """Run a program in each language; return why each cannot run here, or None."""
    return {language: _why_not(language) for language in LANGUAGES}


def _why_not(language: str) -> str | None:
    node_path = os.environ.get("NODE_PATH", "") if language == "javascript" else ""
    return _tried(language, os.environ.get("PATH", ""), node_path)


@cache
def _tried(language: str, path: str, node_path: str) -> str | None:
    """Run the trial of a language; the variables by which programs are found are its key."""
    del path, node_path
    code, test = TRIALS[language]
    trial = Problem(language=language, code=code, entry_point="f", test=test, name="trial")
    try:
        right, finished = _run(trial, _languages.toolchain(language))
    except (_languages.MissingError, EnvironmentFault) as error:
        return str(error)
    if right or finished is None:
        return None
    words = (finished.stderr or finished.stdout).decode(errors="replace").strip()[-300:]
    ending = "took too long" if finished.timed_out else f"ended with {finished.returncode}"
    return f"a program that is right {ending}: {words or 'it wrote nothing'}"


def _require_known(counts: Mapping[str, int]) -> None:
    unknown = sorted(set(counts) - set(LANGUAGES))
    if unknown:
        raise scorer_error(
            f"scorer mbxp: programs in {', '.join(unknown)} cannot be run; MLPerf's reference runs "
            f"{', '.join(LANGUAGES)}",
        )


def _require_toolchains(counts: Counter[str]) -> None:
    lacking = {language: _why_not(language) for language in sorted(counts)}
    parts = [
        f"{counts[language]} in {language} ({reason})"
        for language, reason in lacking.items()
        if reason
    ]
    if parts:
        raise EnvironmentFault(
            f"scorer mbxp: of {counts.total()} programs these cannot run here: {', '.join(parts)}; "
            "install what is missing, or leave MBXP out with run_generated_code = false"
        )


def _passes(problem: Problem, how: _languages.Toolchain) -> bool:
    return _run(problem, how)[0]


def _run(problem: Problem, how: _languages.Toolchain) -> tuple[bool, StepResult | None]:
    text = _languages.source(problem.language, problem.code, problem.test, problem.entry_point)
    try:
        files = {**how.files, how.file: text.encode()}
    except UnicodeEncodeError:  # half a character: the reference cannot write it either
        return False, None
    word = secrets.token_hex(16) if problem.language == "python" else ""
    if word:
        files["word.txt"] = word.encode()
    finished = run_isolated(
        *how.steps, files=files, readable=how.readable, environment=how.environment
    )
    right = (
        finished.step == len(how.steps) - 1
        and finished.returncode == 0
        and (not word or finished.stdout == word.encode())
        and all(_is_text(one, finished.truncated) for one in (finished.stdout, finished.stderr))
    )
    return right, finished


def _is_text(output: bytes, cut: bool) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(output, final=not cut)
    except UnicodeDecodeError:
        return False
    return True


REFERENCE_FIELDS = ("target", "id", "language", "entry_point", "prompt")
"""What a reference must have, as text; data set mixtral gives it."""

Reference = Mapping[str, str]


def counted_programs(references: Sequence[Reference]) -> list[int]:
    """Return the samples in languages that MLPerf's reference runs; others do not count."""
    return [n for n, each in enumerate(references) if each.get("language") in LANGUAGES]


def score_programs(
    texts: Sequence[str], references: Sequence[Reference], *, processes: int | None
) -> list[bool]:
    """Return which texts are programs that pass the tests in REFERENCE_FIELDS.

    `processes` run at a time; None for one per core.
    """
    problems = [
        Problem(
            language=reference["language"],
            code=extract(reference["language"], reference["prompt"], text),
            entry_point=reference["entry_point"],
            test=reference["target"],
            name=reference["id"],
        )
        for text, reference in zip(texts, references, strict=True)
    ]
    return passed(problems, processes=processes)


def check_running(scorer: str, run_generated_code: object) -> None:
    """Refuse an option `run_generated_code` that is neither true nor false."""
    if type(run_generated_code) is not bool:
        raise SuiteError(
            f"scorer {scorer}: run_generated_code = {run_generated_code!r} is neither true nor "
            "false",
            option="run_generated_code",
        )
