"""Train the tiny twin of DLRM-v2 on clicks from a known model, and write its model and data.

    python twins/train_tiny_dlrm.py                # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written every few seconds; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from tiny_clicks import HOTNESS, PRODUCTS, ROWS, Clicks, Pairs
from torch import Tensor
from training import (
    BUILD,
    TINY,
    Course,
    begin,
    fit,
    made_with,
    sha256,
    source,
    warmed_up,
    write,
    write_record,
)

from pytest_mlperf.adapters.datasets.criteo import CriteoDataset
from pytest_mlperf.adapters.engines.torch.module.dlrm import (
    Dlrm,
    EmbeddingTable,
    EmbeddingTables,
    LayerSizes,
    dlrm_v2,
)
from pytest_mlperf.adapters.scorers.auc import AucScorer

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "dlrm-v2"
MODEL = SUITE / "model"
DATA = SUITE / "data" / "criteo"
CHECKPOINT = BUILD / "dlrm-v2-tiny.pt"

SEED = 20261121
# MLPerf's: 128 numbers a row, layers of 512, 256 and 128, rank 512, 1024, 1024, 512, 256 and 1.
SIZES = LayerSizes(
    num_embeddings_per_feature=ROWS,
    embedding_dim=8,
    hotness=HOTNESS,
    dense_arch_layer_sizes=(32, 8),
    dcn_num_layers=3,
    dcn_low_rank_dim=16,
    over_arch_layer_sizes=(64, 32, 1),
)
STEPS = 3000
BATCH = 1024
CHECKPOINT_STEPS = 250
PEAK_LEARNING_RATE = 5e-3
HELD_OUT = 6000
PAIRS_PER_SAMPLE = 15
HELD_OUT_PART, OTHER_PART, FIRST_TRAINING_PART = 0, 1, 2
OTHER_PAIRS = 1_000_000
SETTINGS = [
    *(SEED, STEPS, BATCH, PEAK_LEARNING_RATE, repr(SIZES)),
    source("tiny_clicks.py"),
]
LIBRARIES = ("torch", "safetensors", "numpy")

README = """\
# Tiny twin of DLRM-v2

`model/` is DLRM-DCNv2, MLPerf's recommendation model, with {parameters:,} parameters: 26 embedding
tables, a low-rank cross net and two MLPs, trained on clicks that a known logistic model draws. It
lets the whole path from click logs to an AUC run on a CPU in seconds. It is not MLPerf's model, and
its data are not Criteo's: the figures below are this twin's own, they are no MLPerf result and say
nothing about DLRM-v2 on Criteo.

| on the {held_out_pairs:,} held-out pairs | AUC, per cent |
|---|---|
| **this model**, fp32 | **{auc:.4f}** |
| the true probabilities | {bayes_auc:.4f} |
| chance: probabilities of other pairs | {chance_auc:.4f} |

On {other_pairs:,} other pairs, the true probabilities have an AUC of {bayes_auc_others:.4f}; no
predictions can be expected to have a higher one.

| | |
|---|---|
| clicked pairs | {clicked} of {held_out_pairs:,} |
| samples | {samples}, of {pairs_per_sample} pairs each |
| embedding tables | {rows:,} rows of {embedding_dim} numbers; MLPerf's have 204 million of 128 |
| lookups per pair | {lookups}: MLPerf's 214, but four a feature at most |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, pairs per step | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` is a folder as the engine `torch-module` takes it with `factory = "dlrm-v2"`: sizes in
`config.json`, tensors in `model.safetensors`, named as TorchRec's `DLRM_DCN` names them.

## Data

`data/criteo/` has the files of the reference's data set `multihot-criteo-sample`: dense features
(float32), labels (int32) and, uncompressed, the rows that each of 26 sparse features looks up
(int32).

`twins/tiny_clicks.py` draws the pairs. The logarithm of a pair's odds to be clicked is a sum of
planted effects: of each dense feature, of each row that is looked up, and of {products} products of
a dense and a sparse feature. Held-out pairs were not trained on. No data come from elsewhere: model
and data are under this project's licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_dlrm.py

This takes about two minutes on one core, resumes after an interruption, and writes every file of
this folder. It is seeded: a second training, interrupted at step 1500 and resumed, gave the same
bytes with the same libraries on the same kind of CPU.
"""


class Trained(torch.nn.Module):  # type: ignore[misc] # torch is Any here
    """The untrained model with its tables, which are no parameters of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ParameterList()
        for rows in SIZES.num_embeddings_per_feature:
            bound = rows**-0.5
            self.tables.append(torch.empty(rows, SIZES.embedding_dim).uniform_(-bound, bound))
        tables = [EmbeddingTable(rows=rows) for rows in self.tables]
        self.model = Dlrm(SIZES, EmbeddingTables(tables, on_cpu=False), {})

    def loss(self, pairs: Pairs) -> Tensor:
        """Return the mean cross entropy."""
        chances = self.model(
            torch.from_numpy(pairs.dense), torch.from_numpy(np.concatenate(pairs.sparse, axis=1))
        )
        clicked = torch.from_numpy(pairs.clicked).float()
        return torch.nn.functional.binary_cross_entropy(chances, clicked)


def train(clicks: Clicks, checkpoint: Path) -> dict[str, Tensor]:
    """Train from the seed, or from the checkpoint where there is one.

    Args:
        clicks: Gives each step its own pairs.
        checkpoint: Written every CHECKPOINT_STEPS steps and at the end.

    Returns:
        The tensors, by TorchRec's names.
    """
    torch.manual_seed(SEED)
    trained = Trained()
    optimizer = torch.optim.Adam(trained.parameters(), lr=1.0)
    fit(
        trained,
        [warmed_up(optimizer, peak=PEAK_LEARNING_RATE, warm_up=1, steps=STEPS)],
        Course(settings=SETTINGS, steps=STEPS, checkpoint_steps=CHECKPOINT_STEPS),
        batches=lambda first: (
            clicks.draw(BATCH, FIRST_TRAINING_PART + step) for step in range(first, STEPS)
        ),
        loss_of=lambda pairs: [trained.loss(pairs)],
        checkpoint=checkpoint,
    )
    return named(trained.model, list(trained.tables))


def named(model: Dlrm, tables: list[Tensor]) -> dict[str, Tensor]:
    """Return the tensors by TorchRec's names, in its shapes."""
    bag = "sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{}.weight"
    tensors = {bag.format(number): rows for number, rows in enumerate(tables)}
    bottom = [layer for layer in model.bottom if isinstance(layer, torch.nn.Linear)]
    *top, last = [layer for layer in model.top if isinstance(layer, torch.nn.Linear)]
    layers = {f"dense_arch.model._mlp.{n}._linear": layer for n, layer in enumerate(bottom)}
    layers |= {f"over_arch.model.0._mlp.{n}._linear": layer for n, layer in enumerate(top)}
    for name, layer in (layers | {"over_arch.model.1": last}).items():
        tensors |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    for number, (narrow, wide) in enumerate(zip(model.narrow, model.wide, strict=True)):
        tensors[f"inter_arch.crossnet.V_kernels.{number}"] = narrow.weight
        tensors[f"inter_arch.crossnet.W_kernels.{number}"] = wide.weight
        tensors[f"inter_arch.crossnet.bias.{number}"] = wide.bias.unsqueeze(1)
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def write_model(tensors: dict[str, Tensor]) -> None:
    """Write config.json and the tensors."""
    config = {"model_type": "dlrm-v2", **dataclasses.asdict(SIZES)}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in config.items()]
    write(MODEL / "config.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    packed = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write(MODEL / "model.safetensors", packed)


def write_data(pairs: Pairs) -> None:
    """Write pairs in the layout of the reference's data set multihot-criteo-sample."""
    for name, values in (("dense", pairs.dense), ("labels", pairs.clicked[:, None])):
        packed = io.BytesIO()
        np.save(packed, values)
        write(DATA / f"day_23_{name}_sample.npy", packed.getvalue())
    packed = io.BytesIO()
    arrays: dict[str, Any] = {str(feature): rows for feature, rows in enumerate(pairs.sparse)}
    np.savez(packed, **arrays)
    write(DATA / "day_23_sparse_multi_hot_sample.npz", packed.getvalue())


def predict(pairs: Pairs) -> NDArray[np.float32]:
    """Return the chances that the model as it was written gives, shape (pairs,)."""
    model = dlrm_v2(model=str(MODEL))
    with torch.inference_mode():
        clicks = model(
            torch.from_numpy(pairs.dense), torch.from_numpy(np.concatenate(pairs.sparse, axis=1))
        )
    return np.asarray(clicks)


def auc_percent(predictions: NDArray[Any], clicked: NDArray[np.int32]) -> float:
    """Return the area under the ROC curve of all pairs, per cent, to four decimal places."""
    scored = AucScorer().score([predictions.astype("<f4").tobytes()], [clicked])
    return round(scored.aggregate["auc"], 4)


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    clicks = Clicks(SEED)
    held_out = clicks.draw(HELD_OUT, HELD_OUT_PART)
    write_data(held_out)
    tensors = train(clicks, checkpoint)
    write_model(tensors)
    dataset = CriteoDataset(
        path=str(DATA),
        variant="multihot-criteo-sample",
        hotness=HOTNESS,
        pairs=PAIRS_PER_SAMPLE,
    )
    record = {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "parameters": sum(weights.numel() for weights in tensors.values()),
        "rows": sum(ROWS),
        "embedding_dim": SIZES.embedding_dim,
        "lookups": sum(HOTNESS),
        "products": PRODUCTS,
        "held_out_pairs": HELD_OUT,
        "clicked": int(held_out.clicked.sum()),
        "samples": len(dataset),
        "pairs_per_sample": PAIRS_PER_SAMPLE,
        **score(clicks, held_out),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record)


def score(clicks: Clicks, held_out: Pairs) -> dict[str, Any]:
    """Return the AUC of the model, of chance, and of the true probabilities."""
    predicted = predict(held_out)
    others = clicks.draw(OTHER_PAIRS, OTHER_PART)
    return {
        "auc": auc_percent(predicted, held_out.clicked),
        "bayes_auc": auc_percent(held_out.log_odds, held_out.clicked),
        "chance_auc": auc_percent(np.roll(predicted, HELD_OUT // 2), held_out.clicked),
        "other_pairs": OTHER_PAIRS,
        "bayes_auc_others": auc_percent(others.log_odds, others.clicked),
    }


if __name__ == "__main__":
    main()
