"""Run an ONNX model with TensorRT, through ONNX Runtime's provider for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.engines.onnxruntime import OnnxRuntimeEngine
from pytest_mlperf.engines.onnxruntime.contents import read
from pytest_mlperf.engines.onnxruntime.precision import Kinds
from pytest_mlperf.engines.onnxruntime.providers import TENSORRT, Providers
from pytest_mlperf.engines.onnxruntime.session import placement, require_providers
from pytest_mlperf.engines.onnxruntime.tensorrt_options import (
    FALLBACKS,
    Shapes,
    TensorRtOptions,
)


class TensorRtEngine(OnnxRuntimeEngine):
    """Answers samples as `task` says, computed by TensorRT and by nothing else unless allowed.

    "classify": the class, int64. "answer": logits of start and end of each token, float32, shape
    (seq, 2). "detect": float32 rows of index, ymin, xmin, ymax, xmax, score, label. "segment": the
    class of each voxel, uint8. "tensor": an output as it is. All little-endian.
    """

    name = "tensorrt"
    install: ClassVar[str] = (
        "pip install onnxruntime-gpu in place of onnxruntime, and NVIDIA's libraries that it was "
        "built for (docs/tensorrt.md)"
    )

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        beside: Sequence[str] = (),
        fallback: str = "none",
        device: int = 0,
        engine_cache: str | None = None,
        timing_cache: bool = True,
        optimization_level: int | None = None,
        workspace_mib: int | None = None,
        min_shapes: Shapes | None = None,
        opt_shapes: Shapes | None = None,
        max_shapes: Shapes | None = None,
        calibration_table: str | None = None,
        native_calibration: bool = False,
        cuda_graph: bool = False,
        provider_options: Mapping[str, Any] | None = None,
        task: str = "classify",
        batch_size: int = 8,
        workers: int = 0,
        class_offset: int | None = None,
        box_order: str | None = None,
        box_unit: str | None = None,
        score_threshold: float | None = None,
        max_detections: int | None = None,
        roi_shape: Sequence[int] | None = None,
        overlap: float | None = None,
        output: str | None = None,
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are arrays of the model's input shape without the batch, or such
                arrays by the names of the model's inputs.
            model: Path of the ONNX file.
            precision: What TensorRT computes in: "fp32", "fp16", "bf16" or "int8". The file may
                hold fp32; for int8 it holds quantised operators, or there is a calibration table.
            beside: "int8": what TensorRT may compute in besides, "fp16" or "bf16".
            fallback: What may run operators that TensorRT does not take: "none", "cuda" or "cpu".
                Where each of them runs is part of the fingerprint.
            device: Number of the GPU.
            engine_cache: Folder where TensorRT's engines are kept, by model and options.
            timing_cache: Whether the builder's measurements are kept there as well.
            optimization_level: Of TensorRT's builder, 0 to 5; by default TensorRT's.
            workspace_mib: Memory that an engine may use beside its weights, in MiB.
            min_shapes: Shape of the smallest inputs by name, the batch first, for inputs that
                vary: { image = [1, 3, 224, 224] }.
            opt_shapes: The shapes that TensorRT tunes for.
            max_shapes: The largest ones.
            calibration_table: "int8": file with the ranges of the model's numbers.
            native_calibration: Whether TensorRT made this file; by default ONNX Runtime did.
            cuda_graph: Whether kernels are launched as one CUDA graph.
            provider_options: Further options of the provider, in its own words.
            task: "classify", "answer", "detect", "segment" or "tensor".
            batch_size: Samples per call at most; windows, for "segment".
            workers: Long-lived threads that work on what has queued up, for Server; 0 completes
                inside `submit`.
            class_offset: "classify": added to the class, by default 0; -1 for MLPerf's
                resnet50_v1.onnx, whose class 0 is the background.
            box_order: "detect": "xyxy", the default, or "yxyx".
            box_unit: "detect": "pixel", the default, or "image" for shares of its sides.
            score_threshold: "detect": boxes with a lower score are left out; by default 0.05.
            max_detections: "detect": boxes that are kept at most; by default all.
            roi_shape: "segment": depth, height and width of a window, by default 128 each.
            overlap: "segment": share of a window that the next covers again, by default 0.5.
            output: "segment", "tensor": name of the output; by default the only one.

        Raises:
            SuiteError: An option is out of range, of another task or contradicts another one, or
                there is no model.
            UnavailableError: The model file or the calibration table is not here.
        """
        self._asked = TensorRtOptions(
            precision=precision,
            beside=beside,
            fallback=fallback,
            device=device,
            engine_cache=engine_cache,
            timing_cache=timing_cache,
            optimization_level=optimization_level,
            workspace_mib=workspace_mib,
            min_shapes=min_shapes,
            opt_shapes=opt_shapes,
            max_shapes=max_shapes,
            calibration_table=calibration_table,
            native_calibration=native_calibration,
            cuda_graph=cuda_graph,
            others=provider_options or {},
        )
        self._asked.check()
        if cuda_graph and workers > 1:
            raise SuiteError(
                f"engine tensorrt: cuda_graph = True, but workers = {workers}: a graph is launched "
                "by one thread; set workers = 1"
            )
        providers = FALLBACKS[fallback]
        options: dict[str, Mapping[str, Any]] = {"tensorrt": self._asked.provider_options()}
        if "cuda" in providers:
            options["cuda"] = {"device_id": device}
        super().__init__(
            dataset=dataset,
            model=model,
            precision=precision,
            task=task,
            batch_size=batch_size,
            providers=providers,
            provider_options=options,
            engine_cache=self._asked.cache_folder(),
            workers=workers,
            class_offset=class_offset,
            box_order=box_order,
            box_unit=box_unit,
            score_threshold=score_threshold,
            max_detections=max_detections,
            roi_shape=roi_shape,
            overlap=overlap,
            output=output,
        )

    @classmethod
    def check_library(cls) -> None:
        """Ask onnxruntime for TensorRT, and the loader for NVIDIA's libraries.

        Raises:
            EnvironmentFault: onnxruntime, its provider or a library of NVIDIA's is not installed.
        """
        require_providers(Providers.of([TENSORRT], None, None), engine=cls.name)

    def __enter__(self) -> Self:
        """Load the model and start the threads.

        Raises:
            EnvironmentFault: onnxruntime, its provider or a library of NVIDIA's is not installed.
            RunError: TensorRT refuses the model or leaves operators to what is not allowed, or the
                model does not fit task, precision, batch size or shapes.
        """
        self.require()  # before the file is read
        self._check_quantised()
        super().__enter__()
        try:
            lacks = self._asked.lacks(self._graph.inputs, self._batch_size)
            if lacks:
                raise self._graph.refuse(lacks)
            self._placed = placed(placement(self._graph))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, every option and where operators run."""
        return {**super().describe(), "placement": self._placed}

    def _check_quantised(self) -> None:
        """Refuse int8 for a file without ranges: TensorRT would not know how to round.

        Raises:
            RunError: Says so.
        """
        if self._asked.precision != "int8" or self._asked.calibration_table is not None:
            return
        try:
            contents = read(self._model)
        except (ValueError, OSError):
            return  # the base class says it
        if contents is not None and "int8" not in Kinds.of(contents).quantised:
            raise RunError(
                "engine",
                f'{self._model}: precision is "int8", but the file holds no int8 operators; give '
                "calibration_table, or a model that is quantised with QuantizeLinear and "
                "DequantizeLinear",
            )


def placed(found: Mapping[str, Mapping[str, int]] | None) -> str:
    """Return where operators run, for the fingerprint.

    Args:
        found: How often there is each operator, by provider; None if onnxruntime does not say.

    Returns:
        E.g. "TensorrtExecutionProvider 118, CUDAExecutionProvider 2 (NonMaxSuppression, Shape)".

    Raises:
        RunError: None runs on TensorRT.
    """
    if found is None:
        return "not told by this onnxruntime"
    counts = {name: sum(kinds.values()) for name, kinds in found.items()}
    if not counts.get(TENSORRT):
        others = ", ".join(f"{count} on {name}" for name, count in sorted(counts.items()))
        raise RunError(
            "engine",
            f"none of the model's operators runs on TensorRT, but {others or 'nowhere'}; see "
            "onnxruntime's log for the reason",
        )
    parts = [f"{TENSORRT} {counts[TENSORRT]}"]
    for name in sorted(set(counts) - {TENSORRT}):
        parts.append(f"{name} {counts[name]} ({', '.join(sorted(found[name]))})")
    return ", ".join(parts)
