"""Define the options of torch engines, and open and close the engines; do not import torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pytest_mlperf import Dataset, EnvironmentFault, Sink, WorkQueue
from pytest_mlperf.adapters.engines import (
    StackedEngine,
    broken,
    count_rule,
    import_all,
    one_of,
    refuse_conflicts,
    require_module,
)
from pytest_mlperf.adapters.engines.llm.generation import (
    Answers,
    Generation,
    TextOptions,
    TokenPrompts,
    refuse_times,
)
from pytest_mlperf.adapters.engines.llm.model_folder import (
    COMPRESSED,
    TORCHAO,
    expected_types,
    find_model,
    quantisation_of,
    read_config,
)
from pytest_mlperf.adapters.engines.llm.tools import ToolOptions
from pytest_mlperf.adapters.engines.torch._stages import StageTimes
from pytest_mlperf.extension import PLAIN_PRECISIONS, PrecisionName, Rule, require_options

QUANTISED_PRECISIONS: tuple[PrecisionName, ...] = ("int8", "int4", "fp8")
PRECISIONS: tuple[PrecisionName, ...] = (*PLAIN_PRECISIONS, *QUANTISED_PRECISIONS)
STORED: PrecisionName = "mxfp4"
"""Precision that only a checkpoint can have; engines never quantise to it."""

ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
BATCHINGS = ("auto", "static", "dynamic", "continuous")
JOINS = ("stack", "concat", "pad")
WEIGHT_SOURCES = ("checkpoint", "dummy")
SPARSITIES = ("2:4",)

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options of every torch engine.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        batch_size: Maximum number of samples to run together.
        threads: Number of threads for CPU operators; None keeps torch's default.
    """

    engine: ClassVar[str]
    precisions: ClassVar[tuple[PrecisionName, ...]] = PRECISIONS

    device: str = "cpu"
    batch_size: int = 8
    threads: int | None = None

    def check(self, precision: str) -> None:
        require_options(f"engine {self.engine}", self.rules(precision))

    def rules(self, precision: str) -> Iterator[Rule]:
        device = self.device
        yield one_of("precision", precision, self.precisions)
        is_valid = re.fullmatch(r"cpu|cuda(:\d+)?", str(device)) is not None
        yield "device", device, is_valid, "cpu, cuda or cuda:N"
        yield count_rule("batch_size", self.batch_size, "samples")
        yield count_rule("threads", self.threads, "threads")


@dataclass(frozen=True, kw_only=True)
class TokenOptions(DeviceOptions, TextOptions):
    """Options of the torch engines that generate tokens.

    Attributes:
        batch_size: Maximum samples generated together.
        weights: "checkpoint", or "dummy" for random weights, to measure speed without weight files.
        attention: "sdpa", "eager", "flash_attention_2" or "flash_attention_3".
        sparsity: "2:4" requires that at most two of every four weights in a linear layer are not
            zero, and uses sparse kernels on GPUs of compute capability 8.0 and later.
    """

    batch_size: int = 32
    weights: str = "checkpoint"
    attention: str = "sdpa"
    sparsity: str | None = None

    def check(self, precision: str) -> None:
        super().check(precision)
        refuse_conflicts(self.engine, self.conflicts(precision))

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield one_of("weights", self.weights, WEIGHT_SOURCES)
        yield one_of("attention", self.attention, ATTENTIONS)

    def conflicts(self, precision: str) -> Iterator[Sequence[Any]]:
        """Yield (whether options conflict, error message, option names…) for `refuse_conflicts`."""
        sparsity = self.sparsity
        if sparsity is not None:
            yield (
                sparsity not in SPARSITIES,
                f"sparsity = {sparsity!r} is not one of {', '.join(SPARSITIES)}",
                "sparsity",
            )
            yield (
                precision not in PLAIN_PRECISIONS,
                f'sparsity = "{sparsity}" needs precision = {" or ".join(PLAIN_PRECISIONS)}, not '
                f'"{precision}": quantised weights run in dense kernels',
                *("sparsity", "precision"),
            )
            yield (
                self.weights == "dummy",
                f'sparsity = "{sparsity}" excludes weights = "dummy", as random weights are not '
                "sparse; leave one of them out",
                *("sparsity", "weights"),
            )


@dataclass(frozen=True, kw_only=True)
class TorchOptions(TokenOptions, ToolOptions):
    """Options of engine torch.

    Attributes:
        batching: "static": the samples of one `submit` call are split into batches. "dynamic": a
            batch is made of the samples that arrived during the previous batch. "continuous":
            transformers' continuous batching, where samples join and leave at every token. "auto":
            static for several samples in a call, continuous for single samples (dynamic with beam
            search or sampling).
        num_beams: Number of beams. 1 means no beam search; with more, the search ends when that
            many beams are finished.
        kv_blocks: Blocks of 256 tokens in the key-value cache of continuous batching; None has
            space for `batch_size` samples of the maximum length.
        max_batch_tokens: Tokens per forward pass of continuous batching; None is the larger of 512
            and `batch_size`.
    """

    engine: ClassVar[str] = "torch"
    precisions: ClassVar[tuple[PrecisionName, ...]] = (*PRECISIONS, STORED)

    batching: str = "auto"
    num_beams: int = 1
    kv_blocks: int | None = None
    max_batch_tokens: int | None = None

    @property
    def fits_continuous_batching(self) -> bool:
        """Whether transformers' continuous batching supports answers with these options."""
        return self.num_beams == 1 and not (self.is_drawn or self.prompt_logprobs)

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield from self.tool_rules()
        yield one_of("batching", self.batching, BATCHINGS)
        yield count_rule("num_beams", self.num_beams, "beams")

    def conflicts(self, precision: str) -> Iterator[Sequence[Any]]:
        yield from super().conflicts(precision)
        blocks, limit = self.kv_blocks, self.max_batch_tokens
        yield (
            blocks is not None and blocks < 1,
            f"kv_blocks = {blocks!r} is not at least 1",
            "kv_blocks",
        )
        yield (
            limit is not None and limit < self.batch_size,
            f"max_batch_tokens = {limit!r} is less than batch_size = {self.batch_size}; a sample "
            "needs one token per forward pass",
            *("max_batch_tokens", "batch_size"),
        )
        yield (
            self.batching == "continuous" and self.num_beams > 1,
            'batching = "continuous" does not support beams, but num_beams = '
            f'{self.num_beams}; set batching = "static" or "dynamic"',
            *("batching", "num_beams"),
        )
        yield (
            self.batching == "continuous" and self.is_drawn,
            'batching = "continuous" does not sample tokens, but temperature = '
            f'{self.temperature:g}; set batching = "static" or "dynamic"',
            *("batching", "temperature"),
        )
        yield (
            self.batching == "continuous" and self.prompt_logprobs,
            'batching = "continuous" gives no log-probabilities of prompts, which prompt_logprobs '
            'asks for; set batching = "static" or "dynamic"',
            *("batching", "prompt_logprobs"),
        )
        yield (
            self.batching == "auto" and self.fits_continuous_batching and self.attention == "eager",
            'attention = "eager" runs differently in static and in continuous batches, so '
            'batching = "auto" cannot use both; set batching = "static" or "continuous", '
            "or another attention",
            *("attention", "batching"),
        )


@dataclass(frozen=True, kw_only=True)
class TorchModuleOptions(DeviceOptions):
    """Options of engine torch-module.

    Attributes:
        factory: Function that creates the module: "dlrm-v2", "dlrm-v3", "rgat",
            "question-answering" or "package.module:factory".
        arguments: Further arguments for the factory.
        batch_size: Maximum samples per call of the module.
        batching: "stack": samples of one shape, with the batch as a new first dimension. "concat":
            samples joined along their first dimension, in which they may differ. "pad": samples
            stacked, shorter ones padded with zeros along their first dimension. None uses what the
            module states, by default "stack".
        workers: Number of threads that run queued samples in batches, for Server; 0 runs them
            inside `submit`.
        compile: False, or a mode of torch.compile; compilation is done before the timed run.
        weights: "checkpoint", or "dummy" for random weights, if the factory supports it.
        output: Key or position of the output tensor in the module's result; None uses the only
            tensor.
    """

    engine: ClassVar[str] = "torch-module"

    factory: str
    arguments: Mapping[str, object] | None = None
    batch_size: int = 8
    batching: str | None = None
    workers: int = 0
    compile: bool | str = False
    weights: str = "checkpoint"
    output: str | int | None = None

    def rules(self, precision: str) -> Iterator[Rule]:
        yield from super().rules(precision)
        yield one_of("weights", self.weights, WEIGHT_SOURCES)
        is_valid = self.compile is False or self.compile in COMPILE_MODES
        yield "compile", self.compile, is_valid, f"false or one of {', '.join(COMPILE_MODES)}"
        is_valid = self.workers >= 0
        yield "workers", self.workers, is_valid, "a number of threads, or 0 for none"
        if self.batching is not None:
            yield one_of("batching", self.batching, JOINS)
        is_valid = not isinstance(self.output, int) or self.output >= 0
        yield "output", self.output, is_valid, "a name, or a position counted from 0"


FORMAT_LIBRARIES = {TORCHAO: "torchao", COMPRESSED: "compressed_tensors"}
EXTRAS = {TORCHAO: "quantization", COMPRESSED: "compressed"}

DEQUANTISATION_NOTES = {
    TORCHAO: "by the checkpoint, run as such",
    COMPRESSED: "by the checkpoint, run in its own type with inputs rounded alike: right in its "
    "answers, and no faster",
    STORED: "by the checkpoint, expanded when it is loaded: right in its answers, and no faster",
}
"""Notes by format: weights whose kernels transformers lacks or downloads are dequantised."""


def method_of(config: Any) -> str | None:
    """Return the quantisation method that a configuration states; None for unquantised weights."""
    return quantisation_of(quantization_table(config)).method


def quantization_table(config: Any) -> Mapping[str, Any]:
    table = getattr(config, "quantization_config", None)
    if table is None:
        return {}
    return dict(table if isinstance(table, dict) else table.to_dict())


def check_quantised(folder: Path, quantization: Mapping[str, Any], precision: str) -> None:
    if not quantization:
        if precision == STORED:
            problem = f'its weights are not quantised, but the suite has precision = "{STORED}"'
            raise broken(folder, f"{problem}; set precision to {' or '.join(PLAIN_PRECISIONS)}")
        return
    with expected_types(folder / "config.json"):
        weights = quantisation_of(quantization)
    method = weights.method or "unknown"
    if method not in DEQUANTISATION_NOTES:
        raise broken(
            folder,
            f"the weights are quantised in the format {method!r}; this engine takes unquantised "
            f"weights, or the formats {', '.join(FORMAT_LIBRARIES)} and {STORED}",
        )
    if not weights.weights or not all(precision in names for names in weights.weights):
        names = [names[0] if names else "an unknown precision" for names in weights.weights]
        stated = " and ".join(sorted(names)) or "an unknown precision"
        advice = f'; write precision = "{stated}"' if weights.names else ""
        problem = f'config.json says {stated} weights, but the suite has precision = "{precision}"'
        raise broken(folder, f"{problem}{advice}")
    if method in FORMAT_LIBRARIES:
        who = f"engine torch: {folder} is a checkpoint of {method}, which"
        require_module(who, FORMAT_LIBRARIES[method], EXTRAS[method])


def quantised_facts(method: str, model: Any) -> dict[str, str]:
    from importlib.metadata import version

    import torch
    from torch import nn

    if method not in FORMAT_LIBRARIES:
        return {"quantisation": DEQUANTISATION_NOTES[method]}
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    small = sum(
        hasattr(layer, "weight_scale")  # packed weights have other names
        or type(layer.weight) not in (torch.Tensor, nn.Parameter)
        for layer in linear
    )
    return {
        FORMAT_LIBRARIES[method]: version(method),
        "quantisation": DEQUANTISATION_NOTES[method],
        "quantised": f"{small} of {len(linear)} matrices",
    }


def require_device(engine: str, *, device: str, precision: str, is_quantised: bool = False) -> None:
    """Raise if torch lacks the device or its kernels; do not import torch if neither is needed."""
    needs_no_kernels = is_quantised or precision in PLAIN_PRECISIONS
    if device == "cpu" and needs_no_kernels:
        return
    from pytest_mlperf.adapters.engines.torch._devices import find_device, require_kernels

    torch_device = find_device(device, engine=engine)
    if not needs_no_kernels:
        require_kernels(precision, torch_device, engine=engine)


def require_attention(name: str) -> None:
    if not name.startswith("flash_attention_"):
        return
    from transformers import utils

    number = name.removeprefix("flash_attention_")
    is_available = getattr(utils, f"is_flash_attn_{number}_available")
    if not (is_available() or utils.is_kernels_available()):
        raise EnvironmentFault(
            f"engine torch: attention = {name!r} cannot be used here: flash attention {number} is "
            "not installed; pip install flash-attn, or leave attention out",
            option="attention",
        )


class LoadedSamples(Protocol):
    def load(self, indices: Sequence[int]) -> None: ...

    def unload(self, indices: Sequence[int]) -> None: ...


class TorchBase(StackedEngine):
    """Import a torch engine's libraries and check its device before its resources are opened."""

    name: ClassVar[str]
    extra: ClassVar[str] = "lm"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    precisions: ClassVar[tuple[str, ...]] = PRECISIONS

    options: ClassVar[type[DeviceOptions]]

    _samples: LoadedSamples
    _work: Callable[[Sequence[int], Sequence[int], Sink], None]

    def __init__(
        self, *, dataset: Dataset, model: str | None, precision: str, **options: Any
    ) -> None:
        self._options = self.options(**options)
        self._options.check(precision)
        self._dataset = dataset
        self._precision = precision
        self._stages = StageTimes()
        self._find(model)

    @classmethod
    def parallelism(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003 - one GPU
        return {}

    @classmethod
    def works_on(cls, options: Mapping[str, Any]) -> tuple[str, str]:
        return "device", str(options.get("device", cls.options.device))

    def require(self) -> None:
        require_device(self.name, device=self._options.device, precision=self._precision)

    def _open(self, undo: ExitStack) -> None:
        import_all(f"engine {self.name}", self.extra, *self.libraries)
        self.require()
        from pytest_mlperf.adapters.engines.torch import _devices as devices

        self._facts = {
            "engine": self.name,
            "batch_size": str(self._options.batch_size),
            "threads": devices.use_threads(self._options.threads, undo),
        }
        undo.callback(devices.release_memory)
        undo.callback(self._forget)
        self._load(undo)

    def load_samples(self, indices: Sequence[int]) -> None:
        self._samples.load(indices)

    def unload_samples(self, indices: Sequence[int]) -> None:
        self._samples.unload(indices)

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        self._work(ids, indices, sink)

    def stage_seconds(self) -> Mapping[str, float]:
        return self._stages.take()

    def describe(self) -> Mapping[str, str]:
        return dict(self._facts)

    def _find(self, model: str | None) -> None:
        raise NotImplementedError

    def _load(self, undo: ExitStack) -> None:
        """Load the model and start threads; record facts, and add the clean-up to `undo`."""
        raise NotImplementedError

    def _start_queue(
        self,
        run: Callable[[Sequence[int], Sequence[int], Sink], None],
        undo: ExitStack,
        *,
        threads: int = 1,
    ) -> None:
        queue = WorkQueue(run, threads=threads, max_batch=self._options.batch_size)
        undo.callback(queue.close)
        self._work = queue.put

    def _forget(self) -> None:
        for name in ("_samples", "_work", "_lists"):
            vars(self).pop(name, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextModel:
    """Hold a loaded model, and the objects that prepare its prompts and check its answers."""

    model: Any
    generation: Generation
    prompts: TokenPrompts
    answers: Answers
    stages: StageTimes


class TokenBase(TorchBase):
    """Base of torch engines that generate tokens, with the checkpoint's weights or random ones."""

    _options: TokenOptions
    _generation: Generation
    _samples: TokenPrompts
    _answers: Answers
    _lists: Callable[[Sequence[int], Sequence[int], Sink], None]

    def require(self) -> None:
        quantization = read_config(self._folder).quantization
        if not self._dummy:
            check_quantised(self._folder, quantization, self._precision)
        require_device(
            self.name,
            device=self._options.device,
            precision=self._precision,
            is_quantised=bool(quantization),
        )
        require_attention(self._options.attention)

    def load_samples(self, indices: Sequence[int]) -> None:
        super().load_samples(indices)
        self._answers.expect(len(self._samples))

    def submit(self, ids: Sequence[int], indices: Sequence[int], sink: Sink) -> None:
        refuse_times(self._generation, self.name, sink)
        work = self._work if len(ids) == 1 else self._lists
        work(ids, indices, sink)

    def describe(self) -> Mapping[str, str]:
        return {**self._facts, **self._generation.describe()}

    def _text_model(self, model: Any) -> TextModel:
        return TextModel(
            model=model,
            generation=self._generation,
            prompts=self._samples,
            answers=self._answers,
            stages=self._stages,
        )

    def _find(self, model: str | None) -> None:
        self._folder = find_model(self.name, model)
        self._dummy = self._options.weights == "dummy"
