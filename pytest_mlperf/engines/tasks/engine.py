"""What engines of tasks have in common: options checked, samples in memory, batches answered."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.queueing import WorkQueue
from pytest_mlperf.engines.tasks import Runner, make_task
from pytest_mlperf.engines.tasks.graph import Graph

if TYPE_CHECKING:
    from pytest_mlperf.engines.tasks.inputs import Sample


class TaskEngine(Engine):
    """Base class of engines that answer samples as a task says.

    Attributes:
        name: What suites call the engine.
    """

    name: ClassVar[str]

    _graph: Graph
    _runner: Runner
    _queue: WorkQueue | None = None

    def __init__(self, *, dataset: Dataset, task: str, batch_size: int, **options: Any) -> None:
        """Keep the options.

        Args:
            dataset: Its inputs are arrays of the model's input shape without the batch, or such
                arrays by the names of the model's inputs.
            task: A key of `TASKS`.
            batch_size: Samples per call of the model at most; windows, for "segment".
            options: Of the tasks; None leaves one to its task.

        Raises:
            SuiteError: One is out of range, or of another task.
        """
        self._check(("batch_size", batch_size, batch_size >= 1, "a number of samples, at least 1"))
        try:
            self._task = make_task(task, options)
        except SuiteError as error:
            raise SuiteError(f"engine {self.name}: {error}") from error
        self._dataset = dataset
        self._batch_size = batch_size
        self._samples: dict[int, Sample] = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads and free the model and the samples."""
        if self._queue is not None:
            self._queue.close()
        self._samples.clear()
        del self._runner, self._graph

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
        """Run the samples here, or hand them to the threads; a list goes by size, large first."""
        if self._runner.sorts and len(ids) > self._runner.at_once:
            sizes = [self._runner.key(self._samples[index]) for index in indices]
            order = sorted(range(len(ids)), key=sizes.__getitem__, reverse=True)
            ids, indices = [ids[place] for place in order], [indices[place] for place in order]
        if self._queue is None:
            self._complete(ids, indices, sink)
        else:
            self._queue.put(ids, indices, sink)

    def _check(self, *rules: tuple[str, object, bool, str]) -> None:
        """Refuse the first option that is not valid.

        Args:
            rules: Name of an option, its value, whether that is valid, and what is expected.

        Raises:
            SuiteError: Says all of it.
        """
        for name, value, valid, expected in rules:
            if not valid:
                raise SuiteError(f"engine {self.name}: {name} = {value!r} is not {expected}")

    def _bind(self, graph: Graph, threads: int) -> None:
        """Make ready for a model, and start threads; with 0 of them `submit` does the work.

        Raises:
            RunError: The model does not fit task or batch size.
        """
        self._graph = graph
        self._runner = self._task.bind(graph, self._batch_size)
        if threads:
            self._queue = WorkQueue(self._complete, threads=threads, max_batch=self._runner.at_once)

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Answer samples, batch by batch."""
        size = self._runner.at_once
        for start in range(0, len(ids), size):
            outputs = self._answers(indices[start : start + size])
            sink.done(ids[start : start + size], outputs if sink.wants_output else None)

    def _answers(self, indices: Sequence[int]) -> Sequence[bytes]:
        return self._runner.run(indices, [self._samples[index] for index in indices])
