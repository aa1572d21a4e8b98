"""Score reasoning as MLPerf's DeepSeek-R1 and gpt-oss-120b benchmarks do: exact match."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar

from pytest_mlperf import Scores, SuiteError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.scorers import require_flag, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers import text as language
from pytest_mlperf.adapters.scorers.code.livecodebench import Archive, passed_tests
from pytest_mlperf.adapters.scorers.code.sandbox import require_sandbox
from pytest_mlperf.adapters.scorers.reasoning import _answers
from pytest_mlperf.adapters.scorers.reasoning._mathematics import same_answers

MATHEMATICS, PROGRAMS = "math500", "livecodebench"
GRADED_FIELDS = ("metric", "target")
MATHEMATICS_LIBRARIES = ("sympy", "pylatexenc")


@dataclass(frozen=True, kw_only=True)
class ReasoningOptions(language.DecoderOptions):
    """Options of scorers deepseek_r1 and gpt_oss.

    Attributes:
        has_programs: Whether the data set may contain samples of LiveCodeBench, as MLPerf's data
            sets do. With false, for your own data set, such samples are an error.
        run_generated_code: Whether untrusted programs written by a model run on this machine. Each
            runs in a sandbox: no network, no access to the machine's files, no privileges, and
            limits on time, memory and processes; if the sandbox does not work, no program runs.
            With false, programs are not scored, "exact_match" is omitted, and MLPerf's accuracy
            target is not decided.
        tests: LiveCodeBench's tests, required by `run_generated_code`: one file, or the folder of
            test.jsonl and its continuations, from livecodebench/code_generation_lite on Hugging
            Face. Programs without tests count as wrong. Pickles in the files are not executed.
        processes: Number of programs that run at the same time; None runs one per core.
    """

    has_programs: bool = True
    run_generated_code: bool = False
    tests: str | None = None
    processes: int | None = None


class DeepSeekScorer(language.TextScorer[ReasoningOptions]):
    r"""Grade each sample by the rules of its data set; its other metrics are None.

    The name of a sample's data set, in lower case, must contain gpqa, mmlu_pro, math500, aime or
    livecodebench; the first of these in this order counts, and another name is an error, as in the
    reference. Metrics, per sample (100 if the answer is right, else 0) and as the reference prints
    them:

    - "exact_match" on all samples; the mean is not rounded. It is omitted if there are samples of
      LiveCodeBench and programs do not run.
    - "gpqa" and "mmlu_pro": by the letter after the last "ANSWER".
    - "aime": by the last number in a \boxed{}.
    - "math500": by the last \boxed{}, compared as in PRM800K's grader; a comparison that needs more
      than 10 s of CPU time or 2 GiB counts as wrong.
    - "livecodebench", if programs run: the first Python block must pass all tests, each within 60
      s, and all together within 20 minutes and 4 GiB.
    - "tokens_per_sample" on all samples: number of output tokens, including special ones; the mean
      is not rounded.

    Source: language/deepseek-r1/eval_accuracy.py of https://github.com/mlcommons/inference.
    """

    metrics: ClassVar[tuple[str, ...]] = (
        *("exact_match", "gpqa", "mmlu_pro", MATHEMATICS, "aime", PROGRAMS),
        "tokens_per_sample",
    )
    libraries: ClassVar[tuple[str, ...]] = MATHEMATICS_LIBRARIES

    name: ClassVar[str] = "deepseek_r1"
    parts: ClassVar[Mapping[str, str]] = {
        part: part for part in ("gpqa", "mmlu_pro", MATHEMATICS, "aime", PROGRAMS)
    }
    _choice = staticmethod(_answers.choice)
    _program = staticmethod(_answers.program)

    def __init__(self, *, model: str | None, **options: Any) -> None:
        """Check the options.

        Args:
            model: Folder with the model's Hugging Face files, for its tokenizer.
        """
        super().__init__(model=model, **options)
        settings = self._asked
        require_flag(self.name, "run_generated_code", settings.run_generated_code)
        if settings.run_generated_code != (settings.tests is not None):
            raise SuiteError(
                f"scorer {self.name}: set both options run_generated_code (run programs) and tests "
                "(folder of LiveCodeBench's tests), or neither",
                option=("tests", "run_generated_code"),
            )
        self._archive = Archive(self.name, settings.tests) if settings.tests is not None else None

    @staticmethod
    def left_out(options: Mapping[str, Any]) -> dict[str, str]:
        """Return the metrics that these options exclude, each with the options that enable it."""
        if options.get("run_generated_code") or not options.get("has_programs", True):
            return {}
        runs = 'run_generated_code = true and tests = "FOLDER" (LiveCodeBench\'s files)'
        return {"exact_match": runs, PROGRAMS: runs}

    def require(self) -> None:
        """Check that the libraries are installed, and, if programs run, tests and sandbox."""
        super().require()
        if missing := [
            name for name in MATHEMATICS_LIBRARIES if importlib.util.find_spec(name) is None
        ]:
            raise not_installed(f"scorer {self.name}", " and ".join(missing), "math")
        if self._archive:
            self._archive.files()
            require_sandbox()

    def score(self, outputs: Sequence[bytes], references: Sequence[Mapping[str, str]]) -> Scores:
        """Grade outputs, token ids of type `dtype`, against references of data set `graded`."""
        require_outputs(self.name, outputs, references)
        checked = language.require_tables(self.name, references, GRADED_FIELDS, "graded")
        kinds = [self._part(n, reference["metric"]) for n, reference in enumerate(checked)]
        decoded = self._decoder.decode(outputs)
        right = self._grade(kinds, decoded.texts, [row["target"] for row in checked])
        graded = [kind for kind in self.metrics if kind in kinds and self._grades(kind)]
        whole = Scores(per_sample={}, aggregate={})
        if all(map(self._grades, kinds)):
            whole = self._all([row["metric"].lower() for row in checked], right)
        rows, means = {**whole.per_sample}, {**whole.aggregate}
        for part in graded:
            samples = [sample for sample, kind in enumerate(kinds) if kind == part]
            of_part = [right[sample] for sample in samples]
            part_rows, part_means = language.right_or_wrong_scores(
                part, samples, of_part, len(kinds)
            )
            rows |= part_rows
            means |= part_means
        tokens = list(map(float, decoded.tokens))
        return Scores(
            per_sample={**rows, "tokens_per_sample": tokens},
            aggregate={**means, "tokens_per_sample": sum(tokens) / len(tokens)},
            whole=whole.whole,
        )

    def _part(self, sample: int, dataset: str) -> str:
        part = next((part for key, part in self.parts.items() if key in dataset.lower()), None)
        where = f"scorer {self.name}: sample {sample} has dataset {dataset!r:.60}"
        if part is None:
            raise scorer_error(f"{where}, which names none of {', '.join(self.parts)}")
        if part == PROGRAMS and not self._asked.has_programs:
            raise scorer_error(
                f"{where}, which has programs, but the option has_programs is false; leave these "
                "samples out of the data set, or remove the option",
            )
        return part

    def _grades(self, kind: str) -> bool:
        return kind != PROGRAMS or self._archive is not None

    def _grade(
        self, kinds: Sequence[str], texts: Sequence[str], targets: Sequence[str]
    ) -> list[bool]:
        """Return whether each answer is right; a program that is not run counts as wrong.

        `kinds` are the keys of the grading rules, such as "aime", one per sample.
        """
        rows = list(zip(kinds, texts, targets, strict=True))
        programs = [
            (target, self._program(text)) for kind, text, target in rows if kind == PROGRAMS
        ]
        program_verdicts = iter(
            passed_tests(self.name, self._archive, programs, processes=self._asked.processes)
            if self._archive and programs
            else [False] * len(programs)
        )
        formulas = [
            (target, _answers.boxed(text)) for kind, text, target in rows if kind == MATHEMATICS
        ]
        pairs = [(target, formula) for target, formula in formulas if target and formula]
        verdicts = iter(same_answers(pairs))
        compared = iter(
            [bool(target and formula) and next(verdicts) for target, formula in formulas]
        )
        verdicts_by_kind = {MATHEMATICS: compared, PROGRAMS: program_verdicts}
        return [
            next(verdicts_by_kind[kind])
            if kind in verdicts_by_kind
            else self._is_right(kind, text, target)
            for kind, text, target in rows
        ]

    def _is_right(self, kind: str, text: str, target: str) -> bool:
        match kind:
            case "aime":
                value = _answers.number(text)
                return value is not None and value == _whole_number(target)
            case "gpqa" | "mmlu_pro":
                letter = self._choice(text, "A-D" if kind == "gpqa" else "A-J")
                return letter is not None and letter == target.upper()
        return False

    def _all(self, names: Sequence[str], right: Sequence[bool]) -> Scores:
        rows, means = language.right_or_wrong_scores(
            "exact_match", range(len(names)), right, len(names)
        )
        return Scores(per_sample=rows, aggregate=means)


class GptOssScorer(DeepSeekScorer):
    r"""Grade each sample by the rules of its data set, like scorer deepseek_r1.

    The differences are:

    - Option letters: in the final section of the harmony format, a letter at its beginning (even
      the A of "A good choice is C"), else the first letter after "Answer"; else as in deepseek_r1.
      Numbers and \boxed{} are searched in the whole text, including drafts.
    - Programs: the last Python block in the final section, else the last block of any language
      there, else the same in the whole text.
    - "exact_match" weights a sample of aime25 by 1/8, of gpqa_diamond by 1/5 and of
      livecodebench_v6 by 1/3, since MLPerf's data set repeats their questions 8, 5 and 3 times; it
      is rounded to 3 digits. As in the reference, a missing repeat is not detected. A sample's
      score is 100 if right, times its normalised weight.
    - A data set whose name contains "mmlu" is graded by the rules of "mmlu_pro".
    - "tokens_per_sample" is not printed by the reference, though MLPerf limits it.

    Source: language/gpt-oss-120b/eval_mlperf_accuracy.py of https://github.com/mlcommons/inference.
    """

    name: ClassVar[str] = "gpt_oss"
    parts: ClassVar[Mapping[str, str]] = {**DeepSeekScorer.parts, "mmlu": "mmlu_pro"}
    special: ClassVar[bool] = True
    _choice = staticmethod(_answers.final_choice)
    _program = staticmethod(_answers.final_program)

    def _all(self, names: Sequence[str], right: Sequence[bool]) -> Scores:
        counts, hits = Counter(names), Counter(compress(names, right))
        total = sum(counts[name] / REPEATS.get(name, 1) for name in sorted(counts))
        score = sum(hits[name] / REPEATS.get(name, 1) for name in sorted(counts))
        return Scores(
            per_sample={
                "exact_match": [
                    100.0 * is_right * len(names) / REPEATS.get(name, 1) / total
                    for name, is_right in zip(names, right, strict=True)
                ]
            },
            aggregate={"exact_match": float(f"{score / total * 100:.3f}")},
            whole=frozenset({"exact_match"}),
        )


REPEATS = {"aime25": 8, "gpqa_diamond": 5, "livecodebench_v6": 3}
"""Repeats of each question in gpt-oss's data set."""


def _whole_number(target: str) -> int | None:
    try:
        return int(target)
    except ValueError:
        return None
