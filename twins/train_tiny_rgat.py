"""Train the tiny twin of R-GAT on a drawn graph of papers, and write its model and data.

    python twins/train_tiny_rgat.py                # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written now and then; a run that was interrupted resumes there
and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from damage_weights import damage
from tiny_papers import CLASSES, EDGES, FEATURES, NODES, Papers
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

from pytest_mlperf.adapters.datasets.igbh import IgbhDataset, read_tensor
from pytest_mlperf.adapters.engines.torch.module import TorchModuleEngine
from pytest_mlperf.adapters.engines.torch.module.rgat import Rgat, RgatSizes
from pytest_mlperf.adapters.scorers.top1 import Top1Scorer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "rgat"
MODEL = SUITE / "model"
DATA = SUITE / "data"
CHECKPOINT = BUILD / "rgat-tiny.pt"

SEED = 20261123
SIZES = RgatSizes(features=FEATURES, hidden=48, heads=4, classes=CLASSES, fan_outs=(2, 2, 3))
STEPS = 600
BATCH = 192
CHECKPOINT_STEPS = 100
PEAK_LEARNING_RATE = 1e-2
SETTINGS = [
    *(SEED, STEPS, BATCH, PEAK_LEARNING_RATE, repr(SIZES)),
    source("tiny_papers.py"),
]
LIBRARIES = ("torch", "safetensors", "numpy")

README = """\
# Tiny twin of R-GAT

`model/` is R-GAT, the graph model of MLPerf, with {parameters:,} parameters: three layers of
attention over the neighbours of a paper, one for each of eleven relations. It says what a paper of
a drawn graph is about, and lets the whole path from a graph on disk to an accuracy run on a CPU in
seconds. It is not MLPerf's model, and its graph is not IGBH: the figures below are this twin's own,
they are no MLPerf result and say nothing about R-GAT. Its graph fits into a cache: it says nothing
of the speed of 2.2 TB on disks either.

| on the {samples:,} papers that are asked | top-1, per cent |
|---|---|
| **this model**, fp32 | **{top1:.3f}** |
| the same without neighbours | {alone:.3f} |
| chance: classes of other papers | {chance:.3f} |
| one weight of a hundred ten times as large | {damaged:.3f} |
| this model, logged as uint8 as MLPerf's reference does | {uint8:.3f} |

| | |
|---|---|
| classes | {classes}; MLPerf's 2,983 |
| nodes | {nodes} |
| edges of each node | {edges} |
| features of a node | {features}; MLPerf's 1,024 |
| neighbours sampled by hop and relation | {fan_outs}; MLPerf's 15, 10, 5 |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, papers per step | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` is a folder as the engine `torch-module` takes it with `factory = "rgat"`: sizes in
`config.json`, tensors in `model.safetensors`. Neighbours are sampled while a query waits.

## Data

`data/full/processed/` has the files of IGBH-full: features of papers and authors and labels as
float32 without a header, other features and edges (here int32) in NumPy's format, val_idx.pt as
MLPerf's `split_seeds.py` writes it. `twins/tiny_papers.py` draws them: features of a paper are far
from the centre of its class, those of its neighbours nearer, and most neighbours are of its class.
The papers that are asked were not trained on. No data come from elsewhere: model and data are under
this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_rgat.py

This takes minutes on one core, resumes after an interruption, and writes every file of this folder.
"""


def batches(papers: NDArray[np.int64], first: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the papers of each step from one on, with the step."""
    for step in range(first, STEPS):
        drawing = np.random.RandomState([SEED, step])
        yield step, torch.from_numpy(drawing.choice(papers, BATCH, replace=False))


def train(dataset: IgbhDataset, graph: Papers, checkpoint: Path) -> Rgat:
    """Train from the seed, or from the checkpoint where there is one."""
    torch.manual_seed(SEED)
    model = Rgat(SIZES)
    model.bind(dataset)
    labels = torch.from_numpy(graph.labels)
    papers = read_tensor(DATA / "full" / "processed" / "train_idx.pt")

    def loss_of(batch: tuple[int, Tensor]) -> list[Tensor]:
        model.seed, asked = batch[0] + 1, batch[1]  # other neighbours each time
        return [torch.nn.functional.cross_entropy(model.scores(asked), labels[asked])]

    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    fit(
        model,
        [warmed_up(optimizer, peak=PEAK_LEARNING_RATE, warm_up=50, steps=STEPS)],
        Course(settings=SETTINGS, steps=STEPS, checkpoint_steps=CHECKPOINT_STEPS, clip=1.0),
        batches=lambda first: batches(papers, first),
        loss_of=loss_of,
        checkpoint=checkpoint,
    )
    return model


def engine_answers(dataset: IgbhDataset, model: Path) -> list[bytes]:
    """Return the engine's answers, as the suite asks it."""
    options = {"factory": "rgat", "batch_size": 64, "threads": 1}
    engine = TorchModuleEngine(dataset=dataset, model=str(model), precision="fp32", **options)
    return answers_of(engine, dataset)


def score(dataset: IgbhDataset, answers: list[bytes], dtype: str = "int64") -> float:
    """Return the share of right classes, per cent."""
    references = [dataset.reference(index) for index in range(len(dataset))]
    scores = Top1Scorer(dtype=dtype).score(answers, references)
    return round(scores.aggregate["top1"], 3)


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    graph = Papers(SEED)
    for name, content in graph.files().items():
        write(DATA / "full" / "processed" / name, content)
    dataset = IgbhDataset(path=str(DATA), features=FEATURES)
    trained = train(dataset, graph, checkpoint)
    tensors = {name: each.contiguous() for name, each in trained.state_dict().items()}
    config = {"model_type": "rgat", **dataclasses.asdict(SIZES)}
    write(MODEL / "config.json", f"{json.dumps(config, indent=2)}\n".encode())
    packed = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write(MODEL / "model.safetensors", packed)
    answers = engine_answers(dataset, MODEL)
    broken = BUILD / "rgat-damaged"
    damage(MODEL, broken)
    record = {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "parameters": sum(weights.numel() for weights in tensors.values()),
        "classes": CLASSES,
        "features": FEATURES,
        "fan_outs": list(SIZES.fan_outs[::-1]),
        "nodes": ", ".join(f"{count:,} of {kind}" for kind, count in NODES.items()),
        "edges": ", ".join(f"{count} {name}" for name, count in EDGES.items()),
        "samples": len(dataset),
        "top1": score(dataset, answers),
        "alone": score(dataset, alone(dataset)),
        "chance": score(dataset, answers[1:] + answers[:1]),
        "damaged": score(dataset, engine_answers(dataset, broken)),
        "uint8": score(dataset, [answer[:1] for answer in answers], "uint8"),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record)


def alone(dataset: IgbhDataset) -> list[bytes]:
    """Return the model's answers where no node has a neighbour but itself."""
    edges = {relation: pairs[:0] for relation, pairs in dataset.edges.items()}
    dataset.edges, whole = edges, dataset.edges
    answers = engine_answers(dataset, MODEL)
    dataset.edges = whole
    return answers


if __name__ == "__main__":
    main()
