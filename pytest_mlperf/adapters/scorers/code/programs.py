"""Extract a program from an answer, and check whether it passes its test."""

from __future__ import annotations

import codecs
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

from pytest_mlperf import EnvironmentFault
from pytest_mlperf.adapters.scorers.code import _languages
from pytest_mlperf.adapters.scorers.code.sandbox import StepResult, run_isolated
from pytest_mlperf.adapters.scorers.text import Part, right_or_wrong_scores
from pytest_mlperf.extension import usable_cores

LANGUAGES = tuple(_languages.TOOLCHAINS)
"""The languages that the reference script runs; programs in other languages, such as Go and Scala,
do not count."""

CODE_FENCE = "```"

PROGRESS_LINE_SECONDS = 30.0
"""Time between two lines of progress."""

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
"""A right program and its test by language, to check that the language can run here."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Hold one program to run.

    Attributes:
        language: Programming language, one of LANGUAGES.
        code: The program, as `extract` returns it.
        entry_point: Name of the function that is tested.
        test: Code that tests the function, in the same language.
    """

    language: str
    code: str
    entry_point: str
    test: str


def extract(language: str, completion: str) -> str:
    r"""Return the code to run from a completion without special tokens.

    It ends at the first ```; "\_", which Mixtral writes often, becomes "_". The prompt is not
    prepended, since the model was asked to repeat it.
    Source: worker in language/mixtral-8x7b/evaluate_mbxp.py of
    https://github.com/mlcommons/inference.
    """
    code = completion.partition(CODE_FENCE)[0]
    return (code.lstrip() if language == "python" else code).replace("\\_", "_")


def passed(problems: Sequence[Problem], *, processes: int | None = None) -> list[bool]:
    """Run programs with their tests, each in its own sandbox; return for each whether it passed.

    As in the reference, a program passes if it ends without an error within 20 seconds (compilers
    have 100), with output in UTF-8. If one of the languages cannot run here, an error is raised
    before any program runs. `processes` programs run at a time; None is one per core.
    """
    counts = Counter(problem.language for problem in problems)
    _require_toolchains(counts)
    chains = {language: _languages.TOOLCHAINS[language]() for language in counts}
    return in_parallel(
        [partial(_passes, problem, chains[problem.language]) for problem in problems],
        processes=processes,
        name="mbxp",
    )


def in_parallel(
    attempts: Sequence[Callable[[], bool]], *, processes: int | None, name: str
) -> list[bool]:
    """Call functions in parallel; return their results in order, or raise the first error.

    `processes` calls run at a time, None is one per core; `name` begins each progress message.
    """
    workers = processes or len(usable_cores())
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(attempt) for attempt in attempts]
        try:
            return list(_with_progress((future.result() for future in futures), name))
        finally:
            for future in futures:
                future.cancel()


def _with_progress(results: Iterable[bool], name: str) -> Iterator[bool]:
    due_s = time.monotonic() + PROGRESS_LINE_SECONDS
    for number, result in enumerate(results, start=1):
        if (now_s := time.monotonic()) >= due_s:
            due_s = now_s + PROGRESS_LINE_SECONDS
            print(f"{name}: {number:,} programs have run", flush=True)
        yield result


def defect_of(language: str) -> str | None:
    """Run a trial program in a language; return why the language cannot run here, else None."""
    node_path = os.environ.get("NODE_PATH", "") if language == "javascript" else ""
    return _trial_defect(language, os.environ.get("PATH", ""), node_path)


@cache
def _trial_defect(language: str, path: str, node_path: str) -> str | None:
    """Run a language's trial program; return an error text, or None if it passes.

    `path` and `node_path` are only part of the cache key.
    """
    del path, node_path
    code, test = TRIALS[language]
    trial = Problem(language=language, code=code, entry_point="f", test=test)
    try:
        right, result = _run(trial, _languages.TOOLCHAINS[language]())
    except (_languages.MissingError, EnvironmentFault) as error:
        return str(error)
    if right or result is None:
        return None
    words = (result.stderr or result.stdout).decode(errors="replace").strip()[-300:]
    ending = "took too long" if result.timed_out else f"ended with {result.returncode}"
    return f"a correct test program {ending}: {words or 'it wrote nothing'}"


def _require_toolchains(counts: Counter[str]) -> None:
    lacking = {language: defect_of(language) for language in sorted(counts)}
    parts = [
        f"{counts[language]} in {language} ({reason})"
        for language, reason in lacking.items()
        if reason
    ]
    if parts:
        raise EnvironmentFault(
            f"some of the {counts.total()} programs of MBXP cannot run here: {', '.join(parts)}; "
            "install the missing tools, or, with scorer mixtral, leave MBXP out by "
            "run_generated_code = false"
        )


def _passes(problem: Problem, toolchain: _languages.Toolchain) -> bool:
    return _run(problem, toolchain)[0]


def _run(problem: Problem, toolchain: _languages.Toolchain) -> tuple[bool, StepResult | None]:
    text = _languages.source(problem.language, problem.code, problem.test, problem.entry_point)
    try:
        files = {**toolchain.files, toolchain.file: text.encode()}
    except UnicodeEncodeError:  # a lone surrogate, which the reference cannot write either
        return False, None
    word = secrets.token_hex(16) if problem.language == "python" else ""
    if word:
        files["word.txt"] = word.encode()
    result = run_isolated(
        *toolchain.steps,
        files=files,
        readable=toolchain.readable,
        environment=toolchain.environment,
    )
    right = (
        result.step == len(toolchain.steps) - 1
        and result.returncode == 0
        and (not word or result.stdout == word.encode())
        and all(_is_text(output, result.truncated) for output in (result.stdout, result.stderr))
    )
    return right, result


def _is_text(output: bytes, cut: bool) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(output, final=not cut)
    except UnicodeDecodeError:
        return False
    return True


REFERENCE_FIELDS = ("target", "id", "language", "entry_point", "prompt")
"""Texts that a reference must have; data set mixtral provides them."""

Reference = Mapping[str, str]


def program_scores(
    texts: Sequence[str], references: Sequence[Reference], *, processes: int | None
) -> Part:
    """Score texts as programs with the tests in REFERENCE_FIELDS, see `passed`.

    The score "mbxp" is None in languages that MLPerf's reference does not run.
    """
    samples = [n for n, row in enumerate(references) if row.get("language") in LANGUAGES]
    problems = [
        Problem(
            language=references[sample]["language"],
            code=extract(references[sample]["language"], texts[sample]),
            entry_point=references[sample]["entry_point"],
            test=references[sample]["target"],
        )
        for sample in samples
    ]
    return right_or_wrong_scores("mbxp", samples, passed(problems, processes=processes), len(texts))
