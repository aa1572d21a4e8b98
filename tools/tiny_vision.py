"""What the trainers of the tiny vision models share: training that resumes, export, and scoring."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.engines.onnxruntime import OnnxRuntimeEngine

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
        settings: What else decides the result. A checkpoint of other settings is not resumed.
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
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.peak_learning_rate, weight_decay=plan.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.peak_learning_rate, total_steps=plan.steps, pct_start=0.1
    )
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first = _resume(parts, plan, checkpoint)
    began_s, total = time.monotonic(), 0.0
    model.train()
    for step in range(first, plan.steps):
        loss = loss_of(np.random.default_rng([plan.seed, step]))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if (step + 1) % plan.checkpoint_steps == 0 or step + 1 == plan.steps:
            _save(checkpoint, parts, plan, step + 1)
            mean = total / (step % plan.checkpoint_steps + 1)
            elapsed_s = time.monotonic() - began_s
            print(
                f"step {step + 1:5} of {plan.steps}: loss {mean:.4f}, {elapsed_s:.0f} s", flush=True
            )
            total = 0.0
    model.eval()


def _resume(parts: Mapping[str, Any], plan: Plan, checkpoint: Path) -> int:
    """Load the checkpoint, if there is one of this plan; return the steps that are done."""
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.is_file() else {}
    if saved.get("identity") != plan.identity:
        return 0
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    print(f"resuming after step {saved['steps']} of {plan.steps}: {checkpoint}", flush=True)
    return int(saved["steps"])


def _save(checkpoint: Path, parts: Mapping[str, Any], plan: Plan, steps: int) -> None:
    """Replace the checkpoint in one step, so that an interruption leaves the one before."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = checkpoint.with_suffix(".partial")
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({"identity": plan.identity, "steps": steps, **states}, partial)
    partial.replace(checkpoint)


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


class Answers:
    """A sink that keeps the answers of an engine that completes inside `submit`."""

    wants_output = True
    times_tokens = False

    def __init__(self) -> None:
        self.outputs: dict[int, bytes] = {}

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[bytes] | None = None) -> None:
        """Refuse: a vision model gives none."""
        raise AssertionError(f"{len(ids)} samples have tokens: {tokens!r}")

    def next_tokens(self, ids: Sequence[int]) -> None:
        """Refuse: a vision model gives none."""
        raise AssertionError(f"{len(ids)} samples have tokens")

    def done(
        self,
        ids: Sequence[int],
        outputs: Sequence[bytes] | None = None,
        n_tokens: Sequence[int] | None = None,  # noqa: ARG002 - a vision model gives none
    ) -> None:
        """Keep the answers."""
        self.outputs.update(zip(ids, outputs or (), strict=True))

    def failed(self, error: BaseException) -> None:
        """Pass the engine's error on."""
        raise error


def run_onnx(dataset: Dataset, model: Path, options: Mapping[str, Any]) -> list[bytes]:
    """Return the answer to each sample, computed by engine onnxruntime on one CPU thread."""
    sink, indices = Answers(), range(len(dataset))
    engine = OnnxRuntimeEngine(dataset=dataset, model=str(model), precision="fp32", **options)
    with engine:
        engine.load_samples(indices)
        engine.submit(indices, indices, sink)
    return [sink.outputs[index] for index in indices]


def write_record(suite: Path, readme: str, record: Mapping[str, Any], **more: Any) -> None:
    """Write training.json and README.md into the suite's folder, and print the former.

    Args:
        suite: The folder.
        readme: README.md, to be formatted with `record`, `more` and `made_with`.
        record: What was trained, how, and what it scores; "libraries" with their versions.
        **more: What only the README tells.
    """
    text = json.dumps(record, indent=2) + "\n"
    (suite / "training.json").write_text(text, encoding="utf-8")
    made_with = ", ".join(f"{name} {found}" for name, found in record["libraries"].items())
    (suite / "README.md").write_text(
        readme.format(**record, **more, made_with=made_with), encoding="utf-8"
    )
    print(text, end="")
