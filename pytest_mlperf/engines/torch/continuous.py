"""Continuous batching by transformers' own manager; one long-lived thread reports the samples."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import torch
import transformers

from pytest_mlperf.core.errors import RunError, SuiteError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.torch.late_end import late_end

PAGE_TOKENS = 256
"""Tokens of one block of the key-value cache; transformers' default."""

AHEAD = 2
"""Batches of requests in transformers' hands: its scheduler looks at each of them at every step."""


@dataclass(kw_only=True, slots=True)
class Request:
    """One sample on its way: its id, its data set index, where to report, and tokens stamped."""

    sample: int
    index: int
    sink: Sink
    stamped: int = 0


@dataclass(kw_only=True, slots=True)
class _News:
    """What came in for one sink: ids by kind of report, finished requests with their tokens."""

    sink: Sink
    first: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)
    finished: list[tuple[Request, list[int]]] = field(default_factory=list)
    error: str | None = None


class ContinuousBatching:
    """Feeds transformers' manager and reports what it gives back."""

    def __init__(
        self,
        model: Any,
        generation: Generation,
        prompts: Prompts,
        answers: Answers,
        *,
        batch_size: int,
        kv_blocks: int | None,
        max_batch_tokens: int,
        at_need: bool,
    ) -> None:
        """Start the reporting thread.

        Args:
            model: A causal language model of transformers.
            generation: How text is generated; greedy.
            prompts: The loaded prompts.
            answers: Reports finished samples.
            batch_size: Samples generated together at most.
            kv_blocks: Blocks of 256 tokens in the key-value cache; None makes it large enough for
                `batch_size` samples as long as the longest.
            max_batch_tokens: Tokens per forward pass at most.
            at_need: Take no memory for the cache before the first sample is put.
        """
        self._model = model
        self._generation = generation
        self._prompts = prompts
        self._answers = answers
        self._batch_size = batch_size
        self._kv_blocks = kv_blocks
        self._max_batch_tokens = max_batch_tokens
        self._wanted = not at_need
        self._blocks = 0
        self._manager: Any = None
        self._names = map(str, count())
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Request] = {}
        self._results: SimpleQueue[Any] = SimpleQueue()
        # LoadGen can crash when a thread that completed samples ends before it does.
        self._thread = threading.Thread(target=self._serve, name="continuous", daemon=True)
        self._thread.start()

    def reserve(self) -> None:
        """Make the key-value cache, once it is wanted, large enough for the loaded prompts.

        Raises:
            RunError: The cache does not fit into memory.
            SuiteError: A sample does not fit into the cache.
        """
        if not self._wanted:
            return
        longest = self._prompts.longest + self._generation.max_new_tokens
        needed = -(-longest // PAGE_TOKENS)
        blocks = self._kv_blocks or needed * self._batch_size
        if needed > blocks:
            raise SuiteError(
                f"engine torch: kv_blocks = {blocks} holds {blocks * PAGE_TOKENS} tokens, but the "
                f"longest sample needs {longest} with its answer; set kv_blocks to at least "
                f"{needed}"
            )
        if blocks > self._blocks:
            self._stop()
            self._start(blocks)

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Take samples and return at once."""
        if not self._wanted:
            self._wanted = True
            self.reserve()
        with self._lock:
            self._waiting.extend(
                Request(sample=sample, index=index, sink=sink)
                for sample, index in zip(ids, indices, strict=True)
            )
            self._feed()

    def close(self) -> None:
        """Stop the threads; what is not finished is dropped."""
        self._stop()
        self._results.put(None)
        self._thread.join()

    def _start(self, blocks: int) -> None:
        manager = self._make_manager(blocks)
        manager.output_router.output_queue = self._results
        try:
            manager.warmup()
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise RunError(
                "engine",
                f"a key-value cache of {blocks} blocks of {PAGE_TOKENS} tokens does not fit into "
                f"memory; lower batch_size, max_new_tokens or kv_blocks ({error})",
            ) from error
        manager.start()
        self._manager, self._blocks = manager, blocks

    def _make_manager(self, blocks: int) -> Any:
        generation = self._generation
        manager = self._model.init_continuous_batching(
            generation_config=transformers.GenerationConfig(
                max_new_tokens=generation.max_new_tokens,
                do_sample=False,
                eos_token_id=list(generation.ends) or -1,
                pad_token_id=generation.padding,
            ),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=blocks,
                max_batch_tokens=self._max_batch_tokens,
                max_requests_per_batch=self._batch_size,
                # MLPerf forbids to keep anything from one query for another.
                allow_block_sharing=False,
                # Attention is what the suite says, and nothing else.
                auto_switch_to_flash=False,
                # A cache that holds every sample of a batch needs no room to spare.
                safety_margin=None if self._kv_blocks else 0.0,
                seed=0,
            ),
        )
        if generation.ends and generation.min_new_tokens:
            manager.logit_processor = late_end(generation, self._model.device)
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
        """Hand on waiting requests, with the lock held."""
        while self._waiting and len(self._running) < AHEAD * self._batch_size:
            request = self._waiting.popleft()
            name = next(self._names)
            self._running[name] = request
            accepted = self._manager.add_request(
                self._prompts[request.index],
                request_id=name,
                max_new_tokens=self._generation.max_new_tokens,
                streaming=request.sink.times_tokens,
                eos_token_id=list(self._generation.ends) or -1,
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
                sorted_news = self._sort([each for each in results if each is not None])
                self._feed()
            for news in sorted_news:
                try:
                    self._report(news)
                except BaseException as error:  # a dead thread would hang the run
                    news.sink.failed(error)

    def _sort(self, results: Iterable[Any]) -> list[_News]:
        """Return what there is to report, by sink; with the lock held."""
        found: dict[int, _News] = {}
        for result in results:
            request = self._running.get(result.request_id)
            if request is None:  # dropped by close()
                continue
            if over := result.is_finished():
                del self._running[result.request_id]
            news = found.setdefault(id(request.sink), _News(sink=request.sink))
            if result.error is not None:
                news.error = result.error
                continue
            if request.sink.times_tokens:
                (news.further if request.stamped else news.first).append(request.sample)
                request.stamped += 1
            if over:
                news.finished.append((request, result.generated_tokens))
        return list(found.values())

    def _report(self, news: _News) -> None:
        if news.error is not None:
            raise _failed(news.error)
        if news.first:
            news.sink.first_tokens(news.first)
        if news.further:
            news.sink.next_tokens(news.further)
        if news.finished:
            requests, rows = zip(*news.finished, strict=True)
            self._answers.deliver(
                [request.sample for request in requests],
                [request.index for request in requests],
                rows,
                news.sink,
            )


def _failed(reason: str) -> RunError:
    hint = "; lower batch_size or kv_blocks" if "out of memory" in reason else ""
    return RunError("engine", f"continuous batching failed: {reason}{hint}")
