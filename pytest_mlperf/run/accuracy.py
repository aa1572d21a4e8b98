"""Run the accuracy pass in blocks of samples, and score the blocks in a child process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_mlperf.core.baseline import GENERATION
from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.core.job import Factory, Job
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.core.search import CONDITIONS
from pytest_mlperf.judge.inputs import Leverage
from pytest_mlperf.run.answers import ACCURACY_LOG
from pytest_mlperf.run.child import events
from pytest_mlperf.run.child.process import Child, DeliberateError, Patience, WorkerProcess
from pytest_mlperf.run.logs import DETAIL, parse_detail

SCORES_SHAPE = events.record(
    aggregate=events.by_name(events.is_number),
    chance=events.by_name(events.is_number),
    groups=events.optional(events.list_of(events.is_count)),
    indices=events.list_of(events.is_count),
    leverage=events.by_name(
        events.record(seen=events.is_number, df=events.is_number, hidden=events.is_number)
    ),
    lower=events.list_of(events.is_text),
    outputs=events.list_of(events.is_count),
    whole=events.list_of(events.is_text),
    per_sample=events.by_name(events.list_of(events.optional(events.is_number))),
)


@dataclass(frozen=True, kw_only=True)
class ScoringSchedule:
    """Define when an accuracy pass is scored, and when it ends.

    Attributes:
        looks: Returns the sample counts at which to score, given the data set's size.
        enough: Returns whether the scores so far suffice, so that the pass ends.
    """

    looks: Callable[[int], Sequence[int]]
    enough: Callable[[Accuracy, Scored, Subject], bool]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Describe a scoring process: data set, scorer, folder; `model` is the tokenizer's folder."""

    folder: Path
    dataset: Factory
    scorer: Factory
    model: str | None
    suite: Path | None
    patience: Patience
    show: Callable[[str], None]


def fixed_order(samples: int) -> list[int]:
    """Return a fixed shuffled order of indices; the first n are a fair sample of the data set."""
    return sorted(range(samples), key=lambda index: hashlib.sha256(b"%d" % index).digest())


@dataclass(eq=False)
class AccuracyPass:
    """Run one worker's accuracy pass block by block, until the scores suffice for a verdict."""

    worker: WorkerProcess
    dataset: Mapping[str, Any]
    ask: ScoringSchedule
    scoring: Scoring
    subject: Subject

    def __post_init__(self) -> None:
        self._total = int(self.dataset["samples"])
        ignores_eos = self.subject.fingerprint.get(f"{GENERATION}ignore_eos") == "true"
        self._fixed_lengths = self.dataset["fixed_lengths"] or ignores_eos
        self._finishes, self._answer_counts = Counter[str](), Counter[str]()
        self._blocks: list[dict[str, Any]] = []
        self._decided: tuple[Accuracy, Scored] | None = None

    def answer(self) -> None:
        """Let the worker answer block by block; end early if `ScoringSchedule.enough` is true."""
        order, total = fixed_order(self._total), self._total
        for number, (start, end) in enumerate(pairwise((0, *self.ask.looks(total)))):
            indices = sorted(order[start:end])
            self.worker.send({"command": "accuracy", "block": number, "indices": indices})
            finished = self.worker.wait_for("finished")
            self._finishes += Counter(finished["result"]["finishes"])
            self._answer_counts += Counter(finished["result"]["answer_counts"])
            done = Path(finished["folder"])
            parse_detail(done / DETAIL).require_no_errors()
            self._blocks.append({"log": str(done / ACCURACY_LOG), "indices": indices})
            self.worker.wait_for("ready")
            if end < total:
                scores = self._score_blocks()
                if self.ask.enough(*scores, self.subject):
                    self._decided = scores
                    return

    def scores(self) -> tuple[Accuracy, Scored]:
        """Return (mean scores, sample scores); call it when the worker has freed its GPUs."""
        return self._decided or self._score_blocks()

    def _score_blocks(self) -> tuple[Accuracy, Scored]:
        accuracy, scored = score_logs(self.scoring, self._blocks, self._total)
        counted = dataclasses.replace(
            accuracy,
            finishes=dict(self._finishes),
            answer_counts=dict(self._answer_counts),
            fixed_lengths=self._fixed_lengths,
        )
        return counted, scored


def score_logs(
    scoring: Scoring, blocks: Sequence[Mapping[str, Any]], total: int
) -> tuple[Accuracy, Scored]:
    """Score answers in a new process; return (means, sample scores); `blocks`: logs and indices."""
    child = Child(
        title="scoring",
        folder=scoring.folder,
        script="run/score",
        spec={
            "task": "score",
            "dataset": dataclasses.asdict(scoring.dataset),
            "scorer": dataclasses.asdict(scoring.scorer),
            "model": scoring.model,
            "blocks": blocks,
            "samples": total,
        },
        answer={},
        patience=scoring.patience,
        show=scoring.show,
        suite=scoring.suite,
        layer="scorer",
        whose="scorer",
    )
    scoring.show("scoring")
    try:
        child.run()
    except UnavailableError as error:  # the run succeeded, so do not skip it
        raise DeliberateError("scorer", str(error), str(child.log)) from None
    answer = _scores_in(scoring.folder / "scores.json")
    samples, groups = len(answer["indices"]), answer["groups"]
    accuracy = Accuracy(
        scores=answer["aggregate"],
        samples=samples,
        total=total,
        full=samples == total,
        folder=str(scoring.folder),
        lower=tuple(answer["lower"]),
        whole=tuple(answer["whole"]),
    )
    return accuracy, Scored(
        groups=None if groups is None else tuple(groups),
        leverage={name: Leverage(**figures) for name, figures in answer["leverage"].items()},
        indices=tuple(answer["indices"]),
        per_sample=answer["per_sample"],
        outputs=tuple(answer["outputs"]),
        chance=answer["chance"],
    )


def _scores_in(path: Path) -> Any:
    try:
        value = events.read_json(path.read_bytes())
    except (OSError, events.NoEventError) as error:
        raise RunError("scorer", f"cannot read {path}: {error}", str(path)) from None
    if not SCORES_SHAPE(value):
        raise RunError(
            "scorer",
            f"{path}, which the scoring process wrote, is incomplete; run the test again, and "
            "if it fails again, report it with this file",
            str(path),
        )
    return value


def accuracy_key(job: Job, fingerprint: Mapping[str, str]) -> str:
    """Return a hash of everything that affects an accuracy pass; equal keys may share results."""
    scorer = job.scoring.written_scorer
    text = json.dumps(
        [
            sorted((key, value) for key, value in fingerprint.items() if key not in CONDITIONS),
            job.case.workload,
            job.case.scenario,
            job.case.precision,
            dataclasses.asdict(scorer) if scorer else None,
        ],
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
