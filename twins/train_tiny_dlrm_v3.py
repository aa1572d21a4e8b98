"""Train the tiny twin of DLRM v3 on users of known tastes, and write its model and data.

    python twins/train_tiny_dlrm_v3.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written now and then; a run that was interrupted resumes there
and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from damage_weights import damage
from tiny_stream import (
    ACTIONS,
    CANDIDATES,
    CATEGORIES,
    FIRST_STEP,
    ITEMS,
    STEPS,
    USERS,
    Stream,
)
from torch import Tensor
from training import (
    BUILD,
    TINY,
    Course,
    answers_of,
    begin,
    fit,
    made_with,
    sha256,
    source,
    warmed_up,
    write,
    write_record,
)

from pytest_mlperf.adapters.datasets.streaming import MIN_LIKED_RATING, StreamingDataset
from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine
from pytest_mlperf.adapters.engines.torch.module.hstu import CANDIDATE, Hstu, HstuSizes
from pytest_mlperf.adapters.scorers.ranking import RankingScorer
from pytest_mlperf.core.extension import Scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "dlrm-v3"
MODEL = SUITE / "model"
DATA = SUITE / "data"
CHECKPOINT = BUILD / "dlrm-v3-tiny.pt"

SEED = 20261123
SIZES = HstuSizes(
    num_items=ITEMS,
    num_users=USERS,
    num_categories=CATEGORIES,
    embedding_dim=32,
    num_layers=2,
    num_heads=2,
    attention_dim=16,
    linear_dim=16,
    hidden_dim=64,
)
TRAINING_STEPS = 2500
BATCH = 48
CHECKPOINT_STEPS = 250
PEAK_LEARNING_RATE = 4e-3
DATA_PART, FIRST_TRAINING_PART = 0, 1
SETTINGS = [
    *(SEED, TRAINING_STEPS, BATCH, PEAK_LEARNING_RATE, repr(SIZES)),
    source("tiny_stream.py"),
]
LIBRARIES = ("torch", "safetensors", "numpy")

README = """\
# Tiny twin of DLRM v3

`model/` is HSTU, the attention over a user's history that MLPerf's DLRM v3 ranks candidates with,
with {parameters:,} parameters: {layers} layers and three embedding tables, trained on what users of
known tastes do. It lets the whole path from streaming data to a normalised entropy run on a CPU in
seconds. It is not MLPerf's model, and its data are not MLPerf's: the figures below are this twin's
own, they are no MLPerf result and say nothing about DLRM v3. Its tables have {rows:,} rows and fit
into a cache: they say nothing of the speed of MLPerf's 1 TB either.

| on the {samples} requests | normalised entropy | accuracy | GAUC |
|---|---|---|---|
| **this model**, fp32 | **{normalized_entropy:.4f}** | **{accuracy:.4f}** | **{gauc:.4f}** |
| the true probabilities | {true_normalized_entropy:.4f} | {true_accuracy:.4f} | {true_gauc:.4f} |
| chance: predictions of other requests | {chance_normalized_entropy:.4f} | {chance_accuracy:.4f} \
| {chance_gauc:.4f} |
| one weight of a hundred ten times as large | {damaged_normalized_entropy:.4f} \
| {damaged_accuracy:.4f} | {damaged_gauc:.4f} |

Normalised entropy is better when lower: 1 is what the mean label alone gives.

| | |
|---|---|
| time steps | {steps}, of which {first_step} are history alone |
| candidates of a request | {candidates[0]} to {candidates[1]} |
| users, items, categories | {users}, {items:,}, {categories} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, requests per step | {seed}, {training_steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` is a folder as the engine `torch-module` takes it with `factory = "dlrm-v3"`: sizes in
`config.json`, tensors in `model.safetensors`.

## Data

`data/sampled_data/` has the five files of MLPerf's sampled streaming data, with {steps} time steps
in place of 100. `twins/tiny_stream.py` draws them: a rating is the mean of a user's taste for a
category and of an item's quality, with chance added; who rates a candidate {liked} likes it. The
requests were not trained on; other actions of the same users were. No data come from elsewhere:
model and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_dlrm_v3.py

This takes minutes on one core, resumes after an interruption, and writes every file of this folder.
"""


def batches(stream: Stream, first: int) -> Iterator[Tensor]:
    """Yield the requests of each step from one on."""
    model = Hstu(SIZES)
    for step in range(first, TRAINING_STEPS):
        drawing = stream.drawing(FIRST_TRAINING_PART + step)
        parts = []
        for user in drawing.randint(0, USERS, BATCH):
            history = stream.draw(drawing, user, ACTIONS, 1 + drawing.randint(STEPS))
            candidates = stream.draw(drawing, user, CANDIDATES)
            request = {
                "step": 0,
                "query": 0,
                "user": user,
                "history": history.items,
                "ratings": history.ratings,
                "candidates": candidates.items,
                "labels": candidates.ratings >= MIN_LIKED_RATING,
            }
            parts.append(torch.from_numpy(model.prepare(request)))
        yield torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def loss_of(model: Hstu, parts: Tensor) -> Tensor:
    """Return the mean cross entropy of the candidates."""
    kind, predictions, labels, *_ = model(parts).unbind(-1)
    asked = kind == CANDIDATE
    return torch.nn.functional.binary_cross_entropy(predictions[asked], labels[asked])


def train(stream: Stream, checkpoint: Path) -> Hstu:
    """Train from the seed, or from the checkpoint where there is one."""
    torch.manual_seed(SEED)
    model = Hstu(SIZES)
    for table in (model.items, model.users, model.categories, model.ratings, model.kinds):
        torch.nn.init.normal_(table.weight, std=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    fit(
        model,
        [warmed_up(optimizer, peak=PEAK_LEARNING_RATE, warm_up=50, steps=TRAINING_STEPS)],
        Course(
            settings=SETTINGS, steps=TRAINING_STEPS, checkpoint_steps=CHECKPOINT_STEPS, clip=1.0
        ),
        batches=lambda first: batches(stream, first),
        loss_of=lambda parts: [loss_of(model, parts)],
        checkpoint=checkpoint,
    )
    return model


def score(dataset: StreamingDataset, answers: list[bytes], title: str = "") -> dict[str, float]:
    """Return the scores of these answers, as they are recorded."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scores: Scores = RankingScorer().score(answers, references)
    return {f"{title}{name}": round(value, 5) for name, value in scores.aggregate.items()}


def answered(answers: list[bytes], predictions: list[NDArray[Any]]) -> list[bytes]:
    """Return answers with other predictions."""
    changed = []
    for answer, others in zip(answers, predictions, strict=True):
        row = np.frombuffer(answer, "<f4").copy()
        row[2 : 2 + len(others)] = others
        changed.append(row.tobytes())
    return changed


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    stream = Stream(SEED)
    for name, content in stream.files(DATA_PART).items():
        write(DATA / "sampled_data" / name, content)
    state = train(stream, checkpoint).state_dict()
    tensors = {name: each.contiguous() for name, each in state.items()}
    config = {"model_type": "dlrm-v3", **dataclasses.asdict(SIZES)}
    write(MODEL / "config.json", f"{json.dumps(config, indent=2)}\n".encode())
    packed = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write(MODEL / "model.safetensors", packed)
    dataset = StreamingDataset(path=str(DATA), steps=STEPS, first_step=FIRST_STEP)
    answers = engine_answers(dataset, MODEL)
    samples = [dataset.input(index) for index in range(len(dataset))]
    counts = np.cumsum([len(each["candidates"]) for each in samples])[:-1]
    rows = [np.frombuffer(answer, "<f4") for answer in answers]
    flat = np.concatenate([row[2 : 2 + int(row[-1])] for row in rows])
    others = np.split(np.roll(flat, len(flat) // 2), counts)
    true = [stream.chances(each["user"], each["candidates"]) for each in samples]
    record = {
        "seed": SEED,
        "training_steps": TRAINING_STEPS,
        "batch": BATCH,
        "parameters": sum(weights.numel() for weights in tensors.values()),
        "layers": SIZES.num_layers,
        "rows": SIZES.num_items + SIZES.num_users + SIZES.num_categories,
        "users": USERS,
        "items": ITEMS,
        "categories": CATEGORIES,
        "steps": STEPS,
        "first_step": FIRST_STEP,
        "candidates": CANDIDATES,
        "liked": MIN_LIKED_RATING,
        "samples": len(dataset),
        **score(dataset, answers),
        **score(dataset, answered(answers, true), "true_"),
        **score(dataset, answered(answers, others), "chance_"),
        **score(dataset, engine_answers(dataset, damaged(MODEL)), "damaged_"),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record)


def engine_answers(dataset: StreamingDataset, model: Path) -> list[bytes]:
    """Return the engine's answers, as the suite asks it."""
    options = {"factory": "dlrm-v3", "batch_size": 16, "threads": 1}
    engine = TorchModuleEngine(dataset=dataset, model=str(model), precision="fp32", **options)
    return answers_of(engine, dataset)


def damaged(model: Path) -> Path:
    """Return a copy of the model with one weight of a hundred ten times as large."""
    copy = BUILD / f"{model.parent.name}-damaged"
    damage(model, copy)
    return copy


if __name__ == "__main__":
    main()
