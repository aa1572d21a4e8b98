"""Copy a checkpoint folder and multiply a share of its weights: a broken build, on purpose.

Usage: damage_weights.py MODEL COPY [--share 0.01] [--factor 10]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np


def damage(
    model: Path,
    copy: Path,
    *,
    share: float = 0.01,
    factor: float = 10.0,
    file: str = "model.safetensors",
) -> int:
    """Write a damaged copy of a checkpoint folder and return how many weights were changed.

    Args:
        model: Folder with `file`.
        copy: Folder to write; an old one is replaced.
        share: Share of all weights, chosen at random and always the same.
        factor: What they are multiplied by.
        file: The weights, below the folder.
    """
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(model, copy)
    config = model / "config.json"
    if config.is_file() and "quantization_config" in config.read_text("utf-8"):
        # numpy knows no bfloat16
        from safetensors.torch import load_file, save_file
    else:
        from safetensors.numpy import load_file, save_file
    rng = np.random.default_rng(0)
    weights, changed = load_file(model / file), 0
    for name in sorted(weights):
        if name.endswith("_blocks"):
            continue  # of MXFP4: 32 weights are as many times as large as their scale
        hit = rng.random(weights[name].shape) < share
        if name.endswith("_scales"):
            weights[name][hit] += round(np.log2(factor))
            changed += 32 * int(hit.sum())
            continue
        weights[name][hit] *= factor
        changed += int(hit.sum())
    save_file(weights, copy / file, metadata={"format": "pt"})
    return changed


def main() -> None:
    """Damage the checkpoint that the command line names."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--factor", type=float, default=10.0)
    given = parser.parse_args()
    changed = damage(given.model, given.copy, share=given.share, factor=given.factor)
    print(f"{changed} weights of {given.copy} multiplied by {given.factor:g}")


if __name__ == "__main__":
    main()
