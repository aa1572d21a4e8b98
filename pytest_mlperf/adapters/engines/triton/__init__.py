"""Ask a model on a server that speaks KServe v2, as Triton, MLServer and KServe do."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Self

from pytest_mlperf import Dataset, EnvironmentFault, MlperfError, Sink
from pytest_mlperf.adapters.engines import number_of, one_of
from pytest_mlperf.adapters.engines.tasks import PRECISIONS, TaskEngine
from pytest_mlperf.adapters.engines.triton._service import Service, TritonOptions
from pytest_mlperf.extension import require_options

SECONDS = "a number of seconds above 0"


class TritonEngine(TaskEngine):
    """Answers samples with what a model on a server gives; `task` says how it is read."""

    name = "triton"
    libraries = ("tritonclient",)
    client: ClassVar[bool] = True
    options: ClassVar[type] = TritonOptions
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        """Keep the options.

        Args:
            dataset: Its inputs are arrays of the model's input shape without the batch, or such
                arrays by the names of the model's inputs.
            model: What {model} in `serve` stands for; a server that runs already has its own.
            precision: What the model computes in; the server is not asked for it.
            options: Those of `TritonOptions`.
        """
        self._options = asked = TritonOptions(**options)
        super().__init__(dataset, asked)
        served = asked.served_model
        rules = (
            one_of("precision", precision, PRECISIONS),
            number_of("concurrency", asked.concurrency, "requests"),
            ("served_model", served, bool(served), "the name of a model on the server"),
            ("request_timeout", asked.request_timeout, asked.request_timeout > 0, SECONDS),
            ("start_timeout", asked.start_timeout, asked.start_timeout > 0, SECONDS),
        )
        require_options("engine triton", rules)
        self._service = Service(asked, model)
        self._failure: MlperfError | None = None
        self._closing = threading.Event()
        self._open = ExitStack()

    def require(self) -> None:
        """Import tritonclient's module for the protocol; contact and start no server."""
        self._library = _load_library(self._options.protocol)
        self._service.require()

    def reach(self) -> None:
        self._service.reach()

    def __enter__(self) -> Self:
        self.require()
        with ExitStack() as opening:
            opening.enter_context(self._service)
            self._bind(self._service.graph(), self._options.concurrency)
            # Last in, first out: connections break, then the threads end, then the server.
            opening.push(super().__exit__)
            opening.callback(self._service.hang_up)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._closing.set()
        self._open.__exit__(*exc_info)

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
