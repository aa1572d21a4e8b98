"""A language model's folder as every engine finds it: plain JSON and a tokenizer, never code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, SuiteError, UnavailableError
from pytest_mlperf.core.extension import Dataset
from pytest_mlperf.engines.files import broken, one_line, sha256, weight_files
from pytest_mlperf.engines.generation import Generation

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

MAIN_TOKENIZER_FILES = frozenset(TOKENIZER_FILES[:3])


def find_model(
    engine: str,
    model: str | None,
    *,
    file: str = "config.json",
    parts: str = "config.json, the safetensors files and the tokenizer",
) -> Path:
    """Return the folder of an engine's model.

    Args:
        engine: For messages.
        model: The suite's.
        file: By which the folder is known.
        parts: What belongs there.

    Raises:
        SuiteError: There is none in the suite.
        UnavailableError: It is not here, or lacks the file.
    """
    if model is None:
        raise SuiteError(f"engine {engine}: no model; set workload.model to the model's folder")
    folder = Path(model)
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder}: this model folder does not exist; put {parts} there, or set workload.model "
            "to its path"
        )
    if not (folder / file).is_file():
        raise UnavailableError(
            f"{folder}: this folder has no {file}, so it is no model; set workload.model to the "
            "folder that has it"
        )
    return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """What a model's configuration says to all engines.

    Attributes:
        architecture: Its class, as config.json names it.
        vocabulary: Token ids are below this; None when it does not say.
        context: Most tokens of prompt and answer together; None when it does not say.
        eos: Its end tokens, of generation_config.json or else config.json.
        quantization: What config.json says of quantised weights; empty for plain ones.
    """

    architecture: str = "unknown"
    vocabulary: int | None = None
    context: int | None = None
    eos: tuple[int, ...] = ()
    quantization: Mapping[str, Any] = field(default_factory=dict)


def read_config(folder: Path) -> Config:
    """Read a model's configuration without any library.

    Raises:
        RunError: A file is no JSON object.
    """
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    return Config(
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        vocabulary=text.get("vocab_size"),
        context=text.get("max_position_embeddings"),
        eos=end_tokens(folder, text.get("eos_token_id")),
        quantization=config.get("quantization_config") or {},
    )


def end_tokens(folder: Path, named: Any) -> tuple[int, ...]:
    """Return the end tokens that generation_config.json names, or else config.json.

    Args:
        folder: Where they are.
        named: By config.json. Both name one, a list, none, or -1 for none.

    Raises:
        RunError: generation_config.json is no JSON object.
    """
    file = folder / "generation_config.json"
    own = read_json(file).get("eos_token_id") if file.is_file() else None
    found = named if own is None else own
    listed = found if isinstance(found, list) else [found]
    return tuple(sorted({int(token) for token in listed if token is not None and token >= 0}))


def check_ends(folder: Path, eos: tuple[int, ...]) -> None:
    """Refuse a model whose answers would not end.

    Raises:
        RunError: It has no end token.
    """
    if not eos:
        raise broken(
            folder,
            "neither generation_config.json nor config.json names an eos_token_id, so no answer "
            "would end; add it, or set ignore_eos = true to measure fixed lengths",
        )


def with_ends(generation: Generation, folder: Path, config: Config, *, dummy: bool) -> Generation:
    """Return how a language model generates: as the suite says, with end tokens of its own.

    Raises:
        RunError: It is none, or its answers would not end, which those of random weights may.
    """
    if config.vocabulary is None:
        raise broken(folder / "config.json", "names no vocab_size, so this is no language model")
    if not (generation.ignore_eos or dummy):
        check_ends(folder, config.eos)
    return dataclasses.replace(generation, eos=config.eos)


def weights_fact(
    folder: Path, *, dummy: bool = False, option: str = "weights"
) -> Mapping[str, str]:
    """Return what the fingerprint says of a model's weights.

    Args:
        folder: Where they are.
        dummy: They are random.
        option: Of the engine, which makes them so.

    Raises:
        RunError: The folder has no complete checkpoint.
    """
    if dummy:
        return {"weights": "dummy"}
    return {"weights_sha256": sha256(weight_files(folder, option=option))[:16]}


def tokenizer_for(engine: str, folder: Path, dataset: Dataset) -> tuple[Any, Mapping[str, str]]:
    """Return the tokenizer that a data set's text needs, and what the fingerprint says of it.

    Both are empty where the data set gives token ids.

    Raises:
        EnvironmentFault: transformers is not installed.
        RunError: The folder has no tokenizer, or a broken one.
    """
    if not len(dataset) or not isinstance(dataset.input(0), str):
        return None, {}
    tokenizer, digest = load_tokenizer(engine, folder)
    return tokenizer, {"tokenizer_sha256": digest}


def load_tokenizer(engine: str, folder: Path, kind: str = "AutoTokenizer") -> tuple[Any, str]:
    """Return transformers' tokenizer and the start of the hex SHA-256 of its files.

    Args:
        engine: What needs it, for messages.
        folder: Has its files.
        kind: The class of transformers that makes it.

    Raises:
        EnvironmentFault: transformers is not installed.
        RunError: The folder has no tokenizer, or a broken one.
    """
    try:
        import transformers
    except ImportError as error:
        raise EnvironmentFault(
            f"engine {engine} needs {error.name} for the model's tokenizer, which is not "
            "installed; try: pip install 'pytest-mlperf[lm]'"
        ) from error
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not {file.name for file in files} & MAIN_TOKENIZER_FILES:
        raise broken(
            folder,
            "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), which the data "
            "set's text needs; copy the tokenizer's files here, or use a data set of token ids",
        )
    try:
        tokenizer = getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # What a broken file raises depends on the library that reads it.
    except Exception as error:
        raise broken(
            folder, f"transformers cannot read the tokenizer: {one_line(error)}"
        ) from error
    return tokenizer, sha256(files)[:16]


def read_json(file: Path) -> dict[str, Any]:
    """Return what a file says.

    Raises:
        RunError: It is no JSON object.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise broken(file, f"is no JSON object: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise broken(file, "is no JSON object")
    return found
