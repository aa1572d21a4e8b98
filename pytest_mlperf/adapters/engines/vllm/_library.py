"""vLLM itself: found, checked against what is asked of it, and kept from the network."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import multiprocessing
import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from multiprocessing import resource_tracker
from pathlib import Path
from time import monotonic
from typing import Any

from pytest_mlperf import EnvironmentFault, MlperfError, RunError, Sink, WorkQueue
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.engines.llm.engine import GenerateTask, StampGaps, impossible
from pytest_mlperf.adapters.engines.llm.generation import Generation, logprobs_output
from pytest_mlperf.adapters.engines.llm.streaming import StreamedRequest, Streams
from pytest_mlperf.adapters.engines.vllm._prompts import Prompts
from pytest_mlperf.extension import text_of

ERROR_STREAM = 2

CAUSE = re.compile(r"^.*\bERROR\b.*?\] *((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): .+)$", re.M)
"""A line of vLLM's log that ends a traceback."""

MAX_LOG_BYTES = 1 << 20
MAX_QUOTED_CHARACTERS = 400


class Log:
    """What is written to this process's error output from now on, where that is a file."""

    def __init__(self) -> None:
        self._begin: int | None = None
        with contextlib.suppress(OSError):
            about = os.fstat(ERROR_STREAM)
            self._begin = about.st_size if stat.S_ISREG(about.st_mode) else None

    def cause(self) -> str:
        """Return "; its process said: …" with the log's first error, or ""."""
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


def below(root: int) -> set[int]:
    """Return the ids of all processes that descend from one and have not ended."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                # The name, in brackets, may have blanks and brackets of its own.
                rest = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2]
                state, parent = rest.split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    processes: set[int] = set()
    waiting = [root]
    while waiting:
        new = children.get(waiting.pop(), [])
        processes.update(new)
        waiting += new
    return processes


class Started:
    """Processes that are started below this one from now on."""

    def __init__(self) -> None:
        self._before = below(os.getpid())

    def now(self) -> set[int]:
        """Return the ids of those that run; Python's own helper for shared memory is left out."""
        # It ends by itself with this process, and complains when it is ended before.
        helper = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
        return below(os.getpid()) - self._before - {helper}

    def end(self, grace_s: float = EXIT_GRACE_SECONDS) -> Collection[int]:
        """Wait for them to end, and kill those that do not, whose ids are returned."""
        left = {}
        for pid in self.now():
            with contextlib.suppress(ProcessLookupError):
                left[pid] = os.pidfd_open(pid)
        _wait(left, grace_s)
        killed = set(left)
        for handle in left.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        _wait(left, grace_s)
        for handle in left.values():
            os.close(handle)
        multiprocessing.active_children()  # takes the exit codes of those that it started
        return killed


def _wait(left: dict[int, int], limit_s: float) -> None:
    """Take out of `left` (handle by id) what ends within a time."""
    until_s = time.monotonic() + limit_s
    watched = select.poll()
    ids = {handle: pid for pid, handle in left.items()}
    for handle in ids:
        watched.register(handle, select.POLLIN)
    while left and (rest_s := until_s - time.monotonic()) > 0:
        for handle, _ in watched.poll(rest_s * 1000):
            watched.unregister(handle)
            os.close(handle)
            del left[ids[handle]]


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
    # This process has threads, and a forked one could wait for ever for a lock of theirs.
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
    """Set vLLM's variables, and put things back afterwards."""
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
    # Its own checks of the machine, and torch's of other packages, raise all kinds.
    except Exception as error:
        raise _broken(error) from error
    # A build between releases may say 0.0 or 0.1.dev.
    if (0, 2) <= tuple(map(int, re.findall(r"\d+", vllm_version)[:2])) < MIN_VLLM:
        oldest = ".".join(map(str, MIN_VLLM))
        raise EnvironmentFault(
            f"engine vllm needs vLLM {oldest} or newer, and this is {vllm_version}; "
            f"try: pip install 'vllm>={oldest}'"
        )
    return vllm_version


def find(name: str) -> Any:
    """Return what `IMPORTED` names, where this vLLM has it."""
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
    # Wrong values, a full GPU and a dead process of its own raise what they like.
    except Exception as error:
        raise engine_error(
            f"vLLM {vllm_version} cannot load the model: {type(error).__name__}: {text_of(error)}"
            f"{log.cause()}",
        ) from error


def describe(vllm_version: str, settled: Any) -> dict[str, str]:
    """Return versions, what vLLM settled on, and the variables that it reads."""
    facts = {"vllm": vllm_version}
    for package in SPEED_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    for name, path in SETTING_PATHS.items():
        value = settled
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
        f"engine vllm: vLLM cannot be imported here: {type(error).__name__}: {text_of(error)}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenRequest:
    """What we saw of one request; times by `time.monotonic`, which vLLM stamps by too."""

    index: int
    tokens: int
    first_s: float
    last_s: float


def compare(gaps: StampGaps, seen: SeenRequest, theirs: Any) -> None:
    """Compare one request's times with vLLM's RequestStateStats; None if it keeps none."""
    if theirs is None or not theirs.first_token_ts:
        return
    if theirs.num_generation_tokens != seen.tokens:
        raise impossible(
            seen.index,
            f"vLLM counts {theirs.num_generation_tokens} tokens in the answer, and {seen.tokens} "
            "came",
        )
    if theirs.last_token_ts < theirs.first_token_ts:
        raise impossible(seen.index, "vLLM stamped its last token before its first")
    gaps.add(seen.index, "first", seen.first_s, theirs.first_token_ts)
    gaps.add(seen.index, "last", seen.last_s, theirs.last_token_ts)


ACCEPTED_COUNTER = "vllm:spec_decode_num_accepted_tokens"
"""vLLM's counter of drafted tokens that were accepted, since it was loaded."""


class AcceptedDrafts:
    """What vLLM counts of speculative decoding."""

    def __init__(self) -> None:
        self._snapshot = find("get_metrics_snapshot")
        self._before = 0

    def take(self) -> int:
        """Return how many drafted tokens were accepted since the last call."""
        # One for each copy of the model with data parallelism.
        total = sum(int(each.value) for each in self._snapshot() if each.name == ACCEPTED_COUNTER)
        before, self._before = self._before, total
        return total - before


def sampling_arguments(generation: Generation, output_kind: Any, index: int = 0) -> dict[str, Any]:
    """Return the arguments of SamplingParams: ended by our end tokens and no others.

    Drawn answers differ by the `index` of the sample.
    """
    drawn = {
        "top_p": generation.top_p,
        "top_k": generation.top_k or 0,
        "seed": generation.seed_of(index),
    }
    return {
        "temperature": float(generation.temperature),
        **(drawn if generation.is_drawn else {}),
        "max_tokens": generation.max_new_tokens,
        "min_tokens": generation.min_new_tokens,
        "ignore_eos": generation.ignore_eos,
        "stop_token_ids": list(generation.ends),
        "detokenize": False,
        "output_kind": output_kind,
        **({"prompt_logprobs": 1} if generation.prompt_logprobs else {}),
    }


def logprobs_of(output: Any) -> list[float]:
    """Return the log-probabilities of a prompt's tokens, NaN for the first.

    vLLM gives for each token a table by token id: its own, and the likeliest one's.
    """
    tables = [None, *output.prompt_logprobs[1:]]
    return [
        math.nan if table is None else float(table[token].logprob)
        for token, table in zip(output.prompt_token_ids, tables, strict=True)
    ]


class SamplingByLength:
    """SamplingParams of samples, the same for all with answers of one length and one seed."""

    def __init__(self, task: GenerateTask, kind: str) -> None:
        self._task = task
        self._kind = getattr(find("RequestOutputKind"), kind)
        self._make = find("SamplingParams")
        self._made: dict[tuple[int, int | None], Any] = {}

    def of(self, index: int) -> Any:
        generation = self._task.generation_of(index)
        key = generation.max_new_tokens, generation.seed_of(index)
        if key not in self._made:
            self._made[key] = self._make(**sampling_arguments(generation, self._kind, index))
        return self._made[key]


QUEUED_MULTIPLE = 2
"""Samples with pictures or sound that vLLM has at a time, as a multiple of those it works on."""


class AsyncBackend:
    """AsyncLLM: samples come and go one by one, tokens are told as they come."""

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
            # Samples wait until vLLM may need them soon. What is made of a picture is many times
            # its file: of all at once, as in Offline, it would fill the machine's memory.
            copies = int(arguments.get("data_parallel_size") or 1)
            at_once = copies * self.settled.scheduler_config.max_num_seqs
            self._room = asyncio.Semaphore(QUEUED_MULTIPLE * at_once)
        self.put = self._streams.put

    def close(self) -> None:
        """End vLLM's processes, then the loop, whose tasks vLLM still uses for that."""
        self._closing = True
        try:
            self._streams.run(_shut_down(self._llm))
        finally:
            self._streams.close()

    async def _answer(self, request: StreamedRequest) -> None:
        try:
            async with self._room:
                output, row, seen = await self._ask(request)
            if self._is_piecewise(request.sink):
                compare(self._task.gaps, seen, output.metrics)
            self._task.check(request.index, row, output.outputs[0].finish_reason)
            if self._task.generation.prompt_logprobs:
                tokens = output.prompt_token_ids
                self._task.report_prompt(request, tokens, logprobs_of(output))
                return
            media = self._prompts.has_media
            self._task.report(request, row, len(output.prompt_token_ids) if media else None)
        except Exception as error:
            if self._closing:  # nobody waits for it any more
                return
            if isinstance(error, MlperfError):
                raise
            raise _failed(f"sample {request.index} of the data set", error, self._log) from error

    async def _ask(self, request: StreamedRequest) -> tuple[Any, list[int], SeenRequest]:
        """Return the last output, all tokens, and when the first and the last came."""
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
        seen = SeenRequest(index=request.index, tokens=len(row), first_s=first_s, last_s=last_s)
        return output, row, seen


class OfflineBackend:
    """LLM: a thread hands over all samples that have gathered, and takes all answers at once."""

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
            # LLM itself has no way to end but to be forgotten.
            self._llm.llm_engine.engine_core.shutdown()

    def _work(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        prompts = list(map(self._prompts.of, indices))
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
    # On the loop that will run its requests: it starts its own tasks where it is made.
    return kind.from_engine_args(engine_args)


async def _shut_down(llm: Any) -> None:
    llm.shutdown()
