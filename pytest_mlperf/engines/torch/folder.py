"""What a model's folder has for transformers: configuration, tokenizer; never run as code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import constants
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
)
from transformers.utils import logging

from pytest_mlperf.engines.files import broken, one_line
from pytest_mlperf.engines.torch.quantised import check_quantised, method_of, quantization_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Models of one purpose in transformers.

    Attributes:
        name: What such a model is called.
        architectures: Classes of such models, as config.json names them.
        example: One of them that is widely known.
    """

    name: str
    architectures: frozenset[str]
    example: str


CAUSAL = Kind(
    name="causal language model",
    architectures=frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()),
    example="LlamaForCausalLM",
)
QUESTION_ANSWERING = Kind(
    name="model for question answering",
    architectures=frozenset(MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES.values()),
    example="BertForQuestionAnswering",
)


@contextlib.contextmanager
def quiet_and_offline() -> Iterator[None]:
    """Keep transformers from the network and from progress bars."""
    offline, bars = constants.HF_HUB_OFFLINE, logging.is_progress_bar_enabled()
    constants.HF_HUB_OFFLINE = True
    logging.disable_progress_bar()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        if bars:
            logging.enable_progress_bar()


def read_config(folder: Path, kind: Kind, *, quantised: str | None = None) -> Any:
    """Return the model's configuration.

    Args:
        folder: Where it lies.
        kind: What the model must be.
        quantised: The precision that weights may have been quantised to; None: they must be plain.

    Raises:
        EnvironmentFault: They are, and the library of their format is not installed.
        RunError: It cannot be read, needs code of its own, is of another kind of model, or is of
            quantised weights that cannot be loaded.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # What transformers raises depends on what is wrong; each kind says it well.
    except Exception as error:
        raise broken(folder, f"transformers cannot read config.json: {one_line(error)}") from error
    architectures = config.architectures or ["no architecture"]
    if architectures[0] not in kind.architectures:
        raise broken(
            folder,
            f"{architectures[0]} in config.json is no {kind.name}; this engine runs models such "
            f"as {kind.example}",
        )
    if quantised is not None:
        check_quantised(folder, quantization_of(config), quantised)
    elif method_of(config) is not None:
        raise broken(folder, "the weights are quantised already; this engine takes plain weights")
    return config
