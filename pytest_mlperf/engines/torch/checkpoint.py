"""Models that are ready to generate: a folder's safetensors weights, or random ones."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.engines.torch.folder import (
    broken,
    one_line,
    read_config,
    read_eos,
    sha256,
    weight_files,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

SEED = 20_240_828
"""Of the random weights, which are the same every time."""

SHOWN = 3
"""Names that are listed in an error; the rest is counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model that is ready to generate.

    Attributes:
        model: The model.
        eos: Its end tokens.
        vocabulary: Token ids are below this.
        context: Most tokens of prompt and answer together; None when it states none.
        facts: What belongs to the fingerprint.
    """

    model: Any
    eos: tuple[int, ...]
    vocabulary: int
    context: int | None
    facts: Mapping[str, str]


def open_model(
    folder: Path, *, precision: str, attention: str, device: Any, dummy: bool, needs_end: bool
) -> Loaded:
    """Load a model, or make it with random weights.

    Args:
        folder: Has config.json and, unless `dummy`, the weights.
        precision: A key of `DTYPES`, or "int8".
        attention: transformers' name of an attention implementation.
        device: A torch device.
        dummy: Make random weights.
        needs_end: A checkpoint without an end token is an error.

    Raises:
        EnvironmentFault: A library or the attention implementation is not installed.
        RunError: The folder has no complete causal language model, or none that ends.
    """
    config = read_config(folder)
    eos = read_eos(folder, config)
    files = [] if dummy else weight_files(folder)
    if needs_end and not eos and not dummy:
        raise broken(
            folder,
            "neither generation_config.json nor config.json names an eos_token_id, so no answer "
            "would end; add it, or set ignore_eos = true to measure fixed lengths",
        )
    dtype = DTYPES.get(precision, config.dtype or torch.float32)
    given = {"dtype": dtype, "attention": attention, "device": device}
    model = make_dummy(config, **given) if dummy else load(folder, config, **given)
    facts = {
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "architecture": type(model).__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    if precision == "int8":
        facts["torchao"] = quantise(model)
    facts |= {"weights": "dummy"} if dummy else {"weights_sha256": sha256(files)[:16]}
    check_logits(model, folder)
    vocabulary = model.get_input_embeddings().num_embeddings
    if eos and max(eos) >= vocabulary:
        raise broken(
            folder,
            f"eos_token_id {max(eos)} is not in the model's vocabulary of {vocabulary} tokens",
        )
    return Loaded(
        model=model,
        eos=eos,
        vocabulary=vocabulary,
        context=getattr(config.get_text_config(), "max_position_embeddings", None),
        facts=facts,
    )


def find_device(name: str) -> Any:
    """Return the torch device of this name.

    Raises:
        EnvironmentFault: It is not here.
    """
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise EnvironmentFault(
                f"engine torch: device = {name!r}, but this torch ({torch.__version__}) sees no "
                "CUDA device; check the driver, CUDA_VISIBLE_DEVICES and that torch is a CUDA build"
            )
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise EnvironmentFault(
                f"engine torch: device = {name!r}, but there are {torch.cuda.device_count()} CUDA "
                "devices, counted from 0"
            )
    return device


def release_memory() -> None:
    """Give memory that nothing refers to back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load(folder: Path, config: Any, *, dtype: Any, attention: str, device: Any) -> Any:
    """Return a checkpoint as a model, complete and ready to generate.

    Raises:
        EnvironmentFault: The attention implementation is not installed, or not for this model.
        RunError: The checkpoint lacks weights, or has some of another shape.
    """
    with _attention_there(attention):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            # Given, so that the sampling settings beside the weights are not read.
            generation_config=transformers.GenerationConfig(),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            # Else transformers prints a table and raises without a name.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    # transformers only warns, and goes on with random weights.
    if info["missing_keys"]:
        raise broken(folder, f"the checkpoint lacks {_some(sorted(info['missing_keys']))}")
    if info["mismatched_keys"]:
        wrong = [
            f"{name} is {list(found)} and should be {list(expected)}"
            for name, found, expected in sorted(info["mismatched_keys"])
        ]
        raise broken(folder, f"weights do not fit config.json: {_some(wrong)}")
    return model.to(device)


def make_dummy(config: Any, *, dtype: Any, attention: str, device: Any) -> Any:
    """Return the model with random weights, made on the device: the same on every call."""
    cuda = [device] if device.type == "cuda" else []
    with _attention_there(attention), torch.random.fork_rng(devices=cuda), device:
        torch.manual_seed(SEED)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    return model.eval()


def quantise(model: Any) -> str:
    """Keep the weights of all linear layers as int8, in place; return torchao's version.

    Raises:
        EnvironmentFault: torchao is not installed.
    """
    try:
        import torchao
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise EnvironmentFault(
            "engine torch: precision 'int8' needs torchao, which is not installed; "
            "try: pip install 'pytest-mlperf[quantization]'"
        ) from error
    quantize_(model, Int8WeightOnlyConfig())
    return str(torchao.__version__)


def check_logits(model: Any, folder: Path) -> None:
    """Run one token through the model.

    Raises:
        RunError: The scores are not numbers, so that every answer would be the same nonsense.
    """
    with torch.inference_mode():
        logits = model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device)).logits
    if bool(logits.isnan().any()):
        raise broken(
            folder,
            f"the model computes no numbers (NaN) in {str(model.dtype).removeprefix('torch.')}; "
            "the weights are broken, or the precision is too narrow for them: try bf16 or fp32",
        )


@contextlib.contextmanager
def _attention_there(attention: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError) as error:
        raise EnvironmentFault(
            f"engine torch: attention = {attention!r} cannot be used here: {one_line(error)}"
        ) from error


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
