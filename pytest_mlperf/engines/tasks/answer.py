"""Task "answer": where in a text the answer to a question starts and ends, as BERT gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_mlperf.engines.tasks.graph import Graph, check_batch
from pytest_mlperf.engines.tasks.inputs import IDS, MASK, Sample, names, take
from pytest_mlperf.engines.tasks.stacking import Stacking, stack

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answers are the logits of start and end of each token: float32, shape (seq, 2)."""

    def bind(self, graph: Graph, batch_size: int) -> Answerer:
        """Return what runs this model, whose inputs are all of shape (batch, seq).

        Raises:
            RunError: Its inputs or outputs are others, or its batch dimension is fixed.
        """
        check_batch(graph, batch_size)
        if not any(names(each) == IDS for each in graph.inputs):
            raise graph.refuse(
                f"has no input input_ids, but {', '.join(each.name for each in graph.inputs)}; "
                'task = "answer" runs encoders such as BERT'
            )
        widths = set()
        for each in graph.inputs:
            if len(each.shape) != 2:
                raise graph.refuse(
                    f"its input {each.name!r} has shape {each.shape}; "
                    'task = "answer" runs models whose inputs have shape (batch, seq)'
                )
            widths |= {each.shape[1]} if isinstance(each.shape[1], int) else set()
        return Answerer(
            graph=graph,
            at_once=batch_size,
            outputs=_pick_outputs(graph),
            width=max(widths, default=None),
            masked=any(names(each) == MASK for each in graph.inputs),
        )

    def describe(self) -> Mapping[str, str]:
        """Return what decides the answers."""
        return {"task": "answer"}


@dataclass(frozen=True, kw_only=True)
class Answerer(Stacking):
    """A model that finds answers.

    Attributes:
        outputs: Logits of start and end, each (batch, seq); or both in one, (batch, seq, 2).
        width: Tokens that the model takes, if it takes no other number.
        masked: Whether the model is told what is padding.
    """

    outputs: Sequence[str]
    width: int | None
    masked: bool

    @property
    def sorts(self) -> bool:
        """Whether samples are better put together by length."""
        return self.width is None

    def prepare(self, given: Any, index: int) -> Sample:
        """Return the arrays of a sample as the model takes them, each of shape (seq,).

        Raises:
            RunError: Their names, types or lengths are not the model's.
        """
        sample = take(self.graph, given, index)
        shapes = {array.shape for array in sample.values()}
        length = self.key(sample)
        if shapes != {(length,)} or not length:
            found = ", ".join(f"{name} {array.shape}" for name, array in sample.items())
            raise self.graph.refuse(
                f"takes samples whose arrays have one shape (seq,), but sample {index} of the data "
                f"set has {found}"
            )
        if self.width is not None and (
            length > self.width or (length < self.width and not self.masked)
        ):
            raise self.graph.refuse(
                f"takes {self.width} tokens"
                + (" at most" if self.masked else " and no mask, so no padding")
                + f", but sample {index} of the data set has {length}; set the data set's options "
                "to match"
            )
        return sample

    def key(self, sample: Sample) -> int:
        """Return the number of tokens."""
        return int(next(iter(sample.values())).size)

    def run(
        self,
        indices: Sequence[int],  # noqa: ARG002 - an answer does not name its sample
        samples: Sequence[Sample],
    ) -> list[bytes]:
        """Return the logits of each sample, as many as it has tokens."""
        answers = [b""] * len(samples)
        for places in self.groups(samples):
            lengths = [self.key(samples[place]) for place in places]
            width = self.width or max(lengths)
            feed = {
                name: pad([samples[place][name] for place in places], width) for name in samples[0]
            }
            logits = self._logits(feed, (len(places), width))
            for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
                answers[place] = logits[row, :length].tobytes()
        return answers

    def groups(self, samples: Sequence[Sample]) -> Iterator[list[int]]:
        """Return the places of samples that go together: all, if the model sees padding as such."""
        return iter([list(range(len(samples)))]) if self.masked else super().groups(samples)

    def _logits(self, feed: Mapping[str, NDArray[Any]], expected: tuple[int, int]) -> NDArray[Any]:
        """Return logits, shape (batch, seq, 2)."""
        import numpy as np

        results = self.graph.run(self.outputs, feed)
        given = expected if len(results) == 2 else (*expected, 2)
        if any(each.shape != given for each in results):
            raise self.graph.refuse(
                f"gave {', '.join(f'{each.shape}' for each in results)} for inputs of shape "
                f'{expected}; task = "answer" needs logits of start and end for each token'
            )
        logits = results[0] if len(results) == 1 else np.stack(results, axis=-1)
        return logits.astype("<f4", copy=False)


def pad(arrays: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Return arrays of shape (length,) as one, (number, width), with zeros behind them."""
    import numpy as np

    if all(len(array) == width for array in arrays):
        return stack(arrays)
    padded = np.zeros((len(arrays), width), arrays[0].dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def _pick_outputs(graph: Graph) -> Sequence[str]:
    """Return the names of the logits of start and end, or of the only output."""
    found = {
        word: [each.name for each in graph.outputs if word in each.name.lower()]
        for word in ("start", "end")
    }
    if all(len(names) == 1 for names in found.values()) and found["start"] != found["end"]:
        return [found["start"][0], found["end"][0]]
    if len(graph.outputs) == 1:
        return [graph.outputs[0].name]
    raise graph.refuse(
        f'gives {", ".join(each.name for each in graph.outputs)}; task = "answer" needs one output '
        "with start and one with end in its name, or a single one of shape (batch, seq, 2)"
    )
