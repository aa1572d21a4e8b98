"""Run a causal language model through transformers, in static batches or continuously batched."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.core.extension import Dataset, Engine, Sink
from pytest_mlperf.engines.generation import Answers, Generation
from pytest_mlperf.engines.model_folder import find_model, read_config, tokenizer_for
from pytest_mlperf.engines.prompts import Prompts
from pytest_mlperf.engines.queueing import WorkQueue
from pytest_mlperf.engines.torch.options import (
    check_continuous,
    check_numbers,
    check_sparsity,
    check_words,
)
from pytest_mlperf.engines.torch.quantised import check_quantised
from pytest_mlperf.engines.torch.requirements import (
    require_attention,
    require_device,
    require_module,
)

if TYPE_CHECKING:
    from pytest_mlperf.engines.torch.continuous import ContinuousBatching

LEAST_BATCH_TOKENS = 512
"""Tokens per forward pass of continuous batching, unless more samples are batched."""


class TorchEngine(Engine):
    """Answers each prompt with the tokens it generates: int64, little-endian, end token included.

    Prompts are text, tokenised by the model's own tokenizer, or lists of token ids.
    """

    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "torchao": ("int8", "int4", "fp8"),
        "compressed-tensors": ("int8", "int4", "fp8"),
    }

    def __init__(
        self,
        *,
        dataset: Dataset,
        model: str | None,
        precision: str,
        device: str = "cpu",
        batch_size: int = 32,
        batching: str = "auto",
        max_new_tokens: int = 128,
        min_new_tokens: int = 1,
        max_prompt_tokens: int | None = None,
        num_beams: int = 1,
        ignore_eos: bool = False,
        weights: str = "checkpoint",
        threads: int | None = None,
        attention: str = "sdpa",
        kv_blocks: int | None = None,
        max_batch_tokens: int | None = None,
        sparsity: str | None = None,
    ) -> None:
        """Keep the options and check that the model is there.

        Args:
            dataset: Its inputs are text or lists of token ids.
            model: Folder of the model: config.json, safetensors files, and for text a tokenizer.
                Nothing is downloaded and no code of the folder is run.
            precision: "fp32", "bf16" or "fp16"; "int8" or "int4": weights of linear layers and
                experts as such (torchao), the rest in the checkpoint's own type, or with int4 on
                GPUs in bfloat16; "fp8": these weights and their inputs, the rest in bfloat16, on
                GPUs of compute capability 8.9 and later.
            device: "cpu", "cuda" or "cuda:N".
            batch_size: Samples generated together at most.
            batching: "static": in batches inside `submit`, a single sample alone. "dynamic": in
                batches of what has gathered while the last one was generated. "continuous":
                transformers' continuous batching, where samples join and leave at every token.
                "auto": lists static, single samples continuous (with beams: dynamic).
            max_new_tokens: Most tokens per answer.
            min_new_tokens: Tokens before an end token may come; 1 lets no answer be empty.
            max_prompt_tokens: Longer prompts are cut at their end, as MLPerf's GPT-J reference cuts
                articles at 1919; None cuts none, and one too long for the model is an error.
            num_beams: 1 is greedy; more search with as many beams, and end at the first found.
            ignore_eos: Give every answer `max_new_tokens` tokens.
            weights: "checkpoint", or "dummy" for random weights: speed without the model's files.
            threads: Threads of the CPU's operators; None leaves torch's own choice.
            attention: "sdpa", "eager", "flash_attention_2" or "flash_attention_3".
            kv_blocks: Blocks of 256 tokens in the key-value cache of continuous batching; None
                holds `batch_size` samples as long as the longest.
            max_batch_tokens: Tokens per forward pass of continuous batching; None is 512, or
                `batch_size` where that is more.
            sparsity: "2:4": of each four weights of a linear layer at most two are not zero, or
                loading fails. GPUs of compute capability 8.0 and later then use kernels for it.

        Raises:
            SuiteError: An option is out of range, or there is no model.
            UnavailableError: The model's folder is not here.
        """
        check_words(precision, device, batching, weights, attention)
        check_numbers(batch_size, num_beams, threads)
        self._generation = Generation(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            num_beams=num_beams,
            ignore_eos=ignore_eos,
        )
        self._generation.check("torch")
        check_sparsity(sparsity, precision, weights)
        check_continuous(batching, batch_size, num_beams, attention, kv_blocks, max_batch_tokens)
        self._folder = find_model("torch", model)
        self._dataset = dataset
        self._precision = precision
        self._device = device
        self._batch_size = batch_size
        self._batching = batching
        self._dummy = weights == "dummy"
        self._threads = threads
        self._attention = attention
        self._kv_blocks = kv_blocks
        self._max_batch_tokens = max_batch_tokens or max(LEAST_BATCH_TOKENS, batch_size)
        self._sparsity = sparsity
        self._continuous: ContinuousBatching | None = None

    def require(self) -> None:
        """Look for the device and for what the options need; nothing is loaded.

        Raises:
            EnvironmentFault: A library or the device is not here, or it has no kernels.
            RunError: The weights are quantised in another way.
        """
        quantization = read_config(self._folder).quantization
        if not self._dummy:
            check_quantised(self._folder, quantization, self._precision)
        require_device(
            "torch",
            device=self._device,
            precision=self._precision,
            is_quantised=bool(quantization),
        )
        require_attention(self._attention)
        joins = self._batching in {"auto", "continuous"} and self._generation.num_beams == 1
        if joins and self._device == "cpu":
            require_module("torch", "psutil", "continuous batching on the CPU", "lm")

    def __enter__(self) -> Self:
        """Load the model and start the threads.

        Raises:
            EnvironmentFault: A library, the device or the attention implementation is not here.
            RunError: The folder has no complete causal language model, or none that ends.
        """
        try:
            import torch  # noqa: F401 - both are used by the modules below
            import transformers  # noqa: F401
        except ImportError as error:
            raise EnvironmentFault(
                f"engine torch needs {error.name}, which is not installed; "
                "try: pip install 'pytest-mlperf[lm]'"
            ) from error
        self.require()
        from pytest_mlperf.engines.torch import devices

        with contextlib.ExitStack() as undo:
            self._facts = {
                "engine": "torch",
                "attention": self._attention,
                "batching": self._batching,
                "batch_size": str(self._batch_size),
                "work.batch": str(self._batch_size),
                "threads": devices.use_threads(self._threads, undo),
            }
            self._open(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the threads and free the model and the samples."""
        self._undo.close()

    def load_samples(self, indices: Sequence[int]) -> None:
        """Tokenise and check prompts, and make room for them.

        Raises:
            RunError: A sample is no prompt for this model, or memory is too small.
            SuiteError: `kv_blocks` is too small for a sample.
        """
        self._prompts.load(indices)
        self._answers.expect(len(self._prompts))
        if self._continuous is not None:
            self._continuous.reserve()

    def unload_samples(self, indices: Sequence[int]) -> None:
        """Forget these samples."""
        self._prompts.unload(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        """Generate here, or hand the samples to the threads."""
        (self._one if len(ids) == 1 else self._many)(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        """Return versions, weights, and what decides speed and answers; needs a loaded model."""
        return {**self._facts, **self._generation.describe()}

    def _open(self, undo: contextlib.ExitStack) -> None:
        """Load the model, and build the ways through it."""
        from pytest_mlperf.engines.torch import checkpoint, devices, folder

        with folder.quiet_and_offline():
            loaded = checkpoint.open_model(
                self._folder,
                precision=self._precision,
                attention=self._attention,
                device=devices.find_device(self._device),
                dummy=self._dummy,
                needs_end=not self._generation.ignore_eos,
                sparsity=self._sparsity,
            )
            tokenizer, fact = tokenizer_for("torch", self._folder, self._dataset)
        undo.callback(devices.release_memory)
        self._facts |= {**fact, **loaded.facts}
        self._generation = dataclasses.replace(self._generation, eos=loaded.eos)
        limits = self._generation.limits(loaded.vocabulary, loaded.context)
        self._prompts = Prompts(dataset=self._dataset, tokenizer=tokenizer, limits=limits)
        self._answers = Answers(self._generation, watch_ends=not self._dummy)
        self._build(loaded.model, undo)

    def _build(self, model: Any, undo: contextlib.ExitStack) -> None:
        """Choose how single samples and lists are worked on; start the threads this needs."""
        from pytest_mlperf.engines.torch.continuous import ContinuousBatching
        from pytest_mlperf.engines.torch.static import StaticBatches

        parts = (model, self._generation, self._prompts, self._answers)
        static = StaticBatches(*parts, batch_size=self._batch_size)
        self._one = self._many = static.run
        undo.callback(self._forget)
        one = self._batching
        if one == "auto":
            one = "continuous" if self._generation.num_beams == 1 else "dynamic"
        if one == "dynamic":
            queue = WorkQueue(static.run, max_batch=self._batch_size)
            undo.callback(queue.close)
            self._one = queue.put
        elif one == "continuous":
            self._continuous = ContinuousBatching(
                *parts,
                batch_size=self._batch_size,
                kv_blocks=self._kv_blocks,
                max_batch_tokens=self._max_batch_tokens,
                at_need=self._batching == "auto",
            )
            undo.callback(self._continuous.close)
            self._one = self._continuous.put
        if self._batching != "auto":
            self._many = self._one

    def _forget(self) -> None:
        """Let go of all that refers to the model."""
        self._continuous = None
        del self._one, self._many
