"""Checkpoints whose weights are quantised already: which can be loaded, and what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.engines.files import broken

TORCHAO = "torchao"
COMPRESSED = "compressed-tensors"

LIBRARIES = {TORCHAO: "torchao", COMPRESSED: "compressed_tensors"}
"""Formats that transformers loads from safetensors files, and the module that each needs."""

EXTRAS = {
    TORCHAO: "pip install 'pytest-mlperf[quantization]'",
    COMPRESSED: "pip install 'pytest-mlperf[compressed]'",
}

HOW = {
    TORCHAO: "by the checkpoint, run as such",
    COMPRESSED: "by the checkpoint, run in its own type with inputs rounded alike: right in its "
    "answers, and no faster",
}
"""transformers has no kernels for compressed tensors: it expands them when they are loaded."""

OF_TORCHAO = {"Int8": "int8", "Int4": "int4", "Float8": "fp8", "MX": "mx", "NVFP4": "nvfp4"}
"""How the names of torchao's configurations begin, and the precision of their weights."""


def method_of(config: Any) -> str | None:
    """Return the format of a configuration's quantised weights; None: they are plain."""
    found = quantization_of(config)
    return str(found.get("quant_method", "unknown")) if found else None


def quantization_of(config: Any) -> Mapping[str, Any]:
    """Return what config.json says of quantised weights; empty for plain ones."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        return {}
    plain = found if isinstance(found, dict) else found.to_dict()
    return dict(plain)


def check_quantised(folder: Path, quantization: Mapping[str, Any], precision: str) -> None:
    """Refuse quantised weights that cannot be loaded, or that are of another precision.

    Args:
        folder: Where they are.
        quantization: What config.json says of them; empty for plain ones.
        precision: What the suite says.

    Raises:
        EnvironmentFault: The library of their format is not installed.
        RunError: Their format is another one, or their precision.
    """
    import importlib.util

    if not quantization:
        return
    method = str(quantization.get("quant_method", "unknown"))
    if method not in LIBRARIES:
        raise broken(
            folder,
            f"the weights are quantised in the format {method!r}; this engine takes plain weights, "
            f"{' and '.join(LIBRARIES)}",
        )
    found = sorted(set(precisions_of(quantization)))
    if found != [precision]:
        said = " and ".join(found) or "an unknown precision"
        advice = f'; write precision = "{found[0]}"' if len(found) == 1 else ""
        raise broken(
            folder, f'config.json says {said} weights, and the suite "{precision}"{advice}'
        )
    library = LIBRARIES[method]
    if importlib.util.find_spec(library) is None:
        raise EnvironmentFault(
            f"engine torch: {folder} is a checkpoint of {method}, which needs {library}, which is "
            f"not installed; try: {EXTRAS[method]}"
        )


def precisions_of(quantization: Mapping[str, Any]) -> Iterator[str]:
    """Yield the precision of each group of weights, as config.json tells it."""
    if quantization.get("quant_method") == TORCHAO:
        yield from map(_of_torchao, _configurations(quantization.get("quant_type")))
    for group in (quantization.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        letters = {"int": "int", "float": "fp"}.get(str(weights.get("type")), "unknown ")
        yield f"{letters}{weights.get('num_bits')}"


def quantised_facts(method: str, model: Any) -> dict[str, str]:
    """Return what the fingerprint says of a model whose weights came quantised.

    Returns:
        The format's library with its version; "quantisation": how it runs; "quantised": how many of
        the matrices of linear layers are.
    """
    from importlib.metadata import version

    import torch
    from torch import nn

    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    small = sum(
        hasattr(layer, "weight_scale")  # packed weights have other names
        or type(layer.weight) not in (torch.Tensor, nn.Parameter)
        for layer in linear
    )
    return {
        LIBRARIES[method]: version(method),
        "quantisation": HOW[method],
        "quantised": f"{small} of {len(linear)} matrices",
    }


def _configurations(found: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every configuration of weights in what torchao wrote, however deep inside."""
    if isinstance(found, Mapping):
        if str(found.get("_type", "")).endswith("Config") and found["_type"] != "FqnToConfig":
            yield found
            return
        for inner in found.values():
            yield from _configurations(inner)


def _of_torchao(configuration: Mapping[str, Any]) -> str:
    name = str(configuration["_type"])
    if name.startswith("Intx"):
        dtype = (configuration.get("_data") or {}).get("weight_dtype") or {}
        return str(dtype.get("_data", dtype) if isinstance(dtype, Mapping) else dtype).rpartition(
            "."
        )[2]
    return next((p for start, p in OF_TORCHAO.items() if name.startswith(start)), name)
