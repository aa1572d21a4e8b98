"""Static batches: `generate` on left-padded prompts of similar length, tokens reported as made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.prompts import Prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The rows of one call of `generate`: ids and data set indices by row, and where to report."""

    ids: Sequence[int]
    indices: Sequence[int]
    sink: Sink

    def take(self, rows: Sequence[int]) -> Batch:
        """Return these rows alone."""
        return Batch(
            ids=[self.ids[row] for row in rows],
            indices=[self.indices[row] for row in rows],
            sink=self.sink,
        )


class StaticBatches:
    """Generates in the calling thread, batch by batch, longest prompts first."""

    def __init__(
        self,
        model: Any,
        generation: Generation,
        prompts: Prompts,
        answers: Answers,
        *,
        batch_size: int,
    ) -> None:
        """Generate with this model.

        Args:
            model: A causal language model of transformers.
            generation: How text is generated.
            prompts: The loaded prompts.
            answers: Reports finished samples.
            batch_size: Samples per batch at most.
        """
        self._model = model
        self._generation = generation
        self._prompts = prompts
        self._answers = answers
        self._batch_size = batch_size
        self._config = generation_config(generation)

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Generate for these samples and report them.

        Raises:
            RunError: The accelerator's memory is too small, or an answer cannot be right.
        """
        samples = Batch(ids=ids, indices=indices, sink=sink)
        longest_first = sorted(
            range(len(ids)), key=lambda row: len(self._prompts[indices[row]]), reverse=True
        )
        for start in range(0, len(ids), self._batch_size):
            batch = samples.take(longest_first[start : start + self._batch_size])
            try:
                self._generate(batch)
            except torch.OutOfMemoryError as error:
                raise RunError(
                    "engine",
                    f"the accelerator ran out of memory with batch_size = {self._batch_size}; "
                    f"lower batch_size or max_new_tokens ({error})",
                ) from error

    def _generate(self, batch: Batch) -> None:
        tokens, mask = self._pad(batch.indices)
        device = self._model.device
        given = {
            "input_ids": tokens.to(device, non_blocking=True),
            "attention_mask": mask.to(device, non_blocking=True),
            "generation_config": self._config,
        }
        with torch.inference_mode():
            if self._generation.num_beams == 1:
                streamer = _Streamer(batch, self._generation, self._answers)
                self._model.generate(**given, streamer=streamer)
                return
            watch = [_FirstStep(batch)] if batch.sink.times_tokens else None
            found = self._model.generate(**given, stopping_criteria=watch)
        rows = [self._generation.cut(row) for row in found[:, tokens.shape[1] :].tolist()]
        self._answers.deliver(batch.ids, batch.indices, rows, batch.sink)

    def _pad(self, indices: Sequence[int]) -> tuple[Any, Any]:
        """Return prompts padded on the left, and 1 where there is a prompt: both (rows, tokens)."""
        rows = [torch.tensor(self._prompts[index]) for index in indices]
        tokens = torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self._generation.padding, padding_side="left"
        )
        width = tokens.shape[1]
        lengths = torch.tensor([[len(row)] for row in rows])
        return tokens, (torch.arange(width) >= width - lengths).long()


def generation_config(generation: Generation) -> Any:
    """Return transformers' settings; nothing of the model's own is left to fill in."""
    return transformers.GenerationConfig(
        max_new_tokens=generation.max_new_tokens,
        min_new_tokens=generation.min_new_tokens,
        num_beams=generation.num_beams,
        # MLPerf's references stop at the first finished beams; transformers' default goes on.
        early_stopping=generation.num_beams > 1,
        do_sample=False,
        eos_token_id=list(generation.ends) or None,
        pad_token_id=generation.padding,
    )


class _Streamer:
    """Takes every step's tokens from `generate`; a row is reported when it ends, not later."""

    def __init__(self, batch: Batch, generation: Generation, answers: Answers) -> None:
        self._batch = batch
        self._ends = generation.ends
        self._last_step = generation.max_new_tokens
        self._answers = answers
        self._alive = list(range(len(batch.ids)))
        self._steps: list[list[int]] = []
        self._seen_prompts = False

    def put(self, value: Any) -> None:
        """Take the prompts (rows, tokens) first, then a token for each row (rows,) at a time."""
        if not self._seen_prompts:
            self._seen_prompts = True
            return
        tokens = value.tolist()
        self._steps.append(tokens)
        if self._batch.sink.times_tokens:
            self._stamp()
        last = len(self._steps) == self._last_step
        ended = [row for row in self._alive if last or tokens[row] in self._ends]
        if ended:
            # What `generate` gives for an ended row from now on is padding.
            self._alive = [row for row in self._alive if row not in set(ended)]
            self._deliver(ended)

    def end(self) -> None:
        """Nothing is held back."""

    def _stamp(self) -> None:
        ids = [self._batch.ids[row] for row in self._alive]
        if len(self._steps) == 1:
            self._batch.sink.first_tokens(ids)
        else:
            self._batch.sink.next_tokens(ids)

    def _deliver(self, ended: Sequence[int]) -> None:
        part = self._batch.take(ended)
        rows = [[step[row] for step in self._steps] for row in ended]
        self._answers.deliver(part.ids, part.indices, rows, part.sink)


class _FirstStep:
    """Reports the first tokens of a beam search, whose later tokens may still change."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._reported = False

    def __call__(self, input_ids: Any, *_: Any, **__: Any) -> Any:
        """Stop nothing: return False for each of `input_ids` (rows, tokens)."""
        if not self._reported:
            self._reported = True
            self._batch.sink.first_tokens(self._batch.ids)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
