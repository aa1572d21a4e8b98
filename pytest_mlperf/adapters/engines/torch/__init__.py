"""Run a causal language model with transformers, in static batches or continuous batching."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mlperf import SuiteError
from pytest_mlperf.adapters.engines import engine_error, require_module
from pytest_mlperf.adapters.engines.llm.generation import Answers
from pytest_mlperf.adapters.engines.llm.model_folder import (
    picture_chats,
    read_config,
    tokenizer_for,
)
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats, has_chats
from pytest_mlperf.adapters.engines.llm.tools import ToolChats, offers_tools, tool_chats
from pytest_mlperf.adapters.engines.torch._base import STORED, TokenBase, TorchOptions

if TYPE_CHECKING:
    from pytest_mlperf.adapters.engines.torch._batching import ContinuousBatching


class TorchEngine(TokenBase):
    """Answer each prompt with generated tokens: int64, little-endian, end token included.

    Prompts are text, tokenised by the model's own tokenizer; lists of token ids; or chats,
    formatted by the model's template. In static batches, picture patches in chats are computed
    within the timed part, as on a server. Answers to chats that offer tools are UTF-8: tool calls
    as JSON, as a server returns them, or the text without reasoning.

    Args:
        dataset: Its inputs are text, lists of token ids, or chats.
        model: Folder of the model: config.json, safetensors files, and for text a tokenizer.
            Nothing is downloaded and no code of the folder is run.
        precision: "fp32", "bf16" or "fp16"; "int8" or "int4" quantises the weights of linear layers
            and experts (torchao); all else has the checkpoint's own type, or bfloat16 with int4 on
            GPUs. "fp8" quantises these weights and their inputs, all else is bfloat16; it needs
            GPUs of compute capability 8.9 or later. "mxfp4" is for checkpoints with mxfp4 experts,
            such as gpt-oss, which are expanded to the checkpoint's own type.
    """

    first_suite: ClassVar[str] = "model, data, accelerator"
    name = "torch"
    libraries: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    optional_libraries: ClassVar[tuple[str, ...]] = ("torchao", "psutil", "compressed_tensors")
    options: ClassVar[type[TorchOptions]] = TorchOptions
    checkpoints: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "torchao": ("int8", "int4", "fp8"),
        "compressed-tensors": ("int8", "int4", "fp8"),
        STORED: (STORED,),
    }
    precisions: ClassVar[tuple[str, ...]] = TorchOptions.precisions

    _options: TorchOptions

    def _find(self, model: str | None) -> None:
        self._generation = self._options.generation("torch", num_beams=self._options.num_beams)
        super()._find(model)
        self._continuous: ContinuousBatching | None = None

    def require(self) -> None:
        super().require()
        joins = (
            self._options.batching in {"auto", "continuous"}
            and self._options.fits_continuous_batching
        )
        if joins and self._options.device == "cpu":
            require_module("engine torch: continuous batching on the CPU", "psutil", "lm")

    def answer_counts(self) -> Mapping[str, int]:
        return self._answers.take_counts()

    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        if self._continuous is not None:
            self._continuous.reserve()

    def _load(self, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch._checkpoint import (
            PICTURES,
            open_model,
            quiet_and_offline,
            text_kind,
        )

        self._facts |= {
            "attention": self._options.attention,
            "batching": self._options.batching,
            "work.batch": str(self._options.batch_size),
        }
        self._options.require_tools("torch", self._dataset)
        with quiet_and_offline():
            tokenizer, fact = tokenizer_for("torch", self._folder, self._dataset)
            reader = self._chats(tokenizer)
            architecture = read_config(self._folder).architecture
            kind = PICTURES if isinstance(reader, PictureChats) else text_kind(architecture)
            loaded = open_model(self._folder, self._options, self._precision, kind)
        self._facts |= {**fact, **loaded.facts}
        self._generation = dataclasses.replace(self._generation, eos=loaded.eos)
        self._samples = self._generation.prompts(
            self._dataset, tokenizer, loaded.vocabulary, loaded.context, chats=reader
        )
        if self._generation.prompt_logprobs:
            self._samples.max_new_tokens = 0  # a prompt may be as long as the context
        elif self._generation.check_lengths(self._dataset):
            raise engine_error(
                "the data set sets the length of each answer, which this engine does not support; "
                "remove output_tokens from the data set, and set max_new_tokens and ignore_eos"
            )
        output = reader.output if isinstance(reader, ToolChats) else None
        self._answers = Answers(self._generation, check_ends=not self._dummy, output=output)
        self._build(loaded.model, undo)

    def _chats(self, tokenizer: Any) -> PictureChats | ToolChats | None:
        if offers_tools(self._dataset):
            chats, facts = tool_chats("torch", self._folder, tokenizer, self._options)
            self._facts |= facts
            return chats
        return picture_chats("torch", self._folder, tokenizer) if has_chats(self._dataset) else None

    def _build(self, model: Any, undo: ExitStack) -> None:
        from pytest_mlperf.adapters.engines.torch._batching import (
            ContinuousBatching,
            LogprobBatches,
            StaticBatches,
            can_join,
            state_kernels,
        )

        text = self._text_model(model)
        pictured = isinstance(self._samples.chats, PictureChats)
        if not can_join(model):
            self._facts["linear_attention"] = state_kernels()
        logprobs_only = self._generation.prompt_logprobs
        batches = LogprobBatches if logprobs_only else StaticBatches
        static = batches(text, batch_size=self._options.batch_size)
        self._work = self._lists = static.run
        batching = self._options.batching
        if batching == "auto":
            joins = (
                self._options.fits_continuous_batching
                and not (pictured or logprobs_only)
                and can_join(model)
            )
            batching = "continuous" if joins else "dynamic"
        elif batching == "continuous" and (pictured or not can_join(model)):
            fault = "supports no pictures, but the data set has some"
            if not pictured:
                fault = "cannot run this model, whose layers with linear attention keep a state "
                fault += "and no tokens"
            raise SuiteError(
                f'engine torch: batching = "continuous" {fault}; set batching = "dynamic", or '
                "leave it out",
                option="batching",
            )
        if batching == "dynamic":
            self._start_queue(static.run, undo)
        elif batching == "continuous":
            self._continuous = ContinuousBatching(text, self._options)
            undo.callback(self._continuous.close)
            self._work = self._continuous.put
        if self._options.batching != "auto":
            self._lists = self._work

    def _forget(self) -> None:
        super()._forget()
        self._continuous = None
