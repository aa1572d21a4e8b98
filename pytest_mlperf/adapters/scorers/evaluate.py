"""Score with a metric of Hugging Face's library evaluate: your own script, or a pinned metric."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import Scores, SuiteError, UnavailableError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.scorers import require_choice, require_outputs, scorer_error
from pytest_mlperf.adapters.scorers.text import DecoderOptions, TextScorer

LOCATOR = "evaluate:"
METRIC_PATTERN = re.compile(r"([\w.-]+/)?[\w-]+(@.*)?")
PINNED = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})")

OUTPUTS = ("text", "number")
BYTES = {"int32": 4, "int64": 8}

METRIC_SEED = 0
"""Seed of metrics that draw random numbers, so that equal results get equal scores."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecoderOptions):
    """Options of scorer evaluate.

    Attributes:
        metric: "evaluate:PATH" with the path of a metric's script, or of a folder NAME that holds
            NAME.py; or "evaluate:ORG/NAME@REVISION" with a metric of the Hugging Face Hub and all
            40 digits of a commit.
        outputs: Predictions of the metric: "text" decoded from the token ids of each output, or the
            "number" in it.
        dtype: Type of a token id or number, little-endian: "int32" or "int64".
        compute: Further arguments of the metric's `compute`.
        scale: Factor of all scores, for example 100 for per cent.
    """

    metric: str
    outputs: str = "text"
    compute: Mapping[str, Any] | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_choice("evaluate", "outputs", self.outputs, OUTPUTS)
        require_choice("evaluate", "dtype", self.dtype, BYTES)
        if taken := {"predictions", "references"} & {*(self.compute or ())}:
            raise SuiteError(
                f"scorer evaluate: compute must not set {' and '.join(sorted(taken))}: "
                "predictions come from the engine, references from the data set",
                option="compute",
            )
        _ = self.script

    @property
    def decodes(self) -> bool:
        """Whether outputs are decoded to text for the metric; otherwise it gets numbers."""
        return self.outputs == "text"

    @property
    def script(self) -> Path | tuple[str, str]:
        """The metric's script, or its name on the Hugging Face Hub and its commit."""
        return _parse(self.metric)


class EvaluateScorer(TextScorer[EvaluateOptions]):
    """Score by a metric of the library evaluate: the user's script, or one at a pinned revision."""

    libraries: ClassVar[tuple[str, ...]] = ("evaluate",)
    name: ClassVar[str] = "evaluate"

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score outputs with the metric: token ids or one number each, by option `outputs`."""
        require_outputs("evaluate", outputs, references)
        predictions: Sequence[Any]
        if self._asked.decodes:
            predictions = self._decoder.decode(outputs).texts
        else:
            predictions = [self._number(output, sample) for sample, output in enumerate(outputs)]
        result = self._run(self._script(), predictions, references)
        return read_result(result, samples=len(outputs), scale=self._asked.scale)

    def _number(self, output: bytes, sample: int) -> int:
        if len(output) != BYTES[self._asked.dtype]:
            raise scorer_error(
                f"scorer evaluate: output {output[:16]!r} ({len(output)} bytes) of sample {sample} "
                f"is not a number of type {self._asked.dtype} ({BYTES[self._asked.dtype]} bytes); "
                "set the scorer's dtype to the type of the engine's outputs",
            )
        return int.from_bytes(output, "little", signed=True)

    def _script(self) -> Path:
        script = self._asked.script
        if isinstance(script, Path):
            return script
        repository, revision = script
        try:
            from huggingface_hub import snapshot_download
        except ImportError as error:
            raise not_installed("scorer evaluate", str(error.name), "evaluate") from error
        try:
            folder = snapshot_download(repository, repo_type="space", revision=revision)
        except Exception as error:  # huggingface_hub raises its own and the network's errors
            raise UnavailableError(
                f"scorer evaluate: metric {repository} at {revision} is not on this machine and "
                f"cannot be fetched ({error}); run once with network access, or name a "
                f'local copy: metric = "{LOCATOR}PATH"'
            ) from error
        return _in_folder(Path(folder), repository.partition("/")[2])

    def _run(
        self, script: Path, predictions: Sequence[Any], references: Sequence[Any]
    ) -> Mapping[str, Any]:
        try:
            import evaluate
        except ImportError as error:
            raise not_installed("scorer evaluate", str(error.name), "evaluate") from error
        try:
            metric = evaluate.load(
                str(script), experiment_id=uuid.uuid4().hex, keep_in_memory=True, seed=METRIC_SEED
            )
            result: Mapping[str, Any] = metric.compute(
                predictions=list(predictions),
                references=list(references),
                **(self._asked.compute or {}),
            )
        except Exception as error:  # a metric's code may raise any error
            raise scorer_error(
                f"scorer evaluate: the metric {script} failed ({type(error).__name__}: {error}); "
                "see this log, and check its references, its compute options and what it imports",
            ) from error
        return result


def read_result(result: Mapping[str, Any], *, samples: int, scale: float) -> Scores:
    """Convert the result of an `evaluate` metric to scores, multiplied by `scale`.

    A number becomes an aggregate; a list of one number per sample becomes scores and their mean.
    """
    per_sample: dict[str, list[float]] = {}
    aggregate: dict[str, float] = {}
    for name, value in result.items():
        values = _numbers(value)
        if not isinstance(value, Real) and len(values) != samples:
            continue
        if not all(map(math.isfinite, values)):
            raise scorer_error(
                f"scorer evaluate: the metric returned {name} = {value!r:.80}, which is not "
                "finite; check the outputs and references that it compares"
            )
        scaled = [scale * number for number in values]
        aggregate[name] = math.fsum(scaled) / len(scaled)
        if not isinstance(value, Real):
            per_sample[name] = scaled
    if not aggregate:
        raise scorer_error(
            f"scorer evaluate: the metric returned {dict(result)!r:.200}; it must return a number, "
            "or a list with one number per sample: use another metric, or correct its script",
        )
    return Scores(per_sample=per_sample, aggregate=aggregate)


def _numbers(value: Any) -> list[float]:
    values = value.tolist() if hasattr(value, "tolist") else value
    values = values if isinstance(values, list | tuple) else [values]
    return [float(v) for v in values] if all(isinstance(v, Real) for v in values) else []


def _parse(metric: str) -> Path | tuple[str, str]:
    name = metric.removeprefix(LOCATOR)
    if name == metric or not name:
        raise SuiteError(
            f'scorer evaluate: metric = {metric!r}; write "{LOCATOR}PATH" for a script or folder, '
            f'or "{LOCATOR}ORG/NAME@REVISION" for a metric of the Hugging Face Hub',
            option="metric",
        )
    if pinned := PINNED.fullmatch(name):
        return pinned[1], pinned[2]
    path = Path(name)
    if path.is_dir():
        return _in_folder(path, path.absolute().name)
    if path.is_file():
        return path.absolute()
    if METRIC_PATTERN.fullmatch(name):
        raise SuiteError(
            f"scorer evaluate: metric {name!r} is not a file or folder here; for a metric of the "
            f'Hugging Face Hub write "{LOCATOR}ORG/NAME@REVISION", where REVISION is a '
            "commit hash of 40 digits, so that the metric's code cannot change",
            option="metric",
        )
    raise UnavailableError(
        f"scorer evaluate: the metric script {path} does not exist; correct the scorer's metric"
    )


def _in_folder(folder: Path, name: str) -> Path:
    script = (folder / f"{name}.py").absolute()
    if not script.is_file():
        raise UnavailableError(
            f"scorer evaluate: the folder {folder} holds no {name}.py; name the script itself: "
            f'metric = "{LOCATOR}PATH/SCRIPT.py"'
        )
    return script
