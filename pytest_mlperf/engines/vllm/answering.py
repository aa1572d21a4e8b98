"""The two ways through vLLM: AsyncLLM, request by request, and LLM, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, Protocol

from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.extension import Sink
from pytest_mlperf.engines.files import one_line
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.queueing import WorkQueue
from pytest_mlperf.engines.streaming import OneSample, Request, Streams
from pytest_mlperf.engines.vllm.arguments import sampling_arguments
from pytest_mlperf.engines.vllm.causes import Log
from pytest_mlperf.engines.vllm.library import find
from pytest_mlperf.engines.vllm.stamps import Gaps, Seen


class Way(Protocol):
    """A loaded model that takes samples."""

    settled: Any
    """vLLM's `vllm_config`."""

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Take samples and return at once."""
        ...

    def close(self) -> None:
        """Let go of the model; what is not finished is dropped."""
        ...


@dataclass(kw_only=True, slots=True)
class Task:
    """What is asked of vLLM, whichever way.

    Attributes:
        prompts: Token ids of the loaded samples.
        generation: What an answer must look like.
        answers: Checks and reports it.
        log: What vLLM's processes say.
        gaps: Holds our stamps against vLLM's.
    """

    prompts: Prompts
    generation: Generation
    answers: Answers
    log: Log
    gaps: Gaps = field(default_factory=Gaps)

    def sampling(self, kind: str) -> Any:
        """Return SamplingParams that give outputs of a kind of RequestOutputKind."""
        output_kind = getattr(find("RequestOutputKind"), kind)
        return find("SamplingParams")(**sampling_arguments(self.generation, output_kind))

    def failed(self, what: str, error: Exception) -> RunError:
        """Return the error for what vLLM failed at."""
        said = f"{type(error).__name__}: {one_line(error)}{self.log.cause()}"
        return RunError("engine", f"vLLM failed {what}: {said}")

    def check(self, index: int, row: Sequence[int], finish_reason: Any) -> None:
        """Refuse an answer that did not end as it must.

        Raises:
            RunError: It did not.
        """
        ends, most = self.generation.ends, self.generation.max_new_tokens
        last = row[-1] if row else "none"
        if finish_reason == "stop" and (not row or row[-1] not in ends):
            why = (
                f"ended with token {last}, which is no end token of the model "
                f"({', '.join(map(str, ends)) or 'none'})"
            )
        elif finish_reason == "length" and len(row) != most:
            why = f"was cut at {len(row)} tokens, before max_new_tokens = {most}"
        elif finish_reason not in ("stop", "length"):
            why = f"was given up by vLLM: finish_reason is {finish_reason!r}"
        else:
            return
        raise RunError("engine", f"the answer to sample {index} of the data set {why}")


class AsyncWay:
    """AsyncLLM: samples come and go one by one, tokens are told as they come."""

    def __init__(self, arguments: Mapping[str, Any], task: Task, *, stream: bool) -> None:
        """Load the model.

        Args:
            arguments: Of AsyncEngineArgs.
            task: What is asked.
            stream: Take tokens as they come where they are timed.
        """
        self._task = task
        self._stream = stream
        self._names = map(str, count())
        self._closing = False
        self._as_prompt = find("tokens_input")
        self._piecewise = task.sampling("DELTA")
        self._whole = task.sampling("FINAL_ONLY")
        given = find("AsyncEngineArgs")(**arguments)
        self._streams = Streams(self._answer)
        try:
            self._llm = self._streams.run(_open(find("AsyncLLM"), given))
        except BaseException:
            self._streams.close()
            raise
        self.settled = self._llm.vllm_config

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Take samples and return at once."""
        self._streams.put(ids, indices, sink)

    def close(self) -> None:
        """End vLLM's processes, then the loop, whose tasks vLLM still uses for that."""
        self._closing = True
        try:
            self._streams.run(_shut_down(self._llm))
        finally:
            self._streams.close()

    async def _answer(self, request: Request) -> None:
        """Ask, tell tokens as they come where they are timed, and report the answer.

        Raises:
            RunError: vLLM failed the request, or its answer cannot be right.
        """
        try:
            output, row, seen = await self._ask(request)
            if self._piecewise_for(request.sink):
                self._task.gaps.add(seen, output.metrics)
            self._task.check(request.index, row, output.outputs[0].finish_reason)
            self._task.answers.deliver([request.sample], [request.index], [row], OneSample(request))
        except Exception as error:
            if self._closing:  # nobody waits for it any more
                return
            if isinstance(error, MlperfError):
                raise
            raise self._task.failed(f"sample {request.index} of the data set", error) from error

    async def _ask(self, request: Request) -> tuple[Any, list[int], Seen]:
        """Return the last output, all tokens, and when the first and the last came."""
        prompt = self._as_prompt(self._task.prompts[request.index])
        piecewise = self._piecewise_for(request.sink)
        sampling = self._piecewise if piecewise else self._whole
        row: list[int] = []
        first_s = last_s = 0.0
        output = None
        async for output in self._llm.generate(prompt, sampling, next(self._names)):
            new = output.outputs[0].token_ids
            if piecewise and new:
                last_s = monotonic()
                first_s = first_s or last_s
                request.tokens(len(new))
            row += new
        if output is None:
            raise RunError(
                "engine", f"vLLM gave no output for sample {request.index} of the data set"
            )
        seen = Seen(index=request.index, tokens=len(row), first_s=first_s, last_s=last_s)
        return output, row, seen

    def _piecewise_for(self, sink: Sink) -> bool:
        return self._stream and sink.times_tokens


class OfflineWay:
    """LLM: a thread hands over all samples that have gathered, and takes all answers at once."""

    def __init__(self, arguments: Mapping[str, Any], task: Task, *, batch_size: int | None) -> None:
        """Load the model.

        Args:
            arguments: Of LLM.
            task: What is asked.
            batch_size: Samples per call at most; None takes all there are.
        """
        self._task = task
        self._whole = task.sampling("FINAL_ONLY")
        self._llm = find("LLM")(**arguments)
        self.settled = self._llm.llm_engine.vllm_config
        self._queue = WorkQueue(self._work, max_batch=batch_size)

    def put(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Take samples and return at once."""
        self._queue.put(ids, indices, sink)

    def close(self) -> None:
        """Finish what is queued, and end vLLM's processes."""
        try:
            self._queue.close()
        finally:
            # LLM itself has no way to end but to be forgotten.
            self._llm.llm_engine.engine_core.shutdown()

    def _work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        prompts = [{"prompt_token_ids": self._task.prompts[index]} for index in indices]
        try:
            outputs = self._llm.generate(prompts, self._whole, use_tqdm=False)
        except Exception as error:
            raise self._task.failed(f"a batch of {len(ids)} samples", error) from error
        found = [output.outputs[0] for output in outputs]
        rows = [list(completion.token_ids) for completion in found]
        for index, row, completion in zip(indices, rows, found, strict=True):
            self._task.check(index, row, completion.finish_reason)
        self._task.answers.deliver(ids, indices, rows, sink)


async def _open(kind: Any, given: Any) -> Any:
    # On the loop that will run its requests: it starts its own tasks where it is made.
    return kind.from_engine_args(given)


async def _shut_down(llm: Any) -> None:
    llm.shutdown()
