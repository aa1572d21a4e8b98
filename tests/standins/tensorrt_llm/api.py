"""LLM: loads a model and answers requests."""

from __future__ import annotations

import copy
import json
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from .executor import Executor, Work, now_since_start
from .faults import fault
from .outputs import RequestOutput, TimingMetrics
from .ranks import Ranks
from .settings import LoadFormat, SamplingParams, TorchLlmArgs

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LLM:
    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        explicit = {name: value for name, value in locals().items() if name in EXPLICIT}
        for name in kwargs:
            if name not in TorchLlmArgs.model_fields:
                raise ValueError(f"LLM got invalid argument: {name}")
        args: Any = TorchLlmArgs(**explicit, **kwargs)
        self.args = args
        self._ranks = Ranks()
        if fault("load"):
            raise RuntimeError(fault("load"))
        args.parallel_config.check_experts()
        world = args.parallel_config.world_size
        if world > 1:
            gpus = fault("gpus") or 1
            if gpus < world:
                raise RuntimeError(f"Only {gpus} GPUs are available, but {world} are required.")
            self._ranks.start(world)
        folder = Path(model)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        # What is left open its workers find out; `args` of this process keeps None.
        longest = fault("longest") or args.max_seq_len or config.get("max_position_embeddings")
        self.tokenizer = None
        if not skip_tokenizer_init:
            import transformers

            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._executor: Executor | None = Executor(self._load(folder), args, longest)
        self._requests = 0

    def _load(self, folder: Path) -> Any:
        dummy = self.args.load_format is LoadFormat.DUMMY
        llama = import_module("standin_llama").Llama
        return llama(folder, DTYPES.get(self.args.dtype), dummy=dummy)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._executor is None or self._executor.is_shutdown:
            raise RuntimeError("LLM is shutting down")
        arrival = now_since_start()
        sampling = self._prepared(sampling_params)
        if isinstance(inputs, str):
            if self.tokenizer is None:
                raise ValueError("tokenizer is required for a text prompt")
            inputs = self.tokenizer(inputs)["input_ids"]
        if not self.args.enable_chunked_prefill and len(inputs) > self.args.max_num_tokens:
            raise ValueError(
                f"The sum of prompt length ({len(inputs)}), query length (0) should not exceed "
                f"max_num_tokens ({self.args.max_num_tokens})"
            )
        output = RequestOutput(self._requests, list(inputs))
        self._requests += 1
        self._executor.put(
            Work(output, sampling, streaming, list(inputs), TimingMetrics(arrival_time=arrival))
        )
        return output

    def generate(
        self, inputs: Any, sampling_params: Any = None, use_tqdm: bool = True
    ) -> RequestOutput | list[RequestOutput]:
        if isinstance(inputs, str) or isinstance(inputs[0], int):
            return self.generate_async(inputs, sampling_params).result()
        return [
            each.result() for each in [self.generate_async(one, sampling_params) for one in inputs]
        ]

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        self._ranks.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _prepared(self, params: SamplingParams | None) -> Any:
        if params is not None and not isinstance(params, SamplingParams):
            raise TypeError(
                f"The sampling_params must be type SamplingParams or None, but got {type(params)}"
            )
        sampling: Any = SamplingParams() if params is None else copy.copy(params)
        if sampling.end_id is None:
            if self.tokenizer is None:
                raise ValueError(
                    "tokenizer is required to reset end_id if it is None, or you can explicitly "
                    "specify the end_id for sampling_params"
                )
            sampling.end_id = self.tokenizer.eos_token_id
        if self.args.return_perf_metrics:
            sampling.return_perf_metrics = True
        return sampling


EXPLICIT = (
    "model",
    "tokenizer",
    "tokenizer_mode",
    "skip_tokenizer_init",
    "trust_remote_code",
    "tensor_parallel_size",
    "dtype",
    "revision",
    "tokenizer_revision",
)
