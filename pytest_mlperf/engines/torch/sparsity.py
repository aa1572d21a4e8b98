"""2:4 sparsity of linear layers: checked in the weights, and used where a GPU has kernels for it.

Of each four weights along a layer's inputs at least two are zero. GPUs of compute capability 8.0
and later multiply such matrices at up to twice the rate of dense ones, and keep only the other two
and their places: 9/16 of the size in 16 bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.engines.files import broken, one_line
from pytest_mlperf.engines.torch.devices import dtype_name

GROUP, KEPT = 4, 2
CAPABILITY = (8, 0)
"""The least compute capability with kernels for it (Ampere)."""
KERNEL_TYPES = (torch.float16, torch.bfloat16)


def make_sparse(model: Any, folder: Path, *, device: Any) -> Mapping[str, str]:
    """Check a model that is on the CPU, bring it to the device, and return the facts.

    Where the device has kernels for it, the layers go there one by one, each compressed before the
    next: the dense model need not fit.

    Args:
        model: A causal language model on the CPU; changed in place.
        folder: Where it came from, for messages.
        device: A torch device.

    Returns:
        "sparsity" says which kernels run, "zeros" the share of zeros in the layers checked.

    Raises:
        RunError: A layer is not 2:4 sparse, or the model has matrices that are no linear layers.
        EnvironmentFault: The device's kernels refuse the weights.
    """
    layers = dict(sparse_layers(model, folder))
    facts = {"zeros": check_layers(layers, folder)}
    lacking = no_kernels(device, model.dtype)
    if lacking is not None:
        model.to(device)
        return facts | {"sparsity": f"2:4, dense kernels: {lacking}"}
    compress(model, layers, device=device)
    found = torch.backends.cusparselt.version()
    return facts | {"sparsity": "2:4, semi-structured kernels", "cusparselt": str(found)}


def sparse_layers(model: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the linear layers with their names: all but the one that scores the vocabulary.

    Raises:
        RunError: There are none, or a matrix is outside of them, where nobody would check it.
    """
    head = model.get_output_embeddings()
    known = {id(head.weight)} if head is not None else set()
    found = False
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Embedding | torch.nn.Linear):
            known.add(id(layer.weight))
        if isinstance(layer, torch.nn.Linear) and layer is not head:
            found = True
            yield name, layer
    outside = [
        name
        for name, weights in model.named_parameters()
        if weights.ndim > 1 and id(weights) not in known
    ]
    if outside or not found:
        what = f"{outside[0]} belongs to none" if outside else "this model has none"
        raise broken(folder, f'sparsity = "2:4" is for models of linear layers, and {what}')


def check_layers(layers: Mapping[str, Any], folder: Path) -> str:
    """Return the share of zeros, e.g. "50.00% of the weights of 28 linear layers".

    Args:
        layers: Linear layers by name; each weight has shape (outputs, inputs).
        folder: For messages.

    Raises:
        RunError: A layer is not 2:4 sparse; names the first one, and the place.
    """
    zeros = total = 0
    for name, layer in layers.items():
        weights = layer.weight.detach()
        if weights.shape[1] % GROUP:
            raise broken(
                folder,
                f"{name} has {weights.shape[1]} inputs, which are no groups of four: it cannot be "
                '2:4 sparse; leave sparsity = "2:4" out',
            )
        filled = weights != 0
        dense = filled.unflatten(1, (-1, GROUP)).sum(dim=2, dtype=torch.uint8) > KEPT
        if bool(dense.any()):
            row, group = dense.nonzero()[0].tolist()
            raise broken(
                folder,
                f"{name} is not 2:4 sparse: {int(dense.sum())} of its {dense.numel()} groups of "
                f"four have more than two non-zero weights, the first at output {row}, inputs "
                f"{GROUP * group} to {GROUP * group + GROUP - 1}; prune the model to 2:4, or leave "
                'sparsity = "2:4" out',
            )
        zeros += filled.numel() - int(filled.sum())
        total += filled.numel()
    return f"{zeros / total:.2%} of the weights of {len(layers)} linear layers"


def no_kernels(device: Any, dtype: Any) -> str | None:
    """Return why this device runs dense kernels for these weights, or None where it need not."""
    if device.type == "cpu":
        return "a CPU has none for it"
    if dtype not in KERNEL_TYPES:
        return f"there are none for {dtype_name(dtype)}; fp16 and bf16 have them"
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        return f"compute capability {'.'.join(map(str, capability))} has none, 8.0 and later have"
    return None


def compress(model: Any, layers: Mapping[str, Any], *, device: Any) -> None:
    """Bring a model to a GPU with these layers compressed, in place.

    Args:
        model: On the CPU.
        layers: Its linear layers to compress, by name; they are 2:4 sparse.
        device: A GPU that has kernels for them.

    Raises:
        EnvironmentFault: torch refuses a layer: its shape, or the libraries or the device.
    """
    weights = {name: layer.weight.detach() for name, layer in layers.items()}
    for layer in layers.values():
        layer.weight = None
    model.to(device)
    for name, layer in layers.items():
        try:
            small = _compressed(weights.pop(name).to(device))
        # What it raises depends on the library that refuses; its text says why.
        except (RuntimeError, NotImplementedError) as error:
            raise EnvironmentFault(
                f'engine torch: sparsity = "2:4", but torch {torch.__version__} cannot compress '
                f"{name} on {device}: {one_line(error)}"
            ) from error
        layer.weight = torch.nn.Parameter(small, requires_grad=False)


def _compressed(weights: Any) -> Any:
    with warnings.catch_warnings():
        # That torch may change this interface is no news for a suite.
        warnings.filterwarnings("ignore", "The PyTorch API of SparseSemiStructuredTensor is in")
        return torch.sparse.to_sparse_semi_structured(weights.contiguous())
