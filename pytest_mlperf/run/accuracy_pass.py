"""The accuracy pass: blocks of samples in a fixed shuffled order, scored in a child process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import RunError, UnavailableError
from pytest_mlperf.core.measurement import Accuracy, Scored, Subject
from pytest_mlperf.core.outputs import ScoredOutputs
from pytest_mlperf.run.accuracy_log import ACCURACY
from pytest_mlperf.run.child import Child
from pytest_mlperf.run.events import (
    Check,
    NoEventError,
    by_name,
    each,
    is_count,
    is_number,
    is_text,
    optional,
    read_json,
    record,
)
from pytest_mlperf.run.logs import DETAIL, parse_detail
from pytest_mlperf.run.protocol import Factory
from pytest_mlperf.run.supervisor import Designed, Patience, Worker
from pytest_mlperf.run.watched import TARGET
from pytest_mlperf.suite.plan import Planned

SCORES = record(
    aggregate=by_name(is_number),
    indices=each(is_count),
    lower=each(is_text),
    whole=each(is_text),
    per_sample=by_name(each(optional(is_number))),
)
"""What `score.score` returns."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is wanted of an accuracy pass.

    Attributes:
        looks: Given the size of the data set, after how many samples to look; the last is all.
        enough: Whether what was scored so far decides; asked at every look but the last.
    """

    looks: Callable[[int], Sequence[int]]
    enough: Callable[[Accuracy, Scored, Subject], bool]


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How outputs are scored.

    Attributes:
        folder: The process's folder; scores are written into it.
        dataset, scorer: What the child builds.
        model: Handed to the scorer: a language model's tokenizer lies there.
        import_path: Folders that the parent imports from.
        patience: Limits of a child.
        show: Takes a line of progress.
    """

    folder: Path
    dataset: Factory
    scorer: Factory
    model: str | None
    import_path: Sequence[str]
    patience: Patience
    show: Callable[[str], None]


def fixed_order(samples: int) -> list[int]:
    """Return the order in which samples are measured: shuffled, and always the same.

    A subset is then a fair sample of the data set, and equal in every pass.
    """
    return sorted(range(samples), key=lambda index: hashlib.sha256(b"%d" % index).digest())


def run_pass(
    worker: Worker, total: int, ask: Ask, scoring: Scoring, subject: Subject
) -> Callable[[], tuple[Accuracy, Scored]]:
    """Have the worker answer block after block until the scores decide.

    Args:
        worker: Waits for a command.
        total: Samples in the data set.
        ask: When to look, and what is enough.
        scoring: How outputs are scored.
        subject: What is measured.

    Returns:
        What gives the scores of all blocks; to be called when the worker is gone, because the last
        scoring needs no accelerator.

    Raises:
        RunError: The worker or the scorer broke.
    """
    order, blocks = fixed_order(total), list[dict[str, Any]]()
    for number, (start, end) in enumerate(pairwise((0, *ask.looks(total)))):
        indices = sorted(order[start:end])
        worker.send({"command": "accuracy", "block": number, "indices": indices})
        done = Path(worker.wait_for("finished")["folder"])
        parse_detail(done / DETAIL).require_no_errors()
        blocks.append({"log": str(done / ACCURACY), "indices": indices})
        worker.wait_for("ready")
        if end < total:
            found = _score(scoring, blocks, total)
            if ask.enough(*found, subject):
                return lambda: found
    return lambda: _score(scoring, blocks, total)


def _scored(found: Mapping[str, Any], outputs: Sequence[int]) -> ScoredOutputs:
    return ScoredOutputs(
        indices=tuple(found["indices"]),
        per_sample=dict(found["per_sample"]),
        outputs=tuple(outputs),
    )


def _score(
    scoring: Scoring, blocks: Sequence[Mapping[str, Any]], total: int
) -> tuple[Accuracy, Scored]:
    outputs = scoring.folder / "outputs.json"
    watched = {"scorer": dataclasses.asdict(scoring.scorer), "file": str(outputs)}
    child = Child(
        title="scoring",
        folder=scoring.folder,
        script="run/score",
        spec={
            "task": "score",
            "dataset": dataclasses.asdict(scoring.dataset),
            "scorer": {"target": TARGET, "options": watched},
            "model": scoring.model,
            "blocks": blocks,
            "samples": total,
        },
        answer={},
        patience=scoring.patience,
        show=scoring.show,
        layer="scorer",
        whose="scorer",
    )
    scoring.show("scoring")
    try:
        child.run()
    except UnavailableError as error:  # the run was made, so this is no skip of it
        raise Designed("scorer", str(error), str(child.log)) from None
    found = _written(scoring.folder / "scores.json", SCORES)
    digests = _written(outputs, each(is_count))
    samples = len(found["indices"])
    accuracy = Accuracy(
        scores=found["aggregate"],
        samples=samples,
        total=total,
        full=samples == total,
        folder=str(scoring.folder),
        lower=tuple(found["lower"]),
        whole=tuple(found["whole"]),
    )
    return accuracy, _scored(found, digests)


def _written(path: Path, fits: Check) -> Any:
    """Return what the scoring child wrote.

    Raises:
        RunError: It is not there, or something else has changed it.
    """
    try:
        found = read_json(path.read_bytes())
    except (OSError, NoEventError) as error:
        raise RunError("scorer", f"cannot read {path}: {error}", str(path)) from None
    if not fits(found):
        raise RunError("scorer", f"{path} does not hold what the scoring process wrote", str(path))
    return found


def accuracy_key(planned: Planned, fingerprint: Mapping[str, str]) -> str:
    """Return the hex key under which an accuracy pass may be taken for another run's.

    Equal engine version, weights, options, data, precision, scorer and scenario.
    """
    scorer = planned.scorer
    text = json.dumps(
        [
            sorted((key, value) for key, value in fingerprint.items() if key != "find"),
            planned.case.workload,
            planned.case.scenario,
            planned.case.precision,
            dataclasses.asdict(scorer) if scorer else None,
        ],
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
