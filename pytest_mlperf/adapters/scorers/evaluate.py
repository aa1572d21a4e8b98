"""Score with a metric of Hugging Face's library evaluate: a script of your own, or a pinned one."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import EnvironmentFault, Scores, SuiteError, UnavailableError
from pytest_mlperf.adapters.scorers import require_choice, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers.text import Decoder, DecoderOptions

PREFIX = "evaluate:"
METRIC_PATTERN = re.compile(r"([\w.-]+/)?[\w-]+(@.*)?")
PINNED = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")

OUTPUTS = ("text", "number")
BYTES = {"int32": 4, "int64": 8}

METRIC_SEED = 0
"""Of metrics that draw random numbers, so that one result is always scored the same."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The metric, and how outputs are read.

    Attributes:
        metric: "evaluate:PATH" with the path of a metric's script, or of a folder NAME that
            holds NAME.py; or "evaluate:ORG/NAME@REVISION" with a metric of the Hugging Face
            Hub and all 40 digits of a commit.
        outputs: What the metric gets as predictions: "text" decoded from the token ids of each
            output, or the one "number" in it.
        tokenizer: Folder of the tokenizer, where that is not the model's.
        dtype: Type of a token id or number, little-endian: "int32" or "int64".
        compute: More arguments of the metric's `compute`.
        scale: Scores are multiplied by it, for example by 100 for per cent.
    """

    metric: str
    outputs: str = "text"
    tokenizer: str | None = None
    dtype: str = "int64"
    compute: Mapping[str, Any] | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_choice("evaluate", "outputs", self.outputs, OUTPUTS)
        require_choice("evaluate", "dtype", self.dtype, BYTES)
        if taken := {"predictions", "references"} & {*(self.compute or ())}:
            raise SuiteError(
                f"scorer evaluate: compute sets {' and '.join(sorted(taken))}, which come from the "
                "engine and the data set; take them out",
                option="compute",
            )


class EvaluateScorer:
    """Calls `evaluate.load(metric).compute(predictions=..., references=..., **compute)`.

    A metric is code that runs here: it is yours, or one commit that cannot change.
    """

    libraries = ("evaluate",)
    optional_libraries = ("transformers",)

    options: ClassVar[type] = EvaluateOptions

    def __init__(self, *, model: str | None = None, **options: Any) -> None:
        """Choose the metric and how outputs are read; the metric is not imported yet.

        Args:
            model: Folder of the model in Hugging Face's files, for its tokenizer.
            options: Those of `EvaluateOptions`.
        """
        asked = self._asked = EvaluateOptions(**options)
        self._metric = _parse(asked.metric)
        self._decoder: Decoder | None = None
        if asked.outputs == "text":
            self._decoder = Decoder.of(
                "evaluate", model, DecoderOptions(tokenizer=asked.tokenizer, dtype=asked.dtype)
            )

    def require(self) -> None:
        """Look for what decodes; nothing is imported."""
        if self._decoder is not None:
            self._decoder.require()

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs, token ids or one number each (option `outputs`), with the metric.

        Every number of its result is an aggregate; every list of one number per sample gives scores
        and their mean.
        """
        require_outputs("evaluate", outputs, references)
        predictions: Sequence[Any]
        if self._decoder is not None:
            predictions = self._decoder.decode(outputs).texts
        else:
            predictions = [self._number(output, sample) for sample, output in enumerate(outputs)]
        result = self._run(self._script(), predictions, references)
        return read_result(result, samples=len(outputs), scale=self._asked.scale)

    def _number(self, output: bytes, sample: int) -> int:
        if len(output) != BYTES[self._asked.dtype]:
            raise scorer_error(
                f"scorer evaluate: output {output[:16]!r} ({len(output)} bytes) of sample {sample} "
                f"is no number of type {self._asked.dtype} ({BYTES[self._asked.dtype]} bytes); "
                "set the scorer's dtype to the type of the engine's outputs",
            )
        return int.from_bytes(output, "little", signed=True)

    def _script(self) -> Path:
        if isinstance(self._metric, Path):
            return self._metric
        repository, revision = self._metric
        try:
            from huggingface_hub import snapshot_download
        except ImportError as error:
            raise _missing(error) from error
        try:
            folder = snapshot_download(repository, repo_type="space", revision=revision)
        except Exception as error:  # its own errors, and those of the network below
            raise UnavailableError(
                f"scorer evaluate: metric {repository} at {revision} is not on this machine and "
                f"cannot be fetched ({error}); fetch it once where there is a network, or name a "
                f'local copy: metric = "{PREFIX}PATH"'
            ) from error
        return _in_folder(Path(folder), repository.partition("/")[2])

    def _run(
        self, script: Path, predictions: Sequence[Any], references: Sequence[Any]
    ) -> Mapping[str, Any]:
        try:
            import evaluate
        except ImportError as error:
            raise _missing(error) from error
        try:
            metric = evaluate.load(
                str(script), experiment_id=uuid.uuid4().hex, keep_in_memory=True, seed=METRIC_SEED
            )
            result: Mapping[str, Any] = metric.compute(
                predictions=list(predictions),
                references=list(references),
                **(self._asked.compute or {}),
            )
        except Exception as error:  # whatever a metric's code may raise
            raise scorer_error(
                f"scorer evaluate: the metric {script} failed ({type(error).__name__}: {error}); "
                "see this log, and check its references, its compute options and what it imports",
            ) from error
        return result


def read_result(result: Mapping[str, Any], *, samples: int, scale: float) -> Scores:
    """Read the result of a metric's `compute`: numbers, and lists of one number per sample.

    Other values are left out. Scores are multiplied by `scale`.
    """
    per_sample: dict[str, list[float]] = {}
    aggregate: dict[str, float] = {}
    for name, value in result.items():
        values = _numbers(value)
        if not isinstance(value, Real) and len(values) != samples:
            continue
        if not all(map(math.isfinite, values)):
            raise scorer_error(
                f"scorer evaluate: the metric's {name!r} is not finite: {value!r:.80}"
            )
        scaled = [scale * one for one in values]
        aggregate[name] = math.fsum(scaled) / len(scaled)
        if not isinstance(value, Real):
            per_sample[name] = scaled
    if not aggregate:
        raise scorer_error(
            f"scorer evaluate: the metric gave no number, but {dict(result)!r:.200}; it must give "
            "numbers, or lists of one number per sample",
        )
    return Scores(per_sample=per_sample, aggregate=aggregate)


def _numbers(value: Any) -> list[float]:
    listed = value.tolist() if hasattr(value, "tolist") else value
    listed = listed if isinstance(listed, list | tuple) else [listed]
    return [float(one) for one in listed] if all(isinstance(one, Real) for one in listed) else []


def _parse(metric: str) -> Path | tuple[str, str]:
    named = metric.removeprefix(PREFIX)
    if named == metric or not named:
        raise SuiteError(
            f'scorer evaluate: metric = {metric!r}; write "{PREFIX}PATH" for a script or folder, '
            f'or "{PREFIX}ORG/NAME@REVISION" for a metric of the Hugging Face Hub',
            option="metric",
        )
    if pinned := PINNED.fullmatch(named):
        return pinned[1], pinned[2]
    path = Path(named)
    if path.is_dir():
        return _in_folder(path, path.absolute().name)
    if path.is_file():
        return path.absolute()
    if METRIC_PATTERN.fullmatch(named):
        raise SuiteError(
            f"scorer evaluate: metric {named!r} is no file or folder here, and a metric of the "
            f'Hugging Face Hub is only loaded at one commit: "{PREFIX}ORG/NAME@REVISION" with all '
            "40 digits, since its code could change",
            option="metric",
        )
    raise UnavailableError(f"scorer evaluate: there is no metric script {path}")


def _in_folder(folder: Path, name: str) -> Path:
    script = (folder / f"{name}.py").absolute()
    if not script.is_file():
        raise UnavailableError(
            f"scorer evaluate: the folder {folder} holds no {name}.py; name the script itself"
        )
    return script


def _missing(error: ImportError) -> EnvironmentFault:
    return EnvironmentFault(
        f"scorer evaluate needs {error.name}, which is not installed; "
        "try: pip install 'pytest-mlperf[evaluate]'"
    )
