"""Run a causal language model through vLLM, in this process, by its async or its offline API."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf.adapters.engines import one_of
from pytest_mlperf.adapters.engines.llm import model_folder, tools
from pytest_mlperf.adapters.engines.llm.engine import (
    GenerateTask,
    LibraryEngine,
    LibraryOptions,
    check_names,
)
from pytest_mlperf.adapters.engines.llm.model_folder import check_agrees as check_weights
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats, has_chats
from pytest_mlperf.adapters.engines.vllm import _library
from pytest_mlperf.extension import PLAIN_PRECISIONS, PrecisionName, Rule, is_speech

APIS = ("async", "offline")

QUANTISED_PRECISIONS: tuple[PrecisionName, ...] = (
    "fp8",
    "nvfp4",
    "mxfp4",
    "int8",
    "int4",
    "int4-awq",
    "gptq",
)
"""Precisions of quantised weights; other weights keep the checkpoint's type."""

PRECISIONS: tuple[PrecisionName, ...] = (*PLAIN_PRECISIONS, *QUANTISED_PRECISIONS)

AT_LOADING: Mapping[str, tuple[PrecisionName, ...]] = {
    "fp8": ("fp8",),
    "mxfp8": ("fp8",),
    "experts_int8": ("int8",),
    "bitsandbytes": ("int4", "int8"),
    "fp8_per_tensor": ("fp8",),
    "fp8_per_block": ("fp8",),
}
"""Precisions to which vLLM quantises plain weights on loading, by the option quantization."""

PASSED_OPTIONS = (
    *("quantization", "load_format", "tensor_parallel_size", "pipeline_parallel_size"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"),
    *("kv_cache_dtype", "enable_prefix_caching", "enforce_eager"),
)

RESERVED: Mapping[str, str] = {
    **{name: f"the option {name}" for name in PASSED_OPTIONS},
    **dict.fromkeys(("model", "model_weights"), "the workload's model"),
    "tokenizer": "the engine, which reads the tokenizer in the model's folder itself",
    "skip_tokenizer_init": "the engine, which always passes prompts as token ids",
    "dtype": "precision",
    "disable_log_stats": "the option request_metrics",
    "mm_processor_cache_gb": "the option mm_processor_cache_gb",
    "generation_config": "the options temperature, top_p, top_k and seed",
    "override_generation_config": "the options max_new_tokens, min_new_tokens and ignore_eos",
    **dict.fromkeys(
        ("revision", "tokenizer_revision", "code_revision", "hf_token"),
        "the engine, which downloads nothing",
    ),
}
"""Arguments of vLLM that `engine_args` must not have, and their replacements."""


@dataclass(frozen=True, kw_only=True)
class VllmOptions(LibraryOptions, tools.ToolOptions):
    """Options of engine vllm; None keeps vLLM's default.

    Attributes:
        api: "async" uses AsyncLLM, as vLLM's own servers do, which streams tokens. "offline" uses
            LLM.generate, for scenarios without token timing.
        batch_size: Maximum samples per call of LLM.generate with `api = "offline"`; None passes all
            queued samples. A call returns when its last sample has finished.
        max_model_len: Maximum number of tokens of prompt and answer together; None uses the model's
            maximum.
        max_num_seqs: Maximum samples in flight.
        max_num_batched_tokens: Maximum tokens per forward pass.
        gpu_memory_utilization: Fraction of each GPU's memory that vLLM may use.
        kv_cache_dtype: Data type of the KV cache, by vLLM's name.
        quantization: Quantisation method of the weights, by vLLM's name; None uses the
            checkpoint's. "fp8" quantises unquantised weights while loading.
        enable_prefix_caching: Reuse the KV cache for common prefixes of prompts. MLPerf's closed
            division forbids it; as LoadGen repeats samples, the cache would be measured instead of
            the model.
        mm_processor_cache_gb: Size of vLLM's cache of preprocessed images [GB]. 0 disables it, as
            MLPerf's closed division requires; without prefix caching too, no query then reuses
            images of another query.
        enforce_eager: Disable CUDA graphs and torch.compile; the model loads faster and runs
            slower.
        request_metrics: Record vLLM's own time stamps of each request, and compare them with the
            stamps of this engine.
        engine_args: Additional engine arguments, by vLLM's names.
    """

    engine = "vllm"
    precisions = PRECISIONS
    counts = ("batch_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    share = "gpu_memory_utilization"
    table = "engine_args"
    reserved = RESERVED

    api: str = "async"
    batch_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    enable_prefix_caching: bool = False
    mm_processor_cache_gb: float = 0.0
    enforce_eager: bool = False
    request_metrics: bool = True
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> tuple[str, str] | None:
        return ("api", '"offline"') if self.api == "offline" else super().whole

    def _rules(self, precision: str) -> Iterator[Rule]:
        yield one_of("api", self.api, APIS)
        yield from super()._rules(precision)
        yield from self.tool_rules()
        size = self.mm_processor_cache_gb
        yield "mm_processor_cache_gb", size, 0 <= size < math.inf, "a size in GB, 0 or more"

    def _conflicts(self, precision: str) -> Iterator[Sequence[Any]]:
        yield from super()._conflicts(precision)
        text = 'batch_size needs api = "offline"; with api = "async" set max_num_seqs, the number '
        applies = self.batch_size is not None and self.api != "offline"
        yield applies, f"{text}of samples in flight", "batch_size", "api"
        if (quantization := self.quantization) is not None:
            yield (
                precision in PLAIN_PRECISIONS,
                f'quantization = "{quantization}" quantises weights, but precision = "{precision}" '
                "says that they are not; set precision to one of "
                f"{', '.join(QUANTISED_PRECISIONS)}",
                *("quantization", "precision"),
            )
            valid = AT_LOADING.get(quantization, QUANTISED_PRECISIONS)
            text = f'quantization = "{quantization}" quantises to {" or ".join(valid)}, but '
            text += f'precision = "{precision}"; correct one of the two'
            yield precision not in valid, text, "quantization", "precision"


def check_agrees(
    folder: Path, precision: str, quantization: str | None, config: model_folder.Config
) -> None:
    """Raise an error if the weights in the folder do not have the declared precision."""
    weights = model_folder.read_quantisation(folder, config)
    if weights.method is None and quantization is not None:
        return
    check_weights(
        "vllm",
        folder,
        precision,
        weights,
        words=QUANTISED_PRECISIONS,
        otherwise='let vLLM quantise while it loads, as with quantization = "fp8"',
    )


def engine_arguments(folder: Path, precision: str, options: VllmOptions) -> dict[str, Any]:
    """Return the arguments for vLLM's AsyncEngineArgs or LLM, without those left at None."""
    arguments = {
        "model": str(folder),
        "dtype": model_folder.TORCH_DTYPES.get(precision, "auto"),
        **{name: getattr(options, name) for name in PASSED_OPTIONS},
        # Prompts and answers are token ids; a tokenizer might add its own end token.
        "skip_tokenizer_init": True,
        # Do not read the folder's sampling settings.
        "generation_config": "vllm",
        "seed": 0,
        "disable_log_stats": not options.request_metrics,
        **options.engine_args,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def media_arguments(options: VllmOptions, *, pictures: bool, sees: bool) -> dict[str, Any]:
    """Return additional vLLM arguments for a model with image or audio inputs.

    `pictures`: the prompts contain images. `sees`: the model accepts images.
    """
    # Else vLLM reserves memory for the longest video, and for pictures.
    unused = ("video",) if pictures else ("image", "video") if sees else ()
    return {
        # vLLM's own processors of media need a tokenizer.
        "skip_tokenizer_init": False,
        "mm_processor_cache_gb": options.mm_processor_cache_gb,
        **({"limit_mm_per_prompt": dict.fromkeys(unused, 0)} if unused else {}),
        **options.engine_args,
    }


def max_batch_entry(
    arguments: Mapping[str, Any], final_settings: Mapping[str, str], batch_size: int | None
) -> dict[str, str]:
    """Return the maximum batch size of all replicas as fact "work.batch"; {} if unknown."""
    per_copy = final_settings.get("settled.max_num_seqs", "")
    if not per_copy.isdecimal():
        return {}
    total = int(per_copy) * int(arguments.get("data_parallel_size") or 1)
    return {"work.batch": str(min(total, batch_size or total))}


class VllmEngine(LibraryEngine):
    """Answer each prompt with generated tokens: int64, little-endian, end token included.

    Text prompts are tokenised here by the model's tokenizer, since vLLM takes and returns token ids
    only; images of chats and audio clips are passed along. The answer to an audio clip is its
    transcript: a label for each character, int64, little-endian.

    Args:
        dataset: Its inputs are texts, lists of token ids, chats with images, or, for a Whisper
            model, audio clips as in data set librispeech.
        model: Folder of the model: config.json, safetensors files, and for text a tokenizer.
            Nothing is downloaded.
        precision: "fp32", "bf16" or "fp16" for unquantised weights. "fp8", "nvfp4", "mxfp4",
            "int8", "int4", "int4-awq" or "gptq" for a quantised checkpoint, or with option
            `quantization`.
    """

    first_suite: ClassVar[str] = "model, accelerator"
    library = "vLLM"
    libraries: ClassVar[tuple[str, ...]] = ("vllm",)
    options: ClassVar[type[VllmOptions]] = VllmOptions
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "torchao": ("int8", "int4", "fp8"),
        "compressed-tensors": ("int8", "int4", "fp8", "nvfp4"),
        "modelopt": ("fp8", "nvfp4"),
    }
    install: ClassVar[str] = f"{_library.ENVIRONMENT_ADVICE} (docs/vllm.md)"
    divides: ClassVar[Mapping[str, bool]] = {
        "data_parallel_size": True,
        "prefill_context_parallel_size": False,  # 0.14 and newer
    }
    hears = True

    _options: VllmOptions

    _drafts: Iterator[int] | None = None

    @classmethod
    def check_library(cls) -> None:
        with _library.environment():
            _library.find_version()

    def require(self) -> None:
        with _library.environment():
            self._prepare()

    def accepted_drafts(self) -> int | None:
        return None if self._drafts is None else next(self._drafts)

    def _open(self, undo: contextlib.ExitStack) -> None:
        undo.enter_context(_library.environment())
        version, config, arguments = self._prepare()
        self._options.require_tools("vllm", self._dataset)
        pictures = has_chats(self._dataset) and not tools.offers_tools(self._dataset)
        sound = is_speech(self._dataset)
        if self._options.mm_processor_cache_gb and not (pictures or sound):
            raise self._options.refused(
                "mm_processor_cache_gb needs pictures or sound, but the data set has none; leave "
                "it out",
                "mm_processor_cache_gb",
            )
        if pictures or sound or config.sees:
            arguments |= media_arguments(self._options, pictures=pictures, sees=config.sees)
        dummy = self._options.dummy
        self._generation = model_folder.with_end_tokens(
            self._generation, self._folder, config, dummy=dummy
        )
        # Without the folder, so that facts are equal on every machine.
        self._facts |= {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in arguments.items()
            if name != "model"
        }
        self._facts |= model_folder.weights_fact(self._folder, dummy=dummy, option="load_format")
        log = _library.Log()
        with _library.loading(version, log):
            backend = self._load(config, arguments, log, undo)
        self._facts |= _library.describe(version, backend.settled)
        self._facts |= max_batch_entry(arguments, self._facts, self._options.batch_size)
        if arguments.get("speculative_config"):
            self._facts["work.drafts"] = "true"
            self._drafts = _library.accepted_drafts() if self._options.request_metrics else None

    def _prepare(self) -> tuple[str, model_folder.Config, dict[str, Any]]:
        version = _library.find_version()
        config = model_folder.read_config(self._folder)
        check_agrees(self._folder, self._precision, self._options.quantization, config)
        arguments = engine_arguments(self._folder, self._precision, self._options)
        valid = [field.name for field in dataclasses.fields(_library.find("AsyncEngineArgs"))]
        check_names(self._options, arguments, valid, f"vLLM {version}", "engine argument")
        return version, config, arguments

    def _make_media_task(self, config: model_folder.Config) -> GenerateTask:
        tokenizer, options = self._load_tokenizer(), self._options
        chats: PictureChats | tools.ToolChats | None = None
        clips = None
        if tools.offers_tools(self._dataset):
            chats, facts = tools.tool_chats("vllm", self._folder, tokenizer, options)
            self._facts |= facts
        elif has_chats(self._dataset):
            chats = model_folder.picture_chats("vllm", self._folder, tokenizer, processes=False)
        elif is_speech(self._dataset):
            limits = [n for n in (config.context, options.max_model_len) if n is not None]
            clips = model_folder.speech_clips(
                "vllm",
                self._folder,
                self._dataset,
                tokenizer,
                min(limits, default=None),
                options.max_new_tokens,
            )
        return self._make_task(tokenizer, config, options.max_model_len, chats, clips)

    def _load(
        self,
        config: model_folder.Config,
        arguments: Mapping[str, Any],
        log: _library.Log,
        undo: contextlib.ExitStack,
    ) -> _library.AsyncBackend | _library.OfflineBackend:
        options = self._options
        self._task = self._make_media_task(config)
        undo.callback(_library.ChildTracker().end)
        backend: _library.AsyncBackend | _library.OfflineBackend
        if options.api == "offline":
            backend = _library.OfflineBackend(arguments, self._task, log, options.batch_size)
        else:
            backend = _library.AsyncBackend(arguments, self._task, log, streams=options.streams)
        undo.callback(backend.close)
        self._put = backend.put
        self._facts["api"] = options.api
        if options.stream is not None:
            self._facts["stream"] = str(options.whole is None).lower()
        if options.batch_size is not None:
            self._facts["batch_size"] = str(options.batch_size)
        return backend
