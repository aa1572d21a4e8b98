"""Copy an ONNX model and multiply a share of its weights: a broken build, on purpose.

Usage: damage_onnx.py MODEL COPY [--share 0.01] [--factor 10]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LEARNT = frozenset({"Conv", "ConvTranspose", "Gather", "Gemm", "MatMul"})
"""Nodes whose constant floating-point inputs were learnt; those of others are limits and shapes."""


def damage(model: Path, copy: Path, *, share: float = 0.01, factor: float = 10.0) -> int:
    """Write a damaged copy of an ONNX file and return how many weights were changed.

    Args:
        model: The file; it holds its weights itself.
        copy: File to write; an old one is replaced.
        share: Share of all weights, chosen at random and always the same.
        factor: What they are multiplied by.
    """
    rng = np.random.default_rng(0)
    damaged, changed = onnx.load(model), 0
    learnt = {name for node in damaged.graph.node if node.op_type in LEARNT for name in node.input}
    for tensor in sorted(damaged.graph.initializer, key=lambda each: str(each.name)):
        weights = numpy_helper.to_array(tensor)
        if tensor.name not in learnt or weights.dtype.kind != "f":
            continue
        hit = rng.random(weights.shape) < share
        broken = np.where(hit, weights * factor, weights).astype(weights.dtype)
        tensor.CopyFrom(numpy_helper.from_array(broken, tensor.name))
        changed += int(hit.sum())
    onnx.save(damaged, copy)
    return changed


def main() -> None:
    """Damage the model that the command line names."""
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
