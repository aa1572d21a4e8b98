"""Each sample as a request to TensorRT-LLM; all that is read from its objects is read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.engines.files import one_line
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.streaming import OneSample, Request
from pytest_mlperf.engines.tensorrt_llm.least_length import Sampling
from pytest_mlperf.engines.tensorrt_llm.stamps import Gaps

ENDINGS = ("stop", "length")
"""What TensorRT-LLM says of a whole answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """Answers samples on the event loop of `Streams`.

    Attributes:
        llm: TensorRT-LLM's.
        sampling: Its SamplingParams by prompt.
        stream: Take tokens as they come where they are timed.
        prompts: Token ids of the loaded samples.
        generation: What an answer must look like.
        answers: Checks and reports it.
        gaps: Takes the times to first token.
    """

    llm: Any
    sampling: Sampling
    stream: bool
    prompts: Prompts
    generation: Generation
    answers: Answers
    gaps: Gaps = field(default_factory=Gaps)

    async def answer(self, request: Request) -> None:
        """Ask, tell tokens as they come where they are timed, and report the answer.

        Raises:
            RunError: TensorRT-LLM failed the request, or its answer cannot be right.
        """
        prompt = self.prompts[request.index]
        streaming = self.stream and request.sink.times_tokens
        begun_s = perf_counter()
        first_s = None
        try:
            output = self.llm.generate_async(
                prompt, sampling_params=self.sampling.of(prompt), streaming=streaming
            )
            if streaming:
                # Each message has all tokens so far, of which several may be new.
                async for message in output:
                    new = len(message.outputs[0].token_ids) - request.stamped
                    if new and first_s is None:
                        first_s = perf_counter() - begun_s
                    request.tokens(new)
            else:
                await output
        # What a request fails with depends on where in TensorRT-LLM it failed.
        except Exception as error:
            raise RunError(
                "engine",
                f"TensorRT-LLM failed sample {request.index} of the data set: {_cause(error)}",
            ) from error
        # Newer ones than 1.2 tell here of a request that failed.
        if failure := getattr(output, "error", None):
            raise RunError(
                "engine",
                f"TensorRT-LLM failed sample {request.index} of the data set: "
                f"{' '.join(str(failure).split())}",
            )
        completion = output.outputs[0]
        self._compare(request.index, completion, first_s)
        self._report(request, completion)

    async def ask(self, prompt: Sequence[int], sampling: Any) -> Sequence[int]:
        """Return the answer to a question before the run.

        Raises:
            RunError: TensorRT-LLM failed at it.
        """
        try:
            output = self.llm.generate_async(
                list(prompt), sampling_params=sampling, streaming=False
            )
            await output
        # As in a run.
        except Exception as error:
            raise RunError(
                "engine", f"TensorRT-LLM failed a first request: {_cause(error)}"
            ) from error
        return list(output.outputs[0].token_ids)

    def _compare(self, index: int, completion: Any, first_s: float | None) -> None:
        """Hold our time to first token against TensorRT-LLM's own, where there are both."""
        metrics = completion.request_perf_metrics
        if metrics is None or first_s is None:
            return
        timing = metrics.timing_metrics
        theirs_s = (timing.first_token_time - timing.arrival_time).total_seconds()
        if theirs_s > 0:  # 0 where it kept no stamps
            self.gaps.add(index, first_s, theirs_s)

    def _report(self, request: Request, completion: Any) -> None:
        row = list(completion.token_ids)
        ends = self.generation.ends
        if completion.finish_reason not in ENDINGS:
            raise RunError(
                "engine",
                f"sample {request.index} of the data set has no whole answer: TensorRT-LLM ended "
                f"it as {completion.finish_reason!r} after {len(row)} tokens",
            )
        if completion.finish_reason == "stop" and (not row or row[-1] not in ends):
            raise RunError(
                "engine",
                f"sample {request.index} of the data set ended with token "
                f"{row[-1] if row else 'none'}, which is no end token of the model "
                f"({', '.join(map(str, ends)) or 'none'}): answers would be counted without it",
            )
        self._check_length(request.index, row, completion.finish_reason)
        self.answers.deliver([request.sample], [request.index], [row], OneSample(request))

    def _check_length(self, index: int, row: Sequence[int], finish_reason: Any) -> None:
        """Refuse an answer that was cut early, or that ended before it may."""
        most, least = self.generation.max_new_tokens, self.generation.min_new_tokens
        if finish_reason == "length" and len(row) != most:
            raise RunError(
                "engine",
                f"the answer to sample {index} of the data set was cut at {len(row)} tokens, "
                f"before max_new_tokens = {most}; TensorRT-LLM lowers it to what fits its own "
                "max_seq_len: set max_seq_len to the longest prompt and max_new_tokens together",
            )
        held_back = self.generation.ends[:1]  # the others end an answer at any time
        if least > 1 and len(row) <= least and tuple(row[-1:]) == held_back:
            raise RunError(
                "engine",
                f"the answer to sample {index} of the data set ended after {len(row) - 1} tokens, "
                f"but min_new_tokens = {least}: TensorRT-LLM did not hold its end token back",
            )


def _cause(error: Exception) -> str:
    """Return an exception and the one that it was raised from, in one line."""
    told = f"{type(error).__name__}: {one_line(error)}"
    first = error.__cause__
    return told if first is None else f"{told} (from {type(first).__name__}: {one_line(first)})"
