"""Score MLPerf's Mixtral 8x7B benchmark: each part of its data set by its own metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_mlperf import Scores
from pytest_mlperf.adapters.lazy import np
from pytest_mlperf.adapters.scorers import require_flag, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers import text as language
from pytest_mlperf.adapters.scorers.code import programs
from pytest_mlperf.adapters.scorers.code.sandbox import require_sandbox
from pytest_mlperf.adapters.scorers.rouge.text import ROUGE_METRICS, f_measures
from pytest_mlperf.adapters.scorers.text import Part, right_or_wrong_scores, scores_by_sample
from pytest_mlperf.extension import usable_cores

PART_FIELDS = {"OpenOrca": ("target",), "GSM8K": ("target",), "MBXP": programs.REFERENCE_FIELDS}


@dataclass(frozen=True, kw_only=True)
class MixtralOptions(language.DecoderOptions):
    """Options of scorer mixtral.

    Attributes:
        processes: Number of parallel processes for scoring; None is one per core.
        run_generated_code: Whether generated programs run on this machine. MLPerf's accuracy target
            requires it; without it MBXP is not scored.
    """

    processes: int | None = None
    run_generated_code: bool = False

    def __post_init__(self) -> None:
        require_flag("mixtral", "run_generated_code", self.run_generated_code)


class MixtralScorer(language.TextScorer[MixtralOptions]):
    """Score each sample by the metrics of its subset of the data set; its other metrics are None.

    The aggregate of a metric covers the samples that have it, as the reference prints it; a metric
    without samples is omitted:

    - "rouge1", "rouge2", "rougeL" on OpenOrca, as in scorer rouge; the mean is rounded to 4 digits.
    - "gsm8k" on GSM8K, as in scorer gsm8k; the mean is not rounded.
    - "mbxp" on MBXP, only with `run_generated_code`: 100 if the generated program passes its tests,
      else 0; the mean is not rounded. Without it MLPerf's accuracy target is undecided, unless one
      of the four other scores misses it.
    - "tokens_per_sample" on all samples: number of output tokens, including special ones; the mean
      is rounded to 1 digit. MLPerf's reference outputs no end token, so an engine should not
      either.

    Source: language/mixtral-8x7b/evaluate-accuracy.py of https://github.com/mlcommons/inference.
    """

    metrics = (*ROUGE_METRICS, "gsm8k", "mbxp", "tokens_per_sample")
    libraries = ("rouge_score",)

    name: ClassVar[str] = "mixtral"

    @staticmethod
    def left_out(options: Mapping[str, Any]) -> dict[str, str]:
        """Return the metrics that these options exclude, each with the option that enables it."""
        runs = options.get("run_generated_code", False)
        return {} if runs else {"mbxp": "run_generated_code = true"}

    def require(self) -> None:
        """Check that the decoder's library is installed, and the sandbox if programs run."""
        super().require()
        if self._asked.run_generated_code:
            require_sandbox()

    def score(self, outputs: Sequence[bytes], references: Sequence[programs.Reference]) -> Scores:
        """Score token ids of type `dtype` against references of data set mixtral."""
        checked = _check(outputs, references)
        decoded = self._decoder.decode(outputs)
        rows, means = self._open_orca(decoded.texts, checked)
        parts = [_gsm8k(decoded.texts, checked)]
        if self._asked.run_generated_code:
            processes = self._asked.processes
            parts.append(programs.program_scores(decoded.texts, checked, processes=processes))
        for part_rows, part_means in parts:
            rows |= part_rows
            means |= part_means
        return language.scores_and_lengths(decoded, rows, means)

    def _open_orca(self, texts: Sequence[str], references: Sequence[programs.Reference]) -> Part:
        samples = _samples("OpenOrca", references)
        if not samples:
            return {}, {}
        measured = f_measures(
            [texts[sample].strip() for sample in samples],
            [references[sample]["target"] for sample in samples],
            processes=self._asked.processes or len(usable_cores()),
        )
        rows = dict(zip(ROUGE_METRICS, (100 * measured).tolist(), strict=True))
        means = {
            name: float(round(np.mean(values) * 100, 4))
            for name, values in zip(ROUGE_METRICS, measured, strict=True)
        }
        return {
            name: scores_by_sample(samples, row, len(texts)) for name, row in rows.items()
        }, means


def _gsm8k(texts: Sequence[str], references: Sequence[programs.Reference]) -> Part:
    samples = _samples("GSM8K", references)
    right = [language.is_right(texts[sample], references[sample]["target"]) for sample in samples]
    return right_or_wrong_scores("gsm8k", samples, right, len(texts))


def _samples(part: str, references: Sequence[programs.Reference]) -> list[int]:
    return [n for n, reference in enumerate(references) if reference["dataset"] == part]


def _check(outputs: Sequence[bytes], references: Sequence[Any]) -> list[programs.Reference]:
    require_outputs("mixtral", outputs, references)
    return language.require_tables("mixtral", references, _fields, "mixtral")


def _fields(sample: int, reference: programs.Reference) -> Sequence[str]:
    part = reference.get("dataset")
    if not isinstance(part, str) or part not in PART_FIELDS:
        raise scorer_error(
            f"scorer mixtral: the reference of sample {sample} has the dataset {part!r:.60}, which "
            f"is not one of {', '.join(PART_FIELDS)}; use data set mixtral"
        )
    return PART_FIELDS[part]
