"""The thread that generates: requests join a batch in flight, and leave it when they end."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from .faults import fault
from .outputs import RequestOutput, RequestPerfMetrics, Response, TimingMetrics


@dataclass(eq=False)
class Work:
    """One request.

    Attributes:
        output: Where it is answered.
        sampling: Its SamplingParams.
        streaming: Whether tokens are sent as they come.
        tokens: Prompt and answer.
        timing: When what happened.
        reported: Tokens of the answer that were sent.
        iterations: Steps that gave it tokens, the prompt's too.
    """

    output: RequestOutput
    sampling: Any
    streaming: bool
    tokens: list[int]
    timing: TimingMetrics
    reported: int = 0
    iterations: int = 0
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    @property
    def answer(self) -> list[int]:
        return self.tokens[self.prompt :]


def now_since_start() -> timedelta:
    """The time since the machine was started."""
    return timedelta(seconds=time.monotonic())


class Executor:
    def __init__(self, model: Any, args: Any, longest: int) -> None:
        self._args = args
        self._most = args.max_batch_size or 2048
        self._longest = longest
        self._model = model
        self._rows: list[Work] = []
        drafts = args.speculative_config
        self._guesses = drafts.max_draft_len or 0 if drafts else 0
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    @property
    def is_shutdown(self) -> bool:
        return self._closed

    def put(self, work: Work) -> None:
        self._waiting.put(work)

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while (new := self._take()) is not None:
                self._advance(new)

    def _advance(self, new: list[Work]) -> None:
        """Read the prompts of those that join, or give all in flight one more token."""
        try:
            if new:
                self._rows.extend(new)
                self._move(new)
            elif self._rows:
                self._move(list(self._rows))
                for _ in range(self._guesses):  # each of them is right
                    self._move(list(self._rows), guessed=True)
        except Exception as error:
            for row in {*new, *self._rows}:
                row.output._put(Response(error=error))
            self._rows.clear()

    def _take(self) -> list[Work] | None:
        """Return the requests that join now, None at the end; wait if none is in flight."""
        work_taken: list[Work] = []
        while len(self._rows) + len(work_taken) < self._most:
            idle = not self._rows and not work_taken
            try:
                work = self._waiting.get(block=idle)
            except queue.Empty:
                break
            if work is None:
                return None
            if work.prompt >= self._longest:
                error = ValueError(
                    f"prompt length {work.prompt} leaves no room in max_seq_len {self._longest}"
                )
                work.output._put(Response(error=error))
                continue
            if work.output.request_id == fault("fail"):
                if fault("told_error"):
                    vars(work.output)["error"] = "CUDA error: out of memory"
                    work.output._put(Response(reason="error"))
                    continue
                try:
                    raise ValueError("the worker's own words")
                except ValueError as cause:
                    failure = RuntimeError("CUDA error: out of memory")
                    failure.__cause__ = cause
                work.output._put(Response(error=failure))
                continue
            work.timing.first_scheduled_time = now_since_start()
            work_taken.append(work)
        return work_taken

    def _move(self, rows: list[Work], *, guessed: bool = False) -> None:
        """Give each row its next token, and let those go that are finished."""
        gone = set()
        for row in rows:
            sampling, score = row.sampling, self._model.scores(row.tokens, [])
            # The sampler of 1.2 compares prompt and answer with it.
            counted = row.answer if fault("min_of_answer") else row.tokens
            held_back = len(counted) < (sampling.min_tokens or 0) and not fault("min_ignored")
            if held_back:
                score[-1 if sampling.ignore_eos else sampling.end_id] = -float("inf")
            row.tokens.append(int(score.argmax()))
            row.iterations += not guessed
            row.timing.last_token_time = now_since_start()
            if len(row.answer) == 1:
                row.timing.first_token_time = now_since_start()
            reason = self._reason(row)
            self._tell(row, reason)
            if reason is not None:
                gone.add(row)
        self._rows = [row for row in self._rows if row not in gone]

    def _reason(self, row: Work) -> str | None:
        sampling, answer = row.sampling, row.answer
        if row.output.request_id == fault("cancel") and len(answer) == 2:
            return "cancelled"
        ends = {sampling.end_id} if not sampling.ignore_eos else set()
        if answer[-1] in ends | set(sampling.stop_token_ids or ()):
            return "stop"
        full = len(row.tokens) >= self._longest
        return "length" if full or len(answer) >= sampling.max_tokens else None

    def _tell(self, row: Work, reason: str | None) -> None:
        new = len(row.answer) - row.reported
        if reason is None and (not row.streaming or new < self._args.stream_interval):
            return
        tokens = row.answer[row.reported :]
        row.reported = len(row.answer)
        if reason == "stop":
            by_stop_token = tokens[-1] in (row.sampling.stop_token_ids or ())
            if fault("strip_end") or (
                by_stop_token and not row.sampling.include_stop_str_in_output
            ):
                tokens = tokens[:-1]
        a_step = None if fault("no_metrics") else len(row.answer) / row.iterations
        row.output._put(Response(tuple(tokens), reason, self._metrics(row), a_step))

    def _metrics(self, row: Work) -> RequestPerfMetrics | None:
        if not row.sampling.return_perf_metrics or fault("no_metrics"):
            return None
        timing = TimingMetrics(
            row.timing.arrival_time,
            row.timing.first_scheduled_time,
            row.timing.first_token_time + timedelta(seconds=fault("clock_ahead_s") or 0),
            row.timing.last_token_time,
        )
        return RequestPerfMetrics(timing)
