"""Score the mix of MLPerf's Mixtral 8x7B benchmark: each part by its own metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Scores
from pytest_mlperf.scorers.decode import Decoder
from pytest_mlperf.scorers.gsm8k_answer import is_right
from pytest_mlperf.scorers.rouge_text import METRICS, f_measures

FIELDS = {
    "OpenOrca": ("target",),
    "GSM8K": ("target",),
    "MBXP": ("target", "id", "language", "entry_point", "prompt"),
}
"""For each part what a reference must have besides "dataset", as text."""

LANGUAGES = ("cpp", "javascript", "php", "python", "ruby", "typescript")
"""Languages of MBXP that the reference script runs; programs in others do not count."""

Row = list[float | None]
Reference = Mapping[str, str]
Part = tuple[dict[str, Row], dict[str, float]]
"""Scores per sample, and over all samples of the part."""


class MixtralScorer:
    """Scores each sample by the metrics of the part that it is of; None stands for the others.

    Metrics, per sample and as the reference prints them over the samples that they apply to:

    - "rouge1", "rouge2", "rougeL" on OpenOrca: as scorer rouge; their mean, to 4 digits.
    - "gsm8k" on GSM8K: as scorer gsm8k; the mean, not rounded.
    - "mbxp" on MBXP, only with `run_generated_code`: 100 where the program that the model wrote
      passes its tests, else 0; the mean, not rounded.
    - "tokens_per_sample" on all: tokens of the output, special ones counted; their mean, to 1
      digit. MLPerf's reference gives no end of the sequence, so an engine should not either.

    A metric that applies to no sample is left out. Without "mbxp" MLPerf's gate for this workload
    is not decided, since one of its five scores is missing; it fails by any of the others.

    Source: language/mixtral-8x7b/evaluate-accuracy.py of https://github.com/mlcommons/inference.
    """

    metrics = (*METRICS, "gsm8k", "mbxp", "tokens_per_sample")
    libraries = ("rapidfuzz",)

    def __init__(
        self,
        *,
        model: str | None,
        tokenizer: str | None = None,
        dtype: str = "int64",
        clean_up: bool | None = None,
        processes: int | None = 1,
        run_generated_code: bool = False,
    ) -> None:
        """Choose how outputs are read, and whether programs among them are run.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            tokenizer: Folder of the tokenizer, where that is another one.
            dtype: Type of the token ids in an output, little-endian: "int32" or "int64".
            clean_up: Whether spaces before punctuation are removed from decoded text, as in scorer
                rouge. It can change programs.
            processes: How many processes score; None takes one per core.
            run_generated_code: Whether what the model wrote is run on this machine. MLPerf's gate
                needs it; without it MBXP is not scored.

        Raises:
            SuiteError: An option is wrong, or no folder is named.
            UnavailableError: The tokenizer is not here.
        """
        if processes is not None and (type(processes) is not int or processes < 1):
            raise SuiteError(
                f"scorer mixtral: processes = {processes!r} must be a number from 1 on"
            )
        if type(run_generated_code) is not bool:
            raise SuiteError(
                f"scorer mixtral: run_generated_code = {run_generated_code!r} is neither true nor "
                "false"
            )
        self._decoder = Decoder.of(
            "mixtral", model=model, tokenizer=tokenizer, dtype=dtype, clean_up=clean_up
        )
        self._processes = processes
        self._runs_code = run_generated_code

    @staticmethod
    def left_out(options: Mapping[str, Any]) -> dict[str, str]:
        """Return the metrics that options leave out, with the option that gives each."""
        runs = options.get("run_generated_code", False)
        return {} if runs else {"mbxp": "run_generated_code = true"}

    def require(self) -> None:
        """Look for what decodes, and try the sandbox: later both would cost an accuracy pass.

        Raises:
            EnvironmentFault: A library is not installed, or programs cannot be isolated here.
        """
        self._decoder.require()
        if self._runs_code:
            from pytest_mlperf.scorers.sandbox import require_sandbox

            require_sandbox()

    def score(self, outputs: Sequence[bytes], references: Sequence[Reference]) -> Scores:
        """Score generated tokens.

        Args:
            outputs: The token ids of each sample, of type `dtype`.
            references: As data set mixtral gives them, see FIELDS.

        Returns:
            The metrics of the class.

        Raises:
            EnvironmentFault: A library is not installed.
            RunError: There are no samples, not as many outputs as references, a reference is not as
                expected, an output cannot be decoded, or programs cannot be run.
        """
        known = _check(outputs, references)
        decoded = self._decoder.decode(outputs)
        tokens = [float(count) for count in decoded.tokens]
        per_sample: dict[str, Sequence[float | None]] = {}
        aggregate: dict[str, float] = {}
        for rows, means in (
            self._open_orca(decoded.texts, known),
            _gsm8k(decoded.texts, known),
            self._mbxp(decoded.texts, known),
        ):
            per_sample |= rows
            aggregate |= means
        return Scores(
            per_sample={**per_sample, "tokens_per_sample": tokens},
            aggregate={
                **aggregate,
                "tokens_per_sample": round(sum(decoded.tokens) / len(tokens), 1),
            },
        )

    def _open_orca(self, texts: Sequence[str], references: Sequence[Reference]) -> Part:
        import numpy as np

        samples = _samples("OpenOrca", references)
        if not samples:
            return {}, {}
        measured = f_measures(
            [texts[sample].strip() for sample in samples],
            [references[sample]["target"] for sample in samples],
            processes=self._processes or len(os.sched_getaffinity(0)),
        )
        rows = dict(zip(METRICS, (100 * measured).tolist(), strict=True))
        means = {
            name: float(round(np.mean(values) * 100, 4))
            for name, values in zip(METRICS, measured, strict=True)
        }
        return {name: _spread(samples, row, len(texts)) for name, row in rows.items()}, means

    def _mbxp(self, texts: Sequence[str], references: Sequence[Reference]) -> Part:
        samples = [
            sample
            for sample in _samples("MBXP", references)
            if references[sample]["language"] in LANGUAGES
        ]
        if not samples or not self._runs_code:
            return {}, {}
        from pytest_mlperf.scorers.mbxp import Problem, extract, passed

        problems = []
        for sample in samples:
            one = references[sample]
            problem = Problem(
                language=one["language"],
                code=extract(one["language"], one["prompt"], texts[sample]),
                entry_point=one["entry_point"],
                test=one["target"],
                name=one["id"],
            )
            problems.append(problem)
        right = passed(problems, processes=self._processes)
        return _shares("mbxp", samples, right, len(texts))


def _gsm8k(texts: Sequence[str], references: Sequence[Reference]) -> Part:
    samples = _samples("GSM8K", references)
    right = [is_right(texts[sample], references[sample]["target"]) for sample in samples]
    return _shares("gsm8k", samples, right, len(texts))


def _shares(metric: str, samples: Sequence[int], right: Sequence[bool], total: int) -> Part:
    """Return 100 or 0 per sample, and how many of 100 are right."""
    if not samples:
        return {}, {}
    row = _spread(samples, [100.0 * one for one in right], total)
    return {metric: row}, {metric: 100.0 * sum(right) / len(right)}


def _samples(part: str, references: Sequence[Reference]) -> list[int]:
    return [sample for sample, one in enumerate(references) if one["dataset"] == part]


def _spread(samples: Sequence[int], values: Sequence[float], total: int) -> Row:
    """Return the values at their samples, among None for all others."""
    row: Row = [None] * total
    for sample, value in zip(samples, values, strict=True):
        row[sample] = value
    return row


def _check(outputs: Sequence[bytes], references: Sequence[Any]) -> list[Reference]:
    """Return the references, each read once."""
    if not outputs or len(outputs) != len(references):
        raise RunError(
            "scorer",
            f"scorer mixtral: got {len(outputs)} outputs for {len(references)} references; it "
            "needs one output per reference, and at least one",
        )
    known = list(references)
    for sample, reference in enumerate(known):
        if defect := _defect(reference):
            raise RunError(
                "scorer",
                f"scorer mixtral: the reference of sample {sample} {defect}; use data set mixtral, "
                "or let reference(index) return what it does",
            )
    return known


def _defect(reference: object) -> str | None:
    if not isinstance(reference, Mapping):
        return f"is a {type(reference).__name__}, but must be a table of texts"
    part = reference.get("dataset")
    if not isinstance(part, str) or part not in FIELDS:
        return f"has the dataset {part!r:.60}, which is none of {', '.join(FIELDS)}"
    missing = [name for name in FIELDS[part] if not isinstance(reference.get(name), str)]
    return f"has no text {' and no text '.join(map(repr, missing))}" if missing else None
