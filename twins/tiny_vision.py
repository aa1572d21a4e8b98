"""What the trainers of the tiny vision models share: AdamW in one cycle, ONNX, and onnxruntime."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import training
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.optim.lr_scheduler import OneCycleLR
from training import Course, answers_of, write

from pytest_mlperf.adapters.engines.onnxruntime import OnnxRuntimeEngine
from pytest_mlperf.core.extension import Dataset

LIBRARIES = ("torch", "onnx", "onnxruntime", "pillow", "numpy")
OPSET = 17


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained.

    Attributes:
        seed: Step n draws its batch from a generator seeded with this and n.
        steps: Batches.
        peak_learning_rate: Of AdamW; reached after a tenth of the steps, then down to 0.
        weight_decay: Of AdamW.
        checkpoint_steps: A checkpoint is written each time after so many steps.
        settings: What else decides the result.
    """

    seed: int
    steps: int
    peak_learning_rate: float
    weight_decay: float
    checkpoint_steps: int
    settings: Sequence[int | float | str]

    @property
    def identity(self) -> list[int | float | str]:
        """All that decides the result."""
        rates = (self.peak_learning_rate, self.weight_decay)
        return [self.seed, self.steps, *rates, *self.settings]


def fit(
    model: nn.Module,
    plan: Plan,
    loss_of: Callable[[np.random.Generator], Tensor],
    checkpoint: Path,
) -> None:
    """Train in place from the seed, or from the checkpoint where there is one.

    Args:
        model: As made after `torch.manual_seed`.
        plan: How.
        loss_of: Draws a batch from the generator that it is given, and returns the model's loss.
        checkpoint: File that is written every `checkpoint_steps` steps, and after the last.
    """
    rate = plan.peak_learning_rate
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=plan.weight_decay)
    training.fit(
        model,
        [OneCycleLR(optimizer, rate, total_steps=plan.steps, pct_start=0.1)],
        Course(
            settings=plan.identity,
            steps=plan.steps,
            checkpoint_steps=plan.checkpoint_steps,
            clip=5.0,
        ),
        batches=lambda first: (
            np.random.default_rng([plan.seed, step]) for step in range(first, plan.steps)
        ),
        loss_of=lambda rng: [loss_of(rng)],
        checkpoint=checkpoint,
    )


def export(
    model: nn.Module,
    path: Path,
    examples: tuple[Tensor, ...],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
) -> None:
    """Write a model as ONNX.

    Args:
        model: In evaluation mode.
        path: Where to.
        examples: Of each input.
        inputs: Their names.
        outputs: Their names.
        axes: By name of an input or output, the axes of any length.
    """
    packed = io.BytesIO()
    torch.onnx.export(
        model,
        examples,
        packed,
        dynamo=False,
        opset_version=OPSET,
        input_names=inputs,
        output_names=outputs,
        dynamic_axes=axes,
    )
    write(path, packed.getvalue())


def session(model: Path) -> onnxruntime.InferenceSession:
    """Return onnxruntime with a model, on one CPU thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def fold_batch_norm(module: nn.Module) -> nn.Module:
    """Fold every batch norm into the convolution before it in a Sequential, in place."""
    if isinstance(module, nn.Sequential):
        for index, (layer, following) in enumerate(pairwise(list(module))):
            if isinstance(following, nn.BatchNorm2d | nn.BatchNorm3d):
                module[index] = fuse_conv_bn_eval(layer, following)
                module[index + 1] = nn.Identity()
    for child in module.children():
        fold_batch_norm(child)
    return module


def run_onnx(dataset: Dataset, model: Path, options: Mapping[str, Any]) -> list[bytes]:
    """Return the answer to each sample, computed by engine onnxruntime on one CPU thread."""
    engine = OnnxRuntimeEngine(dataset=dataset, model=str(model), precision="fp32", **options)
    return answers_of(engine, dataset)
