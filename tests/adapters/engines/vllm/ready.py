"""Tiny twins as vLLM itself can load them: the same functions in shapes that it has kernels for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.suites.tiny_twin import TINY

COPIES = 4
"""Of a Whisper's state: heads of 20 become heads of 80, for which vLLM's CPU attention exists."""


def whisper(folder: Path) -> Path:
    """Write the tiny Whisper with a state of `COPIES` copies of itself, which says the same.

    Mean and variance of copies are those of one, so layers are normalised alike; what reads the
    state reads the first copy, what writes it writes all; heads get zeros, and queries the root of
    what their size takes from the scores. Scores of tokens are `COPIES` times as large.
    """
    return _written("whisper", folder, _widened, {"d_model": lambda size: size * COPIES})


def _widened(weights: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    heads = config["encoder_attention_heads"]

    def read(weight: Any) -> Any:
        return torch.cat([weight, *[torch.zeros_like(weight)] * (COPIES - 1)], 1)

    def headed(weight: Any) -> Any:
        """Return what makes queries, keys or values, with zeros after those of each head."""
        heads_of_weight = weight.reshape(heads, -1, *weight.shape[1:])
        padded = torch.cat(
            [heads_of_weight, *[torch.zeros_like(heads_of_weight)] * (COPIES - 1)], 1
        )
        return padded.reshape(-1, *weight.shape[1:])

    def wide(name: str, weight: Any) -> Any:
        kind = name.rsplit(".", 2)[-2]
        if kind in {"q_proj", "k_proj", "v_proj"}:
            made = headed(read(weight) if weight.dim() == 2 else weight)
            return made * COPIES**0.5 if kind == "q_proj" else made
        if kind == "out_proj" and weight.dim() == 2:
            weight = headed(weight.T).T
        elif kind == "conv2" and weight.dim() == 3:
            weight = read(weight)
        elif kind == "fc1":
            return read(weight) if weight.dim() == 2 else weight
        elif kind.startswith("embed_") or kind == "proj_out":
            return torch.cat([weight] * COPIES, 1)
        return torch.cat([weight] * COPIES)

    return {name: wide(name, weight) for name, weight in weights.items()}


def qwen3_vl(folder: Path) -> Path:
    """Write the tiny Qwen3-VL as its large one is: experts transposed, and its routing spelled."""
    routed = {"text_config": lambda config: config | {"norm_topk_prob": True}}
    return _written("qwen3-vl", folder, _transposed, routed)


def _transposed(weights: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: weight.transpose(1, 2) if ".experts." in name else weight
        for name, weight in weights.items()
    }


def _written(
    name: str,
    folder: Path,
    make: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]],
    changes: Mapping[str, Callable[[Any], Any]],
) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY / name / "model", folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    made = make(load_file(folder / "model.safetensors"), config)
    save_file(
        {key: weight.contiguous() for key, weight in made.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    config |= {key: change(config[key]) for key, change in changes.items()}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


READY: Mapping[str, Callable[[Path], Path]] = {"whisper": whisper, "qwen3-vl": qwen3_vl}
