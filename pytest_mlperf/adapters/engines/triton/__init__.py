"""Query a model on a KServe v2 server, such as Triton, MLServer or KServe."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from pytest_mlperf import Dataset, EnvironmentFault, MlperfError, Sink
from pytest_mlperf.adapters.engines import count_rule, one_of
from pytest_mlperf.adapters.engines.tasks import PRECISIONS, TaskEngine
from pytest_mlperf.adapters.engines.triton._service import Service, TritonOptions
from pytest_mlperf.extension import require_options

SECONDS = "a number of seconds above 0"


class TritonEngine(TaskEngine):
    """Answer samples with a model on a server; option `task` sets the format of the answers."""

    name = "triton"
    libraries = ("tritonclient",)
    client: ClassVar[bool] = True
    options: ClassVar[type] = TritonOptions
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        """Store the options.

        Args:
            dataset: Its inputs are arrays in the model's input shape without the batch dimension,
                or dicts of such arrays by input name.
            model: Replaces {model} in option `serve`; not used with a running server.
            precision: Precision that the suite declares; the server's precision is not checked.
        """
        self._options = chosen = TritonOptions(**options)
        super().__init__(dataset, chosen)
        served = chosen.served_model
        rules = (
            one_of("precision", precision, PRECISIONS),
            count_rule("concurrency", chosen.concurrency, "requests"),
            ("served_model", served, bool(served), "the name of a model on the server"),
            ("request_timeout", chosen.request_timeout, chosen.request_timeout > 0, SECONDS),
            ("start_timeout", chosen.start_timeout, chosen.start_timeout > 0, SECONDS),
        )
        require_options("engine triton", rules)
        self._service = Service(chosen, model)
        self._failure: MlperfError | None = None
        self._closing = threading.Event()

    def require(self) -> None:
        self._library = _load_library(self._options.protocol)
        self._service.require()

    def reach(self) -> None:
        self._service.reach()

    def _open(self, undo: ExitStack) -> None:
        self.require()
        self._service.open(undo)
        # Last in, first out: connections break, then the threads end, then the server.
        self._bind(self._service.graph(), self._options.concurrency, undo)
        undo.callback(self._service.hang_up)

    def __exit__(self, *exc_info: Any) -> None:
        self._closing.set()
        super().__exit__(*exc_info)

    def describe(self) -> Mapping[str, str]:
        return {
            "engine": self.name,
            "tritonclient": self._library,
            **self._service.describe(),
            "concurrency": str(self._options.concurrency),
            "batch_size": str(self._batch_size),
            **self._task.describe(),
        }

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer a batch; after a failure, send no further requests and repeat the first error."""
        if self._closing.is_set():
            return
        if self._failure is not None:
            raise self._failure
        try:
            super()._complete(ids, indices, sink)
        # A task may raise any error for a response to another batch.
        except Exception as error:
            if self._closing.is_set():  # this engine closed the connection
                return
            if isinstance(error, MlperfError):
                self._failure = error
                raise
            problem = f"its answer to {len(indices)} samples cannot be read: {error}"
            self._failure = self._graph.refuse(problem)
            raise self._failure from error


def _load_library(protocol: str) -> str:
    from importlib import import_module
    from importlib.metadata import version

    try:
        import_module(f"tritonclient.{protocol}")
    # tritonclient installed without the protocol's extra raises a RuntimeError.
    except (ImportError, RuntimeError) as error:
        raise EnvironmentFault(
            f"engine triton needs tritonclient.{protocol}, which is not installed: {error}; "
            "try: pip install 'pytest-mlperf[triton]'",
            option="protocol",
        ) from error
    return version("tritonclient")
