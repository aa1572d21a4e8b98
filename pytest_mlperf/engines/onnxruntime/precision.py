"""Whether a model is of the precision that the suite says: by its operators, weights and inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.onnxruntime.contents import Contents, Node, read
from pytest_mlperf.engines.onnxruntime.providers import TENSORRT, Providers
from pytest_mlperf.engines.tasks import PRECISIONS
from pytest_mlperf.engines.tasks.graph import Graph, check_inputs

BESIDE: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"fp16", "bf16"}),
    "int8": frozenset({"fp16", "bf16"}),
    "int4": frozenset({"fp16", "bf16", "int8", "fp8"}),
}
"""What else may be computed in, where the narrowest is the precision's name."""

FLOATS = {1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16"}
"""Types of weights that are not quantised, as ONNX numbers them."""

INT32 = 6

QUANTISED = {
    **dict.fromkeys((2, 3), "int8"),
    **dict.fromkeys((4, 5), "int16"),
    **dict.fromkeys((17, 18, 19, 20), "fp8"),
    **dict.fromkeys((21, 22), "int4"),
    23: "fp4",
    **dict.fromkeys((25, 26), "int2"),
}
"""Types of quantised numbers, with and without sign; zero points have the type of the numbers."""

BITS = {"MatMulNBits": "bits", "GatherBlockQuantized": "bits", "QMoE": "expert_weight_bits"}
"""Operators of onnxruntime with weights of some bits, and the attribute that says how many."""

ALWAYS = (
    (re.compile("MatMulBnb4|MatMulFpQ4"), "int4"),
    (re.compile("GemmFloat8"), "fp8"),
    (re.compile("MatMulInteger16"), "int16"),
    (
        re.compile(
            "(QLinear|QOrdered|DynamicQuantize|ConvInteger|MatMulInteger).*"
            "|QAttention|QGemm|QEmbedLayerNormalization|(Dequantize|Quantize)WithOrder"
        ),
        "int8",
    ),
)
"""Operators that are quantised in one way, by their whole name; the first that fits counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """What a file computes with.

    Attributes:
        quantised: How often there is each operator, by the type of its quantised numbers.
        weights: Type of most other weights; None where there are none.
    """

    quantised: Mapping[str, Counter[str]]
    weights: str | None

    @classmethod
    def of(cls, contents: Contents) -> Self:
        """Look at every operator."""
        quantised: dict[str, Counter[str]] = {}
        for node in contents.nodes:
            kind = _kind(node, contents.types)
            if kind is not None:
                quantised.setdefault(kind, Counter())[node.kind] += 1
        floats = Counter({name: contents.elements[kind] for kind, name in FLOATS.items()})
        ((most, count),) = floats.most_common(1)
        return cls(quantised=quantised, weights=most if count else None)

    def __str__(self) -> str:
        """Say what there is, e.g. "int8 operators (2 MatMulInteger)"."""
        parts = [
            f"{kind} operators ({', '.join(f'{n} {name}' for name, n in sorted(names.items()))})"
            for kind, names in sorted(self.quantised.items())
        ]
        if parts:
            return " and ".join(parts)
        return f"{self.weights or 'no'} weights and no quantised operators"


def check_word(precision: str, providers: Providers) -> None:
    """Refuse a word that means nothing, and one that the providers' options contradict.

    Raises:
        SuiteError: Says which.
    """
    if precision not in PRECISIONS:
        raise SuiteError(
            f"engine onnxruntime: precision = {precision!r} is not one of {', '.join(PRECISIONS)}"
        )
    other = providers.computes - BESIDE.get(precision, frozenset()) - {precision}
    if other:
        name = min(other)
        raise SuiteError(
            f"engine onnxruntime: precision = {precision!r}, but provider_options has "
            f"trt_{name}_enable, which lets {TENSORRT} compute in {name}; correct one of the two"
        )


def check_model(
    path: Path, graph: Graph, precision: str, providers: Providers
) -> Mapping[str, str]:
    """Refuse a model of another precision; return what belongs to the fingerprint.

    A file in onnxruntime's own format (.ort), and one whose graph a provider has compiled, do not
    show what they hold: of these only the types of the inputs are checked.

    Args:
        path: The model's file.
        graph: The model as it is loaded.
        precision: What the suite says.
        providers: Where it runs: what TensorRT is told to compute in need not be in the file.

    Returns:
        "quantised": the quantised operators; nothing for a model without.

    Raises:
        RunError: Says what the file holds, or which input is wrong.
    """
    try:
        contents = read(path)
    except (ValueError, OSError) as error:
        raise graph.refuse(f"cannot be read to see what it holds: {error}") from error
    if contents is None or any(node.kind == "EPContext" for node in contents.nodes):
        check_inputs(graph, precision)
        return {}
    kinds = Kinds.of(contents)
    by_provider = precision in providers.computes
    if not _fits(kinds, precision, by_provider=by_provider):
        raise graph.refuse(
            f"precision is {precision!r}, but the file holds {kinds}; correct precision or the "
            "model"
        )
    # Weights in half precision may have inputs in single precision, which are cast.
    check_inputs(graph, None if by_provider or kinds.weights == precision != "fp32" else precision)
    return {"quantised": str(kinds)} if kinds.quantised else {}


def _fits(kinds: Kinds, precision: str, *, by_provider: bool) -> bool:
    quantised = set(kinds.quantised)
    if precision in BESIDE:
        return quantised <= {precision, *BESIDE[precision]} and (
            precision in quantised or by_provider
        )
    if quantised:
        return False
    if precision == "bf16":
        return kinds.weights == "bf16" or by_provider
    # Of a model without weights, and of one of fp16 whose weights are few, the inputs decide.
    return by_provider or precision == "fp16" or kinds.weights in {precision, None}


def _kind(node: Node, types: Mapping[str, int]) -> str | None:
    """Return the type of the quantised numbers that an operator works on; None for others."""
    if node.kind in {"QuantizeLinear", "DequantizeLinear"}:
        given = [types.get(name) for name in node.inputs]
        zero = given[2] if len(given) > 2 else None
        if node.kind == "QuantizeLinear":
            return QUANTISED.get(zero or node.attributes.get("output_dtype") or 2)
        # Sums are kept in 32 bits, beside products of fewer.
        return QUANTISED.get(given[0] or zero or INT32)
    if node.kind in BITS:
        return f"int{node.attributes.get(BITS[node.kind], 4)}"
    return next((kind for name, kind in ALWAYS if name.fullmatch(node.kind)), None)
