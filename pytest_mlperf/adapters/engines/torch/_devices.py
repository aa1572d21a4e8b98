"""Prepare a torch engine's device and weights: threads, quantisation, 2:4 sparsity.

torchao quantises the weights of linear layers to eight or four bits. Experts that transformers
stores as one three-dimensional parameter are quantised and run one by one, because torchao has no
grouped matrix product.

2:4 sparsity means that at least two of every four weights along a layer's inputs are zero. GPUs of
compute capability 8.0 and later multiply such matrices at up to twice the rate of dense ones. Only
the other two weights and their positions are stored: 9/16 of the size with 16-bit weights.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_mlperf import EnvironmentFault
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.engines import broken, engine_error
from pytest_mlperf.extension import PLAIN_PRECISIONS, text_of

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def find_device(name: str, *, engine: str = "torch") -> Any:
    device = torch.device(name)
    if device.type != "cuda":
        return device
    problem, count = None, torch.cuda.device_count()
    if not torch.cuda.is_available():
        problem = f"torch {torch.__version__} sees no CUDA device: {_no_cuda_reason()}"
    elif (device.index or 0) >= count:
        problem = f"the CUDA devices of this machine are numbered 0 to {count - 1}"
    if problem is not None:
        raise EnvironmentFault(
            f"engine {engine}: device = {name!r}, but {problem}", option="device"
        )
    return torch.device("cuda", device.index or 0)


def _no_cuda_reason() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"it is a build without CUDA (in {sys.executable}); pip uninstall torch, then install "
            "the one for your CUDA by the command of https://pytorch.org/get-started/locally"
        )
    return "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"


def device_name(device: Any) -> str:
    return str(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)


def dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def use_threads(threads: int | None, undo: contextlib.ExitStack) -> str:
    """Set the number of threads for CPU operators until `undo` closes; return it as text."""
    if threads is not None:
        undo.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
    return str(torch.get_num_threads())


@contextlib.contextmanager
def enough_memory(batch_size: int, advice: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise engine_error(
            f"the accelerator ran out of memory with batch_size = {batch_size}; {advice} ({error})"
        ) from error


def release_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


GROUP = 32
"""Weights of int4 that share a scale: the smallest group with GPU kernels."""

SMALL_GROUP = 16
"""Group on CPUs, for layers whose inputs are not a multiple of 32."""

TILE = 16
"""Divisor of both sides of matrices that fp8 kernels multiply."""

MIN_CAPABILITY = {"int4": (8, 0), "fp8": (8, 9)}
Step = tuple[Any, Callable[[Any], bool]]
"""A configuration of torchao, and whether it applies to a weight (outputs, inputs)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantisingPlan:
    """Hold a quantisation: text `how`, text of layers it `needs`, (config, layer filter) steps."""

    how: str
    needs: str
    steps: Sequence[Step]


def base_dtype(precision: str, checkpoint_dtype: Any, device: Any) -> Any:
    """Return the type of layers that are not quantised.

    It is bfloat16 for fp8 and for int4 on GPUs, else the type that the precision names, or that of
    the checkpoint.
    """
    if precision == "fp8" or (precision == "int4" and device.type == "cuda"):
        return torch.bfloat16
    return TORCH_DTYPES.get(precision, checkpoint_dtype)


def require_kernels(precision: str, device: Any, *, engine: str = "torch") -> None:
    if precision in PLAIN_PRECISIONS:
        return
    try:
        import torchao  # noqa: F401 - used by `quantise`
    except ImportError as error:
        who = f"engine {engine}: precision {precision!r}"
        raise not_installed(who, "torchao", "quantization", option="precision") from error
    least = MIN_CAPABILITY.get(precision)
    if least is None or (precision == "int4" and device.type == "cpu"):
        return
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if capability is None or capability < least:
        reason = "a CPU has none"
        if capability is not None:
            reason = f"this GPU's is {capability[0]}.{capability[1]}"
        raise EnvironmentFault(
            f"engine {engine}: precision {precision!r} needs a GPU of compute capability "
            f"{least[0]}.{least[1]} or later for its kernels, but {reason}; use another precision "
            f"on {device}",
            option="precision",
        )


def require_exact_int8(engine: str) -> None:
    """Raise EnvironmentFault if torch's int8 products are wrong on this CPU.

    Without VNNI instructions, oneDNN's 16-bit sums saturate.
    """
    rows = torch.full((32, 64), 127, dtype=torch.int8)
    exact, product = 64 * 127 * 127, int(torch._int_mm(rows, rows.t()).max())
    if product != exact:
        raise EnvironmentFault(
            f"engine {engine}: torch multiplies int8 wrongly on this CPU: 64 products of 127 x 127 "
            f"sum to {product:,}, not to {exact:,}; unset ONEDNN_MAX_CPU_ISA, or use another "
            "precision",
            option="precision",
        )


def quantise(model: Any, precision: str, *, device: Any, engine: str = "torch") -> dict[str, str]:
    """Quantise a model's linear layers and experts in place; return the fingerprint's facts."""
    import torchao
    from torchao.utils import TorchAOBaseTensor

    plan = _plan(precision, device)
    _apply(plan, model)
    for module, name in list(_experts(model)):
        _quantise_experts(module, name, plan)
        model.set_experts_implementation("eager")
    matrices = list(_matrices(model))
    count = sum(isinstance(weight, TorchAOBaseTensor) for weight in matrices)
    if not count:
        raise engine_error(
            f"engine {engine}: precision {precision!r} quantises {plan.needs}, but this model "
            "has none; use another precision",
        )
    parameters = list(model.parameters())
    small = sum(p.numel() for p in parameters if isinstance(p, TorchAOBaseTensor))
    total = sum(p.numel() for p in parameters)
    return {
        "torchao": str(torchao.__version__),
        "quantisation": plan.how,
        "quantised": f"{count} of {len(matrices)} matrices, {small / total:.1%} of all parameters",
    }


def _plan(precision: str, device: Any) -> QuantisingPlan:
    from torchao import quantization as ao

    if precision == "int8":
        return QuantisingPlan(
            how="int8 weights, a scale per output",
            needs="linear layers",
            steps=[(ao.Int8WeightOnlyConfig(), lambda weight: weight.ndim == 2)],
        )
    if precision == "fp8":
        both = ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow())
        return QuantisingPlan(
            how="fp8 (e4m3) weights and inputs, a scale per output and per token",
            needs=f"linear layers whose inputs and outputs are multiples of {TILE}",
            steps=[(both, lambda weight: not any(side % TILE for side in weight.shape))],
        )
    if device.type == "cuda":
        packed = ao.Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
        return QuantisingPlan(
            how=f"int4 weights, a scale and a zero per {GROUP}, packed",
            needs=f"linear layers whose inputs are a multiple of {GROUP}",
            steps=[(packed, lambda weight: weight.shape[1] % GROUP == 0)],
        )
    # Packed weights have fast kernels for bfloat16 on some CPUs, and slow loops on others.
    large, small = (
        ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=ao.PerGroup(size),
            mapping_type=ao.MappingType.ASYMMETRIC,
        )
        for size in (GROUP, SMALL_GROUP)
    )
    return QuantisingPlan(
        how=f"int4 weights, a scale and a zero per {GROUP} or {SMALL_GROUP}, one a byte",
        needs=f"linear layers whose inputs are a multiple of {SMALL_GROUP}",
        steps=[
            (large, lambda weight: weight.shape[1] % GROUP == 0),
            (small, lambda weight: weight.shape[1] % GROUP == SMALL_GROUP),
        ],
    )


def _apply(plan: QuantisingPlan, model: Any) -> None:
    from torchao.quantization import quantize_

    # Torch's attention reads the weight of its last layer itself.
    excluded = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
    for config, fits in plan.steps:

        def chosen(module: Any, _: str, fits: Callable[[Any], bool] = fits) -> bool:
            linear = isinstance(module, torch.nn.Linear) and not isinstance(module, excluded)
            return linear and fits(module.weight)

        quantize_(model, config, chosen)


def _experts(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield each layer of fused experts, unless stored transposed, and its 3D parameter's name."""
    for module in model.modules():
        if getattr(module, "is_transposed", None) is False:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim == 3:
                    yield module, name


def _quantise_experts(module: Any, name: str, plan: QuantisingPlan) -> None:
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


SPARSE_GROUP, SPARSE_KEPT = 4, 2
CAPABILITY = (8, 0)
"""Minimum compute capability with kernels for 2:4 sparse matrices (Ampere)."""
KERNEL_TYPES = (torch.float16, torch.bfloat16)


def make_sparse(model: Any, folder: Path, *, device: Any) -> Mapping[str, str]:
    """Check 2:4 sparsity, move the model, compress it if the device has kernels; return facts."""
    layers = dict(sparse_layers(model, folder))
    facts = {"zeros": check_layers(layers, folder)}
    lacking = no_kernels(device, model.dtype)
    if lacking is not None:
        model.to(device)
        return facts | {"sparsity": f"2:4, dense kernels: {lacking}"}
    compress(model, layers, device=device)
    version = torch.backends.cusparselt.version()
    return facts | {"sparsity": "2:4, semi-structured kernels", "cusparselt": str(version)}


def sparse_layers(model: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, layer) of all linear layers but the output layer, which may be dense."""
    head = model.get_output_embeddings()
    covered = {id(head.weight)} if head is not None else set()
    has_linear = False
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Embedding | torch.nn.Linear):
            covered.add(id(layer.weight))
        if isinstance(layer, torch.nn.Linear) and layer is not head:
            has_linear = True
            yield name, layer
    outside = [
        name
        for name, weights in model.named_parameters()
        if weights.ndim > 1 and id(weights) not in covered
    ]
    if outside or not has_linear:
        problem = f"{outside[0]} is not in one" if outside else "this model has none"
        problem = f'sparsity = "2:4" needs all weights in linear layers, but {problem}'
        raise broken(folder, f'{problem}; leave sparsity = "2:4" out')


def check_layers(layers: Mapping[str, Any], folder: Path) -> str:
    """Return the share of zero weights as text; raise RunError if a layer is not 2:4 sparse."""
    zeros = total = 0
    for name, layer in layers.items():
        weights = layer.weight.detach()
        if weights.shape[1] % SPARSE_GROUP:
            raise broken(
                folder,
                f"{name} has {weights.shape[1]} inputs, which is not a multiple of four, so it "
                'cannot be 2:4 sparse; leave sparsity = "2:4" out',
            )
        filled = weights != 0
        dense = filled.unflatten(1, (-1, SPARSE_GROUP)).sum(dim=2, dtype=torch.uint8) > SPARSE_KEPT
        if bool(dense.any()):
            row, group = dense.nonzero()[0].tolist()
            first = SPARSE_GROUP * group
            raise broken(
                folder,
                f"{name} is not 2:4 sparse: {int(dense.sum())} of its {dense.numel()} groups of "
                f"four have more than two non-zero weights, the first at output {row}, inputs "
                f"{first} to {first + SPARSE_GROUP - 1}; prune the model to 2:4, or leave "
                'sparsity = "2:4" out',
            )
        zeros += filled.numel() - int(filled.sum())
        total += filled.numel()
    return f"{zeros / total:.2%} of the weights of {len(layers)} linear layers"


def no_kernels(device: Any, dtype: Any) -> str | None:
    """Return why this device has no sparse kernels for weights of this type; None if it has."""
    if device.type == "cpu":
        return "a CPU has none for it"
    if dtype not in KERNEL_TYPES:
        return f"there are none for {dtype_name(dtype)}; fp16 and bf16 have them"
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        return f"compute capability {'.'.join(map(str, capability))} has none, 8.0 and later have"
    return None


def compress(model: Any, layers: Mapping[str, Any], *, device: Any) -> None:
    """Move a model from the CPU to a GPU with these 2:4 sparse layers compressed, in place."""
    weights = {name: layer.weight.detach() for name, layer in layers.items()}
    for layer in layers.values():
        layer.weight = None
    model.to(device)
    for name, layer in layers.items():
        try:
            small = _compressed(weights.pop(name).to(device))
        # Its libraries raise different types; the text has the reason.
        except (RuntimeError, NotImplementedError) as error:
            raise EnvironmentFault(
                f'engine torch: sparsity = "2:4", but torch {torch.__version__} cannot compress '
                f"{name} on {device}: {text_of(error)}",
                option="sparsity",
            ) from error
        layer.weight = torch.nn.Parameter(small, requires_grad=False)


def _compressed(weights: Any) -> Any:
    with warnings.catch_warnings():
        # torch warns that this interface may change, which does not matter to a suite.
        warnings.filterwarnings("ignore", "The PyTorch API of SparseSemiStructuredTensor is in")
        return torch.sparse.to_sparse_semi_structured(weights.contiguous())
