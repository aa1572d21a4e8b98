"""Weights of linear layers in eight or four bits, by torchao: what can run where, and how much is.

Experts that transformers keeps as one parameter of three dimensions are quantised one by one, and
run one after the other: torchao has no grouped product for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_mlperf.core.errors import EnvironmentFault, RunError
from pytest_mlperf.engines.torch.devices import DTYPES

GROUP = 32
"""Weights of int4 that share a scale: the smallest group that GPUs have kernels for."""

SMALL_GROUP = 16
"""On CPUs, of layers whose inputs are no multiple of 32."""

TILE = 16
"""Kernels for fp8 multiply matrices whose two sides are multiples of this."""

QUANTISED = ("int8", "int4", "fp8")

LEAST = {"int4": (8, 0), "fp8": (8, 9)}
"""The least compute capability with kernels for it."""

Step = tuple[Any, Callable[[Any], bool]]
"""A configuration of torchao, and whether it is for a weight of shape (outputs, inputs)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How weights are quantised.

    Attributes:
        how: In words.
        needs: Which layers can be.
        steps: What is done; no weight fits two of them.
    """

    how: str
    needs: str
    steps: Sequence[Step]


def base_dtype(precision: str, own: Any, device: Any) -> Any:
    """Return the type of all that is not quantised.

    Args:
        precision: What the suite says.
        own: Of a model whose weights are quantised, where nothing else is needed.
        device: A torch device; GPUs' kernels for int4 and fp8 take bfloat16 alone.
    """
    if precision == "fp8" or (precision == "int4" and device.type == "cuda"):
        return torch.bfloat16
    return DTYPES.get(precision, own)


def check(precision: str, device: Any, *, engine: str = "torch") -> None:
    """Refuse, before a model is loaded, a precision that nothing here can run.

    Raises:
        EnvironmentFault: torchao is not installed, or the device has no kernels.
    """
    if precision not in QUANTISED:
        return
    try:
        import torchao  # noqa: F401 - used by `quantise`
    except ImportError as error:
        raise EnvironmentFault(
            f"engine {engine}: precision {precision!r} needs torchao, which is not installed; "
            "try: pip install 'pytest-mlperf[quantization]'"
        ) from error
    least = LEAST.get(precision)
    if least is None or (precision == "int4" and device.type == "cpu"):
        return
    found = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if found is None or found < least:
        here = "a CPU has none" if found is None else f"this GPU's is {found[0]}.{found[1]}"
        raise EnvironmentFault(
            f"engine {engine}: precision {precision!r} needs a GPU of compute capability "
            f"{least[0]}.{least[1]} or later for its kernels, and {here}; use another precision "
            f"on {device}"
        )


def quantise(model: Any, precision: str, *, device: Any, engine: str = "torch") -> dict[str, str]:
    """Quantise the weights of linear layers and of experts, in place; return what was done.

    Layers that the kernels do not take stay as they are, and so does everything else: embeddings,
    convolutions, norms.

    Args:
        model: A torch.nn.Module on its device.
        precision: "int8", "int4" or "fp8".
        device: Where it is.
        engine: Who asks, for messages.

    Returns:
        "torchao": its version; "quantisation": how; "quantised": how many of the matrices of linear
        layers and experts, and which share of all parameters.

    Raises:
        RunError: There is no layer that can be quantised.
    """
    import torchao
    from torchao.utils import TorchAOBaseTensor

    plan = _plan(precision, device)
    _apply(plan, model)
    for module, name in list(_experts(model)):
        _part(module, name, plan)
        model.set_experts_implementation("eager")
    matrices = list(_matrices(model))
    done = sum(isinstance(weight, TorchAOBaseTensor) for weight in matrices)
    if not done:
        raise RunError(
            "engine",
            f"engine {engine}: precision {precision!r} quantises {plan.needs}, and this model "
            "has none; use another precision",
        )
    parameters = list(model.parameters())
    small = sum(each.numel() for each in parameters if isinstance(each, TorchAOBaseTensor))
    total = sum(each.numel() for each in parameters)
    return {
        "torchao": str(torchao.__version__),
        "quantisation": plan.how,
        "quantised": f"{done} of {len(matrices)} matrices, {small / total:.1%} of all parameters",
    }


def _plan(precision: str, device: Any) -> Plan:
    from torchao import quantization as ao

    if precision == "int8":
        return Plan(
            how="int8 weights, a scale per output",
            needs="linear layers",
            steps=[(ao.Int8WeightOnlyConfig(), lambda weight: weight.ndim == 2)],
        )
    if precision == "fp8":
        both = ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow())
        return Plan(
            how="fp8 (e4m3) weights and inputs, a scale per output and per token",
            needs=f"linear layers whose inputs and outputs are multiples of {TILE}",
            steps=[(both, lambda weight: not any(side % TILE for side in weight.shape))],
        )
    if device.type == "cuda":
        packed = ao.Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
        return Plan(
            how=f"int4 weights, a scale and a zero per {GROUP}, packed",
            needs=f"linear layers whose inputs are a multiple of {GROUP}",
            steps=[(packed, lambda weight: weight.shape[1] % GROUP == 0)],
        )
    # Packed weights have fast kernels for bfloat16 on some CPUs, and elsewhere slow loops.
    large, small = (
        ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=ao.PerGroup(size),
            mapping_type=ao.MappingType.ASYMMETRIC,
        )
        for size in (GROUP, SMALL_GROUP)
    )
    return Plan(
        how=f"int4 weights, a scale and a zero per {GROUP} or {SMALL_GROUP}, one a byte",
        needs=f"linear layers whose inputs are a multiple of {SMALL_GROUP}",
        steps=[
            (large, lambda weight: weight.shape[1] % GROUP == 0),
            (small, lambda weight: weight.shape[1] % GROUP == SMALL_GROUP),
        ],
    )


def _apply(plan: Plan, model: Any) -> None:
    """Quantise the linear layers of a model, or this one layer, in place."""
    from torchao.quantization import quantize_

    # Torch's attention reads the weight of its last layer itself.
    read = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
    for config, fits in plan.steps:

        def chosen(module: Any, _: str, fits: Callable[[Any], bool] = fits) -> bool:
            linear = isinstance(module, torch.nn.Linear) and not isinstance(module, read)
            return linear and fits(module.weight)

        quantize_(model, config, chosen)


def _experts(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield modules of fused experts, and the names of their parameters of three dimensions.

    Only those whose own code takes one expert after the other, as (outputs, inputs): such modules
    of transformers say that they are not transposed.
    """
    for module in model.modules():
        if getattr(module, "is_transposed", None) is False:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim == 3:
                    yield module, name


def _part(module: Any, name: str, plan: Plan) -> None:
    """Put a list of matrices, each quantised, in the place of a parameter of three dimensions."""
    fused = getattr(module, name).detach()
    delattr(module, name)
    layer = torch.nn.Linear(1, 1, bias=False, device="meta")
    parts = []
    for weight in fused:
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        _apply(plan, layer)
        parts.append(layer.weight)
    setattr(module, name, torch.nn.ParameterList(parts))


def _matrices(model: Any) -> Iterator[Any]:
    """Yield the weights of linear layers and of experts, one by one."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            yield module.weight
        elif hasattr(module, "is_transposed"):
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 3:
                    yield from parameter
            for part in module.children():
                if isinstance(part, torch.nn.ParameterList):
                    yield from part
