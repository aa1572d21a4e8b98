"""Run a causal language model through vLLM, in this process, by its async or its offline API."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.model_folder import (
    Config,
    find_model,
    read_config,
    tokenizer_for,
    weights_fact,
    with_ends,
)
from pytest_mlperf.engines.parallel import check_parallel
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.vllm import quantisation
from pytest_mlperf.engines.vllm.arguments import (
    describe_arguments,
    engine_arguments,
    most_together,
)
from pytest_mlperf.engines.vllm.causes import Log
from pytest_mlperf.engines.vllm.options import Options, refused


class VllmEngine(Engine):
    """Answers each prompt with the tokens it generates: int64, little-endian, end token included.

    Prompts are text, tokenised by the model's own tokenizer, or lists of token ids; vLLM itself
    gets and gives token ids only.
    """

    libraries: ClassVar[tuple[str, ...]] = ("vllm",)
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "torchao": ("int8", "int4", "fp8"),
        "compressed-tensors": ("int8", "int4", "fp8", "nvfp4"),
        "modelopt": ("fp8", "nvfp4"),
    }
    install: ClassVar[str] = (
        "vLLM pins its own torch and transformers, so give it an environment of its own: python -m "
        "venv vllm; vllm/bin/pip install vllm mlcommons-loadgen; and in the engine entry: python = "
        '"vllm/bin/python" (docs/vllm.md)'
    )

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        api: str = "async",
        stream: bool = True,
        batch_size: int | None = None,
        max_new_tokens: int = 128,
        min_new_tokens: int = 1,
        max_prompt_tokens: int | None = None,
        ignore_eos: bool = False,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        gpu_memory_utilization: float | None = None,
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        enable_prefix_caching: bool = False,
        enforce_eager: bool = False,
        load_format: str = "auto",
        request_metrics: bool = True,
        engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are text or lists of token ids.
            model: Folder of the model: config.json, safetensors files, and for text a tokenizer.
                Nothing is downloaded.
            precision: "fp32", "bf16" or "fp16": the type of plain weights. "fp8", "nvfp4", "mxfp4",
                "int8", "int4", "int4-awq", "gptq": of a checkpoint that is quantised so, or by
                `quantization`.
            api: "async": AsyncLLM, which servers are built on; tokens are seen as they come.
                "offline": LLM.generate, for scenarios whose tokens are not timed.
            stream: Take tokens as they come wherever they are timed. False takes answers whole,
                which is less work for the process they come to, and is for Offline only.
            batch_size: With `api = "offline"`, samples per call of LLM.generate at most; None is
                all that wait. The last samples of each call run alone.
            max_new_tokens: Most tokens per answer.
            min_new_tokens: Tokens before an end token may come; 1 lets no answer be empty.
            max_prompt_tokens: Longer prompts are cut at their end; None cuts none, and one too
                long for the model is an error.
            ignore_eos: Give every answer `max_new_tokens` tokens.
            tensor_parallel_size: GPUs that share each layer.
            pipeline_parallel_size: Groups of them that share the layers among each other.
            max_model_len: Tokens of prompt and answer together at most; None is the model's.
            max_num_seqs: Samples in flight at most.
            max_num_batched_tokens: Tokens per forward pass at most.
            gpu_memory_utilization: Share of each GPU's memory that vLLM takes.
            kv_cache_dtype: Type of the key-value cache, in vLLM's words.
            quantization: Method of quantised weights, in vLLM's words; None is the checkpoint's.
                "fp8" quantises plain weights while they are loaded.
            enable_prefix_caching: Keep what prompts have in common from one to the next. MLPerf
                forbids it in its closed division, and as LoadGen issues the same samples again and
                again it would measure memory rather than work.
            enforce_eager: No CUDA graphs and no torch.compile: loads faster, runs slower.
            load_format: "auto", or "dummy" for random weights: speed without the model's files.
            request_metrics: Let vLLM stamp each request itself; ours are held against its stamps.
            engine_args: Further engine arguments by vLLM's names.

        Raises:
            SuiteError: An option is out of range or given twice, or there is no model.
            UnavailableError: The model's folder is not here.
        """
        self._options = Options(
            api=api,
            stream=stream,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_dtype=kv_cache_dtype,
            quantization=quantization,
            enable_prefix_caching=enable_prefix_caching,
            enforce_eager=enforce_eager,
            load_format=load_format,
            request_metrics=request_metrics,
            engine_args={} if engine_args is None else engine_args,
        )
        self._options.check(batch_size)
        self._generation = Generation(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            ignore_eos=ignore_eos,
        )
        self._generation.check("vllm")
        quantisation.check_words(precision, quantization)
        self._folder = find_model("vllm", model)
        self._dataset = dataset
        self._precision = precision
        self._batch_size = batch_size
        self._facts: dict[str, str] = {"engine": "vllm"}

    @classmethod
    def check_gpus(cls, count: int, options: Mapping[str, Any]) -> None:
        """Refuse GPUs that parallelism does not use.

        Raises:
            SuiteError: It uses another number.
        """
        check_parallel("vllm", count, options, further=("engine_args", "data_parallel_size"))

    @classmethod
    def check_library(cls) -> None:
        """Import vLLM.

        Raises:
            EnvironmentFault: It is not installed, cannot be imported, or is too old.
        """
        from pytest_mlperf.engines.vllm import library

        with library.environment():
            library.find_version()

    def require(self) -> None:
        """Import vLLM, and hold options and the model's folder against it; nothing is loaded.

        Raises:
            EnvironmentFault: vLLM is not installed, cannot be imported, or is too old.
            RunError: The folder's configuration cannot be read.
            SuiteError: This vLLM has no such engine argument, or the weights another precision.
        """
        from pytest_mlperf.engines.vllm import library

        with library.environment():
            self._prepare()

    def _prepare(self) -> tuple[str, Config, Mapping[str, Any]]:
        """Return vLLM's version, the model's configuration and what vLLM is given."""
        from pytest_mlperf.engines.vllm import library

        found = library.find_version()
        config = read_config(self._folder)
        quantisation.check_agrees(
            self._folder, self._precision, self._options.quantization, config.quantization
        )
        arguments = engine_arguments(self._folder, self._precision, self._options)
        library.check_names(arguments, library.find("AsyncEngineArgs"), found)
        return found, config, arguments

    def __enter__(self) -> Self:
        """Load the model; vLLM starts processes of its own for it.

        Raises:
            EnvironmentFault: vLLM is not installed, cannot be imported, or is too old, also for how
                the GPUs are named.
            RunError: The folder has no complete model, or vLLM cannot load it.
            SuiteError: This vLLM has no such engine argument, or the weights another precision.
        """
        from pytest_mlperf.engines.vllm import library

        with contextlib.ExitStack() as undo:
            undo.enter_context(library.environment())
            found, config, arguments = self._prepare()
            library.check_devices(found)
            dummy = self._options.dummy
            self._generation = with_ends(self._generation, self._folder, config, dummy=dummy)
            self._facts |= describe_arguments(arguments)
            self._facts |= weights_fact(self._folder, dummy=dummy, option="load_format")
            log = Log()
            with library.loading(found, log):
                self._open(config, arguments, log, undo)
            self._facts |= library.describe(found, self._way.settled)
            self._facts |= most_together(arguments, self._facts, self._batch_size)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End vLLM and every process that it started."""
        self._undo.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Tokenise and check prompts.

        Raises:
            RunError: A sample is no prompt for this model.
        """
        self._task.prompts.load(indices)
        self._task.answers.expect(len(self._task.prompts))

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples, and log how our stamps compare with vLLM's since the last time."""
        self._task.prompts.unload(indices)
        if line := self._task.gaps.take():
            print(line, file=sys.stderr)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Hand the samples to vLLM and return.

        Raises:
            SuiteError: Tokens of a single sample are to be timed, and the options let none be seen.
        """
        options = self._options
        if sink.times_tokens and len(ids) == 1 and not options.sees_tokens:
            name = "stream = false" if options.api == "async" else 'api = "offline"'
            raise refused(
                f"{name} gives answers whole, so their first tokens cannot be timed; it is for "
                'Offline: leave it out for other scenarios (api = "async", stream = true)'
            )
        self._way.put(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, and what decides speed and answers; needs a loaded model."""
        return {**self._facts, **self._generation.describe()}

    def _open(
        self, config: Config, arguments: Mapping[str, Any], log: Log, undo: contextlib.ExitStack
    ) -> None:
        """Load the model by the API that the suite names."""
        from pytest_mlperf.engines.vllm.answering import AsyncWay, OfflineWay, Task, Way
        from pytest_mlperf.engines.vllm.processes import Started

        tokenizer, fact = tokenizer_for("vllm", self._folder, self._dataset)
        self._facts |= fact
        limits = self._generation.limits(
            config.vocabulary, config.context, self._options.max_model_len
        )
        self._task = Task(
            prompts=Prompts(dataset=self._dataset, tokenizer=tokenizer, limits=limits),
            generation=self._generation,
            answers=Answers(self._generation, watch_ends=not self._options.dummy),
            log=log,
        )
        undo.callback(Started().end)
        way: Way
        if self._options.api == "offline":
            way = OfflineWay(arguments, self._task, batch_size=self._batch_size)
        else:
            way = AsyncWay(arguments, self._task, stream=self._options.stream)
        undo.callback(way.close)
        self._way = way
        self._facts |= {"api": self._options.api, "stream": str(self._options.sees_tokens).lower()}
        if self._batch_size is not None:
            self._facts["batch_size"] = str(self._batch_size)
