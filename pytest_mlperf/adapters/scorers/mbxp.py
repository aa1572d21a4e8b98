"""Score generated programs as MLPerf's Mixtral 8x7B benchmark does: MBXP, pass@1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pytest_mlperf import Scores, SuiteError
from pytest_mlperf.adapters.scorers import require_flag, require_outputs
from pytest_mlperf.adapters.scorers import text as language
from pytest_mlperf.adapters.scorers.code import programs
from pytest_mlperf.adapters.scorers.code.sandbox import require_sandbox


@dataclass(frozen=True, kw_only=True)
class MbxpOptions(language.DecoderOptions):
    """Options of scorer mbxp.

    Attributes:
        processes: Number of programs that run at the same time; None runs one per core.
        run_generated_code: Must be true, to allow that untrusted programs written by a model run on
            this machine. Each runs in a sandbox: no network, no access to the machine's files, no
            privileges, and limits on time, memory and processes. If the sandbox does not work, no
            program runs.
    """

    processes: int | None = None
    run_generated_code: bool = False

    def __post_init__(self) -> None:
        require_flag("mbxp", "run_generated_code", self.run_generated_code)
        if not self.run_generated_code:
            raise SuiteError(
                "scorer mbxp runs programs that the model wrote, in a sandbox without network, "
                "files and privileges; to allow this, set the scorer's option "
                "run_generated_code = true",
                option="run_generated_code",
            )


class MbxpScorer(language.TextScorer[MbxpOptions]):
    """Run the program in each output with its test, each in its own sandbox.

    Metrics, per sample and over all samples:

    - "mbxp": 100 if the program passes, else 0; the mean is not rounded. Programs in languages that
      MLPerf's reference does not run have None, and do not count.
    - "tokens_per_sample": number of output tokens, including special ones; the mean is rounded to 1
      digit.

    Source: language/mixtral-8x7b/evaluate-accuracy.py and evaluate_mbxp.py of
    https://github.com/mlcommons/inference.
    """

    metrics = ("mbxp", "tokens_per_sample")
    name: ClassVar[str] = "mbxp"

    def require(self) -> None:
        """Check that the decoder's library is installed, and that a sandbox works."""
        super().require()
        require_sandbox()

    def score(self, outputs: Sequence[bytes], references: Sequence[programs.Reference]) -> Scores:
        """Decode token ids of type `dtype`, and run each program on its reference's test."""
        require_outputs("mbxp", outputs, references)
        checked = language.require_tables(
            "mbxp",
            references,
            programs.REFERENCE_FIELDS,
            "mixtral with only the rows of MBXP, or let your data set's reference(index) return "
            "the same fields",
        )
        decoded = self._decoder.decode(outputs)
        processes = self._asked.processes
        scores = programs.program_scores(decoded.texts, checked, processes=processes)
        return language.scores_and_lengths(decoded, *scores)
