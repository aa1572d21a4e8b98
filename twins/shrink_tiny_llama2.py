"""Make the open division's two models of the trained tiny Llama: a 2:4 sparse and a pruned one.

    python twins/shrink_tiny_llama2.py                 # train, or resume, then write everything
    python twins/shrink_tiny_llama2.py --only sparse   # train that one up to its checkpoint

Needs the model that twins/train_tiny_llama2.py wrote. Everything is seeded and runs on one thread,
so the same library versions on the same kind of CPU give the same files. A checkpoint is written
about once a minute; a run that was interrupted resumes there and ends in the same model. With other
settings it starts over.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from tiny_language import (
    END,
    LIBRARIES,
    PAD,
    ROUGES,
    Batch,
    Plan,
    Row,
    pad,
    predict,
    rouge,
    tokens_of,
    train_causal,
)
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from train_tiny_llama2 import BATCH, MODEL, POOL, draw_held_out, draw_pool, generate
from training import (
    BUILD,
    ROOT,
    be_deterministic,
    made_with,
    parameters,
    sha256,
    source,
    write,
    write_folder,
)
from training import write_record as write_files
from transformers import LlamaForCausalLM

SUITE = ROOT / "suites" / "open" / "tiny-llama2-70b"
COPIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
SEED = 20261122
KEPT_LAYERS, KEPT_CHANNELS = 3, 256
"""What is left of the dense model's 4 layers and of the 384 channels of each MLP."""
GATE = 0.99

README = """\
# Tiny Llama in the open division

Two models made of the tiny twin of Llama 2 70B (`suites/tiny/llama2-70b`) in ways that MLPerf's
open division allows and the closed one does not. The figures are these models' own, on the tiny
twin's data: they are no MLPerf result and say nothing about Llama 2.

- `sparse/`: of each four weights along the inputs of every linear layer of attention and MLP the
  two largest stayed and the others are zero
  ({sparse[zeros_in_linear_layers]:,} of {sparse[in_linear_layers]:,}); it was then trained on with
  the zeros held. Embeddings and head are dense. Such zeros make GPUs with kernels for them faster;
  a CPU has none, so here it runs as fast as the dense model.
- `pruned/`: the layer without which the loss rises least is gone, {pruned[layers]} of 4 are left.
  In each of their MLPs the {pruned[intermediate]} of 384 channels that move its output most
  stayed, and all heads did. It was then trained on the dense model's probabilities (weight
  {pruned[distilled]:g}) and on the answers (the rest).
  {pruned[parameters_of_dense]:.1%} of the dense model's parameters are left.

| on the {held_out_samples} held-out samples | parameters | ROUGE-1 | ROUGE-2 | ROUGE-L | of the \
dense model's, gate 99 % | tokens per sample |
|---|---|---|---|---|---|---|
| dense | {dense[parameters]:,} | {dense[rouge1]:.4f} | {dense[rouge2]:.4f} | {dense[rougeL]:.4f} \
| | {dense[tokens_per_sample_with_end]:.4f} |
{rows}
| chance: another sample's answer, same task | | {chance_same_task[rouge1]:.4f} | \
{chance_same_task[rouge2]:.4f} | {chance_same_task[rougeL]:.4f} | | |
| chance: another sample's answer, any task | | {chance[rouge1]:.4f} | {chance[rouge2]:.4f} | \
{chance[rougeL]:.4f} | | |

Greedy decoding, fp32, at most 128 new tokens; scores are means of the F-measures of `rouge_score`
with stemming, on the scale 0 to 100. Tokens are counted with the end token. The share is that of
the metric that lost most.

All 512 samples in turns on one thread of a busy CPU, twice: `pruned/` needed 1.59 and 1.75 times
less CPU time than the dense model, `sparse/` 1.09 and 1.15 times less (the kernels are the same).

`training.json` holds the same figures for programs.

| | |
|---|---|
| SHA-256 of the dense model | `{dense[model_sha256]}` |
| SHA-256 of `sparse/model.safetensors` | `{sparse[model_sha256]}` |
| SHA-256 of `pruned/model.safetensors` | `{pruned[model_sha256]}` |
| seed, batch, steps of `sparse`, of `pruned` | {seed}, {batch}, {sparse[steps]}, {pruned[steps]} |
| made with | Python {python}, {made_with} |

## Rerun

    pip install -e '.[train]'
    python twins/shrink_tiny_llama2.py

This takes about 6 and 9 minutes of one thread, resumes after an interruption, and writes every
file of this folder; the tokenizers are the dense model's.
"""


PLANS = tuple(
    Plan(
        seed=SEED,
        name=name,
        title=f"{name}: ",
        steps=steps,
        batch=BATCH,
        pool=POOL,
        checkpoint_steps=20 * POOL,
        peak_learning_rate=2e-3,
        warm_up_steps=24,
        matrices=".layers.",
        settings=[KEPT_LAYERS, KEPT_CHANNELS, source("tiny_instructions.py")],
    )
    for name, steps in (("sparse", 960), ("pruned", 1280))
)
DISTILLED = {"sparse": 0.0, "pruned": 0.9}
"""Weight of the dense model's probabilities in the loss; the answers have the rest."""


def dense() -> LlamaForCausalLM:
    """Return the trained dense model."""
    return LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def sparse_mask(weights: Tensor) -> Tensor:
    """Return 1 for the two largest of each four weights along the inputs, and 0 for the others.

    Args:
        weights: Shape (outputs, inputs).
    """
    groups = weights.abs().unflatten(1, (-1, 4))
    kept = groups.topk(2, dim=2).indices
    return torch.zeros_like(groups).scatter_(2, kept, 1.0).flatten(1)


def matrices(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """Return the weights of all linear layers of attention and MLP by name."""
    return {
        name: weights.detach()
        for name, weights in model.named_parameters()
        if weights.ndim == 2 and ".layers." in name
    }


def apply_masks(model: LlamaForCausalLM, masks: Mapping[str, Tensor]) -> None:
    """Set to 0 what the masks do."""
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)


def pruned(model: LlamaForCausalLM, measured_on: Sequence[Batch]) -> LlamaForCausalLM:
    """Return a copy with KEPT_LAYERS layers and KEPT_CHANNELS channels in each MLP.

    The layers that go are those without which the loss rises least, one after the other. The
    channels that go are those that move the MLP's output least: mean absolute value of the channel
    times the norm of its column of the down projection.

    Args:
        model: The dense model, in evaluation mode.
        measured_on: Batches of training samples.
    """
    small = copy.deepcopy(model)
    while len(small.model.layers) > KEPT_LAYERS:
        without = [without_layer(small, index) for index in range(len(small.model.layers))]
        losses = [mean_loss(each, measured_on) for each in without]
        print(f"loss without each layer: {', '.join(f'{loss:.3f}' for loss in losses)}", flush=True)
        small = without[losses.index(min(losses))]
    for layer, activity in zip(
        small.model.layers, channel_activity(small, measured_on), strict=True
    ):
        mlp = layer.mlp
        importance = activity * mlp.down_proj.weight.norm(dim=0)
        kept = importance.topk(KEPT_CHANNELS).indices.sort().values
        for linear in (mlp.gate_proj, mlp.up_proj):
            linear.weight = nn.Parameter(linear.weight.detach()[kept].clone())
            linear.out_features = KEPT_CHANNELS
        mlp.down_proj.weight = nn.Parameter(mlp.down_proj.weight.detach()[:, kept].clone())
        mlp.down_proj.in_features = mlp.intermediate_size = KEPT_CHANNELS
    small.config.intermediate_size = KEPT_CHANNELS
    return small


def without_layer(model: LlamaForCausalLM, index: int) -> LlamaForCausalLM:
    """Return a copy without one layer."""
    smaller = copy.deepcopy(model)
    del smaller.model.layers[index]
    for place, layer in enumerate(smaller.model.layers):
        layer.self_attn.layer_idx = place
    smaller.config.num_hidden_layers = len(smaller.model.layers)
    return smaller


def mean_loss(model: LlamaForCausalLM, measured_on: Sequence[Batch]) -> float:
    """Return the mean loss of the tokens of these batches' answers."""
    with torch.no_grad():
        losses = [
            each.losses()[each.weights == 1].mean()
            for each in (predict(model, batch) for batch in measured_on)
        ]
    return float(torch.stack(losses).mean())


def channel_activity(model: LlamaForCausalLM, measured_on: Sequence[Batch]) -> list[Tensor]:
    """Return the mean absolute value of each channel of each layer's MLP, of shape (channels,)."""
    found: dict[int, list[Tensor]] = {index: [] for index in range(len(model.model.layers))}
    hooks = []
    for index, layer in enumerate(model.model.layers):

        def keep(_: Any, inputs: tuple[Tensor], index: int = index) -> None:
            found[index].append(inputs[0].abs().mean(dim=(0, 1)))

        hooks.append(layer.mlp.down_proj.register_forward_pre_hook(keep))
    with torch.no_grad():
        for batch in measured_on:
            predict(model, batch)
    for hook in hooks:
        hook.remove()
    return [torch.stack(each).mean(dim=0) for each in found.values()]


def train(plan: Plan, tokenizer: Tokenizer, excluded: set[str], folder: Path) -> LlamaForCausalLM:
    """Shrink the dense model and train it, or go on from the checkpoint in a folder."""
    teacher = dense().eval()
    distilled = DISTILLED[plan.name]
    masks: dict[str, Tensor] = {}

    def draw(random: Random, _: int = 0) -> list[Row]:
        return draw_pool(random, tokenizer, excluded)

    if plan.name == "pruned":
        first = [pad(rows, PAD) for rows in islice(plan.batches(0, draw, tokens_of), POOL)]
        model = pruned(teacher, first)
    else:
        model = dense()
        masks = {name: sparse_mask(weights) for name, weights in matrices(model).items()}
        apply_masks(model, masks)
    return train_causal(
        lambda: model,
        replace(plan, settings=[*plan.settings, distilled, sha256(MODEL / "model.safetensors")]),
        draw,
        filler=PAD,
        checkpoint=folder / f"llama2-70b-{plan.name}.pt",
        loss_of=lambda model, batch: loss_of(model, batch, teacher, distilled),
        after_step=lambda: apply_masks(model, masks),
    )


def loss_of(
    model: LlamaForCausalLM, batch: Batch, teacher: LlamaForCausalLM, distilled: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the mean one of the answers' tokens against what was written.

    Args:
        model: Trained.
        batch: What is predicted.
        teacher: The model whose probabilities count as well.
        distilled: Their weight, from 0 to 1.
    """
    predicted = predict(model, batch)
    losses = written = predicted.losses()
    if distilled:
        with torch.no_grad():
            likely = predict(teacher, batch).logits.log_softmax(dim=1)
        apart = functional.kl_div(
            predicted.logits.log_softmax(dim=1), likely, reduction="none", log_target=True
        ).sum(dim=1)
        losses = (1 - distilled) * written + distilled * apart
    return predicted.means(losses, written)


def write_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the model with the dense one's tokenizer and settings, in Hugging Face's layout."""
    write_folder(folder, model.save_pretrained)
    for name in COPIED:
        write(folder / name, (MODEL / name).read_bytes())


def describe(plan: Plan, folder: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Return shape, training and scores of the model that was written there."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    answers = generate(model, [row.prompt for row in rows])
    texts = [text.strip() for text in tokenizer.decode_batch(answers)]
    found = matrices(model).values()
    in_layers = sum(weights.numel() for weights in found)
    return {
        "steps": plan.steps,
        "peak_learning_rate": plan.peak_learning_rate,
        "distilled": DISTILLED[plan.name],
        "parameters": parameters(model),
        "in_linear_layers": in_layers,
        "zeros_in_linear_layers": in_layers - sum(int(each.count_nonzero()) for each in found),
        "layers": model.config.num_hidden_layers,
        "intermediate": model.config.intermediate_size,
        **rouge([row.text for row in rows], texts),
        "tokens_per_sample": sum(map(len, answers)) / len(answers),
        "ended": sum(tokens[-1] == END for tokens in answers),
        "model_sha256": sha256(folder / "model.safetensors"),
    }


def write_record(models: Mapping[str, dict[str, Any]]) -> None:
    """Write training.json and README.md beside the models, and print the former."""
    trained = json.loads((MODEL.parent / "training.json").read_text("utf-8"))
    dense_one = {
        name: trained[name] for name in ("parameters", *ROUGES, "tokens_per_sample_with_end")
    }
    for each in models.values():
        each["share_of_dense"] = min(round(each[kind] / trained[kind], 4) for kind in ROUGES)
        each["parameters_of_dense"] = round(each["parameters"] / trained["parameters"], 4)
    record = {
        "seed": SEED,
        "batch": BATCH,
        "held_out_samples": trained["held_out_samples"],
        "dense": {**dense_one, "model_sha256": sha256(MODEL / "model.safetensors")},
        "models": models,
        "chance": trained["chance"],
        "chance_same_task": trained["chance_same_task"],
        **made_with(LIBRARIES),
    }
    rows = "\n".join(row(name, each) for name, each in models.items())
    write_files(SUITE, README, record, rows=rows, **models)


def row(name: str, found: Mapping[str, Any]) -> str:
    """Return a model's line of the README's table."""
    scores = " | ".join(f"{found[kind]:.4f}" for kind in ROUGES)
    gate = "met" if found["share_of_dense"] >= GATE else "missed"
    return (
        f"| `{name}/` | {found['parameters']:,} | {scores} | {found['share_of_dense']:.2%}, {gate} "
        f"| {found['tokens_per_sample']:.4f} |"
    )


def main() -> None:
    """Shrink, train, write, and record what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=[plan.name for plan in PLANS])
    parser.add_argument("--checkpoints", type=Path, default=BUILD)
    arguments = parser.parse_args()
    be_deterministic()

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    rows = draw_held_out(tokenizer)
    questions = {row.sample.question for row in rows}
    models = {}
    for plan in PLANS:
        if arguments.only not in {None, plan.name}:
            continue
        model = train(plan, tokenizer, questions, arguments.checkpoints)
        if arguments.only is None:
            write_model(model, SUITE / plan.name)
            models[plan.name] = describe(plan, SUITE / plan.name, rows)
    if arguments.only is None:
        write_record(models)


if __name__ == "__main__":
    main()
