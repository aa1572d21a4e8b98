"""Run an ONNX model with onnxruntime, in batches, on the providers asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.engines.files import sha256
from pytest_mlperf.engines.onnxruntime.precision import check_model, check_word
from pytest_mlperf.engines.onnxruntime.providers import Providers
from pytest_mlperf.engines.onnxruntime.session import (
    OPTIMIZATION,
    OnnxGraph,
    load_library,
    open_graph,
    require_providers,
)
from pytest_mlperf.engines.tasks.engine import TaskEngine


class OnnxRuntimeEngine(TaskEngine):
    """Answers samples as `task` says.

    "classify": the class, int64. "answer": logits of start and end of each token, float32, shape
    (seq, 2). "detect": float32 rows of index, ymin, xmin, ymax, xmax, score, label. "segment": the
    class of each voxel, uint8. "tensor": an output as it is. All little-endian.
    """

    name = "onnxruntime"
    libraries = ("onnxruntime",)

    _graph: OnnxGraph

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        task: str = "classify",
        batch_size: int = 8,
        threads: int = 1,
        providers: Sequence[str] | None = None,
        provider_options: Mapping[str, Mapping[str, Any]] | None = None,
        engine_cache: str | None = None,
        workers: int = 0,
        graph_optimization: str = "all",
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
            precision: What the file holds. "int8", "int4" and "fp8": operators quantised so;
                "fp64", "fp32", "bf16" and "fp16": none that are quantised, and most weights or
                the inputs of this type. Or what TensorRT computes in (trt_fp16_enable and others).
            task: "classify", "answer", "detect", "segment" or "tensor".
            batch_size: Samples per call of onnxruntime at most; windows, for "segment".
            threads: Threads of onnxruntime's CPU operators; 1 makes outputs repeatable bit by bit.
            providers: Execution providers in order of preference, by onnxruntime's names or "cpu",
                "cuda", "tensorrt", "openvino"; None is the CPU. Nodes run on the CPU only where it
                is listed.
            provider_options: Options by provider, in onnxruntime's words.
            engine_cache: Folder where TensorRT keeps the engines it builds, made if missing.
            workers: Long-lived threads that call onnxruntime with what has queued up, for Server;
                0 completes inside `submit`.
            graph_optimization: "disable", "basic", "extended" or "all".
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
            SuiteError: An option is out of range, of another task or contradicts the precision,
                or there is no model.
            UnavailableError: The model file is not here.
        """
        super().__init__(
            dataset=dataset,
            task=task,
            batch_size=batch_size,
            class_offset=class_offset,
            box_order=box_order,
            box_unit=box_unit,
            score_threshold=score_threshold,
            max_detections=max_detections,
            roi_shape=roi_shape,
            overlap=overlap,
            output=output,
        )
        level, levels = graph_optimization, ", ".join(OPTIMIZATION)
        self._check(
            ("threads", threads, threads >= 1, "a number of threads, at least 1"),
            ("workers", workers, workers >= 0, "a number of threads; 0 works inside submit"),
            ("graph_optimization", level, level in OPTIMIZATION, f"one of {levels}"),
        )
        self._providers = Providers.of(providers, provider_options, engine_cache)
        check_word(precision, self._providers)
        self._model = _find_model(self.name, model)
        self._precision = precision
        self._threads = threads
        self._workers = workers
        self._graph_optimization = graph_optimization

    def require(self) -> None:
        """Ask onnxruntime for the providers, and the loader for what they need; no model is loaded.

        Raises:
            SuiteError: There is no such provider.
            EnvironmentFault: onnxruntime, a provider or a library that it needs is not installed.
        """
        require_providers(self._providers, engine=self.name)

    def __enter__(self) -> Self:
        """Load the model and start the threads.

        Raises:
            SuiteError: There is no such provider.
            EnvironmentFault: onnxruntime, a provider or a library that it needs is not installed.
            RunError: onnxruntime refuses the model or runs it elsewhere, or the model does not fit
                task, precision or batch size.
        """
        self._version = str(load_library().__version__)
        self._weights_sha256 = sha256([self._model])
        graph = open_graph(
            self._model,
            providers=self._providers,
            weights_sha256=self._weights_sha256,
            threads=self._threads,
            graph_optimization=self._graph_optimization,
            engine=self.name,
        )
        self._quantised = check_model(self._model, graph, self._precision, self._providers)
        self._bind(graph, self._workers)
        return self

    def describe(self) -> Mapping[str, str]:
        """Return onnxruntime's version, the weights and every option; needs a loaded model."""
        return {
            "engine": self.name,
            "onnxruntime": self._version,
            "weights_sha256": self._weights_sha256[:16],
            **self._quantised,
            **self._providers.describe(),
            "threads": str(self._threads),
            "batch_size": str(self._batch_size),
            "workers": str(self._workers),
            "graph_optimization": self._graph_optimization,
            **self._task.describe(),
        }


def _find_model(engine: str, model: str | None) -> Path:
    if model is None:
        raise SuiteError(f"engine {engine}: no model; set workload.model to the ONNX file")
    path = Path(model)
    if not path.is_file():
        raise UnavailableError(
            f"{path}: this model file does not exist; put the ONNX file there, or set "
            "workload.model to its path"
        )
    return path
