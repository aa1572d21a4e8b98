"""Run a causal language model through TensorRT-LLM's LLM API, on its PyTorch backend."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.model_folder import (
    find_model,
    read_config,
    tokenizer_for,
    weights_fact,
    with_ends,
)
from pytest_mlperf.engines.parallel import check_parallel
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.streaming import Streams
from pytest_mlperf.engines.tensorrt_llm.arguments import llm_arguments
from pytest_mlperf.engines.tensorrt_llm.least_length import COUNTED, Sampling
from pytest_mlperf.engines.tensorrt_llm.options import Options, refused
from pytest_mlperf.engines.tensorrt_llm.package import (
    ELSEWHERE,
    import_package,
    load_model,
    versions,
)
from pytest_mlperf.engines.tensorrt_llm.quantisation import (
    check_agrees,
    check_precision,
    read_quantisation,
)
from pytest_mlperf.engines.tensorrt_llm.requests import Requests


class TensorRtLlmEngine(Engine):
    """Answers each prompt with the tokens it generates: int64, little-endian, end token included.

    Prompts are text, tokenised by the model's own tokenizer, or lists of token ids. Each sample is
    a request of its own, so batches form in flight; where tokens are timed, answers are streamed.
    """

    libraries: ClassVar[tuple[str, ...]] = ("tensorrt_llm",)
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "modelopt": ("fp8", "nvfp4", "int4-awq", "w4a8-awq"),
    }
    install: ClassVar[str] = f"{ELSEWHERE} (docs/tensorrt-llm.md)"

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
        max_seq_len: int | None = None,
        kv_cache_dtype: str = "auto",
        kv_cache_free_gpu_memory_fraction: float = 0.9,
        tokens_per_block: int | None = None,
        enable_block_reuse: bool = False,
        cuda_graphs: bool | list[int] = True,
        cuda_graph_padding: bool = False,
        scheduler_policy: str | None = None,
        enable_chunked_prefill: bool = False,
        load_format: str = "auto",
        attn_backend: str | None = None,
        stream_interval: int = 1,
        stream: bool = True,
        llm: Mapping[str, Any] | None = None,
        max_new_tokens: int = 128,
        min_new_tokens: int = 1,
        ignore_eos: bool = False,
        max_prompt_tokens: int | None = None,
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are text or lists of token ids.
            model: Folder of the model: config.json, safetensors files, and for text a tokenizer.
                Nothing is downloaded and no code of the folder is run.
            precision: "fp32", "bf16" or "fp16" for plain weights; "fp8", "nvfp4", "mxfp4", "int8",
                "int4-awq", "w4a8-awq", "gptq" or "mixed" as the checkpoint says itself
                (hf_quant_config.json or quantization_config): TensorRT-LLM quantises nothing.
            tensor_parallel_size: GPUs that share each layer.
            pipeline_parallel_size: Groups of them that share the layers among each other.
            max_batch_size: Samples in flight at most; None and the like: TensorRT-LLM's own choice.
            max_num_tokens: Tokens per forward pass at most.
            max_seq_len: Tokens of prompt and answer together at most.
            kv_cache_dtype: "auto", "fp8" or "nvfp4"; of newer ones than 1.2 also "float16",
                "bfloat16", "float32" and "fp8_ds_mla".
            kv_cache_free_gpu_memory_fraction: Of the memory that is free once weights are loaded.
            tokens_per_block: Of the paged key-value cache.
            enable_block_reuse: Take what a prompt has in common with an earlier one from the cache.
                MLPerf's closed division forbids it, and repeated samples would look fast.
            cuda_graphs: Record CUDA graphs, or for these batch sizes only, or none.
            cuda_graph_padding: Pad a batch to the next size that is recorded.
            scheduler_policy: "guaranteed_no_evict", "max_utilization" or "static_batch".
            enable_chunked_prefill: Let prompts be longer than max_num_tokens, in several passes.
            load_format: "auto", or "dummy" for random weights: speed without the model's files.
            attn_backend: Attention kernels, e.g. "TRTLLM" or "FLASHINFER".
            stream_interval: Tokens of an answer per message; above 1 they come in clumps.
            stream: Take tokens as they come wherever they are timed. False takes answers whole,
                which is less work for this process, and is for Offline only.
            llm: Further arguments of LLM, as TensorRT-LLM names them; tables where it has
                configurations.
            max_new_tokens: Most tokens per answer.
            min_new_tokens: Tokens before the end token may come; 1 lets no answer be empty.
            ignore_eos: Give every answer `max_new_tokens` tokens.
            max_prompt_tokens: Longer prompts are cut at their end; None cuts none.

        Raises:
            SuiteError: An option is out of range, or there is no model.
            UnavailableError: The model's folder is not here.
        """
        check_precision(precision)
        self._generation = Generation(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            ignore_eos=ignore_eos,
        )
        self._generation.check("tensorrt_llm")
        self._options = Options(
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
            max_seq_len=max_seq_len,
            kv_cache_dtype=kv_cache_dtype,
            kv_cache_free_gpu_memory_fraction=kv_cache_free_gpu_memory_fraction,
            tokens_per_block=tokens_per_block,
            enable_block_reuse=enable_block_reuse,
            cuda_graphs=cuda_graphs,
            cuda_graph_padding=cuda_graph_padding,
            scheduler_policy=scheduler_policy,
            enable_chunked_prefill=enable_chunked_prefill,
            load_format=load_format,
            attn_backend=attn_backend,
            stream_interval=stream_interval,
            stream=stream,
            llm={} if llm is None else llm,
        )
        self._options.check()
        self._dummy = load_format == "dummy"
        self._folder = find_model("tensorrt_llm", model)
        self._dataset = dataset
        self._precision = precision

    @classmethod
    def check_gpus(cls, count: int, options: Mapping[str, Any]) -> None:
        """Refuse GPUs that parallelism does not use.

        Raises:
            SuiteError: It uses another number.
        """
        check_parallel("tensorrt_llm", count, options, further=("llm", "context_parallel_size"))

    @classmethod
    def check_library(cls) -> None:
        """Import TensorRT-LLM.

        Raises:
            EnvironmentFault: It is not installed, cannot be imported, or is too old.
        """
        import_package()

    def require(self) -> None:
        """Import TensorRT-LLM, and check the model's folder; nothing is loaded.

        Raises:
            EnvironmentFault: TensorRT-LLM is not installed, cannot be imported, or is too old.
            SuiteError: The weights have another precision.
            RunError: The folder's configuration cannot be read.
        """
        self._read_folder()
        self.check_library()

    def __enter__(self) -> Self:
        """Load the model.

        Raises:
            EnvironmentFault: TensorRT-LLM is not here, cannot be imported, or is too old.
            SuiteError: It refuses an argument of `llm`, or the weights have another precision.
            RunError: The folder has no complete checkpoint, or TensorRT-LLM cannot load it.
        """
        self._read_folder()
        package = import_package()
        with contextlib.ExitStack() as undo:
            self._open(package, undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel what is under way and end TensorRT-LLM and its processes."""
        self._tell_gaps()
        self._undo.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Tokenise and check prompts.

        Raises:
            RunError: A sample is no prompt for this model.
            SuiteError: A prompt is longer than one forward pass may be.
        """
        self._prompts.load(indices)
        self._requests.answers.expect(len(self._prompts))
        most = self._most_prompt_tokens
        if most is not None and self._prompts.longest > most:
            raise SuiteError(
                f"engine tensorrt_llm: the longest prompt has {self._prompts.longest} tokens, but "
                f"max_num_tokens = {most} fit one forward pass; set max_num_tokens higher, or "
                "enable_chunked_prefill = true"
            )

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples, and log how far our stamps were from TensorRT-LLM's."""
        self._prompts.unload(indices)
        self._tell_gaps()

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand the samples to the event loop, a request each.

        Raises:
            SuiteError: Tokens of a single sample are to be timed, and none are seen.
        """
        if sink.times_tokens and len(ids) == 1 and not self._options.stream:
            raise refused(
                "stream = false gives answers whole, so their first tokens cannot be timed; it is "
                "for Offline: leave it out for other scenarios"
            )
        self._streams.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, and what decides speed and answers; needs a loaded model."""
        return {**self._facts, **self._generation.describe()}

    def _read_folder(self) -> None:
        """Read what the folder's JSON files say, and check that it can be run as the suite says."""
        self._config = config = read_config(self._folder)
        self._quantisation = read_quantisation(self._folder, config)
        check_agrees(self._folder, self._precision, self._quantisation)
        self._generation = with_ends(self._generation, self._folder, config, dummy=self._dummy)

    def _open(self, package: Any, undo: contextlib.ExitStack) -> None:
        """Load the model and make ready to be asked."""
        arguments = llm_arguments(self._folder, self._precision, self._options)
        facts = {
            "engine": "tensorrt_llm",
            **versions(),
            **weights_fact(self._folder, dummy=self._dummy, option="load_format"),
            "architecture": self._config.architecture,
            "dtype": str(arguments["dtype"]),
            **self._quantisation.describe(),
        }
        tokenizer, fact = tokenizer_for("tensorrt_llm", self._folder, self._dataset)
        model = load_model(package, arguments)
        undo.callback(model.shutdown)
        self._facts = {**facts, **fact, **self._settings(model)}
        limits = self._generation.limits(
            self._config.vocabulary, self._config.context, model.args.max_seq_len
        )
        self._prompts = Prompts(dataset=self._dataset, tokenizer=tokenizer, limits=limits)
        chunked = self._options.enable_chunked_prefill
        self._most_prompt_tokens = None if chunked else model.args.max_num_tokens
        sampling = Sampling(make=package.SamplingParams, generation=self._generation)
        self._requests = Requests(
            llm=model,
            sampling=sampling,
            stream=self._options.stream,
            prompts=self._prompts,
            generation=self._generation,
            answers=Answers(self._generation, watch_ends=not self._dummy),
        )
        self._streams = Streams(self._requests.answer)
        undo.callback(self._streams.close)
        if sampling.matters:
            version = str(package.__version__)
            self._streams.run(sampling.find_out(self._requests.ask, version))
            self._facts["min_tokens"] = COUNTED[sampling.counted]

    def _settings(self, model: Any) -> Mapping[str, str]:
        """Return the knobs as facts: the limits as TensorRT-LLM has them, the rest as given."""
        given = dataclasses.asdict(self._options)
        further = given.pop("llm")
        given |= {
            name: getattr(model.args, name)
            for name in ("max_batch_size", "max_num_tokens", "max_seq_len")
        }
        del given["load_format"]  # told as weights
        batch = given["max_batch_size"]
        # Drafts make more of a step than its samples, and ranks of their own batches share experts.
        if batch and not {"speculative_config", "enable_attention_dp"} & set(further):
            given["work.batch"] = batch
        said = {name: _said(value) for name, value in given.items() if value is not None}
        return {**said, **{f"llm.{name}": _said(value) for name, value in further.items()}}

    def _tell_gaps(self) -> None:
        if line := self._requests.gaps.take():
            print(line, file=sys.stderr, flush=True)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
