"""Run an ONNX model with onnxruntime in batches, on the execution providers in the suite."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Self

from pytest_mlperf import Dataset, SuiteError, UnavailableError
from pytest_mlperf.adapters.engines import count_rule, one_of
from pytest_mlperf.adapters.engines.onnxruntime._session import (
    OPTIMIZATION,
    TENSORRT_PROVIDER,
    OnnxGraph,
    Providers,
    load_library,
    open_graph,
    require_providers,
)
from pytest_mlperf.adapters.engines.tasks import PRECISIONS, TaskEngine, TaskOptions
from pytest_mlperf.adapters.engines.tasks.graph import Graph, check_inputs
from pytest_mlperf.extension import require_options, sha256

FLATBUFFER = b"ORTM"
"""Bytes 4 to 7 of a file in onnxruntime's own format."""


@dataclass(frozen=True, slots=True)
class Node:
    """Hold an operator's type (`kind`), input names, and whole-number attributes."""

    kind: str
    inputs: tuple[str, ...]
    attributes: dict[str, int]


@dataclass(slots=True)
class Contents:
    """Hold the operators and weights of a file, including those of subgraphs and functions.

    Nodes of a subgraph come before the node that contains it. Types are ONNX's type numbers.

    Attributes:
        types: Type of each weight and constant, by name.
        elements: Number of weight elements of each type.
        external: Files that hold weights, relative to the model's folder.
    """

    nodes: list[Node] = field(default_factory=list)
    types: dict[str, int] = field(default_factory=dict)
    elements: Counter[int] = field(default_factory=Counter)
    external: set[str] = field(default_factory=set)

    def add_graph(self, graph: Any) -> None:
        for tensor in graph.initializer:
            self._add_tensor(tensor, tensor.name)
        for sparse in graph.sparse_initializer:
            self._add_tensor(sparse.values, sparse.values.name)
        self.add_nodes(graph.node)

    def add_nodes(self, nodes: Sequence[Any]) -> None:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):  # a constant, named like the node's output
                    self._add_tensor(attribute.t, (*node.output, attribute.t.name)[0])
                if attribute.HasField("g"):
                    self.add_graph(attribute.g)
                for graph in attribute.graphs:
                    self.add_graph(graph)
            numbers = {each.name: each.i for each in node.attribute if each.HasField("i")}
            self.nodes.append(Node(node.op_type, tuple(node.input), numbers))

    def _add_tensor(self, tensor: Any, name: str) -> None:
        self.types[name] = tensor.data_type
        self.elements[tensor.data_type] += prod(tensor.dims)
        self.external.update(e.value for e in tensor.external_data if e.key == "location")


def read(path: Path) -> Contents | None:
    """Return a file's contents, or None for an .ort file; raise ValueError if it cannot be parsed.

    External weight files are not read. Weights in the file are parsed once at load time: 480 MB
    take 0.9 s.
    """
    import onnx

    with path.open("rb") as file:
        if file.read(8)[4:] == FLATBUFFER:
            return None
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    # The error is protobuf's, a dependency of onnx only.
    except Exception as error:
        raise ValueError(f"it is not an ONNX file: {error}") from error
    contents = Contents()
    contents.add_graph(model.graph)
    for function in model.functions:
        contents.add_nodes(function.node)
    return contents


ALLOWED_PRECISIONS: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"fp16", "bf16"}),
    "int8": frozenset({"fp16", "bf16"}),
    "int4": frozenset({"fp16", "bf16", "int8", "fp8"}),
}
"""Further precisions of a model that is named by its narrowest one."""

FLOATS = {1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16"}

INT32 = 6

QUANTISED_TYPES = {
    **dict.fromkeys((2, 3), "int8"),
    **dict.fromkeys((4, 5), "int16"),
    **dict.fromkeys((17, 18, 19, 20), "fp8"),
    **dict.fromkeys((21, 22), "int4"),
    23: "fp4",
    **dict.fromkeys((25, 26), "int2"),
}
"""Quantised types, signed and unsigned, by ONNX's numbers; zero points have them too."""

BITS = {"MatMulNBits": "bits", "GatherBlockQuantized": "bits", "QMoE": "expert_weight_bits"}
"""Operators of onnxruntime with low-bit weights, and the attribute with their bits."""

QUANTISED_OPERATORS = (
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
"""Patterns of the full name of quantised operators; the first that matches counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPrecision:
    """Hold counts of quantised operators by precision and type, and the weights' float type."""

    quantised: Mapping[str, Counter[str]]
    weights: str | None

    @classmethod
    def of(cls, contents: Contents) -> Self:
        quantised: dict[str, Counter[str]] = {}
        for node in contents.nodes:
            kind = _kind(node, contents.types)
            if kind is not None:
                quantised.setdefault(kind, Counter())[node.kind] += 1
        floats = Counter({name: contents.elements[kind] for kind, name in FLOATS.items()})
        ((most, count),) = floats.most_common(1)
        return cls(quantised=quantised, weights=most if count else None)

    def __str__(self) -> str:
        parts = [
            f"{kind} operators ({', '.join(f'{n} {name}' for name, n in sorted(names.items()))})"
            for kind, names in sorted(self.quantised.items())
        ]
        if parts:
            return " and ".join(parts)
        return f"{self.weights or 'no'} weights and no quantised operators"


def check_precision(precision: str, providers: Providers) -> None:
    """Raise SuiteError if a precision is unknown, or if provider options contradict it."""
    require_options("engine onnxruntime", [one_of("precision", precision, PRECISIONS)])
    other = providers.computes - ALLOWED_PRECISIONS.get(precision, frozenset()) - {precision}
    if other:
        name = min(other)
        raise SuiteError(
            f"engine onnxruntime: precision = {precision!r}, but provider_options has "
            f"trt_{name}_enable, which lets {TENSORRT_PROVIDER} compute in {name}; correct "
            "one of the two",
            option="precision",
        )


def check_contents(
    contents: Contents | None, graph: Graph, precision: str, providers: Providers
) -> Mapping[str, str]:
    """Refuse a file of another precision; return its facts for the fingerprint.

    Files in onnxruntime's own format (.ort) and graphs compiled by a provider hide their contents:
    only the types of their inputs are checked.
    """
    if contents is None or any(node.kind == "EPContext" for node in contents.nodes):
        check_inputs(graph, precision)
        return {}
    kinds = ModelPrecision.of(contents)
    by_provider = precision in providers.computes
    if not _fits(kinds, precision, by_provider=by_provider):
        raise graph.refuse(
            f"precision is {precision!r}, but the file holds {kinds}; correct precision or the "
            "model"
        )
    # Weights in half precision may have inputs in single precision, which are cast.
    check_inputs(graph, None if by_provider or kinds.weights == precision != "fp32" else precision)
    return {"quantised": str(kinds)} if kinds.quantised else {}


def _fits(kinds: ModelPrecision, precision: str, *, by_provider: bool) -> bool:
    quantised = set(kinds.quantised)
    if precision in ALLOWED_PRECISIONS:
        return quantised <= {precision, *ALLOWED_PRECISIONS[precision]} and (
            precision in quantised or by_provider
        )
    if quantised:
        return False
    if precision == "bf16":
        return kinds.weights == "bf16" or by_provider
    # Inputs decide for a model without weights, and for one of fp16 with few weights.
    return by_provider or precision == "fp16" or kinds.weights in {precision, None}


def _kind(node: Node, types: Mapping[str, int]) -> str | None:
    if node.kind in {"QuantizeLinear", "DequantizeLinear"}:
        input_types = [types.get(name) for name in node.inputs]
        zero = input_types[2] if len(input_types) > 2 else None
        if node.kind == "QuantizeLinear":
            return QUANTISED_TYPES.get(zero or node.attributes.get("output_dtype") or 2)
        # Sums have 32 bits, products fewer.
        return QUANTISED_TYPES.get(input_types[0] or zero or INT32)
    if node.kind in BITS:
        return f"int{node.attributes.get(BITS[node.kind], 4)}"
    return next((kind for name, kind in QUANTISED_OPERATORS if name.fullmatch(node.kind)), None)


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeOptions(TaskOptions):
    """Options of engine onnxruntime.

    Attributes:
        threads: Number of threads for onnxruntime's CPU operators; 1 makes outputs bitwise
            reproducible.
        providers: Execution providers in order of preference, by onnxruntime's names or "cpu",
            "cuda", "tensorrt", "openvino"; None is the CPU. Operators run on the CPU only if it is
            listed.
        provider_options: Options by provider, under onnxruntime's names.
        engine_cache: Folder for the engines that TensorRT builds; created if missing.
        workers: Number of threads that run queued samples in batches, for Server; 0 runs them
            inside `submit`.
        graph_optimization: "disable", "basic", "extended" or "all".
    """

    threads: int = 1
    providers: Sequence[str] | None = None
    provider_options: Mapping[str, Mapping[str, Any]] | None = None
    engine_cache: str | None = None
    workers: int = 0
    graph_optimization: str = "all"


class OnnxRuntimeEngine(TaskEngine):
    """Answer samples with an ONNX model; the option `task` sets the format of an answer."""

    first_suite: ClassVar[str] = "model, data, accelerator"
    name = "onnxruntime"
    libraries = ("onnxruntime", "onnx")
    options: ClassVar[type] = OnnxRuntimeOptions
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    _graph: OnnxGraph

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        """Keep the options and check that the model exists.

        Args:
            dataset: Each input is an array of the model's input shape without the batch dimension,
                or a dict of such arrays by the names of the model's inputs.
            model: Path of the ONNX file.
            precision: Precision of the file. "int8", "int4" and "fp8": the file has such quantised
                operators. "fp64", "fp32", "bf16" and "fp16": no quantised operators, and most
                weights or the inputs have this type. Or the precision that provider options enable
                in TensorRT, e.g. trt_fp16_enable.
        """
        self._options = chosen = OnnxRuntimeOptions(**options)
        super().__init__(dataset, chosen)
        workers, least = chosen.workers, "a number of threads, or 0 for the submitting thread"
        rules = (
            count_rule("threads", chosen.threads, "threads"),
            ("workers", workers, workers >= 0, least),
            one_of("graph_optimization", chosen.graph_optimization, tuple(OPTIMIZATION)),
        )
        require_options(f"engine {self.name}", rules)
        self._providers = Providers.of(
            chosen.providers, chosen.provider_options, chosen.engine_cache
        )
        check_precision(precision, self._providers)
        self._model = _find_model(self.name, model)
        self._precision = precision

    @classmethod
    def parallelism(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003 - one GPU
        return {}

    @classmethod
    def works_on(cls, options: Mapping[str, Any]) -> tuple[str, str] | None:
        values = (options.get(name) for name in ("providers", "provider_options", "engine_cache"))
        with contextlib.suppress(SuiteError):  # the constructor reports it
            return Providers.of(*values).device
        return None

    def require(self) -> None:
        require_providers(self._providers, engine=self.name)

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._version = str(load_library().__version__)
        contents, unreadable = None, None
        try:
            contents = read(self._model)
        except (ValueError, OSError) as error:  # onnxruntime names most defects
            unreadable = error
        self._check_file(contents)
        self._digests = digests(self._model, contents)
        graph = open_graph(
            self._model,
            providers=self._providers,
            model_key="-".join(self._digests.values()),
            threads=self._options.threads,
            graph_optimization=self._options.graph_optimization,
            engine=self.name,
        )
        if unreadable is not None:
            problem = f"the model file cannot be read: {unreadable}"
            raise graph.refuse(problem) from unreadable
        self._quantised = check_contents(contents, graph, self._precision, self._providers)
        self._bind(graph, self._options.workers, undo)

    def _check_file(self, contents: Contents | None) -> None:
        """Raise RunError if the model file cannot run; `contents` is None if it is unreadable."""

    def describe(self) -> Mapping[str, str]:
        return {
            "engine": self.name,
            "onnxruntime": self._version,
            **self._digests,
            **self._quantised,
            **self._providers.describe(),
            "threads": str(self._options.threads),
            "batch_size": str(self._batch_size),
            "workers": str(self._options.workers),
            "graph_optimization": self._options.graph_optimization,
            **self._task.describe(),
        }


def digests(model: Path, contents: Contents | None) -> Mapping[str, str]:
    """Return 16 hex digits of SHA-256 by fact name: of a model file, its external weights."""
    digest = {"weights_sha256": sha256([model])[:16]}  # all that older baselines have
    external = [model.parent / name for name in sorted(contents.external)] if contents else []
    if present := [file for file in external if file.is_file()]:
        digest["external_data_sha256"] = sha256(present)[:16]
    return digest


def _find_model(engine: str, model: str | None) -> Path:
    if model is None:
        raise SuiteError(f"engine {engine}: no model; set workload.model to the ONNX file")
    path = Path(model)
    if not path.is_file():
        raise UnavailableError(
            f"{path}: this model file does not exist; put the ONNX file there, or set "
            "workload.model to its path",
            path=path,
        )
    return path
