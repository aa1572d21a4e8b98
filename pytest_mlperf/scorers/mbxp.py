"""Score programs that a model wrote as MLPerf's Mixtral 8x7B benchmark does: MBXP, pass@1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers.decode import Decoder
from pytest_mlperf.scorers.mbxp_programs import LANGUAGES, Problem, extract, passed, toolchains

__all__ = ["LANGUAGES", "MbxpScorer", "Problem", "extract", "passed", "toolchains"]

FIELDS = ("target", "id", "language", "entry_point", "prompt")
"""What a reference must have, as text; data set mixtral gives it."""

Reference = Mapping[str, str]


class MbxpScorer:
    """Runs the program in each output with its test, each in a sandbox of its own.

    Metrics, per sample and over all samples:

    - "mbxp": 100 where the program passes, else 0; their mean, not rounded. None where the program
      is in a language that MLPerf's reference does not run: it does not count.
    - "tokens_per_sample": tokens of the output, special ones counted; their mean, to 1 digit.

    Source: language/mixtral-8x7b/evaluate-accuracy.py and evaluate_mbxp.py of
    https://github.com/mlcommons/inference.
    """

    metrics = ("mbxp", "tokens_per_sample")
    libraries = ()

    def __init__(
        self,
        *,
        model: str | None,
        tokenizer: str | None = None,
        dtype: str = "int64",
        clean_up: bool | None = None,
        processes: int | None = None,
        run_generated_code: bool = False,
    ) -> None:
        """Choose how outputs are read, and say that they may be run.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            tokenizer: Folder of the tokenizer, where that is another one.
            dtype: Type of the token ids in an output, little-endian: "int32" or "int64".
            clean_up: Whether spaces before punctuation are removed from decoded text, as in scorer
                rouge. It can change programs.
            processes: How many programs run at a time; None takes one per core.
            run_generated_code: Must be true: whether programs that a model wrote, and nobody has
                read, are run on this machine. Each runs without network, files of the machine and
                privileges, with limits on time, memory and processes, and not at all where that
                cannot be had.

        Raises:
            SuiteError: An option is wrong, no folder is named, or programs may not be run.
            UnavailableError: The tokenizer is not here.
        """
        if processes is not None and (type(processes) is not int or processes < 1):
            raise SuiteError(f"scorer mbxp: processes = {processes!r} must be a number from 1 on")
        if type(run_generated_code) is not bool:
            raise SuiteError(
                f"scorer mbxp: run_generated_code = {run_generated_code!r} is neither true nor "
                "false"
            )
        if not run_generated_code:
            raise SuiteError(
                "scorer mbxp runs programs that the model wrote, which nobody has read; they run "
                "in a sandbox without network, files and privileges, or not at all; allow it with "
                "the scorer's option run_generated_code = true"
            )
        self._decoder = Decoder.of(
            "mbxp", model=model, tokenizer=tokenizer, dtype=dtype, clean_up=clean_up
        )
        self._processes = processes

    def require(self) -> None:
        """Look for what decodes, and try the sandbox: later both would cost an accuracy pass.

        Raises:
            EnvironmentFault: A library is not installed, or programs cannot be isolated here.
        """
        self._decoder.require()
        from pytest_mlperf.scorers.sandbox import require_sandbox

        require_sandbox()

    def score(self, outputs: Sequence[bytes], references: Sequence[Reference]) -> Scores:
        """Score generated tokens by running them.

        Args:
            outputs: The token ids of each sample, of type `dtype`.
            references: As data set mixtral gives them for MBXP, see FIELDS; "target" is the test.

        Returns:
            The metrics of the class; without "mbxp" where no program counts.

        Raises:
            EnvironmentFault: A library, compiler or interpreter is not installed, or programs
                cannot be isolated here. No program has then been run.
            RunError: There are no samples, not as many outputs as references, a reference is not as
                expected, an output cannot be decoded, or a sandbox broke.
        """
        known = _check(outputs, references)
        decoded = self._decoder.decode(outputs)
        counted = [sample for sample, one in enumerate(known) if one["language"] in LANGUAGES]
        problems = [_problem(known[sample], decoded.texts[sample]) for sample in counted]
        right = passed(problems, processes=self._processes)
        row: list[float | None] = [None] * len(known)
        for sample, one in zip(counted, right, strict=True):
            row[sample] = 100.0 * one
        return Scores(
            per_sample={
                **({"mbxp": row} if counted else {}),
                "tokens_per_sample": [float(count) for count in decoded.tokens],
            },
            aggregate={
                **({"mbxp": 100.0 * sum(right) / len(right)} if counted else {}),
                "tokens_per_sample": round(sum(decoded.tokens) / len(known), 1),
            },
        )


def _problem(reference: Reference, text: str) -> Problem:
    return Problem(
        language=reference["language"],
        code=extract(reference["language"], reference["prompt"], text),
        entry_point=reference["entry_point"],
        test=reference["target"],
        name=reference["id"],
    )


def _check(outputs: Sequence[bytes], references: Sequence[Any]) -> list[Reference]:
    """Return the references, each read once."""
    if not outputs or len(outputs) != len(references):
        raise RunError(
            "scorer",
            f"scorer mbxp: got {len(outputs)} outputs for {len(references)} references; it needs "
            "one output per reference, and at least one",
        )
    known = list(references)
    for sample, reference in enumerate(known):
        if not isinstance(reference, Mapping):
            defect = f"is a {type(reference).__name__}, but must be a table of texts"
        elif lacking := [name for name in FIELDS if not isinstance(reference.get(name), str)]:
            defect = f"has no text {' and no text '.join(map(repr, lacking))}"
        else:
            continue
        raise RunError(
            "scorer",
            f"scorer mbxp: the reference of sample {sample} {defect}; use data set mixtral with "
            "only the rows of MBXP, or let reference(index) return what it does for them",
        )
    return known
