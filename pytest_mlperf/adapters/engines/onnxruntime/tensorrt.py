"""Run an ONNX model with TensorRT, through ONNX Runtime's TensorRT provider."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf import Dataset, SuiteError, UnavailableError
from pytest_mlperf.adapters.engines import engine_error, one_of
from pytest_mlperf.adapters.engines.onnxruntime import (
    Contents,
    ModelPrecision,
    OnnxRuntimeEngine,
    _session,
)
from pytest_mlperf.adapters.engines.tasks import TaskOptions
from pytest_mlperf.adapters.engines.tasks.graph import Tensor, matches_shape
from pytest_mlperf.extension import PrecisionName, require_options, sha256

Shapes = Mapping[str, Sequence[int]]
"""Shapes by the name of an input, the batch first."""

PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp16", "bf16", "int8")
"""Precisions of the provider, which has no option for fp8 and int4."""

ALLOWED_PRECISIONS = {"int8": ("fp16", "bf16")}
FALLBACKS: Mapping[str, Sequence[str]] = {
    "none": ("tensorrt",),
    "cuda": ("tensorrt", "cuda"),
    "cpu": ("tensorrt", "cuda", "cpu"),
}
"""Providers, by where operators may run that TensorRT does not support."""

FURTHER_OPTIONS = frozenset(
    {
        *("trt_auxiliary_streams", "trt_build_heuristics_enable"),
        *("trt_context_memory_sharing_enable", "trt_detailed_build_log", "trt_dla_core"),
        *("trt_dla_enable", "trt_engine_cache_prefix", "trt_engine_hw_compatible"),
        *("trt_extra_plugin_lib_paths", "trt_force_sequential_engine_build"),
        *("trt_force_timing_cache", "trt_layer_norm_fp32_fallback"),
        *("trt_max_partition_iterations", "trt_min_subgraph_size", "trt_op_types_to_exclude"),
        *("trt_preview_features", "trt_sparsity_enable", "trt_tactic_sources"),
    }
)
"""Options of libonnxruntime_providers_tensorrt.so (onnxruntime-gpu 1.31.1) to set by name."""


@dataclass(frozen=True, kw_only=True)
class TensorRtOptions(TaskOptions):
    """Options of engine tensorrt.

    Attributes:
        beside: Only for "int8": further precisions that TensorRT may use, "fp16" or "bf16".
        fallback: Where operators may run that TensorRT does not support: "none", "cuda" or "cpu".
            The placement of operators is part of the fingerprint.
        device: Number of the GPU.
        engine_cache: Folder for TensorRT's engines, with a subfolder for each set of options.
        timing_cache: Whether to store the builder's kernel timings in that folder too.
        optimization_level: Level of TensorRT's builder, 0 to 5; None is TensorRT's default.
        workspace_mib: Maximum memory for an engine's workspace, without its weights [MiB].
        min_shapes: Smallest shape of each input whose shape varies, batch dimension first, such as
            { image = [1, 3, 224, 224] }.
        opt_shapes: Shapes for which TensorRT optimises.
        max_shapes: Largest shapes of these inputs.
        calibration_table: Only for "int8": file with the ranges of the model's tensors.
        native_calibration: Whether the calibration table was written by TensorRT; by default it is
            in ONNX Runtime's format.
        cuda_graph: Whether to launch kernels as one CUDA graph.
        provider_options: Further options of the TensorRT provider, under ONNX Runtime's names.
        workers: Number of threads that run queued samples in batches, for Server; 0 runs them
            inside `submit`.
    """

    beside: Sequence[str] = ()
    fallback: str = "none"
    device: int = 0
    engine_cache: str | None = None
    timing_cache: bool = True
    optimization_level: int | None = None
    workspace_mib: int | None = None
    min_shapes: Shapes | None = None
    opt_shapes: Shapes | None = None
    max_shapes: Shapes | None = None
    calibration_table: str | None = None
    native_calibration: bool = False
    cuda_graph: bool = False
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 0


@dataclass(frozen=True, kw_only=True)
class TensorRtPlan(TensorRtOptions):
    """Check options and precision of TensorRT, and convert them to options of the provider."""

    precision: str

    def check(self) -> None:
        level, workspace = self.optimization_level, self.workspace_mib
        fits_level = level is None or 0 <= level <= 5
        fits_memory = workspace is None or workspace >= 1
        companions = ALLOWED_PRECISIONS.get(self.precision, ())
        allowed = f"[], as precision = {self.precision!r} requires"
        if companions:
            allowed = f"a list of {', '.join(companions)}, as precision = {self.precision!r} allows"
        are_allowed = set(self.beside) <= set(companions)
        rules = (
            one_of("precision", self.precision, PRECISIONS),
            ("beside", self.beside, are_allowed, allowed),
            one_of("fallback", self.fallback, tuple(FALLBACKS)),
            ("device", self.device, self.device >= 0, "the number of a GPU, at least 0"),
            ("optimization_level", level, fits_level, "a level of TensorRT's builder, 0 to 5"),
            ("workspace_mib", workspace, fits_memory, "a size in MiB, at least 1"),
        )
        require_options("engine tensorrt", rules)
        for name in self.provider_options:
            if name not in FURTHER_OPTIONS:
                raise _wrong(
                    f"provider_options.{name}",
                    self.provider_options[name],
                    "cannot be set here (unknown, or set by another option of this engine); "
                    f"allowed are {', '.join(sorted(FURTHER_OPTIONS))}",
                )
        self._check_calibration()
        self._check_shapes()

    def for_provider(self) -> dict[str, str]:
        options: dict[str, Any] = {"device_id": self.device}
        for name in (self.precision, *self.beside):
            if name != "fp32":
                options[f"trt_{name}_enable"] = True
        if self.optimization_level is not None:
            options["trt_builder_optimization_level"] = self.optimization_level
        if self.workspace_mib is not None:
            options["trt_max_workspace_size"] = self.workspace_mib << 20
        for word, shapes in self._profile().items():
            options[f"trt_profile_{word}_shapes"] = ",".join(
                f"{name}:{'x'.join(map(str, lengths))}" for name, lengths in shapes.items()
            )
        if self.calibration_table is not None:
            # A relative path would be one in the folder of the engines.
            table = str(Path(self.calibration_table).absolute())
            options["trt_int8_calibration_table_name"] = table
            options["trt_int8_use_native_calibration_table"] = self.native_calibration
        if self.cuda_graph:
            options["trt_cuda_graph_enable"] = True
        if self.engine_cache is not None and not self.timing_cache:
            options["trt_timing_cache_enable"] = False
        return {name: str(value) for name, value in {**options, **self.provider_options}.items()}

    def cache_folder(self) -> str | None:
        """Return the subfolder of `engine_cache` for exactly these options; None without a cache.

        The provider's own file names depend on the model and on fp16, bf16 or int8, but not on
        other options, so engines for other options could be reused by mistake.
        """
        if self.engine_cache is None:
            return None
        text = json.dumps(self.for_provider(), sort_keys=True)
        if self.calibration_table is not None:
            text += sha256([Path(self.calibration_table)])
        return str(Path(self.engine_cache) / hashlib.sha256(text.encode()).hexdigest()[:12])

    def lacks(self, inputs: Sequence[Tensor], batch_size: int) -> str:
        """Return an error text if options leave a variable input dimension unset, else ""."""
        profile = self._profile()
        named = profile.get("min", {})
        for tensor in inputs:
            varies = [place for place, n in enumerate(tensor.shape) if not isinstance(n, int)]
            alone = varies == [0] and batch_size == 1 and not profile
            if varies and tensor.name not in named and not alone:
                return (
                    f"its input {tensor.name!r} has shape {tensor.shape}, which varies, so "
                    "TensorRT would build engines in the middle of a run; set its lengths, "
                    f"e.g. {_example(tensor, batch_size)}"
                )
            if tensor.name in named and (lacks := self._misfit(tensor, varies, batch_size)):
                return lacks
        unknown = set(named) - {tensor.name for tensor in inputs}
        return f"it has no input {min(unknown)!r}, which min_shapes names" if unknown else ""

    def _misfit(self, tensor: Tensor, varies: Sequence[int], batch_size: int) -> str:
        profile = self._profile()
        for word, shapes in profile.items():
            if not matches_shape(tuple(shapes[tensor.name]), tensor.shape):
                return (
                    f"its input {tensor.name!r} has shape {tensor.shape}, but {word}_shapes has "
                    f"{list(shapes[tensor.name])}; correct {word}_shapes"
                )
        low, high = profile["min"][tensor.name][0], profile["max"][tensor.name][0]
        if varies[:1] == [0] and (low > 1 or high < batch_size):
            return (
                f"batches have 1 to {batch_size} samples (batch_size), but min_shapes and "
                f"max_shapes allow {low} to {high} for {tensor.name!r}; correct the shapes or "
                "batch_size"
            )
        return ""

    def _profile(self) -> Mapping[str, Shapes]:
        named = {"min": self.min_shapes, "opt": self.opt_shapes, "max": self.max_shapes}
        return {word: shapes for word, shapes in named.items() if shapes is not None}

    def _check_calibration(self) -> None:
        if self.calibration_table is None:
            if self.native_calibration:
                raise _wrong(
                    "native_calibration", True, "needs calibration_table, which is not set"
                )
            return
        if self.precision != "int8":
            raise _wrong(
                "calibration_table",
                self.calibration_table,
                f'is only for precision = "int8", not {self.precision!r}: remove it',
            )
        if not Path(self.calibration_table).is_file():
            raise UnavailableError(
                f"{self.calibration_table}: this calibration table does not exist; put it there, "
                "or set calibration_table to its path",
                path=self.calibration_table,
            )

    def _check_shapes(self) -> None:
        profile = self._profile()
        if not profile:
            return
        if len(profile) < 3:
            names = [f"{word}_shapes" for word in profile]
            raise SuiteError(
                f"engine tensorrt: {' and '.join(names)} alone cannot be set; set all of "
                "min_shapes, opt_shapes and max_shapes, or none of them",
                option=names,
            )
        for word, shapes in profile.items():
            if set(shapes) != set(profile["min"]):
                raise _wrong(
                    f"{word}_shapes", sorted(shapes), "must name the same inputs as min_shapes"
                )
            for name, lengths in shapes.items():
                if min(lengths, default=0) < 1:
                    raise _wrong(
                        f"{word}_shapes.{name}", lengths, "is not a list of lengths above 0"
                    )
        for name, low in profile["min"].items():
            between, high = profile["opt"][name], profile["max"][name]
            if len({len(low), len(between), len(high)}) > 1 or not all(
                a <= b <= c for a, b, c in zip(low, between, high, strict=True)
            ):
                raise _wrong(
                    f"opt_shapes.{name}",
                    list(between),
                    f"does not lie between min_shapes, {list(low)}, and max_shapes, {list(high)}",
                )


def _example(tensor: Tensor, batch_size: int) -> str:
    """Return example options: min, opt and max shapes of an input; "…" for unknown lengths."""

    def shape(batch: int) -> str:
        lengths = (
            [batch, *tensor.shape[1:]] if not isinstance(tensor.shape[0], int) else tensor.shape
        )
        return f"[{', '.join(str(n) if isinstance(n, int) else '…' for n in lengths)}]"

    sizes = {"min": 1, "opt": batch_size, "max": batch_size}
    return ", ".join(f"{w}_shapes = {{ {tensor.name} = {shape(n)} }}" for w, n in sizes.items())


_wrong = partial(_session.wrong, engine="tensorrt")


class TensorRtEngine(OnnxRuntimeEngine):
    """Answer samples with TensorRT; other providers run operators only if `fallback` allows it."""

    name = "tensorrt"
    options: ClassVar[type] = TensorRtOptions
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    install: ClassVar[str] = (
        "pip install onnx, onnxruntime-gpu in place of onnxruntime, and NVIDIA's libraries that it "
        "was built for (docs/tensorrt.md)"
    )

    @classmethod
    def works_on(cls, options: Mapping[str, Any]) -> tuple[str, str]:
        return "device", f"cuda:{options.get('device', 0)}"

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        """Keep the options and check that the model exists.

        Args:
            dataset: Each input is an array of the model's input shape without the batch dimension,
                or a dict of such arrays by the names of the model's inputs.
            model: Path of the ONNX file.
            precision: Precision in which TensorRT computes: "fp32", "fp16", "bf16" or "int8". The
                file may have fp32 weights; "int8" needs quantised operators in it, or a calibration
                table.
        """
        self._asked = plan = TensorRtPlan(precision=precision, **options)
        plan.check()
        if plan.cuda_graph and plan.workers > 1:
            raise SuiteError(
                f"engine tensorrt: cuda_graph = true, but workers = {plan.workers}: only one "
                "thread can launch a graph; set workers = 1",
                option=("cuda_graph", "workers"),
            )
        providers = FALLBACKS[plan.fallback]
        more: dict[str, Mapping[str, Any]] = {"tensorrt": plan.for_provider()}
        if "cuda" in providers:
            more["cuda"] = {"device_id": plan.device}
        super().__init__(
            dataset=dataset,
            model=model,
            precision=precision,
            providers=providers,
            provider_options=more,
            engine_cache=plan.cache_folder(),
            workers=plan.workers,
            **plan.of_task(),
        )

    @classmethod
    def check_library(cls) -> None:
        _session.require_providers(
            _session.Providers.of([_session.TENSORRT_PROVIDER], None, None), engine=cls.name
        )

    def _open(self, undo: ExitStack) -> None:
        self.require()  # before the file is read
        super()._open(undo)
        if lacks := self._asked.lacks(self._graph.inputs, self._batch_size):
            raise self._graph.refuse(lacks)
        self._placed = placement_text(_session.placement(self._graph))

    def describe(self) -> Mapping[str, str]:
        return {**super().describe(), "placement": self._placed}

    def _check_file(self, contents: Contents | None) -> None:
        """Raise RunError for int8 without a calibration table if the file has no int8 operators."""
        if self._asked.precision != "int8" or self._asked.calibration_table is not None:
            return
        if contents is not None and "int8" not in ModelPrecision.of(contents).quantised:
            raise engine_error(
                f'{self._model}: precision is "int8", but the file holds no int8 operators; set '
                "calibration_table, or use a model that is quantised with QuantizeLinear and "
                "DequantizeLinear",
            )


def placement_text(by_provider: Mapping[str, Mapping[str, int]] | None) -> str:
    """Return the operators' placement for the fingerprint; raise RunError if TensorRT runs none.

    E.g. "TensorrtExecutionProvider 118, CUDAExecutionProvider 2 (NonMaxSuppression, Shape)".
    """
    if by_provider is None:
        return "not reported by this onnxruntime"
    counts = {name: sum(kinds.values()) for name, kinds in by_provider.items()}
    if not counts.get(_session.TENSORRT_PROVIDER):
        others = ", ".join(f"{count} on {name}" for name, count in sorted(counts.items()))
        raise engine_error(
            f"no operator of the model runs on TensorRT ({others or 'none runs at all'}); see "
            "onnxruntime's log for the reason",
        )
    parts = [f"{_session.TENSORRT_PROVIDER} {counts[_session.TENSORRT_PROVIDER]}"]
    for name in sorted(set(counts) - {_session.TENSORRT_PROVIDER}):
        parts.append(f"{name} {counts[name]} ({', '.join(sorted(by_provider[name]))})")
    return ", ".join(parts)
