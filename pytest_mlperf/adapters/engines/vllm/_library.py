"""Import vLLM without network access, check its version, and run its async and offline APIs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import multiprocessing
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from multiprocessing import resource_tracker
from time import monotonic
from typing import Any

from pytest_mlperf import EnvironmentFault, MlperfError, RunError, Sink, WorkQueue
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.engines.llm.engine import GenerateTask, StampGaps, impossible
from pytest_mlperf.adapters.engines.llm.generation import Generation, TokenPrompts, logprobs_output
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats
from pytest_mlperf.adapters.engines.llm.speech import RATE
from pytest_mlperf.adapters.engines.llm.streaming import StreamedRequest, Streams
from pytest_mlperf.adapters.engines.serving import descendants
from pytest_mlperf.extension import text_of

ERROR_STREAM = 2

CAUSE = re.compile(r"^.*\bERROR\b.*?\] *((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): .+)$", re.M)
"""Last line of a traceback in vLLM's log."""

MAX_LOG_BYTES = 1 << 20
MAX_QUOTED_CHARACTERS = 400


class Log:
    """Read what this process wrote to stderr, if that is a file, since the object was created."""

    def __init__(self) -> None:
        self._begin: int | None = None
        with contextlib.suppress(OSError):
            about = os.fstat(ERROR_STREAM)
            self._begin = about.st_size if stat.S_ISREG(about.st_mode) else None

    def cause(self) -> str:
        """Return the first error in the log as a clause for a message; "" if there is none."""
        if self._begin is None:
            return ""
        try:
            with open(f"/proc/self/fd/{ERROR_STREAM}", "rb") as file:  # noqa: PTH123
                file.seek(self._begin)
                text = file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
        match = CAUSE.search(text)
        return f"; its process said: {match[1].strip()[:MAX_QUOTED_CHARACTERS]}" if match else ""


EXIT_GRACE_SECONDS = 10.0
POLL_SECONDS = 0.02


class ChildTracker:
    """Find and end child processes, and descendants, that started after this object was created."""

    def __init__(self) -> None:
        self._earlier = set(descendants())

    def pids(self) -> set[int]:
        """Return the ids of the running descendants, except multiprocessing's resource tracker."""
        # The helper ends with this process, and reports an error if it is killed.
        helper = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
        return set(descendants()) - self._earlier - {helper}

    def end(self, grace_s: float = EXIT_GRACE_SECONDS) -> Collection[int]:
        """Wait up to `grace_s` for the descendants, kill the rest, and return the killed ids."""
        killed = self._surviving_pids(grace_s)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._surviving_pids(grace_s)
        return killed

    def _surviving_pids(self, limit_s: float) -> set[int]:
        """Return the pids of descendants that do not end within `limit_s` seconds."""
        end_s = monotonic() + limit_s
        while (pids := self.pids()) and monotonic() < end_s:
            time.sleep(POLL_SECONDS)
            multiprocessing.active_children()  # collects the exit codes of its own children
        return pids


MIN_VLLM = (0, 20)

IMPORTED: Mapping[str, str] = {
    "AsyncEngineArgs": "vllm.engine.arg_utils",
    "AsyncLLM": "vllm.v1.engine.async_llm",
    "LLM": "vllm.entrypoints.llm",
    "RequestOutputKind": "vllm.sampling_params",
    "SamplingParams": "vllm.sampling_params",
    "get_metrics_snapshot": "vllm.v1.metrics.reader",
    "tokens_input": "vllm.inputs",
}

SETTING_PATHS: Mapping[str, str] = {
    "max_model_len": "model_config.max_model_len",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "async_scheduling": "scheduler_config.async_scheduling",
    "block_size": "cache_config.block_size",
    "num_gpu_blocks": "cache_config.num_gpu_blocks",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "device": "device_config.device_type",
}


VLLM_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # This process has threads, whose locks could block a forked process for ever.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}

SPEED_PACKAGES = ("torch", "transformers", "flashinfer-python", "triton")
ENVIRONMENT_ADVICE = (
    "vLLM pins its own torch and transformers, so give it an environment of its own "
    "(python -m venv vllm; vllm/bin/pip install vllm mlcommons-loadgen) and name that in the "
    'engine entry: python = "vllm/bin/python"; or measure its server: use = "openai" with '
    'serve = ["vllm", "serve", …]'
)


@contextlib.contextmanager
def environment() -> Iterator[None]:
    added = {name: value for name, value in VLLM_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def find_version() -> str:
    try:
        vllm_version = str(importlib.import_module("vllm").__version__)
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise EnvironmentFault(
                f"engine vllm needs vllm, which is not installed; {ENVIRONMENT_ADVICE}"
            ) from error
        raise _broken(error) from error
    # Checks by vLLM and torch on import may raise any error.
    except Exception as error:
        raise _broken(error) from error
    # A development build may report 0.0 or 0.1.dev.
    if (0, 2) <= tuple(map(int, re.findall(r"\d+", vllm_version)[:2])) < MIN_VLLM:
        oldest = ".".join(map(str, MIN_VLLM))
        raise EnvironmentFault(
            f"engine vllm needs vLLM {oldest} or newer, but this is {vllm_version}; "
            f"try: pip install 'vllm>={oldest}'"
        )
    return vllm_version


def find(name: str) -> Any:
    try:
        return getattr(importlib.import_module(IMPORTED[name]), name)
    except Exception as error:
        raise _broken(error) from error


@contextlib.contextmanager
def loading(vllm_version: str, log: Log) -> Iterator[None]:
    try:
        yield
    except MlperfError:
        raise
    # Invalid values, a full GPU and a dead process of vLLM raise different types.
    except Exception as error:
        raise engine_error(
            f"vLLM {vllm_version} cannot load the model: {type(error).__name__}: {text_of(error)}"
            f"{log.cause()}",
        ) from error


def describe(vllm_version: str, config: Any) -> dict[str, str]:
    """Return library versions, vLLM's final settings, and VLLM_* environment variables."""
    facts = {"vllm": vllm_version}
    for package in SPEED_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    for name, path in SETTING_PATHS.items():
        value = config
        for attribute in path.split("."):
            value = getattr(value, attribute, None)
        if value is not None:
            facts[f"settled.{name}"] = str(value)
    return facts | _variables()


def _variables() -> dict[str, str]:
    return {
        f"environment.{name}": value
        for name, value in sorted(os.environ.items())
        if name.startswith("VLLM_")
        and name not in VLLM_ENVIRONMENT
        and not re.search("KEY|TOKEN|SECRET|HOST|PORT", name)
        and "/" not in value
    }


def _broken(error: Exception) -> EnvironmentFault:
    return EnvironmentFault(
        f"engine vllm: vLLM cannot be imported here: {type(error).__name__}: {text_of(error)}; "
        f"{ENVIRONMENT_ADVICE}"
    )


def compare_stamps(
    gaps: StampGaps, index: int, tokens: int, stamps_s: tuple[float, float], vllm_stats: Any
) -> None:
    """Add the differences of our `stamps_s` (first and last token) from vLLM's to `gaps`.

    `vllm_stats` is a RequestStateStats by `time.monotonic`; None, or without times, adds none.
    """
    if vllm_stats is None or not vllm_stats.first_token_ts:
        return
    if vllm_stats.num_generation_tokens != tokens:
        raise impossible(
            index,
            f"vLLM counts {vllm_stats.num_generation_tokens} tokens in the answer, "
            f"but {tokens} came: tokens were lost or sent twice",
        )
    if vllm_stats.last_token_ts < vllm_stats.first_token_ts:
        raise impossible(index, "vLLM's time stamp of its last token is before that of its first")
    gaps.add(index, "first", stamps_s[0], vllm_stats.first_token_ts)
    gaps.add(index, "last", stamps_s[1], vllm_stats.last_token_ts)


ACCEPTED_COUNTER = "vllm:spec_decode_num_accepted_tokens"
"""vLLM's counter of accepted draft tokens since it was loaded."""


def accepted_drafts() -> Iterator[int]:
    """Yield the number of draft tokens accepted since the last item."""
    snapshot, total = find("get_metrics_snapshot"), 0
    while True:
        earlier = total
        # There is a counter for each copy of the model with data parallelism.
        total = sum(int(m.value) for m in snapshot() if m.name == ACCEPTED_COUNTER)
        yield total - earlier


def sampling_arguments(generation: Generation, output_kind: Any, index: int = 0) -> dict[str, Any]:
    """Return the arguments of vLLM's SamplingParams for a sample.

    The only end tokens are those of `generation`.
    """
    sampling = {
        "top_p": generation.top_p,
        "top_k": generation.top_k or 0,
        "seed": generation.seed_of(index),
    }
    return {
        "temperature": float(generation.temperature),
        **(sampling if generation.is_drawn else {}),
        "max_tokens": generation.max_new_tokens,
        "min_tokens": generation.min_new_tokens,
        "ignore_eos": generation.ignore_eos,
        "stop_token_ids": list(generation.ends),
        "detokenize": False,
        "output_kind": output_kind,
        **({"prompt_logprobs": 1} if generation.prompt_logprobs else {}),
    }


def logprobs_of(output: Any) -> list[float]:
    """Return the log-probability of each prompt token; NaN for the first."""
    tables = [None, *output.prompt_logprobs[1:]]
    return [
        math.nan if table is None else float(table[token].logprob)
        for token, table in zip(output.prompt_token_ids, tables, strict=True)
    ]


class SamplingByLength:
    """Cache vLLM's SamplingParams objects by maximum answer length and seed."""

    def __init__(self, task: GenerateTask, kind: str) -> None:
        self._task = task
        self._kind = getattr(find("RequestOutputKind"), kind)
        self._make = find("SamplingParams")
        self._cache: dict[tuple[int, int | None], Any] = {}

    def of(self, index: int) -> Any:
        generation = self._task.generation_of(index)
        key = generation.max_new_tokens, generation.seed_of(index)
        if key not in self._cache:
            self._cache[key] = self._make(**sampling_arguments(generation, self._kind, index))
        return self._cache[key]


QUEUED_MULTIPLE = 2
"""Maximum samples with media that vLLM holds, as a multiple of its batch."""


class AsyncBackend:
    """Run vLLM's AsyncLLM: each sample is a request, and tokens are reported as they arrive."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        task: GenerateTask,
        log: Log,
        *,
        streams: Callable[[Sink], bool],
    ) -> None:
        self._task = task
        self._log = log
        self._is_piecewise = streams
        self._names = map(str, count())
        self._closing = False
        self._prompts = Prompts(task.prompts, find("tokens_input"))
        self._piecewise = SamplingByLength(task, "DELTA")
        self._whole = SamplingByLength(task, "FINAL_ONLY")
        engine_args = find("AsyncEngineArgs")(**arguments)
        self._streams = Streams(self._answer)
        try:
            self._llm = self._streams.run(_open(find("AsyncLLM"), engine_args))
        except BaseException:
            self._streams.close()
            raise
        self.settled = self._llm.vllm_config
        self._room: AbstractAsyncContextManager[Any] = contextlib.nullcontext()
        if self._prompts.has_media:
            # Samples wait until vLLM may need them soon: prepared pictures are many times larger
            # than their files, and all at once, as in Offline, would fill the memory.
            copies = int(arguments.get("data_parallel_size") or 1)
            at_once = copies * self.settled.scheduler_config.max_num_seqs
            self._room = asyncio.Semaphore(QUEUED_MULTIPLE * at_once)
        self.put = self._streams.put

    def close(self) -> None:
        """Stop vLLM's processes, then the event loop, which vLLM needs for stopping."""
        self._closing = True
        try:
            self._streams.run(_shut_down(self._llm))
        finally:
            self._streams.close()

    async def _answer(self, request: StreamedRequest) -> None:
        try:
            async with self._room:
                output, row, stamps_s = await self._ask(request)
            if self._is_piecewise(request.sink):
                compare_stamps(self._task.gaps, request.index, len(row), stamps_s, output.metrics)
            self._task.check(request.index, row, output.outputs[0].finish_reason)
            if self._task.generation.prompt_logprobs:
                logged = logprobs_output(
                    request.index, output.prompt_token_ids, logprobs_of(output)
                )
                request.done(logged if request.sink.wants_output else None, None)
                return
            media = self._prompts.has_media
            self._task.report(request, row, len(output.prompt_token_ids) if media else None)
        except Exception as error:
            if self._closing:  # the answer is not needed any more
                return
            if isinstance(error, MlperfError):
                raise
            raise _failed(f"sample {request.index} of the data set", error, self._log) from error

    async def _ask(self, request: StreamedRequest) -> tuple[Any, list[int], tuple[float, float]]:
        """Generate an answer; return output, token ids, (first, last) token time [s] or zeros."""
        prompt = await self._prompts.rendered(self._llm, request.index)
        piecewise = self._is_piecewise(request.sink)
        params = (self._piecewise if piecewise else self._whole).of(request.index)
        row: list[int] = []
        first_s = last_s = 0.0
        output = None
        async for output in self._llm.generate(prompt, params, next(self._names)):
            new = output.outputs[0].token_ids
            if piecewise and new:
                last_s = monotonic()
                first_s = first_s or last_s
                request.tokens(len(new))
            row += new
        if output is None:
            raise engine_error(f"vLLM gave no output for sample {request.index} of the data set")
        return output, row, (first_s, last_s)


class OfflineBackend:
    """Run vLLM's LLM class: a thread passes the queued samples in one call of `generate`."""

    def __init__(
        self, arguments: Mapping[str, Any], task: GenerateTask, log: Log, batch_size: int | None
    ) -> None:
        self._task = task
        self._log = log
        self._prompts = Prompts(task.prompts)
        self._whole = SamplingByLength(task, "FINAL_ONLY")
        self._llm = find("LLM")(**arguments)
        self.settled = self._llm.llm_engine.vllm_config
        self._queue = WorkQueue(self._work, max_batch=batch_size)
        self.put = self._queue.put

    def close(self) -> None:
        try:
            self._queue.close()
        finally:
            # LLM itself has no method to end it.
            self._llm.llm_engine.engine_core.shutdown()

    def _work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        prompts = list(map(self._prompts.generate_input, indices))
        try:
            params = list(map(self._whole.of, indices))
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        except Exception as error:
            raise _failed(f"a batch of {len(ids)} samples", error, self._log) from error
        completions = [output.outputs[0] for output in outputs]
        rows = [list(completion.token_ids) for completion in completions]
        for index, row, completion in zip(indices, rows, completions, strict=True):
            self._task.check(index, row, completion.finish_reason)
        if self._task.generation.prompt_logprobs:
            evaluated = [
                logprobs_output(index, output.prompt_token_ids, logprobs_of(output))
                for index, output in zip(indices, outputs, strict=True)
            ]
            sink.done(ids, evaluated if sink.wants_output else None)
            return
        self._task.answers.deliver(ids, indices, rows, sink)


def _failed(step: str, error: Exception, log: Log) -> RunError:
    reason = f"{type(error).__name__}: {text_of(error)}{log.cause()}"
    return engine_error(f"vLLM failed {step}: {reason}")


async def _open(kind: Any, engine_args: Any) -> Any:
    # A coroutine, since AsyncLLM starts tasks on the loop that creates it.
    return kind.from_engine_args(engine_args)


async def _shut_down(llm: Any) -> None:
    llm.shutdown()


class Prompts:
    def __init__(self, prompts: TokenPrompts, as_rendered: Any = None) -> None:
        self._prompts = prompts
        self._as_rendered = as_rendered

    @property
    def has_media(self) -> bool:
        return isinstance(self._prompts.chats, PictureChats) or self._prompts.clips is not None

    def generate_input(self, index: int) -> dict[str, Any]:
        """Return a sample's LLM.generate input: audio for the encoder, tokens for the decoder."""
        tokens = list(self._prompts[index])
        chats, clips = self._prompts.chats, self._prompts.clips
        if clips is not None:
            sound = _prompt([], {"audio": (clips[index], RATE)})
            return {"encoder_prompt": sound, "decoder_prompt": _prompt(tokens, {})}
        pictures = chats.pictures(index) if chats is not None else []
        return _prompt(tokens, {"image": pictures} if pictures else {})

    async def rendered(self, llm: Any, index: int) -> Any:
        """Return a prompt for AsyncLLM.generate; prepare images and audio in another thread."""
        if not self.has_media:
            return self._as_rendered(self._prompts[index])
        prompt = await asyncio.to_thread(self.generate_input, index)
        (rendered,) = await llm.renderer.render_cmpl_async([prompt])
        return rendered


def _prompt(tokens: list[int], media: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt_token_ids": tokens, **({"multi_modal_data": media} if media else {})}
