"""Ask a model on a server that speaks KServe v2, as Triton, MLServer and KServe do."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.extension import Dataset, Sink
from pytest_mlperf.engines.serving.reach import require_listening
from pytest_mlperf.engines.tasks import PRECISIONS
from pytest_mlperf.engines.tasks.engine import TaskEngine
from pytest_mlperf.engines.triton.service import Service, Wanted

SECONDS = "a number of seconds above 0"


class TritonEngine(TaskEngine):
    """Answers samples with what a model on a server gives; `task` says how it is read.

    "classify": the class, int64. "answer": logits of start and end of each token, float32, shape
    (seq, 2). "detect": float32 rows of index, ymin, xmin, ymax, xmax, score, label. "segment": the
    class of each voxel, uint8. "tensor": an output as it is. All little-endian.
    """

    name = "triton"
    libraries = ("tritonclient",)

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
        self._check(
            ("precision", precision, precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
            ("concurrency", concurrency, concurrency >= 1, "a number of requests, at least 1"),
            ("served_model", served_model, bool(served_model), "the name of a model on the server"),
            ("request_timeout", request_timeout, request_timeout > 0, SECONDS),
            ("start_timeout", start_timeout, start_timeout > 0, SECONDS),
        )
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
        self._concurrency = concurrency
        self._failure: MlperfError | None = None
        self._closing = threading.Event()
        self._open = ExitStack()

    def require(self) -> None:
        """Import what the protocol needs of tritonclient; no server is asked or started.

        Raises:
            EnvironmentFault: It is not installed.
            RunError: The first word of `serve` is no program here.
        """
        self._library = _load_library(self._wanted.address.protocol)
        if self._wanted.serve is not None:
            self._wanted.server(grpc_port=1).require()

    def reach(self) -> None:
        """Look whether a server that runs already listens.

        Raises:
            RunError: It does not.
        """
        if self._wanted.serve is None:
            address = self._wanted.address
            require_listening("triton", address.host.strip("[]"), address.port)

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
            self._bind(self._service.graph(self._batch_size), self._concurrency)
            # Last in, first out: connections break, then the threads end, then the server.
            opening.push(super().__exit__)
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

    def describe(self) -> Mapping[str, str]:
        """Return what the server says, and every option; needs a loaded model."""
        return {
            "engine": self.name,
            "tritonclient": self._library,
            **self._service.describe(),
            "concurrency": str(self._concurrency),
            "batch_size": str(self._batch_size),
            **self._task.describe(),
        }

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer a batch; after a failure nothing more is asked, and the rest fails alike."""
        if self._closing.is_set():
            return
        if self._failure is not None:
            raise self._failure
        try:
            super()._complete(ids, indices, sink)
        except MlperfError as error:
            if self._closing.is_set():  # it is this engine that broke it off
                return
            self._failure = error
            raise

    def _answers(self, indices: Sequence[int]) -> Sequence[bytes]:
        try:
            return super()._answers(indices)
        except MlperfError:
            raise
        # A task takes the batch that it gets for the batch that it asked for.
        except Exception as error:
            raise self._graph.refuse(
                f"its answer to {len(indices)} samples cannot be read: {error}"
            ) from error


def _load_library(protocol: str) -> str:
    """Import what the protocol needs; return tritonclient's version.

    Raises:
        EnvironmentFault: It is not installed.
    """
    from importlib import import_module
    from importlib.metadata import version

    try:
        import_module(f"tritonclient.{protocol}")
    # tritonclient installed without the protocol's extra raises a RuntimeError.
    except (ImportError, RuntimeError) as error:
        raise EnvironmentFault(
            f"engine triton needs tritonclient.{protocol}, which is not installed: {error}; "
            "try: pip install 'pytest-mlperf[triton]'"
        ) from error
    return version("tritonclient")
