"""Run a causal language model through TensorRT-LLM's LLM API, on its PyTorch backend."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from pytest_mlperf.adapters.engines import broken, is_count, one_of
from pytest_mlperf.adapters.engines.llm import model_folder
from pytest_mlperf.adapters.engines.llm.engine import LibraryEngine, LibraryOptions
from pytest_mlperf.adapters.engines.llm.generation import TextOptions
from pytest_mlperf.adapters.engines.llm.streaming import Streams
from pytest_mlperf.adapters.engines.tensorrt_llm import _requests
from pytest_mlperf.extension import PLAIN_PRECISIONS, PrecisionName, Rule

KV_CACHE_DTYPES = ("auto", "fp8", "nvfp4", "float16", "bfloat16", "float32", "fp8_ds_mla")
"""Types of all versions of TensorRT-LLM; an older version refuses newer types itself."""
SCHEDULER_POLICIES = ("guaranteed_no_evict", "max_utilization", "static_batch")

QUANTISED_PRECISIONS: tuple[PrecisionName, ...] = (
    *("fp8", "nvfp4", "mxfp4", "int8"),
    *("int4-awq", "w4a8-awq", "gptq", "mixed"),
)
PRECISIONS: tuple[PrecisionName, ...] = (*PLAIN_PRECISIONS, *QUANTISED_PRECISIONS)

PASSED_OPTIONS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "load_format", "enable_chunked_prefill"),
    *("stream_interval", "max_batch_size", "max_num_tokens", "max_seq_len", "attn_backend"),
)

RESERVED: Mapping[str, str] = {
    **{name: f"the option {name}" for name in PASSED_OPTIONS},
    "model": "the key model of [workload] or of the engine entry",
    "tokenizer": "the engine, which reads the tokenizer in the model's folder itself",
    "tokenizer_mode": "the engine, which reads the tokenizer in the model's folder itself",
    "skip_tokenizer_init": "the engine, which always passes token ids",
    "trust_remote_code": "the engine, which never runs code of a model's folder",
    "dtype": "precision",
    "revision": "the engine, which downloads nothing",
    "tokenizer_revision": "the engine, which downloads nothing",
    "max_beam_width": "the engine, whose answers are greedy",
    "return_perf_metrics": "the engine, which always compares the library's times with its own",
    "backend": "the engine, which uses the PyTorch backend",
}
"""Arguments that `llm` must not have, and their replacements."""

EXPERT_RANKS = (
    *("moe_tensor_parallel_size", "moe_expert_parallel_size"),
    "moe_cluster_parallel_size",
)

RESERVED_CONFIG: Mapping[str, Mapping[str, str]] = {
    "kv_cache_config": {
        "enable_block_reuse": "enable_block_reuse",
        "free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction",
        "dtype": "kv_cache_dtype",
        "tokens_per_block": "tokens_per_block",
    },
    "cuda_graph_config": {
        "batch_sizes": "cuda_graphs",
        "max_batch_size": "max_batch_size",
        "enable_padding": "cuda_graph_padding",
    },
    "scheduler_config": {"capacity_scheduler_policy": "scheduler_policy"},
}
"""Arguments of configurations that the engine makes, and the options that set them."""


@dataclass(frozen=True, kw_only=True)
class TensorRtLlmOptions(LibraryOptions):
    """Options of engine tensorrt_llm; None keeps TensorRT-LLM's default.

    Attributes:
        max_batch_size: Maximum samples in flight.
        max_num_tokens: Maximum tokens per forward pass.
        max_seq_len: Maximum tokens of prompt and answer together.
        kv_cache_dtype: "auto", "fp8" or "nvfp4"; after 1.2 also "float16", "bfloat16", "float32"
            and "fp8_ds_mla".
        kv_cache_free_gpu_memory_fraction: Share of the GPU memory left after loading the weights
            that the key-value cache may use.
        tokens_per_block: Tokens per block of the paged key-value cache.
        enable_block_reuse: Whether to reuse cached prefixes of earlier prompts. MLPerf's closed
            division forbids it, and repeated samples would seem fast.
        cuda_graphs: Whether to record CUDA graphs: true, false, or a list of batch sizes.
        cuda_graph_padding: Whether to pad a batch to the next recorded size, as NVIDIA advises;
            None pads if graphs are recorded.
        scheduler_policy: "guaranteed_no_evict", "max_utilization" or "static_batch".
        enable_chunked_prefill: Whether to split prompts longer than max_num_tokens into several
            passes.
        attn_backend: Attention kernels, e.g. "TRTLLM" or "FLASHINFER".
        stream_interval: Number of tokens per streamed message; above 1, tokens arrive in groups.
        llm: Further arguments of the class LLM under TensorRT-LLM's names; tables for its
            configuration objects.
    """

    engine = "tensorrt_llm"
    precisions = PRECISIONS
    counts = (
        *("max_batch_size", "max_num_tokens", "max_seq_len"),
        *("tokens_per_block", "stream_interval"),
    )
    share = "kv_cache_free_gpu_memory_fraction"
    table = "llm"
    reserved = RESERVED

    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_free_gpu_memory_fraction: float = 0.9
    tokens_per_block: int | None = None
    enable_block_reuse: bool = False
    cuda_graphs: bool | list[int] = True
    cuda_graph_padding: bool | None = None
    scheduler_policy: str | None = None
    enable_chunked_prefill: bool = False
    attn_backend: str | None = None
    stream_interval: int = 1
    llm: Mapping[str, Any] = field(default_factory=dict)

    def _rules(self, precision: str) -> Iterator[Rule]:
        yield from super()._rules(precision)
        yield one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        yield one_of("scheduler_policy", self.scheduler_policy, (None, *SCHEDULER_POLICIES))

    def _conflicts(self, precision: str) -> Iterator[Sequence[Any]]:
        yield from super()._conflicts(precision)
        yield (
            self.prompt_logprobs,
            "prompt_logprobs is not supported by this engine: it gives no log-probabilities of "
            "a prompt's own tokens; use engine torch or vllm, or openai with a server that "
            "answers echo with logprobs, or leave it out",
            "prompt_logprobs",
        )
        yield from self._conflicts_of_graphs()
        for config, inner in RESERVED_CONFIG.items():
            more = self.llm.get(config, {})
            text = f"llm.{config} = {more!r} is not a table"
            yield not isinstance(more, Mapping), text, "llm"
            for name, option in inner.items():
                text = f"llm.{config}.{name} is set by the option {option}; leave it out of llm"
                yield name in more, text, "llm"
        yield from self._conflicts_of_ranks()

    def _conflicts_of_graphs(self) -> Iterator[Sequence[Any]]:
        graphs, no_graphs = self.cuda_graphs, "needs CUDA graphs, but cuda_graphs = false"
        applies = isinstance(graphs, list) and not (graphs and all(map(is_count, graphs)))
        text = (
            f"cuda_graphs = {graphs!r} is not true, false or a list of batch sizes, each at least 1"
        )
        yield applies, text, "cuda_graphs"
        text = f"cuda_graph_padding = true {no_graphs}"
        yield self.cuda_graph_padding and not graphs, text, "cuda_graph_padding", "cuda_graphs"
        applies = graphs is False and bool(self.llm.get("cuda_graph_config"))
        yield applies, f"llm.cuda_graph_config {no_graphs}", "llm", "cuda_graphs"

    def _conflicts_of_ranks(self) -> Iterator[Sequence[Any]]:
        ranks = self.tensor_parallel_size
        yield (
            self.llm.get("enable_attention_dp") is True and ranks == 1,
            "llm.enable_attention_dp = true needs tensor_parallel_size above 1, because it gives "
            "each of these GPUs its own requests; set tensor_parallel_size to the number of GPUs "
            "of one copy of the model",
            *("llm", "tensor_parallel_size"),
        )
        sizes = {name: self.llm[name] for name in EXPERT_RANKS if is_count(self.llm.get(name))}
        both = {"moe_tensor_parallel_size", "moe_expert_parallel_size"} <= sizes.keys()
        product = prod(sizes.values())
        # Context parallelism may divide experts among its ranks, too.
        fits = product == ranks if both else ranks % product == 0
        product_text = " x ".join(f"llm.{name} = {size}" for name, size in sizes.items())
        yield (
            not fits and "context_parallel_size" not in self.llm,
            f"{product_text} divides the experts among {product} GPUs, but tensor_parallel_size = "
            f"{ranks}; "
            + (
                f"set values with the product {ranks}"
                if both
                else f"set a value by which {ranks} can be divided"
            ),
            *("llm", "tensor_parallel_size"),
        )


CHECKPOINT_FORMATS = (model_folder.MODELOPT, *model_folder.METHODS, "gptq", "gptq_marlin")


def read_weights(
    folder: Path, precision: str, config: model_folder.Config
) -> model_folder.Quantisation:
    """Return the quantisation of a folder's weights; raise if unknown or of another precision."""
    weights = model_folder.read_quantisation(folder, config)
    is_known = weights.method in CHECKPOINT_FORMATS and any(
        name in QUANTISED_PRECISIONS for name in weights.names
    )
    if weights.method is not None and not is_known:
        key = "quant_algo" if weights.method == model_folder.MODELOPT else "quant_method"
        raise broken(
            folder / weights.file,
            f"names {key} {weights.algorithm!r}, which engine tensorrt_llm does not know; use a "
            f"checkpoint in one of {', '.join(QUANTISED_PRECISIONS)}",
        )
    model_folder.check_agrees(
        "tensorrt_llm",
        folder,
        precision,
        weights,
        words=QUANTISED_PRECISIONS,
        otherwise="precision to bf16 or fp16",
    )
    return weights


def llm_arguments(folder: Path, precision: str, options: TensorRtLlmOptions) -> dict[str, Any]:
    """Return the arguments of LLM that the suite sets; others keep TensorRT-LLM's defaults."""
    arguments = {
        "model": str(folder),
        # Its tokenizer would cost time in every request; prompts and answers are token ids.
        "skip_tokenizer_init": True,
        "dtype": model_folder.TORCH_DTYPES.get(precision, "auto"),
        "return_perf_metrics": True,
        **{name: getattr(options, name) for name in PASSED_OPTIONS},
    }
    result = {name: value for name, value in arguments.items() if value is not None}
    further = dict(options.llm)
    for name, config in _configs(options).items():
        more = further.pop(name, {})
        result[name] = config and {**config, **more}
    return {**result, **further}


def _configs(options: TensorRtLlmOptions) -> dict[str, dict[str, Any] | None]:
    names = RESERVED_CONFIG["kv_cache_config"]
    cache = {name: getattr(options, option) for name, option in names.items()}
    configs: dict[str, dict[str, Any] | None] = {
        "kv_cache_config": {name: value for name, value in cache.items() if value is not None},
        "cuda_graph_config": _graphs(options),
    }
    if options.scheduler_policy is not None:
        policy = options.scheduler_policy.upper()
        configs["scheduler_config"] = {"capacity_scheduler_policy": policy}
    return configs


def _graphs(options: TensorRtLlmOptions) -> dict[str, Any] | None:
    if options.cuda_graphs is False:
        return None
    values: dict[str, Any] = {"enable_padding": options.cuda_graph_padding is not False}
    if isinstance(options.cuda_graphs, list):
        values["batch_sizes"] = sorted(options.cuda_graphs)
    elif options.max_batch_size is not None:
        # Its default ends at 128, and larger batches would run without a graph.
        values["max_batch_size"] = options.max_batch_size
    return values


class TensorRtLlmEngine(LibraryEngine):
    """Answer each prompt with generated tokens: int64, little-endian, end token included.

    Prompts are text, tokenised by the model's own tokenizer, or lists of token ids. Each sample is
    its own request, so batches form in flight. If tokens are timed, answers are streamed.

    Args:
        dataset: Its inputs are text or lists of token ids.
        model: Folder of the model: config.json, safetensors files, and for text a tokenizer.
            Nothing is downloaded and no code of the folder is run.
        precision: "fp32", "bf16" or "fp16" for unquantised weights; "fp8", "nvfp4", "mxfp4",
            "int8", "int4-awq", "w4a8-awq", "gptq" or "mixed" as the checkpoint itself states
            (hf_quant_config.json or quantization_config); the engine itself does not quantise.
    """

    first_suite: ClassVar[str] = "model, accelerator"
    library = "TensorRT-LLM"
    libraries: ClassVar[tuple[str, ...]] = ("tensorrt_llm",)
    options: ClassVar[type[TensorRtLlmOptions]] = TensorRtLlmOptions
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "modelopt": ("fp8", "nvfp4", "int4-awq", "w4a8-awq"),
    }
    install: ClassVar[str] = f"{_requests.ENVIRONMENT_ADVICE} (docs/tensorrt-llm.md)"
    divides: ClassVar[Mapping[str, bool]] = {"context_parallel_size": False}

    _options: TensorRtLlmOptions
    _drafts: _requests.DraftCount

    @classmethod
    def check_library(cls) -> None:
        _requests.import_package()

    def require(self) -> None:
        self._read_folder()
        self.check_library()

    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        longest, limit = self._task.prompts.longest, self._max_prompt_tokens
        if limit is not None and longest > limit:
            raise self._options.refused(
                f"the longest prompt has {longest} tokens, but a forward pass takes at most "
                f"max_num_tokens = {limit}; set max_num_tokens higher, or enable_chunked_prefill = "
                "true",
                *("max_num_tokens", "enable_chunked_prefill"),
            )

    def accepted_drafts(self) -> int | None:
        accepted = self._drafts.take()
        return accepted if "speculative_config" in self._options.llm else None

    def _read_folder(self) -> None:
        self._config = config = model_folder.read_config(self._folder)
        self._quantisation = read_weights(self._folder, self._precision, config)
        dummy = self._options.dummy
        self._generation = model_folder.with_end_tokens(
            self._generation, self._folder, config, dummy=dummy
        )

    def _open(self, undo: contextlib.ExitStack) -> None:
        self._read_folder()
        package = _requests.import_package()
        arguments = llm_arguments(self._folder, self._precision, self._options)
        self._facts |= {
            **_requests.versions(),
            **model_folder.weights_fact(
                self._folder, dummy=self._options.dummy, option="load_format"
            ),
            "architecture": self._config.architecture,
            "dtype": str(arguments["dtype"]),
            **self._quantisation.describe(),
        }
        tokenizer = self._load_tokenizer()
        model = _requests.load_model(package, arguments, self._options)
        undo.callback(model.shutdown)
        self._facts |= self._settings(model)
        self._task = self._make_task(tokenizer, self._config, model.args.max_seq_len)
        chunked = self._options.enable_chunked_prefill
        self._max_prompt_tokens = None if chunked else model.args.max_num_tokens
        self._drafts = _requests.DraftCount()
        sampling = _requests.SamplingByPrompt(
            make=package.SamplingParams, generation=self._generation
        )
        requests = _requests.RequestLoop(
            llm=model,
            sampling=sampling,
            streams=self._options.streams,
            task=self._task,
            drafts=self._drafts,
        )
        streams = Streams(requests.answer)
        undo.callback(streams.close)
        self._put = streams.put
        if sampling.matters:
            streams.run(sampling.find_out(requests.ask, str(package.__version__)))
            self._facts["min_tokens"] = _requests.COUNTED_TOKENS[sampling.counted]

    def _settings(self, model: Any) -> Mapping[str, str]:
        text_options = {option.name for option in dataclasses.fields(TextOptions)}
        options = dataclasses.asdict(self._options)
        knobs = {name: value for name, value in options.items() if name not in text_options}
        further = knobs.pop("llm")
        knobs |= {
            name: getattr(model.args, name)
            for name in ("max_batch_size", "max_num_tokens", "max_seq_len")
        }
        del knobs["load_format"]  # the fact "weights" has it
        if knobs["cuda_graph_padding"] is None:
            knobs["cuda_graph_padding"] = knobs["cuda_graphs"] is not False
        batch = knobs["max_batch_size"]
        if batch:
            # Ranks with their own requests share experts: one step runs all their batches.
            ranks = self._options.tensor_parallel_size if further.get("enable_attention_dp") else 1
            knobs["work.batch"] = batch * ranks
        if "speculative_config" in further:
            knobs["work.drafts"] = True
        facts = {name: _fact_text(value) for name, value in knobs.items() if value is not None}
        return {**facts, **{f"llm.{name}": _fact_text(value) for name, value in further.items()}}


def _fact_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
