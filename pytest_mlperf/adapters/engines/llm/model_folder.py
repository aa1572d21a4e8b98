"""Read a language model's folder: plain JSON and a tokenizer, never code."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pytest_mlperf import Dataset, SuiteError, UnavailableError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.engines import broken, is_count, weight_files
from pytest_mlperf.adapters.engines.llm.generation import Generation
from pytest_mlperf.adapters.engines.llm.pictures import PictureChats, picture_processor
from pytest_mlperf.adapters.engines.llm.speech import SpeechClips, prompt_tokens
from pytest_mlperf.extension import PLAIN_PRECISIONS, PrecisionName, sha256, text_of

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Possible files of a tokenizer; one of the first three has its vocabulary."""

MAIN_TOKENIZER_FILES = frozenset(TOKENIZER_FILES[:3])


def find_model(
    engine: str,
    model: str | None,
    *,
    file: str = "config.json",
    parts: str = "config.json, the safetensors files and the tokenizer",
) -> Path:
    """Return a model's folder; if it or `file` is missing, raise an error that may list `parts`."""
    if model is None:
        raise SuiteError(f"engine {engine}: no model; set workload.model to the model's folder")
    folder = Path(model)
    if not folder.is_dir():
        raise UnavailableError(
            f"{folder}: this model folder does not exist; put {parts} there, or set workload.model "
            "to its path",
            path=folder,
        )
    if not (folder / file).is_file():
        raise UnavailableError(
            f"{folder}: this folder has no {file}, so it is not a model; set workload.model "
            "to the folder that has it",
            path=folder,
        )
    return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Hold values from a model's config.json; None if the file does not state them.

    `context` is the maximum number of tokens of prompt and answer together; `quantization` is empty
    for unquantised weights; `sees` is whether the model has an image encoder.
    """

    architecture: str = "unknown"
    vocabulary: int | None = None
    context: int | None = None
    eos: tuple[int, ...] = ()
    quantization: Mapping[str, Any] = field(default_factory=dict)
    sees: bool = False


@contextlib.contextmanager
def expected_types(file: Path) -> Iterator[None]:
    """Raise RunError with the name of `file` if the `with` block finds a value of a wrong type."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, ValueError) as error:
        problem = f"has a value of an unexpected type ({text_of(error)}); copy the file here again"
        raise broken(file, problem) from error


def read_config(folder: Path) -> Config:
    """Read a model's configuration without any library."""
    file = folder / "config.json"
    config = read_json(file)
    with expected_types(file):
        text = config.get("text_config") or config
        contexts = text.get("max_position_embeddings"), text.get("max_target_positions")
        return Config(
            architecture=str((config.get("architectures") or ["unknown"])[0]),
            vocabulary=_size(text.get("vocab_size")),
            context=_size(contexts[0] or contexts[1]),
            eos=end_tokens(folder, text.get("eos_token_id")),
            quantization=dict(config.get("quantization_config") or {}),
            sees="vision_config" in config,
        )


def _size(value: int | None) -> int | None:
    if value is None or is_count(value):
        return value
    raise TypeError(f"{value!r:.40} is not a whole number of at least 1")


def end_tokens(folder: Path, config_value: Any) -> tuple[int, ...]:
    """Return the end token ids in generation_config.json, else `config_value` of config.json."""
    file = folder / "generation_config.json"
    generation_eos = read_json(file).get("eos_token_id") if file.is_file() else None
    eos = config_value if generation_eos is None else generation_eos
    tokens = eos if isinstance(eos, list) else [eos]
    with expected_types(folder / "config.json" if generation_eos is None else file):
        return tuple(sorted({int(token) for token in tokens if token is not None and token >= 0}))


def check_ends(folder: Path, eos: tuple[int, ...]) -> None:
    """Raise RunError if a model has no end token, because its answers would not end."""
    if not eos:
        raise broken(
            folder,
            "neither generation_config.json nor config.json names an eos_token_id, so no answer "
            "would end; add eos_token_id to config.json, or set ignore_eos = true to measure fixed "
            "lengths",
        )


def with_end_tokens(
    generation: Generation, folder: Path, config: Config, *, dummy: bool
) -> Generation:
    """Return `generation` with the model's end tokens, which are checked unless `dummy`."""
    if config.vocabulary is None:
        raise broken(folder / "config.json", "names no vocab_size, so this is not a language model")
    if not (generation.ignore_eos or dummy):
        check_ends(folder, config.eos)
    return dataclasses.replace(generation, eos=config.eos)


def weights_fact(
    folder: Path, *, dummy: bool = False, option: str = "weights"
) -> Mapping[str, str]:
    """Return the fingerprint's entry on weights: SHA-256, or "dummy"; errors name the `option`."""
    if dummy:
        return {"weights": "dummy"}
    return {"weights_sha256": sha256(weight_files(folder, option=option))[:16]}


def tokenizer_for(engine: str, folder: Path, dataset: Dataset) -> tuple[Any, Mapping[str, str]]:
    """Return the tokenizer for a data set of text, and its SHA-256; (None, {}) for token ids."""
    if not len(dataset) or not isinstance(dataset.input(0), str | Mapping):
        return None, {}
    tokenizer, digest = load_tokenizer(engine, folder)
    return tokenizer, {"tokenizer_sha256": digest}


def load_tokenizer(engine: str, folder: Path, kind: str = "AutoTokenizer") -> tuple[Any, str]:
    """Load a tokenizer by its class `kind`; return it and 16 hex digits of its SHA-256."""
    try:
        import transformers
    except ImportError as error:
        library = f"{error.name} for the model's tokenizer"
        raise not_installed(f"engine {engine}", library, "lm") from error
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
    # A broken file raises errors of the library that reads it.
    except Exception as error:
        raise broken(folder, f"transformers cannot read the tokenizer: {text_of(error)}") from error
    return tokenizer, sha256(files)[:16]


def picture_chats(
    engine: str, folder: Path, tokenizer: Any, *, processes: bool = True
) -> PictureChats:
    """Return a converter of chats with pictures to tokens and, with `processes`, image patches."""
    token = read_json(folder / "config.json").get("image_token_id")
    if not isinstance(token, int):
        raise broken(
            folder / "config.json",
            "names no image_token_id, so this model takes no pictures, but the data set has some; "
            "set model to one that takes pictures, or use another data set",
        )
    processor = picture_processor(engine, folder) if processes else None
    return PictureChats(tokenizer=tokenizer, picture_token=token, processor=processor)


POSITIONS_PER_SECOND = 50
"""Encoder positions of Whisper: 100 frames per second, two per position."""


def speech_clips(
    engine: str,
    folder: Path,
    dataset: Dataset,
    tokenizer: Any,
    max_positions: int | None,
    max_new_tokens: int,
) -> SpeechClips:
    """Return a Whisper model's clip handling; raise if prompt and `max_new_tokens` do not fit."""
    prompt = prompt_tokens(engine, tokenizer, folder, max_positions, max_new_tokens)
    positions = read_json(folder / "config.json").get("max_source_positions")
    file = folder / "preprocessor_config.json"
    seconds: Any = read_json(file).get("chunk_length")
    if not is_count(seconds) or positions != seconds * POSITIONS_PER_SECOND:
        raise broken(
            file,
            f"chunk_length is {seconds!r} seconds, but max_source_positions in config.json is "
            f"{positions!r} ({POSITIONS_PER_SECOND} per second); copy both files from one model",
        )
    return SpeechClips(dataset=dataset, prompt=prompt, seconds=seconds)


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise RunError for anything else."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise broken(file, f"is not a JSON object: {text_of(error)}") from error
    if not isinstance(content, dict):
        raise broken(file, "is not a JSON object")
    return content


MODELOPT = "modelopt"
TORCHAO = "torchao"
COMPRESSED = "compressed-tensors"

TORCH_DTYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

Names = tuple[PrecisionName, ...]
"""Precisions that a kind of weights may be called by, the usual one first; () if unknown."""

ALGORITHMS: Mapping[str, Names] = {
    "FP8": ("fp8",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8",),
    "FP8_BLOCK_SCALES": ("fp8",),
    "FP8_PB_WO": ("fp8",),
    "NVFP4": ("nvfp4",),
    "W4A4_NVFP4": ("nvfp4",),
    "NVFP4_AWQ": ("nvfp4",),
    "W4A16_MXFP4": ("mxfp4",),
    "W4A8_MXFP4_FP8": ("mxfp4",),
    "W4A8_MXFP4_MXFP8": ("mxfp4",),
    "MXFP4": ("mxfp4",),
    "W8A16": ("int8",),
    "INT8": ("int8",),
    "W8A8_SQ_PER_CHANNEL": ("int8",),
    "W8A8_SQ_PER_TENSOR_PLUGIN": ("int8",),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": ("int8",),
    "W4A16_AWQ": ("int4-awq", "int4"),
    "INT4_AWQ": ("int4-awq", "int4"),
    "W4A8_AWQ": ("w4a8-awq",),
    "W4A16_GPTQ": ("gptq", "int4"),
    "W8A16_GPTQ": ("gptq", "int8"),
    "MIXED_PRECISION": ("mixed",),
}
"""Precisions by quant_algo of ModelOpt and TensorRT-LLM."""

METHODS: Mapping[str, Names] = {
    "fp8": ("fp8",),
    "fbgemm_fp8": ("fp8",),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
    "awq": ("int4-awq", "int4"),
}
"""Precisions by quant_method of config.json, if it needs no further key."""

COMPRESSED_TYPES: Mapping[tuple[Any, Any], Names] = {
    ("float", 8): ("fp8",),
    ("int", 8): ("int8",),
    ("int", 4): ("int4",),
    ("float", 4): ("nvfp4", "mxfp4"),
}
"""Precisions by type and num_bits of compressed-tensors."""

FOUR_BIT_GROUPS: Mapping[Any, Names] = {16: ("nvfp4",), 32: ("mxfp4",)}
"""Precisions of 4-bit floats by the number of weights that share a scale."""

TORCHAO_TYPES: Mapping[str, Names] = {
    "Int8": ("int8",),
    "Int4": ("int4",),
    "Float8": ("fp8",),
    "NVFP4": ("nvfp4",),
}
"""Precisions by the prefix of the names of torchao's configurations."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Describe the quantisation of a checkpoint's weights.

    Attributes:
        method: `quant_method` in lower case; None for unquantised weights.
        weights: Precision names for each kind of weights; () for unquantised or unknown ones.
        algorithm: Algorithm as the checkpoint names it; "none" for unquantised weights.
        kv_cache: Quantisation of the key-value cache for which the checkpoint has scales, or
            "none".
        file: File that states the quantisation.
    """

    method: str | None = None
    weights: tuple[Names, ...] = ()
    algorithm: str = "none"
    kv_cache: str = "none"
    file: str = "config.json"

    @property
    def names(self) -> Names:
        """Precision names of the weights; () if unquantised, unknown, or of several kinds."""
        return self.weights[0] if len(self.weights) == 1 else ()

    def describe(self) -> Mapping[str, str]:
        return {"quantisation": self.algorithm, "kv_cache_calibrated": self.kv_cache}


def read_quantisation(folder: Path, config: Config) -> Quantisation:
    """Return the quantisation of the weights in a folder."""
    file = folder / "hf_quant_config.json"
    if file.is_file():  # it has more than ModelOpt's copy in config.json
        table = read_json(file).get("quantization")
        return _modelopt(table if isinstance(table, Mapping) else {}, file.name)
    with expected_types(folder / "config.json"):
        return quantisation_of(config.quantization)


def quantisation_of(table: Mapping[str, Any]) -> Quantisation:
    """Return the quantisation that a `quantization_config` states, whatever tool wrote it."""
    if not table:
        return Quantisation()
    method = str(table.get("quant_method", "unknown")).lower()
    if method.startswith(MODELOPT) or "quant_algo" in table:
        return _modelopt(table, "config.json")
    weights: tuple[Names, ...]
    if method in {COMPRESSED, "compressed_tensors"}:
        weights = tuple(dict.fromkeys(_compressed(table)))
    elif method == TORCHAO:
        weights = tuple(dict.fromkeys(map(_torchao, _configurations(table.get("quant_type")))))
    elif method.startswith("gptq"):
        weights = (("gptq", *_integers(table.get("bits"))),)
    else:
        weights = (METHODS.get(method, ()),)
    return Quantisation(method, weights, method)


def check_agrees(
    engine: str,
    folder: Path,
    precision: str,
    quantisation: Quantisation,
    *,
    words: Collection[str],
    otherwise: str,
) -> None:
    """Raise SuiteError if the weights in a folder are not of the suite's `precision`.

    `words` are the engine's names of quantised precisions. If the checkpoint names none, any
    is accepted. `otherwise` is the advice in the error for unquantised weights.
    """
    if quantisation.method is None:
        if precision in PLAIN_PRECISIONS:
            return
        raise SuiteError(
            f'engine {engine}: precision = "{precision}", but {folder} holds plain weights: '
            "neither hf_quant_config.json nor config.json names a quantisation; set model to the "
            f"quantised checkpoint, or {otherwise}",
            option="precision",
        )
    fitting = [name for name in quantisation.names if name in words] or words
    if precision not in fitting:
        options = " or ".join(f'"{name}"' for name in fitting)
        raise SuiteError(
            f'engine {engine}: precision = "{precision}", but {folder / quantisation.file} says '
            f"{quantisation.algorithm}; set precision = {options}, or model to another checkpoint",
            option="precision",
        )


def _modelopt(table: Mapping[str, Any], file: str) -> Quantisation:
    algorithm = table.get("quant_algo")
    cache = str(table.get("kv_cache_quant_algo") or "none")
    if algorithm is None:
        return Quantisation(kv_cache=cache, file=file)
    names = ALGORITHMS.get(str(algorithm).upper(), ())
    return Quantisation(MODELOPT, (names,), str(algorithm), cache, file)


def _compressed(table: Mapping[str, Any]) -> Iterator[Names]:
    for group in (table.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        kind = weights.get("type"), weights.get("num_bits")
        by_group = FOUR_BIT_GROUPS.get(weights.get("group_size")) if kind == ("float", 4) else None
        yield by_group or COMPRESSED_TYPES.get(kind, ())


def _configurations(table: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(table, Mapping):
        if str(table.get("_type", "")).endswith("Config") and table["_type"] != "FqnToConfig":
            yield table
            return
        for inner in table.values():
            yield from _configurations(inner)


def _torchao(configuration: Mapping[str, Any]) -> Names:
    name = str(configuration["_type"])
    if not name.startswith("Intx"):
        return next((names for start, names in TORCHAO_TYPES.items() if name.startswith(start)), ())
    dtype = (configuration.get("_data") or {}).get("weight_dtype") or {}
    dtype_name = str(dtype.get("_data", dtype) if isinstance(dtype, Mapping) else dtype)
    return _integers(dtype_name.rpartition(".")[2].removeprefix("int"))


def _integers(bits: object) -> Names:
    return tuple(name for name in get_args(PrecisionName) if name == f"int{bits}")
