"""Send each sample as a request to TensorRT-LLM, and read the result."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from pytest_mlperf import EnvironmentFault, RunError, Sink, SuiteError
from pytest_mlperf.adapters.engines import engine_error
from pytest_mlperf.adapters.engines.llm.engine import GenerateTask, LibraryOptions, check_names
from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.llm.streaming import StreamedRequest
from pytest_mlperf.extension import some, text_of, usable_cores

MIN_TENSORRT_LLM = (1, 2)

ENVIRONMENT_ADVICE = (
    "TensorRT-LLM pins other versions of torch and numpy than most environments have, so let the "
    'engine run in a Python or container of its own: python = "~/venvs/trtllm/bin/python" or '
    'command = ["docker", "run", ...] in the engine entry'
)

OFFLINE_ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRTLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Defaults of environment variables, so that nothing is downloaded or sent during a run."""


AFFINITY = "TLLM_NUMA_AWARE_WORKER_AFFINITY"
"""Variable that makes TensorRT-LLM bind its threads to CPUs near the GPU, if "1" or unset."""


def import_package() -> Any:
    for name, value in OFFLINE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # By default it would undo the replica's binding to processors near its GPU, and 1.2 binds by
    # the GPU's index among those that the process sees.
    if len(usable_cores()) < (os.cpu_count() or 1):
        os.environ.setdefault(AFFINITY, "0")
    try:
        package = importlib.import_module("tensorrt_llm")
        importlib.import_module("tensorrt_llm.llmapi")
    except ModuleNotFoundError as error:
        if error.name == "tensorrt_llm":
            raise EnvironmentFault(
                "engine tensorrt_llm needs tensorrt_llm, which is not installed; "
                f"{ENVIRONMENT_ADVICE}"
            ) from error
        raise _broken_installation(error) from error
    # A library of CUDA, MPI or TensorRT may not load.
    except (ImportError, OSError, RuntimeError) as error:
        raise _broken_installation(error) from error
    version = str(package.__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < MIN_TENSORRT_LLM:
        raise EnvironmentFault(
            f"engine tensorrt_llm needs TensorRT-LLM {'.'.join(map(str, MIN_TENSORRT_LLM))} "
            f"or newer; {version} is installed"
        )
    return package


def speculative_options(options: Any, api: Any) -> Any:
    """Return speculative decoding options; for TensorRT-LLM 1.2 as an object of module `api`."""
    kind = options.get("decoding_type") if isinstance(options, Mapping) else None
    name = f"{kind}DecodingConfig".replace("_", "").lower()
    cls = next((getattr(api, key) for key in dir(api) if key.lower() == name), None)
    if kind is None or cls is None or "decoding_type" in cls.model_fields:
        return options
    return cls(**{key: item for key, item in options.items() if key != "decoding_type"})


def load_model(package: Any, arguments: Mapping[str, Any], options: LibraryOptions) -> Any:
    """Return a loaded LLM; raise for unknown arguments before anything is loaded."""
    version = package.__version__
    valid = package.llmapi.TorchLlmArgs.model_fields
    check_names(options, arguments, valid, f"TensorRT-LLM {version}", "LLM argument")
    drafts = dict[str, Any]()
    try:
        if "speculative_config" in arguments:
            drafts["speculative_config"] = speculative_options(
                arguments["speculative_config"], package.llmapi
            )
    # Configurations raise pydantic's error, a ValueError, or assertions.
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise _refused(version, error) from error
    try:
        return package.LLM(**{**arguments, **drafts})
    # TensorRT-LLM, CUDA and MPI raise different types.
    except Exception as error:
        if type(error).__name__ == "ValidationError":
            raise _refused(version, error) from error
        raise engine_error(
            f"{arguments['model']}: TensorRT-LLM {version} cannot load it: "
            f"{type(error).__name__}: {text_of(error)}",
        ) from error


def versions() -> Mapping[str, str]:
    names = ("tensorrt_llm", "torch", "transformers", "tensorrt")
    by_package = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {name: str(version) for name, version in by_package.items() if version is not None}


def _broken_installation(error: BaseException) -> EnvironmentFault:
    return EnvironmentFault(
        "engine tensorrt_llm: tensorrt_llm is installed but cannot be imported: "
        f"{text_of(error)}; {ENVIRONMENT_ADVICE}"
    )


def _refused(version: str, error: BaseException) -> SuiteError:
    return SuiteError(
        f"engine tensorrt_llm: TensorRT-LLM {version} refuses these options: {_reasons(error)}"
    )


def _reasons(error: BaseException) -> str:
    details = getattr(error, "errors", None)
    if not callable(details):
        return text_of(error)
    pairs = ((".".join(map(str, d["loc"])), " ".join(str(d["msg"]).split())) for d in details())
    return some([f"{key}: {reason}" if key else reason for key, reason in pairs])


def sampling_arguments(
    generation: Generation, *, further: int = 0, index: int = 0
) -> dict[str, Any]:
    """Return the arguments of SamplingParams, with which the library returns token ids only.

    The first end token is TensorRT-LLM's end_id, which min_tokens suppresses; further end tokens
    are stop tokens, which min_tokens does not suppress. `further` is the number of prompt tokens to
    add to min_tokens. The sampling seed depends on the sample's `index`; top_k = 0 samples from all
    tokens.
    """
    sampling = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k or 0,
        "seed": generation.seed_of(index),
    }
    end = generation.eos[0] if generation.eos else -1
    others = list(generation.eos[1:])
    # With ignore_eos, min_tokens would hold back the vocabulary's last token (end_id -1).
    held = generation.min_new_tokens and not generation.ignore_eos
    least = generation.min_new_tokens + further if held else None
    arguments: dict[str, Any] = {
        "max_tokens": generation.max_new_tokens,
        "min_tokens": least,
        **(sampling if generation.is_drawn else {"top_k": 1}),
        "end_id": end,
        "pad_id": generation.padding,
        "ignore_eos": generation.ignore_eos,
        "detokenize": False,
    }
    if others and not generation.ignore_eos:
        arguments |= {"stop_token_ids": others, "include_stop_str_in_output": True}
    return {name: value for name, value in arguments.items() if value is not None}


Counted = Literal["answer", "prompt and answer", "nothing"]

COUNTED_TOKENS: Mapping[Counted, str] = {
    "answer": "of the answer",
    "prompt and answer": "of prompt and answer, made up for",
    "nothing": "not obeyed",
}

Ask = Callable[[Sequence[int], Any], Awaitable[Sequence[int]]]
"""Function that returns the answer to a prompt, given SamplingParams."""


@dataclass(kw_only=True, slots=True)
class SamplingByPrompt:
    """Create and cache SamplingParams; `counted` names what min_tokens counts, e.g. "answer"."""

    make: Callable[..., Any]
    generation: Generation
    counted: Counted = "answer"
    _cache: dict[tuple[int, int | None, int | None], Any] = field(default_factory=dict)

    @property
    def matters(self) -> bool:
        return bool(self.generation.min_new_tokens and self.generation.ends)

    def params(self, prompt: Sequence[int], length: int | None = None, index: int = 0) -> Any:
        """Return the SamplingParams for a prompt; `length` is its maximum answer length, if set."""
        further = len(prompt) if self.counted == "prompt and answer" else 0
        key = further, length, self.generation.seed_of(index)
        if key not in self._cache:
            generation = self.generation.of(length)
            self._cache[key] = self.make(
                **sampling_arguments(generation, further=further, index=index)
            )
        return self._cache[key]

    async def find_out(self, ask: Ask, version: str) -> None:
        """Test what min_tokens counts (prompt and answer, answer, nothing); set `counted`."""
        prompt = [self.generation.padding]
        plain = {"top_k": 1, "pad_id": self.generation.padding, "detokenize": False}
        (first,) = await ask(prompt, self.make(**plain, max_tokens=1, end_id=-1, ignore_eos=True))

        async def holds_back(least: int) -> bool:
            arguments: Mapping[str, Any] = {**plain, "max_tokens": 2, "end_id": first}
            row = await ask(prompt, self.make(**arguments, min_tokens=least))
            return bool(row) and row[0] != first

        if await holds_back(1):
            self.counted = "answer"
        elif await holds_back(len(prompt) + 1):
            self.counted = "prompt and answer"
        else:
            self.counted = "nothing"
        least = self.generation.min_new_tokens
        if self.counted == "nothing" and least > 1:  # 1 only keeps answers from ending at once
            raise engine_error(
                f"min_new_tokens = {least}, but TensorRT-LLM {version} cannot suppress the "
                "end token; set min_new_tokens = 1, or ignore_eos = true for answers of "
                "max_new_tokens tokens",
            )


CUT_NOTE = (
    "; TensorRT-LLM cuts answers that do not fit its max_seq_len: set max_seq_len to at least the "
    "tokens of the longest prompt plus max_new_tokens"
)


@dataclass(slots=True)
class DraftCount:
    """Count accepted draft tokens: tokens beyond one per step; None if steps are not reported."""

    accepted: float | None = None

    def add(self, tokens: int, tokens_per_step: float | None) -> None:
        """Add accepted draft tokens of an answer: tokens - tokens / tokens_per_step; 0 for None."""
        if tokens_per_step:
            self.accepted = (self.accepted or 0.0) + max(0.0, tokens - tokens / tokens_per_step)

    def take(self) -> int | None:
        accepted, self.accepted = self.accepted, None
        return None if accepted is None else round(accepted)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLoop:
    llm: Any
    sampling: SamplingByPrompt
    streams: Callable[[Sink], bool]
    task: GenerateTask
    drafts: DraftCount

    async def answer(self, request: StreamedRequest) -> None:
        """Send a request; report tokens as they arrive if they are timed, and then the answer."""
        prompt = self.task.prompts[request.index]
        streaming = self.streams(request.sink)
        begun_s = perf_counter()
        first_s = None
        try:
            length = self.task.prompts.lengths.get(request.index)
            sampling = self.sampling.params(prompt, length, request.index)
            output = self.llm.generate_async(prompt, sampling_params=sampling, streaming=streaming)
            if streaming:
                # Each message has all tokens so far, of which several may be new.
                async for message in output:
                    new = len(message.outputs[0].token_ids) - request.stamped
                    if new and first_s is None:
                        first_s = perf_counter() - begun_s
                    request.tokens(new)
            else:
                await output
        # TensorRT-LLM raises different types.
        except Exception as error:
            raise _failed(request.index, _cause(error)) from error
        # Versions after 1.2 report a failed request here.
        if failure := getattr(output, "error", None):
            raise _failed(request.index, " ".join(str(failure).split()))
        completion = output.outputs[0]
        a_step = getattr(output, "avg_decoded_tokens_per_iter", None)
        self.drafts.add(len(completion.token_ids), a_step)
        self._compare(request.index, completion, first_s)
        self._report(request, completion)

    async def ask(self, prompt: Sequence[int], sampling: Any) -> Sequence[int]:
        try:
            output = self.llm.generate_async(
                list(prompt), sampling_params=sampling, streaming=False
            )
            await output
        # As above.
        except Exception as error:
            raise engine_error(f"TensorRT-LLM failed a test request: {_cause(error)}") from error
        return list(output.outputs[0].token_ids)

    def _compare(self, index: int, completion: Any, ttft_s: float | None) -> None:
        """Record our and TensorRT-LLM's time to first token; raise RunError if ours is shorter."""
        metrics = completion.request_perf_metrics
        if metrics is None or ttft_s is None:
            return
        timing = metrics.timing_metrics
        theirs_s = (timing.first_token_time - timing.arrival_time).total_seconds()
        if theirs_s > 0:  # 0 if it keeps no stamps
            self.task.gaps.add(index, "first", ttft_s, theirs_s)

    def _report(self, request: StreamedRequest, completion: Any) -> None:
        row = list(completion.token_ids)
        self.task.check(request.index, row, completion.finish_reason, CUT_NOTE)
        generation = self.task.generation_of(request.index)
        held_back, least = generation.ends[:1], generation.min_new_tokens
        # Other end tokens may end an answer at any time.
        if least > 1 and len(row) <= least and tuple(row[-1:]) == held_back:
            raise engine_error(
                f"the answer to sample {request.index} of the data set ended after "
                f"{len(row) - 1} tokens, but min_new_tokens = {least}: TensorRT-LLM did not "
                "suppress its end token; set min_new_tokens = 1, or ignore_eos = true",
            )
        self.task.report(request, row)


def _failed(index: int, reason: str) -> RunError:
    return engine_error(f"TensorRT-LLM failed sample {index} of the data set: {reason}")


def _cause(error: Exception) -> str:
    text = f"{type(error).__name__}: {text_of(error)}"
    first = error.__cause__
    return text if first is None else f"{text} (from {type(first).__name__}: {text_of(first)})"
