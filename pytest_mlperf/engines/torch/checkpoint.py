"""Models that are ready to generate: a folder's safetensors weights, or random ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.engines.files import broken, one_line, sha256, some, weight_files
from pytest_mlperf.engines.model_folder import check_ends, end_tokens
from pytest_mlperf.engines.torch.devices import device_name, dtype_name
from pytest_mlperf.engines.torch.folder import CAUSAL, read_config
from pytest_mlperf.engines.torch.quantised import method_of, quantised_facts
from pytest_mlperf.engines.torch.quantising import QUANTISED, base_dtype, check, quantise
from pytest_mlperf.engines.torch.sparsity import make_sparse

SEED = 20_240_828
"""Of the random weights, which are the same every time."""


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
    folder: Path,
    *,
    precision: str,
    attention: str,
    device: Any,
    dummy: bool,
    needs_end: bool,
    sparsity: str | None = None,
) -> Loaded:
    """Load a model, or make it with random weights.

    Args:
        folder: Has config.json and, unless `dummy`, the weights.
        precision: One of `options.PRECISIONS`.
        attention: transformers' name of an attention implementation.
        device: A torch device.
        dummy: Make random weights.
        needs_end: A checkpoint without an end token is an error.
        sparsity: "2:4": a checkpoint whose linear layers are not so is an error.

    Raises:
        EnvironmentFault: A library or the attention implementation is not installed, or the device
            has no kernels for the precision.
        RunError: The folder has no complete causal language model, or none that ends, or none that
            can be quantised, or one that is quantised to another precision.
    """
    config = read_config(folder, CAUSAL, quantised=precision)
    method = _method(folder, config, dummy=dummy)
    if method is None:
        check(precision, device)
    text = config.get_text_config()
    eos = end_tokens(folder, getattr(text, "eos_token_id", None))
    files = [] if dummy else weight_files(folder)
    if needs_end and not dummy:
        check_ends(folder, eos)
    own = config.dtype or torch.float32
    dtype = own if method else base_dtype(precision, own, device)
    first = torch.device("cpu") if sparsity else device
    given = {"dtype": dtype, "attention": attention, "device": first}
    auto = transformers.AutoModelForCausalLM
    if dummy:
        model = make_dummy(auto, config, **given)
    else:
        # Given, so that the sampling settings beside the weights are not read.
        settings = transformers.GenerationConfig()
        model = load(auto, folder, config, **given, generation_config=settings)
    facts = {
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "architecture": type(model).__name__,
        "dtype": dtype_name(dtype),
        "device": device_name(device),
    }
    if method is not None:
        facts |= quantised_facts(method, model)
    elif precision in QUANTISED:
        facts |= quantise(model, precision, device=device)
    if sparsity is not None:
        facts |= make_sparse(model, folder, device=device)
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
        context=getattr(text, "max_position_embeddings", None),
        facts=facts,
    )


def _method(folder: Path, config: Any, *, dummy: bool) -> str | None:
    """Return the format of quantised weights; None for plain ones.

    Raises:
        RunError: Random weights cannot be quantised so.
    """
    method = method_of(config)
    if method is not None and dummy:
        raise broken(
            folder,
            f'the weights are quantised ({method}), and weights = "dummy" makes plain ones; use '
            "the folder that they were made from",
        )
    return method


def load(
    auto: Any,
    folder: Path,
    config: Any,
    *,
    dtype: Any,
    attention: str,
    device: Any,
    **more: Any,
) -> Any:
    """Return a checkpoint as a model, complete and ready to run.

    Args:
        auto: transformers' class that picks the model's class.
        folder: Where the checkpoint is.
        config: Its configuration.
        dtype: A torch type.
        attention: transformers' name of an attention implementation.
        device: A torch device.
        more: Whatever else `auto` takes.

    Raises:
        EnvironmentFault: The attention implementation is not installed, or not for this model.
        RunError: The checkpoint lacks weights, or has some of another shape.
    """
    with _attention_there(attention):
        model, info = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            # Else transformers prints a table and raises without a name.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **more,
        )
    # transformers only warns, and goes on with random weights.
    if info["missing_keys"]:
        raise broken(folder, f"the checkpoint lacks {some(sorted(info['missing_keys']))}")
    if info["mismatched_keys"]:
        wrong = [
            f"{name} is {list(found)} and should be {list(expected)}"
            for name, found, expected in sorted(info["mismatched_keys"])
        ]
        raise broken(folder, f"weights do not fit config.json: {some(wrong)}")
    return model.to(device)


def make_dummy(auto: Any, config: Any, *, dtype: Any, attention: str, device: Any) -> Any:
    """Return the model with random weights, made on the device: the same on every call."""
    cuda = [device] if device.type == "cuda" else []
    with _attention_there(attention), torch.random.fork_rng(devices=cuda), device:
        torch.manual_seed(SEED)
        model = auto.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    return model.eval()


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
            f"the model computes no numbers (NaN) in {dtype_name(model.dtype)}; "
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
