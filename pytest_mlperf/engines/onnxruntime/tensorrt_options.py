"""What a suite may ask of TensorRT, and the words of ONNX Runtime's provider for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.engines.tasks.graph import Tensor
from pytest_mlperf.engines.tasks.inputs import fits

Shapes = Mapping[str, Sequence[int]]
"""Lengths by the name of an input, the batch first."""

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
"""What the provider can be told to compute in; it has no option for fp8 and int4."""

BESIDE = {"int8": ("fp16", "bf16")}
"""What else TensorRT may be allowed, by the precision's name."""

FALLBACKS: Mapping[str, Sequence[str]] = {
    "none": ("tensorrt",),
    "cuda": ("tensorrt", "cuda"),
    "cpu": ("tensorrt", "cuda", "cpu"),
}
"""Providers by what may run the operators that TensorRT does not take."""

OTHERS = frozenset(
    {
        "trt_auxiliary_streams",
        "trt_build_heuristics_enable",
        "trt_context_memory_sharing_enable",
        "trt_detailed_build_log",
        "trt_dla_core",
        "trt_dla_enable",
        "trt_engine_cache_prefix",
        "trt_engine_hw_compatible",
        "trt_extra_plugin_lib_paths",
        "trt_force_sequential_engine_build",
        "trt_force_timing_cache",
        "trt_layer_norm_fp32_fallback",
        "trt_max_partition_iterations",
        "trt_min_subgraph_size",
        "trt_op_types_to_exclude",
        "trt_preview_features",
        "trt_sparsity_enable",
        "trt_tactic_sources",
    }
)
"""Further options of the provider that a suite may set by their own names.

These and those below are in libonnxruntime_providers_tensorrt.so of onnxruntime-gpu 1.31.1.
"""


@dataclass(frozen=True, kw_only=True)
class TensorRtOptions:
    """What a suite asks of TensorRT.

    Attributes:
        precision: What it computes in.
        beside: What it may compute in besides.
        fallback: A key of `FALLBACKS`.
        device: Number of the GPU.
        engine_cache: Folder for the engines that it builds, or None.
        timing_cache: Whether its measurements of kernels are kept there too.
        optimization_level: Of its builder, 0 to 5; None is its default.
        workspace_mib: Memory that it may use while it runs, in MiB; None is all there is.
        min_shapes: The smallest inputs, of those that vary.
        opt_shapes: The inputs that it is tuned for.
        max_shapes: The largest inputs.
        calibration_table: File with the ranges of a model's numbers, for int8; or None.
        native_calibration: Whether TensorRT made it, and not ONNX Runtime.
        cuda_graph: Whether kernels are launched as one graph.
        others: Further options by the provider's own names.
    """

    precision: str
    beside: Sequence[str]
    fallback: str
    device: int
    engine_cache: str | None
    timing_cache: bool
    optimization_level: int | None
    workspace_mib: int | None
    min_shapes: Shapes | None
    opt_shapes: Shapes | None
    max_shapes: Shapes | None
    calibration_table: str | None
    native_calibration: bool
    cuda_graph: bool
    others: Mapping[str, Any]

    def check(self) -> None:
        """Check every option by itself and beside the others.

        Raises:
            SuiteError: One means nothing, or contradicts another one.
            UnavailableError: The calibration table is not here.
        """
        level, workspace = self.optimization_level, self.workspace_mib
        known = BESIDE.get(self.precision, ())
        rules = (
            ("precision", self.precision, self.precision in PRECISIONS, _one_of(PRECISIONS)),
            (
                "beside",
                self.beside,
                set(self.beside) <= set(known),
                f"a list out of {', '.join(known) or 'nothing'}, which is all that precision = "
                f"{self.precision!r} may have beside it",
            ),
            ("fallback", self.fallback, self.fallback in FALLBACKS, _one_of(FALLBACKS)),
            ("device", self.device, self.device >= 0, "the number of a GPU, at least 0"),
            (
                "optimization_level",
                level,
                level is None or 0 <= level <= 5,
                "a level of TensorRT's builder, 0 to 5",
            ),
            (
                "workspace_mib",
                workspace,
                workspace is None or workspace >= 1,
                "a size in MiB, at least 1",
            ),
        )
        for name, value, valid, expected in rules:
            if not valid:
                raise _wrong(name, value, f"is not {expected}")
        for name in self.others:
            if name not in OTHERS:
                raise _wrong(
                    "provider_options",
                    name,
                    "is none of the provider's, or has an option of its own here; those are "
                    f"{', '.join(sorted(OTHERS))}",
                )
        self._check_calibration()
        self._check_shapes()

    def provider_options(self) -> dict[str, str]:
        """Return what ONNX Runtime takes, besides the folder for engines."""
        given: dict[str, Any] = {"device_id": self.device}
        for name in (self.precision, *self.beside):
            if name != "fp32":
                given[f"trt_{name}_enable"] = True
        if self.optimization_level is not None:
            given["trt_builder_optimization_level"] = self.optimization_level
        if self.workspace_mib is not None:
            given["trt_max_workspace_size"] = self.workspace_mib << 20
        for word, shapes in self._profile().items():
            given[f"trt_profile_{word}_shapes"] = ",".join(
                f"{name}:{'x'.join(map(str, lengths))}" for name, lengths in shapes.items()
            )
        if self.calibration_table is not None:
            # It is looked for in the folder of the engines, unless the path is a whole one.
            table = str(Path(self.calibration_table).absolute())
            given["trt_int8_calibration_table_name"] = table
            given["trt_int8_use_native_calibration_table"] = self.native_calibration
        if self.cuda_graph:
            given["trt_cuda_graph_enable"] = True
        if self.engine_cache is not None and not self.timing_cache:
            given["trt_timing_cache_enable"] = False
        return {name: str(value) for name, value in {**given, **self.others}.items()}

    def cache_folder(self) -> str | None:
        """Return the folder for engines that were built with just these options.

        The name that the provider gives to an engine tells the model and fp16, bf16 or int8 from
        each other, and no other option.
        """
        if self.engine_cache is None:
            return None
        text = json.dumps(self.provider_options(), sort_keys=True)
        return str(Path(self.engine_cache) / hashlib.sha256(text.encode()).hexdigest()[:12])

    def lacks(self, inputs: Sequence[Tensor], batch_size: int) -> str:
        """Return what is wrong with the shapes for a model; "" if nothing is.

        For a shape that it was not told of the provider builds an engine in the middle of a run.

        Args:
            inputs: What the model takes.
            batch_size: Samples in one call at most; batches may be smaller.
        """
        profile = self._profile()
        named = profile.get("min", {})
        for each in inputs:
            varies = [place for place, n in enumerate(each.shape) if not isinstance(n, int)]
            alone = varies == [0] and batch_size == 1 and not profile
            if varies and each.name not in named and not alone:
                return (
                    f"its input {each.name!r} has shape {each.shape}, which varies, so TensorRT "
                    "would build engines in the middle of a run; say its lengths, e.g. "
                    f"{_example(each, batch_size)}"
                )
            if each.name in named and (lacks := self._misfit(each, varies, batch_size)):
                return lacks
        unknown = set(named) - {each.name for each in inputs}
        return f"it has no input {min(unknown)!r}, which min_shapes names" if unknown else ""

    def _misfit(self, tensor: Tensor, varies: Sequence[int], batch_size: int) -> str:
        """Return how the shapes contradict an input that they name; "" if they do not."""
        profile = self._profile()
        for word, shapes in profile.items():
            if not fits(tuple(shapes[tensor.name]), tensor.shape):
                return (
                    f"its input {tensor.name!r} has shape {tensor.shape}, but {word}_shapes has "
                    f"{list(shapes[tensor.name])}; make both fit"
                )
        low, high = profile["min"][tensor.name][0], profile["max"][tensor.name][0]
        if varies[:1] == [0] and (low > 1 or high < batch_size):
            return (
                f"batches have 1 to {batch_size} samples (batch_size), but min_shapes and "
                f"max_shapes say {low} to {high} for {tensor.name!r}; make both fit"
            )
        return ""

    def _profile(self) -> Mapping[str, Shapes]:
        """Return the three shapes by "min", "opt" and "max"; {} if there are none."""
        given = {"min": self.min_shapes, "opt": self.opt_shapes, "max": self.max_shapes}
        return {word: shapes for word, shapes in given.items() if shapes is not None}

    def _check_calibration(self) -> None:
        if self.calibration_table is None:
            if self.native_calibration:
                raise _wrong(
                    "native_calibration", True, "says what calibration_table is, and there is none"
                )
            return
        if self.precision != "int8":
            raise _wrong(
                "calibration_table",
                self.calibration_table,
                f'is for precision = "int8", but precision = {self.precision!r}; leave it out',
            )
        if not Path(self.calibration_table).is_file():
            raise UnavailableError(
                f"{self.calibration_table}: this calibration table does not exist; put it there, "
                "or set calibration_table to its path"
            )

    def _check_shapes(self) -> None:
        profile = self._profile()
        if not profile:
            return
        if len(profile) < 3:
            raise _wrong(
                "min_shapes, opt_shapes, max_shapes",
                ", ".join(f"{word}_shapes" for word in profile),
                "is not all three of them; give all or none",
            )
        for word, shapes in profile.items():
            if set(shapes) != set(profile["min"]):
                raise _wrong(f"{word}_shapes", sorted(shapes), "names other inputs than min_shapes")
            for name, lengths in shapes.items():
                if not lengths or not all(type(n) is int and n >= 1 for n in lengths):
                    raise _wrong(f"{word}_shapes.{name}", lengths, "is no list of lengths above 0")
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
    """Return options for an input whose batch varies; other lengths are the reader's to fill in."""

    def shape(batch: int) -> str:
        lengths = (
            [batch, *tensor.shape[1:]] if not isinstance(tensor.shape[0], int) else tensor.shape
        )
        return f"[{', '.join(str(n) if isinstance(n, int) else '…' for n in lengths)}]"

    sizes = {"min": 1, "opt": batch_size, "max": batch_size}
    return ", ".join(f"{w}_shapes = {{ {tensor.name} = {shape(n)} }}" for w, n in sizes.items())


def _one_of(names: Sequence[str] | Mapping[str, Any]) -> str:
    return f"one of {', '.join(names)}"


def _wrong(option: str, value: object, what: str) -> SuiteError:
    return SuiteError(f"engine tensorrt: {option} = {value!r} {what}")
