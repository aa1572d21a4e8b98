"""Engine `knn`: of each image the class that most of the nearest known images have."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from pytest_mlperf import Engine, RunError, SuiteError, UnavailableError, WorkQueue

from . import __version__

if TYPE_CHECKING:  # numpy is first imported when an engine is loaded
    import numpy as np
    from pytest_mlperf import Sink

    from .search import KnownImages

TYPES = {"fp32": "float32", "fp64": "float64"}


class Images(Protocol):
    """What is needed of a data set."""

    def input(self, index: int) -> np.ndarray:
        """Return an image."""


class KnnEngine(Engine):
    """Answers each image with its class: one int64, little-endian."""

    libraries = ("numpy",)

    def __init__(
        self,
        *,
        dataset: Images | None,
        model: str | None,
        precision: str,
        neighbours: int = 5,
        batch_size: int = 64,
        threads: int = 1,
    ) -> None:
        """Check the options. Nothing is loaded, so a mistake costs no measurement.

        Args:
            dataset: Its inputs are images of whole numbers from 0 to 15, as large as the model's.
            model: File of the known images, .npz, made by `python -m mlperf_numpy.make_model`.
            precision: "fp32" or "fp64": the numbers that distances are computed with. Answers
                are the same.
            neighbours: How many of the nearest known images vote.
            batch_size: Images compared at a time at most. Answers are the same.
            threads: Long-lived threads that work; those of numpy's BLAS come on top.
        """
        if precision not in TYPES:
            raise SuiteError(f"engine knn: precision {precision!r}; fp32 or fp64 is needed")
        numbers = {"neighbours": neighbours, "batch_size": batch_size, "threads": threads}
        for name, value in numbers.items():
            if value < 1:
                raise SuiteError(f"engine knn: {name}={value!r}; it must be at least 1")
        if model is None:
            raise SuiteError('engine knn: write model = "FILE.npz" in [workload]')
        if not Path(model).is_file():
            raise UnavailableError(
                f"engine knn: {model} is not there: python -m mlperf_numpy.make_model {model}"
            )
        self._dataset = dataset
        self._model = Path(model)
        self._type = TYPES[precision]
        self._neighbours = neighbours
        self._batch_size = batch_size
        self._threads = threads

    def __enter__(self) -> Self:
        """Load the known images, and start the threads: they must live as long as the engine."""
        from .search import KnownImages

        self._known: KnownImages = KnownImages.load(self._model, self._neighbours, self._type)
        self._images: np.ndarray | None = None
        self._row: dict[int, int] = {}
        self._queue = WorkQueue(self._answer, threads=self._threads, max_batch=self._batch_size)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads."""
        self._queue.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Prepare images here, where it is not timed: `_answer` only picks rows."""
        assert self._dataset is not None, "only an engine that is never entered has no data set"
        images = [self._dataset.input(index) for index in indices]
        for index, image in zip(indices, images, strict=True):
            if image.size != self._known.size:
                raise RunError(
                    "engine",
                    f"image {index} has {image.size} pixels, those of {self._model} have "
                    f"{self._known.size}",
                )
        self._images = self._known.prepare(images)
        self._row = {index: row for row, index in enumerate(indices)}

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget them."""
        self._images, self._row = None, {}

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Queue images and return at once, so that Server can issue the next."""
        self._queue.put(ids, indices, sink)

    def describe(self) -> dict[str, str]:
        """Return what decides speed and answers, beside the options."""
        from .search import library

        return {
            "mlperf-engine-numpy": __version__,
            **library(),
            "weights_sha256": hashlib.sha256(self._model.read_bytes()).hexdigest()[:16],
        }

    def _answer(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer a batch; runs in a thread of the queue."""
        rows = [self._row[index] for index in indices]
        images: Any = self._images
        classes = self._known.classes_of(images[rows])
        outputs = [one.tobytes() for one in classes.astype("<i8")] if sink.wants_output else None
        sink.done(ids, outputs)
