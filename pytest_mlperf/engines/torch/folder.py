"""What a model's folder has: configuration, weights, tokenizer; checked, and never run as code."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors
import transformers
from huggingface_hub import constants
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from pytest_mlperf.core.errors import RunError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""What a tokenizer may consist of; one of the first three has its vocabulary."""


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


def read_config(folder: Path) -> Any:
    """Return the model's configuration.

    Raises:
        RunError: It cannot be read, needs code of its own, is of another kind of model, or is of
            weights that are already quantised.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # What transformers raises depends on what is wrong; each kind says it well.
    except Exception as error:
        raise broken(folder, f"transformers cannot read config.json: {one_line(error)}") from error
    architectures = config.architectures or ["no architecture"]
    if architectures[0] not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise broken(
            folder,
            f"{architectures[0]} in config.json is no causal language model; this engine runs "
            "models such as LlamaForCausalLM",
        )
    if getattr(config, "quantization_config", None) is not None:
        raise broken(
            folder,
            "the weights are quantised already; this engine takes plain weights, and "
            'precision = "int8" quantises them',
        )
    return config


def read_eos(folder: Path, config: Any) -> tuple[int, ...]:
    """Return the end tokens that generation_config.json names, or else config.json."""
    found = getattr(config.get_text_config(), "eos_token_id", None)
    file = folder / "generation_config.json"
    if file.is_file():
        try:
            own = json.loads(file.read_text("utf-8")).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise broken(file, f"is no JSON object: {error}") from error
        found = found if own is None else own
    listed = found if isinstance(found, list) else [found]
    return tuple(sorted({int(token) for token in listed if token is not None and token >= 0}))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, by name.

    Raises:
        RunError: There are none, one is missing, or one is cut short.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        files = [single]
    elif index.is_file():
        try:
            named = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise broken(index, f"is no index of safetensors files: {one_line(error)}") from error
        files = sorted(folder / name for name in named)
    elif list(folder.glob("*.bin")):
        raise broken(
            folder,
            "has weights as .bin files only, which can carry code; convert them once with "
            "model.save_pretrained(folder) of transformers, which writes model.safetensors",
        )
    else:
        raise broken(folder, 'has no model.safetensors; weights = "dummy" runs without')
    for file in files:
        if not file.is_file():
            raise broken(file, f"is missing, but {index.name} names it; copy it here again")
        try:
            with safetensors.safe_open(file, "pt"):
                pass
        except safetensors.SafetensorError as error:
            raise broken(
                file, f"is cut short or is no safetensors file ({error}); copy it here again"
            ) from error
    return files


def load_tokenizer(folder: Path) -> tuple[Any, str]:
    """Return the tokenizer and the start of the hex SHA-256 of its files.

    Raises:
        RunError: The folder has none, or a broken one.
    """
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not {file.name for file in files} & set(TOKENIZER_FILES[:3]):
        raise broken(
            folder,
            "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), which the data "
            "set's text needs; copy the tokenizer's files here, or use a data set of token ids",
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # What a broken file raises depends on the library that reads it.
    except Exception as error:
        raise broken(
            folder, f"transformers cannot read the tokenizer: {one_line(error)}"
        ) from error
    return tokenizer, sha256(files)[:16]


def sha256(files: Sequence[Path]) -> str:
    """Return the hex SHA-256 of files read one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def broken(path: Path, what: str) -> RunError:
    """Return the error that names a file or folder and what is wrong with it."""
    return RunError("engine", f"{path}: {what}")


def one_line(error: BaseException) -> str:
    """Return an exception's text as one line."""
    return " ".join(str(error).split())
