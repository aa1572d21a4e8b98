"""Ask a model on a server that speaks KServe v2, as Triton, MLServer and KServe do."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, SuiteError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.queueing import WorkQueue
from pytest_mlperf.engines.tasks import PRECISIONS, Runner, Task, make_task
from pytest_mlperf.engines.triton.launch import ours
from pytest_mlperf.engines.triton.service import Service, Wanted

if TYPE_CHECKING:
    from pytest_mlperf.engines.tasks.inputs import Sample


class TritonEngine(Engine):
    """Answers samples with what a model on a server gives; `task` says how it is read.

    "classify": the class, int64. "answer": logits of start and end of each token, float32, shape
    (seq, 2). "detect": float32 rows of index, ymin, xmin, ymax, xmax, score, label. "segment": the
    class of each voxel, uint8. "tensor": an output as it is. All little-endian.
    """

    libraries = ("tritonclient",)

    _runner: Runner

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        served_model: str,
        model_version: str = "",
        protocol: str = "http",
        url: str | None = None,
        serve: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        start_timeout: float = 120.0,
        request_timeout: float = 60.0,
        concurrency: int = 16,
        batch_size: int = 1,
        binary: bool | None = None,
        task: str = "classify",
        class_offset: int | None = None,
        box_order: str | None = None,
        box_unit: str | None = None,
        score_threshold: float | None = None,
        max_detections: int | None = None,
        roi_shape: Sequence[int] | None = None,
        overlap: float | None = None,
        output: str | None = None,
    ) -> None:
        """Keep the options.

        Args:
            dataset: Its inputs are arrays of the model's input shape without the batch, or such
                arrays by the names of the model's inputs.
            model: What {model} in `serve` stands for; a server that runs already has its own.
            precision: What the model computes in; the server is not asked for it.
            served_model: The model's name on the server.
            model_version: Version of the model; "" leaves the choice to the server.
            protocol: "http" or "grpc".
            url: Where a server answers that runs already, HOST:PORT, or a URL with http, https,
                grpc or grpcs; by default Triton's port of the protocol on this machine.
            serve: Program and arguments that start the server; {model}, {host}, {port} (HTTP) and
                {grpc_port} are replaced. It is stopped with all that it started.
            environment: Variables that such a server gets besides those of this process.
            start_timeout: Seconds until server and model must be ready.
            request_timeout: Seconds in which an answer must come.
            concurrency: Requests under way at a time at most, each on a connection of its own.
            batch_size: Samples in one request at most; windows, for "segment".
            binary: Whether HTTP carries arrays as bytes; by default where the server has the
                extension binary_tensor_data, and as text in JSON where it has not.
            task: "classify", "answer", "detect", "segment" or "tensor".
            class_offset: "classify": added to the class, by default 0.
            box_order: "detect": "xyxy", the default, or "yxyx".
            box_unit: "detect": "pixel", the default, or "image" for shares of its sides.
            score_threshold: "detect": boxes with a lower score are left out; by default 0.05.
            max_detections: "detect": boxes that are kept at most; by default all.
            roi_shape: "segment": depth, height and width of a window, by default 128 each.
            overlap: "segment": share of a window that the next covers again, by default 0.5.
            output: "segment", "tensor": name of the output; by default the only one.

        Raises:
            SuiteError: An option is out of range, of another task or contradicts another one.
        """
        rules = (
            ("precision", precision, precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
            ("batch_size", batch_size, batch_size >= 1, "a number of samples, at least 1"),
            ("concurrency", concurrency, concurrency >= 1, "a number of requests, at least 1"),
        )
        for name, value, valid, expected in rules:
            if not valid:
                raise SuiteError(f"engine triton: {name} = {value!r} is not {expected}")
        self._wanted = Wanted.of(
            name=served_model,
            version=model_version,
            protocol=protocol,
            url=url,
            serve=serve,
            environment=environment or {},
            model=model,
            start_timeout_s=start_timeout,
            request_timeout_s=request_timeout,
            binary=binary,
        )
        self._task = _make_task(
            task,
            {
                "class_offset": class_offset,
                "box_order": box_order,
                "box_unit": box_unit,
                "score_threshold": score_threshold,
                "max_detections": max_detections,
                "roi_shape": roi_shape,
                "overlap": overlap,
                "output": output,
            },
        )
        self._dataset = dataset
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._samples: dict[int, Sample] = {}
        self._failure: MlperfError | None = None
        self._closing = threading.Event()
        self._open = ExitStack()

    def require(self) -> None:
        """Import what the protocol needs of tritonclient; no server is asked.

        Raises:
            EnvironmentFault: It is not installed.
        """
        self._library = _load_library(self._wanted.address.protocol)

    def __enter__(self) -> Self:
        """Start the server if need be, wait for the model, and compare it with the options.

        Raises:
            EnvironmentFault: tritonclient is not installed.
            RunError: There is no such server or model, it is not ready in time, or the model does
                not fit task, batch size or the protocol.
        """
        self.require()
        with ExitStack() as opening:
            self._service = opening.enter_context(Service(self._wanted))
            self._graph = self._service.graph(self._batch_size)
            self._runner = self._task.bind(self._graph, self._batch_size)
            self._queue = WorkQueue(
                self._complete, threads=self._concurrency, max_batch=self._runner.at_once
            )
            # Last in, first out: connections break, then the threads end, then the server.
            opening.callback(self._queue.close)
            opening.callback(self._service.hang_up)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Break off what is under way, end the threads, and stop a server of our own."""
        self._closing.set()
        self._open.__exit__(kind, error, trace)
        self._samples.clear()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Decode samples and check them, beside those that are loaded.

        Raises:
            RunError: A sample is not what the model takes.
        """
        for index in indices:
            if index not in self._samples:
                self._samples[index] = self._runner.prepare(self._dataset.input(index), index)

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples and free their memory."""
        for index in indices:
            self._samples.pop(index, None)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand the samples to the threads; a list goes by size, large first."""
        if self._runner.sorts and len(ids) > self._runner.at_once:
            sizes = [self._runner.key(self._samples[index]) for index in indices]
            order = sorted(range(len(ids)), key=sizes.__getitem__, reverse=True)
            ids, indices = [ids[place] for place in order], [indices[place] for place in order]
        self._queue.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return what the server says, and every option; needs a loaded model."""
        return {
            "engine": "triton",
            "tritonclient": self._library,
            **self._service.describe(),
            "concurrency": str(self._concurrency),
            "batch_size": str(self._batch_size),
            **self._task.describe(),
        }

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer samples; after a failure nothing more is asked, and the rest fails alike."""
        size = self._runner.at_once
        for start in range(0, len(ids), size):
            if self._closing.is_set():
                return
            if self._failure is not None:
                raise self._failure
            some = indices[start : start + size]
            try:
                outputs = self._answers(some)
            except MlperfError as error:
                if self._closing.is_set():  # it is this engine that broke it off
                    return
                self._failure = error
                raise
            sink.done(ids[start : start + size], outputs if sink.wants_output else None)

    def _answers(self, indices: Sequence[int]) -> Sequence[bytes]:
        try:
            return self._runner.run(indices, [self._samples[index] for index in indices])
        except MlperfError:
            raise
        # A task takes the batch that it gets for the batch that it asked for.
        except Exception as error:
            raise self._graph.refuse(
                f"its answer to {len(indices)} samples cannot be read: {error}"
            ) from error


def _make_task(task: str, options: Mapping[str, Any]) -> Task:
    try:
        return make_task(task, options)
    except SuiteError as error:
        raise ours(error) from error


def _load_library(protocol: str) -> str:
    """Import what the protocol needs; return tritonclient's version.

    Raises:
        EnvironmentFault: It is not installed.
    """
    from importlib import import_module
    from importlib.metadata import version

    try:
        import_module(f"tritonclient.{protocol}")
    except ImportError as error:
        raise EnvironmentFault(
            "engine triton needs a library that is not installed; "
            "try: pip install 'pytest-mlperf[triton]'"
        ) from error
    return version("tritonclient")
