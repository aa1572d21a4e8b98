"""Load models that generate, with safetensors weights from a folder or with random weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
)
from transformers.utils import logging

from pytest_mlperf import EnvironmentFault
from pytest_mlperf.adapters.engines import broken, weight_files
from pytest_mlperf.adapters.engines.llm.model_folder import check_ends, end_tokens
from pytest_mlperf.adapters.engines.torch import _base, _devices
from pytest_mlperf.extension import sha256, some, text_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelKind:
    """Describe a kind of models in transformers, such as language models, by class names.

    Attributes:
        architectures: Names in config.json's "architectures" that belong to the kind.
        example: An architecture to name in messages.
        loader: Name of the transformers class that loads them.
        trial: Function that returns the inputs with which a model generates its first token.
    """

    name: str
    architectures: frozenset[str]
    example: str
    loader: str = ""
    trial: Callable[[Any], dict[str, Any]] = dict


def _first_token(model: Any) -> dict[str, Any]:
    return {"input_ids": torch.zeros((1, 1), dtype=torch.long, device=model.device)}


def _silence(model: Any) -> dict[str, Any]:
    frames = 2 * model.config.max_source_positions
    shape = (1, model.config.num_mel_bins, frames)
    features = torch.zeros(shape, dtype=model.dtype, device=model.device)
    tokens = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    return {"input_features": features, "decoder_input_ids": tokens}


CAUSAL = ModelKind(
    name="causal language model",
    architectures=frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()),
    example="LlamaForCausalLM",
    loader="AutoModelForCausalLM",
    trial=_first_token,
)
SPEECH = ModelKind(
    name="Whisper model",
    architectures=frozenset({"WhisperForConditionalGeneration"}),
    example="WhisperForConditionalGeneration of Whisper large v3",
    loader="AutoModelForSpeechSeq2Seq",
    trial=_silence,
)
PICTURES = ModelKind(
    name="language model that sees pictures",
    architectures=frozenset(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()),
    example="Qwen3VLMoeForConditionalGeneration",
    loader="AutoModelForImageTextToText",
    trial=_first_token,
)


def text_kind(architecture: str) -> ModelKind:
    """Return the kind of a model for text: a language model, or one that also takes pictures."""
    sees = architecture in PICTURES.architectures - CAUSAL.architectures
    return PICTURES if sees else CAUSAL


QUESTION_ANSWERING = ModelKind(
    name="model for question answering",
    architectures=frozenset(MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES.values()),
    example="BertForQuestionAnswering",
)


@contextlib.contextmanager
def quiet_and_offline() -> Iterator[None]:
    offline, bars = constants.HF_HUB_OFFLINE, logging.is_progress_bar_enabled()
    constants.HF_HUB_OFFLINE = True
    logging.disable_progress_bar()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        if bars:
            logging.enable_progress_bar()


def read_config(folder: Path, kind: ModelKind, *, quantised: str | None = None) -> Any:
    """Return a model's configuration; raise RunError if its weights have an unexpected format.

    `quantised` is the precision that quantised weights must have. With None, the weights must not
    be quantised.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # transformers raises many types, all with good texts.
    except Exception as error:
        raise broken(folder, f"transformers cannot read config.json: {text_of(error)}") from error
    named = (config.architectures or [""])[0]
    if named not in kind.architectures:
        fault = "config.json names no architecture"
        if named:
            fault = f"{named} in config.json is not a {kind.name}"
        raise broken(folder, f"{fault}; this engine runs models such as {kind.example}")
    if quantised is not None:
        _base.check_quantised(folder, _base.quantization_table(config), quantised)
    elif _base.method_of(config) is not None:
        raise broken(
            folder,
            "the weights are already quantised, but this engine takes only unquantised weights; "
            "set model to an unquantised checkpoint",
        )
    return config


WEIGHTS_SEED = 20_240_828


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """Hold a model, its end token ids, vocabulary size, context length, and fingerprint facts."""

    model: Any
    eos: tuple[int, ...]
    vocabulary: int
    context: int | None
    facts: Mapping[str, str]


def open_model(
    folder: Path, options: _base.TokenOptions, precision: str, kind: ModelKind
) -> LoadedModel:
    device, sparsity = _devices.find_device(options.device), options.sparsity
    dummy = options.weights == "dummy"
    config = read_config(folder, kind, quantised=precision)
    method = _method(folder, config, dummy=dummy)
    if method is None:
        _devices.require_kernels(precision, device)
    text = config.get_text_config()
    eos = end_tokens(folder, getattr(text, "eos_token_id", None))
    files = [] if dummy else weight_files(folder)
    if not (options.ignore_eos or dummy):
        check_ends(folder, eos)
    checkpoint_dtype = config.dtype or torch.float32
    dtype = checkpoint_dtype if method else _devices.base_dtype(precision, checkpoint_dtype, device)
    first = torch.device("cpu") if sparsity else device
    placement = {"dtype": dtype, "attention": options.attention, "device": first}
    auto = getattr(transformers, kind.loader)
    if dummy:
        model = make_dummy(auto, config, **placement)
    else:
        # An explicit argument, so that transformers does not read the folder's sampling settings.
        settings = transformers.GenerationConfig()
        more = {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
        more = more if method == _base.STORED else {}
        model = load(auto, folder, config, **placement, generation_config=settings, **more)
    facts = {
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "architecture": type(model).__name__,
        "dtype": _devices.dtype_name(dtype),
        "device": _devices.device_name(device),
    }
    if method is not None:
        facts |= _base.quantised_facts(method, model)
    elif precision in _base.QUANTISED_PRECISIONS:
        facts |= _devices.quantise(model, precision, device=device)
    if sparsity is not None:
        facts |= _devices.make_sparse(model, folder, device=device)
    facts |= {"weights": "dummy"} if dummy else {"weights_sha256": sha256(files)[:16]}
    check_logits(model, folder, kind)
    vocabulary = model.get_input_embeddings().num_embeddings
    if eos and max(eos) >= vocabulary:
        raise broken(
            folder,
            f"eos_token_id {max(eos)} is not in the model's vocabulary of {vocabulary} tokens; "
            "correct it in generation_config.json or config.json",
        )
    return LoadedModel(
        model=model,
        eos=eos,
        vocabulary=vocabulary,
        context=getattr(text, "max_position_embeddings", None),
        facts=facts,
    )


def _method(folder: Path, config: Any, *, dummy: bool) -> str | None:
    method = _base.method_of(config)
    if method is not None and dummy:
        raise broken(
            folder,
            f'the weights are quantised ({method}), but weights = "dummy" makes unquantised ones; '
            "set model to the unquantised checkpoint",
        )
    return method


def load(
    auto: Any, folder: Path, config: Any, *, dtype: Any, attention: str, device: Any, **more: Any
) -> Any:
    """Load a checkpoint with class `auto`; raise if a weight is missing or has another shape."""
    with _attention_available(attention):
        model, info = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            # Else transformers prints a table and raises without a weight's name.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **more,
        )
    check_loaded(info, folder)
    return model.to(device)


def check_loaded(info: Mapping[str, Any], folder: Path) -> None:
    """Raise an error for weights that were not loaded, which the libraries leave random."""
    if info["missing_keys"]:
        raise broken(folder, f"the checkpoint lacks {some(sorted(info['missing_keys']))}")
    if info["mismatched_keys"]:
        mismatches = [
            f"{name} is {list(actual)} and should be {list(expected)}"
            for name, actual, expected in sorted(info["mismatched_keys"])
        ]
        raise broken(folder, f"weights do not fit config.json: {some(mismatches)}")


def make_dummy(auto: Any, config: Any, *, dtype: Any, attention: str, device: Any) -> Any:
    """Return a model with random weights, created on the device; they are equal in every call."""
    cuda = [device] if device.type == "cuda" else []
    with _attention_available(attention), torch.random.fork_rng(devices=cuda), device:
        torch.manual_seed(WEIGHTS_SEED)
        model = auto.from_config(
            config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
        )
    return model.eval()


def check_logits(model: Any, folder: Path, kind: ModelKind) -> None:
    with torch.inference_mode():
        logits = model(**kind.trial(model)).logits
    if bool(logits.isnan().any()):
        raise broken(
            folder,
            f"the model's outputs are NaN in {_devices.dtype_name(model.dtype)}; "
            "the weights are broken, or the precision is too narrow for them: try bf16 or fp32",
        )


@contextlib.contextmanager
def _attention_available(attention: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError) as error:
        raise EnvironmentFault(
            f"engine torch: attention = {attention!r} cannot be used here: {text_of(error)}; set "
            'attention = "eager"',
            option="attention",
        ) from error
