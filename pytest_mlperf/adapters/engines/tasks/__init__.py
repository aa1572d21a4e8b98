"""Define tasks, which convert the output tensors of a model to answers of a certain format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from pytest_mlperf import Dataset, Sink, SuiteError, WorkQueue
from pytest_mlperf.adapters.engines import StackedEngine, count_rule
from pytest_mlperf.adapters.engines.tasks._images import Classify, Detect, Segment
from pytest_mlperf.adapters.engines.tasks._yolo import Yolo
from pytest_mlperf.adapters.engines.tasks.graph import (
    IDS,
    MASK,
    Graph,
    Sample,
    Task,
    check_shape,
    input_arrays,
    input_names,
    stack,
)
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.extension import PrecisionName, require_options


@dataclass(kw_only=True)
class AnswerLogits(Task):
    """Answer with the start and end logits of each token: float32, shape (seq, 2)."""

    def bind(self, graph: Graph, batch_size: int) -> None:
        """Use a model with start and end logits, each (batch, seq), or joined, (batch, seq, 2)."""
        super().bind(graph, batch_size)
        if not any(input_names(tensor) == IDS for tensor in graph.inputs):
            raise graph.refuse(
                f"has no input input_ids, but {', '.join(tensor.name for tensor in graph.inputs)}; "
                'task = "answer" runs encoders such as BERT'
            )
        widths = set()
        for tensor in graph.inputs:
            if len(tensor.shape) != 2:
                raise graph.refuse(
                    f"its input {tensor.name!r} has shape {tensor.shape}; "
                    'task = "answer" runs models whose inputs have shape (batch, seq)'
                )
            widths |= {tensor.shape[1]} if isinstance(tensor.shape[1], int) else set()
        self._outputs = _pick_outputs(graph)
        self._width = max(widths, default=None)  # None if it varies
        self._masked = any(input_names(tensor) == MASK for tensor in graph.inputs)

    def describe(self) -> Mapping[str, str]:
        return {"task": "answer"}

    @property
    def sorts(self) -> bool:
        return self._width is None

    def prepare(self, raw: Any, index: int) -> Sample:
        sample = input_arrays(self.graph, raw, index)
        shapes = {array.shape for array in sample.values()}
        length = self.key(sample)
        if shapes != {(length,)} or not length:
            arrays = ", ".join(f"{name} {array.shape}" for name, array in sample.items())
            raise self.graph.refuse(
                f"takes samples whose arrays have one shape (seq,), but sample {index} of the data "
                f"set has {arrays}"
            )
        if self._width is not None and (
            length > self._width or (length < self._width and not self._masked)
        ):
            raise self.graph.refuse(
                f"takes {'at most' if self._masked else 'exactly'} {self._width} tokens"
                + ("" if self._masked else " (it has no mask for padding)")
                + f", but sample {index} of the data set has {length}; set the length in the data "
                "set's options, such as max_seq_length"
            )
        return sample

    def key(self, sample: Sample) -> int:
        return int(next(iter(sample.values())).size)

    def run_batch(self, _indices: Sequence[int], samples: Sequence[Sample]) -> Iterable[bytes]:
        lengths = [self.key(sample) for sample in samples]
        width = self._width or max(lengths)
        feed = {name: pad([sample[name] for sample in samples], width) for name in samples[0]}
        logits = self._logits(feed, (len(samples), width))
        return [row[:length].tobytes() for row, length in zip(logits, lengths, strict=True)]

    def groups(self, samples: Sequence[Sample]) -> Iterator[list[int]]:
        """Yield one batch of all samples if the model masks padding, else a batch per length."""
        return iter([list(range(len(samples)))]) if self._masked else super().groups(samples)

    def _logits(self, feed: Mapping[str, NDArray[Any]], expected: tuple[int, int]) -> NDArray[Any]:
        results = self.graph.run(self._outputs, feed)
        shape = expected if len(results) == 2 else (*expected, 2)
        if any(each.shape != shape for each in results):
            raise self.graph.refuse(
                f"gave {', '.join(f'{each.shape}' for each in results)} for inputs of shape "
                f'{expected}; task = "answer" needs logits of start and end for each token'
            )
        logits = results[0] if len(results) == 1 else np.stack(results, axis=-1)
        return logits.astype("<f4", copy=False)


def pad(arrays: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Pad arrays of shape (length,) with zeros to `width`; return them as (arrays, width)."""
    if all(len(array) == width for array in arrays):
        return stack(arrays)
    padded = np.zeros((len(arrays), width), arrays[0].dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def _pick_outputs(graph: Graph) -> Sequence[str]:
    outputs = {
        word: [each.name for each in graph.outputs if word in each.name.lower()]
        for word in ("start", "end")
    }
    if all(len(names) == 1 for names in outputs.values()) and outputs["start"] != outputs["end"]:
        return [outputs["start"][0], outputs["end"][0]]
    if len(graph.outputs) == 1:
        return [graph.outputs[0].name]
    raise graph.refuse(
        f'gives {", ".join(each.name for each in graph.outputs)}; task = "answer" needs one output '
        "with start and one with end in its name, or a single one of shape (batch, seq, 2)"
    )


@dataclass(kw_only=True)
class RawTensor(Task):
    """Answer with the sample's rows of an output, in the model's type, little-endian.

    A sample is one row of the model's batch, or several with the batch dimension, as the user-item
    pairs of a recommender. `prepare` adds that dimension to others.
    """

    takes_rows = True
    output: str | None = None

    def bind(self, graph: Graph, batch_size: int) -> None:
        super().bind(graph, batch_size)
        self._output = graph.pick(self.output).name

    def describe(self) -> Mapping[str, str]:
        facts = {"task": "tensor"}
        return facts if self.output is None else {**facts, "generation.output": self.output}

    def prepare(self, raw: Any, index: int) -> Sample:
        sample = input_arrays(self.graph, raw, index)
        for tensor in self.graph.inputs:
            if sample[tensor.name].ndim != len(tensor.shape):
                check_shape(self.graph, tensor, sample[tensor.name], tensor.shape[1:], index)
                sample[tensor.name] = sample[tensor.name][None]
            check_shape(self.graph, tensor, sample[tensor.name], tensor.shape, index)
        if len({len(array) for array in sample.values()}) != 1:
            arrays = ", ".join(f"{name} {array.shape}" for name, array in sample.items())
            raise self.graph.refuse(
                f"takes inputs with the same number of rows, but sample {index} of the data set "
                f"has {arrays}"
            )
        return sample

    def key(self, sample: Sample) -> Any:
        return tuple(array.shape[1:] for array in sample.values())

    def call(self, outputs: Sequence[str], samples: Sequence[Sample]) -> Sequence[NDArray[Any]]:
        if len(samples) == 1:
            return self.graph.run(outputs, samples[0])
        feed = {name: np.concatenate([each[name] for each in samples]) for name in samples[0]}
        return self.graph.run(outputs, feed)

    def run_batch(self, _indices: Sequence[int], samples: Sequence[Sample]) -> Iterable[bytes]:
        (result,) = self.call([self._output], samples)
        rows = [len(next(iter(sample.values()))) for sample in samples]
        if result.shape[:1] != (sum(rows),):
            raise self.graph.refuse(
                f"output {self._output!r} has shape {result.shape} for a batch of {sum(rows)}; "
                'task = "tensor" needs an output with the batch as first dimension'
            )
        result = result.astype(result.dtype.newbyteorder("<"), copy=False)
        return [result[first:end].tobytes() for first, end in pairwise(accumulate(rows, initial=0))]


PRECISIONS: tuple[PrecisionName, ...] = ("fp64", "fp32", "bf16", "fp16", "fp8", "int8", "int4")


TASKS: Mapping[str, Any] = {
    "classify": Classify,
    "answer": AnswerLogits,
    "detect": Detect,
    "yolo": Yolo,
    "segment": Segment,
    "tensor": RawTensor,
}


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """Return a task with the options that are not None; errors do not name the engine."""
    if name not in TASKS:
        raise SuiteError(f"task = {name!r} is not one of {', '.join(TASKS)}", option="task")
    chosen = {option: value for option, value in options.items() if value is not None}
    for option in chosen:
        owners = [
            task for task, kind in TASKS.items() if option in {each.name for each in fields(kind)}
        ]
        if name not in owners:
            raise SuiteError(
                f"{option} is an option of task = {' or '.join(map(repr, owners))}, but task = "
                f"{name!r}; leave it out",
                option=(option, "task"),
            )
    task: Task = TASKS[name](**chosen)
    return task


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of a task; None uses the task's default.

    Attributes:
        task: Format of an answer, little-endian. "classify": the class, int64. "answer": start and
            end logits of each token, float32, shape (seq, 2). "detect": float32 rows of index,
            ymin, xmin, ymax, xmax, score, label; "yolo": the same, for exports of YOLO and data set
            coco. "segment": the class of each voxel, uint8. "tensor": an output of the model,
            unchanged.
        batch_size: Maximum samples per call of the model; for "segment", maximum windows.
        class_offset: "classify": number to add to the class, by default 0. Use -1 for MLPerf's
            resnet50_v1.onnx, whose class 0 is the background.
        box_order: "detect": order of box coordinates, "xyxy" (the default) or "yxyx".
        box_unit: "detect": "pixel" (the default), or "image" for shares of the image's width and
            height.
        score_threshold: "detect": lowest score of a box, by default 0.05. "yolo": the score that a
            box must exceed, by default 0.001.
        iou_threshold: "yolo": maximum IoU with a box of the same class and a higher score, by
            default 0.7; not used if the model suppresses boxes itself.
        max_detections: Maximum number of boxes; by default no limit for "detect", and 300 for
            "yolo".
        roi_shape: "segment": depth, height and width of a window, by default 128 each.
        overlap: "segment": share of a window that overlaps with the next one, by default 0.5.
        output: "segment", "tensor": name of the model's output; by default the only output.
    """

    task: str = "classify"
    batch_size: int = 8
    class_offset: int | None = None
    box_order: str | None = None
    box_unit: str | None = None
    score_threshold: float | None = None
    iou_threshold: float | None = None
    max_detections: int | None = None
    roi_shape: Sequence[int] | None = None
    overlap: float | None = None
    output: str | None = None

    def of_task(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(TaskOptions)}


class TaskEngine(StackedEngine):
    """Base of engines that run a model on batches by a `Task` (classify, detect, …)."""

    name: ClassVar[str]

    _graph: Graph
    _queue: WorkQueue | None = None

    def __init__(self, dataset: Dataset, options: TaskOptions) -> None:
        rule = count_rule("batch_size", options.batch_size, "samples")
        require_options(f"engine {self.name}", [rule])
        more = {k: v for k, v in options.of_task().items() if k not in {"task", "batch_size"}}
        try:
            self._task = make_task(options.task, more)
        except SuiteError as error:
            raise SuiteError(f"engine {self.name}: {error}", option=error.options) from error
        self._dataset = dataset
        self._batch_size = options.batch_size
        self._samples: dict[int, Sample] = {}

    def load_samples(self, indices: Sequence[int]) -> None:
        for index in indices:
            if index not in self._samples:
                self._samples[index] = self._task.prepare(self._dataset.input(index), index)

    def unload_samples(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._samples.pop(index, None)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if self._task.sorts and len(ids) > self._task.at_once:
            sizes = [self._task.key(self._samples[index]) for index in indices]
            order = sorted(range(len(ids)), key=sizes.__getitem__, reverse=True)
            ids, indices = [ids[place] for place in order], [indices[place] for place in order]
        if self._queue is None:
            self._complete(ids, indices, sink)
        else:
            self._queue.put(ids, indices, sink)

    def _bind(self, graph: Graph, threads: int, undo: ExitStack) -> None:
        """Bind the task to a model, and start `threads` threads; with 0, `submit` does the work."""
        self._graph = graph
        self._task.bind(graph, self._batch_size)
        undo.callback(self._forget)
        if threads:
            self._queue = WorkQueue(self._complete, threads=threads, max_batch=self._task.at_once)
            undo.callback(self._queue.close)

    def _forget(self) -> None:
        self._samples.clear()
        del self._task.graph, self._graph

    def _complete(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        size = self._task.at_once
        for start in range(0, len(ids), size):
            outputs = self._answers(indices[start : start + size])
            sink.done(ids[start : start + size], outputs if sink.wants_output else None)

    def _answers(self, indices: Sequence[int]) -> Sequence[bytes]:
        return self._task.run(indices, [self._samples[index] for index in indices])
