"""Run an ONNX image classifier with onnxruntime, in batches, on the providers asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pytest_mlperf.core.errors import EnvironmentFault, RunError, SuiteError, UnavailableError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.queueing import WorkQueue

if TYPE_CHECKING:
    from numpy.typing import NDArray

CPU = "CPUExecutionProvider"

OPTIMIZATION = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""What a suite may say, and its name in onnxruntime's GraphOptimizationLevel."""

INPUT_TYPES = {"fp32": "tensor(float)", "fp16": "tensor(float16)"}
"""Precisions that show in the type of the model's input."""

SAMPLE_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8"}
CLASS_TYPES = {"tensor(int32)", "tensor(int64)"}


class OnnxRuntimeEngine(Engine):
    """Answers each sample with its predicted class as 8 bytes: int64, little-endian."""

    _samples: NDArray[Any]

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        batch_size: int = 8,
        threads: int = 1,
        providers: Sequence[str] | None = None,
        workers: int = 0,
        graph_optimization: str = "all",
        class_offset: int = 0,
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are arrays of the model's input shape without the batch.
            model: Path of the ONNX file: one input, and scores (batch, classes) or class numbers
                (batch,) as output; of several outputs, class numbers are preferred.
            precision: "fp32" and "fp16" must equal the type of the model's input; other words are
                not checked.
            batch_size: Samples per call of onnxruntime at most.
            threads: Threads of onnxruntime's CPU operators; 1 makes outputs repeatable bit by bit.
            providers: Execution providers in order of preference; None is the CPU. Nodes run on
                the CPU only where it is listed.
            workers: Long-lived threads that call onnxruntime with what has queued up, for Server;
                0 completes inside `submit`.
            graph_optimization: "disable", "basic", "extended" or "all".
            class_offset: Added to the class; -1 for MLPerf's resnet50_v1.onnx, whose class 0 is
                the background.

        Raises:
            SuiteError: An option is out of range, or there is no model.
            UnavailableError: The model file is not here.
        """
        self._providers = [CPU] if providers is None else providers
        _check_options(batch_size, threads, workers, self._providers, graph_optimization)
        self._model = _find_model(model)
        self._dataset = dataset
        self._precision = precision
        self._batch_size = batch_size
        self._threads = threads
        self._workers = workers
        self._graph_optimization = graph_optimization
        self._class_offset = class_offset
        self._rows: dict[int, int] = {}
        self._queue: WorkQueue | None = None

    def __enter__(self) -> Self:
        """Load the model and start the threads.

        Raises:
            EnvironmentFault: onnxruntime or one of the providers is not installed.
            RunError: onnxruntime refuses the model or runs it elsewhere, or the model's input does
                not fit precision or batch size.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise EnvironmentFault(
                "engine onnxruntime needs a library that is not installed; "
                "try: pip install 'pytest-mlperf[onnx]'"
            ) from error
        self._version = str(onnxruntime.__version__)
        self._session = self._open_session(onnxruntime)
        self._input = self._check_input(self._session.get_inputs())
        self._output = pick_output(self._session.get_outputs())
        with self._model.open("rb") as file:
            self._weights_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if self._workers:
            self._queue = WorkQueue(
                self._complete, threads=self._workers, max_batch=self._batch_size
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads and free the model and the samples."""
        if self._queue is not None:
            self._queue.close()
        self.unload_samples(list(self._rows))
        del self._session

    def load_samples(self, indices: Sequence[int]) -> None:
        """Decode samples into one contiguous array, beside those that are loaded.

        Raises:
            RunError: A sample's shape or type is not what the model takes.
        """
        import numpy as np

        new = [index for index in dict.fromkeys(indices) if index not in self._rows]
        if new:
            decoded = np.stack([self._decode(index) for index in new])
            kept = len(self._rows)
            self._samples = np.concatenate([self._samples, decoded]) if kept else decoded
            self._rows.update(zip(new, range(kept, len(self._samples)), strict=True))

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples and free their memory."""
        gone = self._rows.keys() & set(indices)
        if gone:
            kept = [index for index in self._rows if index not in gone]
            self._samples = self._samples[[self._rows[index] for index in kept]]
            self._rows = {index: row for row, index in enumerate(kept)}

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Classify the samples here, or hand them to the threads."""
        if self._queue is None:
            self._complete(ids, indices, sink)
        else:
            self._queue.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return onnxruntime's version, the weights and every option; needs a loaded model."""
        return {
            "engine": "onnxruntime",
            "onnxruntime": self._version,
            "weights_sha256": self._weights_sha256[:16],
            "providers": ",".join(self._providers),
            "threads": str(self._threads),
            "batch_size": str(self._batch_size),
            "workers": str(self._workers),
            "graph_optimization": self._graph_optimization,
            "class_offset": str(self._class_offset),
        }

    def _decode(self, index: int) -> NDArray[Any]:
        import numpy as np

        given, dtype = np.asarray(self._dataset.input(index)), SAMPLE_TYPES[self._input.type]
        # A normalised image would wrap around in uint8: -1.0 would become 255.
        if not np.can_cast(given.dtype, dtype, "same_kind"):
            raise RunError(
                "engine",
                f"{self._model}: takes samples of type {dtype}, but sample {index} of the data set "
                f"is {given.dtype}; use a data set that gives {dtype}, or a model with float input",
            )
        sample = given.astype(dtype, copy=False)
        taken = self._input.shape[1:]
        if not fits(sample.shape, taken):
            raise RunError(
                "engine",
                f"{self._model}: takes samples of shape {tuple(taken)}, but sample {index} of the "
                f"data set has shape {sample.shape}; set the data set's options to match",
            )
        return sample

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        for start in range(0, len(ids), self._batch_size):
            batch = slice(start, start + self._batch_size)
            outputs = self._classify(indices[batch])
            sink.done(ids[batch], outputs if sink.wants_output else None)

    def _classify(self, indices: Sequence[int]) -> list[bytes]:
        samples = self._samples[[self._rows[index] for index in indices]]
        (result,) = self._session.run([self._output.name], {self._input.name: samples})
        classes = result if self._output.type in CLASS_TYPES else result.argmax(axis=-1)
        numbers = (classes.reshape(len(samples)) + self._class_offset).astype("<i8")
        return [number.tobytes() for number in numbers]

    def _open_session(self, onnxruntime: Any) -> Any:
        installed = onnxruntime.get_available_providers()
        missing = [name for name in self._providers if name not in installed]
        if missing:
            raise EnvironmentFault(
                f"engine onnxruntime: provider {missing[0]!r} is not installed; installed: "
                f"{', '.join(installed)}. Try: pip install onnxruntime-gpu in place of onnxruntime"
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, OPTIMIZATION[self._graph_optimization]
        )
        if CPU not in self._providers:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            session = onnxruntime.InferenceSession(self._model, options, providers=self._providers)
        # onnxruntime's exceptions share no base class of their own.
        except Exception as error:
            raise RunError(
                "engine",
                f"{self._model}: onnxruntime cannot run this model on "
                f"{', '.join(self._providers)}: {error}",
            ) from error
        if session.get_providers()[0] != self._providers[0]:
            raise RunError(
                "engine",
                f"{self._model}: asked for provider {self._providers[0]!r}, but onnxruntime fell "
                f"back to {session.get_providers()[0]!r}; see its log for the reason",
            )
        return session

    def _check_input(self, inputs: Sequence[Any]) -> Any:
        """Return the model's only input, if it fits precision and batch size."""
        if len(inputs) != 1 or inputs[0].type not in SAMPLE_TYPES:
            found = ", ".join(f"{each.name} {each.type}" for each in inputs)
            raise RunError(
                "engine",
                f"{self._model}: takes {found}; this engine runs models with one input of type "
                f"{', '.join(SAMPLE_TYPES)}",
            )
        (only,) = inputs
        expected = INPUT_TYPES.get(self._precision, only.type)
        if only.type != expected:
            raise RunError(
                "engine",
                f"{self._model}: precision is {self._precision!r}, but the model's input "
                f"{only.name!r} is {only.type}, not {expected}; correct precision or the model",
            )
        batch = only.shape[0]
        if isinstance(batch, int) and (batch, self._batch_size) != (1, 1):
            raise RunError(
                "engine",
                f"{self._model}: the batch dimension is fixed at {batch}, which does not fit "
                f"batch_size = {self._batch_size}; export the model with a dynamic batch"
                + (", or set batch_size = 1" if batch == 1 else ""),
            )
        return only


def fits(shape: Sequence[int], taken: Sequence[int | str | None]) -> bool:
    """Tell whether a sample's shape matches the model's; named dimensions take any length."""
    return len(shape) == len(taken) and all(
        want == have for have, want in zip(shape, taken, strict=True) if isinstance(want, int)
    )


def pick_output(outputs: Sequence[Any]) -> Any:
    """Prefer class numbers to scores, and among those an output named like argmax."""
    classes = [each for each in outputs if each.type in CLASS_TYPES]
    named = [each for each in classes if "argmax" in each.name.lower()]
    return (named or classes or list(outputs))[0]


def _find_model(model: str | None) -> Path:
    if model is None:
        raise SuiteError("engine onnxruntime: no model; set workload.model to the ONNX file")
    path = Path(model)
    if not path.is_file():
        raise UnavailableError(
            f"{path}: this model file does not exist; put the ONNX file there, or set "
            "workload.model to its path"
        )
    return path


def _check_options(
    batch_size: int, threads: int, workers: int, providers: Sequence[str], level: str
) -> None:
    listed = bool(providers) and not isinstance(providers, str)
    rules = (
        ("batch_size", batch_size, batch_size >= 1, "a number of samples, at least 1"),
        ("threads", threads, threads >= 1, "a number of threads, at least 1"),
        ("workers", workers, workers >= 0, "a number of threads; 0 works inside submit"),
        ("providers", providers, listed, f'a list of execution providers, e.g. ["{CPU}"]'),
        ("graph_optimization", level, level in OPTIMIZATION, f"one of {', '.join(OPTIMIZATION)}"),
    )
    for name, value, valid, expected in rules:
        if not valid:
            raise SuiteError(f"engine onnxruntime: {name} = {value!r} is not {expected}")
