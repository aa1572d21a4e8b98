"""Generate in static batches, or with transformers' continuous batching.

A static batch has left-padded prompts of similar length, and its tokens are reported at each step.
One long-lived thread reports the results of continuous batching.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import torch
import transformers
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from pytest_mlperf import RunError, Sink, SuiteError
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.engines.llm.generation import Answers, Generation, logprobs_output
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats
from pytest_mlperf.adapters.engines.torch._base import TextModel, TorchOptions
from pytest_mlperf.adapters.engines.torch._devices import enough_memory
from pytest_mlperf.adapters.engines.torch._sampling import DrawnOnly, numbers
from pytest_mlperf.adapters.engines.torch._stages import Stopwatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Hold the samples of one call of `generate`: sample ids, data set indices, and their sink."""

    ids: Sequence[int]
    indices: Sequence[int]
    sink: Sink

    def take(self, rows: Sequence[int]) -> Batch:
        return Batch(
            ids=[self.ids[row] for row in rows],
            indices=[self.indices[row] for row in rows],
            sink=self.sink,
        )


class StaticBatches:
    """Generate in the calling thread, batch by batch, longest prompts first."""

    def __init__(self, text: TextModel, *, batch_size: int) -> None:
        self._text = text
        self._batch_size = batch_size
        self._config = generation_config(text.generation, static_cache=has_static_cache(text.model))

    def run(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        samples = Batch(ids=ids, indices=indices, sink=sink)
        longest_first = sorted(
            range(len(ids)), key=lambda row: len(self._text.prompts[indices[row]]), reverse=True
        )
        for start in range(0, len(ids), self._batch_size):
            batch = samples.take(longest_first[start : start + self._batch_size])
            with enough_memory(self._batch_size, "lower batch_size or max_new_tokens"):
                self._generate(batch)

    def _generate(self, batch: Batch) -> None:
        device = self._text.model.device
        watch = Stopwatch(self._text.stages, device)
        tokens, mask = self._pad(batch.indices, "left")
        tokens, mask = (t.to(device, non_blocking=True) for t in (tokens, mask))
        generation, processors = self._text.generation, []
        if generation.is_drawn:
            draws = numbers(generation, batch.indices, device)
            processors.append(DrawnOnly(generation, draws, tokens.shape[1]))
        with torch.inference_mode():
            inputs = {
                "input_ids": tokens,
                "attention_mask": mask,
                "generation_config": self._config,
                "logits_processor": processors,
            }
            if isinstance(chats := self._text.prompts.chats, PictureChats):
                features = chats.features(batch.indices, tokens)
                inputs |= {name: feature.to(device) for name, feature in features.items()}
            if generation.num_beams == 1:
                streamer = Streamer(batch, generation, self._text.answers, watch)
                self._text.model.generate(**inputs, streamer=streamer)
                return
            first = _FirstStep(batch, watch)
            generated = self._text.model.generate(**inputs, stopping_criteria=[first])
            watch.end("decode")
        rows = [generation.cut(row) for row in generated[:, tokens.shape[1] :].tolist()]
        self._text.answers.deliver(batch.ids, batch.indices, rows, batch.sink)

    def _pad(self, indices: Sequence[int], side: str) -> tuple[Any, Any]:
        """Return prompts padded on side "left" or "right", and their mask, both (rows, tokens)."""
        rows = [torch.tensor(self._text.prompts[index]) for index in indices]
        tokens = torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self._text.generation.padding, padding_side=side
        )
        mask = torch.arange(tokens.shape[1]) < torch.tensor([[len(row)] for row in rows])
        return tokens, (mask.flip(1) if side == "left" else mask).long()


class LogprobBatches(StaticBatches):
    """Compute the log-probabilities of prompts in batches, longest first; generate nothing."""

    def _generate(self, batch: Batch) -> None:
        rows = [self._text.prompts[index] for index in batch.indices]
        device = self._text.model.device
        tokens, mask = self._pad(batch.indices, "right")
        with torch.inference_mode():
            logits = self._text.model(
                input_ids=tokens.to(device), attention_mask=mask.to(device), use_cache=False
            ).logits
            outputs = [
                logprobs_output(index, row, [math.nan, *_logprobs(scores, row)])
                for index, row, scores in zip(batch.indices, rows, logits, strict=True)
            ]
        batch.sink.done(batch.ids, outputs if batch.sink.wants_output else None)


def _logprobs(logits: Any, row: Sequence[int]) -> list[float]:
    """Return the log-probability of each token after the first; logits (tokens, vocabulary)."""
    following = torch.tensor(row[1:], device=logits.device)
    scores = logits[: len(row) - 1].float()  # row by row, since float32 doubles the memory
    chosen = scores.gather(1, following[:, None])[:, 0]
    logprobs: list[float] = (chosen - scores.logsumexp(1)).tolist()
    return logprobs


def has_static_cache(model: Any) -> bool:
    # It is slower on the CPU (docs/benchmarks.md), and Falcon with ALiBi fails with it.
    return model.device.type == "cuda" and not getattr(model.config, "alibi", False)


def generation_config(generation: Generation, *, static_cache: bool = False) -> Any:
    """Return transformers' generation settings; all are set, so the model's defaults do not apply.

    With `static_cache` the key-value cache is allocated for the maximum length.
    """
    return transformers.GenerationConfig(
        max_new_tokens=generation.max_new_tokens,
        min_new_tokens=generation.min_new_tokens,
        num_beams=generation.num_beams,
        # MLPerf's references stop at the first finished beams, unlike transformers' default.
        early_stopping=generation.num_beams > 1,
        do_sample=False,
        eos_token_id=list(generation.ends) or None,
        pad_token_id=generation.padding,
        cache_implementation="static" if static_cache else None,
        # Else transformers compiles for each new batch shape, even while time is measured.
        disable_compile=True,
    )


class Streamer:
    """Report each answer of a batch when it ends; time the stages "prefill" and "decode"."""

    def __init__(
        self, batch: Batch, generation: Generation, answers: Answers, watch: Stopwatch
    ) -> None:
        self._batch = batch
        self._watch = watch
        self._ends = generation.ends
        self._last_step = generation.max_new_tokens
        self._answers = answers
        self._alive = list(range(len(batch.ids)))
        self._steps: list[list[int]] = []
        self._seen_prompts = False

    def put(self, value: Any) -> None:
        """Receive the prompts (rows, tokens) in the first call, then a token per row (rows,)."""
        if not self._seen_prompts:
            self._seen_prompts = True
            return
        tokens = value.tolist()
        self._watch.end("decode" if self._steps else "prefill")
        self._steps.append(tokens)
        if self._batch.sink.times_tokens:
            sink, alive = self._batch.sink, [self._batch.ids[row] for row in self._alive]
            (sink.next_tokens if len(self._steps) > 1 else sink.first_tokens)(alive)
        last = len(self._steps) == self._last_step
        ended = [row for row in self._alive if last or tokens[row] in self._ends]
        if ended:
            # Later tokens of an ended row are ignored.
            self._alive = [row for row in self._alive if row not in set(ended)]
            part = self._batch.take(ended)
            rows = [[step[row] for step in self._steps] for row in ended]
            self._answers.deliver(part.ids, part.indices, rows, part.sink)

    def end(self) -> None:
        """Do nothing, since no tokens are buffered."""


class _FirstStep:
    """Report the first token of each sample in a beam search; later tokens may still change."""

    def __init__(self, batch: Batch, watch: Stopwatch) -> None:
        self._batch = batch
        self._watch = watch
        self._reported = False

    def __call__(self, input_ids: Any, *_: Any, **__: Any) -> Any:
        """Report first tokens at the first call; return False (continue) for each input row."""
        if not self._reported:
            self._reported = True
            self._watch.end("prefill")
            if self._batch.sink.times_tokens:
                self._batch.sink.first_tokens(self._batch.ids)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class LateEnd:
    """Forbid end tokens in each request until it has the minimum number of tokens.

    transformers' own processor does not know the length of each request.
    """

    supported_kwargs: Mapping[str, type] = {}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, generation: Generation, device: Any) -> None:
        self._ends = torch.tensor(generation.ends, device=device)
        self._min_new_tokens = generation.min_new_tokens

    def fill_defaults(self, int32_tensor: Any) -> None:
        """Set all flags to 0, which allows end tokens; `int32_tensor` has one flag per row."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Any:
        """Return an int32 flag per request: 1 if its next token must not be an end token."""
        flags = [
            self._generated(request.state) < self._min_new_tokens
            for request in requests_with_new_token
        ]
        return torch.tensor(flags, dtype=torch.int32)

    def __call__(self, scores: Any, tensor_arg: Any) -> Any:
        """Return scores (rows, vocabulary): -inf for end tokens in rows flagged by `tensor_arg`."""
        young = tensor_arg[: scores.shape[0], None].bool()
        scores[:, self._ends] = scores[:, self._ends].masked_fill(young, -math.inf)
        return scores

    def _generated(self, state: Any) -> int:
        # position_offset counts all tokens read, this step's included; the token lists are one
        # step behind if transformers prepares batches ahead.
        prompt = state._true_initial_tokens or len(state.initial_tokens)
        return int(state.position_offset) - prompt


# transformers checks for its own base class, which mypy cannot type if it is not installed.
ContinuousBatchingLogitsProcessor.register(LateEnd)


def min_length_processors(generation: Generation, device: Any) -> Any:
    """Return logits processors that forbid end tokens before the minimum number of tokens."""
    processors = ContinuousBatchingLogitsProcessorList(
        transformers.LogitsProcessorList([LateEnd(generation, device)])
    )
    # transformers sets it only for processors that it makes itself.
    processors.tensors_required = 1
    return processors


PAGE_TOKENS = 256
"""Tokens of a block of the key-value cache; transformers' default."""

MIN_BATCH_TOKENS = 512
"""Tokens per forward pass of continuous batching, unless more samples are batched."""

QUEUED_BATCHES = 2
"""Batches of requests in transformers' queue, which its scheduler scans at every step."""


@dataclass(kw_only=True, slots=True)
class BatchedRequest:
    """Hold a sample in flight: id, data set index, sink, and number of reported tokens."""

    sample: int
    index: int
    sink: Sink
    stamped: int = 0


@dataclass(slots=True)
class _Arrivals:
    """Collect for a sink: ids of first and of further tokens, finished requests, an error."""

    sink: Sink
    first: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)
    finished: list[tuple[BatchedRequest, list[int]]] = field(default_factory=list)
    error: str | None = None


STATEFUL = "linear_attention"
"""Type of layers that keep a state instead of tokens, and do not fit a paged cache."""


def can_join(model: Any) -> bool:
    """Return whether continuous batching, with its paged cache, can run a model."""
    return STATEFUL not in (getattr(model.config.get_text_config(), "layer_types", None) or ())


STATE_KERNELS = ("flash-linear-attention", "causal-conv1d")
"""Packages with kernels for such layers, which transformers uses if they are installed."""


def state_kernels() -> str:
    """Return the installed kernel packages for stateful layers; "torch" (slower) if none is."""
    installed = []
    for package in STATE_KERNELS:
        with contextlib.suppress(PackageNotFoundError):
            installed.append(f"{package} {version(package)}")
    return ", ".join(installed) or "torch"


class ContinuousBatching:
    """Pass requests to transformers' batching manager, and report its results."""

    def __init__(self, text: TextModel, options: TorchOptions) -> None:
        """Start the thread that reports results; the cache is allocated later."""
        self._text = text
        self._options = options
        self._cache_needed = options.batching != "auto"
        self._blocks = 0
        self._manager: Any = None
        self._names = map(str, count())
        self._lock = threading.Lock()
        self._waiting: deque[BatchedRequest] = deque()
        self._running: dict[str, BatchedRequest] = {}
        self._results: SimpleQueue[Any] = SimpleQueue()
        # LoadGen can crash if a thread that completed samples ends before it.
        self._thread = threading.Thread(target=self._serve, name="continuous", daemon=True)
        self._thread.start()

    def reserve(self) -> None:
        if not self._cache_needed:
            return
        longest = self._text.prompts.longest + self._text.generation.max_new_tokens
        needed = -(-longest // PAGE_TOKENS)
        blocks = self._options.kv_blocks or needed * self._options.batch_size
        if needed > blocks:
            raise SuiteError(
                f"engine torch: kv_blocks = {blocks} holds {blocks * PAGE_TOKENS} tokens, but the "
                f"longest sample needs {longest} with its answer; set kv_blocks to at least "
                f"{needed}",
                option="kv_blocks",
            )
        if blocks > self._blocks:
            self._stop()
            self._start(blocks)

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        if not self._cache_needed:
            self._cache_needed = True
            self.reserve()
        with self._lock:
            self._waiting.extend(
                BatchedRequest(sample=sample, index=index, sink=sink)
                for sample, index in zip(ids, indices, strict=True)
            )
            self._feed()

    def close(self) -> None:
        self._stop()
        self._results.put(None)
        self._thread.join()

    def _start(self, blocks: int) -> None:
        manager = self._make_manager(blocks)
        manager.output_router.output_queue = self._results
        try:
            manager.warmup()
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise engine_error(
                f"a key-value cache of {blocks} blocks of {PAGE_TOKENS} tokens does not fit into "
                f"memory; lower batch_size, max_new_tokens or kv_blocks ({error})",
            ) from error
        manager.start()
        self._manager, self._blocks = manager, blocks

    def _make_manager(self, blocks: int) -> Any:
        generation, options = self._text.generation, self._options
        max_tokens = options.max_batch_tokens or max(MIN_BATCH_TOKENS, options.batch_size)
        manager = self._text.model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                max_new_tokens=generation.max_new_tokens,
                do_sample=False,
                eos_token_id=list(generation.ends) or -1,
                pad_token_id=generation.padding,
            ),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=blocks,
                max_batch_tokens=max_tokens,
                max_requests_per_batch=options.batch_size,
                # MLPerf forbids reuse of data between queries.
                allow_block_sharing=False,
                # The suite chooses the attention.
                auto_switch_to_flash=False,
                # A cache for every sample of a batch needs no margin.
                safety_margin=None if options.kv_blocks else 0.0,
                seed=0,
            ),
        )
        if generation.ends and generation.min_new_tokens:
            manager.logit_processor = min_length_processors(generation, self._text.model.device)
        return manager

    def _stop(self) -> None:
        with self._lock:
            self._running.clear()
            self._waiting.clear()
        if self._manager is not None:
            self._manager.stop(block=True, hard_stop=True)
            self._manager.destroy()
            self._manager, self._blocks = None, 0

    def _feed(self) -> None:
        while self._waiting and len(self._running) < QUEUED_BATCHES * self._options.batch_size:
            request = self._waiting.popleft()
            name = next(self._names)
            self._running[name] = request
            accepted = self._manager.add_request(
                self._text.prompts[request.index],
                request_id=name,
                max_new_tokens=self._text.generation.max_new_tokens,
                streaming=request.sink.times_tokens,
                eos_token_id=list(self._text.generation.ends) or -1,
            )
            if accepted is None:
                self._waiting.clear()
                reason = self._manager.background_thread_status.fatal_error
                request.sink.failed(_failed(f"it has stopped: {reason}"))

    def _serve(self) -> None:
        serving = True
        while serving:
            results = [self._results.get()]
            with contextlib.suppress(Empty):
                while True:
                    results.append(self._results.get_nowait())
            serving = None not in results
            with self._lock:
                sorted_news = self._group_by_sink(
                    [result for result in results if result is not None]
                )
                self._feed()
            for news in sorted_news:
                try:
                    self._report(news)
                except BaseException as error:  # without this thread the run would hang
                    news.sink.failed(error)

    def _group_by_sink(self, results: Iterable[Any]) -> list[_Arrivals]:
        """Group new results by sink; the caller must hold the lock."""
        arrivals: dict[int, _Arrivals] = {}
        for result in results:
            request = self._running.get(result.request_id)
            if request is None:  # dropped by close()
                continue
            if is_finished := result.is_finished():
                del self._running[result.request_id]
            news = arrivals.setdefault(id(request.sink), _Arrivals(request.sink))
            if result.error is not None:
                news.error = result.error
                continue
            if request.sink.times_tokens:
                (news.further if request.stamped else news.first).append(request.sample)
                request.stamped += 1
            if is_finished:
                news.finished.append((request, result.generated_tokens))
        return list(arrivals.values())

    def _report(self, news: _Arrivals) -> None:
        if news.error is not None:
            raise _failed(news.error)
        if news.first:
            news.sink.first_tokens(news.first)
        if news.further:
            news.sink.next_tokens(news.further)
        if news.finished:
            requests, rows = zip(*news.finished, strict=True)
            self._text.answers.deliver(
                [request.sample for request in requests],
                [request.index for request in requests],
                rows,
                news.sink,
            )


def _failed(reason: str) -> RunError:
    hint = "; lower batch_size or kv_blocks" if "out of memory" in reason else ""
    return engine_error(f"continuous batching failed: {reason}{hint}")
